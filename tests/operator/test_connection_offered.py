"""Every layer that a network is said to have can be opened, and one whose weight is used without it says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hostile_networks import Net
from test_connection import layers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from sslbook.networks.resnet import ResNet18
from sslbook.operator.layer import open_layer


def applies(forward: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> nn.Module:
    return Net(lambda net, x: net.b(forward(net, x)), **{"a": nn.Identity(), "b": nn.Linear(8, 3)} | modules)


def tied_embeddings() -> nn.Module:
    net = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 7))
    net[3].weight = net[0].weight
    return net


def reads(net: Any, x: Tensor) -> Tensor:
    """The layer's weight without the layer."""
    return F.linear(x, net.a.weight, net.a.bias)


TOKENS, IMAGE, VECTOR = (3, 5, 8), (3, 1, 12, 12), (3, 8)
ENCODER = partial(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True)
OFFERED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer's layer": (lambda: nn.Sequential(ENCODER(), nn.Linear(8, 3)), TOKENS),
    "attention": (
        lambda: applies(lambda net, x: net.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, batch_first=True)),
        TOKENS,
    ),
    "LSTM": (
        lambda: applies(lambda net, x: net.a(x)[0], a=nn.LSTM(8, 4, bidirectional=True, batch_first=True)),
        TOKENS,
    ),
    "ResNet-18": (lambda: nn.Sequential(ResNet18("cifar", 2, 1), nn.Linear(16, 3)), IMAGE),
    "tied embeddings": (tied_embeddings, (3, 4)),
    "one weight, two layers": (lambda: applies(lambda net, x: net.c(net.d(x)), **tied_pair()), VECTOR),
    "normalised weights": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 2)),
        VECTOR,
    ),
    "transposed": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.ConvTranspose2d(2, 1, 3), nn.Conv2d(1, 1, 3)),
        IMAGE,
    ),
}


def tied_pair() -> dict[str, nn.Module]:
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    other.weight = one.weight
    return {"c": one, "d": other}


@pytest.mark.parametrize("name", OFFERED)
def test_every_layer_that_is_offered_can_be_opened(name: str) -> None:
    torch.manual_seed(0)
    make, shape = OFFERED[name]
    net = make().double().eval()
    x = torch.randn(shape, dtype=torch.float64) if name != "tied embeddings" else torch.randint(7, shape)
    with pytest.raises(ValueError, match="linear and convolutional layers are '") as told:
        open_layer(net, "no such", x)
    offered = re.findall("'([^']*)'", str(told.value).partition("layers are ")[2])
    for layer in offered:
        assert open_layer(net, layer, x).size == net.get_submodule(layer).weight.numel()
    for layer in set(layers(net)) - set(offered):  # and no more is kept back than must be
        with pytest.raises(ValueError, match="own, it shares"):
            open_layer(net, layer, x)


@pytest.mark.parametrize(
    ("make", "layer", "parent", "others"),
    [
        (lambda: nn.Sequential(ENCODER()), "0.self_attn.out_proj", "'0.self_attn'", "'0.linear1', '0.linear2'"),
        (OFFERED["attention"][0], "a.out_proj", "'a'", "'b'"),
        (lambda: applies(reads, a=nn.Linear(8, 8)), "a", " Net", "'b'"),
        (lambda: nn.Sequential(applies(reads, a=nn.Linear(8, 8)), nn.Linear(3, 2)), "0.a", "Net '0'", "'0.b', '1'"),
    ],
)  # fmt: skip
def test_a_weight_that_is_used_without_its_layer_is_told(make: Any, layer: str, parent: str, others: str) -> None:
    message = f"applied 0 times:.*{parent} uses its weight without calling it; to open there are {others}$"
    with pytest.raises(ValueError, match=message):
        open_layer(make().double().eval(), layer, torch.ones(3, 5, 8, dtype=torch.float64))
