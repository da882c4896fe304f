r"""Training one part with a constant Jacobian (Section 6.1.2 of [tian2020]), what its siblings add, and a whole tree.

In Eq. 15 everything above part :math:`\mu` is a constant matrix with :math:`J^\top J = I` and everything below is frozen.
If the parts beside :math:`\mu` reach other outputs, the expected step of :math:`L_{simp}` through one tower is
:math:`o_\mu a_\mu a_\mu^\top` on each unit, and :math:`a_\mu^\top w_j` grows by one factor a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

LEAN = 0.3
r"""The root's polarity :math:`\rho_0` here: with a fair root nobody could tell whether :math:`1 - \rho_0^2` was forgotten."""


@dataclass(frozen=True)
class Growth:
    r"""Pre-activation gaps :math:`2 a_\mu^\top w_j` along training, ``(steps + 1, width)``.

    reach: :math:`\rho_{0\mu}^2`.  squared_length: :math:`\lVert a_\mu \rVert^2`.
    """

    gaps: Tensor
    reach: float
    squared_length: float

    @property
    def strength(self) -> float:
        r""":math:`o_\mu = \rho_{0\mu}^2 (1 - \rho_0^2)`, with the root of :data:`LEAN`."""
        return self.reach * (1 - LEAN**2)

    def predicted(self, rate: float, strength: float | None = None) -> Tensor:
        r""":math:`(1 + \alpha\, o_\mu \lVert a_\mu \rVert^2)^t` times the first gaps (Eq. 15).

        strength: in place of :math:`o_\mu`.
        """
        t = torch.arange(len(self.gaps), dtype=torch.float64)
        o = self.strength if strength is None else strength
        return (1 + rate * o * self.squared_length) ** t[:, None] * self.gaps[0]


def constant_jacobian(
    seed: int, *, depth: int = 3, name: str = "s0", rate: float = 0.5, steps: int = 30, apart: bool = True
) -> Growth:
    r"""Expected training of part ``name`` and those beside it, through one tower, by autograd on all pairs of patterns.

    The outputs are a constant matrix times the pre-activations of all units of the level; what lies below is frozen.

    apart: the matrix's columns are orthonormal, so that :math:`J_\mu^\top J_{\mu'} = 0`; else only those of each part are.
    """
    width = 4
    tree = trees.symmetric_binary(kinds.random_polarities([seed], depth, 0.5), LEAN)
    net = initial_network([seed], tree.branching, width, dtype=torch.float64)
    level, index = trees.place(tree, name)
    a = tree_operator.child_selectivity(tree, exact.list_parts(tree, net), level)[0, index]
    assignments, joint = _patterns(tree)
    inputs = forward(net, assignments).inputs[level][0]  # (parts, fan-in, patterns)
    weight, units = net.weights[level][0].clone(), tree.nodes[level] * width
    draw = torch.Generator().manual_seed(seed)
    blocks = [units] if apart else [width] * tree.nodes[level]
    drawn = [torch.linalg.qr(torch.randn(units + width, n, generator=draw, dtype=torch.float64)).Q for n in blocks]
    jacobian = torch.cat(drawn, 1)
    gaps = [2 * weight[index] @ a]
    for _ in range(steps):
        weight = weight + rate * _one_tower_step(weight, lambda w: jacobian @ (w @ inputs).flatten(0, 1), joint)
        gaps.append(2 * weight[index] @ a)
    rho = float(trees.polarity(trees.from_root(tree)[level])[0, index])
    return Growth(torch.stack(gaps), rho * rho, float(a.square().sum()))


def _patterns(tree: LatentTree) -> tuple[Tensor, Tensor]:
    """Every pattern of the leaves, ``(1, leaves, P)``, and its joint probability with each value of the root, ``(m_0, P)``."""
    assignments, chance = trees.joint(tree)
    patterns, which = torch.unique(assignments[-1][0].double(), dim=1, return_inverse=True)
    joint = torch.zeros(tree.values[0], patterns.shape[1], dtype=torch.float64)
    joint.index_put_((assignments[0][0, 0], which), chance[0], accumulate=True)
    return patterns[None], joint


