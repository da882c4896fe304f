"""Two promises of every public function, and how they are kept.

1. Settings around a call don't change its results: autocast, ``no_grad`` or inference mode, the default dtype and device, the
   precision of float32 products.  A function under :func:`anywhere` runs with torch's defaults, whatever the caller has set.
2. What is the caller's is as before, also where the function raises, where a callback changes it, and where several threads call
   at once: networks, their modes, hooks and gradients, and the random generators that a process shares.  Work is done on a copy
   (:func:`copied`), or the state is saved and restored (:func:`put_back`, :data:`seeded`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
M = TypeVar("M", bound=nn.Module)


@dataclass(eq=False)
class _ProcessSetting:
    """A context manager for a setting that all threads share: ``setting(value)`` writes it, and restores it at the end.

    Threads may leave their blocks in any order: the last one restores what the first one found.
    saved: for each block that is open, the value to restore after it.
    """

    read: Callable[[], Any]
    write: Callable[[Any], object]
    saved: list[list[Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def __call__(self, value: Any) -> Iterator[None]:
        with self.lock:
            self.saved.append(mine := [self.read()])
            self.write(value)
        try:
            yield
        finally:
            with self.lock:
                place = next(number for number, one in enumerate(self.saved) if one is mine)
                del self.saved[place]
                if place == len(self.saved):
                    self.write(mine[0])
                else:  # the next block was opened inside of this one, and found what this one had written
                    self.saved[place][0] = mine[0]


def _generator_states() -> tuple[Any, ...]:
    """Where the generators stand that a process shares: PyTorch's on the processor and on each GPU in use, NumPy's, Python's."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), gpus, np.random.get_state(), random.getstate()  # noqa: NPY002 -- others' code draws from it


def _set_generators(to: int | tuple[Any, ...] | None) -> None:
    """To a seed, of which NumPy's takes 32 bits, or to what :func:`_generator_states` said; with None they go on where they are."""
    if isinstance(to, tuple):
        torch.set_rng_state(to[0])
        for number, state in enumerate(to[1]):
            torch.cuda.set_rng_state(state, number)
        np.random.set_state(to[2])  # noqa: NPY002
        random.setstate(to[3])
    elif to is not None:
        torch.manual_seed(to)
        np.random.seed(to % 2**32)  # noqa: NPY002
        random.seed(to)


_BACKENDS: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
_BACKENDS = [backend for backend in _BACKENDS if hasattr(backend, "fp32_precision")]  # since PyTorch 2.9


def _matmul_precision() -> tuple[str, list[str]]:
    """How float32 matrices are multiplied, by PyTorch's older setting for all and its newer ones for each library.

    The older one is "" where the newer ones are set, and not alike.
    """
    older = ""
    with contextlib.suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    return older, [backend.fp32_precision for backend in _BACKENDS]


def _set_matmul_precision(precision: tuple[str, list[str]]) -> None:
    if precision[0]:
        torch.set_float32_matmul_precision(precision[0])
    for backend, value in zip(_BACKENDS, precision[1], strict=True):
        backend.fp32_precision = value


seeded = _ProcessSetting(_generator_states, _set_generators)
"""``with seeded(seed):`` PyTorch's, NumPy's and Python's global generators begin there (None: where they are), and are restored."""
_default_dtype = _ProcessSetting(torch.get_default_dtype, torch.set_default_dtype)
_products = _ProcessSetting(_matmul_precision, _set_matmul_precision)
_cudnn = torch.backends.cudnn
_tf32 = _ProcessSetting(lambda: _cudnn.allow_tf32, lambda value: setattr(_cudnn, "allow_tf32", value))
in_float32 = functools.partial(_default_dtype, torch.float32)
"""New tensors are float32, whatever the caller's default is: weights are a function of the settings."""
exact_convolutions = functools.partial(_tf32, False)
"""Convolutions in whole float32, on a GPU too: with TF32's three digits there is no eigenproblem."""


def default_settings(gradients: bool = False) -> contextlib.ExitStack:
    """A context in which torch's defaults hold: no autocast, whole float32 products, new tensors on the processor.

    gradients: whether gradients are recorded, also inside of the caller's ``no_grad`` or inference mode.
    Only what differs from the defaults is set, since a context manager costs a few microseconds.
    """
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if gradients and not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if gradients and torch.is_anomaly_check_nan_enabled():  # it can't look at numbers inside of vmap
            stack.enter_context(torch.autograd.set_detect_anomaly(torch.is_anomaly_enabled(), check_nan=False))
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch._C._len_torch_function_stack() and torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        # Also where another thread is inside of such a block, and may restore it while this one is.
        if _matmul_precision()[0] != "highest" or _products.saved:
            stack.enter_context(_products(("highest", ["ieee"] * len(_BACKENDS))))
        return stack.pop_all()


