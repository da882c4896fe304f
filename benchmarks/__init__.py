"""Benchmarks: every speed is a ratio, or stands beside what it is compared with; run with ``sslbook bench NAME``."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils.benchmark import Timer

from sslchapters.tables import as_text


@dataclass(frozen=True)
class Row:
    """One measured number.  bar: the largest value allowed, or the smallest if ``at_least``; None where there is none."""

    part: str
    what: str
    value: float
    unit: str = ""
    bar: float | None = None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """``"ok"``, ``"MISSED"`` (also for NaN), or nothing where there is no bar."""
        if self.bar is None:
            return ""
        return "ok" if (self.value >= self.bar if self.at_least else self.value <= self.bar) else "MISSED"


def seconds(call: Callable[[], object], least: float = 1.0) -> float:
    """Median seconds of a call, measured for at least so many seconds; what a GPU was asked for is done then."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=least).median)


def report(rows: Sequence[Row]) -> int:
    """Print the rows, part by part, and what they were measured on; exit status 1 if a bar is missed."""
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    missed = sum(row.verdict == "MISSED" for row in rows)
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    for part in dict.fromkeys(row.part for row in rows):
        bars = [f"{'>=' if r.at_least else '<='} {r.bar:g}" if r.bar is not None else "" for r in rows]
        cells = [
            (r.what, f"{r.value:.3g}", r.unit, bar, r.verdict)
            for r, bar in zip(rows, bars, strict=True)
            if r.part == part
        ]
        print(f"{part}\n{as_text(('', '', '', 'bar', ''), cells)}\n")
    bars_there = sum(row.bar is not None for row in rows)
    print(f"{bars_there - missed} of {bars_there} bars are met.")
    return int(missed > 0)
