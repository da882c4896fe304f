"""Worker processes for many small trainings at once: one thread each, and an allocator that suits them."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import torch

WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # glibc gives freed blocks back to the system at once, and a training step spends as long on page faults as on arithmetic
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
}


def cores() -> int:
    """Processes that this machine runs at once."""
    return os.cpu_count() or 1


@contextlib.contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes with one thread each and an allocator that suits a training step; raises ValueError for no workers."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    with (
        _environment(WORKER_ENVIRONMENT),
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_one_thread) as pool,
    ):
        yield pool


def _one_thread() -> None:
    torch.set_num_threads(1)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
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

    A training step on a processor becomes shorter by a sixth to a third.  False where the allocator is not glibc's, or says no.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    thresholds = {
        -3: "MALLOC_MMAP_THRESHOLD_",
        -1: "MALLOC_TRIM_THRESHOLD_",
    }  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    return all(mallopt(option, int(WORKER_ENVIRONMENT[name])) == 1 for option, name in thresholds.items())
