"""The papers' image tables of full runs: what is there of them beside the paper's numbers, what is owed, and how it is made."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from sslbook._check import counted, positive
from sslbook._files import runs_folder
from sslbook.training.cluster import CLUSTERS, Work, collect, fates, submit
from sslbook.training.papers import EPOCHS, IMAGES, ROWS, Run, presets, run_of
from sslbook.training.run.checkpoints import Row, read_result
from sslbook.training.run.step import load_data
from sslchapters import tables as form
from sslchapters.data_files import require_writable
from sslchapters.records import Record, require_source_tree, results_folder, save_record
from sslchapters.tables import Entry, Filled, Printed, Table, printed, record_of, unprinted

SEEDS = (1, 2, 3, 4, 5)
"""Runs of each cell, as the papers have them."""
ORIGIN = ("seed", "seconds", "device", "torch", "sslbook", "commit", "precision", "capture", "processes")
"""What a record keeps of each run's ``result.json``."""
PROBED = ("epoch", "linear", "linear_best")
"""And of each of its rows that has an accuracy of the linear protocol."""
TITLE = "Full runs: accuracy of the linear protocol in percent; best: over its epochs, by the test images, as released"


# --- which preset, after how many epochs, is in which cell -----------------------------------------------------------

SIMCLR = {
    "A-Tab2": ("simclr-exact", "simclr-exact-noise", "simclr-nce"),
    "A-Tab3": ("simclr-beta-minus-0.5", "simclr-beta-plus-0.2"),
}
"""The rows of each table, on CIFAR-10 and then on STL-10; columns are :data:`EPOCHS`."""
BYOL = {
    table: [row["name"] for row in ROWS if table in row["tables"].split()]
    for table in ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")
}
"""The cells of each table, row by row, after a hundred epochs."""


@dataclass(frozen=True)
class Cell:
    """One number of a table: which preset after how many epochs, and what the paper prints, in percent (None: nothing)."""

    label: str
    preset: str
    epochs: int
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class PaperTable:
    """A printed table as cells to run, row by row."""

    name: str
    target: Printed
    cells: tuple[Cell, ...]


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """The tables by name: A-Tab2, A-Tab3, and each of B's on STL-10, where the paper has it, and on CIFAR-10."""
    found = []
    for name, slugs in SIMCLR.items():
        runs = [(f"{data}-{slug}", epochs) for data in IMAGES for slug in slugs for epochs in EPOCHS]
        found.append((name, printed(name), runs))
    for data in ("stl10", "cifar10"):
        for name, names in BYOL.items():
            target, whole = printed(name), f"{name}-{data}-resnet18"
            if data != "stl10":
                source = f"{target.source}, which is on STL-10; here on CIFAR-10, where nothing is printed"
                target = unprinted(whole, source, target.axes)
            found.append((whole, target, [(f"{data}-{slug}", EPOCHS[0]) for slug in names]))
    tables = {}
    for name, target, runs in found:
        cells = zip(target.cells, runs, target.numbers(), strict=True)
        tables[name] = PaperTable(name, target, tuple(Cell(label, *run, *numbers) for label, run, numbers in cells))
    return tables


