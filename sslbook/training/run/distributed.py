r"""One batch spread over several processes, exactly: loss, gradients and BatchNorm's statistics are those of one process.

Each of :math:`W` processes holds an equal part of the batch.  Gradients are averaged over the processes, as
``DistributedDataParallel`` does it, so that what is minimised is :math:`\frac1W \sum_r L_r`, and whatever carries numbers from one
process to another must hand gradients back by the adjoint of that sum:

====================  ==========================================  ==============================================
what                  forward                                     backward
====================  ==========================================  ==============================================
:func:`gather`        all parts, one after the other              own part of the sum of all processes' gradients
:func:`average`       mean over processes                         mean over processes
====================  ==========================================  ==============================================

A loss of the gathered batch is the same on every process.  A gather that keeps only its own process's gradient has exactly the
right loss and :math:`1/W` of the gradient, which is why the tests compare gradients.

All functions do nothing special in a single process.  They run on gloo (CPU) and nccl (GPU).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sslbook.networks.batchnorm import BatchNorm, batch_normalize, follow

T = TypeVar("T")


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world() -> int:
    """How many processes share a batch; 1 where nothing is set up."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_rows(count: int) -> slice:
    """The rows of a batch of ``count`` that this process holds; ``count`` is a multiple of the processes."""
    part = count // world()
    return slice(rank() * part, (rank() + 1) * part)


# --- numbers of all processes ----------------------------------------------------------------------------------------


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.part = x.shape[0]
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[rank() * ctx.part : (rank() + 1) * ctx.part]


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total / world()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return average(gradient)


def gather(x: Tensor) -> Tensor:
    """All processes' rows, ``(N, ...) -> (world N, ...)``, in the order of the processes; exact also for gradients.

    Every process must bring the same shape.
    """
    if world() == 1:
        return x
    gathered: Tensor = _Gather.apply(x)
    return gathered


