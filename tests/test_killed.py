"""A command that is killed at a random moment: the next one ends as if nothing had been, and nobody is left who works."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attacked
import pytest

KILLS = 20 if attacked.DEEP else 2
VALUES = ("1e-15", "2e-15")
"""What the chapter claims, in turn: a build begins with the whole one of the other value."""


def chapter(root: Path, number: int) -> None:
    attacked.write_chapter(root, VALUES[number % 2])


def other_record(root: Path, number: int) -> None:
    shutil.rmtree(root / "runs", ignore_errors=True)
    (root / "data/results/tiny.json").write_text(f'{{"old": {number}}}')


def no_runs(root: Path, number: int) -> None:
    shutil.rmtree(root / "runs", ignore_errors=True)


BEFORE: dict[str, Callable[[Path, int], None]] = {
    "execute": chapter,
    "build": chapter,
    "record": other_record,
    "train": no_runs,
    "ranks": no_runs,
    "table": no_runs,
}


def undisturbed(kind: str, root: Path, number: int) -> tuple[dict[str, Any], str, float]:
    """What a command leaves that nobody disturbs, the table that it shows, and the seconds that it takes after its first word."""
    BEFORE[kind](root, number)
    process, log = attacked.begin(kind, root)
    start = time.monotonic()
    assert process.wait(600) == 0, log.read_text()
    return attacked.outcome(root), shown(log.read_text()), time.monotonic() - start


def shown(text: str) -> list[str]:
    """The lines of the paper's table; the others tell of times, and of what was there already."""
    return [line for line in text.splitlines() if "β" in line]


def half(kind: str, before: dict[str, Any], found: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The files that are neither what they were nor what they become; of the pages also if some are old and some are new."""
    if kind in ("train", "ranks", "table"):  # checkpoints come and go, and bear their checksums
        return []
    names = [name for name in found if not name.endswith((".part", ".running.ipynb"))]
    wrong = [n for n in names if found[n] not in (before.get(n, found[n]), after.get(n))]
    pages = [{n: c for n, c in all.items() if n.startswith("_build/html/")} for all in (before, found, after)]
    return wrong + ["_build/html"] * (pages[1] not in (pages[0], pages[2], {}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", attacked.KINDS)
def test_what_is_killed_and_called_again_ends_as_undisturbed(
    kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    reference = attacked.make_checkout(tmp_path / "undisturbed" / "book")
    wanted = [undisturbed(kind, reference, number) for number in range(len(VALUES) if BEFORE[kind] is chapter else 1)]
    root = attacked.make_checkout(tmp_path / "killed" / "book")
    draw, kills, tried = random.Random(f"{kind} 0"), 0, 0
    while kills < KILLS and tried < 4 * KILLS:
        tried += 1
        BEFORE[kind](root, tried)
        before, (after, said, seconds) = attacked.outcome(root), wanted[tried % len(wanted)]
        killed = attacked.kill(kind, root, seconds, draw)
        assert attacked.left_after(root) == {}, "still at work"
        kills += killed
        found = attacked.outcome(root)
        assert half(kind, before, found, after) == []
        done = attacked.run(kind, root)
        assert done.returncode == 0, done.stdout + done.stderr
        ended = attacked.outcome(root)
        assert sorted(ended) == sorted(after), "other files"
        assert [name for name in after if ended[name] != after[name]] == []
        assert shown(done.stdout) == said
    record_property("tried", kills)
    assert kills == KILLS


NEVER_READY = """
import os, pathlib, time
pathlib.Path("{told}").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("kind", "module"), [("execute", "ipykernel_launcher.py"), ("build", "jupyter_book/cli/main.py")]
)
def test_what_a_killed_command_had_started_ends_before_it_is_up(kind: str, module: str, tmp_path: Path) -> None:
    """A kernel or a Sphinx that is still being loaded does not look whether its parent is there."""
    root = attacked.make_checkout(tmp_path / "book")
    told = tmp_path / "told"
    if kind == "build":
        done = attacked.run("execute", root)
        assert done.returncode == 0, done.stdout + done.stderr
    (root / module).parent.mkdir(parents=True, exist_ok=True)
    for package in (root / module).relative_to(root).parents[:-1]:
        (root / package / "__init__.py").touch()
    (root / module).write_text(NEVER_READY.format(told=told))
    process, log = attacked.begin(kind, root)
    until = time.monotonic() + 120
    while not told.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert told.exists(), log.read_text()
    process.kill()
    process.wait()
    assert attacked.left_after(root) == {}