# --- what is there ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A cell of a table with what we have of it: accuracies of the linear protocol, one a seed, as shares of 1.

    epochs: after how many, which may be fewer than the cell's.  unchanged: the runs are the preset's own.
    diverged: a sentence for each seed whose run came to no end.  recorded: some are of a record, not of runs that are here.
    """

    cell: Cell
    epochs: int
    best: list[float]
    final: list[float]
    unchanged: bool
    diverged: tuple[str, ...]
    recorded: bool


def runs_of(
    sheet: PaperTable, seeds: Sequence[int], *, epochs: int | None = None, changes: Sequence[str] = ()
) -> list[Run]:
    """The runs that a table needs, each once: to the last column that it is for, or to ``epochs``."""
    last = {cell.preset: cell.epochs for cell in sorted(sheet.cells, key=lambda cell: cell.epochs)}
    names = dict.fromkeys(cell.preset for cell in sheet.cells)
    runs = [run_of(name, seed=0, epochs=min(epochs or last[name], last[name]), changes=changes) for name in names]
    return [replace(run, settings=replace(run.settings, seed=seed)) for seed in seeds for run in runs]


def lines(
    sheet: PaperTable,
    seeds: Sequence[int],
    root: Path,
    *,
    epochs: int | None = None,
    changes: Sequence[str] = (),
    recorded: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Line]:
    """The table's cells with what finished runs have of them; a run that is not here by its rows in ``recorded``, if it is there.

    recorded: the ``runs`` of a record, as :func:`_keep` writes them.
    With fewer epochs than the table's first column, that column is shown after as many as there are, and says so.
    """
    runs = {(run.name, run.settings.seed): run for run in runs_of(sheet, seeds, epochs=epochs, changes=changes)}
    first = {cell.preset: cell.epochs for cell in sorted(sheet.cells, key=lambda cell: -cell.epochs)}
    found = []
    for cell in sheet.cells:
        at = min(epochs or cell.epochs, cell.epochs) if cell.epochs == first[cell.preset] else cell.epochs
        mine = [runs[cell.preset, seed] for seed in seeds]
        known = [(recorded or {}).get(run.slug, {}) for run in mine]
        here = [_at(run.rows(root), at) for run in mine]
        rows = [own or _at(past.get("rows", []), at) for own, past in zip(here, known, strict=True)]
        best, final = ([row[measure] for row in rows if row] for measure in ("linear_best", "linear"))
        lost = [run.diverged(root) or past.get("diverged", "") for run, past in zip(mine, known, strict=True)]
        same = all(run.settings.hash() == presets()[run.name].settings.hash() for run in mine)
        found.append(Line(cell, at, best, final, same, tuple(filter(None, lost)), rows != here))
    return found


def _at(rows: Sequence[Row], epoch: int) -> Row | None:
    """The row after so many epochs, if the linear protocol was run there."""
    return next((row for row in rows if row["epoch"] == epoch and row.get("linear") is not None), None)


def filled(sheet: PaperTable, found: Sequence[Line], seeds: Sequence[int], **more: Any) -> Filled:
    """A table with what finished runs have of it.  more: of `Filled`."""
    texts = sheet.target.texts()
    entries = []
    for at, line in zip(itertools.product(*texts.values()), found, strict=True):
        percent = {name: [100 * value for value in getattr(line, name)] for name in ("best", "final")}
        whole = line.epochs == line.cell.epochs
        said = ["no run"] * (not line.best and not line.diverged) + [f"after {line.epochs}"] * (not whole)
        note = "; ".join([*said, *dict.fromkeys(line.diverged), *["recorded"] * line.recorded])
        entries.append(Entry(at, (line.cell.mean, line.cell.std), percent, note, whole and line.unchanged))
    return Filled(sheet.name, sheet.target.source, texts, tuple(entries), {"best": 2, "final": 2}, tuple(seeds), **more)


def on_page(name: str, seeds: Sequence[int], root: Path) -> Any:
    """A printed table for a page: the paper's number in each cell, after a bar ours, of a run or its record; one row upright."""
    sheet = paper_tables()[name]
    found = filled(sheet, lines(sheet, seeds, root, recorded=_recorded(name)), seeds)
    (_, *columns), made = form.cells(replace(found, measures={"best": 1}), brief=True)
    rows = [[first, *(cell.removesuffix(" | –") for cell in cells)] for first, *cells in made]
    if len(rows) == 1:
        columns, rows = ["%"], [list(pair) for pair in zip(columns, rows[0][1:], strict=True)]
    caption = f"{name}: accuracy in percent, as printed; after a bar ours, where it is made"
    return form.as_html(caption, ("", *columns), rows)


@dataclass(frozen=True)
class Owed:
    """A table's debt: how many runs it needs, how many are finished or recorded, the estimated hours on one H200 for the rest."""

    table: str
    runs: int
    finished: int
    hours: float


