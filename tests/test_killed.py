"""A command that is killed, or whose disk is full: nothing is half, and the next one ends as if nothing had been."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import attacked
import pytest

pytestmark = pytest.mark.slow
KILLS = 3


def ready(kind: str, root: Path) -> None:
    """Nothing trained yet; or a book that is built, whose chapter has changed."""
    shutil.rmtree(root / "runs", ignore_errors=True)
    if kind == "build":
        attacked.write_chapter(root, "1e-15")
        assert attacked.run(kind, root).returncode == 0
        attacked.write_chapter(root, "2e-15")


def half(before: dict[str, Any], found: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The files that are neither what they were nor what they become; the pages also if some are old and some are new."""
    names = [name for name in found if not name.endswith((".part", ".running.ipynb")) and not name.startswith("runs/")]
    wrong = [n for n in names if found[n] not in (before.get(n, found[n]), after.get(n))]
    pages = [{n: c for n, c in all.items() if n.startswith("_build/html/")} for all in (before, found, after)]
    return wrong + ["_build/html"] * (pages[1] not in (pages[0], pages[2], {}))


@pytest.mark.parametrize("kind", attacked.KINDS)
def test_what_is_killed_three_times_and_called_again_ends_as_undisturbed(kind: str, tmp_path: Path) -> None:
    """Bit for bit, but for times; and nobody is left who works."""
    reference = attacked.make_checkout(tmp_path / "undisturbed" / "book")
    ready(kind, reference)
    process = attacked.begin(kind, reference)
    start = time.monotonic()
    assert process.wait(600) == 0
    seconds, after = time.monotonic() - start, attacked.outcome(reference)

    root = attacked.make_checkout(tmp_path / "killed" / "book")
    ready(kind, root)
    draw, before, killed, tried = random.Random(kind), attacked.outcome(root), 0, 0
    while killed < KILLS and tried < 4 * KILLS:
        tried += 1
        process = attacked.begin(kind, root)
        try:
            process.wait(seconds * draw.random())
        except subprocess.TimeoutExpired:
            process.kill()
        if process.wait() == -signal.SIGKILL:
            killed += 1
            assert attacked.left_after(root) == []
            assert half(before, attacked.outcome(root), after) == []
        else:  # it was faster
            ready(kind, root)
    assert killed == KILLS
    done = attacked.run(kind, root)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = attacked.outcome(root)
    assert sorted(ended) == sorted(after)
    assert [name for name in after if ended[name] != after[name]] == []
