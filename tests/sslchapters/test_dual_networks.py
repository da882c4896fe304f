"""Two towers: the gradient formulas on a network done by hand, and the network that the chapter follows by hand."""

from __future__ import annotations

import pytest
import torch

from sslbook.networks.small import mlp
from sslbook.operator.layer import connection, unvec
from sslchapters.dual_networks import checks as dual
from sslchapters.dual_networks import toy


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


def test_the_numbers_of_the_example() -> None:
    k = connection(toy.network(), "0", toy.inputs())[..., 0]
    assert [unvec(row, (2, 2)).tolist() for row in k] == [[[2, 1], [2, 1]], [[1, 2], [0, 0]]]
    assert toy.network()(toy.inputs())[:, 0].tolist() == [3, 1]
    assert float(toy.distance(toy.network()).detach()) == 2


@pytest.mark.parametrize(
    ("rate", "real", "frozen"), [(0.0, 2.0, 2.0), (1 / 14, 0.5, 0.5), (1 / 10, 0.18, 0.18), (1 / 7, 9 / 98, 0.0)]
)
def test_a_step_is_what_frozen_gates_promise_until_one_switches(rate: float, real: float, frozen: float) -> None:
    assert float(toy.distance(toy.stepped(rate))) == pytest.approx(real, abs=1e-13)
    assert toy.frozen(rate) == pytest.approx(frozen, abs=1e-13)
