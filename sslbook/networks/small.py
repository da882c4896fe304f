"""Homogeneous MLPs, the networks of the theory: a plain ``torch.nn.Sequential``, without biases unless asked for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sslbook._ambient import seeded, with_gradients
from sslbook._check import require_one_of


class Power(nn.Module):
    r"""Monomial activation :math:`\psi(u) = u^p` with integer ``p >= 1`` (Eq. 18 of [tian2020])."""

    def __init__(self, p: int = 2) -> None:
        super().__init__()
        self.p = p

    def forward(self, u: Tensor) -> Tensor:
        """Return ``u ** p``, element by element: of degree ``p`` in every weight below."""
        return u**self.p


def initialize(net: nn.Module, seed: int) -> nn.Module:
    """Draw every weight from ``N(0, 2 / fan_in)`` and every bias from ``N(0, 0.1^2)``; returns ``net``, which is changed.

    That keeps the size of ReLUs' inputs from layer to layer.  Numbers are drawn in float64, so that a network of another dtype has
    the same weights, rounded.
    """
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
    act: "linear", "relu", "leaky_relu" or "power".  slope: of leaky ReLU below 0.  power: the degree of the monomial
    :math:`u^p`.  The piecewise linear ones are of degree 1, :math:`\psi(u) = \psi'(u)\, u`, for Theorem 1 of [tian2020].
    Weights are float64 unless ``dtype`` says otherwise, drawn by :func:`initialize` from ``seed``.
    Raises ValueError unless ``widths`` holds at least two numbers, and for another ``act``.

    >>> mlp((4, 8, 3))
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=False)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=3, bias=False)
    )
    """
    if len(widths) < 2:
        raise ValueError(f"widths must hold at least two positive integers, got {tuple(widths)}")
    between: dict[str, Callable[[], nn.Module]] = {"linear": nn.Identity, "relu": nn.ReLU}
    between |= {"leaky_relu": partial(nn.LeakyReLU, slope), "power": partial(Power, power)}
    require_one_of("activation", act, between)
    stages: list[nn.Module] = []
    with seeded(None):  # PyTorch draws weights when it makes a layer, and ours replace them
        for fan_in, fan_out in itertools.pairwise(widths):
            stages += [nn.Linear(fan_in, fan_out, bias=bias, dtype=dtype), between[act]()]
    net = nn.Sequential(*stages[:-1])
    initialize(net, seed)
    return net
