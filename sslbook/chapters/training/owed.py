"""What the full tables still owe: their cells beside the runs that there are, the runs that wait, the time, the command."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sslbook.chapters.training.presets import presets, sheets
from sslbook.chapters.training.runs import lines, runs_of


@dataclass(frozen=True)
class Owed:
    """A table's debt: how many runs it needs, how many of them are finished, the estimated hours on one H200 for the rest."""

    table: str
    runs: int
    finished: int
    hours: float
    command: str

    def __str__(self) -> str:
        """One line: name, runs that wait, hours."""
        return f"{self.table:<16}{self.runs - self.finished:>4} of {self.runs:<4}{self.hours:>6.1f} h"


def owed(table: str, seeds: Sequence[int], root: Path) -> Owed:
    """The debt of one of :func:`sslbook.chapters.training.presets.sheets`; raises ValueError for a name that is none of them."""
    if table not in sheets():
        raise ValueError(f"table must be one of {', '.join(sheets())}, got {table!r}")
    wanted = runs_of(sheets()[table], seeds)
    waiting = [run for run in wanted if not run.finished(root)]
    minutes = sum(presets()[run.name].minutes for run in waiting)
    return Owed(table, len(wanted), len(wanted) - len(waiting), minutes / 60, f"sslbook table {table} --run --download")


def grid(table: str, seeds: Sequence[int], root: Path) -> str:
    """A table of rows and columns of epochs, in each cell the paper's mean, a bar, and ours: a dash where no run is."""
    found = lines(sheets()[table], seeds, root)
    rows: dict[str, list[str]] = {}
    columns: dict[str, None] = {}
    for cell in found:
        label, _, column = cell.label.rpartition("; ")
        columns[column] = None
        ours = f"{100 * statistics.mean(cell.best):.1f}" if cell.best else "–"
        theirs = "–" if cell.printed[0] is None else f"{cell.printed[0]:.1f}"
        rows.setdefault(label, []).append(f"{theirs} | {ours}")
    wide = max(map(len, rows)) + 2
    head = " " * wide + "".join(f"{column:<13}" for column in columns).rstrip()
    return "\n".join(
        [head, *(f"{label:<{wide}}" + "".join(f"{c:<13}" for c in cells).rstrip() for label, cells in rows.items())]
    )
