"""A GPU that isn't there: tensors that say ``cuda`` and have shapes, types and gradients, and no numbers.

They are tensors of PyTorch's device ``meta``, under the name of another.  (``FakeTensorMode`` has tensors that are ``cuda`` in
earnest, but a build of PyTorch without CUDA can't differentiate them.)  What is the host's is really computed.  What raises:

- :class:`Mixed`: an operation on tensors of both, but for copies and numbers of no dimension.
- :class:`Read`: what only the device knows is asked for, anywhere but in functions of ours that may read, or below them.

Copies from the host for which a processor would wait are counted.  Not pretended: graphs, autocast, memory, what it computes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # optimisers load it, and it looks at torch.cuda's streams when it is loaded
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

GPU, META = torch.device("cuda", 0), torch.device("meta")
aten = torch.ops.aten
DEVICE, IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__  # type: ignore[attr-defined]
ASKING = {aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten._linalg_check_errors}
CHECKED = {aten._linalg_eigh, aten._linalg_svd, aten.linalg_lstsq}
"""On a device their errors are read back within the operation."""
SHAPED = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount}
FUSED = {getattr(aten, f"_fused_{name}_", None) for name in ("adam", "adamw", "sgd", "adagrad")}
"""Optimisers' kernels, which ``meta`` lacks and which give nothing back."""
SHAPES: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm: lambda x, *_: (torch.empty_like(x), *torch.empty(2, x.shape[1], device=META)),
    aten.native_batch_norm_backward: lambda grad, x, weight, *_: (
        torch.empty_like(x),
        *([None if weight is None else torch.empty_like(weight)] * 2),
    ),
}
"""``meta`` takes these apart in Python, which would be half of a step's time."""


class Mixed(RuntimeError):
    """Tensors of the host and of the device in one operation."""


class Read(RuntimeError):
    """Something that only the device knows."""


def _ours() -> str:
    """The functions of this library on the stack, ``module.function``, innermost first."""
    frame, found = sys._getframe(), []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] == "sslbook":
            found.append(f"{module.removeprefix('sslbook.')}.{frame.f_code.co_qualname}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found) or "no function of ours"


class FakeGpu(TorchDispatchMode):
    """Every operation, whoever asks for it: refuses what a device would, and leaves the rest to ``meta`` or the processor.

    may_read: functions, ``training.runs.state.check``, each with the number that it finds.
    reads, waits: where values were read back there, and where the processor waited for a copy to the device.
    """

    def __init__(self, may_read: Mapping[str, float]) -> None:
        super().__init__()
        self.may_read = may_read
        self.reads: list[str] = []
        self.waits: list[str] = []
        self.held: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # here a device has its own name
            return self._judged(func, args, kwargs or {})

    def _judged(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there, here = [t for t in tensors if t.is_meta], [t for t in tensors if not t.is_meta]
        name = func.overloadpacket
        if name in (aten._to_copy, aten.copy_):
            return self._copied(func, args, kwargs)
        if not there:
            return func(*args, **kwargs)
        if any(t.ndim for t in here):
            raise Mixed(f"{name} in {_ours()}: {[tuple(t.shape) for t in here]} on the host, the others on the device")
        if name in SHAPED or _masked(name, args):
            raise Read(f"{name} in {_ours()}: a shape is not pretended")
        if name in ASKING | CHECKED:
            value = self.wait(str(name))
            if name is aten._local_scalar_dense:
                return torch.full((), value, dtype=there[0].dtype).item()
            if name in ASKING:
                return name is aten.equal or None
        if name in FUSED:
            return None
        if name in SHAPES:
            return SHAPES[name](*args)
        # A number of the host: what it is matters to no shape.
        args, kwargs = _pytree.tree_map_only(Tensor, lambda t: t if t.is_meta else t.to(META), (args, kwargs))
        return func(*args, **kwargs)

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        into = func.overloadpacket is aten.copy_
        source, place = (args[1], args[0].device) if into else (args[0], kwargs.get("device"))
        target = (place or source.device).type
        if target == "cpu" and source.is_meta:
            self.wait("a copy to the host")
            return args[0].zero_() if into else torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        eager = not (args[2:] and args[2]) and not kwargs.get("non_blocking")
        arrives = target == "meta" and not source.is_meta and source.ndim
        if arrives and (eager or not any(source is held for held in self.held)):
            self.waits.append(_ours())
        return func(*args, **kwargs)

    def wait(self, what: str = "synchronize", *_: object) -> float:
        """The processor asks and waits, and finds this; raises :class:`Read` where it may not."""
        where = _ours()
        asking = [name for name in where.split(" < ") if name in self.may_read]
        if not asking:
            raise Read(f"{what} in {where}")
        self.reads.append(asking[0])
        return self.may_read[asking[0]]

    def pinned(self, tensor: Tensor) -> Tensor:
        """Its copy in memory that a device reads by itself."""
        self.held = [*self.held[-8:], tensor.clone()]
        return self.held[-1]


def _masked(name: Any, args: Any) -> bool:
    """Whether an index is a mask, of which a device counts the entries; not where a number is put there."""
    if name not in (aten.index, aten.index_put, aten.index_put_) or (args[2:] and args[2].numel() == 1):
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


class _Names(TorchFunctionMode):
    """``cuda`` where a program names a device, and where it asks for one."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == DEVICE:
            return GPU if args[0].is_meta else args[0].device
        if func == IS_CUDA:
            return args[0].is_meta
        if func is torch.device:
            return func(*args, **kwargs)
        if func is Tensor.pin_memory:
            return self.gpu.pinned(args[0])
        if "device" in kwargs:
            kwargs["device"] = _translated(kwargs["device"])
        args = tuple(_translated(a) if isinstance(a, torch.device) or func is Tensor.to else a for a in args)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == META:
            kwargs.pop("device")
            made = func(*args, **kwargs)
            return made if made.is_meta else made.to(META)
        return func(*args, **kwargs)


def _translated(device: Any) -> Any:
    return META if isinstance(device, (str, torch.device)) and str(device).startswith("cuda") else device


@contextlib.contextmanager
def fake_gpu(may_read: Mapping[str, float] | None = None) -> Iterator[FakeGpu]:
    """One GPU, as long as this lasts; ``may_read`` as in :class:`FakeGpu`."""
    gpu, cudnn, autocast = FakeGpu(may_read or {}), torch.backends.cudnn.benchmark, torch.autocast

    def plain(kind: str, *args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext() if kind == "cuda" else autocast(kind, *args, **kwargs)

    pretended: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "a GPU that isn't there",
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda device=None: gpu.wait(),
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
    }
    try:
        with (
            mock.patch.multiple(torch.cuda, **pretended),
            mock.patch.object(torch, "autocast", plain),
            gpu,
            _Names(gpu),
        ):
            yield gpu
    finally:
        torch.backends.cudnn.benchmark = cudnn
