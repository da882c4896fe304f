"""The steps themselves: ``python -m sslbook.bench.gpu.work STEP DIR`` goes on with one, in a process of its own.

Each step leaves out the items that are done, so that a step called again ends with what an undisturbed one would have given, but
for the seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sslbook.arguments import InputError
from sslbook.bench.gpu.desk import Desk, opened
from sslbook.book.layout import PACKAGE, Book, find_book
from sslbook.machine import cores

SEEDS = (1, 2, 3, 4, 5)
BYOL_SEEDS = (1,)
EPOCHS = 100
TINY = (
    *("dataset=digits", "split=train", "pipeline=digits", "networks.channels=1", "networks.stem=cifar"),
    *("networks.width=2", "networks.projector_hidden=8", "networks.projector_out=8", "subset=128", "batch=64"),
)
"""Settings of a run of seconds, on images that are always there."""
LOCK, LOCK_SECONDS = "work.lock", 120
"""Held by the step that works in the folder; how long the next one waits for it."""
TINY_TABLES = {
    "A-Tab6": ("--seeds", "1", "--epoch-size", "128", "--processes", "2"),
    "C-Tab1": ("--seeds", "1", "--steps", "2", "--processes", "2"),
}
"""The tables that are rerun, with options that make it seconds."""
BENCH = ("epoch", "step", "forward", "evaluate", "capture", "augment")
"""The stages of the benchmark, what is asked for first."""
COMMAND = "sslbook gpu"
TINY_CHAPTER = "dual_networks"
MARK = "mark.gpu"
"""What a file of tests says that has some for a GPU."""


def tests(desk: Desk) -> None:
    """pytest's own count of the tests marked ``gpu``."""
    if desk.has("tests", "gpu"):
        return
    report = desk.folder / "logs" / "tests.xml"
    report.unlink(missing_ok=True)
    # By name, since collecting all tests would need what the book is built with; and without plugins that happen to be there.
    files = [
        str(path) for path in sorted((PACKAGE.parent / "tests").glob("test_*.py")) if MARK in path.read_text("utf-8")
    ]
    asked = [*files, "-m", "gpu", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *asked, f"--junitxml={report}"]
    status = subprocess.run(command, cwd=PACKAGE.parent, env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    if not report.is_file():
        raise RuntimeError(f"pytest ended with status {status.returncode}, and counted nothing")
    desk.keep("tests", "gpu", counts(report))


def counts(report: Path) -> dict[str, Any]:
    """What a report of pytest in JUnit's form says: how many passed, failed and were skipped, and the names of the failed."""
    suite = ElementTree.parse(report).getroot()[0]
    number = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in suite if _broken(case)]
    passed = number["tests"] - failed - number["skipped"]
    return {"passed": passed, "failed": failed, "skipped": number["skipped"], "failures": names}


