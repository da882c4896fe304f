"""What holds around a call and is none of its arguments: torch's settings, the generators that all share, the caller's networks.

A function gives the same numbers whatever is set around it (:func:`anywhere`).  What is the caller's is as before, also where it
raises, where a callback changes it, and where threads call at once: work is done on a copy (:func:`copied`), or what was found
is put back (:func:`put_back`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import threading
from collections.abc import Callable, Iterator
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

# --- settings of the whole process -----------------------------------------------------------------------------------


class _Shared:
    """A setting of the whole process.  Threads may leave its blocks in any order: the last puts back what the first found."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self._read, self._write, self._lock = read, write, threading.Lock()
        self._found: list[list[Any]] = []

    @property
    def is_set(self) -> bool:
        """Whether a thread is inside."""
        return bool(self._found)

    @contextlib.contextmanager
    def __call__(self, value: Any) -> Iterator[None]:
        with self._lock:
            mine = [self._read()]
            self._found.append(mine)
            self._write(value)
        try:
            yield
        finally:
            with self._lock:
                place = next(number for number, one in enumerate(self._found) if one is mine)
                del self._found[place]
                if place == len(self._found):
                    self._write(mine[0])
                else:  # who came later found what is set here
                    self._found[place][0] = mine[0]


def _states() -> tuple[Any, ...]:
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), gpus, np.random.get_state(), random.getstate()  # noqa: NPY002 -- others' code draws from it


def _begin(at: int | tuple[Any, ...] | None) -> None:
    if isinstance(at, tuple):
        torch.set_rng_state(at[0])
        for number, state in enumerate(at[1]):
            torch.cuda.set_rng_state(state, number)
        np.random.set_state(at[2])  # noqa: NPY002
        random.setstate(at[3])
    elif at is not None:
        torch.manual_seed(at)
        np.random.seed(at % 2**32)  # noqa: NPY002
        random.seed(at)


_PLACES: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
_PLACES = [place for place in _PLACES if hasattr(place, "fp32_precision")]  # since PyTorch 2.9
_FULL = ("highest", ["ieee"] * len(_PLACES))


def _legacy() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer names, and not alike
        return ""


def _precision() -> tuple[str, list[str]]:
    return _legacy(), [place.fp32_precision for place in _PLACES]


def _set_precision(found: tuple[str, list[str]]) -> None:
    if found[0]:
        torch.set_float32_matmul_precision(found[0])
    for place, held in zip(_PLACES, found[1], strict=True):
        place.fp32_precision = held


seeded = _Shared(_states, _begin)
"""The common generators of PyTorch, NumPy and Python begin at a seed, or with None where they are, and are put back."""
_ANOMALY = _Shared(
    lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    lambda found: torch.autograd.set_detect_anomaly(*found),
)
_DTYPE, _PRODUCTS = _Shared(torch.get_default_dtype, torch.set_default_dtype), _Shared(_precision, _set_precision)
in_float32 = functools.partial(_DTYPE, torch.float32)
"""New tensors are float32, whatever the caller's default is, which is put back: weights are a function of the settings."""
_TF32 = _Shared(lambda: torch.backends.cudnn.allow_tf32, functools.partial(setattr, torch.backends.cudnn, "allow_tf32"))
exact_convolutions = functools.partial(_TF32, False)
"""On a GPU, too: convolutions of three digits would be no eigenproblem."""


# --- settings of a thread, and all together ----------------------------------------------------------------------------


def plainly(gradients: bool = False) -> contextlib.ExitStack:
    """As if nothing were set: no autocast, whole float32 products, new tensors on the processor, and ``gradients`` if wanted."""
    with contextlib.ExitStack() as stack:
        _clear(stack, gradients)
        return stack.pop_all()


