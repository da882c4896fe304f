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
    """One measured number.  bar: the largest value allowed; None where there is none."""

    part: str
    what: str
    value: float
    unit: str = ""
    bar: float | None = None

    @property
    def verdict(self) -> str:
        """``"ok"``, ``"MISSED"`` (also for NaN), or nothing where there is no bar."""
        return "" if self.bar is None else "ok" if self.value <= self.bar else "MISSED"


def seconds(call: Callable[[], object], least: float = 1.0) -> float:
    """Median seconds of a call, measured for at least so many seconds; what a GPU was asked for is done then."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=least).median)


def report(rows: Sequence[Row]) -> int:
    """Print the rows, part by part, and what they were measured on; exit status 1 if a bar is missed."""
    machine = f"processor {platform.processor() or platform.machine()}, cores {os.cpu_count()}"
    versions = f"python {platform.python_version()}, torch {torch.__version__}"
    print(f"{machine}, threads {torch.get_num_threads()}, {versions}")
    for part in dict.fromkeys(row.part for row in rows):
        bars = {row: "" if row.bar is None else f"<= {row.bar:g}" for row in rows if row.part == part}
        cells = [(row.what, f"{row.value:.3g}", row.unit, bar, row.verdict) for row, bar in bars.items()]
        print(f"{part}\n{as_text(('', '', '', 'bar', ''), cells)}\n")
    verdicts = [row.verdict for row in rows if row.verdict]
    print(f"{verdicts.count('ok')} of {len(verdicts)} bars are met.")
    return int("MISSED" in verdicts)
