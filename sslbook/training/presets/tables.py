"""The papers' image tables of full runs: what is there of them beside the paper's numbers, what is owed, and how it is made."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sslbook.records import filled as form
from sslbook.records.filled import Entry, Filled
from sslbook.records.store import Record, require_source_tree, results_folder, runs_folder, save_record
from sslbook.records.table_command import EPOCHS, Table, count, option, record_of
from sslbook.runtime.arguments import counted
from sslbook.runtime.atomic_io import require_writable
from sslbook.training.presets import cluster
from sslbook.training.presets.runs import Line, Run, lines, origins, recorded_values, runs_of, seeds_of, united
from sslbook.training.presets.sheets import Sheet, presets, sheets
from sslbook.training.run.determinism import load_data

SEEDS = (1, 2, 3, 4, 5)
"""Runs of each cell, as the papers have them."""
TITLE = "Full runs: accuracy of the linear protocol in percent; best: over its epochs, by the test images, as released"


# -- what is there ----------------------------------------------------------------------------------------------------


def filled(sheet: Sheet, found: Sequence[Line], seeds: Sequence[int], **more: Any) -> Filled:
    """A table with what finished runs have of it.  more: of `Filled`."""
    texts = sheet.target.texts()
    entries = (_entry(at, line) for at, line in zip(itertools.product(*texts.values()), found, strict=True))
    measures = {"best": 2, "final": 2}
    return Filled(sheet.name, sheet.target.source, texts, tuple(entries), measures, tuple(seeds), **more)


def _entry(at: tuple[str, ...], line: Line) -> Entry:
    percent = {name: [100 * value for value in values] for name, values in (("best", line.best), ("final", line.final))}
    after = [f"after {line.epochs}"] * (not line.whole)
    missing = ["no run"] * (not line.best and not line.diverged)
    note = "; ".join([*missing, *after, *dict.fromkeys(line.diverged), *["recorded"] * line.recorded])
    return Entry(at, (line.cell.mean, line.cell.std), percent, note, line.whole and line.unchanged)


def grid(table: str, seeds: Sequence[int], root: Path) -> str:
    """The paper's mean, a bar, and ours in each cell, of a run or its record: a dash where neither is."""
    sheet = sheets()[table]
    found = lines(sheet, seeds, root, recorded=_recorded(table))
    return form.grid(replace(filled(sheet, found, seeds), measures={"best": 1}), brief=True)


def _recorded(table: str) -> dict[str, Any]:
    """The runs of a table's record, by the names of their folders; none where there is no record."""
    record = record_of(table)
    return {} if record is None else dict(record["runs"])


@dataclass(frozen=True)
class Owed:
    """A table's debt: how many runs it needs, how many are finished or recorded, the estimated hours on one H200 for the rest."""

    table: str
    runs: int
    finished: int
    hours: float
    command: str

    def __str__(self) -> str:
        """One line: name, runs that wait, hours."""
        return f"{self.table:<25}{self.runs - self.finished:>4} of {self.runs:<4}{self.hours:>6.1f} h"


def owed(table: str, seeds: Sequence[int], root: Path) -> Owed:
    """The debt of one of :func:`sslbook.training.presets.sheets.sheets`; raises ValueError for a name that is none of them."""
    if table not in sheets():
        raise ValueError(f"table must be one of {', '.join(sheets())}, got {table!r}")
    wanted = runs_of(sheets()[table], seeds)
    known = _recorded(table)
    waiting = [run for run in wanted if not run.finished(root) and not _whole(run, known.get(run.folder(root).name))]
    minutes = sum(presets()[run.name].minutes for run in waiting)
    return Owed(table, len(wanted), len(wanted) - len(waiting), minutes / 60, f"sslbook table {table} --run --download")


def _whole(run: Run, kept: Mapping[str, Any] | None) -> bool:
    """Whether a record has all of a run that makes it finished."""
    measured = {row["epoch"] for row in kept["rows"]} if kept else set()
    return measured >= {run.settings.epochs, *run.settings.probes}


# -- ``sslbook table`` ------------------------------------------------------------------------------------------------


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    return {"epochs": options.epochs, "changes": options.changes}


def _as_printed(options: argparse.Namespace) -> bool:
    return not options.changes and options.epochs is None


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError for options that don't go together."""
    if options.record and not _as_printed(options):
        raise ValueError("--record is of the table as it is printed, without --set and --epochs")
    if options.record:
        require_source_tree()
        require_writable(results_folder())
    for flag in ("jobs", "hours"):
        if getattr(options, flag) and not options.cluster:
            raise ValueError(f"--{flag} is for a cluster: add --cluster local")
    if options.slurm and options.cluster != "slurm":
        raise ValueError("--slurm is for a cluster: add --cluster slurm")


def _missing(name: str, options: argparse.Namespace) -> list[Run]:
    root = runs_folder(options.folder)
    return [run for run in runs_of(sheets()[name], options.seeds, **_chosen(options)) if not run.finished(root)]


def _plan(name: str, options: argparse.Namespace) -> str:
    _check(options)
    root, missing = runs_folder(options.folder), _missing(name, options)
    return "\n".join([*(str(run.folder(root)) for run in missing), f"{counted(len(missing), 'run')} missing."])


