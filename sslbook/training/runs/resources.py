"""What a run needs from the machine: its images, its device, and the other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

from sslbook import datasets
from sslbook.datasets import Dataset
from sslbook.training.runs import distributed
from sslbook.training.runs.settings import Settings

SUBSET_SEED = 0
"""Which images a subset holds, whatever the run's seed."""


class Refused(ValueError):
    """A run that can't be made here as it is asked for; not an error of the program."""


def load_data(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """Training images, or a subset of them, and test images."""
    whole = datasets.load(settings.dataset, settings.split, download=download)
    if settings.subset is not None:
        whole = datasets.subset(whole, settings.subset, SUBSET_SEED)
    return whole, datasets.load(settings.dataset, "test", download=download)


def labelled(data: Dataset) -> Dataset:
    """The images with a label; raises ValueError if there is none.  Where they come first nothing is copied."""
    there = data.labels >= 0
    count = int(there.sum())
    if not count:
        raise ValueError(
            f"{data.name} must hold images with labels, by which accuracy is measured, and these have none"
        )
    keep: slice | Tensor = slice(count) if bool(there[:count].all()) else there
    return replace(data, pixels=data.pixels[keep], labels=data.labels[keep])


def join(device: str | torch.device | None) -> torch.device:
    """This process's device; under ``torchrun`` it also joins the others, each with a GPU of its own if there are any."""
    if "WORLD_SIZE" not in os.environ:
        return device_of(device)
    kind = device_of(device).type if device is not None else "auto"
    if dist.is_initialized():
        return torch.device("cpu") if dist.get_backend() == "gloo" else device_of("cuda")
    return distributed.setup_from_environment(kind).device


def together() -> None:
    """Wait for the other processes."""
    if distributed.world() > 1:
        dist.barrier()


def agree(step: int) -> None:
    """Raise ValueError unless all processes read a checkpoint of the same step."""
    if distributed.world() == 1:
        return
    steps: list[int] = [0] * distributed.world()
    dist.all_gather_object(steps, step)
    if len(set(steps)) > 1:
        raise ValueError(
            f"the processes read checkpoints of steps {' and '.join(map(str, sorted(set(steps))))}: all must see the same folder"
        )


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came: the first is only noted, so that no step is left half done; a second one interrupts.

    Whoever has handlers of its own, such as a cluster's jobs, keeps them.
    """
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = handler
                signal.signal(number, note)
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def device_of(wanted: str | torch.device | None) -> torch.device:
    """The device named, or CUDA where there is one, a process each; raises ValueError for one that is not here."""
    try:
        device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {wanted!r}") from None
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


def layout_of(width: int, device: torch.device) -> torch.memory_format:
    """How a ResNet's maps and kernels lie in memory: channels last, except in narrow networks on a processor.

    There, channels last saves a fifth of a step, but oneDNN's gradient of a 1x1 convolution of stride 2 with fewer channels than
    a vector register has numbers writes behind its workspace: below 8 with AVX2, below 16 with AVX-512 and larger images
    (uxlfoundation/oneDNN issue 6035; seen in 3.5.3 to 3.13.3, which are PyTorch 2.5 to 2.15).  The heap is corrupted, and the
    process dies now or later.  Every such shortcut of the network has ``width`` channels or more.
    """
    narrow = device.type == "cpu" and width < 16
    return torch.contiguous_format if narrow else torch.channels_last
