"""``sslbook gpu``: all that the book wants of a GPU, as ordinary commands in order of worth, each of which resumes; and a clock.

What it gives are logs in `_build/gpu` and records in `data/results`, which hold the book's own runs, too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from sslbook._check import InputError, positive
from sslbook._files import SOURCE, commit
from sslchapters.audit.full_runs import BYOL
from sslchapters.records import require_source_tree

OUT = SOURCE.parent / "_build/gpu"
GRACE, LATE = 20, (124, 137)
"""Seconds between asking a command to stop, which leaves a checkpoint, and stopping it; and what ``timeout`` ends with then."""
SIMCLR = ("simclr-nce", "simclr-exact", "simclr-exact-noise")


@dataclass(frozen=True)
class Step:
    """Commands of ``python -m``, each of which leaves out what is done.  seconds: predicted on one H100 with 16 cores."""

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
    """Work through the plan; exit status 1 if something is not as it should be, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="sslbook gpu", description="Do all that the book wants of a GPU.")
    parser.add_argument("--minutes", type=positive, default=25, metavar="M", help="how long (default: 25)")
    parser.add_argument("--plan", action="store_true", help="say what would be done, and do nothing")
    names = [step.name for step in STEPS]
    parser.add_argument("--only", nargs="+", choices=names, help="these steps alone, even if done")
    options = parser.parse_args(arguments)
    ends = time.monotonic() + 60 * options.minutes
    steps = [step for step in STEPS if not options.only or step.name in options.only]
    print(f"The plan, with the seconds predicted on one H100; {options.minutes} minutes:")
    for step, until in zip(steps, itertools.accumulate(step.seconds for step in steps), strict=True):
        late = " (not all of it in this time)" * (until > 60 * options.minutes)
        print(f"  {step.name:<12} {step.seconds:>6.0f} s  {step.what}{late}")
        print("\n".join(f"{'':24}{command}" for command in dict.fromkeys(step.commands)), flush=True)
    if options.plan:
        return 0
    require_source_tree()
    if not torch.cuda.is_available():
        raise InputError(f"no GPU that torch {torch.__version__} can use; each command of the plan also runs by itself")
    with patch.dict(os.environ, {"SSLBOOK_COMMIT": commit() or ""}):  # though the first record changes the tree
        return work_through(steps, ends, OUT, again=bool(options.only))


def work_through(steps: Sequence[Step], ends: float, folder: Path, *, again: bool) -> int:
    """Go on with the steps until ``ends``, by ``time.monotonic``; returns the exit status.  again: also with those that are done.

    A step that comes to its end leaves its log in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for step in steps:
        log, part, begun, status = folder / f"{step.name}.log", folder / f"{step.name}.part.log", time.monotonic(), 0
        if log.is_file() and not again:
            print(f"{step.name}: done already, see {log}", flush=True)
            continue
        with part.open("w", encoding="utf-8") as out:
            for command in step.commands:
                print(f"$ {command}", file=out, flush=True)
                limit = ["timeout", "--foreground", f"--kill-after={GRACE}", str(max(ends - time.monotonic(), 0.1))]
                line = [*limit, sys.executable, "-m", *shlex.split(command)]
                streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
                ended = subprocess.run(line, cwd=SOURCE.parent, **streams).returncode
                status = ended or status
                if ended not in (0, 1):  # late, or such as no images: nor could the rest be done
                    break
        if status in (0, 1):
            part.replace(log)
        bad |= status not in (0, *LATE)
        how = "stopped by the clock" if status in LATE else f"exit status {status}, see {folder}" if status else "done"
        print(f"{step.name}: {how}, in {time.monotonic() - begun:.0f} s", flush=True)
    print(f"To carry home: {folder}, and what is new in data/results")
    return int(bad)
