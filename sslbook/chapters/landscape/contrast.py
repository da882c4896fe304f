r"""Contrastive covariance, the pairwise weights of the named losses, and one filter's gradient (Section 2 of [tian2023]).

With two views :math:`f_i, f_i'` of each of N samples and weights :math:`\alpha`,

.. math::  C_\alpha[a, b] = \frac{1}{2 N^2} \sum_{ij} \alpha_{ij}
           [(a_i - a_j)(b_i - b_j)^T - (a_i - a_i')(b_i - b_i')^T].

The energy of a network is :math:`\frac12 \operatorname{tr} C_\alpha[f, f]`, and a step of gradient descent on a loss is a step of
ascent on it with :math:`\alpha` held fixed.  All functions take leading batch dimensions.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook import losses
from sslbook.gaps import Gaps
from sslbook.streams import Streams

LOSSES = ("info_nce", "quadratic", "triplet", "soft_triplet")
"""Losses that are energies: InfoNCE (Eq. 1, with any epsilon), quadratic, and triplet with a hinge or a softplus."""


@dataclass(frozen=True)
class Activation:
    """``h(u) = gate(u) u``: ``u`` above zero and ``slope * u`` below for ``degree = 1``, else ``u ** degree``.

    ``slope`` 1 is linear, 0 the ReLU, -1 the absolute value.  As ``h'(u) = degree * gate(u)``, Assumption 1 of [tian2023] holds
    as printed for ``degree = 1`` and up to the constant ``degree`` else.
    """

    slope: float = 0.0
    degree: int = 1

    def __post_init__(self) -> None:
        if int(self.degree) != self.degree or self.degree < 1:
            raise ValueError(f"degree must be a whole number of at least 1, got {self.degree!r}")
        if self.degree > 1 and self.slope != 1:
            raise ValueError(
                f"slope is for degree 1; a monomial of degree {self.degree} takes slope=1, got {self.slope}"
            )

    def gate(self, u: Tensor) -> Tensor:
        """What multiplies the input: the slope at ``u``, with the lower one at zero; or ``u ** (degree - 1)``."""
        if self.degree > 1:
            return u ** (self.degree - 1)
        return torch.where(u > 0, torch.ones_like(u), torch.full_like(u, self.slope))

    def __call__(self, u: Tensor) -> Tensor:
        """``h(u)``."""
        return self.gate(u) * u


LINEAR, RELU = Activation(1.0), Activation(0.0)


def monomial(degree: int) -> Activation:
    """``h(u) = u ** degree``."""
    return Activation(1.0, degree)


def contrastive_covariance(a: Tensor, b: Tensor, a2: Tensor, b2: Tensor, alpha: Tensor) -> Tensor:
    r"""Eq. 3 of [tian2023]: first views ``a (..., N, D)``, ``b (..., N, E)``, second ``a2``, ``b2``, ``alpha (..., N, N)``.

    Returns ``(..., D, E)``.

    The double sum is :math:`a^T L b` with the Laplacian :math:`L = \operatorname{diag}(\alpha 1 + \alpha^T 1) - \alpha - \alpha^T`.
    """
    n = a.shape[-2]
    if alpha.shape[-2:] != (n, n) or a2.shape != a.shape or b2.shape != b.shape or b.shape[-2] != n:
        raise ValueError(
            "a, b, a2, b2 must hold the N rows of alpha (N, N), a2 and b2 in the shapes of a and b; "
            f"got {tuple(a.shape)}, {tuple(b.shape)}, {tuple(a2.shape)}, {tuple(b2.shape)} and {tuple(alpha.shape)}"
        )
    rows, columns = alpha.sum(-1), alpha.sum(-2)
    laplacian = torch.diag_embed(rows + columns) - alpha - alpha.mT
    da, db = a - a2, b - b2
    out: Tensor = (a.mT @ laplacian @ b - (rows[..., None] * da).mT @ db) / (2 * n**2)
    return out


def energy(f: Tensor, f2: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`\frac12 \operatorname{tr} C_\alpha[f, f]`: two views ``(..., N, D)`` -> ``(...)``."""
    return 0.5 * contrastive_covariance(f, f, f2, f2, alpha).diagonal(dim1=-2, dim2=-1).sum(-1)


def square_distances(f: Tensor) -> Tensor:
    r""":math:`d_{ij}^2 = \|f_i - f_j\|^2 / 2`: ``(..., N, D)`` -> ``(..., N, N)``."""
    return losses.half_squared_distance(f[..., :, None, :], f[..., None, :, :])


