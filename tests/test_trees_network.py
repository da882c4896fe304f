"""The tree-shaped network: forward against a loop over parts, backward against autograd, initial values, bad input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sslbook.trees import network
from sslbook.trees.network import TreeNetwork, backward, forward, initial_network, normalize, normalize_backward

BRANCHINGS = [(2, 2, 2), (3, 2), (2,), (1, 3, 2), (2, 2)]
INSTANCES = given(st.integers(0, 10**6), st.sampled_from(BRANCHINGS), st.integers(1, 5))


def instance(seed: int, branching: tuple[int, ...], width: int, batch: int = 9) -> tuple[TreeNetwork, Tensor]:
    net = initial_network([seed, seed + 1], branching, width, dtype=torch.float64)
    leaves = int(torch.tensor(branching).prod())
    x = torch.rand(2, leaves, batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return net, x.round()


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


@settings(max_examples=25, deadline=None)
@INSTANCES
def test_backward_agrees_with_autograd(seed: int, branching: tuple[int, ...], width: int) -> None:
    net, x = instance(seed, branching, width)
    parameters = [p.requires_grad_() for p in (*net.weights, *net.biases)]
    seen = forward(net, x)
    grad = torch.randn(2, width, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    wanted = torch.autograd.grad((seen.pre[0][:, 0] * grad).sum(), parameters)
    with torch.no_grad():
        weights, biases = backward(net, seen, grad)
    for found, slope in zip((*weights, *biases), wanted, strict=True):
        assert found.shape == slope.shape
        assert (found - slope).abs().max() < 1e-12


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([1e-4, 0.5]))
def test_gradient_through_the_normalisation(seed: int, width: int, epsilon: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    output = torch.randn(2, width, 8, generator=draw, dtype=torch.float64).requires_grad_()
    grad = torch.randn(2, width, 8, generator=draw, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((output / (output.norm(dim=1, keepdim=True) + epsilon) * grad).sum(), output)
    found = normalize_backward(output.detach(), grad, epsilon)
    assert (found - wanted).abs().max() < 1e-12 * wanted.abs().max().clamp_min(1)


def test_a_zero_output_has_a_finite_gradient() -> None:
    """There the derivative is the identity over epsilon, as the limit along every direction is."""
    output = torch.zeros(1, 3, 2, dtype=torch.float64)
    output[0, :, 1] = 1e-200
    grad = torch.ones(1, 3, 2, dtype=torch.float64)
    found = normalize_backward(output, grad)
    assert found.isfinite().all()
    assert found[..., 0].equal(grad[..., 0] / network.EPSILON)
    assert normalize(output).isfinite().all()
    assert normalize_backward(output.float(), grad.float()).isfinite().all()


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