def owed(table: str, seeds: Sequence[int], root: Path) -> Owed:
    """The debt of one of :func:`paper_tables`."""
    wanted, known = runs_of(paper_tables()[table], seeds), _recorded(table)
    measured = {name: {row["epoch"] for row in run["rows"]} for name, run in known.items()}
    recorded = [run for run in wanted if measured.get(run.slug, set()) >= {run.settings.epochs, *run.settings.probes}]
    waiting = [run for run in wanted if run not in recorded and not run.finished(root)]
    minutes = sum(presets()[run.name].minutes for run in waiting)
    return Owed(table, len(wanted), len(wanted) - len(waiting), minutes / 60)


def _recorded(table: str) -> dict[str, Any]:
    """The runs of a table's record, by the names of their folders; none where there is no record."""
    record = record_of(table)
    return {} if record is None else dict(record["runs"])


# --- ``sslbook table`` -----------------------------------------------------------------------------------------------


def _runs(name: str, options: argparse.Namespace) -> tuple[list[Run], list[Run]]:
    """All runs, and those that are not finished; raises ValueError for options that don't go together."""
    if options.record:
        if options.changes or options.epochs:
            raise ValueError("--record is of the table as it is printed, without --set and --epochs")
        require_source_tree()
        require_writable(results_folder())
    for flag in ("jobs", "hours"):
        if getattr(options, flag) and not options.cluster:
            raise ValueError(f"--{flag} is for a cluster: add --cluster local")
    if options.slurm and options.cluster != "slurm":
        raise ValueError("--slurm is for a cluster: add --cluster slurm")
    options.seeds = options.seeds or SEEDS
    wanted = runs_of(paper_tables()[name], options.seeds, epochs=options.epochs, changes=options.changes)
    return wanted, [run for run in wanted if not run.finished(runs_folder(options.folder))]


def _plan(name: str, options: argparse.Namespace) -> str:
    _, missing = _runs(name, options)
    folders = [str(run.folder(runs_folder(options.folder))) for run in missing]
    return "\n".join([*folders, f"{counted(len(missing), 'run')} missing."])


def _run(name: str, options: argparse.Namespace) -> Filled:
    """Make what is missing, here or on a cluster, and show the table; a run that came to no end is ``wrong``."""
    (_, missing), root = _runs(name, options), runs_folder(options.folder)
    chosen = {"device": options.device, "quiet": options.quiet}
    wrong: list[str] = []
    if options.download:
        for settings in {(run.settings.dataset, run.settings.split): run.settings for run in missing}.values():
            load_data(settings, download=True)
    if missing and options.cluster is None:
        for number, run in enumerate(missing, 1):
            if not options.quiet:
                print(f"Run {number} of {len(missing)}: {run.slug}", file=sys.stderr, flush=True)
            wrong += Work([run], root, chosen)()
    elif missing:
        more = {"at_once": options.jobs or 1, "hours": options.hours, "sbatch": options.slurm}
        jobs = submit(missing, root, options.cluster, **more, **chosen)
        print(
            f"{counted(len(jobs), 'job')} handed over; their logs are in {root / 'jobs'}", file=sys.stderr, flush=True
        )
        wrong += [] if options.cluster == "slurm" else collect(jobs)
    return _show(name, None, options, wrong=tuple(wrong))


def _show(name: str, record: Record | None, options: argparse.Namespace, wrong: tuple[str, ...] = ()) -> Filled:
    """The table with the runs that are here; where one is not, with what the record has of it."""
    wanted, missing = _runs(name, options)
    sheet, root, seeds = paper_tables()[name], runs_folder(options.folder), options.seeds
    if options.record:
        _keep(sheet, seeds, root, shlex.join(["sslbook", "table", name, *options.given]))
    record = None if options.changes or options.epochs else record_of(name)
    known, facts = (
        record["runs"] if record else None,
        {"changed": ", ".join(options.changes)} if options.changes else {},
    )
    found = lines(sheet, seeds, root, epochs=options.epochs, changes=options.changes, recorded=known)
    told = [f"Recorded: {record.provenance}"] if record and any(line.recorded for line in found) else []
    origin = "\n".join([*told, *_left(name, len(wanted), missing, options)])
    return filled(sheet, found, seeds, facts=facts, origin=origin, wrong=wrong)


