"""Benchmarks: every speed is a ratio, or stands beside what it is compared with; run with ``sslbook bench NAME``."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch.utils.benchmark import Timer

from sslchapters.tables import as_text


@dataclass(frozen=True)
class Row:
    """One measured number.

    bar: the largest value allowed, or the smallest if ``at_least``; None for a number that only stands beside others.
    """

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


def table(rows: Sequence[Row]) -> str:
    """The rows as text, part by part."""
    parts: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        bar = "" if row.bar is None else f"{'>=' if row.at_least else '<='} {row.bar:g}"
        parts.setdefault(row.part, []).append((row.what, f"{row.value:.3g}", row.unit, bar, row.verdict))
    return "\n\n".join(f"{part}\n{as_text(('', '', '', 'bar', ''), cells)}" for part, cells in parts.items())


def parser(name: str, doc: str | None, quick: str) -> argparse.ArgumentParser:
    """The options of ``sslbook bench NAME``: ``--quick`` and ``--json``."""
    made = argparse.ArgumentParser(prog=f"sslbook bench {name}", description=(doc or "").partition("\n")[0])
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--json", action="store_true", help="as JSON")
    return made


def report(rows: Sequence[Row], *, as_json: bool) -> int:
    """Print the rows and what they were measured on; exit status 1 if a bar is missed."""
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    bars, missed = sum(row.bar is not None for row in rows), sum(row.verdict == "MISSED" for row in rows)
    if as_json:
        shown = [asdict(row) | {"verdict": row.verdict} for row in rows]
        print(json.dumps({"machine": machine, "rows": shown}, indent=2))
    else:
        print(", ".join(f"{key} {value}" for key, value in machine.items()))
        print(f"{table(rows)}\n\n{bars - missed} of {bars} bars are met.")
    return int(missed > 0)