def average(x: Tensor) -> Tensor:
    """The mean of ``x`` over the processes, of the same shape; exact also for gradients."""
    if world() == 1:
        return x
    mean: Tensor = _Average.apply(x)
    return mean


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each parameter's gradient by its mean over the processes, in one exchange; call it after ``backward``.

    Raises ValueError for a parameter without a gradient: the other processes would wait for it.
    """
    if world() == 1:
        return
    gradients = [weights.grad for weights in parameters]
    if any(gradient is None for gradient in gradients):
        raise ValueError("parameters must all have a gradient, since the processes exchange them together")
    present = [gradient for gradient in gradients if gradient is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in present])
    dist.all_reduce(flat)
    flat /= world()
    for gradient, mean in zip(present, flat.split([gradient.numel() for gradient in present]), strict=True):
        gradient.copy_(mean.view(gradient.shape))


# --- BatchNorm -------------------------------------------------------------------------------------------------------


class SharedBatchNorm(nn.BatchNorm1d):
    """``nn.BatchNorm1d/2d/3d`` by the statistics of all processes' parts; PyTorch's own ``SyncBatchNorm`` needs GPUs."""

    @classmethod
    def like(cls, layer: nn.Module) -> nn.Module:
        """``layer`` itself, with its parameters, buffers and hooks, which has become one of these."""
        if layer.momentum is None or not layer.track_running_stats:
            raise ValueError("a shared BatchNorm keeps running statistics by a momentum, and this layer has none")
        layer.__class__ = cls
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """``x`` normalised per channel over all processes."""
        mean, variance, counted = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert variance is not None
        assert counted is not None
        if not self.training:
            return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)
        over = (0, *range(2, x.ndim))
        whole = x.to(mean.dtype)
        y = batch_normalize(whole, dims=over, eps=self.eps, average=average, parts=world())
        assert self.momentum is not None
        follow(whole.detach(), over, mean, variance, self.momentum, average, world())
        counted.add_(1)
        if self.affine:
            channels = (1, -1, *(1,) * (x.ndim - 2))
            y = y * self.weight.view(channels) + self.bias.view(channels)
        return y.to(x.dtype)


def synchronize_batchnorm(module: nn.Module) -> nn.Module:
    """Let each BatchNorm in ``module`` normalise by the whole batch, in place: PyTorch's layers, and ours in all modes.

    Call it once ``module`` is on its device.  On a GPU, PyTorch's layers become its ``SyncBatchNorm``.  Raises ValueError for a
    layer in training mode that may do more than these, such as a subclass, whose statistics would be those of a part.
    """
    for name, part in module.named_modules() if world() > 1 else ():
        if isinstance(part, BatchNorm):
            part.average, part.parts = average, world()
        elif type(part) in _PLAIN and "forward" not in vars(part):
            if next((held.is_cuda for held in (*part.parameters(), *part.buffers())), torch.cuda.is_available()):
                part.__class__, part.process_group = nn.SyncBatchNorm, getattr(part, "process_group", None)
            else:
                SharedBatchNorm.like(part)
        elif part.training and not isinstance(part, SharedBatchNorm):
            scripted = getattr(part, "original_name", "").startswith("BatchNorm")
            if (
                scripted
                or isinstance(part, _BatchNorm)
                or (isinstance(part, _InstanceNorm) and part.track_running_stats)
            ):
                raise ValueError(
                    f"several processes share a batch, and {name!r}, a {type(part).__name__}, would go by the statistics of its "
                    "own part: put a plain nn.BatchNorm in its place, without a forward of its own, or take one process"
                )
    return module


_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


# --- the processes ---------------------------------------------------------------------------------------------------


def join(device: str | torch.device | None) -> torch.device:
    """This process's device; under ``torchrun`` it also joins the others, over nccl with a GPU each, if there are any, or gloo.

    Raises ValueError for variables of the environment that are missing or make no sense, and for a GPU that is not there.
    """
    wanted = device_of(device)
    if "WORLD_SIZE" not in os.environ:
        return wanted
    if dist.is_initialized():
        return torch.device("cpu") if dist.get_backend() == "gloo" else device_of("cuda")
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(f"WORLD_SIZE is set, and {', '.join(missing)} not: start several processes with torchrun")
    numbers = {name: os.environ[name].strip() for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
    for name, text in numbers.items():
        if not text.isdecimal() or (name == "MASTER_PORT" and int(text) >= 2**16):
            raise ValueError(f"{name} must be a whole number{', a port' * (name == 'MASTER_PORT')}, got {text!r}")
    here, local, processes, port = map(int, numbers.values())
    if here >= processes:
        raise ValueError(f"RANK must be below WORLD_SIZE, got {here} and {processes}")
    gpus = torch.cuda.device_count() if wanted.type == "cuda" else 0
    if gpus and local >= gpus:
        raise ValueError(f"LOCAL_RANK is {local}, and this machine has {gpus} GPUs: start no more processes than that")
    place = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(place)
    host = os.environ["MASTER_ADDR"].strip().strip("[]")
    address = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"  # brackets: an address of IPv6
    dist.init_process_group("nccl" if gpus else "gloo", init_method=address, rank=here, world_size=processes)
    return place


def wait_for_all() -> None:
    """Wait for the other processes."""
    if world() > 1:
        dist.barrier()


def of_all(here: T) -> list[T]:
    """What each of the processes has, in their order."""
    found = [here] * world()
    if world() > 1:
        dist.all_gather_object(found, here)
    return found


def agree(step: int) -> None:
    """Raise ValueError unless all processes read a checkpoint of the same step."""
    steps = sorted(set(of_all(step)))
    if len(steps) > 1:
        raise ValueError(
            f"the processes read checkpoints of steps {' and '.join(map(str, steps))}: all must see the same folder"
        )


def device_of(wanted: str | torch.device | None) -> torch.device:
    """The device named, or CUDA where there is one, a process each; raises ValueError for one that is not here."""
    try:
        device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {wanted!r}")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device must be cpu here, where there is no CUDA, got {wanted!r}")
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count:
            raise ValueError(f"device must be one of cuda:0 to cuda:{count - 1} here, got {str(wanted)!r}")
        if device == torch.device("cuda"):
            device = torch.device("cuda", torch.cuda.current_device())
    return device


def lost_another(error: RuntimeError) -> bool:
    """Whether an exchange has failed because another process has ended, which gloo and nccl say in words alone."""
    return (
        world() > 1
        and re.search("closed by peer|reset by peer|Broken pipe|remote process exit", str(error)) is not None
    )


def leave(*, together: bool = True) -> None:
    """Take this process out of the group at the end of a run: ``together`` when all have come to it.

    One that fails leaves alone: the others may be in the middle of an exchange.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    if together:  # who is through with an exchange and gone takes it from those that have not woken from it yet
        with contextlib.suppress(RuntimeError):
            dist.barrier()
    dist.destroy_process_group()
