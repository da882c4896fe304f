"""A command that is killed: nothing is half, and the next one ends as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import HEADER

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "chapters/intro.md": "# Intro\n\n```{bibliography}\n```\n",
    "data/claims.yml": '- {id: A-Thm1, paper: A, chapter: one, kind: I, verdict: holds, statement: "One plus one is two."}\n',
    "data/functions.yml": "{}\n",
    "data/expected/one.quick.json": '{"chapter": "one", "scale": "quick", "seed": 0, "numbers": '
    '{"gap": {"id": "A-Thm1", "below": 1e-12}}}',
    "_toc.yml": "format: jb-book\nroot: chapters/intro\nchapters: [{file: chapters/one}, {file: chapters/ledger}]\n",
    "requirements.lock": "",
}
CHAPTER = (
    HEADER.replace("{name}", "one")
    + """```{code-cell} ipython3
:tags: [hide-cell]
claim("gap", %s, below=1e-12, rejects={"a sign": 1.0}, id="A-Thm1", why="one sum")
```

The gap is {glue:text}`gap:.1e`.
"""
)


def make_checkout(root: Path) -> Path:
    """A checkout with a book that is not built yet."""
    shutil.copytree(ROOT / "sslbook", root / "sslbook", ignore=shutil.ignore_patterns("*.egg-info"))
    shutil.copytree(ROOT / "data/printed", root / "data/printed")
    for name in ("chapters", "data/results", "data/expected"):
        (root / name).mkdir(parents=True)
    for name, text in FILES.items():
        (root / name).write_text(text)
    shutil.copy(ROOT / "_config.yml", root)
    shutil.copy(ROOT / "chapters/references.bib", root / "chapters")
    write_chapter(root, "1e-15")
    return root


def write_chapter(root: Path, value: str) -> None:
    (root / "chapters/one.md").write_text(CHAPTER % value)


def _temporary(root: Path) -> Path:
    return root.with_name(root.name + ".tmp")


def started(root: Path) -> dict[str, Any]:
    """How a command is started: with this checkout's package, one thread, temporary files of its own, which mark every process."""
    _temporary(root).mkdir(exist_ok=True)
    ours = ("SSLBOOK_", "PYTEST_", "COV_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "SSLBOOK_TESTS_OUTSIDE"}
    own = {
        **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")},
        "PYTHONPATH": os.pathsep.join((str(ROOT / "tests/offline"), str(root))),
        "TMPDIR": str(_temporary(root)),
        "SSLBOOK_COMMIT": "0" * 40,
    }
    return {"args": [sys.executable, "-m", "sslbook", "build", "--processes", "1"], "cwd": root, "env": kept | own}


def run(root: Path) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run(**started(root), capture_output=True, text=True, timeout=600)


def begin(root: Path) -> subprocess.Popen[bytes]:
    """Start a command and wait for its first word."""
    log = root.with_name(root.name + ".log")
    with log.open("w") as out:
        process = subprocess.Popen(**started(root), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    while process.poll() is None and not log.stat().st_size:
        time.sleep(0.01)
    return process


def left_after(root: Path, seconds: float = 10.0) -> list[str]:
    """The command lines of processes of this checkout that outlive those which started them by so long; they are ended here."""
    until = time.monotonic() + seconds
    while (left := _marked(root)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return list(left.values())


def _marked(root: Path) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"TMPDIR={_temporary(root)}\0".encode() in (entry / "environ").read_bytes() + b"\0"
            if mine and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


TIMES = {"seconds", "start_time", "end_time", "duration", "execution", "papermill", "date"}
UNHELD = ("sslbook", "_build/render", "_build/stage", "_build/render.log", "_build/.lock", "_build/.lock.told")
"""What the comparison leaves out: the library, work in progress that each build makes anew, Sphinx's words, who holds the lock."""


def outcome(root: Path) -> dict[str, Any]:
    """What the commands have made in a checkout: each file's content, without times; an unreadable one's error."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not any(name == part or name.startswith(f"{part}/") for part in UNHELD):
            try:
                found[name] = _content(path)
            except (ValueError, KeyError, RuntimeError) as error:
                found[name] = error
    return found


def _content(path: Path) -> Any:
    if path.name in ("html.stamp.json", ".buildinfo", ".lock"):
        return None  # the times of files, or of the build
    if path.suffix in (".json", ".ipynb"):
        return _timeless(json.loads(path.read_text()))
    if path.name in ("ledger.html", "ledger.md", "sections.js"):  # how long a check took
        return re.sub(r"[\d.,]+ (s|seconds|minutes)\b", "a while", path.read_text())
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in TIMES}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


# --- killed three times ---------------------------------------------------------------------------------------------

KILLS = 3


def ready(root: Path) -> None:
    """A book that is built, whose chapter has changed."""
    write_chapter(root, "1e-15")
    assert run(root).returncode == 0
    write_chapter(root, "2e-15")


def half(before: dict[str, Any], found: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The files that are neither what they were nor what they become; the pages also if some are old and some are new."""
    names = [name for name in found if not name.endswith((".part", ".running.ipynb"))]
    wrong = [n for n in names if found[n] not in (before.get(n, found[n]), after.get(n))]
    pages = [{n: c for n, c in all.items() if n.startswith("_build/html/")} for all in (before, found, after)]
    return wrong + ["_build/html"] * (pages[1] not in (pages[0], pages[2], {}))


def test_what_is_killed_three_times_and_called_again_ends_as_undisturbed(tmp_path: Path) -> None:
    """Bit for bit, but for times; and nobody is left who works."""
    reference = make_checkout(tmp_path / "undisturbed" / "book")
    ready(reference)
    process = begin(reference)
    start = time.monotonic()
    assert process.wait(600) == 0
    seconds, after = time.monotonic() - start, outcome(reference)

    root = make_checkout(tmp_path / "killed" / "book")
    ready(root)
    draw, before, killed, tried = random.Random(0), outcome(root), 0, 0
    while killed < KILLS and tried < 4 * KILLS:
        tried += 1
        process = begin(root)
        try:
            process.wait(seconds * draw.random())
        except subprocess.TimeoutExpired:
            process.kill()
        if process.wait() == -signal.SIGKILL:
            killed += 1
            assert left_after(root) == []
            assert half(before, outcome(root), after) == []
        else:  # it was faster
            ready(root)
    assert killed == KILLS
    done = run(root)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = outcome(root)
    assert sorted(ended) == sorted(after)
    assert [name for name in after if ended[name] != after[name]] == []
