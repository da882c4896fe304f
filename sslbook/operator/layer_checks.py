r"""What an opened layer must not be silent about: whether a network has a connection at all.

Definition 1 of [tian2020] takes a network to be a function of one sample, with fixed weights, which applies the layer's weight to
the layer's input and uses it for nothing else.  Few of those that break this look it, so what they compute decides:
:func:`refuse_part` looks at a handful of samples evaluated by themselves, :func:`refuse_batch` at a whole batch.
A :class:`Held` network is evaluated with the weights that it had when it was held, and is left as it is.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from sslbook.operator.double_backward import PlainConvolutions

if TYPE_CHECKING:
    from sslbook.operator.layer import Layer, OpenedLayer

DTYPES = (torch.float32, torch.float64)
HALF = (torch.float16, torch.bfloat16)
"""Precisions in which a network is given and not opened: their products leave an eigenvector a residual of a few hundredths."""
EVAL = "call net.eval(): the operator is then that of the network with its running statistics held"
CANT_TAKE = "net can't take x"
OTHERS = (Exception,)
"""What a caller's own function may raise."""
BY_BATCH = f"if that is BatchNorm in training mode, {EVAL}"


@dataclass(frozen=True)
class Call:
    """How the layer was called: its input, its weight, its output after hooks, all with their graphs."""

    below: Tensor
    weight: Tensor
    out: Tensor


@dataclass(frozen=True, eq=False)
class Held:
    """A network with the weights that it had: passes of it leave its buffers and the global random state as they are.

    name, module: the layer.  tensors: copies of all parameters and buffers, those of half precision in float32; what the layer's
    weight is made of wants gradients.  given: the precision of the layer's weight as it was.
    """

    net: nn.Module
    name: str
    module: Layer
    tensors: Mapping[str, Tensor]
    given: torch.dtype

    def __call__(self, x: Tensor, after: Callable[[Call], Tensor]) -> Any:
        """The output for ``x``, where what ``after`` gives stands in for the layer's output.

        Raises ValueError if the network can't be run, with torch's words, or draws random numbers.
        """

        def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], out: Tensor) -> Tensor:
            return after(Call(args[0] if args else kwargs["input"], self.module.weight, out))

        statistics = {key: self.tensors[key].clone() for key, _ in self.net.named_buffers()}  # which a pass may move
        handle = self.module.register_forward_hook(hook, with_kwargs=True)
        try:
            with _held_still(x.device), sentences(f"{CANT_TAKE} of shape {tuple(x.shape)} and {x.dtype}", OTHERS):
                return functional_call(self.net, {**self.tensors, **statistics}, (x,))
        finally:
            handle.remove()


def hold(net: nn.Module, name: str, module: Layer) -> Held:
    """Copies of the network's weights, for one layer; raises TypeError or ValueError for a network that can't be opened."""
    _refuse_modules(net)
    _refuse_coupling(net)
    if (other := shares_with(net, module)) is not None:
        raise ValueError(f"layer {name!r} must have a weight of its own, it shares it with {other!r}")
    own = {id(p) for key, p in module.named_parameters() if "bias" not in key} | {id(module.weight)}
    tensors = {}
    for key, tensor in [*net.named_parameters(), *net.named_buffers()]:
        copy = in_full(tensor.detach()).clone()
        tensors[key] = copy.requires_grad_() if id(tensor) in own and copy.is_floating_point() else copy
    return Held(net, name, module, tensors, module.weight.dtype)


def shares_with(net: nn.Module, module: nn.Module) -> str | None:
    """Another module that has this one's weight, if any."""
    others = (name for name, m in net.named_modules() if m is not module and getattr(m, "weight", 0) is module.weight)
    return next(others, None)


def in_full(tensor: Tensor) -> Tensor:
    """The same numbers, in float32 where they are of half precision."""
    return tensor.float() if tensor.dtype in HALF else tensor


def has_half(net: nn.Module) -> bool:
    """Whether any of the network's numbers is of half precision."""
    return any(tensor.dtype in HALF for tensor in (*net.parameters(), *net.buffers()))