def _broken(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def all_of(items: Iterable[str], do: Callable[[str], None]) -> None:
    """``do`` each item, also after one that failed; raises RuntimeError, with the names, if one did."""
    failed = []
    for item in items:
        print(f"{item} …", flush=True)
        try:
            do(item)
        except Exception as error:  # what stops one item must not keep the others from their turn
            traceback.print_exc()
            failed.append(f"{item} ({type(error).__name__}: {error})")
    if failed:
        raise RuntimeError("; ".join(failed))


def bench(desk: Desk) -> None:
    """The stages of ``sslbook bench training``, each for itself, and all that are there as a record."""
    stages, options = (("forward",), ("--quick",)) if desk.tiny else (BENCH, ())
    try:
        _timed(desk, "bench", stages, lambda stage: _asked("bench", "training", stage, "--json", *options))
    finally:
        _record_all(desk, "bench")


def tables(desk: Desk) -> None:
    """Two printed tables of the theory, timed: work for all cores, beside a GPU that waits."""

    def rerun(name: str) -> dict[str, Any]:
        return {"table": _asked("table", name, "--run", "--json", *(TINY_TABLES[name] if desk.tiny else ()))}

    try:
        _timed(desk, "tables", TINY_TABLES, rerun)
    finally:
        _record_all(desk, "tables")


def _timed(desk: Desk, step: str, items: Iterable[str], measure: Callable[[str], Mapping[str, Any]]) -> None:
    """Keep what ``measure`` gives for each item that isn't done, and the seconds that it took."""

    def keep(item: str) -> None:
        begun = time.monotonic()
        found = measure(item)
        desk.keep(step, item, {"seconds": round(time.monotonic() - begun, 1), **found})

    all_of([item for item in items if not desk.has(step, item)], keep)


def _record_all(desk: Desk, step: str) -> None:
    """All that a step has so far as one record, if it has anything."""
    if done := desk.done(step):
        _record(desk, f"gpu-{step}", done, seeds=(0,), seconds=sum(part["seconds"] for part in done.values()))


def _record(desk: Desk, name: str, values: Mapping[str, Any], *, seeds: Sequence[int], seconds: float) -> None:
    """A record among those that travel, made by this command on this device."""
    from sslbook.records import save_record

    save_record(name, values, seeds=seeds, seconds=seconds, command=COMMAND, folder=desk.records, device=desk.device)


def simclr(desk: Desk) -> None:
    """A-Tab2 on CIFAR-10: one seed of each loss, then the second, and so on."""
    _train(desk, "simclr", "A-Tab2", ("simclr-nce", "simclr-exact", "simclr-exact-noise"), SEEDS)


def byol(desk: Desk) -> None:
    """The eight cells of B-Tab3 on CIFAR-10, from BYOL as it is to BYOL without all three parts."""
    from sslbook.chapters.training.presets import PARTS

    _train(desk, "byol", "B-Tab3-cifar10-resnet18", tuple(reversed(PARTS)), BYOL_SEEDS)


def _train(desk: Desk, step: str, table: str, slugs: Sequence[str], seeds: Sequence[int]) -> None:
    """Runs of a table's presets, and after each the table's record anew; one that diverged is in it too."""
    from sslbook.chapters.training.presets import sheets
    from sslbook.chapters.training.runs import origins, recorded_values, run_of, seeds_of
    from sslbook.training.runs.state import Diverged

    seeds, slugs = (seeds[:1], slugs[:2]) if desk.tiny else (seeds, slugs)
    epochs, changes = (1, TINY) if desk.tiny else (EPOCHS, ())
    made = [run_of(f"cifar10-{slug}", seed=seed, epochs=epochs, changes=changes) for seed in seeds for slug in slugs]
    runs = {f"{run.name}-s{run.settings.seed}": run for run in made}

    def go(item: str) -> None:
        try:
            runs[item].go(desk.runs, device=desk.device)
            found: dict[str, Any] = runs[item].rows(desk.runs)[-1]
        except Diverged as error:
            found = {"diverged": str(error)}
        here = origins(made, desk.runs)
        values = recorded_values(sheets()[table], here, epochs=epochs if desk.tiny else None, changes=changes)
        seconds = sum(origin.get("seconds") or 0 for origin in here.values())
        _record(desk, table, values, seeds=seeds_of(here), seconds=seconds)
        desk.keep(step, item, found)

    all_of([item for item in runs if not desk.has(step, item)], go)


def chapters(desk: Desk) -> None:
    """Every chapter through papermill, side by side; its numbers beside those that are expected."""
    from sslbook.book.chapters import choose, find_chapters

    book = replace(find_book(PACKAGE.parent), out=desk.folder)
    chosen = [chapter.name for chapter in choose(find_chapters(book), [TINY_CHAPTER] if desk.tiny else [])]
    done = {name for name, values in desk.done("chapters").items() if not values["error"]}  # others are tried again
    with ThreadPoolExecutor(max(1, min(len(chosen), cores()))) as pool:
        list(pool.map(lambda name: _chapter(desk, book, name), [name for name in chosen if name not in done]))


def _chapter(desk: Desk, book: Book, name: str) -> None:
    """One chapter; of a failed one, its error."""
    from sslbook.book.chapters import choose, find_chapters
    from sslbook.book.execute import CELL_SECONDS, Setting, execute, stored_record
    from sslbook.book.regression import differences, read_expected, read_numbers

    scale = "quick" if desk.tiny else "paper"
    setting = Setting(scale, 0, desk.device, CELL_SECONDS[scale])
    (outcome,) = execute(book, choose(find_chapters(book), [name]), setting, jobs=1, say=_say)
    if outcome.status == "failed":
        values: dict[str, Any] = {"seconds": round(outcome.seconds, 1), "error": outcome.error.strip() or "it failed"}
    else:
        found, held = read_numbers(book, name, scale), read_expected(book.expected(name, scale))
        problems = differences(found, held)
        gone = len(held.keys() - {number.name for number in found})
        values = {
            "seconds": stored_record(book.executed(scale) / f"{name}.ipynb")["seconds"],
            "error": "",
            "compared": len(found),
            "agreed": len(found) - (len(problems) - gone),
            "differences": problems,
            "numbers": [number.to_json() for number in found],
        }
    desk.keep("chapters", name, {"scale": scale, **values})


def _say(line: str) -> None:
    print(line, flush=True)


def operator(desk: Desk) -> None:
    """The record of the operator along a run of full width, an epoch after the other."""
    from sslbook.chapters.training.layer_operators import FULL, FULL_EPOCHS, full_values, joined

    small: dict[str, Any] = {"changes": (*FULL, *TINY), "images": 4} if desk.tiny else {}
    epochs = (0, 1) if desk.tiny else FULL_EPOCHS

    def measure(item: str) -> dict[str, Any]:
        epoch = int(item.removeprefix("epoch-"))
        return {"values": full_values((1,), epochs=(epoch,), device=desk.device, root=desk.runs, **small)}

    items = [f"epoch-{epoch}" for epoch in epochs]
    _timed(desk, "operator", items, measure)
    done = desk.done("operator")
    values, seconds = joined([done[item]["values"] for item in items]), sum(part["seconds"] for part in done.values())
    _record(desk, "training-operator-full", values, seeds=(1,), seconds=seconds)


def _asked(*arguments: str) -> dict[str, Any]:
    """What a command of ours answers as JSON; its table also where a bar is missed."""
    command = [sys.executable, "-m", "sslbook", *arguments]
    done = subprocess.run(command, cwd=PACKAGE.parent, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1) or not done.stdout.lstrip().startswith("{"):
        raise RuntimeError(f"sslbook {' '.join(arguments)} ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout, parse_constant=lambda _: None)  # no NaN goes into a record
    return found


WORK: dict[str, Callable[[Desk], None]] = {
    "tests": tests,
    "bench": bench,
    "simclr": simclr,
    "chapters": chapters,
    "tables": tables,
    "byol": byol,
    "operator": operator,
}
"""What does each step."""


def main(arguments: Sequence[str]) -> int:
    """Go on with a step; exit status 2 for what can't be done here, 130 where it was stopped."""
    step, folder = arguments[0], Path(arguments[1])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        with FileLock(folder / LOCK, timeout=LOCK_SECONDS):  # one that lost its parent a moment ago may still be ending
            WORK[step](opened(folder))
    except (InputError, FileNotFoundError, RuntimeError) as error:
        print(f"{step}: {error}", file=sys.stderr)
        return 1 if isinstance(error, RuntimeError) else 2
    except Timeout:
        print(f"{step}: another process works in {folder}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _end_with(parent: int) -> None:
    """Stop this step, with all that it began, when the process that began it is gone, killed perhaps."""
    while os.getppid() == parent:
        time.sleep(0.5)
    if os.getpgrp() == os.getpid():  # as the driver begins it; by hand, the group may be the caller's
        os.killpg(0, signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
