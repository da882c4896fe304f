"""Networks: their shapes, initial weights, and random instances."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sslbook._ambient import unwrapped, unwrapped_name
from sslbook.networks.small import initialize, mlp


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
    assert [type(m) for m in mlp((4, 5, 3), act)] == [nn.Linear, kind, nn.Linear]


def test_a_network_is_found_inside_of_its_wrappers() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(torch.optim.swa_utils.AveragedModel(net))
    assert type(unwrapped(wrapped)) is nn.Sequential
    names = [unwrapped_name(name) for name in wrapped.state_dict() if "n_averaged" not in name]
    assert names == list(net.state_dict())
