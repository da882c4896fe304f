"""Latent trees: their tables, what follows from them, sampling against exact sums; and the tree-shaped network."""

from __future__ import annotations

import itertools

import pytest
import torch
from hltm_cases import BRANCHINGS, INSTANCES, constructed, instance
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sslbook.trees import latent as trees
from sslbook.trees.exact import TreeNetwork, forward, initial_network
from sslbook.trees.latent import LatentTree
from sslchapters.hltm import theory

KINDS = ["categorical", "regularized", "symmetric"]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(0, 5))
def test_rows_sum_to_one_and_replicas_are_what_they_are_alone(kind: str, seed: int, shape: int) -> None:
    tree = constructed(kind, [seed, seed + 1], shape)
    for table in (tree.root, *tree.tables):
        assert (table.sum(-1) - 1).abs().max() < 1e-14
        assert table.min() >= 0
    alone = constructed(kind, [seed + 1], shape)
    for mine, its in zip(tree.replica(1).tables, alone.tables, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-14)
    assert all(a[1].equal(b[0]) for a, b in zip(tree.sample([5, 6], 100), alone.sample([6], 100), strict=True))


def test_shape_of_a_tree() -> None:
    tree = trees.random_categorical([0, 1, 2], (3, 2, 4, 2), (2, 1, 3))
    assert (tree.replicas, tree.depth) == (3, 3)
    assert (tree.nodes, tree.values, tree.branching) == ((1, 2, 2, 6), (3, 2, 4, 2), (2, 1, 3))
    assert trees.numbers_needed(tree) == 10
    assert trees.place(tree, "s") == (0, 0)
    assert trees.place(tree, "s102") == (3, 5)


def test_symmetric_binary_is_made_of_its_polarities() -> None:
    rho = [torch.tensor([[0.4, -1.0]]).double(), torch.tensor([[0.0, 1.0, -0.25, 0.5]]).double()]
    tree = trees.symmetric_binary(rho, root_polarity=0.6)
    assert torch.allclose(tree.root, torch.tensor([[0.2, 0.8]]).double())
    for wanted, table in zip(rho, tree.tables, strict=True):
        assert torch.allclose(trees.polarity(table), wanted)
        assert torch.allclose(table[..., 0, 0], (1 + wanted) / 2)
        assert torch.allclose(table[..., 0, 1], (1 - wanted) / 2)


@pytest.mark.parametrize("shape", range(4))
def test_the_joint_distribution_by_enumeration(shape: int) -> None:
    tree = constructed("categorical", [3, 4], shape)
    assignments, chance = trees.joint(tree)
    assert chance.shape[0] == 2
    assert (chance.sum(1) - 1).abs().max() < 1e-13
    seen = {tuple(torch.cat(assignments, 1)[0, :, a].tolist()) for a in range(chance.shape[1])}
    assert len(seen) == chance.shape[1], "every assignment once"
    for part, marginal, product in zip(assignments, trees.marginals(tree), trees.from_root(tree), strict=True):
        for node, value in itertools.product(range(part.shape[1]), range(marginal.shape[2])):
            here = part[0, node] == value
            assert (chance[:, here].sum(1) - marginal[:, node, value]).abs().max() < 1e-13
            for z in range(tree.values[0]):
                both = chance[:, here & (assignments[0][0, 0] == z)].sum(1)
                assert (both - tree.root[:, z] * product[:, node, z, value]).abs().max() < 1e-13


def one_hot(values: Tensor, m: int) -> Tensor:
    return torch.nn.functional.one_hot(values.long(), m).double()


def scores(tree: LatentTree, drawn: list[Tensor]) -> list[Tensor]:
    """Distances in standard errors: of marginals, of pairs with the root, and of parents with their children."""
    n = drawn[0].shape[-1]

    def score(found: Tensor, wanted: Tensor) -> Tensor:
        return ((found - wanted).abs() / (wanted * (1 - wanted) / n).clamp_min(1e-30).sqrt()).max()

    found, marginals, hot = [], trees.marginals(tree), [one_hot(z, m) for z, m in zip(drawn, tree.values)]
    for d, product in enumerate(trees.from_root(tree)):
        found.append(score(hot[d].mean(2), marginals[d]))
        if d:
            pairs = torch.einsum("rbz,rnbm->rnzm", hot[0][:, 0], hot[d]) / n
            found.append(score(pairs, tree.root[:, None, :, None] * product))
            parents = hot[d - 1].repeat_interleave(tree.branching[d - 1], 1)
            prior = marginals[d - 1].repeat_interleave(tree.branching[d - 1], 1)
            pairs = torch.einsum("rnbz,rnbm->rnzm", parents, hot[d]) / n
            found.append(score(pairs, prior[..., None] * tree.tables[d - 1]))
    return found


@pytest.mark.parametrize(
    "tree",
    [
        theory.random_symmetric([0, 1], 5, 0.7),
        trees.symmetric_binary(theory.random_polarities([2], 3, -1.0), root_polarity=-0.7),
        trees.random_categorical([0, 1], (3, 3, 3, 3), (2, 2, 2)),
        trees.random_categorical([5], (2, 3, 2, 4), (2, 1, 3)),
        theory.random_regularized([5], (3, 2, 3), (2, 2)),
    ],
    ids=["tables'", "uneven root", "three values", "mixed", "regularized"],
)
def test_sampling_agrees_with_the_tables(tree: LatentTree) -> None:
    drawn = tree.sample(list(range(tree.replicas)), 40_000)
    assert [part.shape[1] for part in drawn] == list(tree.nodes)
    assert [part.dtype == torch.bool for part in drawn] == [m == 2 for m in tree.values]
    assert max(scores(tree, drawn)) < 5
    other = LatentTree(tree.root, tuple(table.flip(-1) for table in tree.tables))
    assert max(scores(other, drawn)) > 20, "the test sees wrong tables"


