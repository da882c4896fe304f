"""The chapter's package from end to end: trees, networks, training and statistics together, at a small size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslbook.chapters.hltm import tree_operator
from sslbook.chapters.hltm.training import Protocol, train
from sslbook.trees import exact
from sslbook.trees.latent import LatentTree, symmetric_binary
from sslbook.trees.network import TreeNetwork, initial_network


def root_correlation(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> Tensor:
    return exact.latent_correlations(tree, net)[0].abs().amax((1, 2))


def test_training_finds_the_root() -> None:
    """The papers' claim in small: contrastive training never sees a latent variable, and finds the root."""
    protocol = Protocol(depth=3, width=10, lower=0.8, loss="printed", epoch_size=12_800)
    found = train(protocol, range(1, 9), 2, root_correlation, (0, 2))
    assert (found[2] > found[0]).double().mean() >= 0.75
    assert found[2].mean() > found[0].mean() + 0.02
    assert found[2].max() < 1


def test_nothing_can_be_learnt_where_nothing_survives() -> None:
    """Without polarity the leaves know nothing of the root, trained or not."""
    tree = symmetric_binary([torch.zeros(1, 2).double(), torch.zeros(1, 4).double()])
    net = initial_network([0], tree.branching, 4, dtype=torch.float64)
    assert exact.latent_correlations(tree, net)[0].abs().max() < 1e-12
    connection = tree_operator.expected_connection(tree, net, exact.list_parts(tree, net), "s0")
    assert tree_operator.operator_norm(tree, connection) < 1e-12
