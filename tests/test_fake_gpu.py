"""On a GPU that isn't there a training step of each objective and the operator mix no devices and read nothing.

Its tensors say ``cuda``, have shapes, types and gradients, and no numbers: they are of PyTorch's device ``meta``, under the name of
another.  (``FakeTensorMode``'s are ``cuda`` in earnest, but a build of PyTorch without CUDA can't differentiate them.)
What is the host's is really computed.  What raises:

- :class:`Mixed`: an operation on tensors of both, but for copies and numbers of no dimension.
- :class:`Read`: what only the device knows is asked for, anywhere but in functions of ours that may read, or below them.

Copies from the host for which a processor would wait are counted.  Not pretended: graphs, autocast, memory, what it computes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo  # optimisers load it, and it looks at torch.cuda's streams when it is loaded
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sslbook.experiments.training.layer_operators import opened
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import CovarianceOperator, covariance_operator
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.run.parts import make_parts
from sslbook.training.run.settings import OPTIMIZERS, Settings
from sslbook.training.run.trainer import Trainer, train
from sslbook.training.views.augment import PIPELINES

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


# --- training --------------------------------------------------------------------------------------------------------

SMALL = Networks(width=8, projector_hidden=16, projector_out=8, predictor_hidden=8)
BYOL = replace(SMALL, predictor=2, target="ema")
GREY = replace(SMALL, channels=1)
HALVES = replace(BYOL, projector_norm=("detach", "normal"), predictor_norm=("backward", "normal"), unbiased=True)
BASE = Settings(networks=SMALL, batch=32, precision="float32", capture="none")
PRINTED = {"weights": "clean", "over": "sum", "beta": 0.1}
STEPS: dict[str, Settings] = {
    **{name: replace(BASE, objective=name, networks=BYOL if name == "byol" else SMALL) for name in OBJECTIVES},
    "exact, printed": replace(BASE, objective="exact", loss_kwargs=PRINTED),
    "beta, printed": replace(BASE, objective="beta", loss_kwargs={"beta": 0.2, "form": "printed"}),
    "byol, all": replace(BASE, objective="byol", networks=HALVES, symmetric=True, reset=1, noise=0.1, shuffle=True),
    "byol, both sides learn": replace(BASE, objective="byol", networks=BYOL, loss_kwargs={"stop_gradient": False}),
    **{optimizer: replace(BASE, optimizer=optimizer) for optimizer in OPTIMIZERS},
    **{f"views of {name}": replace(BASE, pipeline=name, networks=GREY if name in ("digits", "mnist") else SMALL)
       for name in PIPELINES},
}  # fmt: skip


def images(count: int, settings: Settings) -> Dataset:
    size = PIPELINES[settings.pipeline].size
    pixels = torch.zeros(1, settings.networks.channels, size, size, dtype=torch.uint8).expand(count, -1, -1, -1)
    return Dataset(pixels, torch.arange(count) % 10, "nothing", 10)


def two_steps(settings: Settings, folder: Path) -> Trainer:
    """Nothing is read in them or waited for, once images and weights have moved."""
    with fake_gpu() as gpu:
        data = images(96, settings)
        run = Trainer(make_parts(settings, (data, data), GPU), folder, quiet=True)
        assert gpu.waits, "what is sent there is noticed"
        gpu.waits.clear()
        run.advance()
        run.advance()
        assert gpu.waits == []
    return run


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_every_objective_optimizer_and_pipeline(name: str, tmp_path: Path) -> None:
    run = two_steps(STEPS[name], tmp_path)
    with fake_gpu():
        for weight in run.state.model.learning():
            assert weight.grad is not None
            assert weight.device == weight.grad.device == GPU


MAY_READ = {
    "runtime.arguments.require_classes": 0,  # labels are checked once before anything is computed
    "training.evaluate._require_labelled": 0,  # which classes occur
    "training.evaluate.knn_accuracy": 0,  # the accuracy in the end
    "training.evaluate.linear_probe": 0,  # likewise
    "runtime.arguments.require_finite": 0,  # one answer for all representations
    "stats.metrics.effective_rank": 0,  # eigenvalues are checked for convergence as they are computed
    "training.evaluate.report": 0,  # the rank
    "training.run.trainer.Trainer._end_epoch": 0,  # the losses of an epoch
    "training.run.checkpoints.check": True,  # whether weights are finite, at the ends of epochs and before a checkpoint
    "training.run.trainer.Trainer._save": 0,
    "training.run.checkpoints.save_weights": 0,
}


def test_a_run_reads_where_it_may(tmp_path: Path) -> None:
    """A whole run, with both looks, the linear protocol, and its checkpoint."""
    settings = replace(BASE, epochs=1, evaluate=1)
    with fake_gpu(MAY_READ) as gpu:
        assert train(settings, tmp_path, data=(images(64, BASE), images(50, BASE)), quiet=True).finished
    assert set(gpu.reads) == set(MAY_READ)


# --- the operator ----------------------------------------------------------------------------------------------------

OPENS = {"operator.layer.open_layer": 0}
"""It asks whether the network is one that can be opened, once."""
MAKES_NUMBERS = OPENS | {
    "operator.covariance.covariance_operator": 0,  # whether an output is zero, where outputs are divided by their length
    "operator.covariance.CovarianceOperator.update": 0,  # whether the outputs are K^T vec(W), to warn where they aren't
    "operator.frozen.refuse_nonfinite": 0,
    "operator.covariance.CovarianceOperator.trace": 0,
    "operator.covariance._array": 0,  # the products that ARPACK asks for
    "operator.covariance._top_eigenpairs": 0,
    "operator.view_weights.Mixing.root": 0,  # whether the pairs' weights allow a root, and their largest
    "operator.view_weights.Mixing.symmetric": 0,
}
KINDS: dict[str, dict[str, Any]] = {
    "simple": {},
    "beta": {"beta": 0.2},
    "normalised": {"normalize": True},
    "info_nce": {"loss": "info_nce", "temperature": 0.5},
}


def operator(layer: str, kind: str = "simple") -> CovarianceOperator:
    network = opened(build(SMALL, 0).to("cuda")).double()
    views = torch.zeros(24, 4, 3, 32, 32, device="cuda", dtype=torch.float64)
    clean = {"clean": views[:, 0]} if kind == "info_nce" else {}
    return covariance_operator(network, layer, views, **KINDS[kind], **clean)


@pytest.mark.parametrize("layer", ["0.conv1", "0.layer3.0.downsample.0", "1.linears.0"])
def test_products_of_the_operator_read_nothing(layer: str) -> None:
    with fake_gpu(OPENS) as gpu:
        op = operator(layer)
        gpu.waits.clear()
        vector = torch.zeros(op.shape[0], device="cuda", dtype=torch.float64)
        for product in (op.matvec(vector), op.rmatvec(vector), op.matmat(vector[:, None].expand(-1, 3))):
            assert product.device == GPU
        assert op.apply(op.opened.weight).shape == op.exact_update().shape == op.opened.weight.shape
        assert gpu.waits == []
        with pytest.raises((Mixed, TypeError)):
            op.matvec(torch.zeros(op.shape[0], dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_operator_reads_where_it_makes_numbers(kind: str) -> None:
    with fake_gpu(MAKES_NUMBERS):
        op = operator("1.linears.1", kind)
        op.update()
        op.trace()
        assert op.apply_transpose(op.opened.weight).device == GPU
        if op.symmetric:
            assert op.top_eigenpairs(4).vectors.device == GPU
