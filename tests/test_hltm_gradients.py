"""The tree network's gradient by hand, against autograd."""

from __future__ import annotations

import torch
from hltm_cases import INSTANCES, instance
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbook.chapters.hltm.gradients import EPSILON, backward, normalize, normalize_backward
from sslbook.trees.network import forward


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
    assert found[..., 0].equal(grad[..., 0] / EPSILON)
    assert normalize(output).isfinite().all()
    assert normalize_backward(output.float(), grad.float()).isfinite().all()
