r"""How well the filters match the tokens that the generators fix: :math:`\bar\chi_+` and :math:`\bar\chi_-` (Eqs. 16, 180,
181 of [tian2023])."""

from __future__ import annotations

import torch
from torch import Tensor

from sslbook.chapters.modulation.tokens import World

SCORES = ("printed +", "printed -", "released +", "released -", "signless +", "signless -")


def cosines(weights: Tensor) -> Tensor:
    r"""Largest cosine of a filter of the field with each token, :math:`\max_m w_{km}^\top u_a/(\|w_{km}\| \|u_a\|)`: ``(R, K,
    d)``.

    weights: ``(R, K, d, M)``, filters in columns.  Token vectors are orthogonal, so the cosine is an entry over a length; a
    filter that is zero throughout matches nothing.
    """
    lengths = weights.norm(dim=2, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    best: Tensor = (weights / lengths).amax(-1)
    return best


def scores(weights: Tensor, world: World, linear: bool | Tensor = False) -> dict[str, Tensor]:
    r"""Each of :data:`SCORES`, ``(R,)``: means over the fields.

    printed: Eqs. 180 and 181 as they stand.  Both sums are divided by ``P``, also the one over the ``d - P`` other tokens, so
        that :math:`\bar\chi_-` is :math:`(d - P)/P` times a mean of cosines and reaches 19 where ``P = 1`` and ``d = 20``.
    released: what the authors' code averages: means over the tokens that *occur* in a generator, and over all others; filters of
        linear networks (``linear``, one value or one a replica) count with the absolute value of the cosine, since their sign
        means nothing; and lengths grow by a thousandth of the field's largest weight, which fades filters that have died.
    signless: means over the tokens of :math:`R_k^g`, and over the others, of the largest *absolute* cosine, for every activation:
        the sign of a filter means as little under the square, which is even, as in a linear network behind BatchNorm.
    """
    best, either = cosines(weights), torch.maximum(cosines(weights), cosines(-weights))
    size = world.allowed.sum(-1).to(best)
    largest = weights.abs().amax((2, 3), keepdim=True)
    shares = weights / (weights.norm(dim=2, keepdim=True) + (largest / 1000).clamp_min(1e-6))
    signless = torch.as_tensor(linear, device=weights.device).expand(len(weights)).view(-1, 1, 1, 1)
    faded = torch.where(signless, shares.abs(), shares).amax(-1)
    return {
        "printed +": ((best * world.allowed).sum(-1) / size).mean(-1),
        "printed -": ((best * ~world.allowed).sum(-1) / size).mean(-1),
        "released +": _mean_over(faded, world.used),
        "released -": _mean_over(faded, ~world.used),
        "signless +": _mean_over(either, world.allowed),
        "signless -": _mean_over(either, ~world.allowed),
    }


def _mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean over the fields of the means of the chosen tokens; fields without one are passed over."""
    means = (values * chosen).sum(-1) / chosen.sum(-1)
    return means.nanmean(-1)
