"""A network with the weights that it had: held still, run without a trace, differentiable twice in what lies above a layer.

Definition 1 of [tian2020] takes a network to be a function of one sample, with fixed weights.  What a look at the modules tells of
those that aren't is refused here; what only the numbers tell, in :mod:`sslbook.operator.layer`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import batch_norm
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from sslbook._ambient import beside, copied, plainly

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
DTYPES = (torch.float32, torch.float64)
HALF = (torch.float16, torch.bfloat16)
"""Precisions in which a network is given and not opened: their products leave an eigenvector a residual of a few hundredths."""
EVAL = "call net.eval(): the operator is then that of the network with its running statistics held"
CANT_TAKE = "net can't take x"
OTHERS = (Exception,)
"""What a caller's own function may raise."""


@dataclass(frozen=True)
class Call:
    """How the layer was called: its input, its weight, its output after hooks, all with their graphs."""

    below: Tensor
    weight: Tensor
    out: Tensor


@dataclass(frozen=True, eq=False)
class FrozenNetwork:
    """A copy of a network as it was: passes of it leave its buffers and the global random state as they are.

    name, module: the layer.  tensors: all parameters and buffers, those of half precision in float32; what the layer's weight is
    made of wants gradients.  given: the precision of the layer's weight as it was.
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
        with _ONE_AT_A_TIME:
            handle = self.module.register_forward_hook(hook, with_kwargs=True)
            try:
                with _held_still(x), sentences(f"{CANT_TAKE} of shape {tuple(x.shape)} and {x.dtype}", OTHERS):
                    return functional_call(self.net, {**self.tensors, **statistics}, (x,))
            finally:
                handle.remove()


def freeze(net: nn.Module, name: str, module: Layer) -> FrozenNetwork:
    """A copy of the network, for one layer; raises TypeError or ValueError for a network that can't be opened."""
    _refuse_compiled(net)
    _refuse_coupling(net)
    if (other := shares_with(net, module)) is not None:
        raise ValueError(f"layer {name!r} must have a weight of its own, it shares it with {other!r}")
    net = copied(net)
    module = dict(net.named_modules())[name]
    own = {id(p) for key, p in module.named_parameters() if "bias" not in key} | {id(module.weight)}
    tensors = {}
    for key, tensor in [*net.named_parameters(), *net.named_buffers()]:
        held = in_full(tensor.detach())
        tensors[key] = held.requires_grad_() if id(tensor) in own and held.is_floating_point() else held
    return FrozenNetwork(net, name, module, tensors, module.weight.dtype)


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


_ONE_AT_A_TIME = threading.RLock()
"""What a pass sets below holds for all threads."""


@contextlib.contextmanager
def _held_still(x: Tensor) -> Iterator[None]:
    """A pass that can be differentiated twice, whatever holds around it; raises ValueError if it draws random numbers."""
    device = x.device
    recomputing = (
        "it computes activations again when they are needed (checkpointing), with other weights: switch that off"
    )
    with (
        plainly(gradients=True),
        beside(x),
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


def _refuse_compiled(net: nn.Module) -> None:
    """What torch would refuse with words about something else; it says by itself what is wrong with other wrappers."""
    for name, module in net.named_modules():
        compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        if compiled or isinstance(module, torch.jit.ScriptModule):
            kind = f"{type(module).__name__}{name and f' as {name!r}'}"
            raise TypeError(
                f"net must be of plain modules, got a compiled or scripted {kind}: give what it was made of"
            )


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


def refuse_nonfinite(what: str, tensor: Tensor) -> None:
    """Raise ValueError for a NaN or an infinity, and where there are no numbers at all."""
    if not tensor.numel():
        raise ValueError(f"{what} must hold numbers, got the shape {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        return
    low, high = tensor.detach().aminmax()  # NaN if any number is
    if bool(~(low.isfinite() & high.isfinite())):
        raise ValueError(f"{what} must be finite numbers, got NaN or an infinity")


# --- convolutions, and BatchNorm, differentiated twice in their input, and not in their weight ---------------------------


class _Conv(torch.autograd.Function):
    """A convolution whose pull-back to the input is written as a transposed convolution.

    PyTorch's double backward of a convolution also forms the weight's gradient, wanted or not: two thirds of the time of a JVP.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        stride, padding, dilation, groups = geometry
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
    """BatchNorm by its running statistics, or its pull-back, which is a product: PyTorch's own values to the last bit, so that a
    ReLU above has its gates, and in float32 the step of a low layer shows how each rounds."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor, statistics: tuple[Any, ...], pull: bool) -> Tensor:
        mean, variance, weight, bias, eps = statistics
        if not pull:
            return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, torch.backends.cudnn.enabled)
        unread, none = x.new_zeros(1).expand_as(x), x.new_empty(0)  # CUDA asks for tensors where nothing is read, too
        rest = (weight, mean, variance, none, none, False, eps, (True, False, False))
        found: Tensor = torch.ops.aten.native_batch_norm_backward(x, unread, *rest)[0]
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.statistics, ctx.pull = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = ctx.saved_tensors
        down = grad * scale if ctx.pull else _Norm.apply(grad, scale, ctx.statistics, True)
        return down, None, None, None


class PlainConvolutions(TorchFunctionMode):
    """Sends a pass's convolutions through :class:`_Conv`, and BatchNorm by its running statistics through :class:`_Norm`.

    Both keep no input for the backward pass.  What has weights that want gradients (the opened layer's, or computed from its
    output) is left as it is.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = {batch_norm: _normalize}.get(func, _convolve if func in _CONVOLUTIONS else None)
        out = None if plain is None else plain(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if out is None else out


_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def _varies(*weights: Tensor | None) -> bool:
    return any(weight is not None and weight.requires_grad for weight in weights)


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
    if isinstance(padding, str) or input.ndim != axes + 2 or _varies(weight, bias):
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
    if _varies(running_mean, running_var, weight, bias):
        return None
    scale = (running_var + eps).rsqrt() * (1 if weight is None else weight)
    channels = (1, -1, *(1,) * (input.ndim - 2))
    out: Tensor = _Norm.apply(input, scale.view(channels), (running_mean, running_var, weight, bias, eps), False)
    return out
