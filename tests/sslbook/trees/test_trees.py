"""Latent trees: their tables, what follows from them, sampling against exact sums; and the tree-shaped network."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from sslbook.trees import latent as trees
from sslbook.trees.exact import initial_network
from sslbook.trees.latent import LatentTree
from sslchapters.hltm import theory

KINDS = {
    "categorical": lambda seeds: trees.random_categorical(seeds, (3, 2, 4), (2, 1)),
    "regularized": lambda seeds: theory.random_regularized(seeds, (3, 2, 3), (2, 2)),
    "symmetric": lambda seeds: theory.random_symmetric(seeds, 2, -0.7),
}


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_are_what_they_are_alone(kind: str) -> None:
    tree, alone = KINDS[kind]([3, 4]), KINDS[kind]([4])
    for mine, its in zip(tree.tables, alone.tables, strict=True):
        assert (mine.sum(-1) - 1).abs().max() < 1e-14
        torch.testing.assert_close(mine[1:], its, rtol=1e-12, atol=1e-14)
    assert all(a[1].equal(b[0]) for a, b in zip(tree.sample([5, 6], 100), alone.sample([6], 100), strict=True))


def test_symmetric_binary_is_made_of_its_polarities() -> None:
    rho = [torch.tensor([[0.4, -1.0]]).double(), torch.tensor([[0.0, 1.0, -0.25, 0.5]]).double()]
    tree = trees.symmetric_binary(rho, root_polarity=0.6)
    assert torch.allclose(tree.root, torch.tensor([[0.2, 0.8]]).double())
    for wanted, table in zip(rho, tree.tables, strict=True):
        assert torch.allclose(trees.polarity(table), wanted)
        assert torch.allclose(table[..., 0, :], (1 + torch.stack([wanted, -wanted], -1)) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_products_along_paths_by_enumeration(kind: str) -> None:
    tree = KINDS[kind]([3, 4])
    assignments, chance = theory.joint(tree)
    assert (chance.sum(1) - 1).abs().max() < 1e-13
    listed = {tuple(torch.cat(assignments, 1)[0, :, a].tolist()) for a in range(chance.shape[1])}
    assert len(listed) == chance.shape[1], "every assignment once"
    for part, product in zip(assignments, trees.from_root(tree), strict=True):
        for node, value in itertools.product(range(part.shape[1]), range(product.shape[3])):
            here = part[0, node] == value
            for z in range(tree.values[0]):
                both = chance[:, here & (assignments[0][0, 0] == z)].sum(1)
                assert (both - tree.root[:, z] * product[:, node, z, value]).abs().max() < 1e-13


def score(found: Tensor, wanted: Tensor, count: int) -> float:
    """The largest distance in standard errors."""
    return float(((found - wanted).abs() / (wanted * (1 - wanted) / count).clamp_min(1e-30).sqrt()).max())


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_agrees_with_the_tables(kind: str) -> None:
    """Marginals, pairs with the root, and pairs of a parent and its child."""
    tree, n = KINDS[kind]([5]), 40_000
    drawn = tree.sample([0], n)
    products = trees.from_root(tree)
    marginals = [torch.einsum("rz,rnzm->rnm", tree.root, product) for product in products]
    assert [part.shape[1] for part in drawn] == list(tree.nodes)
    assert [part.dtype == torch.bool for part in drawn] == [m == 2 for m in tree.values]
    hot = [torch.nn.functional.one_hot(z.long(), m).double() for z, m in zip(drawn, tree.values)]
    assert score(hot[0].mean(2), marginals[0], n) < 5
    for d in range(1, tree.depth + 1):
        assert score(hot[d].mean(2), marginals[d], n) < 5
        pairs = torch.einsum("rbz,rnbm->rnzm", hot[0][:, 0], hot[d]) / n
        assert score(pairs, tree.root[:, None, :, None] * products[d], n) < 5
        parents, prior = (x.repeat_interleave(tree.branching[d - 1], 1) for x in (hot[d - 1], marginals[d - 1]))
        pairs = torch.einsum("rnbz,rnbm->rnzm", parents, hot[d]) / n
        assert score(pairs, prior[..., None] * tree.tables[d - 1], n) < 5


def test_an_augmentation_keeps_the_root_and_redraws_the_rest_independently() -> None:
    tree = theory.random_symmetric([0, 1], 4, 0.7)
    first = tree.sample([0, 1], 5000)
    second = tree.sample([10, 11], 5000, root=first[0][:, 0])
    assert second[0].equal(first[0])
    p = trees.from_root(tree)[1][..., 1, 1]
    assert score((second[1] == first[1]).double().mean(2), p.square() + (1 - p).square(), 5000) < 5
    siblings = trees.random_categorical([0], (2, 3), (2,))  # given their parent
    (root, children), (_, chance) = siblings.sample([0], 40_000), theory.joint(siblings)
    index = (root[0, 0].long() * 3 + children[0, 0]) * 3 + children[0, 1]
    assert score(torch.bincount(index, minlength=18) / 40_000, chance[0], 40_000) < 5


def test_bad_tables() -> None:
    fair = torch.full((1, 2, 2, 2), 0.5)
    for tables, message in [
        ((0.9 * fair,), r"every row of tables\[0\] must hold probabilities that sum to one, got sums of 0.9 to 0.9"),
        ((fair, fair.repeat(1, 2, 1, 1)[:, :3]), "a multiple of the nodes above"),
    ]:
        with pytest.raises(ValueError, match=message):
            LatentTree(torch.tensor([[0.5, 0.5]]), tables)


def test_initial_weights_and_biases_fill_their_range() -> None:
    net = initial_network(range(5), (3, 2), 40)
    for weight, bias, fan_in in zip(net.weights, net.biases, (120, 2), strict=True):
        assert weight.shape[2:] == (40, fan_in)
        for drawn in (weight, bias):
            scaled = drawn.double().flatten() * fan_in**0.5
            assert 0.95 < scaled.abs().max() <= 1
            assert scaled.mean().abs() < 5 / (3 * scaled.numel()) ** 0.5
            assert (scaled.square().mean() - 1 / 3).abs() < 5 * (4 / 45 / scaled.numel()) ** 0.5


def test_a_network_is_alone_what_it_is_in_a_batch() -> None:
    together, alone = initial_network([3, 4, 5], (2, 2), 3), initial_network([4], (2, 2), 3)
    free, second = initial_network([4], (2, 2), 3, bias=False), together.each(lambda part: part[1:2])
    for d in range(2):
        assert second.weights[d].equal(alone.weights[d])
        assert free.weights[d].equal(alone.weights[d])
        assert free.biases[d].abs().max() == 0
