r"""The chapter's identities and bounds, on many random instances: worst errors, and broken variants beside them.

Each function returns errors by name as :mod:`sslchapters.checks` does; a name that starts with ``broken:`` belongs to a
variant that was broken on purpose.

The law of growth is that of one part with a constant Jacobian (Section 6.1.2 of [tian2020]).  In Eq. 15 everything above part
:math:`\mu` is a constant matrix with :math:`J^\top J = I` and everything below is frozen. If the parts beside :math:`\mu` reach
other outputs, the expected step of :math:`L_{simp}` through one tower is :math:`o_\mu a_\mu a_\mu^\top` on each unit, and
:math:`a_\mu^\top w_j` grows by one factor a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.exact import TreeNetwork, initial_network
from sslbook.trees.latent import LatentTree
from sslchapters.checks import Comparison, over, relative
from sslchapters.hltm import theory
from sslchapters.hltm.runs import forward
from sslchapters.instances import instance_seeds

SHAPES = (((2, 2, 2), (2, 2)), ((3, 2, 4), (2, 2)), ((2, 3, 2, 2), (1, 2, 2)), ((4, 3), (4,)))
"""Values and branching of the small trees, of different kinds, that the checks take turns with by their seeds."""


@over(instance_seeds)
def message_gaps(seed: int) -> Iterator[Comparison]:
    """Conditional moments, correlations and operators passed up small trees, against sums over all assignments."""
    tree = theory.random_symmetric([seed], 3 if seed % 8 == 7 else 2, -1.0)
    net = initial_network([seed], tree.branching, 1 + seed % 4, dtype=torch.float64)
    listed = exact.list_parts(tree, net)
    assignments, chance = theory.joint(tree)
    seen = forward(net, assignments[-1].double())
    found = exact.latent_correlations(tree, net, listed)
    moments = exact.moments(tree, net, listed)
    for d in range(tree.depth):
        p, z, f = chance[0], assignments[d][0].double(), seen.pre[d][0]
        where = torch.stack([p * (z == value) for value in (0, 1)], -1)
        given = torch.einsum("nwb,nbz->nwz", f, where / where.sum(1, keepdim=True))
        yield "conditional mean", moments[d].mean[0], given
        z, f = z - (z * p).sum(-1, keepdim=True), f - (f * p).sum(-1, keepdim=True)
        spread = ((z * z * p).sum(-1)[:, None] * (f * f * p).sum(-1)).sqrt()
        correlation = torch.where(spread > 1e-12, (f * z[:, None] * p).sum(-1) / spread, 0.0)
        yield "correlation", float((correlation - found[d][0]).abs().max()), None
    for name in ("s", "s0", "s1"):
        brute = _enumerated_connection(tree, net, assignments, chance, name)
        passed = theory.expected_connection(tree, net, listed, name)
        if brute.any():
            yield "operator", passed, brute
            yield "broken: roots exchanged", passed, brute.flip(1)
        else:  # all units above are silent
            yield "operator", float(passed.abs().max()), None


def _enumerated_connection(
    tree: LatentTree, net: TreeNetwork, assignments: list[Tensor], chance: Tensor, name: str
) -> Tensor:
    """Mean connection given the root by autograd on every assignment: the slow way."""
    depth, index = theory.place(tree, name)
    leaves = assignments[-1][0].double()

    def output(bias: Tensor, x: Tensor) -> Tensor:  # a pre-activation moves as its bias does
        biases = (*net.biases[:depth], bias, *net.biases[depth + 1 :])
        return forward(TreeNetwork(net.weights, biases), x[None, :, None]).pre[0][0, 0, :, 0]

    jacobian = vmap(jacrev(output), (None, 1))(net.biases[depth], leaves)[:, :, 0, index]
    inputs = forward(net, leaves[None]).inputs[depth][0, index]
    given = _given_root(tree, assignments, chance)
    return torch.einsum("zb,ib,bac->ziac", given, inputs, jacobian)[None]


def _given_root(tree: LatentTree, assignments: list[Tensor], chance: Tensor) -> Tensor:
    """The assignments' chances given each value of the root, ``(m_0, A)``."""
    z0 = assignments[0][0, 0]
    both = torch.stack([chance[0] * (z0 == value) for value in range(tree.values[0])])
    return both / both.sum(1, keepdim=True)


