"""Networks whose layers can be opened: homogeneous MLPs, small conv nets, residual blocks.

Each is a plain ``torch.nn.Sequential`` without biases (unless asked for).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sslbook._ambient import seeded, with_gradients
from sslbook._check import require_one_of, require_whole

ACTIVATIONS = ("linear", "relu", "leaky_relu", "power")


class Power(nn.Module):
    r"""Monomial activation :math:`\psi(u) = u^p` with integer ``p >= 1`` (Eq. 18 of [tian2020])."""

    def __init__(self, p: int = 2) -> None:
        super().__init__()
        self.p = require_whole("p", p, least=1)

    def forward(self, u: Tensor) -> Tensor:
        """``u ** p``, element by element."""
        return u**self.p

    def extra_repr(self) -> str:
        """What ``print`` shows in the parentheses."""
        return f"p={self.p}"


class Residual(nn.Module):
    r"""Residual block ``u -> skip(u) + branch(u)``; the skip is the identity unless given."""

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if skip is None else skip

    def forward(self, u: Tensor) -> Tensor:
        """``skip(u) + branch(u)``."""
        out: Tensor = self.skip(u) + self.branch(u)
        return out


def activation(name: str, *, slope: float = 0.1, power: int = 2) -> nn.Module:
    """The activation module called ``name``; ``slope`` belongs to leaky ReLU, ``power`` to the monomial."""
    require_one_of("activation", name, ACTIVATIONS)
    if name == "power":
        return Power(power)
    return {"linear": nn.Identity(), "relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(slope)}[name]


def initialize(net: nn.Module, seed: int) -> nn.Module:
    """Draw every weight from ``N(0, 2 / fan_in)`` and every bias from ``N(0, 0.1^2)``; returns ``net``."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            std = math.sqrt(2.0) / math.sqrt(parameter[0].numel()) if parameter.ndim > 1 else 0.1
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return net


@with_gradients
def mlp(
    widths: Sequence[int],
    act: str = "relu",
    *,
    bias: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    slope: float = 0.1,
    power: int = 2,
) -> nn.Sequential:
    r"""Return an MLP with layer widths ``(n_0, n_1, ..., n_L)`` and no activation at the top (Section 3 of [tian2020]).

    The linear layers have even indices: layer :math:`l` of the paper is ``net[2 * (l - 1)]``.
    Weights are float64 unless ``dtype`` says otherwise, drawn by :func:`initialize` from ``seed``.
    Raises TypeError or ValueError unless ``widths`` holds at least two positive whole numbers.

    >>> mlp((4, 8, 3))
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=False)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=3, bias=False)
    )
    """
    widths = [require_whole("widths", width, least=1) for width in widths]
    if len(widths) < 2:
        raise ValueError(f"widths must hold at least two positive integers, got {tuple(widths)}")
    seed = require_whole("seed", seed, least=0)
    stages: list[nn.Module] = []
    with seeded(None):  # PyTorch draws weights when it makes a layer, and ours replace them
        for fan_in, fan_out in itertools.pairwise(widths):
            stages += [nn.Linear(fan_in, fan_out, bias=bias, dtype=dtype), activation(act, slope=slope, power=power)]
    net = nn.Sequential(*stages[:-1])
    initialize(net, seed)
    return net


def convnet(
    channels: Sequence[int],
    size: int,
    outputs: int,
    *,
    kernel: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """Conv net on square images of ``size`` pixels: ``len(channels) - 1`` convolutions, the last of stride 2, a linear head."""
    stages: list[nn.Module] = []
    last = len(channels) - 2
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(channels)):
        stride = 2 if i == last else 1
        stages += [nn.Conv2d(fan_in, fan_out, kernel, stride, kernel // 2, bias=False, dtype=dtype), activation("relu")]
        size = (size + 2 * (kernel // 2) - kernel) // stride + 1
    stages += [nn.Flatten(), nn.Linear(channels[-1] * size * size, outputs, bias=False, dtype=dtype)]
    net = nn.Sequential(*stages)
    initialize(net, seed)
    return net


def residual_net(width: int, blocks: int, inputs: int, outputs: int, *, seed: int = 0) -> nn.Sequential:
    """Linear stem, ``blocks`` residual blocks ``u + W2 relu(W1 u)`` each followed by ReLU, linear head."""
    stages: list[nn.Module] = [nn.Linear(inputs, width, bias=False, dtype=torch.float64), nn.ReLU()]
    for _ in range(blocks):
        branch = nn.Sequential(
            nn.Linear(width, width, bias=False, dtype=torch.float64),
            nn.ReLU(),
            nn.Linear(width, width, bias=False, dtype=torch.float64),
        )
        stages += [Residual(branch), nn.ReLU()]
    net = nn.Sequential(*stages, nn.Linear(width, outputs, bias=False, dtype=torch.float64))
    initialize(net, seed)
    return net


# ---------------------------------------------------------------------------------------------------------------------
# Random instances: an identity is checked on many networks, not on a lucky one

KINDS = ("linear", "relu", "leaky_relu", "power", "conv", "residual")


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