def _left(name: str, wanted: int, missing: Sequence[Run], options: argparse.Namespace) -> Iterator[str]:
    """What is still to be made of so many runs, the command for it, and what became of jobs."""
    if not missing:
        yield f"Finished: {counted(wanted, 'run')}."
        return
    given = [part for change in options.changes for part in ("--set", change)]
    if tuple(options.seeds) != SEEDS:
        given += ["--seeds", *map(str, options.seeds)]
    for flag in ("epochs", "folder"):
        if (value := getattr(options, flag)) is not None:
            given += [f"--{flag}", str(value)]
    again = shlex.join(["sslbook", "table", name, *given, "--run"])
    hours = sum(replace(presets()[run.name], settings=run.settings).minutes for run in missing) / 60
    about = f", in about {hours:.0f} hours on one H200" * (hours >= 1)
    yield f"{counted(len(missing), 'run')} of {wanted} not made yet: {again} makes them{about}."
    yield from fates(missing, runs_folder(options.folder))


def _keep(sheet: PaperTable, seeds: Sequence[int], root: Path, command: str) -> None:
    """Add the finished runs to the table's record; raises ValueError if there are none.

    By the names of their folders, it keeps :data:`ORIGIN` and probed rows of each run; of one that diverged, where.  Of a run that
    the record has already, all rows are kept, the newer where both have an epoch, and the rest as the longer says.
    """
    new: dict[str, dict[str, Any]] = {}
    for run in runs_of(sheet, seeds):
        content = read_result(run.folder(root))
        if content is not None:
            rows = [{name: row[name] for name in PROBED} for row in content["rows"] if row.get("linear") is not None]
            new[run.slug] = {name: content.get(name) for name in ORIGIN} | {"rows": rows}
        elif text := run.diverged(root):
            new[run.slug] = {"seed": run.settings.seed, "diverged": text, "rows": []}
    if not new:
        raise ValueError(f"there is nothing to record: no run of {sheet.name} is finished in {root}")
    old = _recorded(sheet.name)
    kept = {**old, **new}
    for name in old.keys() & new.keys():
        by_epoch = {row["epoch"]: row for part in (old[name], new[name]) for row in part["rows"]}
        longer = max((new[name], old[name]), key=lambda part: max((row["epoch"] for row in part["rows"]), default=-1))
        kept[name] = {**longer, "rows": [by_epoch[epoch] for epoch in sorted(by_epoch)]}
    of, seconds = sorted({run["seed"] for run in kept.values()}), sum(run.get("seconds") or 0 for run in kept.values())
    with tempfile.TemporaryDirectory() as nowhere:  # by the record alone
        found = lines(sheet, of, Path(nowhere), recorded=kept)
    cells = [{"cell": row.cell.label, "epochs": row.epochs, "best": row.best, "final": row.final} for row in found]
    file = save_record(sheet.name, {"cells": cells, "runs": kept}, seeds=of, seconds=seconds, command=command)
    print(f"Written: {file}", file=sys.stderr)


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--epochs", type=positive, metavar="N", help="after so many epochs (default: the table's)")
    add("--set", dest="changes", metavar="KEY=VALUE", action="append", default=[], help="change a setting of all runs")
    add("--dry-run", action="store_true", help="name the runs that are missing, and make none")
    add("--record", action="store_true", help="add the finished runs' numbers to data/results")
    add("--cluster", choices=CLUSTERS, help="run it through submitit")
    add("--jobs", type=positive, metavar="N", help="jobs of a cluster at once (default: 1)")
    add("--hours", type=positive, metavar="N", help="the longest that a job may take (Slurm: 24)")
    add("--slurm", metavar="OPTION", action="append", default=[], help="an option of sbatch: partition=gpu")
    add("--folder", type=Path, metavar="DIR", help="where runs lie (default: SSLBOOK_RUNS, else runs)")
    add("--download", action="store_true", help="fetch the images if they are not here")
    add("--quiet", action="store_true", help="say nothing while it runs")


TABLES = {
    name: Table(
        name,
        TITLE,
        name,
        SEEDS,
        partial(_show, name),
        partial(_run, name),
        _options,
        form.listing,
        partial(_plan, name),
    )
    for name in paper_tables()
}
