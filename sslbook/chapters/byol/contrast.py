r"""Corollary 1 of [tian2021iclr]: what BatchNorm's centred gradient changes in a contrastive loss.

A tuple has an anchor, a positive (another view of its image) and ``H`` negatives (views of any image), each seen by a tower of
its own with the same weights.  A loss of distances does not change when all outputs move together, so the gradients in the
outputs of a tuple's towers add up to zero; through a linear top the sum of the gradients at layer ``l`` does as well, and there
is nothing for Eq. 12 to centre if all towers share a batch.  If each has its own, its gradients do have a mean; but over the whole
population the towers read the same mean activation, and what Eq. 12 takes off them adds up to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from sslbook import losses
from sslbook.chapters.byol.towers import BACKWARD, BOTH, Norm, Tower, random_pair
from sslbook.gaps import Gaps, relative
from sslbook.normalization import batch_normalize

Loss = Callable[[Tensor, Tensor], Tensor]

TUPLE_LOSSES: dict[str, Loss] = {
    "simple": losses.simple,
    "soft_triplet": partial(losses.soft_triplet, tau=0.5, margin=0.3),
    "info_nce": partial(losses.info_nce, tau=0.5),
}
"""The three losses of the corollary."""

ROLES = ("anchor", "positive", "negatives")


def all_tuples(images: int, views: int, negatives: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Anchor ``(T,)``, positive ``(T,)`` and negatives ``(T, H)`` of every tuple, as rows of the flattened population."""
    b = images * views
    t = torch.arange(b * views * b**negatives)
    anchor, rest = t % b, t // b
    positive = anchor // views * views + rest % views
    code = rest // views
    return anchor, positive, code[:, None] // b ** torch.arange(negatives) % b


def tuple_step(
    tower: Tower, loss: Loss, norm: Norm | None = None, *, roles: Sequence[str] = ROLES, negatives: int = 1
) -> Tensor:
    """Minus the gradient in layer ``l`` of the mean loss over all tuples, ``(R, k, m)``, through the towers of ``roles``.

    Each tower is one forward pass over the population, ``tower.below (R, N, V, m)``, and BatchNorm's batch.
    """
    if not roles or set(roles) - set(ROLES):
        raise ValueError(f"roles must be one or more of {', '.join(ROLES)}, got {tuple(roles)}")
    n, v = tower.below.shape[1:3]
    leaf = tower.weight.clone().requires_grad_(True)
    y = {role: tower.output(leaf if role in roles else None, norm).flatten(1, 2) for role in ROLES}
    anchor, positive, negative = all_tuples(n, v, negatives)
    a = y["anchor"][:, anchor]
    r_pos = 0.5 * (a - y["positive"][:, positive]).square().sum(-1)
    r_neg = 0.5 * (a[:, :, None] - y["negatives"][:, negative]).square().sum(-1)
    (gradient,) = torch.autograd.grad(loss(r_pos, r_neg).mean(1).sum(), leaf)
    return -gradient


def correction(tower: Tower, loss: Loss, *, roles: Sequence[str] = ROLES, negatives: int = 1) -> Tensor:
    """How much Eq. 12 changes the step, relative to the step without it, ``(R,)``."""
    plain = tuple_step(tower, loss, roles=roles, negatives=negatives)
    centred = tuple_step(tower, loss, BACKWARD, roles=roles, negatives=negatives)
    return relative(centred, plain)


def tower(count: int = 100, *, act: str = "linear", unit: bool = False, seed: int = 0) -> Tower:
    """One random tower with two matrices on top, three images with two views each."""
    return random_pair(count, images=3, views=2, sizes=(5, 6, 12, 8), seed=seed).changed(act=act, unit=unit).online


def corollary_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """The correction for the three losses: zero through all towers; where it is not (``broken:``), below which one in twenty lies.

    (Not the smallest: a ReLU that is active, or silent, on every view is linear.)
    """
    gaps: Gaps = {"instances": float(count)}
    linear = tower(count, seed=seed)
    for name, loss in TUPLE_LOSSES.items():
        gaps[f"{name}, all towers"] = max(
            float(correction(linear, loss, negatives=h).max()) for h in ((1,) if name == "simple" else (1, 2))
        )
        for what, other in (
            ("ReLU above", tower(count, act="relu", seed=seed)),
            ("outputs of length 1", tower(count, unit=True, seed=seed)),
        ):
            gaps[f"broken: {name}, {what}"] = float(correction(other, loss).quantile(0.05))
    gaps["simple, one tower"] = float(correction(linear, TUPLE_LOSSES["simple"], roles=("anchor",)).max())
    return gaps


def one_tower(loss: str, count: int = 100, seed: int = 0) -> Tensor:
    """The correction where only the anchor's tower gets a gradient, linear top, relative to that tower's step, ``(count,)``."""
    return correction(tower(count, seed=seed), TUPLE_LOSSES[loss], roles=("anchor",), negatives=1)


def batch_correction(size: int, seed: int = 0, *, joint: bool = True) -> Tensor:
    """What ``x - x.mean()`` changes in one batch's InfoNCE step (all other images negatives), linear top, ``(32,)``.

    joint: the two views are one BatchNorm batch; else each has statistics of its own, as where each view is a forward pass.
    """
    pair = random_pair(32, images=size, views=2, sizes=(5, 6, 12, 8), seed=seed).online

    def gradient(norm: Norm) -> Tensor:
        leaf = pair.weight.clone().requires_grad_(True)
        pre = pair.lift(leaf)
        if norm:
            pre = batch_normalize(pre, dims=(1, 2) if joint else 1, **norm)  # type: ignore[arg-type]
        one, two = pair.climb(pre).unbind(2)
        loss = losses.contrastive(one, two, loss="info_nce", normalize=False, tau=0.5)
        (found,) = torch.autograd.grad(loss.sum(), leaf)
        return found.flatten(1)

    return relative(gradient(BOTH), gradient({}))
