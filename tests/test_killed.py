"""A command that is killed, or whose disk is full: nothing is half, and the next one ends as if nothing had been."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
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


MIB = 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; without the right to mount one, a limit to the size of a file stands in for it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={48 * MIB}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and not subprocess.run(mount, capture_output=True, check=False).returncode
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, left: int) -> dict[str, object]:
    """Fill the disk but for ``left`` bytes; what a process is started with where it is not a disk of its own."""
    if not folder.is_mount():
        return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (left, left))}
    (folder / "filler").write_bytes(bytes(max(0, shutil.disk_usage(folder).free - left)))
    return {}


@pytest.mark.parametrize("kind", attacked.KINDS)
def test_a_full_disk_is_told_of_and_spoils_nothing(kind: str, disk: Path) -> None:
    root = attacked.make_checkout(disk / "book")
    ready(kind, root)
    before = attacked.outcome(root)
    for kib in (0, 64):
        done = attacked.run(kind, root, **fill(disk, 1024 * kib))
        (disk / "filler").unlink(missing_ok=True)
        said, found = done.stdout + done.stderr, attacked.outcome(root)
        assert done.returncode == 2, said
        assert "Traceback" not in said
        assert str(disk) in done.stderr or "_build" in done.stderr, said
        anew = {"_build/executed/quick/one.ipynb"}  # executed anew it may be another one, and a whole one
        assert [name for name in before if found.get(name) != before[name] and name not in anew] == []
        assert [n for n in found if n.endswith(".part") or (n in anew and isinstance(found[n], Exception))] == []
        shutil.rmtree(root / "runs", ignore_errors=True)
    done = attacked.run(kind, root)
    assert done.returncode == 0, done.stdout + done.stderr
