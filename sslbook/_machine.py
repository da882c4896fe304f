"""This machine: its cores and processors, the allocator, and the signals that ask a process to stop.

Those signals are Ctrl-C, SIGTERM, a terminal that closes, and what clusters send before the end of a job.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import multiprocessing
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

MMAP_THRESHOLD, TRIM_THRESHOLD = 10**9, 2 * 10**9
"""Bytes: else glibc gives freed blocks back to the system, and a training step spends as long on page faults as on arithmetic."""

CPUINFO = Path("/proc/cpuinfo")
"""What Linux says of the processor; elsewhere there is no such file."""


def cores() -> int:
    """How many cores this process may use: those of its affinity mask, where the system has one.

    A cluster gives a job some cores of a machine; to start a thread for each of the others makes it slower.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device(text: str) -> str:
    """``cpu``, or a GPU that is here, ``cuda`` or ``cuda:N``, of a command line.

    Raises ArgumentTypeError, with the devices that there are, for anything else.
    """
    import torch  # seconds, which a list of options does not need

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = ["cpu", *["cuda"][:gpus], *(f"cuda:{number}" for number in range(gpus))]
    if text not in here:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of this machine's devices, {', '.join(here)}")
    return text


def device_name(device: torch.device) -> str:
    """The processor's own name, as it should stand beside a measured number: ``NVIDIA H200``, ``AMD EPYC 9555``.

    device: a GPU, or anything else for the CPU, whose name is Linux's "model name", or where there is none, as elsewhere, what
    Python's ``platform`` knows: at least the architecture.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    said = CPUINFO.read_text(encoding="utf-8") if CPUINFO.is_file() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", said, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def has_bfloat16() -> bool:
    """Whether this processor has instructions that multiply in bfloat16, as far as Linux says: AVX-512 BF16, or AMX.

    Without them bfloat16 is slower than float32, since every product is made of float32's.
    """
    flags = CPUINFO.read_text(encoding="utf-8").split() if CPUINFO.is_file() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


def figure(**options: Any) -> Figure:
    """An empty figure of matplotlib, which a notebook shows as a picture also where pyplot was not imported.

    options: of ``matplotlib.figure.Figure``, such as ``figsize``, in inches.
    """
    from matplotlib.figure import Figure  # half a second, which a run can do without

    made = Figure(layout="constrained", **options)

    def png() -> bytes:
        made.savefig(buffer := io.BytesIO(), format="png")
        return buffer.getvalue()

    vars(made)["_repr_png_"] = png
    return made


def end_with_parent(parent: int | None = None) -> None:
    """End as soon as the process that started this one has, however that ended; a worker waits for work for ever.

    parent: its number, where it isn't one that `multiprocessing` has spawned this one from.
    """
    starter = multiprocessing.parent_process()
    number = starter.pid if parent is None and starter else parent

    def wait_and_end() -> None:
        while os.getppid() == number:
            time.sleep(0.1)
        os._exit(1)

    if number is not None:
        threading.Thread(target=wait_and_end, daemon=True).start()


def keep_freed_memory() -> bool:
    """Let this process, from now on, keep freed blocks for its next step, instead of giving them back.

    A training step on a processor becomes shorter by a sixth to a third.  Older versions of glibc can't keep blocks above 32 MiB,
    and keep smaller ones.  False where the allocator is not glibc's, or keeps nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    # M_TRIM_THRESHOLD is -1 and M_MMAP_THRESHOLD -3 in malloc.h.  Either one ends glibc's own adapting of both.
    trim = mallopt(-1, TRIM_THRESHOLD) == 1
    mapped = mallopt(-3, MMAP_THRESHOLD) == 1 or mallopt(-3, 32 * 2**20) == 1
    return bool(trim or mapped)


# --- being asked to stop ---------------------------------------------------------------------------------------------

STOPS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""What asks to stop; Windows has the first two."""
GOES_ON = "the same command goes on from the last checkpoint"


class Stopped(KeyboardInterrupt):
    """This process was asked to stop, by the signal of that ``number``; after: what comes next, in a sentence's second half."""

    def __init__(self, number: int, after: str = "") -> None:
        super().__init__(f"stopped; {after}" if after else "stopped")
        self.number = number


def stop(number: int, frame: FrameType | None = None) -> None:
    """The handler that raises :class:`Stopped`; first it ends this process's workers, whose work the end would wait for.

    A signal interrupts what runs, so this is for what may be left half done; a run notes the signal (:func:`asked_to_stop`).
    """
    for worker in multiprocessing.active_children():
        worker.kill()
    raise Stopped(number)


def free() -> list[signal.Signals]:
    """The signals that ask to stop and have their usual handlers: nohup ignores some, and a cluster's job has its own."""
    usual = (signal.SIG_DFL, signal.default_int_handler, stop)
    return [number for number in signal.Signals if number.name in STOPS and signal.getsignal(number) in usual]


@contextlib.contextmanager
def heard(handler: Callable[[int, FrameType | None], None] = stop) -> Iterator[None]:
    """Let ``handler`` have the signals that are :func:`free`, and put their handlers back.

    Only the main thread may set handlers; elsewhere nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in (free() if main else ())}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Callable[[], int]]:
    """A function that returns the number of the first signal that came, or 0: a signal is noted, so that no step is left half done.

    A later Ctrl-C interrupts, unless it comes within a second: a terminal's comes to all processes, and once more from the one that
    began them.  Other signals don't: a terminal that closes sends two, and a cluster another one before the end.
    Within another one, that one hears.
    """
    signals: list[tuple[int, float]] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals and number == signal.SIGINT and time.monotonic() - signals[0][1] > 1.0:
            raise Stopped(number, GOES_ON)
        signals.append((number, time.monotonic()))

    with heard(note):
        yield lambda: signals[0][0] if signals else 0
