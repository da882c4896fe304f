"""Tables as the papers print them, with our numbers in them, as a line a cell, a grid or JSON; and ``sslbook table``."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from typing import Any

import torch
from torch import Tensor

from sslbook._check import InputError, counted, seed
from sslbook._machine import device
from sslchapters import data_files
from sslchapters.records import Record, recorded

# --- as they are printed ---------------------------------------------------------------------------------------------

STL = ("STL-10, 100 epochs",)
PARTS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "A-Tab4": ("A-Tab6", {"latents": ("s",), "columns": ("initial", "converged")}),
    "B-Tab5": ("B-Tab5", {"rows": STL}),  # its second row is on ImageNet
}
"""Tables that are a part of a file of `data/printed`: the file, and the labels that they keep."""
FORMS = {"lower": "U[{:g}, 1]", "widths": "{} units", "betas": "β = {}", "patterns": "P = {}"}
"""How labels that are numbers are written, by axis."""


@dataclass(frozen=True)
class Printed:
    """A table: ``mean`` has an axis for each of ``axes``, float64, NaN where nothing is printed; so has ``std``, if any."""

    name: str
    source: str
    axes: Mapping[str, tuple[Any, ...]]
    mean: Tensor
    std: Tensor | None = None

    @property
    def columns(self) -> tuple[Any, ...]:
        """The labels of the last axis."""
        return tuple(self.axes.values())[-1]

    @property
    def cells(self) -> list[str]:
        """The names of its cells, row by row: a label of each axis that has more than one."""
        return ["; ".join(texts) for texts in itertools.product(*(t for t in self.texts().values() if len(t) > 1))]

    def numbers(self) -> list[tuple[float | None, float | None]]:
        """Mean and deviation of each cell, row by row; None for what is not printed."""
        means = [None if math.isnan(value) else value for value in self.mean.flatten().tolist()]
        return list(zip(means, [None] * len(means) if self.std is None else self.std.flatten().tolist(), strict=True))

    def texts(self) -> dict[str, tuple[str, ...]]:
        """The labels of each axis as they are written."""
        return {axis: tuple(FORMS.get(axis, "{}").format(label) for label in kept) for axis, kept in self.axes.items()}

    def only(self, **chosen: Any) -> Printed:
        """The part with these labels of these axes; a tuple keeps its axis, one label, as in ``patterns=10``, takes it away."""
        found = self
        for axis, wanted in chosen.items():
            keep, labels = isinstance(wanted, tuple), found.axes[axis]
            which = [labels.index(label) for label in wanted] if keep else labels.index(wanted)
            at = (slice(None),) * list(found.axes).index(axis) + (which,)
            axes = {name: wanted if name == axis else kept for name, kept in found.axes.items() if keep or name != axis}
            found = replace(found, axes=axes, mean=found.mean[at], std=None if found.std is None else found.std[at])
        return found


@cache
def printed(name: str) -> Printed:
    """A table by the name of its claim, such as ``A-Tab6``; raises ValueError, naming those there are, for another."""
    file, part = PARTS.get(name, (name, {}))
    raw = data_files.printed_file(file)
    keys = [axis if axis in raw else f"{axis}s" for axis in re.findall(r"\[(\w+)\]", raw["axes"])]
    mean, std = (None if raw[key] is None else torch.tensor(raw[key], dtype=torch.float64) for key in ("mean", "std"))
    assert mean is not None
    return Printed(name, raw["source"], {key: tuple(raw[key]) for key in keys}, mean, std).only(**part)


def unprinted(name: str, source: str, axes: Mapping[str, tuple[Any, ...]]) -> Printed:
    """A table of which no number is printed, or a figure."""
    return Printed(name, source, axes, torch.full([len(labels) for labels in axes.values()], math.nan).double())


def batchnorm_modes(label: str) -> tuple[str, str]:
    """Modes of BatchNorm's mean and deviation by a column such as ``μ̸, σ``: a stroke detaches a statistic, no letter omits it."""
    parts = label.split(", ")
    mean, std = (("detach" if f"{sign}\u0338" in parts else "normal" if sign in parts else "omit") for sign in "μσ")
    return mean, std


# --- with our numbers in them ----------------------------------------------------------------------------------------

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


# --- as text and as a page's table -----------------------------------------------------------------------------------

Rows = Iterable[Sequence[str]]


def as_text(columns: Sequence[str], rows: Rows) -> str:
    """Lines of cells, names to the left and numbers to the right; strokes through letters take no room."""

    def width(cell: str) -> int:
        return sum(not unicodedata.combining(letter) for letter in cell)

    lines = [columns, *rows]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        (name, after), *others = ((cell, " " * (w - width(cell))) for w, cell in zip(widths, line, strict=True))
        text.append(f"{name}{after}{''.join(f'  {space}{cell}' for cell, space in others)}".rstrip())
    return "\n".join(text)


def as_html(caption: str, columns: Sequence[str], rows: Rows) -> Any:
    """A table for a page, with a header cell for each of ``columns``; the first cell of each row heads it; minus signs are set."""
    from IPython.display import HTML  # a command that prints a table or makes a record needs none

    def row(cells: Iterable[str]) -> str:
        return "\n".join(("    <tr>", *(f"      {cell}" for cell in cells), "    </tr>\n"))

    head = row(f'<th scope="col">{escape(column, quote=False)}</th>' for column in columns)
    body = [[re.sub(r"(?<![\w.-])-(?=\d)", "−", escape(cell, quote=False)) for cell in cells] for cells in rows]
    lines = "".join(
        row((f'<th scope="row">{name}</th>', *(f"<td>{cell}</td>" for cell in cells))) for name, *cells in body
    )
    parts = f"  <thead>\n{head}  </thead>\n  <tbody>\n{lines}  </tbody>\n"
    return HTML(f'<table class="table"><caption>{escape(caption)}</caption>\n{parts}</table>')


