"""Why are survivors useful: graphs, the functions of largest share, and what probes on them leave."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from sslbook.trees.latent import random_categorical
from sslchapters.useful import graph, worlds


def tables(count: int) -> list[Tensor]:
    """Random populations of a few images, some views of which are rare, and one that falls into two parts."""
    draws = torch.Generator().manual_seed(0)
    drawn = [torch.rand(4 + i % 4, 9, generator=draws, dtype=torch.float64).pow(1 + i % 5) for i in range(count)]
    halves = torch.block_diag(drawn[0][:, :5], drawn[1][:, :5])
    return [table / table.sum(1, keepdim=True) for table in (*drawn, halves)]


@pytest.mark.parametrize("table", tables(8))
def test_functions_are_the_operator_s_and_normalised(table: Tensor) -> None:
    found, weights = graph.spectrum(table), table.mean(0)
    kept = found.shares > graph.TIED
    views, images, shares = found.views[:, kept], found.images[:, kept], found.shares[kept]
    torch.testing.assert_close(graph.adjacency(table) @ views, weights[:, None] * views * shares)
    torch.testing.assert_close(views.T @ (weights[:, None] * views), torch.eye(len(shares), dtype=torch.float64))
    torch.testing.assert_close(table @ views, images * shares.sqrt())
    torch.testing.assert_close(graph.adjacency(table).sum(1), weights)


@pytest.mark.parametrize("table", tables(8)[:-1])
def test_a_probe_is_least_squares_and_stays_within_its_bounds(table: Tensor) -> None:
    found = graph.spectrum(table)
    for labels in (torch.arange(len(table)) % 2, torch.arange(len(table)) % 3):
        seen = graph.probe(found, labels)
        for k in range(len(table) - 1):
            assert float(seen.left[k]) == pytest.approx(graph.left_by(table, found.views[:, :k], labels))
            spread = float(graph.one_hot(labels).var(0, correction=0).sum())
            assert graph.error_rate(table, found.views[:, :k], labels) <= 2 * spread * float(seen.left[k]) + 1e-12
        assert bool((seen.left <= seen.bound + 1e-12).all() and (seen.left >= 1 - seen.share - 1e-12).all())
    of_views = graph.probe_of_views(found, torch.arange(table.shape[1]) % 2, table.mean(0))
    assert bool((of_views.left <= of_views.bound + 1e-12).all())


def test_tied_functions_are_averaged_over_their_choices() -> None:
    found = graph.spectrum(torch.eye(5, dtype=torch.float64))
    seen = graph.probe(found, torch.tensor([0, 0, 1, 1, 1]))
    torch.testing.assert_close(seen.left, torch.linspace(1, 0, 5, dtype=torch.float64))
    assert seen.share == pytest.approx(1)
    assert bool(torch.isinf(seen.bound[:4]).all())


def test_descent_ends_at_the_leading_functions() -> None:
    table = tables(2)[0]
    ends = graph.inner_products(table, graph.descend(table, 2, seed=3, steps=4000))
    torch.testing.assert_close(ends, graph.inner_products(table, graph.top(table, 2)), atol=1e-8, rtol=0)


def test_worlds_list_what_they_say() -> None:
    world = worlds.crops(6, 20)
    assert world.table.shape[0] == 20
    assert world.views.shape[1] == 64
    assert set((world.views != 0).sum(1).tolist()) == {36}
    assert len(world.views.unique(dim=0)) == len(world.views)
    marked = worlds.crops(1, 20, stamps=3)
    assert bool((marked.views[:, 64:].sum(1) == 1).all())
    torch.testing.assert_close(marked.table @ marked.views[:, 64:], graph.one_hot(marked.labels))
    torch.testing.assert_close(
        graph.spectrum(worlds.square(0.3).table).shares, torch.tensor([0.7], dtype=torch.float64)
    )


def test_leaves_of_a_tree_have_the_probabilities_of_all_paths() -> None:
    tree = random_categorical([0], (3, 2, 2), (2, 2))
    given = worlds.leaves(tree)
    first, second = tree.tables
    wanted = torch.zeros(3, 16, dtype=torch.float64)
    for hidden in itertools.product(range(2), repeat=2):
        for column, seen in enumerate(itertools.product(range(2), repeat=4)):
            path = torch.stack([second[0, leaf, hidden[leaf // 2], value] for leaf, value in enumerate(seen)]).prod()
            wanted[:, column] += path * first[0, 0, :, hidden[0]] * first[0, 1, :, hidden[1]]
    torch.testing.assert_close(given, wanted)
