r"""The moving average of Theorem 9 of [tian2021iclr], solved exactly.

    w(t+1) = w(t) + alpha (-w(t) + (1 + lambda) v(t)),          v(t+1) = (1 - eta) v(t) + eta w(t)

with the target ``v`` and ``eta = 1 - gamma_ema``.  Eq. 15 prints ``1 - lambda``, which is ``sign=-1`` here; the statement's rate

    kappa = ((eta + alpha) / 2) (sqrt(1 + 4 alpha eta lambda / (eta + alpha)^2) - 1)

belongs to ``sign=+1``.  Code that trains updates the target *after* the step, with ``w(t+1)`` (``order="after"``).
All functions take floats or float64 tensors, which broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslbook.arguments import require_one_of
from sslbook.chapters.byol.towers import BOTH, Pair, Tower, draw, step
from sslbook.gaps import Gaps, over_instances, relative

Number = float | Tensor
ORDERS = ("before", "after")
"""Which weight the target averages in: that from before the step (the paper's), or from after it (what code does)."""


def kappa(alpha: Number, eta: Number, lam: Number, order: str = "before") -> Tensor:
    r"""Theorem 9's rate as stated; NaN where the roots are complex.

    If the target is updated after the step it is the larger root of
    :math:`u^2 + (\alpha + \eta - \alpha\eta(1 + \lambda)) u = \alpha\eta\lambda`.
    """
    alpha, eta, lam = _tensors(alpha, eta, lam)
    if _order(order) == "after":
        half = (alpha + eta - alpha * eta * (1 + lam)) / 2
        return (half**2 + alpha * eta * lam).sqrt() - half
    half = (alpha + eta) / 2
    # the difference of the root and half without its cancellation
    return alpha * eta * lam / ((half**2 + alpha * eta * lam).sqrt() + half)


def bound(alpha: Number, eta: Number, lam: Number, order: str = "before") -> Tensor:
    r"""Upper bound on the rate for :math:`\lambda \ge 0`: :math:`\lambda / (1/\alpha + 1/\eta)` (Theorem 9).

    If the target is updated after the step it is :math:`\lambda / (1/\alpha + 1/\eta - 1)`, for alpha and eta of at most 1.
    """
    alpha, eta, lam = _tensors(alpha, eta, lam)
    return lam / (1 / alpha + 1 / eta - float(_order(order) == "after"))


def matrix(alpha: Number, eta: Number, lam: Number, *, sign: int = 1, order: str = "before") -> Tensor:
    """The recurrence as a matrix on ``(w, v)``, ``(..., 2, 2)``."""
    if sign not in (1, -1):
        raise ValueError(f"sign must be 1 or -1, got {sign}")
    alpha, eta, lam = _tensors(alpha, eta, lam)
    one = torch.ones_like(alpha)
    online = torch.stack([1 - alpha, alpha * (1 + sign * lam)], -1)
    old, new = torch.stack([one, 0 * one], -1), torch.stack([0 * one, one], -1)
    read = old if _order(order) == "before" else online
    return torch.stack([online, eta[..., None] * read + (1 - eta)[..., None] * new], -2)


def iterate(m: Tensor, start: Tensor, steps: int) -> Tensor:
    """The recurrence run: ``(steps + 1, ..., 2)`` from ``start (..., 2)``."""
    states = [start.expand(*m.shape[:-2], 2)]
    for _ in range(steps):
        states.append((m @ states[-1][..., None])[..., 0])
    return torch.stack(states)


def solution(
    alpha: Number, eta: Number, lam: Number, steps: int, *, target: Number = 0.0, order: str = "before"
) -> Tensor:
    r"""Online weight at times ``0 .. steps``, from :math:`w(0) = 1`, ``(steps + 1, ...)``, in closed form.

    With the roots :math:`z_\pm`, :math:`w(t) = A z_+^t + (1 - A) z_-^t` and :math:`A = (w(1) - z_-) / (z_+ - z_-)`: the theorem's
    :math:`(1 + \kappa)^t` is the larger term, and the only one after a while, if :math:`\alpha + \eta < 2`.  target: the target's
    weight at time 0.
    """
    alpha, eta, lam, v = _tensors(alpha, eta, lam, target)
    top = 1 + kappa(alpha, eta, lam, order)
    m = matrix(alpha, eta, lam, order=order)
    low = m.diagonal(dim1=-2, dim2=-1).sum(-1) - top
    first = m[..., 0, 0] + m[..., 0, 1] * v
    share = (first - low) / (top - low)
    time = torch.arange(steps + 1, dtype=torch.float64).view(-1, *(1,) * share.ndim)
    return share * top**time + (1 - share) * low**time


def random_settings(count: int, seed: int = 0, *, smallest: float = -0.9) -> tuple[Tensor, Tensor, Tensor]:
    """``count`` draws of alpha and eta from (0.05, 1) and of lambda from (``smallest``, 3)."""
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(3, count, generator=g, dtype=torch.float64)
    return 0.05 + 0.95 * u[0], 0.05 + 0.95 * u[1], smallest + (3 - smallest) * u[2]


def recurrence_gaps(count: int = 200, seed: int = 0) -> Gaps:
    """The closed form, the rates and the bounds against the recurrence run, on random settings; relative errors.

    Rates come from the spectral radius by NumPy's eigenvalues; bounds are given as the most they are exceeded (below 0: never).
    """
    steps = 60
    alpha, eta, lam = random_settings(count, seed)
    rising = lam > 0.05
    gaps: Gaps = {"instances": float(count)}

    def error(run: Tensor, found: Tensor) -> Tensor:
        out: Tensor = ((run - found).abs() / run.abs().cummax(0).values).amax(0)
        return out

    for order in ORDERS:
        m = matrix(alpha, eta, lam, order=order)
        rate = kappa(alpha, eta, lam, order)
        largest = torch.linalg.eigvals(m).real.amax(-1) - 1
        gaps[f"rate, {order}"] = float((rate - largest).abs().max())
        gaps[f"bound, {order}"] = float((rate - bound(alpha, eta, lam, order))[lam >= 0].max())
        for target in (0.0, 1.0):
            run = iterate(m, torch.tensor([1.0, target], dtype=torch.float64), steps)[..., 0]
            found = solution(alpha, eta, lam, steps, target=target, order=order)
            gaps[f"w(t), {order}, target from {target:.0f}"] = float(error(run, found).max())
    swapped = iterate(matrix(alpha, eta, lam, sign=-1), torch.tensor([1.0, 0.0], dtype=torch.float64), steps)[..., 0]
    gaps["broken: w(t) of Eq. 15 as printed"] = float(error(swapped, solution(alpha, eta, lam, steps))[rising].min())
    printed = torch.linalg.eigvals(matrix(alpha, eta, lam, sign=-1)).real.amax(-1) - 1
    gaps["broken: rate of Eq. 15 as printed"] = float((kappa(alpha, eta, lam) - printed).abs()[rising].min())
    after = torch.linalg.eigvals(matrix(alpha, eta, lam, order="after")).real.amax(-1) - 1
    gaps["broken: updated after the step"] = float((kappa(alpha, eta, lam) / after - 1).abs()[rising].min())
    return gaps


def exceeded(count: int = 200, seed: int = 0) -> float:
    r"""Largest ratio of the rate with the target updated after the step to Theorem 9's bound, over random settings.

    With :math:`s = 1/\alpha + 1/\eta \ge 2` it is at most :math:`s / (s - 1) \le 2`, and 2 for :math:`\alpha = \eta = 1`.
    """
    alpha, eta, lam = random_settings(count, seed, smallest=0.05)
    return float((kappa(alpha, eta, lam, "after") / bound(alpha, eta, lam)).max())


def measured_rate(alpha: Number, eta: Number, lam: Number, *, sign: int = 1, steps: int = 4000) -> Tensor:
    """Growth per step of the recurrence once the smaller root has died out: geometric mean over the last quarter of the steps.

    Where the roots are complex it is how fast the swings grow or fade.
    """
    m = matrix(alpha, eta, lam, sign=sign)
    state = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(*m.shape[:-2], 2)
    total = torch.zeros(m.shape[:-2], dtype=torch.float64)
    for t in range(steps):
        state = (m @ state[..., None])[..., 0]
        size = state.norm(dim=-1, keepdim=True)
        state = state / size
        if t >= steps - steps // 4:
            total = total + size[..., 0].log()
    return torch.expm1(total / (steps // 4))


# -- the same inside a network -------------------------------------------------------------------------------------------------


def network_gaps(count: int = 100, seed: int = 0) -> Gaps:
    r"""BYOL by autograd, one linear layer with :math:`W_p = \beta I`, BatchNorm's mean and a moving average, against Eq. 15.

    Coordinate d of the input has variance :math:`a_d` between images and :math:`b_d` within augmentations, uncorrelated, so that
    column d of the layer follows the recurrence with :math:`\alpha = \rho \beta^2 (a_d + b_d)` for the learning rate rho and
    :math:`1 + \lambda = a_d / (\beta (a_d + b_d))`.  Relative errors of the columns at the end, the target updated after the step.
    """
    rate, steps = 0.2, 20
    g = torch.Generator().manual_seed(seed)
    size, images, views = 4, 16, 8

    def orthogonal(points: int) -> Tensor:  # uncorrelated coordinates of mean 0 and variance 1
        z = draw((count, points, size), g)
        out: Tensor = torch.linalg.qr(z - z.mean(1, keepdim=True))[0] * points**0.5
        return out

    a, b = (0.2 + torch.rand(count, 1, 1, size, generator=g, dtype=torch.float64) for _ in range(2))
    x = a.sqrt() * orthogonal(images)[:, :, None] + b.sqrt() * orthogonal(views)[:, None]
    a, b = a[:, 0, 0], b[:, 0, 0]
    beta, eta = torch.rand(2, count, 1, generator=g, dtype=torch.float64) * 0.6 + 0.2
    weight = draw((count, 3, size), g)
    online, target = weight, weight
    for _ in range(steps):
        top = beta[..., None] * torch.eye(3, dtype=torch.float64)
        pair = Pair(Tower(x, online, (top,)), Tower(x, target, ()))
        online = online + rate * step(pair, BOTH).unflatten(1, (size, 3)).mT
        target = target + eta[..., None] * (online - target)
    alpha, lam = rate * beta**2 * (a + b), a / (beta * (a + b)) - 1
    factors = {
        order: solution(alpha, eta.expand_as(alpha), lam, steps, target=1.0, order=order)[-1] for order in ORDERS
    }

    def error(factor: Tensor) -> Tensor:
        return relative(weight * factor[:, None], online)

    flipped = iterate(
        matrix(alpha, eta.expand_as(alpha), lam, sign=-1, order="after"), torch.ones(2, dtype=torch.float64), steps
    )[-1, ..., 0]
    return over_instances(
        {
            "network": error(factors["after"]),
            "broken: the target updated before": error(factors["before"]),
            "broken: sign of lambda as printed": error(flipped),
        }
    )


def _order(order: str) -> str:
    require_one_of("order", order, ORDERS)
    return order


def _tensors(*values: Number) -> list[Tensor]:
    found = torch.broadcast_tensors(*(torch.as_tensor(v, dtype=torch.float64) for v in values))
    if bool((found[0] <= 0).any()) or bool((found[1] < 0).any()) or bool((found[1] > 1).any()):
        raise ValueError("alpha must be positive and eta between 0 and 1")
    return list(found)
