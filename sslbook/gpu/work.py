"""The steps themselves: ``python -m sslbook.gpu.work STEP DIR`` goes on with one, in a process of its own that may be stopped.

Each step leaves out the items that are done, so that a step called again ends with what an undisturbed one would have given.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock

from sslbook.book.layout import PACKAGE, Book, InputError, find_book
from sslbook.gpu.desk import Desk, opened
from sslbook.processes import cores

SEEDS = (1, 2, 3, 4, 5)
BYOL_SEEDS = (1,)
EPOCHS = 100
SIDE_BY_SIDE = 4
"""Chapters at once: much of each is work of one core, and a GPU has room for all."""
TINY = (
    *("dataset=digits", "split=train", "pipeline=digits", "networks.channels=1", "networks.stem=cifar"),
    *("networks.width=2", "networks.projector_hidden=8", "networks.projector_out=8", "subset=128", "batch=64"),
)
"""Settings of a run of seconds, on images that are always there."""
LOCK, LOCK_SECONDS = "work.lock", 120
"""Held by the step that works in the folder; how long the next one waits for it."""
TINY_CHAPTER = "dual_networks"
MARK = "mark.gpu"
"""What a file of tests says that has some for a GPU."""


def tests(desk: Desk) -> None:
    """pytest's own count of the tests marked ``gpu``."""
    if desk.has("tests", "gpu"):
        return
    report = desk.folder / "logs" / "tests.xml"
    # By name, since collecting all tests would need what the book is built with.
    files = [
        str(path) for path in sorted((PACKAGE.parent / "tests").glob("test_*.py")) if MARK in path.read_text("utf-8")
    ]
    asked = [*files, "-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    status = subprocess.run([sys.executable, "-m", "pytest", *asked], cwd=PACKAGE.parent).returncode
    if status not in (0, 1):  # some passed or some failed; anything else is no run of tests
        raise RuntimeError(f"pytest ended with status {status}")
    suite = ElementTree.parse(report).getroot()[0]
    failed = [f"{case.get('classname')}::{case.get('name')}" for case in suite if _broken(case)]
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    bad = counts["failures"] + counts["errors"]
    passed = counts["tests"] - bad - counts["skipped"]
    desk.keep("tests", "gpu", {"passed": passed, "failed": bad, "skipped": counts["skipped"], "failures": failed})


def _broken(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def bench(desk: Desk) -> None:
    """A stage of ``sslbook bench training`` after the other."""
    from sslbook.bench.training import STAGES

    for stage in ("forward",) if desk.tiny else STAGES:
        if not desk.has("bench", stage):
            desk.keep("bench", stage, _asked("bench", "training", stage, "--json", *(["--quick"] if desk.tiny else [])))


def simclr(desk: Desk) -> None:
    """A-Tab2 on CIFAR-10: one seed of each loss, then the second, and so on."""
    _train(desk, "simclr", "A-Tab2", ("simclr-nce", "simclr-exact", "simclr-exact-noise"), SEEDS)


def byol(desk: Desk) -> None:
    """The eight cells of B-Tab3 on CIFAR-10, from BYOL as it is to BYOL without all three parts."""
    from sslbook.training.presets import PARTS

    _train(desk, "byol", "B-Tab3-cifar10", tuple(reversed(PARTS)), BYOL_SEEDS)


def _train(desk: Desk, step: str, table: str, slugs: Sequence[str], seeds: Sequence[int]) -> None:
    """Runs of a table's presets, and after each the table's record anew."""
    from sslbook.book.records import save_record
    from sslbook.training.presets import sheets
    from sslbook.training.runs import lines, origins, record_of, run_of
    from sslbook.training.state import Diverged

    seeds, slugs = (seeds[:1], slugs[:2]) if desk.tiny else (seeds, slugs)
    epochs, changes = (1, TINY) if desk.tiny else (EPOCHS, ())
    runs = [run_of(f"cifar10-{slug}", seed=seed, epochs=epochs, changes=changes) for seed in seeds for slug in slugs]
    for run in runs:
        item = f"{run.name}-s{run.settings.seed}"
        if desk.has(step, item):
            continue
        print(f"{item} …", flush=True)
        try:
            run.go(desk.runs, device=desk.device)
        except Diverged as error:
            desk.keep(step, item, {"diverged": str(error)})
            continue
        rows = run.rows(desk.runs)
        made = origins(runs, desk.runs)
        found = lines(sheets()[table], seeds, desk.runs, epochs=epochs if desk.tiny else None, changes=changes)
        save_record(
            table,
            record_of(found, made),
            seeds=sorted({origin["seed"] for origin in made.values()}),
            seconds=sum(origin["seconds"] for origin in made.values()),
            command="sslbook gpu",
            folder=desk.records,
        )
        desk.keep(step, item, rows[-1])


def chapters(desk: Desk) -> None:
    """Every chapter through papermill, some side by side; its numbers beside those that are expected."""
    from sslbook.book.chapters import choose, find_chapters

    book = find_book(PACKAGE.parent)
    chosen = [chapter.name for chapter in choose(find_chapters(book), [TINY_CHAPTER] if desk.tiny else [])]
    waiting = [name for name in chosen if not desk.has("chapters", name)]
    with ThreadPoolExecutor(min(SIDE_BY_SIDE, cores())) as pool:
        list(pool.map(lambda name: _chapter(desk, book, name), waiting))


def _chapter(desk: Desk, book: Book, name: str) -> None:
    """One chapter; a failed one is done too, with its error."""
    from sslbook.book.chapters import choose, find_chapters
    from sslbook.book.execute import CELL_SECONDS, Setting, execute
    from sslbook.book.regression import compare, read_numbers

    scale = "quick" if desk.tiny else "paper"
    setting = Setting(scale, 0, desk.device, CELL_SECONDS[scale])
    begun = time.monotonic()
    (outcome,) = execute(book, choose(find_chapters(book), [name]), setting, jobs=1, say=_say)
    values: dict[str, Any] = {"scale": scale, "seconds": round(time.monotonic() - begun, 1), "error": outcome.error}
    if outcome.status != "failed":
        compared = compare(book, name, scale)
        numbers = [number.to_json() for number in read_numbers(book, name, scale)]
        values |= {"compared": compared.compared, "differences": list(compared.problems), "numbers": numbers}
    desk.keep("chapters", name, values)


def _say(line: str) -> None:
    print(line, flush=True)


def tables(desk: Desk) -> None:
    """Two printed tables of the theory, timed; both are work for many cores rather than for a GPU."""
    small = {
        "A-Tab6": ("--trials", "1", "--epoch-size", "128", "--workers", "2"),
        "C-Tab1": ("--seeds", "1", "--steps", "2", "--workers", "2"),
    }
    for name, options in small.items():
        if not desk.has("tables", name):
            begun = time.monotonic()
            found = _asked("table", name, "--json", *(options if desk.tiny else ()))
            desk.keep("tables", name, {"seconds": round(time.monotonic() - begun, 1), "table": found})


def operator(desk: Desk) -> None:
    """The record of the operator along a run of full width."""
    from sslbook.book.records import save_record
    from sslbook.training.opened import FULL, full_values

    if desk.has("operator", "run"):
        return
    begun = time.monotonic()
    small: dict[str, Any] = {"changes": (*FULL, *TINY), "epochs": (0, 1), "images": 4} if desk.tiny else {}
    values = full_values((1,), device=desk.device, folder=desk.runs, **small)
    seconds = time.monotonic() - begun
    name = "training-operator-full"
    save_record(
        name, values, seeds=(1,), seconds=seconds, command=f"sslbook record {name} --seeds 1", folder=desk.records
    )
    desk.keep("operator", "run", {"seconds": round(seconds, 1), "layers": len(values["names"])})


def _asked(*arguments: str) -> dict[str, Any]:
    """What a command of ours answers as JSON; its table also where a bar is missed."""
    command = [sys.executable, "-m", "sslbook", *arguments]
    done = subprocess.run(command, cwd=PACKAGE.parent, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1) or not done.stdout.lstrip().startswith("{"):
        raise RuntimeError(f"sslbook {' '.join(arguments)} ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
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
    except (InputError, FileNotFoundError) as error:
        print(f"{step}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _end_with(parent: int) -> None:
    """Stop this step, with all that it began, when the process that began it is gone, killed perhaps."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
