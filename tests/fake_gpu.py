"""A GPU that isn't there: tensors that say ``cuda`` and have shapes, types and gradients, and no numbers.

They are tensors of PyTorch's device ``meta``, under the name of another.  (``FakeTensorMode`` has tensors that are ``cuda`` in
earnest, but a build of PyTorch without CUDA, such as the CPU build of 2.13, can't differentiate them.)

What is the host's is really computed; what is the device's costs nothing, whatever its size.  What raises:

- :class:`Mixed`: an operation on tensors of both, but for copies and numbers of no dimension.  An index on the host counts too:
  PyTorch allows it, and copies and waits.
- :class:`Read`: the value or the shape of something is asked for that only the device knows; anywhere but in the functions
  that ``may_read`` names, which find zeros (or the number that they are told to find).
- :class:`Captured`: within a graph's capture, a copy from the host, or waiting.
- whatever else of ``torch.cuda`` is asked for, and a generator on the device, as in a build without CUDA.

Copies from the host for which a processor would wait are counted in ``waits``, by the function of ours that makes them.
Pretended: one device, bfloat16, streams and graphs (one thing after the other), autocast for products and convolutions.
Not seen: speed, memory, kernels that a real device lacks, what it computes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # optimisers load it, and it looks at torch.cuda's streams when it is loaded
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

GPU, META = torch.device("cuda", 0), torch.device("meta")
aten = torch.ops.aten
DEVICE, IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__  # type: ignore[attr-defined]


class Mixed(RuntimeError):
    """Tensors of the host and of the device in one operation."""


class Read(RuntimeError):
    """Something that only the device knows."""


class Captured(RuntimeError):
    """What a graph can't hold."""


COPIES = {aten._to_copy, aten.copy_}
ASKING = {aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten._linalg_check_errors}
CHECKED = {aten._linalg_eigh, aten._linalg_svd, aten.linalg_lstsq}
"""On a device their errors are read back within the operation."""
SHAPED = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount}
FUSED = {
    getattr(aten, name)
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
    if hasattr(aten, name)
}
"""Optimisers' kernels, which ``meta`` lacks and which give nothing back."""
LOWERED = {
    F.linear, F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d, torch.convolution,
    torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm,
    torch.addmm, torch.baddbmm, torch.addbmm, torch.einsum,
}  # fmt: skip
"""What autocast computes in half precision; of its list what this library uses, and the like."""


def _counts(name: Any, args: Any) -> bool:
    """Whether an index is a mask, of which a device counts the entries; not where a number is put there."""
    if name not in (aten.index, aten.index_put, aten.index_put_):
        return False
    masked = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return masked and not (args[2:] and args[2].numel() == 1)


def _batch_norm(x: Tensor, weight: Tensor | None, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    statistics = torch.empty(2, x.shape[1], device=META)
    return torch.empty_like(x), statistics[0], statistics[1]


def _batch_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, *rest: object) -> tuple[Tensor | None, ...]:
    slope = None if weight is None else torch.empty_like(weight)
    return torch.empty_like(x), slope, slope


BATCH_NORM: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm: _batch_norm,
    aten.native_batch_norm_backward: _batch_norm_backward,
}
"""Shapes alone: ``meta`` takes these apart in Python, which would be half of a step's time."""


