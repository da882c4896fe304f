"""The command ``sslbook gpu``: all that the book wants of a GPU, as ordinary commands in order of worth, and a clock.

What it gave comes back in one archive, whose records are brought into the book by ``--merge``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from sslbook._check import InputError, positive, unknown
from sslbook._files import SOURCE, atomic, commit
from sslchapters.records import Record, path_of, recorded, require_source_tree, results_folder, write_record
from sslchapters.sweep import environment
from sslchapters.training.full_runs import recorded_values, seeds_of, united
from sslchapters.training.paper_tables import BYOL, paper_tables

MINUTES = 25
OUT = SOURCE.parent / "_build/gpu"
ARCHIVE = "results.zip"
GRACE = 20.0
"""Seconds between asking a command to stop, which leaves a checkpoint, and stopping it."""
RECORDS = ("A-Tab2", "B-Tab3-cifar10-resnet18", "training-operator-full")
"""The records that the plan makes."""
SIMCLR = ("simclr-nce", "simclr-exact", "simclr-exact-noise")


@dataclass(frozen=True)
class Step:
    """A part of the plan: ``commands`` of ``python -m``, each of which leaves out what is done; the log of all says that they are.

    seconds: predicted on one H100 with 16 cores.
    """

    name: str
    what: str
    seconds: float
    commands: tuple[str, ...]


def _runs(table: str, presets: Sequence[str], *seeds: int) -> tuple[str, ...]:
    """Runs of 100 epochs on CIFAR-10, each in the table's record as soon as it is finished."""
    kept = f"sslbook table {table} --record"
    runs = [f"sslbook train cifar10-{preset} --seed {seed} --epochs 100" for seed in seeds for preset in presets]
    return tuple(command for run in runs for command in (run, kept))


STEPS = (
    Step("tests", "the tests that need a GPU", 60, ("pytest tests -m 'gpu and not long' -q -p no:cacheprovider",)),
    Step("bench", "every stage of training, in images a second", 240, ("sslbook bench training",)),
    Step("simclr", "A-Tab2 on CIFAR-10, a seed of each loss", 930, _runs("A-Tab2", SIMCLR, 1)),
    Step("chapters", "all chapters at the papers' size", 600, ("sslbook execute --scale paper --device cuda",)),
    Step("tables", "two tables of the theory", 120, ("sslbook table A-Tab6 --run", "sslbook table C-Tab1 --run")),
    Step(
        "byol", "B-Tab3 on CIFAR-10, its eight cells", 2800, _runs("B-Tab3-cifar10-resnet18", BYOL["B-Tab3"][::-1], 1)
    ),
    Step("operator", "the operator of such a run's layers", 100, ("sslbook record training-operator-full",)),
    Step("simclr-more", "A-Tab2 on CIFAR-10, four more seeds", 3600, _runs("A-Tab2", SIMCLR, 2, 3, 4, 5)),
)
"""In order of worth: what comes first is worked through first."""


def main(arguments: Sequence[str]) -> int:
    """Work through the plan, or bring in what it gave; exit status 1 if something is not as it should be, 2 for bad input."""
    ends, options = time.monotonic(), _parser().parse_args(arguments)
    ends += 60 * options.minutes
    if options.merge is not None:
        for path in merge(options.merge):
            print(f"Written: {path}")
        return 0
    steps = [step for step in STEPS if not options.only or step.name in options.only]
    if wrong := set(options.only) - {step.name for step in steps}:
        raise unknown("--only", min(wrong), [step.name for step in STEPS])
    print(_told(steps, options.minutes), flush=True)
    if options.plan:
        return 0
    require_source_tree()
    print(f"On {_gpu()}; the same command goes on where this one is stopped.\n", flush=True)
    one_commit = {"SSLBOOK_COMMIT": commit() or ""}  # though the first record changes the tree
    try:
        with environment(one_commit):
            return work_through(steps, ends, OUT, again=bool(options.only))
    finally:
        print(f"To carry: {_pack(OUT)}. Where the book is built: sslbook gpu --merge {ARCHIVE}")