def weights(loss: str, f: Tensor, f2: Tensor, *, tau: float = 1.0, epsilon: float = 0.0, margin: float = 0.0) -> Tensor:
    r"""Pairwise weights ``alpha (..., N, N)`` of a loss at the outputs ``f, f2 (..., N, D)``, without gradient.

    ``alpha_ij`` is minus the loss's derivative by :math:`d_{ij}^2`, and zero for ``i = j`` except in the quadratic loss:

    - info_nce: :math:`e^{-d_{ij}^2/\tau} / (\epsilon e^{-d_i^2/\tau} + \sum_{k \ne i} e^{-d_{ik}^2/\tau})`
    - quadratic: 1
    - triplet: 1 where :math:`d_i^2 - d_{ij}^2 + r_0 > 0`, else 0;  soft_triplet: the sigmoid of that over :math:`\tau`
    """
    _check_loss(loss)
    with torch.no_grad():
        far, near = square_distances(f), losses.half_squared_distance(f, f2)[..., None]
        n = f.shape[-2]
        apart = ~torch.eye(n, dtype=torch.bool)
        if loss == "quadratic":
            return torch.ones_like(far)
        if loss == "info_nce":
            gap = ((near - far) / tau).masked_fill(~apart, -torch.inf)
            # the positive pair's share, as one more logit
            own = gap.new_full((*gap.shape[:-1], 1), math.log(epsilon) if epsilon else -torch.inf)
            return torch.softmax(torch.cat([gap, own], -1), -1)[..., :-1]
        gap = near - far + margin
        on = (gap > 0).to(f.dtype) if loss == "triplet" else torch.sigmoid(gap / tau)
        return on * apart


def loss_value(
    loss: str, f: Tensor, f2: Tensor, *, tau: float = 1.0, epsilon: float = 0.0, margin: float = 0.0
) -> Tensor:
    """The loss itself, summed over anchors and pairs as in Eq. 1 of [tian2023]: ``f, f2 (..., N, D)`` -> ``(...)``."""
    _check_loss(loss)
    pos, neg = losses.pair_distances(f, f2, negatives="same_view")
    n = f.shape[-2]
    if loss == "info_nce":
        return tau * losses.info_nce(pos, neg, tau, epsilon).sum(-1)
    if loss == "quadratic":
        return n * losses.quadratic(pos, neg).sum(-1)
    if loss == "soft_triplet":
        return (n - 1) * losses.soft_triplet(pos, neg, tau, margin).sum(-1)
    return (pos[..., None] - neg + margin).relu().sum((-1, -2))


def _check_loss(loss: str) -> None:
    if loss not in LOSSES:
        near = difflib.get_close_matches(str(loss), LOSSES, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}{hint}")


# -- checks -------------------------------------------------------------------------------------------------------------


