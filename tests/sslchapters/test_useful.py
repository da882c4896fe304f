"""Why are survivors useful: what a page does not hold of its graphs and worlds, for the page's own numbers do the rest."""

from __future__ import annotations

import itertools

import pytest
import torch

from sslbook.trees.latent import random_categorical
from sslchapters.useful import graph, worlds


def test_tied_functions_are_averaged_over_their_choices() -> None:
    found = graph.spectrum(torch.eye(5, dtype=torch.float64))
    seen = graph.probe(found, torch.tensor([0, 0, 1, 1, 1]))
    torch.testing.assert_close(seen.left, torch.linspace(1, 0, 5, dtype=torch.float64))
    assert seen.share == pytest.approx(1)
    assert bool(torch.isinf(seen.bound[:4]).all())


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
