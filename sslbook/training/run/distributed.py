r"""One batch spread over several processes, exactly: loss, gradients and BatchNorm's statistics are those of one process.

Each of :math:`W` processes computes the embeddings of an equal part of the batch, gathers those of all, and has the loss of the
whole batch.  Gradients are averaged, and BatchNorm normalises by all.  In a single process all this does nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from sslbook.networks.batchnorm import BatchNorm
from sslbook.networks.siamese import Outputs

LOST = "closed by peer|reset by peer|Broken pipe|remote process exit"
"""What gloo and nccl say where an exchange has failed because another process has ended."""


class Lost(RuntimeError):
    """Another process of the run has ended."""


def rank() -> int:
    """This process's number among those that share a batch, from 0 on; 0 where no group is set up.

    The process of number 0 is the one that prints, evaluates and writes files.
    """
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world() -> int:
    """How many processes share a batch; 1 where no group is set up, and then nothing is sent anywhere."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_rows(count: int) -> slice:
    """The rows of a batch of ``count``, a multiple of the processes, that this one holds: process r has ``[r n, (r + 1) n)``.

    What :func:`gather` puts together of these parts is the whole batch in its order, and its rows ``own_rows`` are the part again.
    Of a count that is no multiple the last rows would be nobody's, so :class:`~sslbook.training.run.step.Batches` refuses it for a
    batch, and for the last one of an epoch.

    >>> own_rows(8)  # alone
    slice(0, 8, None)
    """
    part = count // world()
    return slice(rank() * part, (rank() + 1) * part)


class _Gather(torch.autograd.Function):
    """PyTorch's own differentiable ``all_gather`` is deprecated since 2.13, without another that is public."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_gather(parts := [torch.empty_like(x) for _ in range(world())], x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        dist.all_reduce(total := gradient.clone(memory_format=torch.contiguous_format))
        return total[own_rows(len(total))]


def gather(x: Tensor) -> Tensor:
    r"""All processes' rows of one shape, ``(N, ...) -> (W N, ...)``, in the order of the processes, which all must call it.

    The gradient is exact.  What is minimised is the mean loss :math:`\frac1W \sum_r L_r` (:func:`average_gradients`), so the gather
    hands back by its adjoint: a process's rows get the *sum* of what the losses of all say of them, not its own gradient alone.
    """
    return x if world() == 1 else _Gather.apply(x)


def gather_outputs(outputs: Outputs) -> Outputs:
    """The embeddings and labels of the whole batch, ``(N, D) -> (W N, D)``, with their gradients.

    What is not there, such as labels, stays None.  What stands in two places, as the embeddings where predictions
    would be if there is no predictor, is sent once.
    """
    if world() == 1:
        return outputs
    whole = {id(part): gather(part) for part in dict.fromkeys(outputs) if part is not None}
    return Outputs(*(None if part is None else whole[id(part)] for part in outputs))  # type: ignore[arg-type]


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    r"""Replace each parameter's gradient by its mean over the processes, in one exchange; call it after ``backward``.

    It is that of :math:`\frac1W \sum_r L_r`, as in ``DistributedDataParallel``.  Which have none must be the same in all processes.
    """
    if world() == 1:
        return
    gradients = [weights.grad for weights in parameters if weights.grad is not None]
    dist.all_reduce(flat := torch.cat([gradient.reshape(-1) for gradient in gradients]))
    means = flat.div_(world()).split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view(gradient.shape))


def share_batchnorm(module: nn.Module) -> nn.Module:
    """Let each BatchNorm in ``module``, PyTorch's, ours or a subclass, normalise by the whole batch; call it on its device.

    On GPUs, PyTorch's own becomes its ``SyncBatchNorm``.  Any other one, for which there is none, sees the gathered batch and keeps
    its own rows of the result, which is exact whatever it does.
    Parameters, buffers and the caller's hooks stay; a hook behind the layer sees this process's rows.
    """
    for part in module.modules() if world() > 1 else ():
        plain = type(part) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and "forward" not in vars(part)
        if plain and next(module.parameters()).is_cuda:
            part.__class__, part.process_group = nn.SyncBatchNorm, None  # type: ignore[assignment]
        elif isinstance(part, _NormBase | BatchNorm) and not isinstance(part, nn.SyncBatchNorm):
            part.register_forward_pre_hook(lambda layer, x: tuple(map(gather, x)) if layer.training else x)
            part.register_forward_hook(lambda layer, x, y: y[own_rows(len(y))] if layer.training else y, prepend=True)
    return module


def join(device: str | torch.device | None) -> torch.device:
    """The device of this process: the one named, or a GPU if there is one; under ``torchrun``, a GPU each.

    There it also joins the other processes, over nccl on GPUs and else over gloo.  Raises ValueError for variables of ``torchrun``
    that are missing.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    together = "WORLD_SIZE" in os.environ
    if place.type == "cuda" and together:
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(place)
    elif place == torch.device("cuda"):
        place = torch.device("cuda", torch.cuda.current_device())
    if together and not dist.is_initialized():
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    return place


def leave(*, together: bool = True) -> None:
    """Take this process out of the group at the end of a run: ``together`` when all have come to it, else alone.

    Together, they wait for each other: who is through with an exchange and gone takes it from those that still wait in it.
    After an error the others may never come, so a process that has failed leaves alone.  Without a group it does nothing, and
    afterwards :func:`world` is 1.
    """
    if dist.is_available() and dist.is_initialized():
        if together:
            with contextlib.suppress(RuntimeError):
                dist.barrier()
        dist.destroy_process_group()