def test_children_are_independent_given_their_parent() -> None:
    tree = trees.random_categorical([0], (2, 3), (2,))
    drawn = tree.sample([0], 40_000)
    _, chance = trees.joint(tree)
    hot = [one_hot(z, m)[0] for z, m in zip(drawn, tree.values)]
    found = torch.einsum("bz,bx,by->zxy", hot[0][0], hot[1][0], hot[1][1]).flatten() / 40_000
    assert ((found - chance[0]).abs() / (chance[0] * (1 - chance[0]) / 40_000).sqrt()).max() < 5


def test_an_augmentation_keeps_the_root_and_redraws_the_rest() -> None:
    tree = theory.random_symmetric([0, 1], 4, 0.7)
    first = tree.sample([0, 1], 5000)
    second = tree.sample([10, 11], 5000, root=first[0][:, 0])
    assert second[0].equal(first[0])
    assert (second[-1] != first[-1]).double().mean() > 0.05
    kept = trees.from_root(tree)
    agree = (second[1] == first[1]).double().mean(2)
    p = kept[1][..., 1, 1]
    wanted = p.square() + (1 - p).square()
    assert ((agree - wanted).abs() / (wanted * (1 - wanted) / 5000).sqrt()).max() < 5


ROOT = torch.tensor([[0.5, 0.5]])
FAIR = torch.full((1, 2, 2, 2), 0.5)


def with_entry(value: float, other: float) -> Tensor:
    table = FAIR.clone()
    table[0, 1, 0] = torch.tensor([value, other])
    return table


@pytest.mark.parametrize(
    ("root", "tables", "message"),
    [
        (ROOT, (), "depth must be at least 1, got 0"),
        (ROOT, (with_entry(0.5, 0.4),), r"every row of tables\[0\] must sum to one, row \(0, 1, 0\) sums to 0.9"),
        (ROOT, (with_entry(1.5, -0.5),), r"tables\[0\] must hold probabilities between 0 and 1, got -0.5 to 1.5"),
        (torch.tensor([0.5, 0.5]), (FAIR,), r"root must have shape \(replicas, values\), got \(2,\)"),
        (ROOT, (FAIR, FAIR.repeat(1, 2, 1, 1)[:, :3]), r"tables\[1\] must have shape \(1, a multiple of 2"),
    ],
)
def test_bad_tables(root: Tensor, tables: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LatentTree(root, tables)


def by_loops(net: TreeNetwork, leaves: Tensor, branching: tuple[int, ...]) -> list[list[list[Tensor]]]:
    """Pre-activations ``[replica][depth][node]``, ``(B, width)``: one torch.nn.functional.linear a part."""
    found = []
    for r in range(net.replicas):
        read = [leaves[r, k][:, None] for k in range(leaves.shape[1])]
        layers = []
        for d in reversed(range(net.depth)):
            b, parts = branching[d], []
            for node in range(net.weights[d].shape[1]):
                x = torch.cat(read[node * b : (node + 1) * b], 1)
                parts.append(torch.nn.functional.linear(x, net.weights[d][r, node], net.biases[d][r, node]))
            layers.append(parts)
            read = [part.relu() for part in parts]
        found.append(layers[::-1])
    return found


@settings(max_examples=25, deadline=None)
@INSTANCES
def test_forward_agrees_with_a_loop_over_the_parts(seed: int, branching: tuple[int, ...], width: int) -> None:
    net, x = instance(seed, branching, width)
    seen, wanted = forward(net, x), by_loops(net, x, branching)
    assert (net.depth, net.width, net.replicas) == (len(branching), width, 2)
    for r in range(2):
        for d, parts in enumerate(wanted[r]):
            assert (seen.pre[d][r].transpose(1, 2) - torch.stack(parts)).abs().max() < 1e-13
    for d in range(net.depth - 1):
        assert seen.inputs[d].equal(seen.pre[d + 1].relu().reshape(seen.inputs[d].shape))
    assert seen.inputs[-1].flatten(1, 2).equal(x)


@pytest.mark.parametrize("branching", BRANCHINGS)
def test_initial_weights_and_biases_fill_their_range(branching: tuple[int, ...]) -> None:
    width = 40
    net = initial_network(range(5), branching, width)
    for d, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        fan_in = branching[d] * (1 if d == len(branching) - 1 else width)
        assert weight.shape[2:] == (width, fan_in)
        for drawn in (weight, bias):
            scaled = drawn.double().flatten() * fan_in**0.5
            assert 0.95 < scaled.abs().max() <= 1
            assert scaled.mean().abs() < 5 / (3 * scaled.numel()) ** 0.5
            assert (scaled.square().mean() - 1 / 3).abs() < 5 * (4 / 45 / scaled.numel()) ** 0.5


def test_a_network_is_alone_what_it_is_in_a_batch() -> None:
    together, alone = initial_network([3, 4, 5], (2, 2), 3), initial_network([4], (2, 2), 3)
    for mine, its in zip(together.replica(1).weights, alone.weights, strict=True):
        assert mine.equal(its)
    together.clone().weights[0].zero_()
    assert together.weights[0].abs().min() > 0
    free, plain = initial_network([1], (2, 2), 3, bias=False), initial_network([1], (2, 2), 3)
    assert all(bias.abs().max() == 0 for bias in free.biases)
    assert all(a.equal(b) for a, b in zip(free.weights, plain.weights, strict=True))