def _clear(stack: contextlib.ExitStack, gradients: bool) -> None:
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
    if gradients and not torch.is_grad_enabled():
        stack.enter_context(torch.enable_grad())
    if gradients and torch.is_anomaly_check_nan_enabled():  # which can't look where several are pulled at once
        stack.enter_context(_ANOMALY((torch.is_anomaly_enabled(), False)))
    for kind in ("cpu", "cuda", "mps", "xpu"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    if torch._C._len_torch_function_stack() and torch.empty(0).device.type != "cpu":
        stack.enter_context(torch.device("cpu"))
    if _legacy() != "highest" or _PRODUCTS.is_set:  # another thread may put it back while this one is inside
        stack.enter_context(_PRODUCTS(_FULL))


def beside(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """For code of the caller's inside of :func:`plainly`: new tensors come to lie beside ``x``, where another default is set."""
    return torch.device(x.device) if torch._C._len_torch_function_stack() else contextlib.nullcontext()


def anywhere(function: Callable[P, R], gradients: bool = False) -> Callable[P, R]:
    """The function :func:`plainly`; raises ValueError where it reads numbers inside of ``torch.func.vmap``, which has none."""

    @functools.wraps(function)
    def whole(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # which knows autocast, and no more
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                return function(*args, **kwargs)
        try:
            with plainly(gradients):
                return function(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            within = torch._C._functorch.peek_interpreter_stack()
            of_vmap = within is not None and within.key() == torch._C._functorch.TransformType.Vmap
            if not of_vmap or (isinstance(error, ValueError) and "vmap" not in str(error)):
                raise
            name, why = function.__qualname__, str(error).partition("\n")[0]
            raise ValueError(f"{name} can't be called inside of torch.func.vmap, but in a loop: {why}") from error

    return whole


def with_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """:func:`anywhere`, and gradients are recorded, wherever it is called."""
    return anywhere(function, gradients=True)


def methods_anywhere(kind: type[C]) -> type[C]:
    """A class whose methods are :func:`with_gradients`."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(kind, name, with_gradients(member))
    return kind


# --- networks --------------------------------------------------------------------------------------------------------


class _Copies(TorchFunctionMode):
    """Outputs that a network keeps are copied without their graph; PyTorch refuses to copy them with it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[1].setdefault(id(args[0]), args[0].detach().clone())
        return func(*args, **(kwargs or {}))


def copied(net: M) -> M:
    """A copy of a network, which shares what can't be copied and is no container, such as a lock; else raises ValueError."""
    own, whole = vars(nn.Module()), (nn.Module, Tensor, dict, list, tuple, set)
    with _Copies():
        with contextlib.suppress(Exception):  # whatever its parts may raise
            return copy.deepcopy(net)
        shared = {}
        for name, held in chain.from_iterable(vars(part).items() for part in net.modules()):
            try:
                copy.deepcopy(None if name in own or isinstance(held, whole) else held)
            except Exception:
                shared[id(held)] = held
        try:
            return copy.deepcopy(net, shared)
        except Exception as error:
            raise ValueError(
                f"net must be one that copy.deepcopy can copy, and {type(net).__name__} isn't: {error}"
            ) from error


_TENSORS = ("_parameters", "_buffers", "_modules")
_HOOKS = [name for name, held in vars(nn.Module()).items() if isinstance(held, dict) and name not in _TENSORS]


@contextlib.contextmanager
def put_back(net: nn.Module, *, numbers: bool = True) -> Iterator[None]:
    """Modes, hooks, gradients and what wants them are put back, with ``numbers`` all tensors too; and around them the generators,
    whether gradients are recorded, the default type and the precision of products.
    """
    names = (*_HOOKS, *_TENSORS) if numbers else _HOOKS
    own = [
        part for part in net.modules() if not isinstance(part, torch.jit.ScriptModule)
    ]  # its dictionaries can't be refilled
    parts = [(part, part.training, {name: dict(vars(part)[name]) for name in names}) for part in own]
    weights = [(weight, weight.requires_grad, weight.grad, _clone(weight.grad)) for weight in net.parameters()]
    tensors = [(held, held.data, held.data.clone()) for held in chain(net.parameters(), net.buffers()) if numbers]
    try:
        with (
            seeded(None),
            torch.set_grad_enabled(torch.is_grad_enabled()),
            _DTYPE(torch.get_default_dtype()),
            _PRODUCTS(_precision()),
        ):
            yield
    finally:
        for part, mode, held_names in parts:
            part.training = mode
            for name, found in held_names.items():
                vars(part)[name].clear()
                vars(part)[name].update(found)
        for held, place, values in tensors:
            held.data = place.copy_(values)
        for weight, wanted, gradient, before in weights:
            if weight.requires_grad != wanted:
                weight.requires_grad_(wanted)
            if gradient is not None and before is not None:
                gradient.data.copy_(before)
            weight.grad = gradient


def _clone(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().clone()
