r"""Kinds of latent trees that the chapter draws: the papers' symmetric binary ones, and the regularised ones of Definition 3."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslbook.stats.replicas import Streams
from sslbook.trees.latent import LatentTree, random_tree, symmetric_binary


def random_polarities(
    seeds: Sequence[int], depth: int, lower: float, upper: float = 1.0, *, branching: int = 2, signed: bool = True
) -> list[Tensor]:
    r"""Polarities :math:`|\rho| \sim U[\text{lower}, \text{upper}]` for :func:`symmetric_binary`, one tree a seed, float64.

    signed: with a random sign each, as in the released experiments; the paper prints :math:`U[\text{lower}, 1]` without one.
    """
    streams = Streams(seeds, "polarities")
    drawn = []
    for d in range(depth):
        u = streams.uniform((2, branching ** (d + 1)), torch.float64)
        rho = lower + (upper - lower) * u[:, 0]
        drawn.append(torch.where(u[:, 1] < 0.5, -rho, rho) if signed else rho)
    return drawn


def random_symmetric(
    seeds: Sequence[int], depth: int, lower: float, upper: float = 1.0, *, branching: int = 2, signed: bool = True
) -> LatentTree:
    """Binary SB-HLTMs with the polarities of :func:`random_polarities` and a uniform root: the data of the papers' tables."""
    return symmetric_binary(random_polarities(seeds, depth, lower, upper, branching=branching, signed=signed))


def random_regularized(seeds: Sequence[int], values: Sequence[int], branching: Sequence[int]) -> LatentTree:
    r"""TR-HLTMs (Definition 3 of [tian2020]) with ``values[d]`` values at depth ``d`` and a random prior of the root.

    :math:`P_{\mu\nu} = \frac{1}{m_\nu} 1 1^\top + C_{\mu\nu}` with :math:`C 1 = 0` and :math:`1^\top C = 0`: a random doubly
    centred matrix, times a random 0.3 to 1 of the factor that would make the table's smallest entry 0.
    """

    def centred(c: Tensor) -> Tensor:
        c = c - c.mean(-1, keepdim=True)
        return c - c.mean(-2, keepdim=True)

    def regularized(u: Tensor) -> Tensor:
        c = centred(u)
        lowest = c.flatten(-2).min(-1).values[..., None, None]
        c = centred(c / lowest)  # again: to divide by a small number magnifies what rounding left
        return (1 - c * (0.3 + 0.7 * u[..., :1, :1])) / u.shape[-1]

    return random_tree(seeds, values, branching, regularized)


def residual_table(table: Tensor) -> Tensor:
    r""":math:`C_{\mu\nu} = P_{\mu\nu} - \frac{1}{m_\nu} 1 1^\top` (Definition 3 of [tian2020]).

    Its columns sum to zero in a TR-HLTM.
    """
    return table - 1 / table.shape[-1]