class _Operations(TorchDispatchMode):
    """Every operation, whoever asks for it: refuses what a device would, and leaves the rest to ``meta`` or the processor."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # here a device has its own name
            return self._judged(func, args, kwargs or {})

    def _judged(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there, here = [t for t in tensors if t.is_meta], [t for t in tensors if not t.is_meta]
        name, gpu = func.overloadpacket, self.gpu
        if name in COPIES:
            return self._copy(func, args, kwargs)
        if not there:
            return func(*args, **kwargs)
        if any(t.ndim for t in here):
            raise Mixed(f"{name} in {_ours()}: {[tuple(t.shape) for t in here]} on the host, the others on the device")
        if name in ASKING or name in SHAPED or name in CHECKED or _counts(name, args):
            value = gpu.wait(f"{name} in {_ours()}")
            if name is aten._local_scalar_dense:
                return torch.full((), value, dtype=there[0].dtype).item()
            if name not in ASKING and name not in CHECKED:
                raise Read(f"{name} in {_ours()}: a shape is not pretended")
            if name in ASKING:
                return name is aten.equal or None
        if name in FUSED:
            return None
        if name in BATCH_NORM:
            return BATCH_NORM[name](*args)
        if here:  # a number of the host: what it is matters to no shape
            args, kwargs = _pytree.tree_map_only(Tensor, lambda t: t if t.is_meta else t.to(META), (args, kwargs))
        return func(*args, **kwargs)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        source, place = (
            (args[1], args[0].device) if func.overloadpacket is aten.copy_ else (args[0], kwargs.get("device"))
        )
        target = (place or source.device).type
        if "meta" in (target, source.device.type) and target != source.device.type:
            eager = not (args[2:] and args[2]) and not kwargs.get("non_blocking")
            if target == "cpu":
                self.gpu.wait(f"a copy to the host in {_ours()}")
                return args[0].zero_() if args[0] is not source else _zeros(source, kwargs)
            self.gpu.arrive(source, eager)
        return func(*args, **kwargs)


def _zeros(like: Tensor, kwargs: Any) -> Tensor:
    return torch.zeros(like.shape, dtype=kwargs.get("dtype") or like.dtype)


class _Names(TorchFunctionMode):
    """``cuda`` where a program names a device, and where it asks for one; and autocast."""

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
        if func is Tensor.cuda:
            func, args = Tensor.to, (args[0], META, *args[1:])
        if "device" in kwargs:
            kwargs["device"] = _translated(kwargs["device"])
        args = tuple(_translated(a) if isinstance(a, torch.device) or func is Tensor.to else a for a in args)
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs.get("device") == META:
            kwargs.pop("device")
            made = func(*args, **kwargs)
            return made if made.is_meta else made.to(META)
        if func in LOWERED and self.gpu.precision is not None:
            low = self.gpu.precision
            lower = lambda t: t.to(low) if t.is_meta and t.dtype == torch.float32 else t  # noqa: E731
            args, kwargs = _pytree.tree_map_only(Tensor, lower, (args, kwargs))
        return func(*args, **kwargs)


def _translated(device: Any) -> Any:
    if (isinstance(device, str) and device.startswith("cuda")) or (
        isinstance(device, torch.device) and device.type == "cuda"
    ):
        if torch.device(device).index not in (None, 0):
            raise RuntimeError(f"there is one device, cuda:0, got {device}")
        return META
    return device


def _ours() -> str:
    """The innermost functions of this library on the stack, ``module.function``, innermost first."""
    frame, found = sys._getframe(), []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] == "sslbook":
            found.append(f"{module.removeprefix('sslbook.')}.{frame.f_code.co_qualname}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found) or "no function of ours"


class FakeGpu:
    """What one pretended device was asked.

    may_read: functions, ``training.trainer.Trainer._end_epoch``, in which, or below which, values may be read back.
    found: the single number that each of them finds, 0 for others.
    reads, waits: where values were read back there, and where the processor waited for a copy to the device.
    """

    def __init__(self, may_read: Iterable[str], found: Mapping[str, float]) -> None:
        self.may_read, self.found = frozenset(may_read), found
        self.reads: list[str] = []
        self.waits: list[str] = []
        self.precision: torch.dtype | None = None
        self.capturing = False
        self.replays = 0
        self._pinned: list[Tensor] = []

    def wait(self, what: str) -> float:
        """The processor asks and waits, and finds this; raises :class:`Read` where it may not."""
        if self.capturing:
            raise Captured(what)
        asking = [name for name in what.rpartition(" in ")[2].split(" < ") if name in self.may_read]
        if not asking:
            raise Read(what)
        self.reads.append(asking[0])
        return self.found.get(asking[0], 0)

    def arrive(self, source: Tensor, eager: bool) -> None:
        """A copy from the host."""
        if self.capturing:
            raise Captured(f"a copy to the device in {_ours()}")
        if source.ndim and (eager or not any(source is held for held in self._pinned)):
            self.waits.append(_ours())

    def pinned(self, tensor: Tensor) -> Tensor:
        """Its copy in memory that a device reads by itself; raises for what is on the device already."""
        if tensor.is_meta:
            raise RuntimeError("only dense CPU tensors can be pinned")
        self._pinned = [*self._pinned[-8:], tensor.clone()]
        return self._pinned[-1]

    def synchronize(self, device: object = None) -> None:
        """As ``torch.cuda.synchronize``."""
        self.wait(f"synchronize in {_ours()}")

    @contextlib.contextmanager
    def graph(self, graph: Graph, **options: object) -> Iterator[None]:
        """As ``torch.cuda.graph``."""
        self.capturing, graph.captured = True, True
        try:
            yield
        finally:
            self.capturing = False

    @contextlib.contextmanager
    def autocast(
        self, kind: str, dtype: torch.dtype | None = None, enabled: bool = True, **options: Any
    ) -> Iterator[None]:
        """As ``torch.autocast``."""
        if kind != "cuda":
            with AUTOCAST(kind, dtype, enabled, **options):
                yield
            return
        before, self.precision = self.precision, (dtype or torch.float16) if enabled else None
        try:
            yield
        finally:
            self.precision = before


AUTOCAST = torch.autocast


class Graph:
    """As ``torch.cuda.CUDAGraph``."""

    captured = False

    def replay(self) -> None:
        """Do it again."""
        if not self.captured:
            raise RuntimeError("the graph is empty")


class Stream:
    """As ``torch.cuda.Stream``, one thing after the other."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def is_capturing(self) -> bool:
        """Whether what it is given goes into a graph."""
        return self.gpu.capturing

    def wait_stream(self, other: Stream) -> None:
        """Wait for the other stream, not for the device."""


@contextlib.contextmanager
def fake_gpu(may_read: Iterable[str] = (), found: Mapping[str, float] | None = None) -> Iterator[FakeGpu]:
    """One GPU, as long as this lasts; ``may_read`` and ``found`` as in :class:`FakeGpu`."""
    gpu, cudnn = FakeGpu(may_read, found or {}), torch.backends.cudnn.benchmark
    pretended: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "a GPU that isn't there",
        "is_bf16_supported": lambda *_: True,
        "is_current_stream_capturing": lambda: gpu.capturing,
        "synchronize": gpu.synchronize,
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
        "Stream": lambda device=None, priority=0: Stream(gpu),
        "current_stream": lambda device=None: Stream(gpu),
        "stream": lambda stream: contextlib.nullcontext(),
        "CUDAGraph": Graph,
        "graph": gpu.graph,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **pretended))
        stack.enter_context(mock.patch.object(torch, "autocast", gpu.autocast))
        if hasattr(torch, "accelerator"):  # from 2.6 on
            stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", pretended["current_stream"]))
        try:
            with _Operations(gpu), _Names(gpu):
                yield gpu
        finally:
            torch.backends.cudnn.benchmark = cudnn
