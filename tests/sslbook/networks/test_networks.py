"""Networks: their shapes, initial weights, and random instances."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sslbook._ambient import unwrapped, unwrapped_name
from sslbook.networks.small import Power, initialize, mlp
from sslchapters.instances import Residual, convnet, residual_net


def inputs(shape: tuple[int, ...], batch: int = 5) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_initialisation_is_reproducible_and_of_the_size_it_says() -> None:
    one, two, other = mlp((200, 300, 2), seed=3), mlp((200, 300, 2), seed=3), mlp((200, 300, 2), seed=4)
    assert torch.equal(one[0].weight, two[0].weight)
    assert not torch.equal(one[0].weight, other[0].weight)
    # 60,000 weights: their standard deviation is known to 0.3 %
    assert float(one[0].weight.detach().std()) == pytest.approx(math.sqrt(2 / 200), rel=0.015)
    biased = initialize(nn.Linear(10, 2000), 0)
    assert float(biased.bias.detach().std()) == pytest.approx(0.1, rel=0.1)
    half = mlp((3, 4, 2), dtype=torch.float32)
    assert torch.equal(half[0].weight, mlp((3, 4, 2))[0].weight.float())


@pytest.mark.parametrize(("act", "kind"), [("linear", nn.Identity), ("relu", nn.ReLU), ("leaky_relu", nn.LeakyReLU)])
def test_mlp_has_no_activation_at_the_top(act: str, kind: type[nn.Module]) -> None:
    net = mlp((4, 5, 3), act)
    assert [type(m) for m in net] == [nn.Linear, kind, nn.Linear]
    assert net(inputs((4,))).shape == (5, 3)
    assert net[0].bias is None


def test_what_comes_in_fits_and_is_added() -> None:
    for size in (4, 5, 8):
        assert convnet((2, 3, 4), size, 6)(inputs((2, size, size))).shape == (5, 6)
    net, u = residual_net(6, 2, 4, 3), inputs((6,))
    assert net(inputs((4,))).shape == (5, 3)
    torch.testing.assert_close(net[2](u), u + net[2].branch(u))
    torch.testing.assert_close(Residual(nn.ReLU(), nn.Tanh())(u), u.tanh() + u.relu())
    torch.testing.assert_close(Power(3)(u), u * u * u)


def test_a_network_is_found_inside_of_its_wrappers() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(torch.optim.swa_utils.AveragedModel(net))
    assert type(unwrapped(wrapped)) is nn.Sequential
    names = [unwrapped_name(name) for name in wrapped.state_dict() if "n_averaged" not in name]
    assert names == list(net.state_dict())
