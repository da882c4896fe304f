"""Formulas and autograd compared, on random instances: Theorem 8 and its two corollaries of [tian2021iclr]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from sslbook.losses.pairs import half_squared_distance
from sslchapters.byol import instances, theory
from sslchapters.byol.instances import BACKWARD, BOTH, FORWARD, Norm, Tower, step, vec
from sslchapters.checks import Gaps, over_instances, relative
from sslchapters.instances import all_tuples

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
        total, plain = (each.sum(1).norm(dim=1) / each.norm(dim=(1, 2)) for each in (centred, g))
        parts.append(
            {
                "minus a covariance": relative(product, found),
                "sum of the gradients": total,
                "broken: product, not covariance": relative(vec(-g.mT @ f), found),
                "broken: sum without Eq. 12": plain,
            }
        )
    return over_instances(*parts)


# --- Corollary 1: a loss of distances does not change when all outputs move together: a tuple's gradients add up to 0 ---

ROLES = ("anchor", "positive", "negatives")


def centring_correction(
    tower: Tower, loss: Callable[[Tensor, Tensor], Tensor], *, roles: Sequence[str] = ROLES, negatives: int = 1
) -> Tensor:
    """How much Eq. 12 changes the step on the mean loss over all tuples, relative to the step without it, ``(R,)``.

    The gradient flows through the towers of ``roles``; each is one forward pass over the population, which is BatchNorm's batch.
    """
    steps: list[Tensor] = []
    samples, views = tower.below.shape[1:3]
    tuples = all_tuples(samples, views, negatives)
    for norm in (None, BACKWARD):
        leaf = tower.weight.clone().requires_grad_(True)
        y = {role: tower.output(leaf if role in roles else None, norm).flatten(1, 2) for role in ROLES}
        anchor = y["anchor"][:, tuples[:, 0]]
        r_pos = half_squared_distance(anchor, y["positive"][:, tuples[:, 1]])
        r_neg = half_squared_distance(anchor[:, :, None], y["negatives"][:, tuples[:, 2:]])
        steps += torch.autograd.grad(loss(r_pos, r_neg).mean(1).sum(), leaf)
    return relative(steps[1], steps[0])


def corollary1_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """The correction for the three losses: zero through all towers; where it is not (``broken:``), below which one in twenty lies.

    (Not the smallest: a ReLU that is active, or silent, on every view is linear.)
    """
    tower, losses = partial(instances.contrastive_tower, count, seed=seed), instances.TUPLE_LOSSES
    above = {"ReLU above": tower(act="relu"), "outputs of length 1": tower(unit=True)}
    gaps: Gaps = {"instances": float(count)}
    for name, loss in losses.items():
        corrections = [centring_correction(tower(), loss, negatives=h) for h in ((1,) if name == "simple" else (1, 2))]
        gaps[f"{name}, all towers"] = float(torch.stack(corrections).max())
        for what, other in above.items():
            gaps[f"broken: {name}, {what}"] = float(centring_correction(other, loss).quantile(0.05))
    gaps["simple, one tower"] = float(centring_correction(tower(), losses["simple"], roles=("anchor",)).max())
    return gaps


def predictor_pulls(kind: str, replicas: int, seed: int, *, scale: float = 0.3, traceless: bool = False) -> Tensor:
    r"""What the predictor's term does to random weights: :math:`w^T E[\hat K M \hat K^T] w / |w|^2`, :math:`M = W_p^T (I - W_p)`.

    It equals :math:`E_x[\hat f^T M \hat f]` for the base network's output, averaged over views and centred, ``(R,)``; positive
    values make the weights grow.  traceless: a multiple of the identity takes the trace off each predictor first.
    """
    size = 32
    drawn = instances.random_predictors(kind, replicas, size, scale=scale, seed=seed)
    if traceless:
        drawn = drawn - drawn.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(size, dtype=drawn.dtype)
    pair = instances.shared_pair(drawn, images=40, wide=True, seed=seed + 1)
    tower = theory.without_predictor(pair)
    f = tower.output().mean(2)
    f = f - f.mean(1, keepdim=True)
    form = torch.einsum("rno,rop,rnp->r", f, theory.middle(pair.online.above[-1]), f) / f.shape[1]
    return form / tower.weight.square().sum((1, 2))
