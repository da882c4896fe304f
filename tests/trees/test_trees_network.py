"""The tree-shaped network: forward against a loop over parts, initial values, bad input."""

from __future__ import annotations

import pytest
import torch
from hltm_cases import BRANCHINGS, INSTANCES, instance
from hypothesis import settings
from torch import Tensor

from sslbook.trees.network import TreeNetwork, forward, initial_network


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
            assert (seen.pre[d][r].transpose(1, 2) - torch.stack(parts)).abs().max() < 1e-14
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
    copy = together.clone()
    copy.weights[0].zero_()
    assert together.weights[0].abs().min() > 0
    assert together.to(torch.float64).biases[1].dtype == torch.float64


def test_without_biases_the_weights_stay() -> None:
    free, plain = initial_network([1], (2, 2), 3, bias=False), initial_network([1], (2, 2), 3)
    assert all(bias.abs().max() == 0 for bias in free.biases)
    assert all(a.equal(b) for a, b in zip(free.weights, plain.weights, strict=True))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        initial_network([0], (2, 2), 0)
    for branching in [(), (2, 0)]:
        with pytest.raises(ValueError, match="branching must hold one number of at least 1 a depth"):
            initial_network([0], branching, 2)
