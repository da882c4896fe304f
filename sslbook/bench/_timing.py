"""Seconds of a call: the mean over many, or medians of several in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch


def mean_seconds(
    call: Callable[[], object], count: int, *, warm: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one call by ``clock``, the mean over ``count``, after ``warm`` that don't count."""
    for _ in range(warm):
        call()
    _wait()
    begun = clock()
    for _ in range(count):
        call()
    _wait()
    return (clock() - begun) / count


def medians(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each call, after one to warm up; measured in turns, so that a busy machine slows all alike."""
    for call in calls:
        call()
    rows = [[mean_seconds(call, 1, warm=0) for call in calls] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _wait() -> None:
    """Until what this process asked of a GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