def _one_tower_step(weight: Tensor, output: Callable[[Tensor], Tensor], joint: Tensor) -> Tensor:
    r"""Minus the gradient of :math:`\mathbb E[r_+ - r_-]` in the first tower's weight, over every pair of patterns.

    output: of a weight, ``(outputs, patterns)``.
    """
    moving = weight.clone().requires_grad_()
    first, second = output(moving), output(weight)
    distances = 0.5 * (first[:, :, None] - second[:, None]).square().sum(0)
    same = joint.T @ (joint / joint.sum(1, keepdim=True))
    marginal = joint.sum(0)
    gain = (distances * (marginal[:, None] * marginal - same)).sum()
    return torch.autograd.grad(gain, moving)[0]


def growth_gaps(count: int, seed: int, steps: int = 30) -> Gaps:
    """Eq. 15 against :func:`constant_jacobian` on random trees."""
    rate = 0.5
    rows = []
    for i, s in enumerate(instance_seeds(count, seed)):
        depth, name = (3, "s01") if i % 5 == 4 else (2, f"s{i % 2}")
        grown = constant_jacobian(s, depth=depth, name=name, rate=rate, steps=steps)
        if grown.squared_length < 1e-6:
            continue  # silent children: nothing to grow
        together = constant_jacobian(s, depth=depth, name=name, rate=rate, steps=steps, apart=False)
        predicted = grown.predicted(rate)
        rows.append(
            {
                "growth": relative_gap(predicted, grown.gaps),
                "broken: printed o": relative_gap(grown.predicted(rate, grown.reach * (1 - grown.reach)), grown.gaps),
                "broken: lean forgotten": relative_gap(grown.predicted(rate, grown.reach), grown.gaps),
                "broken: step of both towers": relative_gap(grown.predicted(2 * rate), grown.gaps),
                "broken: each part alone orthonormal": relative_gap(predicted, together.gaps),
            }
        )
    return worst(rows)


# ---------------------------------------------------------------------------------------------------------------------
# What a part's siblings add to its step


@dataclass(frozen=True)
class PartSteps:
    r"""The expected one-tower step of part ``s0`` in trees of depth 2, ``(R, width, fan-in)`` each.

    true: by autograd over all pairs of patterns.  own: :math:`\mathrm{OP}_\mu \operatorname{vec}(W_\mu)`, with the part's own
    block of its layer's operator.  coupled: what the block that couples it to its sibling adds.
    """

    true: Tensor
    own: Tensor
    coupled: Tensor

    @property
    def off(self) -> Tensor:
        """Length of what the own block misses, in units of the step, ``(R,)``."""
        off: Tensor = torch.linalg.matrix_norm(self.own - self.true) / torch.linalg.matrix_norm(self.true)
        return off

    @property
    def cosine(self) -> Tensor:
        """Cosine between the own block's step and the true one, ``(R,)``."""
        return torch.nn.functional.cosine_similarity(self.own.flatten(1), self.true.flatten(1))


def part_steps(seeds: Sequence[int], lower: float = 0.7, width: int = 10) -> PartSteps:
    r"""Networks without biases, where :math:`f_L = \sum_\mu K_\mu^\top \operatorname{vec}(W_\mu)` over the parts of a layer."""
    rows = []
    for seed in seeds:
        tree = trees.symmetric_binary(kinds.random_polarities([seed], 2, lower), LEAN)
        net = initial_network([seed], tree.branching, width, bias=False, dtype=torch.float64)
        patterns, joint = _patterns(tree)

        def output(lowest: Tensor, net: TreeNetwork = net, patterns: Tensor = patterns) -> Tensor:
            return forward(TreeNetwork((net.weights[0], lowest), net.biases), patterns).pre[0][0, 0]

        true = _one_tower_step(net.weights[1], output, joint)[0, 0]
        listed = exact.list_parts(tree, net)
        mean, other = (tree_operator.expected_connection(tree, net, listed, name)[0] for name in ("s0", "s1"))
        centred = mean - torch.einsum("z,ziac->iac", tree.root[0], mean)
        steps = [
            torch.einsum("z,ziac,zjad,dj->ci", tree.root[0], centred, k, w)
            for k, w in zip((mean, other), net.weights[1][0])
        ]
        rows.append(torch.stack([true, *steps]))
    return PartSteps(*torch.stack(rows, 1))


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
