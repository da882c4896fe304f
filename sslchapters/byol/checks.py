"""Formulas and autograd compared, on random instances: Eq. 11, Theorem 8, Corollaries 1 and 2, Theorem 9 of [tian2021iclr]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslbook.losses import pairs as losses
from sslbook.networks.batchnorm import batch_normalize
from sslchapters.byol import instances, theory
from sslchapters.byol.instances import BACKWARD, BOTH, FORWARD, Loss, Norm, Pair, Tower, step, vec
from sslchapters.checks import Gaps, over_instances, relative

# ---------------------------------------------------------------------------------------------------------------------
# Eq. 11: weights shrink, or stay in the kernel of a positive semi-definite matrix; one linear layer is solved at every time

ACTIVATIONS = ("linear", "relu", "leaky_relu")


# ---------------------------------------------------------------------------------------------------------------------
# Theorem 8


VARIANTS: dict[str, Norm] = {"backward only": BACKWARD, "forward only": FORWARD, "both": BOTH}
"""The two halves of subtracting the mean, and their union."""

TOPS: dict[str, dict[str, object]] = {
    "linear": {},
    "leaky ReLU": {"act": "leaky_relu"},
    "ReLU": {"act": "relu"},
    "length 1": {"unit": True},
}
"""What stands above the layer; in the last, outputs are scaled to length 1."""


def covariance_gaps(count: int = 100, seed: int = 0) -> Gaps:
    r"""What Eq. 12 does under any top: the step is :math:`-Cov[f_{l-1}, g_l]` over the batch, and no bias below it moves.

    ``g_l`` is the gradient in the pre-activation without BatchNorm; relative errors, and the largest component of the sum of
    the centred gradients over the batch, relative to their largest.
    """
    pair = instances.random_pair(count, sizes=(5, 6, 12, 8), seed=seed)
    parts = []
    for fields in TOPS.values():
        towers = pair.changed(**fields)
        online, t = towers.online, towers.target.output()
        pre = online.lift(online.weight).requires_grad_(True)
        g, centred = (
            torch.autograd.grad(instances.mean_loss(online.climb(pre, norm), t).sum(), pre)[0].flatten(1, 2)
            for norm in (None, BACKWARD)
        )
        f = online.below.flatten(1, 2)
        product = vec(-(g - g.mean(1, keepdim=True)).mT @ (f - f.mean(1, keepdim=True)))
        found = step(towers, BACKWARD)
        parts.append(
            {
                "minus a covariance": relative(product, found),
                "sum of the gradients": _total(centred),
                "broken: product, not covariance": relative(vec(-g.mT @ f), found),
                "broken: sum without Eq. 12": _total(g),
            }
        )
    return over_instances(*parts)


def _total(g: Tensor) -> Tensor:
    out: Tensor = g.sum(1).norm(dim=1) / g.norm(dim=(1, 2))
    return out


def batch_gaps(seed: int = 0) -> Gaps:
    r"""The expected step of finite batches of ``B`` against exact multiples of the terms of Eq. 14; relative errors.

    Images drawn with repetition: :math:`(1 - 1/B)` times Eq. 14.  Distinct images, of ``N``:
    :math:`(1 - 1/B)\{sym + \frac{N}{N-1}(covariance - variance)\}`.
    """
    count = 100
    parts = []
    for n, sizes in ((3, (2, 3)), (2, (3,))):
        pair = instances.random_pair(count, images=n, views=2, seed=seed)
        t = theory.terms(pair)
        for size in sizes:
            for name, norm in VARIANTS.items() if size == 2 else (("both", BOTH),):
                found = instances.batch_step(pair, instances.all_batches(n, 2, size, distinct=False), norm)
                parts.append({f"repeated, {name}": relative((1 - 1 / size) * t.corrected, found)})
            parts.append({"broken: Eq. 14 itself": relative(t.corrected, found)})
    n = 4
    pair = instances.random_pair(count, images=n, views=2, seed=seed + 1)
    t = theory.terms(pair)
    for size in (2, 3, 4):
        found = instances.batch_step(pair, instances.all_batches(n, 2, size, distinct=True), BOTH)
        contrast = t.corrected - t.sym
        parts.append(
            {
                "distinct": relative((1 - 1 / size) * (t.sym + n / (n - 1) * contrast), found),
                "broken: distinct, as if repeated": relative((1 - 1 / size) * t.corrected, found),
            }
        )
    return over_instances(*parts) | {"instances": float(count)}


# ---------------------------------------------------------------------------------------------------------------------
# Corollary 1: a loss of distances does not change when all outputs move together, so that a tuple's gradients add up to zero


def _centring_correction(
    tower: Tower, loss: Loss, *, roles: Sequence[str] = instances.ROLES, negatives: int = 1
) -> Tensor:
    """How much Eq. 12 changes the step, relative to the step without it, ``(R,)``."""
    plain = instances.tuple_step(tower, loss, roles=roles, negatives=negatives)
    centred = instances.tuple_step(tower, loss, BACKWARD, roles=roles, negatives=negatives)
    return relative(centred, plain)


def corollary1_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """The correction for the three losses: zero through all towers; where it is not (``broken:``), below which one in twenty lies.

    (Not the smallest: a ReLU that is active, or silent, on every view is linear.)
    """
    gaps: Gaps = {"instances": float(count)}
    linear = instances.contrastive_tower(count, seed=seed)
    for name, loss in instances.TUPLE_LOSSES.items():
        gaps[f"{name}, all towers"] = max(
            float(_centring_correction(linear, loss, negatives=h).max()) for h in ((1,) if name == "simple" else (1, 2))
        )
        for what, other in (
            ("ReLU above", instances.contrastive_tower(count, act="relu", seed=seed)),
            ("outputs of length 1", instances.contrastive_tower(count, unit=True, seed=seed)),
        ):
            gaps[f"broken: {name}, {what}"] = float(_centring_correction(other, loss).quantile(0.05))
    gaps["simple, one tower"] = float(
        _centring_correction(linear, instances.TUPLE_LOSSES["simple"], roles=("anchor",)).max()
    )
    return gaps


def one_tower_correction(loss: str, count: int = 100, seed: int = 0) -> Tensor:
    """The correction where only the anchor's tower gets a gradient, linear top, relative to that tower's step, ``(count,)``."""
    return _centring_correction(
        instances.contrastive_tower(count, seed=seed), instances.TUPLE_LOSSES[loss], roles=("anchor",), negatives=1
    )


def batch_correction(size: int, seed: int = 0, *, joint: bool = True) -> Tensor:
    """What ``x - x.mean()`` changes in one batch's InfoNCE step (all other images negatives), linear top, ``(32,)``.

    joint: the two views are one BatchNorm batch; else each has statistics of its own, as where each view is a forward pass.
    """
    pair = instances.random_pair(32, images=size, views=2, sizes=(5, 6, 12, 8), seed=seed).online

    def gradient(norm: Norm) -> Tensor:
        leaf = pair.weight.clone().requires_grad_(True)
        pre = pair.lift(leaf)
        if norm:
            pre = batch_normalize(pre, dims=(1, 2) if joint else 1, **norm)  # type: ignore[arg-type]
        one, two = pair.climb(pre).unbind(2)
        loss = losses.contrastive(one, two, loss="info_nce", normalize=False, temperature=0.5)
        (found,) = torch.autograd.grad(loss.sum(), leaf)
        return found.flatten(1)

    return relative(gradient(BOTH), gradient({}))


# ---------------------------------------------------------------------------------------------------------------------
# Corollary 2


def _symmetric_part(matrix: Tensor) -> Tensor:
    """``(M + M^T) / 2``, which alone enters a quadratic form."""
    return (matrix + matrix.mT) / 2


def rate_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """`theory.rate_law` against :math:`w^T \\Delta w / |w|^2` of the autograd step, relative to the largest rate over beta."""
    measured, law, wrong = [], [], []
    for beta in (-0.5, 0.1, 0.3, 0.5, 0.8, 1.2):
        pair = _scalar_pair(beta, count, seed)
        w, k = vec(pair.online.weight), theory.without_predictor(pair).connections()
        square = w.square().sum(1)
        within = (w * theory.intra(k, w)).sum(1) / square
        between = torch.einsum("rp,rpq,rq->r", w, theory.inter_matrix(k), w) / square
        measured.append((w * step(pair, BOTH)).sum(1) / square)
        law.append(theory.rate_law(beta, between, within))
        wrong.append(beta * (1 - beta) * between - within)
    truth = torch.stack(measured)
    scale = truth.abs().amax(0)
    return over_instances(
        {
            "rate": (torch.stack(law) - truth).abs().amax(0) / scale,
            "broken: within augmentations without beta": (torch.stack(wrong) - truth).abs().amax(0) / scale,
        }
    )


def predictor_spectrum(kind: str, replicas: int = 100, *, scale: float = 0.3, seed: int = 0) -> Tensor:
    r"""Eigenvalues of the symmetric part of :math:`W_p^T (I - W_p)`, ascending, ``(R, 32)``."""
    out: Tensor = torch.linalg.eigvalsh(
        _symmetric_part(theory.middle(instances.random_predictors(kind, replicas, 32, scale=scale, seed=seed)))
    )
    return out


def predictor_pulls(
    kind: str, replicas: int = 200, size: int = 32, *, scale: float = 0.3, traceless: bool = False, seed: int = 0
) -> Tensor:
    r"""What the predictor's term does to random weights: :math:`w^T E[\hat K M \hat K^T] w / |w|^2`, :math:`M = W_p^T (I - W_p)`.

    It equals :math:`E_x[\hat f^T M \hat f]` for the base network's output, averaged over views and centred, ``(R,)``; positive
    values make the weights grow.  traceless: a multiple of the identity takes the trace off each predictor first.
    """
    drawn = instances.random_predictors(kind, replicas, size, scale=scale, seed=seed)
    if traceless:
        drawn = drawn - drawn.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(size, dtype=drawn.dtype)
    pair = instances.shared_pair(drawn, images=40, wide=True, seed=seed + 1)
    tower = theory.without_predictor(pair)
    f = tower.output().mean(2)
    f = f - f.mean(1, keepdim=True)
    form = torch.einsum("rno,rop,rnp->r", f, theory.middle(pair.online.above[-1]), f) / f.shape[1]
    return form / tower.weight.square().sum((1, 2))


def largest_unstopped(count: int = 100, seed: int = 0) -> float:
    """Largest eigenvalue of the step's matrix without stop-gradient over the largest in size, all kinds: never above zero.

    The matrix is autograd's, through BatchNorm (mean only) in both towers, and knows nothing of `theory.unstopped_operator`.
    """
    pairs = (
        instances.shared_pair(instances.random_predictors(kind, count, 3, scale=1.5, seed=seed), seed=seed)
        for kind in instances.PREDICTORS
    )
    return max(float(_largest(instances.step_matrix(pair, BOTH, both=True)).max()) for pair in pairs)


def largest_stopped(count: int = 100, seed: int = 0) -> Tensor:
    """The same with stop-gradient and ``I / 4``, ``(count,)``: a matrix that does have positive eigenvalues."""
    return _largest(instances.step_matrix(_scalar_pair(0.25, count, seed), BOTH))


def _scalar_pair(beta: float, count: int, seed: int) -> Pair:
    return instances.shared_pair(beta * torch.eye(3, dtype=torch.float64).repeat(count, 1, 1), seed=seed)


def _largest(matrix: Tensor) -> Tensor:
    found = torch.linalg.eigvalsh(_symmetric_part(matrix))
    out: Tensor = found[:, -1] / found.abs().amax(1)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Theorem 9


def ema_gaps(count: int = 200, seed: int = 0) -> Gaps:
    """The closed form, the rates and the bounds against the recurrence run, on random settings; relative errors.

    Rates come from the spectral radius by NumPy's eigenvalues; bounds are given as the most they are exceeded (below 0: never).
    """
    steps = 60
    alpha, eta, lam = instances.random_settings(count, seed)
    rising = lam > 0.05
    gaps: Gaps = {"instances": float(count)}

    def error(run: Tensor, found: Tensor) -> Tensor:
        out: Tensor = ((run - found).abs() / run.abs().cummax(0).values).amax(0)
        return out

    for order in theory.ORDERS:
        m = theory.ema_matrix(alpha, eta, lam, order=order)
        rate = theory.kappa(alpha, eta, lam, order)
        largest = torch.linalg.eigvals(m).real.amax(-1) - 1
        gaps[f"rate, {order}"] = float((rate - largest).abs().max())
        gaps[f"bound, {order}"] = float((rate - theory.kappa_bound(alpha, eta, lam, order))[lam >= 0].max())
        for target in (0.0, 1.0):
            run = theory.iterate(m, torch.tensor([1.0, target], dtype=torch.float64), steps)[..., 0]
            found = theory.ema_path(alpha, eta, lam, steps, target=target, order=order)
            gaps[f"w(t), {order}, target from {target:.0f}"] = float(error(run, found).max())
    swapped = theory.iterate(
        theory.ema_matrix(alpha, eta, lam, sign=-1), torch.tensor([1.0, 0.0], dtype=torch.float64), steps
    )[..., 0]
    gaps["broken: w(t) of Eq. 15 as printed"] = float(
        error(swapped, theory.ema_path(alpha, eta, lam, steps))[rising].min()
    )
    return gaps


def ema_network_gaps(count: int = 100, seed: int = 0) -> Gaps:
    r"""BYOL by autograd, one linear layer with :math:`W_p = \beta I`, BatchNorm's mean and a moving average, against Eq. 15.

    Coordinate d of the input has variance :math:`a_d` between images and :math:`b_d` within augmentations, uncorrelated, so that
    column d of the layer follows the recurrence with :math:`\alpha = \rho \beta^2 (a_d + b_d)` for the learning rate rho and
    :math:`1 + \lambda = a_d / (\beta (a_d + b_d))`.  Relative errors of the columns at the end, the target updated after the step.
    """
    rate, steps = 0.2, 20
    g = torch.Generator().manual_seed(seed)
    size, images, views = 4, 16, 8

    def orthogonal(points: int) -> Tensor:  # uncorrelated coordinates of mean 0 and variance 1
        z = instances.draw((count, points, size), g)
        out: Tensor = torch.linalg.qr(z - z.mean(1, keepdim=True))[0] * points**0.5
        return out

    a, b = (0.2 + torch.rand(count, 1, 1, size, generator=g, dtype=torch.float64) for _ in range(2))
    x = a.sqrt() * orthogonal(images)[:, :, None] + b.sqrt() * orthogonal(views)[:, None]
    a, b = a[:, 0, 0], b[:, 0, 0]
    beta, eta = torch.rand(2, count, 1, generator=g, dtype=torch.float64) * 0.6 + 0.2
    weight = instances.draw((count, 3, size), g)
    online, target = weight, weight
    for _ in range(steps):
        top = beta[..., None] * torch.eye(3, dtype=torch.float64)
        pair = Pair(Tower(x, online, (top,)), Tower(x, target, ()))
        online = online + rate * step(pair, BOTH).unflatten(1, (size, 3)).mT
        target = target + eta[..., None] * (online - target)
    alpha, lam = rate * beta**2 * (a + b), a / (beta * (a + b)) - 1
    factors = {
        order: theory.ema_path(alpha, eta.expand_as(alpha), lam, steps, target=1.0, order=order)[-1]
        for order in theory.ORDERS
    }

    def error(factor: Tensor) -> Tensor:
        return relative(weight * factor[:, None], online)

    flipped = theory.iterate(
        theory.ema_matrix(alpha, eta.expand_as(alpha), lam, sign=-1, order="after"),
        torch.ones(2, dtype=torch.float64),
        steps,
    )[-1, ..., 0]
    return over_instances(
        {
            "network": error(factors["after"]),
            "broken: the target updated before": error(factors["before"]),
            "broken: sign of lambda as printed": error(flipped),
        }
    )
