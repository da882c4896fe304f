"""A full disk, a folder without leave, a pipe where a file should be: each command ends with a sentence that names the path."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attacked
import pytest

Record = Callable[[str, object], None]
MIB = 2**20
DISK = 48 * MIB
ROOM = (0, 4, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""KiB that a full disk still has: nothing, and ends at several moments of each command."""
FULL = ROOM if attacked.DEEP else (0, 64)
ROOT_USER = os.geteuid() == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which everything has been made once, of other values."""
    root = attacked.make_checkout(tmp_path_factory.mktemp("whole") / "book")
    for kind in ("build", "record"):
        done = attacked.run(kind, root)
        assert done.returncode == 0, done.stdout + done.stderr
    attacked.write_chapter(root, "2e-15")
    return root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; without the right to mount one, a limit to the size of a file stands in for it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        ROOT_USER
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    )
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, left: int) -> dict[str, object]:
    """Fill the disk but for ``left`` bytes; what a process is started with where it is not a disk of its own."""
    if not folder.is_mount():
        return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (left, left))}
    free = shutil.disk_usage(folder).free - left
    (folder / "filler").write_bytes(bytes(max(0, free)))
    return {}


def refused(done: subprocess.CompletedProcess[str], root: Path) -> list[str]:
    """What is wrong with how a command ended."""
    said = done.stdout + done.stderr
    wrong = [f"status {done.returncode}"] * (done.returncode != 2) + ["a traceback"] * ("Traceback" in said)
    sentences = [line for line in done.stderr.splitlines() if str(root.parent) in line or "_build" in line]
    return [*wrong, *["no path"] * (not sentences)]


def spoilt(before: dict[str, object], found: dict[str, object]) -> list[str]:
    """The files that are not what they were; a notebook that was executed anew may be another one, and a whole one."""
    anew = {"_build/executed/quick/one.ipynb"}
    lost = [name for name in before if found.get(name) != before[name] and name not in anew]
    half = [name for name in anew if isinstance(found.get(name), Exception) or name not in found]
    return [f"{name} changed" for name in (*lost, *half)]


def wasted(kind: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    """Whether a record was made that nothing can hold."""
    return ["it was made in vain"] * (kind == "record" and "Making" in done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", attacked.KINDS)
def test_a_full_disk_is_told_of_and_spoils_nothing(kind: str, whole: Path, disk: Path, record_property: Record) -> None:
    root = shutil.copytree(whole, disk / "book")
    shutil.rmtree(root / "runs")
    before, wrong, survived = attacked.outcome(root), [], 0
    for left in FULL:
        limits = fill(disk, 1024 * left)
        done = attacked.run(kind, root, **limits)
        (disk / "filler").unlink(missing_ok=True)
        found = attacked.outcome(root)
        if done.returncode == 0:  # there was room enough
            break
        survived += 1
        problems = refused(done, root) + spoilt(before, found)
        problems += [f"{name} left" for name in found if name.endswith(".part")]
        wrong += [f"{left} KiB: {', '.join(problems)}: {(done.stdout + done.stderr)[-400:]}"] * bool(problems)
        shutil.rmtree(root / "runs", ignore_errors=True)
    record_property("tried", survived)
    assert "\n".join(wrong) == ""
    done = attacked.run(kind, root)
    assert done.returncode == 0, done.stdout + done.stderr


LEAVE = {
    "execute": ("_build", "_build/executed/quick"),
    "build": ("_build", "_build/executed/quick"),
    "train": ("runs",),
    "ranks": ("runs",),
    "record": ("data/results", "runs"),
    "table": ("runs",),
}
"""Folders that each command writes into."""


def as_another_user() -> dict[str, object]:
    """What a process is started with that obeys the modes of files; root's Python may lie where nobody else may go."""
    if not ROOT_USER:
        return {}
    return {"preexec_fn": without_override}


def without_override() -> None:
    """Give up what makes root more than the owner of its files; a program that is started afterwards doesn't have it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER = 24, 1, 2, 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", attacked.COMMANDS)
def test_a_folder_without_leave_is_named(kind: str, whole: Path, tmp_path: Path, record_property: Record) -> None:
    root = shutil.copytree(whole, tmp_path / "book")
    shutil.rmtree(root / "runs")
    wrong = []
    for name in LEAVE[kind] if attacked.DEEP else LEAVE[kind][:1]:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o555)
        before = attacked.outcome(root)
        done = attacked.run(kind, root, **as_another_user())
        problems = refused(done, root) + spoilt(before, attacked.outcome(root))
        problems += wasted(kind, done) if name == "data/results" else []
        folder.chmod(0o755)
        wrong += [f"{name}: {', '.join(problems)}: {(done.stdout + done.stderr)[-400:]}"] * bool(problems)
    record_property("tried", len(LEAVE[kind]) if attacked.DEEP else 1)
    assert "\n".join(wrong) == ""
