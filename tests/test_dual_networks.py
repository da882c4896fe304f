"""The gradient formulas of two towers against autograd, on random networks and by hand; broken variants are told apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gap_cases import assert_gaps
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sslbook import losses
from sslbook.chapters.dual_networks import identities as dual
from sslbook.connection import connection, vec
from sslbook.gaps import relative_gap
from sslbook.networks import mlp, random_network

TOL = 1e-11
FAMILIES: dict[str, tuple[Callable[..., dual.Gaps], tuple[str, ...], tuple[str, ...]]] = {
    "A-Def1": (dual.connection_gaps, ("kronecker",), ("factors swapped",)),
    "A-Lem1": (
        dual.recursion_gaps,
        ("lemma",),
        ("one tower's gates for both", "forward matrices both ways (power)"),
    ),
    "A-Thm1": (
        dual.distance_gaps,
        ("different weights", "tied, first tower", "tied, both towers", "matrix form"),
        (
            "sum for difference",
            "second tower's weights replaced by the first's",
            "Eq. 40 for both towers",
            "both towers for the first",
        ),
    ),
    "A-Thm1, powers": (dual.power_gaps, ("divided by kappa",), ("as printed",)),
    "A-Thm1, branches": (dual.branch_gaps, ("outputs in place of K^T vec(W)",), ("as printed",)),
    "A-Thm1, biases": (dual.bias_gaps, (), ("with biases",)),
    "A-Eq41": (
        dual.normalized_gaps,
        ("Eq. 41", "gradient along the weights"),
        ("projection left out", "connections not scaled", "along the weights without projection"),
    ),
    "A-Lem2": (
        dual.contrastive_gaps,
        ("lemma, simple", "lemma, soft_triplet", "lemma, info_nce"),
        ("negatives exchanged", "negatives push alike", "partials that sum to beta"),
    ),
}


@pytest.mark.parametrize("seed", [0, 1000])
@pytest.mark.parametrize("name", FAMILIES)
def test_formulas_hold_and_broken_ones_do_not(name: str, seed: int) -> None:
    gaps, holds, broken = FAMILIES[name]
    assert_gaps(gaps(seed=seed), holds, broken)


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
        r = losses.half_squared_distance(f1, f2 if both else f2.detach())
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
