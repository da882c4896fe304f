"""Why are survivors useful: graphs, the functions of largest share, and what probes on them leave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslchapters.useful import graph, worlds


def tables(count: int) -> list[Tensor]:
    """Random populations of a few images, some views of which are rare, and one that falls into two parts."""
    draws = torch.Generator().manual_seed(0)
    drawn = [torch.rand(4 + i % 4, 9, generator=draws, dtype=torch.float64).pow(1 + i % 5) for i in range(count)]
    halves = torch.block_diag(drawn[0][:, :5], drawn[1][:, :5])
    return [table / table.sum(1, keepdim=True) for table in (*drawn, halves)]


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
