r"""What stands above the encoder: projector and predictor, with the BatchNorm of the papers' ablations.

======================  =====================================================================================
two layers              Linear(inputs, hidden), BatchNorm, ReLU, Linear(hidden, outputs)
one layer               BatchNorm, Linear(inputs, outputs): Tables 7 to 9 of [tian2021iclr]
======================  =====================================================================================

BatchNorm has no affine part, all linear layers have a bias, and either may miss, as in the released code.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from sslbook.normalization import MODES, BatchNorm

Norm = tuple[str, str]
"""A mode of :data:`sslbook.normalization.MODES` for BatchNorm's mean, and one for its deviation."""


class Head(nn.Module):
    """One or two linear layers, ``(N, inputs) -> (N, outputs)``; ``hidden=None`` is one layer, ``norm=None`` no BatchNorm.

    unbiased: the deviation divides by one less than the batch, as the layer of the released code's Table 4 does.
    """

    def __init__(
        self, inputs: int, hidden: int | None, outputs: int, norm: Norm | None, unbiased: bool = False
    ) -> None:
        super().__init__()
        sizes = [inputs, outputs] if hidden is None else [inputs, hidden, outputs]
        self.linears = nn.ModuleList(nn.Linear(below, above) for below, above in pairwise(sizes))
        self.norm = None if norm is None else normalization(sizes[-2], norm, unbiased)

    def forward(self, x: Tensor) -> Tensor:
        """The head's output."""
        for linear in self.linears[:-1]:
            x = linear(x)
        if self.norm is not None:
            x = self.norm(x)
        if len(self.linears) > 1:
            x = x.relu()
        y: Tensor = self.linears[-1](x)
        return y


def normalization(features: int, norm: Norm, unbiased: bool) -> nn.Module:
    """PyTorch's BatchNorm where both statistics act in both directions, and ours where a half is taken out."""
    mean, std = norm
    if norm == ("normal", "normal") and not unbiased:
        return nn.BatchNorm1d(features, affine=False)
    return BatchNorm(features, mean=mean, std=std, unbiased=unbiased)


def require_norm(name: str, norm: object) -> Norm | None:
    """``norm`` as two modes, or None; raises ValueError for anything else."""
    if norm is None:
        return None
    if not isinstance(norm, tuple | list) or len(norm) != 2 or any(mode not in MODES for mode in norm):
        allowed = ", ".join(MODES)
        raise ValueError(
            f"{name} must be None or two modes, of the mean and of the deviation, out of {allowed}; got {norm!r}"
        )
    return norm[0], norm[1]


@torch.no_grad()
def restart(head: Head, generator: torch.Generator, interval: tuple[float, float] | None = None) -> None:
    r"""Draw the head's weights anew, from ``generator`` on the CPU, and set its biases to 0 (Tables 5 and 7 to 10).

    Uniform on ``interval``, or Xavier's: uniform on :math:`\pm\sqrt{6/(\text{fan-in} + \text{fan-out})}`.
    BatchNorm's running statistics stay, and so does the optimiser's momentum: they are none of the head's weights.
    """
    for linear in head.linears:
        assert isinstance(linear, nn.Linear)
        drawn = torch.empty(linear.weight.shape, dtype=linear.weight.dtype)
        if interval is None:
            nn.init.xavier_uniform_(drawn, generator=generator)
        else:
            drawn.uniform_(*interval, generator=generator)
        linear.weight.copy_(drawn)
        linear.bias.zero_()


@torch.no_grad()
def symmetrize(head: Head) -> None:
    r"""The released code's default: :math:`W_1 = W_0^\top = (W_0 + W_1^\top)/2`; with one layer :math:`W = (W + W^\top)/2`.

    Raises ValueError where a matrix and the transposed other one differ in shape.
    """
    first, last = head.linears[0].weight, head.linears[-1].weight
    assert isinstance(first, Tensor)
    assert isinstance(last, Tensor)
    if first.shape != last.T.shape:
        raise ValueError(
            f"a symmetric predictor has as many inputs as outputs, got {first.shape[1]} and {last.shape[0]}"
        )
    mean = (first + last.T) / 2
    first.copy_(mean)
    last.copy_(mean.T)
