"""Convolutions, and BatchNorm, as the connection needs them: differentiated twice in their input, and not in their weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm
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


class _Norm(torch.autograd.Function):
    """BatchNorm by its running statistics: PyTorch's own value to the last bit, so that a ReLU above has its gates, and a product
    back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor, statistics: tuple[Any, ...]) -> Tensor:
        mean, variance, weight, bias, eps = statistics
        return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, torch.backends.cudnn.enabled)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.statistics = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = ctx.saved_tensors
        return _NormPull.apply(grad, scale, ctx.statistics), None, None


class _NormPull(torch.autograd.Function):
    """The pull-back of :class:`_Norm`, PyTorch's own to the last bit: in float32 the step of a low layer shows how each rounds."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, scale: Tensor, statistics: tuple[Any, ...]) -> Tensor:
        mean, variance, weight, _, eps = statistics
        unread = grad.new_zeros(1).expand_as(grad)
        rest = (weight, mean, variance, None, None, False, eps, (True, False, False))
        found: Tensor = torch.ops.aten.native_batch_norm_backward(grad, unread, *rest)[0]
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = ctx.saved_tensors
        return tangent * scale, None, None


class PlainConvolutions(TorchFunctionMode):
    """Sends a pass's convolutions through :class:`_Conv`, and BatchNorm by its running statistics through :class:`_Norm`.

    Both keep no input for the backward pass.  What has weights that want gradients (the opened layer's, or computed from its
    output) is left as it is.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = _ARGUMENTS.get(func)
        call = dict(zip(names or (), args, strict=False)) | (kwargs or {})
        varying = [
            call[key] for key in (names or ())[1:] if isinstance(call.get(key), Tensor) and call[key].requires_grad
        ]
        plain = _normalize if func is batch_norm else _convolve
        out = None if names is None or varying else plain(**call)
        return func(*args, **(kwargs or {})) if out is None else out


_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ARGUMENTS = {
    torch.conv1d: _CONVOLUTION,
    torch.conv2d: _CONVOLUTION,
    torch.conv3d: _CONVOLUTION,
    batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
}


def _convolve(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    axes = weight.ndim - 2
    if isinstance(padding, str) or input.ndim != axes + 2:
        return None

    def full(value: int | Sequence[int]) -> list[int]:
        return [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)

    out: Tensor = _Conv.apply(input, weight, bias, full(stride), full(padding), full(dilation), groups)
    return out


def _normalize(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    if training or running_mean is None or running_var is None or input.dtype != running_mean.dtype:
        return None
    scale = (running_var + eps).rsqrt() * (1 if weight is None else weight)
    channels = (1, -1, *(1,) * (input.ndim - 2))
    out: Tensor = _Norm.apply(input, scale.view(channels), (running_mean, running_var, weight, bias, eps))
    return out
