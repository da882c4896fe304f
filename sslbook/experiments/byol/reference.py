r"""Steps by autograd, and what many of them lead to: what the formulas must agree with.

BYOL's loss is the mean of

    r(x, x_1, x_2) = |f_L(x_1; W) - f_{L'}(x_2; W')|^2 / 2

over all images and all pairs of views, equal ones included: two independent draws (Eq. 10 of [tian2021iclr]).  Unless told
otherwise no gradient reaches the target, ``W'``.

A tuple of a contrastive loss has an anchor, a positive (another view of its image) and ``H`` negatives (views of any image), each
seen by a tower of its own with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sslbook.experiments.byol.instances import Batches, Norm, Pair, Tower, all_tuples, vec
from sslbook.experiments.byol.theory import Number, ema_matrix
from sslbook.losses import pairs as losses


def mean_loss(y: Tensor, t: Tensor) -> Tensor:
    r"""Mean of r over images and pairs of views, ``(R,)``, from outputs ``(R, N, V, o)``: :math:`E|y_1 - t_2|^2 / 2`."""
    return 0.5 * (y[:, :, :, None] - t[:, :, None]).square().sum(-1).flatten(1).mean(1)


def step(pair: Pair, norm: Norm | None = None, *, target_norm: Norm | None = None, both: bool = False) -> Tensor:
    r"""Minus the gradient of the mean loss in :math:`W_l`, by autograd, ``(R, m k)``.

    The target's BatchNorm is the online one's unless ``target_norm`` is given.  both: the gradient flows through the target as
    well, whose layer then has to have the same weights.
    """
    leaf = pair.online.weight.clone().requires_grad_(True)
    y = pair.online.output(leaf, norm)
    t = pair.target.output(leaf if both else None, norm if target_norm is None else target_norm)
    (gradient,) = torch.autograd.grad(mean_loss(y, t).sum(), leaf)
    return vec(-gradient)


def step_matrix(pair: Pair, norm: Norm | None = None, *, both: bool = False) -> Tensor:
    r"""The matrix that takes :math:`vec(W_l)` to :func:`step`, where both towers have these weights, ``(R, m k, m k)``.

    Column j is autograd's step at the j-th unit vector; the step has to be linear in the weights: linear tops, BatchNorm with
    the mean alone, no scaling of the outputs.
    """
    r, k, m = pair.online.weight.shape
    units = torch.eye(m * k, dtype=pair.online.weight.dtype).unflatten(1, (m, k)).mT.repeat(r, 1, 1)

    def spread(t: Tower) -> Tower:
        below, *above = (x.repeat_interleave(m * k, 0) for x in (t.below, *t.above))
        return replace(t, below=below, weight=units, above=tuple(above))

    out: Tensor = step(Pair(spread(pair.online), spread(pair.target)), norm, both=both).unflatten(0, (r, m * k)).mT
    return out


@dataclass(frozen=True)
class Decline:
    """A run of gradient descent: the loss, and the variance between images of the outputs averaged over views.

    loss, between: ``(T + 1, R)``.  weight: the first layer at the end, ``(R, k, m)``.
    """

    loss: Tensor
    between: Tensor
    weight: Tensor


def descend(tower: Tower, steps: int, rate: float) -> Decline:
    """Gradient descent of all layers on the mean loss of identical towers, no gradient through the target."""
    leaves = [m.clone().requires_grad_(True) for m in (tower.weight, *tower.above)]
    losses, between = [], []
    for t in range(steps + 1):
        now = replace(tower, weight=leaves[0], above=tuple(leaves[1:]))
        y = now.output()
        loss = mean_loss(y, y.detach())
        losses.append(loss.detach())
        between.append(variance_between(y.detach()))
        if t < steps:
            for leaf, g in zip(leaves, torch.autograd.grad(loss.sum(), leaves), strict=True):
                leaf.data.sub_(rate * g)
    return Decline(torch.stack(losses), torch.stack(between), leaves[0].detach())


def variance_between(y: Tensor) -> Tensor:
    """Variance between images of outputs ``(R, N, V, o)`` averaged over views, ``(R,)``."""
    mean = y.mean(2)
    return (mean - mean.mean(1, keepdim=True)).square().sum(-1).mean(1)


def batch_step(pair: Pair, batches: Batches, norm: Norm) -> Tensor:
    """The mean of the steps of all batches, each with statistics of its own, by autograd, ``(R, m k)``."""
    leaf = pair.online.weight.clone().requires_grad_(True)

    def outputs(tower: Tower, weight: Tensor, view: Tensor) -> Tensor:
        below = tower.below[:, batches.image, view]  # (R, M, B, m)
        return replace(tower, below=below).climb(replace(tower, below=below).lift(weight), norm, (2,))

    y = outputs(pair.online, leaf, batches.first)
    t = outputs(pair.target, pair.target.weight, batches.second).detach()
    loss = 0.5 * (y - t).square().sum(-1).flatten(1).mean(1)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return vec(-gradient)


Loss = Callable[[Tensor, Tensor], Tensor]

TUPLE_LOSSES: dict[str, Loss] = {
    "simple": losses.simple,
    "soft_triplet": partial(losses.soft_triplet, temperature=0.5, margin=0.3),
    "info_nce": partial(losses.info_nce, temperature=0.5),
}
"""The three losses of the corollary."""

ROLES = ("anchor", "positive", "negatives")


def tuple_step(
    tower: Tower, loss: Loss, norm: Norm | None = None, *, roles: Sequence[str] = ROLES, negatives: int = 1
) -> Tensor:
    """Minus the gradient in layer ``l`` of the mean loss over all tuples, ``(R, k, m)``, through the towers of ``roles``.

    Each tower is one forward pass over the population, ``tower.below (R, N, V, m)``, and BatchNorm's batch.
    """
    n, v = tower.below.shape[1:3]
    leaf = tower.weight.clone().requires_grad_(True)
    y = {role: tower.output(leaf if role in roles else None, norm).flatten(1, 2) for role in ROLES}
    anchor, positive, negative = all_tuples(n, v, negatives)
    a = y["anchor"][:, anchor]
    r_pos = 0.5 * (a - y["positive"][:, positive]).square().sum(-1)
    r_neg = 0.5 * (a[:, :, None] - y["negatives"][:, negative]).square().sum(-1)
    (gradient,) = torch.autograd.grad(loss(r_pos, r_neg).mean(1).sum(), leaf)
    return -gradient


def measured_growth(alpha: Number, eta: Number, lam: Number, *, sign: int = 1, steps: int = 4000) -> Tensor:
    """Growth per step of the recurrence once the smaller root has died out: geometric mean over the last quarter of the steps.

    Where the roots are complex it is how fast the swings grow or fade.
    """
    m = ema_matrix(alpha, eta, lam, sign=sign)
    state = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(*m.shape[:-2], 2)
    total = torch.zeros(m.shape[:-2], dtype=torch.float64)
    for t in range(steps):
        state = (m @ state[..., None])[..., 0]
        size = state.norm(dim=-1, keepdim=True)
        state = state / size
        if t >= steps - steps // 4:
            total = total + size[..., 0].log()
    return torch.expm1(total / (steps // 4))