def _relative(found: Tensor, wanted: Tensor) -> Tensor:
    """``|found - wanted| / |wanted|`` of each replica, all other axes together."""
    out: Tensor = (found - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    return out


def energy_gaps(loss: str, count: int = 128, seed: int = 0, *, epsilon: float = 0.0) -> Gaps:
    r"""Eq. 2: :math:`\nabla_\theta` of the energy with :math:`\alpha` held fixed against :math:`-\nabla_\theta L / (2 N^2)`.

    ``count`` random networks with one hidden layer of ReLUs, batches of 7 pairs of views, random temperatures; the worst relative
    error in all weights.  Broken: the diagonal of InfoNCE's weights as the formula gives it for i = j; its weights without
    epsilon; a gradient that runs through the weights too.
    """
    draw = Streams(range(seed, seed + count), "energy")
    x = draw.normal((7, 5))
    x2 = x + 0.5 * draw.normal((7, 5))
    # The replica axis leads everywhere, so one temperature has to serve all; three runs use three.
    first, second = draw.normal((5, 8)), draw.normal((8, 3)) / 3
    gaps: dict[str, Tensor] = {}
    for tau in (0.3, 1.0, 3.0):
        theta = [first.clone().requires_grad_(), second.clone().requires_grad_()]
        f, f2 = ((v @ theta[0]).relu() @ theta[1] for v in (x, x2))
        setting = {"tau": tau, "epsilon": epsilon, "margin": 0.2}
        wanted = _flat_grad(-loss_value(loss, f, f2, **setting) / (2 * 7**2), theta)
        alpha = weights(loss, f, f2, **setting)
        variants = {"energy": alpha}
        if loss == "info_nce":
            own = torch.diagonal(square_distances(f), dim1=-2, dim2=-1)
            total = torch.where(torch.eye(7, dtype=torch.bool), torch.inf, square_distances(f)) / tau
            diagonal = (-own / tau).exp() / (-total).exp().sum(-1)
            variants["broken: diagonal as printed"] = alpha + torch.diag_embed(diagonal).detach()
            if epsilon:
                variants["broken: epsilon left out"] = weights(loss, f, f2, tau=tau)
        else:
            variants["broken: diagonal"] = alpha + (torch.eye(7) if loss != "quadratic" else -torch.eye(7))
        for name, weight in variants.items():
            gap = _relative(_flat_grad(energy(f, f2, weight), theta), wanted)
            worse = torch.minimum if name.startswith("broken") else torch.maximum
            gaps[name] = worse(gaps[name], gap) if name in gaps else gap
    return {k: float(v.min() if k.startswith("broken") else v.max()) for k, v in gaps.items()} | {
        "instances": 3.0 * count
    }


def _flat_grad(value: Tensor, theta: list[Tensor]) -> Tensor:
    parts = torch.autograd.grad(value.sum(), theta, retain_graph=True)
    return torch.cat([part.flatten(1) for part in parts], 1)


def filter_matrix(w: Tensor, x: Tensor, x2: Tensor, alpha: Tensor, act: Activation) -> Tensor:
    r""":math:`A(w) = C_\alpha[\mathrm{gate}(w^T x)\, x]`: ``w (..., d)``, views ``(..., N, d)`` -> ``(..., d, d)``."""
    gated = [act.gate((v @ w[..., None])[..., 0])[..., None] * v for v in (x, x2)]
    return contrastive_covariance(gated[0], gated[0], gated[1], gated[1], alpha)


def filter_gaps(act: Activation, count: int = 128, seed: int = 0) -> Gaps:
    r"""Lemma 3 of [tian2023]: the energy's gradient at :math:`w / \|w\|` by autograd against :math:`p\, P^\perp_w A(w) w`.

    p is the degree; random filters of unit length, batches of 9 pairs of views, weights of InfoNCE.  Broken: not projected; the
    activation in place of the gate; and for a monomial the constant p left out.
    """
    draw = Streams(range(seed, seed + count), "filter")
    x, w = draw.normal((9, 4)), draw.normal((4,))
    x2, w = x + 0.4 * draw.normal((9, 4)), w / w.norm(dim=-1, keepdim=True)

    def response(v: Tensor, unit: Tensor) -> Tensor:
        return act((v @ unit[..., None])[..., 0])[..., None]

    alpha = weights("info_nce", response(x, w), response(x2, w), tau=0.5, epsilon=1.0)
    free = w.clone().requires_grad_()
    unit = free / free.norm(dim=-1, keepdim=True)
    (wanted,) = torch.autograd.grad(energy(response(x, unit), response(x2, unit), alpha).sum(), free)
    raw = act.degree * (filter_matrix(w, x, x2, alpha, act) @ w[..., None])[..., 0]
    flat = contrastive_covariance(
        response(x, w) * x, response(x, w) * x, response(x2, w) * x2, response(x2, w) * x2, alpha
    )
    gaps = {
        "filter": _relative(project(w, raw), wanted).max(),
        "broken: not projected": _relative(raw, wanted).min(),
        "broken: activation for gate": _relative(project(w, (flat @ w[..., None])[..., 0]), wanted).min(),
    }
    if act.degree > 1:
        gaps["broken: degree left out"] = _relative(project(w, raw / act.degree), wanted).min()
    return {k: float(v) for k, v in gaps.items()} | {"instances": float(count)}


def stop_gradient_gaps(loss: str, count: int = 128, seed: int = 0, *, epsilon: float = 1.0) -> Gaps:
    r"""What holding the weights fixed hides: the Hessian of :math:`-L / (2 N^2)` less that of the energy, for one filter.

    Minus the loss is a concave function of the gaps :math:`d_{ij}^2 - d_i^2` (InfoNCE, triplet), so the difference has no positive
    eigenvalue: ``positive`` is the largest one over the norm of the loss's Hessian, ``size`` the least norm of the difference.
    Broken: minus the difference.
    """
    draw = Streams(range(seed, seed + count), "hessian")
    x, w = draw.normal((7, 3)), draw.normal((3,))
    x2 = x + 0.4 * draw.normal((7, 3))
    tau, margin = 0.5, 0.1

    def outputs(v: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ v[..., None]).relu(), (x2 @ v[..., None]).relu()

    alpha = weights(loss, *outputs(w), tau=tau, epsilon=epsilon, margin=margin)

    def objective(v: Tensor) -> Tensor:
        return -loss_value(loss, *outputs(v), tau=tau, epsilon=epsilon, margin=margin) / (2 * 7**2)

    true = _hessian(objective, w)
    fixed = _hessian(lambda v: energy(*outputs(v), alpha), w)
    alive = true.flatten(1).norm(dim=1) > 1e-9  # a silent filter has no curvature
    true, fixed = true[alive], fixed[alive]
    values = torch.linalg.eigvalsh(true - fixed) / true.flatten(1).norm(dim=1)[:, None]
    return {
        "positive": float(values[:, -1].max()),
        "size": float(values.norm(dim=1).min()),
        "broken: sign": float((-values[:, 0]).min()),
        "instances": float(alive.sum()),
    }


def _hessian(value: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Second derivatives of ``value (R,)`` by ``w (R, d)``: ``(R, d, d)``."""
    free = w.clone().requires_grad_()
    (first,) = torch.autograd.grad(value(free).sum(), free, create_graph=True)
    rows = [torch.autograd.grad(first[:, k].sum(), free, retain_graph=True)[0] for k in range(w.shape[1])]
    return torch.stack(rows, 1)


def project(w: Tensor, v: Tensor) -> Tensor:
    r""":math:`P^\perp_w v` for unit ``w (..., d)``."""
    return v - (w * v).sum(-1, keepdim=True) * w
