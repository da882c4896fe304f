"""Convolutions as the connection needs them: differentiated twice in their input, and not in their weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Conv(torch.autograd.Function):
    """A convolution whose pull-back to the input is written as a transposed convolution.

    PyTorch's double backward of a convolution also forms the weight's gradient, wanted or not: two thirds of the time of a JVP.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.size, ctx.geometry = inputs[0].shape[2:], inputs[3:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.geometry
        # the strides may not reach the last rows of the input: output_padding gives them back
        rest = [
            n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, m, k, s, p, d in zip(
                ctx.size, grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
            )
        ]
        pulled = torch.convolution(grad, weight, None, stride, padding, dilation, True, rest, groups)
        return pulled, None, None, None, None, None, None


class PlainConvolutions(TorchFunctionMode):
    """Sends every convolution of a forward pass through :class:`_Conv`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        axes = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}.get(func)
        call = dict(zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, strict=False))
        call |= kwargs or {}
        if axes is None or isinstance(call.get("padding"), str) or call["input"].ndim != axes + 2:
            return func(*args, **(kwargs or {}))
        if any(call.get(key) is not None and call[key].requires_grad for key in ("weight", "bias")):
            return func(*args, **(kwargs or {}))  # the opened layer's own, or computed from its output: not constants

        def full(value: int | Sequence[int]) -> list[int]:
            return [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)

        geometry = [full(call.get(key, default)) for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))]
        return _Conv.apply(call["input"], call["weight"], call.get("bias"), *geometry, call.get("groups", 1))