def _run(name: str, options: argparse.Namespace) -> Filled:
    _check(options)
    missing = _missing(name, options)
    return _shown(name, options, wrong=tuple(_make(missing, runs_folder(options.folder), options) if missing else ()))


def _recall(name: str, record: Record | None, options: argparse.Namespace) -> Filled:
    _check(options)
    options.seeds = options.seeds or SEEDS
    return _shown(name, options)


def _shown(name: str, options: argparse.Namespace, wrong: tuple[str, ...] = ()) -> Filled:
    """The table with the runs that are here; where one is not, with what the record has of it."""
    sheet, root, seeds = sheets()[name], runs_folder(options.folder), options.seeds
    if options.record:
        _keep(sheet, seeds, root, ["sslbook", "table", name, *options.given])
    record = record_of(name) if _as_printed(options) else None
    known = None if record is None else record["runs"]
    found = lines(sheet, seeds, root, recorded=known, **_chosen(options))
    facts = {"changed": ", ".join(options.changes)} if options.changes else {}
    told = [f"recorded: {record.provenance}"] if record and any(line.recorded for line in found) else []
    origin = "\n".join([*told, *_left(name, root, options)])
    return filled(sheet, found, seeds, facts=facts, origin=origin, wrong=wrong)


def _left(name: str, root: Path, options: argparse.Namespace) -> Iterator[str]:
    """What is still to be made, the command for it, and what became of jobs."""
    wanted = runs_of(sheets()[name], options.seeds, **_chosen(options))
    left = [run for run in wanted if not run.finished(root)]
    if not left:
        yield f"Finished: {counted(len(wanted), 'run')}."
        return
    again = shlex.join(["sslbook", "table", name, *_given(options), "--run"])
    yield f"{counted(len(left), 'run')} of {len(wanted)} not made yet: {again} makes them."
    yield from cluster.fates(left, root)


def _given(options: argparse.Namespace) -> list[str]:
    """The options that say which runs are meant."""
    given = [part for change in options.changes for part in ("--set", change)]
    if tuple(options.seeds) != SEEDS:
        given += ["--seeds", *map(str, options.seeds)]
    if options.epochs is not None:
        given += ["--epochs", str(options.epochs)]
    return given + (["--folder", str(options.folder)] if options.folder is not None else [])


def _keep(sheet: Sheet, seeds: Sequence[int], root: Path, command: Sequence[str]) -> None:
    """Add the finished runs to the table's record; raises ValueError if there are none."""
    here = origins(runs_of(sheet, seeds), root)
    if not here:
        raise ValueError(f"there is nothing to record: no run of {sheet.name} is finished in {root}")
    kept = united(_recorded(sheet.name), here)
    values, seconds = recorded_values(sheet, kept), sum(run.get("seconds") or 0 for run in kept.values())
    file = save_record(sheet.name, values, seeds=seeds_of(kept), seconds=seconds, command=shlex.join(command))
    print(f"Written: {file}", file=sys.stderr)


def _make(missing: Sequence[Run], root: Path, options: argparse.Namespace) -> list[str]:
    """Make runs here or on a cluster; returns a sentence for each that came to no end."""
    if options.download:
        for settings in {(run.settings.dataset, run.settings.split): run.settings for run in missing}.values():
            load_data(settings, download=True)
    chosen = {"device": options.device, "quiet": options.quiet}
    if options.cluster is None:
        wrong = []
        for number, run in enumerate(missing, 1):
            if not options.quiet:
                print(f"Run {number} of {len(missing)}: {run.folder(root).name}", file=sys.stderr, flush=True)
            wrong += cluster.work([run], root, chosen)
        return wrong
    asked = {"hours": options.hours, "parameters": cluster.for_sbatch(options.slurm)}
    jobs = cluster.submit(missing, root, options.cluster, at_once=options.jobs or 1, **asked, **chosen)
    print(f"{counted(len(jobs), 'job')} handed over; their logs are in {root / 'jobs'}", file=sys.stderr, flush=True)
    return [] if options.cluster == "slurm" else cluster.collect(jobs)


OPTIONS = (
    EPOCHS,
    option("--set", "change a setting of all runs", action="append", default=[], metavar="KEY=VALUE", dest="changes"),
    option("--dry-run", "name the runs that are missing, and make none"),
    option("--record", "add the finished runs' numbers to data/results"),
    option("--cluster", "run it through submitit", starts=True, choices=cluster.CLUSTERS),
    count("--jobs", "jobs of a cluster at once (default: 1)"),
    count("--hours", "the longest that a job may take (Slurm: 24)"),
    option("--slurm", "an option of sbatch: --slurm partition=gpu", action="append", default=[], metavar="OPTION"),
    option("--folder", "where runs lie (default: SSLBOOK_RUNS, else runs)", type=Path, metavar="DIR"),
    option("--download", "fetch the images if they are not here", running=True),
    option("--quiet", "say nothing while it runs", running=True),
)


def _declared(name: str) -> Table:
    recall, rerun, plan = partial(_recall, name), partial(_run, name), partial(_plan, name)
    return Table(name, TITLE, name, SEEDS, recall, rerun, OPTIONS, form.listing, plan)


TABLES = {name: _declared(name) for name in sheets()}
