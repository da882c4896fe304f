"""Two towers: gradient formulas against autograd, reversible layers, random instances, and the network followed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sslbook.book import plots
from sslbook.experiments.dual_networks import checks as dual
from sslbook.experiments.dual_networks import toy
from sslbook.experiments.dual_networks.checks import instances
from sslbook.experiments.dual_networks.theory import degree, gates, stage_matrices, transitions
from sslbook.losses import pairs
from sslbook.networks.small import Power, Residual, mlp, random_network, residual_net
from sslbook.operator.layer import Layer, connection, open_layer, unvec, vec
from sslbook.stats.checks import relative_gap

TOL = 1e-11


def test_theorem_2() -> None:
    found = dual.partial_sums()
    assert found["sum"] < 1e-14  # six partials of at most 1/tau, one rounding each
    assert found["library"] < 1e-14
    assert found["broken: pairs exchanged"] < -0.5  # partials of the wrong sign
    assert found["smallest sign margin"] > 0
    assert found["broken: extended loss"] == pytest.approx(0.25)  # its partials sum to beta
    assert found["broken: two temperatures"] > 0.1


def pair(seed: int, batch: int = 4) -> tuple[nn.Sequential, Tensor, Tensor]:
    net, shape = random_network(seed, ["linear", "leaky_relu", "conv", "residual"])
    x1, x2 = torch.randn(2, batch, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return net, x1, x2


@given(seed=st.integers(0, 500))
@settings(max_examples=25, deadline=None)
def test_gradients_against_a_backward_pass(seed: int) -> None:
    """`autograd_gradient` is itself the reference of the formulas: it must be what ``backward`` gives, summed over pairs."""
    net, x1, x2 = pair(seed)
    name = next(n for n, m in net.named_children() if isinstance(m, nn.Linear | nn.Conv2d))
    weight = net.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    for both in (False, True):
        f1, f2 = net(x1), net(x2)
        r = pairs.half_squared_distance(f1, f2 if both else f2.detach())
        (wanted,) = torch.autograd.grad(r.sum(), weight)
        found = dual.autograd_gradient(net, net, name, x1, x2, both=both)
        assert found.shape == (4, weight.numel())
        assert relative_gap(found.sum(0), vec(wanted)) < TOL


@given(seed=st.integers(0, 500))
@settings(max_examples=25, deadline=None)
def test_symmetries_of_the_formulas(seed: int) -> None:
    net, x1, x2 = pair(seed)
    name = next(n for n, m in net.named_children() if isinstance(m, nn.Linear | nn.Conv2d))
    k1, k2 = connection(net, name, x1), connection(net, name, x2)
    weight = net.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    w = weight.detach()
    one, other = dual.tower_gradient(k1, w, k2, w), dual.tower_gradient(k2, w, k1, w)
    both = dual.tied_gradient(k1, k2, w)
    scale = float(k1.square().sum() + k2.square().sum()) * float(w.norm())
    assert float((one + other - both).norm()) <= 1e-13 * scale  # the two towers' parts
    assert float((both - dual.tied_gradient(k2, k1, w)).norm()) <= 1e-13 * scale
    assert float(dual.tower_gradient(k1, w, k1, w).norm()) == 0.0  # one point has no distance from itself
    assert bool((both @ vec(w) >= -1e-13 * scale).all())  # r is convex in the weights where gates are fixed
    assert float((dual.lifted(k1, w) - net(x1).detach().flatten(1)).norm()) <= 1e-13 * scale


@given(seed=st.integers(0, 99), n=st.integers(1, 5))
def test_projection(seed: int, n: int) -> None:
    y, u = torch.randn(2, 3, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = dual.project_out(y, u)
    assert float((p * y).sum(1).abs().max()) < 1e-12
    assert torch.allclose(dual.project_out(y, p), p, atol=1e-12)
    assert torch.allclose(dual.project_out(y, y), torch.zeros_like(y), atol=1e-12)
    assert torch.allclose(dual.project_out(2.5 * y, u), p)


def test_the_formulas_on_a_network_done_by_hand() -> None:
    r"""One weight, :math:`f = w x`: :math:`r = \frac12 w^2 (x_1 - x_2)^2`, :math:`K = x`."""
    net = mlp((1, 1))
    w = net[0].weight.detach()
    w.fill_(3.0)
    x1, x2 = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[5.0]], dtype=torch.float64)
    k1, k2 = connection(net, "0", x1), connection(net, "0", x2)
    assert k1.shape == (1, 1, 1)
    assert float(k1) == 2.0
    assert float(dual.tower_gradient(k1, w, k2, w)) == 2 * 3 * (2 - 5)
    assert float(dual.tied_gradient(k1, k2, w)) == 3 * 9
    assert float(dual.autograd_gradient(net, net, "0", x1, x2, both=True)) == 3 * 9
    d_neg = torch.tensor([[-0.5]], dtype=torch.float64)
    assert float(dual.contrastive_gradient(k1, k2, (k1 * 4)[:, None], d_neg, w)) == 2 * -0.5 * 3 * (5 - 8)


def test_normalised_outputs_in_one_dimension_have_no_gradient() -> None:
    """A normalised scalar is +1 or -1 whatever the weights are."""
    net = mlp((3, 4, 1), "leaky_relu")
    x1, x2 = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k1, k2 = connection(net, "0", x1), connection(net, "0", x2)
    y1, y2 = net(x1).detach(), net(x2).detach()
    w = net[0].weight.detach()
    assert float(dual.normalized_gradient(k1, y1, k2, y2, w).norm()) < 1e-14
    assert float(dual.autograd_gradient(net, net, "0", x1, x2, normalize=True).norm()) < 1e-14


# --- reversible layers -----------------------------------------------------------------------------------------------


NEAR = 1e-12


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
        assert float((lifted - kappa * opened.output).abs().max()) <= NEAR * float(terms.max())
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
        assert float((carried - opened.output).abs().max()) <= NEAR * scale
        gap = float((found.backward - opened.jacobian()).abs().max())
        assert gap <= NEAR * float(found.backward.abs().max())
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
    assert relative_gap((found.forward @ found.preactivation[..., None])[..., 0], net(x).detach()) < NEAR
    assert relative_gap(found.backward, open_layer(net, "0", x).jacobian()) < NEAR


@pytest.mark.parametrize("p", [2, 3])
def test_degree_counts_the_monomials_above(p: int) -> None:
    net = mlp((3, 4, 5, 2), "power", power=p)
    assert [degree(net, i) for i in (0, 2, 4)] == [p * p, p, 1]
    scaled = mlp((3, 4, 5, 2), "power", power=p)
    with torch.no_grad():
        scaled[0].weight.mul_(1.5)
    x = inputs((3,))
    assert relative_gap(scaled(x).detach(), 1.5 ** (p * p) * net(x).detach()) < NEAR


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


def test_transitions_refuse_what_is_not_reversible() -> None:
    x = inputs((3,))
    with pytest.raises(ValueError, match="Linear has a bias"):
        transitions(mlp((3, 4, 2), bias=True), 0, x)
    with pytest.raises(TypeError, match="gate form is known for Tanh"):
        transitions(nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh()).double(), 0, x)


# --- what is drawn ---------------------------------------------------------------------------------------------------


KINDS = ("leaky_relu", "conv", "residual")


def test_every_layer_with_a_twin_of_other_weights() -> None:
    found = list(instances(6, 3, 0, KINDS))
    nets = {id(it.net): it.net for it in found}
    assert len(nets) >= 4  # silent ones are passed over
    assert all(
        bool((net(x).norm(dim=1) > 0).all()) for it in found for net in (it.net, it.twin) for x in (it.x1, it.x2)
    )
    for net in nets.values():
        wanted = [name for name, m in net.named_children() if isinstance(m, nn.Linear | nn.Conv2d)]
        assert [it.layer for it in found if it.net is net] == wanted
    for it in found:
        assert it.x1.shape == it.x2.shape
        assert len(it.x1) == 3
        assert it.weight.shape == it.other.shape
        assert relative_gap(it.weight, it.other) > 0.1
        assert str(it.index) == it.layer


# --- the network that is followed by hand ----------------------------------------------------------------------------


def test_the_numbers_of_the_example() -> None:
    k = connection(toy.network(), "0", toy.inputs())[..., 0]
    assert [unvec(row, (2, 2)).tolist() for row in k] == [[[2, 1], [2, 1]], [[1, 2], [0, 0]]]
    assert toy.network()(toy.inputs())[:, 0].tolist() == [3, 1]
    assert float(toy.distance(toy.network()).detach()) == 2


@pytest.mark.parametrize(
    ("rate", "real", "frozen"), [(0.0, 2.0, 2.0), (1 / 14, 0.5, 0.5), (1 / 10, 0.18, 0.18), (1 / 7, 9 / 98, 0.0)]
)
def test_a_step_is_what_frozen_gates_promise_until_one_switches(rate: float, real: float, frozen: float) -> None:
    assert float(toy.distance(toy.stepped(rate))) == pytest.approx(real, abs=1e-14)
    assert toy.frozen(rate) == pytest.approx(frozen, abs=1e-14)


def test_a_unit_that_is_off_is_hollow() -> None:
    fig, axes = plots.figure(3)
    toy.draw_step(axes, 0.0, colors=plots.PALETTE)
    dashed = [[patch.get_linestyle() == "--" for patch in ax.patches] for ax in axes[:2]]
    assert [sum(row) for row in dashed] == [0, 1]
    assert [text.get_text() for text in axes[1].texts] == ["1", "2", "1", "−1", "1"]
    assert torch.equal(toy.inputs(), torch.tensor(toy.INPUTS, dtype=torch.float64))
    fig.clear()
