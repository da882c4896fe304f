r"""The world of Section 5 of [tian2023]: sequences of tokens, made by generators with wildcards.

A sequence has ``K`` places (the receptive fields), and ``d`` tokens can stand in each.  A **generator** fixes the token of
five places and leaves a wildcard in the others; two sequences of one generator are a positive pair.  In place ``k`` a
generator may only fix tokens of a subset :math:`R_k^g` of ``P`` tokens, so that any other token there is noise.  Token ``a``
enters the network as the vector :math:`u_a = \ell_a e_a`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.arguments import require_whole
from sslbook.streams import Streams, to_device

WILDCARD = -1


@dataclass(frozen=True)
class World:
    """Generators of ``R`` replicas.

    allowed: ``(R, K, d)``, whether a token belongs to :math:`R_k^g`.
    generators: ``(R, G, K)``, the token that a generator fixes in a place, or :data:`WILDCARD`.
    lengths: ``(R, d)``, the length of each token's vector.
    """

    allowed: Tensor
    generators: Tensor
    lengths: Tensor

    @property
    def used(self) -> Tensor:
        """``(R, K, d)``: whether a generator fixes the token there; some of the ``P`` tokens may be in none."""
        tokens = torch.arange(self.allowed.shape[2], device=self.generators.device)
        return (self.generators[..., None] == tokens).any(1)

    def to(self, device: torch.device | str) -> World:
        """The same worlds on another device."""
        return World(self.allowed.to(device), self.generators.to(device), self.lengths.to(device))

    def place(self, k: int) -> World:
        """The same sequences cut down to place ``k``, as a world of one field; its generators fix the token or leave a wildcard.

        Raises ValueError for a place that there is not.
        """
        fields = self.allowed.shape[1]
        require_whole("k", k, least=0, most=fields - 1)
        one = slice(k, k + 1)
        return World(self.allowed[:, one], self.generators[:, :, one].contiguous(), self.lengths)


def make_world(
    seeds: Sequence[int],
    candidates: Sequence[int],
    *,
    fields: int = 10,
    tokens: int = 20,
    generators: int = 40,
    fixed: int = 5,
    zeta: Sequence[float] | None = None,
) -> World:
    r"""One world a replica: replica ``r`` has ``candidates[r]`` tokens in each :math:`R_k^g` and draws from streams of
    ``seeds[r]``.

    Generators are drawn independently, so they may repeat.  The first half of the tokens has length :math:`1/\zeta`, the
    others :math:`\zeta`.  With one seed, worlds of different ``candidates`` fix the same places, and their :math:`R_k^g` are
    nested. Raises ValueError for a subset that is empty or larger than the tokens, more places fixed than there are, or
    ``zeta`` not above 0.
    """
    zeta = [1.0] * len(seeds) if zeta is None else zeta
    if len(candidates) != len(seeds) or len(zeta) != len(seeds):
        raise ValueError(
            f"candidates and zeta must have one entry a seed, got {len(candidates)}, {len(zeta)}, {len(seeds)}"
        )
    if any(not 1 <= count <= tokens for count in candidates):
        raise ValueError(f"candidates must lie between 1 and tokens = {tokens}, got {list(candidates)}")
    require_whole("fixed", fixed, least=1, most=fields)
    require_whole("generators", generators, least=1)
    if any(not z > 0 for z in zeta):
        raise ValueError(f"zeta must be above 0, got {list(zeta)}")
    streams, size = Streams(seeds, "generators"), torch.tensor(candidates)
    order = streams.uniform((fields, tokens), torch.float64).argsort(
        -1
    )  # the first P of a place's order are its subset
    rank = order.argsort(-1)
    places = streams.uniform((generators, fields), torch.float64).argsort(-1).argsort(-1) < fixed
    picked = (streams.uniform((generators, fields), torch.float64) * size[:, None, None]).long()
    token = order.gather(2, picked.mT).mT
    length = torch.tensor(zeta, dtype=torch.float64)[:, None]
    half = torch.arange(tokens) < tokens // 2
    return World(
        allowed=rank < size[:, None, None],
        generators=torch.where(places, token, WILDCARD),
        lengths=torch.where(half, 1 / length, length),
    )


def draw_pairs(world: World, streams: Streams, batch: int, steps: int = 1) -> Tensor:
    """Tokens of ``steps`` minibatches of positive pairs, ``(R, steps, 2, batch, K)``: one generator a pair, wildcards anew in
    each."""
    replicas, count, fields = world.generators.shape
    tokens = world.allowed.shape[2]
    u = to_device(streams.uniform((steps, batch, 1 + 2 * fields)), world.generators.device)
    which = (u[..., 0] * count).long().clamp_(max=count - 1)
    rows = which.view(replicas, -1, 1).expand(-1, -1, fields)
    pattern = world.generators.gather(1, rows).view(replicas, steps, 1, batch, fields)
    noise = (u[..., 1:] * tokens).long().clamp_(max=tokens - 1)
    noise = noise.view(replicas, steps, batch, 2, fields).transpose(2, 3)
    return torch.where(pattern == WILDCARD, noise, pattern)
