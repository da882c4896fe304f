"""Random instances: an identity is checked on many networks of several kinds, not on a lucky one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sslbook.networks.small import initialize, mlp

DEGREE_ONE = ("linear", "relu", "leaky_relu", "conv", "residual")
KINDS = ("linear", "relu", "leaky_relu", "power", "conv", "residual")


class Residual(nn.Module):
    r"""Residual block ``u -> skip(u) + branch(u)``; the skip is the identity unless given."""

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if skip is None else skip

    def forward(self, u: Tensor) -> Tensor:
        """``skip(u) + branch(u)``."""
        return self.skip(u) + self.branch(u)


_linear = partial(nn.Linear, bias=False, dtype=torch.float64)
_conv = partial(nn.Conv2d, bias=False, dtype=torch.float64)


def convnet(channels: Sequence[int], size: int, outputs: int, *, seed: int = 0) -> nn.Sequential:
    """Conv net on square images of ``size`` pixels: ``len(channels) - 1`` 3 x 3 convolutions, the last of stride 2, a head."""
    stages: list[nn.Module] = []
    for number, (fan_in, fan_out) in enumerate(itertools.pairwise(channels), 2):
        stride = 2 if number == len(channels) else 1
        stages += [_conv(fan_in, fan_out, 3, stride, 1), nn.ReLU()]
    last = (size - 1) // 2 + 1
    net = nn.Sequential(*stages, nn.Flatten(), _linear(channels[-1] * last * last, outputs))
    initialize(net, seed)
    return net


def residual_net(width: int, blocks: int, inputs: int, outputs: int, *, seed: int = 0) -> nn.Sequential:
    """Linear stem, ``blocks`` residual blocks ``u + W2 relu(W1 u)`` each followed by ReLU, linear head."""
    stages: list[nn.Module] = [_linear(inputs, width), nn.ReLU()]
    for _ in range(blocks):
        stages += [Residual(nn.Sequential(_linear(width, width), nn.ReLU(), _linear(width, width))), nn.ReLU()]
    net = nn.Sequential(*stages, _linear(width, outputs))
    initialize(net, seed)
    return net


def instance_seeds(count: int, seed: int) -> range:
    """The seeds of ``count`` (up to 1,000) random instances; another ``seed`` shares none of them."""
    return range(1000 * seed, 1000 * seed + count)


def random_network(seed: int, kinds: Sequence[str] = KINDS, outputs: int = 3) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A small random float64 network and the shape of one input; at most 3,000 weights a layer.

    The ``kinds`` take turns by ``seed``, so that as many consecutive seeds as there are kinds give each of them once.
    """
    draw = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    kind = kinds[seed % len(kinds)]
    if kind == "conv":
        size = pick(4, 6)
        channels = (pick(1, 2), *(pick(2, 4) for _ in range(pick(1, 2))))
        return convnet(channels, size, outputs, seed=seed), (channels[0], size, size)
    if kind == "residual":
        inputs = pick(3, 6)
        return residual_net(pick(4, 7), pick(1, 2), inputs, outputs, seed=seed), (inputs,)
    depth = pick(2, 3) if kind == "power" else pick(2, 5)
    widths = [pick(3, 8) for _ in range(depth)]
    return mlp((*widths, outputs), kind, seed=seed, power=pick(2, 3)), (widths[0],)


def all_tuples(samples: int, views: int, negatives: int = 1, *, distinct: bool = False) -> Tensor:
    """Every tuple, ``(N V V (N V)^H, 2 + H)``: where among the ``N V`` views anchor, positive and negatives lie.

    distinct: without negatives of the anchor's own sample.
    """
    axes = [torch.arange(samples), torch.arange(views), torch.arange(views)]
    grid = torch.cartesian_prod(*axes, *[torch.arange(samples * views)] * negatives)
    if distinct:
        grid = grid[(grid[:, 3:] // views != grid[:, :1]).all(1)]
    return torch.cat([views * grid[:, :1] + grid[:, 1:3], grid[:, 3:]], 1)


def in_weight(net: nn.Module, layer: str) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
    """A network as a function of one layer's weight and of inputs, outputs ``(B, n_L)``, and that weight; all else is constant."""
    key = f"{layer}.weight".lstrip(".")
    parameters = {name: each.detach() for name, each in net.named_parameters()}

    def outputs(weight: Tensor, x: Tensor) -> Tensor:
        return functional_call(net, {**parameters, key: weight}, (x,)).flatten(1)

    return outputs, parameters[key].clone()