@contextlib.contextmanager
def sentences(what: str, errors: tuple[type[Exception], ...] = (RuntimeError, IndexError)) -> Iterator[None]:
    """Raise ValueError, with its first line, for an error of these kinds, by default torch's own."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except errors as error:
        raise ValueError(f"{what}: {str(error).strip().partition(chr(10))[0] or type(error).__name__}") from error


@contextlib.contextmanager
def _held_still(device: torch.device) -> Iterator[None]:
    """A pass that can be differentiated twice, whatever holds around it; raises ValueError if it draws random numbers."""
    recomputing = (
        "it computes activations again when they are needed (checkpointing), with other weights: switch that off"
    )
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        sdpa_kernel(SDPBackend.MATH),  # the fused attention kernels can't be differentiated twice
        PlainConvolutions(),
        parametrize.cached(),  # one weight for the layer and for us
        torch.autograd.graph.disable_saved_tensors_hooks(recomputing),
        torch.random.fork_rng([device] if device.type == "cuda" else []),
    ):
        before = _random_state(device)
        yield
        if any(not torch.equal(*pair) for pair in zip(before, _random_state(device), strict=True)):
            raise ValueError("net draws random numbers (dropout, noise), so an output depends on chance: take that out")


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


# --- what a look at the modules tells ---------------------------------------------------------------------------------


def _refuse_modules(net: nn.Module) -> None:
    for name, module in net.named_modules():
        wrapped = isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel | torch.jit.ScriptModule)
        if wrapped or hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise TypeError(
                f"net must be of plain modules, got {type(module).__name__}{name and f' as {name!r}'}: give what was wrapped, "
                "scripted or compiled"
            )
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name!r} of net has no shape yet: run net once on a batch first")
        if tensor.device.type == "meta":
            raise ValueError(f"{name!r} of net is on the device meta, where there are no numbers")


def _refuse_coupling(net: nn.Module) -> None:
    """K(x) must be a function of one sample: BatchNorm and dropout in training mode are not."""
    for name, module in net.named_modules():
        coupled = isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        )
        rate = {nn.modules.dropout._DropoutNd: "p", nn.MultiheadAttention: "dropout", nn.RNNBase: "dropout"}
        random = isinstance(module, nn.RReLU) or any(
            isinstance(module, kind) and getattr(module, key) > 0 for kind, key in rate.items()
        )
        if coupled or (random and module.training):
            raise ValueError(
                f"{type(module).__name__} {name!r} is in training mode, so an output depends on the other samples or on chance; "
                f"{EVAL if coupled else 'call net.eval() first'}"
            )


# --- what it computes -------------------------------------------------------------------------------------------------


def refuse_batch(opened: OpenedLayer, *, derivative: bool = True) -> None:
    """Raise ValueError where a number isn't finite, or a sample's output depends on another sample's pre-activation.

    derivative: whether that is asked too, for which the output is pulled back.
    """
    layer = f"of layer {opened.name!r}"
    for what, tensor in (("weight", opened.weight), ("input", opened.below), ("output", opened.preactivation)):
        refuse_nonfinite(f"the {what} {layer}", tensor)
    refuse_nonfinite("the output of net", opened.output)
    if derivative:
        cotangent, pulled = opened._transpose
        refuse_nonfinite(f"the derivative of net in the output {layer}", pulled)
        if bool(((pulled.flatten(1) != 0).any(1) & (cotangent == 0).all(1)).any()):
            raise ValueError(f"an output of net depends on the layer's output for other samples; {BY_BATCH}")


def refuse_nonfinite(what: str, tensor: Tensor) -> None:
    """Raise ValueError for a NaN or an infinity, and where there are no numbers at all."""
    if not tensor.numel():
        raise ValueError(f"{what} must hold numbers, got the shape {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        return
    low, high = tensor.detach().aminmax()  # NaN if any number is
    if bool(~(low.isfinite() & high.isfinite())):
        raise ValueError(f"{what} must be finite numbers, got NaN or an infinity")


def one_sided(output: Tensor) -> Tensor:
    """A cotangent ``(B, n_L)`` that is zero for about half of the samples, in no regular order, and for no other."""
    rows = torch.arange(len(output), device=output.device) * 0.6180339887 % 1 < 0.5
    return rows[:, None] * _generic(output)


def _generic(like: Tensor) -> Tensor:
    """Numbers in that shape without a pattern: what two different linear maps would agree on by chance only."""
    phases = torch.arange(1, like.numel() + 1, dtype=like.dtype, device=like.device).square()
    return (0.7 * phases).cos().reshape(like.shape)


def handful(x: Tensor) -> Tensor:
    """At most four rows, the last first; fewer than there are, but for a single one."""
    return x[:: max(2, -(-len(x) // 4))].flip(0)


def refuse_part(part: OpenedLayer, call: Call, held: Held, expected: Tensor) -> None:
    r"""Raise ValueError where a handful of samples, opened by themselves, show what the whole batch hides.

    expected: their outputs among the whole batch.
    """
    eps = torch.finfo(part.output.dtype).eps
    # The size of a batch changes the order of sums, by some eps each, and layers amplify it: half of the digits are far above
    # that, and far below what the batch's own statistics change
    if bool((part.output - expected).abs().max() > math.sqrt(eps) * expected.abs().max()):
        raise ValueError(f"an output of net changes with the other samples of its batch; {BY_BATCH}")
    with sentences(no_derivative(held.name)):
        _refuse_other_map(part, call, eps)
        leaves = [call.weight, *(tensor for tensor in held.tensors.values() if tensor.requires_grad)]
        used = torch.autograd.grad(part._graph, leaves, _generic(part.output), retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in used):
            raise ValueError(f"the weight of layer {held.name!r} must be used there alone, it's used further up too")
        cotangent, direction = _generic(part.output), _generic(part.weight)
        image, pulled = part.jvp(direction).double(), part.vjp(cotangent).double()  # float32 has no squares of 1e-30
        gap = (image * cotangent).sum() - (pulled * direction).sum()
    if bool(gap.abs() > math.sqrt(eps) * image.norm() * cotangent.double().norm()):
        raise ValueError(f"the derivatives of net above layer {held.name!r} aren't linear (do hooks change gradients?)")


def _refuse_other_map(part: OpenedLayer, call: Call, eps: float) -> None:
    """The derivative of the layer's output in its weight must be that of a plain layer of its kind, on the same input."""
    rounding = 8 * eps * math.sqrt(call.out.numel() / len(part.weight))  # of sums of as many terms, in any order
    cotangent = _generic(call.out)
    (real,) = torch.autograd.grad(call.out, call.weight, cotangent, allow_unused=True)
    (plain,) = torch.autograd.grad(part._lifted, part._leaf, cotangent, retain_graph=True)
    if real is None or bool((real - plain).abs().max() > rounding * plain.abs().max()):
        raise ValueError(other_map(part.name, part.module))


def no_derivative(name: str) -> str:
    """The beginning of the sentence for a network that torch can't differentiate, or not twice."""
    return f"net can't be differentiated twice above layer {name!r}"


def other_map(name: str, module: nn.Module) -> str:
    """The sentence for a layer that isn't one."""
    kind = next(k for k in type(module).__mro__ if k.__module__.startswith("torch.nn.modules"))
    return (
        f"layer {name!r} must hand on its weight applied to its input, as {kind.__name__} does: its output's derivative in the "
        "weight is another one (a forward of its own, or a hook)"
    )