def default_device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """For the caller's code inside of :func:`default_settings`: new tensors are on the device of ``x``, where one was set.

    A network that makes a tensor as it goes needs it beside its weights; without a default device nothing is changed.
    """
    return torch.device(x.device) if torch._C._len_torch_function_stack() else contextlib.nullcontext()


def anywhere(function: Callable[P, R], gradients: bool = False) -> Callable[P, R]:
    """The function, with :func:`default_settings` whatever is set around a call.

    The compiler knows autocast and no other context, so there this alone is turned off.
    """

    @functools.wraps(function)
    def with_default_settings(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                return function(*args, **kwargs)
        with default_settings(gradients):
            return function(*args, **kwargs)

    return with_default_settings


def with_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """:func:`anywhere`, and gradients are recorded, also inside of the caller's ``no_grad``: what differentiates needs them."""
    return anywhere(function, gradients=True)


def methods_anywhere(kind: type[C]) -> type[C]:
    """The class, whose public methods are :func:`with_gradients`; properties and what begins with ``_`` stay as they are."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(kind, name, with_gradients(member))
    return kind


class _CopyOutputs(TorchFunctionMode):
    """Outputs that a network keeps are copied without their graph; PyTorch refuses to copy them with it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[1].setdefault(id(args[0]), args[0].detach().clone())
        return func(*args, **(kwargs or {}))


def warn(text: str) -> None:
    """A UserWarning at the line that called the library: at the first frame that is neither its own nor a decorator's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in ("sslbook", "torch", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def copied(net: M) -> M:
    """A deep copy of a network, of which modes, hooks, weights and buffers can be changed without touching the caller's."""
    with _CopyOutputs():
        return copy.deepcopy(net)


@contextlib.contextmanager
def put_back(net: nn.Module, *, numbers: bool = True) -> Iterator[None]:
    """Whatever the block does, restore the network's modes, hooks and gradients, and which weights want them.

    numbers: also all parameters and buffers.  Around them: the generators, whether gradients are recorded, the default dtype and
    the precision of products, all of which a callback may change.
    """
    registries = {name for name, held in vars(nn.Module()).items() if isinstance(held, dict)}  # hooks, and the three
    registries -= set() if numbers else {"_parameters", "_buffers", "_modules"}
    modules = [part for part in net.modules() if not isinstance(part, torch.jit.ScriptModule)]  # whose dicts are C++'s
    parts = [(part, part.training, {name: dict(vars(part)[name]) for name in registries}) for part in modules]
    weights = [
        (held, held.requires_grad, held.grad, None if held.grad is None else held.grad.detach().clone())
        for held in net.parameters()
    ]
    tensors = [(held, held.data, held.data.clone()) for held in chain(net.parameters(), net.buffers()) if numbers]
    recorded, dtype = torch.set_grad_enabled(torch.is_grad_enabled()), _default_dtype(torch.get_default_dtype())
    try:
        with seeded(None), recorded, dtype, _products(_matmul_precision()):
            yield
    finally:
        for part, mode, saved in parts:
            part.training = mode
            for name, found in saved.items():
                vars(part)[name].clear()
                vars(part)[name].update(found)
        for held, place, values in tensors:
            held.data = place.copy_(values)
        for weight, wanted, gradient, slope in weights:
            if weight.requires_grad != wanted:
                weight.requires_grad_(wanted)
            if gradient is not None and slope is not None:
                gradient.data.copy_(slope)
            weight.grad = gradient


WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    **dict.fromkeys(("DataParallel", "DistributedDataParallel", "AveragedModel"), "module"),
}
"""Modules that stand around a network, for ``torch.compile``, several devices or averaged weights: what each calls it inside."""


def unwrapped(net: Any) -> Any:
    """Return a network without the wrappers around it, however many there are.

    >>> unwrapped(torch.nn.DataParallel(torch.nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    while hasattr(net, inner := WRAPPERS.get(type(net).__name__, "")):
        net = getattr(net, inner)
    return net


def unwrapped_name(name: str) -> str:
    """Return the name of a part of a network without what wrappers have put into it.

    >>> unwrapped_name("module.layer1.weight")
    'layer1.weight'
    """
    return ".".join(word for word in name.split(".") if word not in WRAPPERS.values())
