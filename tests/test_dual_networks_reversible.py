"""Reversible layers: the degree of homogeneity, and Lemma 1's matrices against the Jacobian."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sslbook.chapters.dual_networks.reversible import degree, gates, stage_matrices, transitions
from sslbook.connection import Layer, open_layer, vec
from sslbook.gaps import relative_gap
from sslbook.networks import Power, Residual, mlp, random_network, residual_net

TOL = 1e-12


def inputs(shape: tuple[int, ...], batch: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positions(net: nn.Sequential) -> list[int]:
    return [i for i, module in enumerate(net) if isinstance(module, Layer)]


@given(seed=st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_lifting_the_weights_gives_the_output_times_its_degree(seed: int) -> None:
    """Euler's theorem: ``K^T vec(W) = kappa f_L``. Measured against the largest term of the sums: outputs may cancel."""
    net, shape = random_network(seed)
    x = inputs(shape, seed=seed)
    for i in positions(net):
        opened = open_layer(net, str(i), x)
        lifted, kappa = opened.jvp(opened.weight), degree(net, i)
        terms = opened.connections().abs().mT @ vec(opened.weight.abs())
        assert float((lifted - kappa * opened.output).abs().max()) <= TOL * float(terms.max())
        if kappa > 1 and float(opened.output.abs().max()) > 0:
            assert relative_gap(lifted, opened.output) > 0.9


@given(seed=st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_transition_matrices(seed: int) -> None:
    """The forward product carries the pre-activation to the output, the backward one is the Jacobian."""
    net, shape = random_network(seed)
    x = inputs(shape, seed=seed)
    for i in positions(net):
        found = transitions(net, i, x)
        opened = open_layer(net, str(i), x)
        scale = float((found.forward.abs() @ found.preactivation.abs()[..., None]).max())
        carried = (found.forward @ found.preactivation[..., None])[..., 0]
        assert float((carried - opened.output).abs().max()) <= TOL * scale
        gap = float((found.backward - opened.jacobian()).abs().max())
        assert gap <= TOL * float(found.backward.abs().max())
        assert torch.equal(found.preactivation, opened.preactivation.detach().flatten(1))


@pytest.mark.parametrize(
    ("module", "secant", "tangent"),
    [
        (nn.ReLU(), [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
        (nn.LeakyReLU(0.25), [0.25, 0.25, 1.0], [0.25, 0.25, 1.0]),
        (Power(3), [4.0, 0.0, 1.0], [12.0, 0.0, 3.0]),
    ],
)
def test_gates_by_hand(module: nn.Module, secant: list[float], tangent: list[float]) -> None:
    u = torch.tensor([[-2.0, 0.0, 1.0]], dtype=torch.float64)
    pair = gates(module, u)
    assert pair is not None
    assert pair[0].tolist() == [secant]
    assert pair[1].tolist() == [tangent]
    assert torch.equal(pair[0] * u, module(u))
    assert torch.equal(stage_matrices(module, u)[1], torch.diag_embed(pair[1]))


def test_gates_are_for_activations_only() -> None:
    assert gates(nn.Linear(2, 2), torch.ones(1, 2)) is None


def test_a_nested_network_and_pooling_have_matrices() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.Sequential(nn.LeakyReLU(0.1), nn.AvgPool2d(2)),
        Residual(nn.Conv2d(2, 2, 1, bias=False)),
        nn.Flatten(),
        nn.Linear(8, 2, bias=False),
    ).double()
    x = inputs((1, 4, 4))
    found = transitions(net, 0, x)
    assert relative_gap((found.forward @ found.preactivation[..., None])[..., 0], net(x).detach()) < TOL
    assert relative_gap(found.backward, open_layer(net, "0", x).jacobian()) < TOL


@pytest.mark.parametrize("p", [2, 3])
def test_degree_counts_the_monomials_above(p: int) -> None:
    net = mlp((3, 4, 5, 2), "power", power=p)
    assert [degree(net, i) for i in (0, 2, 4)] == [p * p, p, 1]
    scaled = mlp((3, 4, 5, 2), "power", power=p)
    with torch.no_grad():
        scaled[0].weight.mul_(1.5)
    x = inputs((3,))
    assert relative_gap(scaled(x).detach(), 1.5 ** (p * p) * net(x).detach()) < TOL


def test_degree_of_other_networks() -> None:
    assert degree(mlp((3, 4, 2), bias=False), 0) == 1
    assert degree(residual_net(4, 2, 3, 2), 0) == 1
    with pytest.raises(ValueError, match="bias"):
        degree(mlp((3, 4, 2), bias=True), 0)
    mixed = nn.Sequential(nn.Linear(3, 3, bias=False), Residual(Power(2)))
    with pytest.raises(ValueError, match="terms of degree 1 and 2"):
        degree(mixed, 0)
    for module in (nn.GELU(), nn.LayerNorm(3, bias=False), nn.Dropout(0.5)):
        with pytest.raises(TypeError, match=f"known for {type(module).__name__}"):
            degree(nn.Sequential(nn.Linear(3, 3, bias=False), module), 0)
    with pytest.raises(ValueError, match="between 0 and 2, got 3"):
        degree(mlp((3, 4, 2)), 3)


def test_transitions_refuse_what_is_not_reversible() -> None:
    x = inputs((3,))
    with pytest.raises(ValueError, match="Linear has a bias"):
        transitions(mlp((3, 4, 2), bias=True), 0, x)
    with pytest.raises(TypeError, match="gate form is known for Tanh"):
        transitions(nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh()).double(), 0, x)
    with pytest.raises(ValueError, match="layer must be between 0 and 2, got -1"):
        transitions(mlp((3, 4, 2)), -1, x)
