"""This machine: its cores and its name, and worker processes with one thread each and an allocator that suits them.

And the signals that ask a process to stop: Ctrl-C, SIGTERM, a terminal that closes, and those that clusters send before the end.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sslbook._check import require_whole

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure


WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # glibc gives freed blocks back to the system at once, and a training step spends as long on page faults as on arithmetic
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
}


LARGEST_OLD = 32 * 2**20
"""The largest M_MMAP_THRESHOLD that mallopt documents, in bytes."""
_POLL_SECONDS = 0.1
"""How often a process looks whether its parent is there."""


def cores() -> int:
    """How many cores this process may use: those of its affinity mask, where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """The processor's own name, as it should stand beside a measured number."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    match = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def has_bfloat16() -> bool:
    """Whether this processor has instructions that multiply in bfloat16, as far as Linux says."""
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", _cpuinfo()) is not None


def _cpuinfo() -> str:
    """What Linux says of the processor; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def figure(**options: Any) -> Figure:
    """An empty figure of matplotlib, which a notebook shows as a picture also where pyplot was not imported."""
    from matplotlib.figure import Figure  # half a second, which a run can do without

    made = Figure(layout="constrained", **options)
    vars(made)["_repr_png_"] = partial(_png, made)
    return made


def _png(drawn: Figure) -> bytes:
    drawn.savefig(buffer := io.BytesIO(), format="png")
    return buffer.getvalue()


@contextlib.contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes with one thread each and an allocator that suits a training step; raises ValueError for none."""
    processes = require_whole("processes", processes, least=1)
    with (
        environment(WORKER_ENVIRONMENT),
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin_worker) as pool,
    ):
        yield pool


def end_with_parent(parent: int | None = None) -> None:
    """End as soon as the process that started this one has, however that ended; a worker waits for work for ever.

    parent: its number, where `multiprocessing` didn't start this one.
    """
    worker = multiprocessing.parent_process()
    if parent is not None or worker is not None:
        threading.Thread(target=_wait_and_end, args=(worker if parent is None else parent,), daemon=True).start()


def _wait_and_end(parent: multiprocessing.process.BaseProcess | int) -> None:
    if isinstance(parent, int):
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
    else:
        parent.join()
    os._exit(1)


def _begin_worker() -> None:
    end_with_parent()
    import torch  # the book asks this module for `cores` alone

    torch.set_num_threads(1)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def keep_freed_memory() -> bool:
    """Let this process, from now on, keep freed blocks for its next step, as :data:`WORKER_ENVIRONMENT` does from the start.

    A training step on a processor becomes shorter by a sixth to a third.  Older versions of glibc can't keep blocks above 32 MiB,
    and keep smaller ones.  False where the allocator is not glibc's, or keeps nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # M_TRIM_THRESHOLD is -1 and M_MMAP_THRESHOLD -3 in malloc.h.  Either one ends glibc's own adapting of both.
    trim = mallopt(-1, int(WORKER_ENVIRONMENT["MALLOC_TRIM_THRESHOLD_"])) == 1
    mapped = any(mallopt(-3, size) == 1 for size in (int(WORKER_ENVIRONMENT["MALLOC_MMAP_THRESHOLD_"]), LARGEST_OLD))
    return trim or mapped


# --- being told to stop ----------------------------------------------------------------------------------------------

STOPS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # Windows has the first two
]
BROKEN_PIPE = 13
"""SIGPIPE, by number: Windows has none, and Python ignores it."""
GOES_ON = "the same command goes on from the last checkpoint"

_ECHO_SECONDS = 1.0
"""A terminal's Ctrl-C comes to all processes, and once more from the one that began them."""
_asked: Callable[[], int] | None = None
Handler = Callable[[int, FrameType | None], None]


class Stopped(KeyboardInterrupt):
    """This process was asked to stop, by the signal of that ``number``; after: what comes next, in a sentence's second half."""

    def __init__(self, number: int, after: str = "") -> None:
        super().__init__("; ".join(filter(None, ("stopped", after))))
        self.number = number


def stop(number: int, frame: FrameType | None = None) -> None:
    """The handler that raises `Stopped`; first it ends this process's workers, for whose work it would be waited."""
    for worker in multiprocessing.active_children():
        worker.kill()
    raise Stopped(number)


def status(error: KeyboardInterrupt) -> int:
    """The exit status of a process that was stopped, as a shell has it: 128 and the signal's number."""
    return 128 + getattr(error, "number", signal.SIGINT)


def free() -> list[signal.Signals]:
    """The signals that ask to stop and that nobody ignores, as nohup does, or hears otherwise, as a cluster's job does."""
    usual = (signal.SIG_DFL, signal.default_int_handler, stop)
    return [number for number in STOPS if signal.getsignal(number) in usual]


@contextlib.contextmanager
def heard(handler: Handler = stop) -> Iterator[None]:
    """Let ``handler`` have the signals that are `free`; in the main thread alone, as the system wants it."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in (free() if main else ())}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Callable[[], int]]:
    """The number of the first signal that came, or 0: it is only noted, so that no step is left half done.

    A later Ctrl-C interrupts.  Others don't: a terminal that closes sends two, and a cluster has another before the end.
    Within another one, it is that one.
    """
    global _asked
    if _asked is not None:
        yield _asked
        return
    seen: list[int] = []
    begun = time.monotonic()

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal begun
        if not seen:
            begun = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - begun > _ECHO_SECONDS:
            raise Stopped(number, GOES_ON)
        seen.append(number)

    with heard(note):
        _asked = lambda: seen[0] if seen else 0  # noqa: E731
        try:
            yield _asked
        finally:
            _asked = None
