"""A build that is killed: nothing is half, nobody works on, and the next one ends as if nothing had been."""

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

import psutil
import pytest
from conftest import make_book

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[1]
TOC = "format: jb-book\nroot: chapters/good\nchapters: [{file: chapters/ledger}]\n"
CHAPTER = """<<claim("gap", %s, below=1e-12, rejects={"a sign": 1.0}, id="A-Thm1", why="one sum");>>

The gap is {glue:text}`gap:.1e`.

```{bibliography}
```
"""
KILLS = 3


def begun(root: Path, *command: str) -> subprocess.Popen[str]:
    """A command in a folder of its own for temporary files, by which each of its processes is known."""
    ours = ("SSLBOOK_", "PYTEST_", "COV_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "SSLBOOK_TESTS_OUTSIDE"}
    own = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    own |= {"TMPDIR": f"{root}.tmp", "SSLBOOK_COMMIT": "0" * 40}
    Path(own["TMPDIR"]).mkdir(exist_ok=True)
    line, pipe = [sys.executable, "-m", "sslbook", *command, "--processes", "1"], subprocess.PIPE
    return subprocess.Popen(line, cwd=root, env=kept | own, text=True, stdout=pipe, stderr=subprocess.STDOUT)


def done(root: Path, *command: str) -> float:
    """The seconds that a command takes to its end."""
    start, process = time.monotonic(), begun(root, *command)
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said
    return time.monotonic() - start


def write(root: Path, value: str) -> None:
    make_book(root, good=CHAPTER % value)
    (root / "_toc.yml").write_text(TOC)


def changed(root: Path) -> Path:
    """A book that is built, and whose chapter has changed since."""
    write(root, "1e-15")
    (root / "data/functions.yml").write_text("{}\n")
    shutil.copy(ROOT / "_config.yml", root)
    shutil.copy(ROOT / "chapters/references.bib", root / "chapters")
    done(root, "execute", "--update-expected")
    done(root, "build")
    write(root, "2e-15")
    return root


TIMES = {"seconds", "start_time", "end_time", "duration", "execution", "papermill", "date"}
UNHELD = re.compile(r"_build/(render|stage|render\.log|\.lock|\.lock\.told)($|/)")
"""What the comparison leaves out: work in progress that each build makes anew, Sphinx's words, who holds the lock."""


def files(root: Path) -> dict[str, Any]:
    """Each file's content, without times; of one that can't be read the error."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not UNHELD.match(name):
            try:
                found[name] = _content(path)
            except ValueError as error:
                found[name] = error
    return found


def _content(path: Path) -> Any:
    if path.name in ("html.stamp.json", ".buildinfo"):
        return None  # the times of files, or of the build
    if path.suffix in (".json", ".ipynb"):
        return json.loads(path.read_text(), object_hook=lambda part: {k: v for k, v in part.items() if k not in TIMES})
    if path.name in ("ledger.html", "ledger.md", "sections.js"):  # how long a check took
        return re.sub(r"[\d.,]+ (s|seconds|minutes)\b", "a while", path.read_text())
    return path.read_bytes()


def half(before: dict[str, Any], found: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The files that are neither what they were nor what they become; the pages also if some are old and some are new."""
    names = [name for name in found if not name.endswith((".part", ".running.ipynb"))]
    wrong = [n for n in names if found[n] not in (before.get(n, found[n]), after.get(n))]
    pages = [{n: c for n, c in all.items() if n.startswith("_build/html/")} for all in (before, found, after)]
    return wrong + ["_build/html"] * (pages[1] not in (pages[0], pages[2], {}))


def at_work(root: Path) -> list[psutil.Process]:
    """The processes of this book that outlive, by ten seconds, those which started them; they are ended here."""
    ours = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("TMPDIR") == f"{root}.tmp"]
    left = psutil.wait_procs(ours, timeout=10)[1]
    for process in left:
        process.kill()
    return left


def test_what_is_killed_three_times_and_called_again_ends_as_undisturbed(tmp_path: Path) -> None:
    """Bit for bit, but for times; and nobody is left who works."""
    reference, root = (changed(tmp_path / name / "book") for name in ("undisturbed", "killed"))
    seconds, after, before = done(reference, "build"), files(reference), files(root)
    draw, killed = random.Random(0), 0
    for _ in range(4 * KILLS):
        with begun(root, "build") as process:
            try:
                process.wait(seconds * draw.random())
            except subprocess.TimeoutExpired:
                process.kill()
        if process.returncode != -signal.SIGKILL:  # it was faster
            changed(root)
            continue
        assert at_work(root) == []
        assert half(before, files(root), after) == []
        killed += 1
        if killed == KILLS:
            break
    assert killed == KILLS
    done(root, "build")
    ended = files(root)
    assert sorted(ended) == sorted(after)
    assert [name for name in after if ended[name] != after[name]] == []
