"""Message passing against sums over every assignment of every variable, with Jacobians by autograd, and against sampling."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from hltm_cases import correlation
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.exact import TreeNetwork, initial_network
from sslbook.trees.latent import LatentTree
from sslchapters.hltm import theory

SHAPES = [
    ((2, 2, 2), (2, 2)),
    ((2, 2, 2), (3, 2)),
    ((2, 2, 2), (2, 3)),
    ((2, 2, 2, 2), (2, 2, 2)),
    ((3, 3, 3), (2, 2)),
    ((2, 3, 2, 3), (1, 2, 2)),
    ((3, 2), (3,)),
]
INSTANCES = given(st.integers(0, 10**6), st.integers(0, len(SHAPES) - 1), st.sampled_from([1, 3]))
SMALL = settings(max_examples=28, deadline=None)


@dataclass
class Listed:
    """A tree and a network with every assignment run through it, part after part, and what message passing says."""

    tree: LatentTree
    net: TreeNetwork
    values: list[Tensor]
    chance: Tensor
    pre: list[list[Tensor]]
    read: list[list[Tensor]]
    passed: dict[int, exact.Parts]

    def given(self, depth: int, node: int, quantity: Tensor) -> Tensor:
        """``E[quantity | z]``, ``(..., m)`` for ``quantity`` ``(..., A)``."""
        columns = []
        for value in range(self.tree.values[depth]):
            weight = self.chance * (self.values[depth][node] == value)
            columns.append((quantity * weight).sum(-1) / weight.sum())
        return torch.stack(columns, -1)


def listed(seed: int, shape: int, width: int) -> Listed:
    values, branching = SHAPES[shape]
    tree = trees.random_categorical([seed], values, branching)
    net = initial_network([seed], branching, width, dtype=torch.float64)
    assignments, chance = theory.joint(tree)
    z = [part[0] for part in assignments]
    below = [leaf.double()[None] for leaf in z[-1]]
    pre: list[list[Tensor]] = []
    read: list[list[Tensor]] = []
    for d in reversed(range(tree.depth)):
        b = branching[d]
        read.insert(0, [torch.cat(below[k * b : (k + 1) * b]) for k in range(tree.nodes[d])])
        parts = [net.weights[d][0, k] @ x + net.biases[d][0, k][:, None] for k, x in enumerate(read[0])]
        pre.insert(0, [part.requires_grad_() for part in parts])
        below = [part.relu() for part in parts]
    return Listed(tree, net, z, chance[0], pre, read, exact.list_parts(tree, net))


def hidden(tree: LatentTree) -> list[tuple[int, int]]:
    return [(d, k) for d in range(tree.depth) for k in range(tree.nodes[d])]


@SMALL
@INSTANCES
def test_conditional_moments_and_correlations(seed: int, shape: int, width: int) -> None:
    world = listed(seed, shape, width)
    moments = exact.moments(world.tree, world.net, world.passed)
    correlations = exact.latent_correlations(world.tree, world.net)
    for d, k in hidden(world.tree):
        f = world.pre[d][k].detach()
        wanted = correlation(world.values[d][k].double(), f, world.chance)
        assert (correlations[d][0, k] - wanted).abs().max() < 1e-11
        found = [(f, moments[d].mean, moments[d].variance)]
        if d in world.passed:
            parts = world.passed[d]
            rectified = exact.conditional_moments(parts.pre.relu(), parts.given)
            found.append((f.relu(), rectified.mean, rectified.variance))
        for quantity, mean, variance in found:
            wanted = world.given(d, k, quantity)
            assert (mean[0, k] - wanted).abs().max() < 1e-11
            assert (variance[0, k] - (world.given(d, k, quantity**2) - wanted**2)).abs().max() < 1e-11


def test_constant_units_are_uncorrelated() -> None:
    tree = theory.random_symmetric([0], 3, 0.8)
    net = initial_network([0], tree.branching, 2, dtype=torch.float64)
    net.biases[1].fill_(-100)  # the children of the root are silent, and so the root's part is its bias
    found = exact.latent_correlations(tree, net)
    assert found[0].abs().max() == 0
    assert found[2].abs().max() > 0.1
    net.weights[2].zero_()
    net.biases[2].fill_(0.3)
    assert exact.latent_correlations(tree, net)[2].abs().max() == 0


def connections(world: Listed, d: int, k: int) -> Tensor:
    """``E[f (x) J^T | z_0]`` by autograd, ``(m0, fan-in, outputs, width)``."""
    top, part = world.pre[0][0], world.pre[d][k]
    jacobian = torch.stack([torch.autograd.grad(row.sum(), part, retain_graph=True)[0] for row in top])
    products = world.read[d][k].detach()[:, None, None] * jacobian
    return world.given(0, 0, products).movedim(-1, 0)


def names(tree: LatentTree) -> list[str]:
    steps = (itertools.product(*(map(str, range(b)) for b in tree.branching[:d])) for d in range(tree.depth))
    return ["s" + "".join(path) for paths in steps for path in paths]


@SMALL
@INSTANCES
def test_connections_and_operators(seed: int, shape: int, width: int) -> None:
    world = listed(seed, shape, width)
    tree = world.tree
    for name in names(tree):
        wanted = connections(world, *theory.place(tree, name))
        found = theory.expected_connection(tree, world.net, world.passed, name)
        assert found.shape == (1, *wanted.shape)
        assert (found[0] - wanted).abs().max() < 1e-11
        centred = wanted - torch.einsum("z,zico->ico", tree.root[0], wanted)
        for contract, kept in [("outputs", "iw"), ("units", "io")]:
            a, b = ("iow", "jov") if kept == "iw" else ("iow", "jpw")
            out = "iwjv" if kept == "iw" else "iojp"
            covariance = torch.einsum(f"z,z{a},z{b}->{out}", tree.root[0], centred, centred)
            norm = theory.operator_norm(tree, found, contract)
            assert (norm[0] - covariance.square().sum().sqrt()).abs() < 1e-11


def test_replicas_are_kept_apart() -> None:
    tree = theory.random_symmetric([0, 1, 2], 3, 0.6)
    net = initial_network([0, 1, 2], tree.branching, 3, dtype=torch.float64)
    found = []
    second = LatentTree(tree.root[1:2], tuple(table[1:2] for table in tree.tables))
    for some, its in ((tree, net), (second, net.each(lambda part: part[1:2]))):
        passed = exact.list_parts(some, its)
        connections = [theory.expected_connection(some, its, passed, name) for name in names(some)]
        norms = [theory.operator_norm(some, each) for each in connections]
        found.append([*exact.latent_correlations(some, its, passed), *connections, *norms])
    for together, alone in zip(*found, strict=True):
        assert (together[1] - alone[0]).abs().max() < 1e-13
