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
        sizes = "{} inputs, {} at the layer, {} out".format(*batches)
        raise ValueError(f"the first axis must be the batch throughout: {sizes}")
    if below.requires_grad or not weight.requires_grad:
        raise ValueError(f"the weight of layer {name!r} must be a parameter that is used there alone")


def verify(opened: OpenedLayer, part: OpenedLayer, call: Call) -> None:
    """Raise ValueError where the products of an opened layer would not be those of the network.

    part: the same network opened on :func:`a_few` of the samples, and ``call``, how its layer was called.  Its derivatives are
    asked for with :func:`generic` numbers.
    """
    name, expected, eps = f"layer {part.name!r}", a_few(opened.output), torch.finfo(part.output.dtype).eps
    cotangent, direction = generic(part.output), generic(part.weight)
    with sentences(f"net can't be differentiated twice above {name}"):
        # diverged weights, views that aren't numbers, and a root or a norm at zero, whose slope is infinite
        if not all(bool(each.isfinite().all()) for each in (opened.output, part.pulled_back(cotangent))):
            raise ValueError(f"net must have finite outputs, and derivatives above {name}: some are NaN or infinite")

        # BatchNorm in training mode, and whatever else lets a sample's output depend on the others of its batch.  Below the
        # layer, outputs change with the batch: by more than half of the digits, since its size alone changes the order of sums
        if bool((part.output - expected).abs().max() > math.sqrt(eps) * expected.abs().max()):
            raise ValueError(f"an output of net changes with the other samples of its batch; {EVAL}")
        # Above it, the derivative of an output in another sample's pre-activation isn't zero, even where all samples are equal
        every_other = cotangent.clone()
        every_other[1::2] = 0
        if bool((part.pulled_back(every_other)[1::2] != 0).any()):
            raise ValueError(f"an output of net depends on the layer's output for other samples; {EVAL}")

        # a subclass with a forward of its own (cosines, quantised weights), and a hook that changes the output: the derivative
        # in the weight must be that of a plain layer of its kind on the same input
        of_out = generic(call.out)
        (real,) = torch.autograd.grad(call.out, call.weight, of_out, allow_unused=True)
        plain = part.layer_vjp(of_out)
        rounding = 8 * eps * math.sqrt(of_out.numel() / len(plain))
        if real is None or bool((real - plain).abs().max() > rounding * plain.abs().max()):
            raise ValueError(
                f"{name} must apply its weight to its input, as a plain layer of its kind does: the derivative of its "
                "output in the weight is another one (a forward of its own, or a hook)"
            )

        # tied weights, as in an autoencoder whose decoder is the transposed encoder: the operator would miss the second use
        leaves = [leaf for leaf in (call.weight, *part.module.parameters()) if leaf.requires_grad]
        above = torch.autograd.grad(part._above, leaves, cotangent, retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in above):
            raise ValueError(f"the weight of {name} must be used there alone, it is used further up too")

        # gradients that a hook clips or changes on their way: a JVP is the derivative of a pull-back that is linear
        image, pulled = part.jvp(direction).double(), part.vjp(cotangent).double()
        gap = (image * cotangent).sum() - (pulled * direction).sum()
        if bool(gap.abs() > math.sqrt(eps) * image.norm() * cotangent.norm()):
            raise ValueError(f"the derivatives of net above {name} aren't linear (does a hook change them?)")


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