# --- the command -----------------------------------------------------------------------------------------------------

RUNNING = ("device", "processes", "steps", "epoch_size", "download", "quiet")
"""Options that say nothing without ``--run``."""


@dataclass(frozen=True)
class Table:
    """A table that ``sslbook table`` shows and runs, as a module of `sslchapters.audit` declares it.

    title: what is run, in a line.  record: the name of the record that holds it, empty for none.  seeds: of a run, unless others
    are given.  show: the table from its record, which is None if there is none.  run: the table from a run.  Both get the
    options, ``run`` with ``seeds`` filled in; both raise ValueError or OSError, with a sentence, for what can't be.
    options: adds the table's own to a parser.  layout: `grid` or `listing`.  plan: what a run would do, for ``--dry-run``.
    legend: what the names of rows and columns mean.
    """

    name: str
    title: str
    record: str
    seeds: tuple[int, ...]
    show: Callable[[Record | None, argparse.Namespace], Filled]
    run: Callable[[argparse.Namespace], Filled]
    options: Callable[[argparse.ArgumentParser], None]
    layout: Callable[[Filled], str] = grid
    plan: Callable[[argparse.Namespace], str] | None = None
    legend: str = ""


def main(table: Table, arguments: Sequence[str]) -> int:
    """Show or run a table; exit status 1 if a run came to no end, 2 for what can't be done."""
    parser = argparse.ArgumentParser(
        prog=f"sslbook table {table.name}", description=f"{table.title}.", allow_abbrev=False
    )
    parser.add_argument("--run", action="store_true", help="run it (default: show the record)")
    parser.add_argument(
        "--seeds", type=seed, nargs="+", metavar="N", help="these seeds (default: its own, or those recorded)"
    )
    parser.add_argument("--device", type=device, metavar="D", help="cpu, cuda or cuda:N (default: the table's)")
    parser.add_argument("--json", action="store_true", help="as JSON, with every number")
    table.options(parser)
    options = parser.parse_args(arguments)
    options.given = list(arguments)
    options.run = options.run or bool(getattr(options, "cluster", None))
    for name in RUNNING:
        if getattr(options, name, None) and not options.run:
            parser.error(f"--{name.replace('_', '-')} is for a run: add --run")
    try:
        if table.plan is not None and options.dry_run:
            print(table.plan(options))
            return 0
        shown = _run(table, options) if options.run else _recorded(table, options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(json.dumps(as_json(shown), indent=2, allow_nan=False) if options.json else text(table, shown))
    return 1 if shown.wrong else 0


def _run(table: Table, options: argparse.Namespace) -> Filled:
    options.seeds = tuple(dict.fromkeys(options.seeds or table.seeds))
    begun = time.monotonic()
    shown = table.run(options)
    took = f"{time.monotonic() - begun:.0f} s on {options.device or 'cpu'}."
    return shown if shown.origin else replace(shown, seeds=options.seeds, origin=took)


def _recorded(table: Table, options: argparse.Namespace) -> Filled:
    record = record_of(table.record)
    shown = table.show(record, options)
    if shown.origin:
        return shown
    again = f"sslbook table {table.name} --run runs it"
    if record is None or not any(entry.found for entry in shown.entries):
        maker = f", and sslbook record {table.record} makes its record" if record is None and table.record else ""
        return replace(shown, origin=f"No record holds it: {again}{maker}.")
    shown = replace(shown, origin=f"Recorded: {record.provenance}\n{again} again.")
    if not options.seeds:
        return shown
    seeds = tuple(dict.fromkeys(options.seeds))
    if missing := [seed for seed in seeds if seed not in shown.seeds]:
        there, got = (" ".join(map(str, some)) for some in (shown.seeds or ("none",), missing))
        raise ValueError(f"--seeds: the record holds {there}, got {got}; --run runs others")
    places = [shown.seeds.index(seed) for seed in seeds]
    found = [{name: [values[i] for i in places] for name, values in entry.found.items()} for entry in shown.entries]
    entries = [replace(entry, found=some) for entry, some in zip(shown.entries, found, strict=True)]
    return replace(shown, seeds=seeds, entries=tuple(entries))


def record_of(name: str) -> Record | None:
    """The record of that name; None if it was never made.  Raises ValueError if its file is damaged."""
    try:
        return recorded(name) if name else None
    except InputError:
        return None


def text(table: Table, shown: Filled) -> str:
    """The table with its title, what was run, and where our numbers come from."""
    said = [f"{name} {value}" for name, value in shown.facts.items()]
    if shown.seeds:
        said.append(f"{counted(len(shown.seeds), 'seed')}: {' '.join(map(str, shown.seeds))}")
    head = [f"{table.name}: {shown.source}.", f"{table.title}.", *["; ".join(said) + "."] * bool(said)]
    return "\n".join([*head, "", table.layout(shown), "", *filter(None, (table.legend, summary(shown), shown.origin))])
