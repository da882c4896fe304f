r"""What an opened layer must not be silent about: networks of which the products would be wrong and look right.

The theory needs a network :math:`f_L(x)` of one sample, in which one layer applies its weight once.  Few networks that aren't
so look it, so that what they compute decides.  Each guard names the network that it is for.  The numbers are asked on a
handful of samples, opened by themselves beside the whole batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sslbook.operator.frozen import sentences

if TYPE_CHECKING:
    from sslbook.operator.layer import Call, OpenedLayer

EVAL = "if that is BatchNorm in training mode, call net.eval(): its running statistics are then held"


def a_few(rows: Tensor) -> Tensor:
    """At most four rows, the last first; fewer than there are, unless there is one."""
    return rows[:: max(2, -(-len(rows) // 4))].flip(0)


def require_form(name: str, calls: list[Call], x: Tensor, output: Any) -> None:
    """Raise for a network without a connection at this layer.

    These are: a module that is called twice (its two Jacobians would add up), or never, as attention's ``out_proj`` is, whose
    weight is read by the attention; several outputs; numbers of several types, as under autocast within; a batch that isn't the
    first axis; and a weight that isn't a parameter, or that a layer below has, too.
    """
    if len(calls) != 1:
        raise ValueError(f"layer {name!r} must be applied once in a forward pass, it was applied {len(calls)} times")
    below, weight, out = calls[0]
    if not isinstance(output, Tensor):
        raise TypeError(f"net must return one tensor, got {type(output).__name__}")
    dtypes = {str(tensor.dtype) for tensor in (below, weight, out, output)}
    if dtypes not in ({"torch.float32"}, {"torch.float64"}):
        raise TypeError(f"layer {name!r} and all above it must be of float32 or of float64, got {sorted(dtypes)}")
    batches = [len(tensor) if tensor.ndim else 0 for tensor in (x, below, output)]
    if len(set(batches)) > 1:
        raise ValueError(
            "the first axis must be the batch throughout: {} inputs, {} at the layer, {} out".format(*batches)
        )
    if below.requires_grad or not weight.requires_grad:
        raise ValueError(f"the weight of layer {name!r} must be a parameter that is used there alone")


def verify(opened: OpenedLayer, part: OpenedLayer, call: Call) -> None:
    """Raise ValueError where the products of an opened layer would not be those of the network.

    part: the same network opened on :func:`a_few` of the samples, and ``call``, how its layer was called.
    """
    name = f"layer {part.name!r}"
    with sentences(f"net can't be differentiated twice above {name}"):
        _require_finite(opened, part)
        _require_single_samples(part, a_few(opened.output))
        _require_plain_layer(part, call)
        leaves = [call.weight, *part.module.parameters()]
        _require_used_once(part, [leaf for leaf in leaves if leaf.requires_grad])
        _require_linear(part)


def _require_single_samples(part: OpenedLayer, expected: Tensor) -> None:
    """For BatchNorm in training mode, and whatever else lets a sample's output depend on the others of its batch.

    Below the layer, outputs change with the batch: by more than half of the digits, since a batch's size alone changes the order
    of sums.  Above it, the derivative of one sample's output in another's pre-activation isn't zero, even where all samples are
    equal, and so their mean.
    """
    apart, size = (part.output - expected).abs().max(), expected.abs().max()
    if bool(apart > math.sqrt(torch.finfo(expected.dtype).eps) * size):
        raise ValueError(f"an output of net changes with the other samples of its batch; {EVAL}")
    cotangent = generic(part.output)
    cotangent[1::2] = 0
    if bool((part.pulled_back(cotangent)[1::2] != 0).any()):
        raise ValueError(f"an output of net depends on the layer's output for other samples; {EVAL}")


def _require_finite(opened: OpenedLayer, part: OpenedLayer) -> None:
    """For diverged weights, views that aren't numbers, and a root or a norm at zero, whose slope is infinite."""
    numbers = opened.output, part.pulled_back(generic(part.output))
    if not all(bool(each.isfinite().all()) for each in numbers):
        raise ValueError(
            f"net must have finite outputs, and derivatives above layer {part.name!r}: some are NaN or infinite"
        )


def _require_plain_layer(part: OpenedLayer, call: Call) -> None:
    """For a subclass with a forward of its own (cosines, quantised weights), and for a hook that changes the output.

    The derivative of the layer's real output in its weight must be that of a plain layer of its kind on the same input.
    """
    cotangent = generic(call.out)
    (real,) = torch.autograd.grad(call.out, call.weight, cotangent, allow_unused=True)
    plain = part.layer_vjp(cotangent)
    rounding = 8 * torch.finfo(plain.dtype).eps * math.sqrt(cotangent.numel() / len(plain))
    if real is None or bool((real - plain).abs().max() > rounding * plain.abs().max()):
        raise ValueError(
            f"layer {part.name!r} must apply its weight to its input, as a plain layer of its kind does: the derivative of its "
            "output in the weight is another one (a forward of its own, or a hook)"
        )


def _require_used_once(part: OpenedLayer, leaves: list[Tensor]) -> None:
    """For tied weights, as in an autoencoder whose decoder is the transposed encoder: the operator would miss the second use."""
    found = torch.autograd.grad(part._above, leaves, generic(part.output), retain_graph=True, allow_unused=True)
    if any(gradient is not None for gradient in found):
        raise ValueError(f"the weight of layer {part.name!r} must be used there alone, it is used further up too")


def _require_linear(part: OpenedLayer) -> None:
    """For gradients that are clipped or changed on their way by a hook: a JVP is the derivative of a pull-back that is linear."""
    cotangent, direction = generic(part.output), generic(part.weight)
    image, pulled = part.jvp(direction).double(), part.vjp(cotangent).double()
    gap = (image * cotangent).sum() - (pulled * direction).sum()
    if bool(gap.abs() > math.sqrt(torch.finfo(part.weight.dtype).eps) * image.norm() * cotangent.norm()):
        raise ValueError(f"the derivatives of net above layer {part.name!r} aren't linear (does a hook change them?)")


def generic(like: Tensor) -> Tensor:
    """Numbers of that shape without a pattern, on which two different linear maps agree by chance only."""
    phases = torch.arange(1, like.numel() + 1, dtype=like.dtype, device=like.device).square()
    return (0.7 * phases).cos().reshape(like.shape)


def require_batch(what: str, given: object, axes: int, words: str) -> None:
    """For views that are a list, a sparse tensor, or miss the axis of views; ``words`` are the axes that are wanted."""
    if not isinstance(given, Tensor) or given.layout != torch.strided:
        raise TypeError(f"{what} must be a dense torch tensor ({words}), got {type(given).__name__}")
    if given.ndim < axes or not given.numel():
        raise ValueError(f"{what} must have shape ({words}), got {tuple(given.shape)}")
