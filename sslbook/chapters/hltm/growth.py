r"""Training one part with a constant Jacobian (Section 6.1.2 of [tian2020]), and a whole tree, part by part.

In Eq. 15 everything above part :math:`\mu` is a constant matrix with :math:`J^\top J = I` and everything below is frozen.
Then the expected step of :math:`L_{simp}` through one tower is :math:`\mathrm{OP}_\mu` on each unit, and
:math:`a_\mu^\top w_j` grows by one factor a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.chapters.hltm import kinds, tree_operator
from sslbook.chapters.hltm.training import Protocol, train
from sslbook.gaps import Gaps, relative_gap, worst
from sslbook.networks import instance_seeds
from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.latent import LatentTree
from sslbook.trees.network import TreeNetwork, forward, initial_network


@dataclass(frozen=True)
class Growth:
    r"""Pre-activation gaps :math:`2 a_\mu^\top w_j` along training, ``(steps + 1, width)``.

    strength: :math:`o_\mu`.  squared_length: :math:`\lVert a_\mu \rVert^2`.
    """

    gaps: Tensor
    strength: float
    squared_length: float

    def predicted(self, rate: float) -> Tensor:
        r""":math:`(1 + \alpha\, o_\mu \lVert a_\mu \rVert^2)^t` times the first gaps (Eq. 15)."""
        t = torch.arange(len(self.gaps), dtype=torch.float64)
        return (1 + rate * self.strength * self.squared_length) ** t[:, None] * self.gaps[0]


def constant_jacobian(
    seed: int, *, depth: int = 3, name: str = "s0", width: int = 4, rate: float = 0.5, steps: int = 30
) -> Growth:
    """Expected training of part ``name`` with everything else frozen, through one tower, by autograd on all pairs of patterns."""
    tree = kinds.random_symmetric([seed], depth, 0.5)
    net = initial_network([seed], tree.branching, width, dtype=torch.float64)
    listed = exact.list_parts(tree, net)
    level, index = trees.place(tree, name)
    a = tree_operator.child_selectivity(tree, listed, level)[0, index]
    inputs, given = _inputs_given_root(tree, net, name)
    q, _ = torch.linalg.qr(
        torch.randn(2 * width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )
    weight = net.weights[level][0, index].clone()
    gaps = [2 * weight @ a]
    for _ in range(steps):
        weight = weight - rate * _one_tower_gradient(weight, q, inputs, given)
        gaps.append(2 * weight @ a)
    rho = float(trees.polarity(trees.from_root(tree)[level])[0, index])
    return Growth(torch.stack(gaps), rho * rho, float(a.square().sum()))


def _inputs_given_root(tree: LatentTree, net: TreeNetwork, name: str) -> tuple[Tensor, Tensor]:
    """What a part reads in every assignment of the whole tree, ``(A, fan-in)``, and the assignments' chances given the root."""
    level, index = trees.place(tree, name)
    assignments, chance = trees.joint(tree)
    inputs = forward(net, assignments[-1].double()).inputs[level][0, index].T
    z0 = assignments[0][0, 0].long()
    distinct, which = torch.unique(inputs, dim=0, return_inverse=True)
    given = torch.zeros(tree.values[0], len(distinct), dtype=torch.float64)
    given.index_put_((z0, which), chance[0], accumulate=True)
    return distinct, given / given.sum(1, keepdim=True)


def _one_tower_gradient(weight: Tensor, q: Tensor, inputs: Tensor, given: Tensor) -> Tensor:
    r"""Gradient of :math:`\mathbb E[r_+ - r_-]` in the first tower's weight, over every pair of patterns; a fair root."""
    moving = weight.clone().requires_grad_()
    first, second = inputs @ moving.T @ q.T, inputs @ weight.T @ q.T
    distances = 0.5 * (first[:, None] - second[None]).square().sum(-1)
    same = given.T @ given / len(given)
    marginal = given.mean(0)
    loss = (distances * (same - marginal[:, None] * marginal)).sum()
    return torch.autograd.grad(loss, moving)[0]


def growth_gaps(count: int, seed: int, rate: float = 0.5, steps: int = 30) -> Gaps:
    """Eq. 15 against :func:`constant_jacobian` on random trees."""
    rows = []
    for i, s in enumerate(instance_seeds(count, seed)):
        depth, name = (3, "s01") if i % 5 == 4 else (2, f"s{i % 2}")
        grown = constant_jacobian(s, depth=depth, name=name, rate=rate, steps=steps)
        if grown.squared_length < 1e-6:
            continue  # silent children: nothing to grow
        printed = Growth(grown.gaps, grown.strength * (1 - grown.strength), grown.squared_length)
        rows.append(
            {
                "growth": relative_gap(grown.predicted(rate), grown.gaps),
                "broken: printed o": relative_gap(printed.predicted(rate), grown.gaps),
                "broken: step of both towers": relative_gap(grown.predicted(2 * rate), grown.gaps),
            }
        )
    return worst(rows)


# ---------------------------------------------------------------------------------------------------------------------
# A whole tree while it trains


@dataclass(frozen=True)
class Snapshot:
    """Normalised correlation of every hidden variable after some epochs, one tensor ``(R, nodes)`` a depth."""

    epoch: int
    best: list[Tensor]


def watch(protocol: Protocol, seeds: list[int], epochs: list[int]) -> list[Snapshot]:
    """Train and look at every part, over the whole population, after each number of ``epochs``."""

    def measure(tree: LatentTree, net: TreeNetwork, _: object, epoch: int) -> Snapshot:
        return Snapshot(epoch, [c.abs().amax(-1) for c in exact.latent_correlations(tree, net)])

    found = train(protocol, seeds, max(epochs), measure, epochs)
    return [found[epoch] for epoch in epochs]
