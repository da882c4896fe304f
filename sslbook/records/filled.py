"""A printed table with our numbers in it, and how that is shown: a line a cell, a grid, or JSON."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from sslbook.records.page import as_text
from sslbook.records.printed import Printed

NOTHING = "–"


@dataclass(frozen=True)
class Entry:
    """A cell: its labels, the paper's mean and deviation, and our numbers by measure, in the table's unit, a number a seed.

    note: a word on ours, such as where a run diverged.  comparable: ours is meant to be the paper's number.
    """

    at: tuple[str, ...]
    printed: tuple[float | None, float | None] = (None, None)
    found: Mapping[str, Sequence[float]] = field(default_factory=dict)
    note: str = ""
    comparable: bool = True


@dataclass(frozen=True)
class Filled:
    """A table with what was found for it.

    axes: the labels of each axis, as texts; entries: row by row.  measures: what is shown, with its decimals; the first is what
    the paper prints.  facts: what was run.  origin: where our numbers come from, or how to get them.
    wrong: a sentence for each run that came to no end.
    """

    name: str
    source: str
    axes: Mapping[str, tuple[str, ...]]
    entries: tuple[Entry, ...]
    measures: Mapping[str, int]
    seeds: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    wrong: tuple[str, ...] = ()

    def only_seeds(self, seeds: Sequence[int]) -> Filled:
        """The numbers of these seeds; raises ValueError, naming those there are, for others."""
        if missing := [seed for seed in seeds if seed not in self.seeds]:
            there = " ".join(map(str, self.seeds)) or "none"
            raise ValueError(f"--seeds: the record holds {there}, got {' '.join(map(str, missing))}; --run runs others")
        places = [self.seeds.index(seed) for seed in seeds]

        def chosen(entry: Entry) -> Entry:
            return replace(entry, found={m: [values[i] for i in places] for m, values in entry.found.items()})

        return replace(self, seeds=tuple(seeds), entries=tuple(chosen(entry) for entry in self.entries))


def fill(target: Printed, found: Mapping[str, Tensor], measures: Mapping[str, int], **more: Any) -> Filled:
    """``target`` with the ``found`` measures, each with the table's axes and one of seeds behind them; none if it is empty.

    more: of `Filled`; ``comparable`` of each `Entry`.
    """
    comparable, texts = more.pop("comparable", True), target.texts()
    numbers = {measure: trials.flatten(0, -2).tolist() for measure, trials in found.items()}
    entries = (
        Entry(at, theirs, {m: rows[i] for m, rows in numbers.items()}, comparable=comparable)
        for i, (at, theirs) in enumerate(zip(itertools.product(*texts.values()), target.numbers(), strict=True))
    )
    return Filled(target.name, target.source, texts, tuple(entries), measures, **more)


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample deviation (divided by one less than there are); None where there are too few."""
    return (
        statistics.fmean(values) if values else None,
        statistics.stdev(values) if len(values) > 1 else None,
    )


def number(mean: float | None, std: float | None = None, digits: int = 2) -> str:
    """``78.1±0.3``, or the mean alone where there is no spread; without spaces, so that a line fits a phone."""
    if mean is None:
        return NOTHING
    return f"{mean:.{digits}f}" + ("" if std is None else f"±{std:.{digits}f}")


def listing(table: Filled) -> str:
    """A line a cell: its name, the paper's number, ours of the first measure, their difference, and the other measures."""
    (first, digits), *others = table.measures.items()
    differ = any(entry.comparable and entry.printed[0] is not None for entry in table.entries)
    ragged = len({len(entry.found.get(first, ())) for entry in table.entries}) > 1
    said = [axis for axis, labels in enumerate(table.axes.values()) if len(labels) > 1]
    rows = []
    for entry in table.entries:
        values, gap = entry.found.get(first, ()), difference(entry, first)
        row = [
            "; ".join(entry.at[axis] for axis in said),
            number(*entry.printed, digits),
            number(*spread(values), digits),
        ]
        if differ:
            row.append(NOTHING if gap is None else f"{gap:+.{digits}f}")
        for measure, decimals in others:
            mean, std = spread(entry.found.get(measure, ()))
            row.append(number(mean, std if len(others) == 1 else None, decimals))  # of more, the means alone
        rows.append([*row, *[str(len(values))] * ragged, entry.note])
    heads = ["", "paper", first, *["diff."] * differ, *(measure for measure, _ in others), *["n"] * ragged, ""]
    return as_text(heads, rows)


def grid(table: Filled) -> str:
    """The table's own shape as text, by `cells`; nothing for a table without entries."""
    return as_text(*cells(table)) if table.entries else ""


def cells(table: Filled, *, brief: bool = False) -> tuple[list[str], list[list[str]]]:
    """The table's own shape: its columns' names, and a row for the labels of all axes but the last; ``paper | ours`` in each cell.

    Where nothing is printed, all measures instead.  brief: means alone.
    """
    columns = tuple(table.axes.values())[-1]
    said = [axis for axis, labels in enumerate(table.axes.values()) if len(labels) > 1][:-1]
    printed = any(entry.printed[0] is not None for entry in table.entries)
    chosen = list(table.measures.items())[: 1 if printed or brief else None]

    def cell(entry: Entry) -> str:
        found = [(spread(entry.found.get(measure, ())), digits) for measure, digits in chosen]
        shown = [number(mean, None if brief else std, digits) for (mean, std), digits in found]
        ours = ", ".join(shown) + ("" if brief else entry.note)
        mean, std = entry.printed
        return f"{number(mean, None if brief else std, chosen[0][1])} | {ours}" if printed or brief else ours

    across = range(0, len(table.entries), len(columns))
    lines = [table.entries[first : first + len(columns)] for first in across]
    rows = [[", ".join(line[0].at[axis] for axis in said), *map(cell, line)] for line in lines]
    return ["paper | ours" if printed else "", *columns], rows


def difference(entry: Entry, measure: str) -> float | None:
    """Our mean less the paper's; None where there is none of them, or they are not comparable."""
    mean, theirs = spread(entry.found.get(measure, ()))[0], entry.printed[0]
    return mean - theirs if entry.comparable and mean is not None and theirs is not None else None


def summary(table: Filled) -> str:
    """How far our means lie from the paper's, on average, by column, and where most; empty where nothing can be compared."""
    first, digits = next(iter(table.measures.items()))
    gaps = {entry.at: abs(gap) for entry in table.entries if (gap := difference(entry, first)) is not None}
    if not gaps:
        return ""
    by_column: dict[str, list[float]] = {}
    for at, gap in gaps.items():
        by_column.setdefault(at[-1], []).append(gap)
    columns = "; ".join(f"{name}: {statistics.fmean(found):.{digits + 1}f}" for name, found in by_column.items())
    most = max(gaps, key=lambda at: gaps[at])
    mean, largest = (f"{gap:.{digits + 1}f}" for gap in (statistics.fmean(gaps.values()), gaps[most]))
    return f"Difference from the paper's means: {mean} on average ({columns}), {largest} at most ({'; '.join(most)})."


def as_json(table: Filled) -> dict[str, Any]:
    """The table with every number, for a program to read."""
    cells = [
        {
            "at": entry.at,
            "printed": dict(zip(("mean", "std"), entry.printed)),
            "found": {measure: list(values) for measure, values in entry.found.items()},
            "comparable": entry.comparable,
            "note": entry.note,
        }
        for entry in table.entries
    ]
    same = ("name", "source", "facts", "axes", "seeds", "origin", "wrong")
    return {**{key: getattr(table, key) for key in same}, "measures": list(table.measures), "cells": cells}