# --- Lemmas 6, 7 and 9, Theorem 6: products of tables, and what survives from the root -------------------------------


@over(instance_seeds)
def product_gaps(seed: int) -> Iterator[Comparison]:
    """Lemmas 6 and 7: tables multiplied along paths of TR-HLTMs, and binary TR-HLTMs against symmetric ones."""
    values = ((3, 2, 4, 3), (2, 2, 2, 2), (4, 4, 4, 4), (2, 5, 3, 2))[seed % 4]
    tree, wild = (make([seed], values, (2, 1, 2)) for make in (theory.random_regularized, trees.random_categorical))
    for leaf in range(4):
        yield "Lemma 6", trees.from_root(tree)[-1][0, leaf], 1 / values[-1] + _residual_product(tree, leaf)
    yield "broken: any tables", trees.from_root(wild)[-1][0, 0], 1 / values[-1] + _residual_product(wild, 0)
    if values == (2, 2, 2, 2):
        yield "Lemma 7", tree.tables[0], trees.symmetric_binary([trees.polarity(tree.tables[0])]).tables[0]


def _residual_product(tree: LatentTree, leaf: int) -> Tensor:
    r"""Of :math:`C_{\mu\nu} = P_{\mu\nu} - \frac{1}{m_\nu} 1 1^\top` (Definition 3), from the root to one of four leaves."""
    product = torch.eye(tree.values[0], dtype=torch.float64)
    for table, node in zip(tree.tables, (leaf // 2, leaf // 2, leaf)):
        product = product @ (table[0, node] - 1 / table.shape[-1])
    return product


@over(instance_seeds)
def activation_gaps(seed: int, root_polarity: float = 0.3) -> Iterator[Comparison]:
    r"""Lemma 9 and Theorem 6: covariance over the root of the children's mean activations, at every part of random SB-HLTMs.

    The oracle lists all assignments of the tree; ``printed o`` takes :math:`o_\mu = \rho_{0\mu}^2 (1 - \rho_{0\mu}^2)` from the
    statement, the proof has :math:`\rho_{0\mu}^2 (1 - \rho_0^2)`.
    """
    tree = trees.symmetric_binary(theory.random_polarities([seed], 2 + seed % 2, 0.2), root_polarity)
    for d, listed, truth in _parts(tree, seed):
        yield from _lemma9(tree, listed, d, truth)
        a = theory.child_selectivity(tree, listed, d)
        rho = trees.polarity(trees.from_root(tree)[d])[..., None, None] if d else torch.ones(1, 1, 1, 1).double()
        outer = a[..., :, None] * a[..., None, :]
        yield "Theorem 6", rho**2 * (1 - root_polarity**2) * outer, truth
        yield "broken: printed o", rho**2 * (1 - rho**2) * outer, truth
        if d:
            yield "broken: path forgotten", (1 - root_polarity**2) * outer, truth


@over(instance_seeds)
def lemma9_gaps(seed: int) -> Iterator[Comparison]:
    """Lemma 9 on trees with any tables and three values at the root, at every part."""
    tree = trees.random_categorical([seed], (3, 2, 3), (2, 2))
    for d, listed, truth in _parts(tree, seed):
        yield from _lemma9(tree, listed, d, truth)


def _lemma9(tree: LatentTree, listed: dict[int, exact.Parts], depth: int, truth: Tensor) -> Iterator[Comparison]:
    """Eq. 166 as it is written, with and without its second term."""
    v, prior = theory.means_given_root(tree, listed, depth), tree.root[0].diag()
    yield "Lemma 9", v.mT @ (prior - prior @ torch.ones_like(prior) @ prior) @ v, truth
    yield "broken: not centred", v.mT @ prior @ v, truth


def _parts(tree: LatentTree, seed: int) -> Iterator[tuple[int, dict[int, exact.Parts], Tensor]]:
    """Each depth of a random network on the tree, its parts, and the covariance over the root of what they read, enumerated."""
    net = initial_network([seed], tree.branching, 3, dtype=torch.float64)
    listed = exact.list_parts(tree, net)
    assignments, chance = theory.joint(tree)
    given, seen = _given_root(tree, assignments, chance), forward(net, assignments[-1].double())
    for d, inputs in enumerate(seen.inputs):
        means = torch.einsum("nib,zb->nzi", inputs[0], given)[None]
        truth = theory.covariance_over_root(tree, means)
        if float(truth.abs().max()) >= 1e-9:  # else all children are silent, and nothing is left to compare
            yield d, listed, truth


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
    seed: int,
    *,
    depth: int = 3,
    name: str = "s0",
    rate: float = 0.5,
    steps: int = 30,
    apart: bool = True,
    fair: Sequence[Tensor] = (),
) -> Growth:
    r"""Expected training of part ``name`` and those beside it, through one copy, by autograd on all pairs of patterns.

    The outputs are a constant matrix times the pre-activations of all units of the level; what lies below is frozen.

    apart: the matrix's columns are orthonormal, so that :math:`J_\mu^\top J_{\mu'} = 0`; else only those of each part are.
    fair: the polarities of a tree with a fair root, in the place of a random tree with the root of :data:`LEAN`.
    """
    width = 4
    polarities = fair or theory.random_polarities([seed], depth, 0.5)
    tree = trees.symmetric_binary(polarities, 0.0 if fair else LEAN)
    net = initial_network([seed], tree.branching, width, dtype=torch.float64)
    level, index = theory.place(tree, name)
    a = theory.child_selectivity(tree, exact.list_parts(tree, net), level)[0, index]
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
    assignments, chance = theory.joint(tree)
    patterns, which = torch.unique(assignments[-1][0].double(), dim=1, return_inverse=True)
    joint = torch.zeros(tree.values[0], patterns.shape[1], dtype=torch.float64)
    joint.index_put_((assignments[0][0, 0], which), chance[0], accumulate=True)
    return patterns[None], joint


def _one_tower_step(weight: Tensor, output: Callable[[Tensor], Tensor], joint: Tensor) -> Tensor:
    r"""Minus the gradient of :math:`\mathbb E[r_+ - r_-]` in the first tower's weight, of which ``output`` is a function."""
    moving = weight.clone().requires_grad_()
    first, second = output(moving), output(weight)
    distances = 0.5 * (first[:, :, None] - second[:, None]).square().sum(0)
    same = joint.T @ (joint / joint.sum(1, keepdim=True))
    marginal = joint.sum(0)
    gain = (distances * (marginal[:, None] * marginal - same)).sum()
    return torch.autograd.grad(gain, moving)[0]


@over(instance_seeds)
def growth_gaps(seed: int) -> Iterator[Comparison]:
    """Eq. 15 against :func:`constant_jacobian` on random trees, 30 steps; silent children have nothing to grow."""
    depth, name = (3, "s01") if seed % 5 == 4 else (2, f"s{seed % 2}")
    rate = 0.5
    grown, together = (
        constant_jacobian(seed, depth=depth, name=name, rate=rate, apart=apart) for apart in (True, False)
    )
    if grown.squared_length >= 1e-6:
        yield "growth", grown.predicted(rate), grown.gaps
        yield "broken: printed o", grown.predicted(rate, grown.reach * (1 - grown.reach)), grown.gaps
        yield "broken: lean forgotten", grown.predicted(rate, grown.reach), grown.gaps
        yield "broken: step of both copies", grown.predicted(2 * rate), grown.gaps
        yield "broken: each part alone orthonormal", grown.predicted(rate), together.gaps


class PartSteps(NamedTuple):
    r"""The expected one-tower step of part ``s0`` in trees of depth 2, ``(R, width, fan-in)`` each.

    true: by autograd over all pairs of patterns.  own: :math:`\mathrm{OP}_\mu \operatorname{vec}(W_\mu)`, with the part's own
    block of its layer's operator.  coupled: what the block that couples it to its sibling adds.  off: the length of what the own
    block misses, in units of the step, ``(R,)``.
    """

    true: Tensor
    own: Tensor
    coupled: Tensor
    off: Tensor


def part_steps(seeds: Sequence[int]) -> PartSteps:
    r"""Networks without biases, where :math:`f_L = \sum_\mu K_\mu^\top \operatorname{vec}(W_\mu)` over the parts of a layer."""
    rows = []
    for seed in seeds:
        tree = trees.symmetric_binary(theory.random_polarities([seed], 2, 0.7), LEAN)
        net = initial_network([seed], tree.branching, 10, bias=False, dtype=torch.float64)
        patterns, joint = _patterns(tree)

        def output(lowest: Tensor, net: TreeNetwork = net, patterns: Tensor = patterns) -> Tensor:
            return forward(TreeNetwork((net.weights[0], lowest), net.biases), patterns).pre[0][0, 0]

        true = _one_tower_step(net.weights[1], output, joint)[0, 0]
        listed = exact.list_parts(tree, net)
        mean, other = (theory.expected_connection(tree, net, listed, name)[0] for name in ("s0", "s1"))
        centred = mean - torch.einsum("z,ziac->iac", tree.root[0], mean)
        steps = [
            torch.einsum("z,ziac,zjad,dj->ci", tree.root[0], centred, k, w)
            for k, w in zip((mean, other), net.weights[1][0])
        ]
        rows.append(torch.stack([true, *steps]))
    true, own, coupled = torch.stack(rows, 1)
    return PartSteps(true, own, coupled, relative(own, true))


def jacobian_squares(net: TreeNetwork, leaves: Tensor) -> Tensor:
    r""":math:`\lVert J_\mu(x) \rVert_F^2` at the leftmost part of each depth from 1 on, ``(depth - 1, R)``, an input a network."""
    seen, width = forward(net, leaves[..., None]), net.width
    jacobian, found = net.weights[0][:, 0, :, :width], []
    for pre, weight in zip(seen.pre[1:], net.weights[1:], strict=True):
        jacobian = jacobian * (pre[:, :1, :, 0] > 0)
        found.append(jacobian.square().sum((1, 2)))
        jacobian = jacobian @ weight[:, 0, :, :width]
    return torch.stack(found)


def jacobian_law(variance: float, width: int, depth: int) -> float:
    r""":math:`N (\frac12 N v)^\delta`: the mean of :func:`jacobian_squares` at depth :math:`\delta`."""
    return width * (width * variance / 2) ** depth


def jacobian_by_signs(width: int, depth: int, variance: float, seed: int, branching: int = 2) -> float:
    r"""The same mean for weights :math:`\pm \sqrt v`, over every choice of the signs of what lies on the path.

    These are the root's weights of the path, and all weights and biases of the other parts on it. Biases have random sizes, so
    that nothing is exactly zero; all other parts and the leaves are drawn once.
    """
    tree = theory.random_symmetric([seed], depth + 1, 0.5, branching=branching)
    net = initial_network([seed], tree.branching, width, dtype=torch.float64)
    bits = width * width + sum(width * (weight.shape[-1] + 1) for weight in net.weights[1:])
    signs = 2.0 * ((torch.arange(2**bits)[:, None] >> torch.arange(bits)) & 1).double() - 1
    weights, biases = (
        [part.expand(len(signs), *part.shape[1:]).clone() for part in of] for of in (net.weights, net.biases)
    )
    shown, signs = signs.tensor_split([width * width], 1)
    weights[0][..., :width] = variance**0.5 * shown.view(-1, 1, width, width)
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        shown, signs = signs.tensor_split([width * (weight.shape[-1] + 1)], 1)
        rows = shown.view(len(shown), width, -1)
        weight[:, 0], bias[:, 0] = variance**0.5 * rows[..., 1:], bias[:, 0] * rows[..., 0]
    leaves = tree.sample([seed], 1)[-1][..., 0].double().expand(len(shown), -1)
    return float(jacobian_squares(TreeNetwork(tuple(weights), tuple(biases)), leaves)[-1].mean())