def work_through(steps: Sequence[Step], ends: float, folder: Path, *, again: bool) -> int:
    """Go on with the steps until ``ends``, by ``time.monotonic``; returns the exit status.  again: also with those that are done.

    A step that comes to its end leaves its log in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for step in steps:
        log, begun = folder / f"{step.name}.log", time.monotonic()
        if log.is_file() and not again:
            print(f"{step.name}: done already, see {log}", flush=True)
            continue
        status = _work(step, log, ends)
        bad |= bool(status)
        how = "stopped by the clock" if status is None else "done" if not status else f"exit status {status}"
        shown = log if status in (0, 1) else _part(log)
        last = shown.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2].strip()
        more = f": {last} (all of it: {shown})" if status else ""
        print(f"{step.name}: {how} in {time.monotonic() - begun:.0f} s{more}", flush=True)
        _pack(folder)  # so that whatever comes next, what is done can be carried
    return bad


def _work(step: Step, log: Path, ends: float) -> int | None:
    """The first exit status of a step's commands that is not 0; None where the clock stopped them."""
    bad = 0
    with _part(log).open("w", encoding="utf-8") as out:
        for command in step.commands:
            print(f"$ {command}", file=out, flush=True)
            status = _status(command, ends - time.monotonic(), out)
            bad = bad or status or 0
            if status is None:
                return None
            if status not in (0, 1):  # such as no images: nor could the rest be done
                return status
    _part(log).replace(log)
    return bad


def _part(log: Path) -> Path:
    return log.with_suffix(".part.log")


def _status(command: str, seconds: float, out: IO[str]) -> int | None:
    """What a command ends with in so many seconds; None if it doesn't.  Its process group is gone in any case."""
    if seconds <= 0:
        return None
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=SOURCE.parent,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)


def _pack(folder: Path) -> Path:
    """The logs and the records of the plan in one file."""
    files = [*folder.glob("*.log"), *(results_folder() / f"{name}.json" for name in RECORDS)]
    with atomic(folder / ARCHIVE) as fresh, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in filter(Path.is_file, files):
            archive.write(path, path.name)
    return folder / ARCHIVE


def _gpu() -> str:
    """Names the GPU; raises InputError where there is none."""
    import torch

    if not torch.cuda.is_available():
        build = "is built without CUDA" if torch.version.cuda is None else "finds none that it can use"
        raise InputError(f"no GPU: torch {torch.__version__} {build}; each command of the plan also runs by itself")
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def _told(steps: Sequence[Step], minutes: int) -> str:
    """Each step with its commands, the seconds predicted, and how far they come together."""
    lines, total = [f"The plan, with the seconds predicted on one H100; {minutes} minutes:"], 0.0
    for step in steps:
        total += step.seconds
        late = " (not all of it in this time)" if total > 60 * minutes else ""
        lines.append(f"  {step.name:<12} {step.seconds:>6.0f} s  {step.what}{late}")
        lines += [f"{'':24}{command}" for command in dict.fromkeys(step.commands)]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslbook gpu", description="Work through all that the book wants of a GPU, in order of worth."
    )
    parser.add_argument("--minutes", type=positive, default=MINUTES, metavar="M", help="how long (default: 25)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="STEP", help="these steps alone, also if they are done"
    )
    parser.add_argument("--plan", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--merge", type=Path, metavar="ZIP", help=f"bring the records of {ARCHIVE} into data/results")
    return parser


# -- what comes back ------------------------------------------------------------------------------------------------------


def merge(place: Path) -> list[Path]:
    """Write the records of an archive into data/results; of a table's, run by run beside those that are there already.

    Raises InputError where the archive or a record in it can't be read; then nothing is written.
    """
    require_source_tree()
    return [write_record(record) for record in [_joined(record) for record in _read(place)]]


def _read(place: Path) -> Iterator[Record]:
    if not zipfile.is_zipfile(place):
        raise InputError(f"--merge: got {place}, which is no results.zip of sslbook gpu")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(place) as archive:
        there = [name for name in RECORDS if f"{name}.json" in archive.namelist()]
        if not there:
            raise InputError(f"--merge: {place} holds none of the records {', '.join(RECORDS)}")
        for name in there:
            try:
                archive.extract(f"{name}.json", folder)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise InputError(f"--merge: {place} is damaged ({error})") from None
            yield _checked(name, Path(folder))


def _checked(name: str, folder: Path | None = None) -> Record:
    """A record, of the book unless ``folder`` is given; raises InputError for one that can't be read, or whose runs are none."""
    try:
        record = recorded(name, folder=folder)
        if name in paper_tables():
            recorded_values(paper_tables()[name], record["runs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        whose = "the book's" if folder is None else "the archive's"
        raise InputError(f"--merge: {whose} record {name} can't be used ({error})") from None
    return record


def _joined(record: Record) -> Record:
    """A table's record with the runs of the one that stands; any other takes that one's place."""
    if record.name not in paper_tables() or not path_of(record.name).is_file():
        return record
    runs = united(_checked(record.name)["runs"], record["runs"])
    seconds = sum(run.get("seconds") or 0 for run in runs.values())
    origin = replace(record.provenance, seeds=seeds_of(runs), seconds=round(seconds, 3))
    return Record(record.name, recorded_values(paper_tables()[record.name], runs), origin)
