"""A small checkout of its own, the commands that write into it, and what is done to them: kills, full disks, folders without leave.

Its book has one chapter, its recorder adds two numbers, its run trains the digits for a second; library and commands are ours.
"""

from __future__ import annotations

import csv
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

from sslbook.training.runs.checkpoints import load

ROOT = Path(__file__).resolve().parents[1]
DEEP = bool(os.environ.get("SSLBOOK_TORTURE"))
"""Try all that there is, and not a sample."""

HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst, format_version: 0.13}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

(one)=
# One

```{code-cell} ipython3
:tags: [parameters]
scale = "quick"
seed = 0
device = "cpu"
```
"""
CHAPTER = """
```{code-cell} ipython3
:tags: [hide-input]
from sslbook.book import begin, claim
run = begin("one", scale=scale, seed=seed, device=device)
```

```{code-cell} ipython3
:tags: [hide-cell]
claim("gap", %s, below=1e-12, rejects={"a sign": 1.0}, id="A-Thm1", why="one sum")
```

The gap is {glue:text}`gap:.1e`.
"""
CLAIMS = '- {id: A-Thm1, paper: A, chapter: one, kind: I, verdict: holds, statement: "One plus one is two."}\n'
EXPECTED = '{"chapter": "one", "scale": "quick", "seed": 0, "numbers": {"gap": {"id": "A-Thm1", "below": 1e-12}}}'
RECORDER = '''"""A recorder that takes no time."""

import os
import time
from typing import Any

from sslbook.training.runs.checkpoints import load

from sslbook.machine import process_pool
from sslbook.records import kept, parts_folder


def _double(seed: int) -> int:
    time.sleep(0.2)
    return 2 * seed


def values(seeds: tuple[int, ...]) -> dict[str, Any]:
    """Twice each seed, by two workers, then their sum, each a part of its own."""
    with process_pool(2) as pool:
        doubled = kept(parts_folder() / "doubled.json", lambda: {"all": list(pool.map(_double, seeds))})
    return {"sum": kept(parts_folder() / "sum.json", lambda: {"sum": sum(doubled["all"])})["sum"]}
'''
SMALL = (
    "networks.width=2",
    "networks.projector_hidden=8",
    "networks.projector_out=8",
    "subset=128",
    "batch=64",
    "evaluate=1",
)
DIGITS = ("dataset=digits", "split=train", "pipeline=digits", "networks.channels=1")
"""What makes runs on photographs ones on digits."""
CHANGES = tuple(part for change in SMALL for part in ("--set", change))
OTHER_IMAGES = tuple(part for change in DIGITS for part in ("--set", change))
COMMANDS: dict[str, tuple[str, ...]] = {
    "execute": ("execute", "--processes", "1"),
    "build": ("build", "--processes", "1"),
    "train": ("train", "digits-simclr-nce", "--epochs", "4", "--folder", "runs", *CHANGES),
    "record": ("record", "tiny", "--replace"),
    "table": ("table", "A-Tab3", "--run", "--seeds", "1", "--epochs", "1", "--folder", "runs", *CHANGES, *OTHER_IMAGES),
}
if DEEP:  # two processes share each batch
    COMMANDS["ranks"] = (*COMMANDS["train"], "--ranks", "2")
KINDS = [pytest.param(kind, marks=() if kind == "train" else pytest.mark.long) for kind in COMMANDS]
"""For a test that takes long: `make test` attacks a run, `make elsewhere` the others, too."""


def make_checkout(root: Path) -> Path:
    """A checkout with a book that is not built yet."""
    ours = shutil.ignore_patterns("tests", "*.egg-info", "results")
    shutil.copytree(ROOT / "sslbook", root / "sslbook", ignore=ours)
    shutil.copytree(ROOT / "data/printed", root / "data/printed")
    for name in ("chapters", "data/results", "data/expected"):
        (root / name).mkdir(parents=True)
    (root / "data/claims.yml").write_text(CLAIMS)
    (root / "data/functions.yml").write_text("{}\n")
    shutil.copy(ROOT / "_config.yml", root)
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: chapters/intro\nchapters: [{file: chapters/one}, {file: chapters/ledger}]\n"
    )
    (root / "requirements.lock").write_text("")
    shutil.copy(ROOT / "chapters/references.bib", root / "chapters")
    (root / "chapters/intro.md").write_text("# Intro\n\n```{bibliography}\n```\n")
    write_chapter(root, "1e-15")
    (root / "data/expected/one.quick.json").write_text(EXPECTED)
    trainer = root / "sslbook/training/runs/trainer.py"
    trainer.write_text(trainer.read_text().replace("SAVE_SECONDS = 30.0", "SAVE_SECONDS = 0.0"))  # each epoch
    (root / "sslbook/chapters/tiny.py").write_text(RECORDER)
    catalogue = root / "sslbook/chapters/catalogue.py"
    declared = 'RECORDERS: dict[str, Recorder] = {\n    "tiny": Recorder("tiny:values", (1, 2, 3, 4)),'
    catalogue.write_text(catalogue.read_text().replace("RECORDERS: dict[str, Recorder] = {", declared))
    return root


def write_chapter(root: Path, value: str) -> None:
    (root / "chapters/one.md").write_text(HEADER + CHAPTER % value)


def environment(root: Path) -> dict[str, str]:
    """What the commands see: this checkout's package, one thread, temporary files of their own, a mark on every process."""
    temporary = root.with_name(root.name + ".tmp")
    temporary.mkdir(exist_ok=True)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("SSLBOOK_", "PYTEST_", "COV_")) or k == "SSLBOOK_TESTS_OUTSIDE"
    }
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    own = {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "tests/offline"), str(root))),
        "TMPDIR": str(temporary),
        "SSLBOOK_COMMIT": "0" * 40,
        "SSLBOOK_TESTS_OUTSIDE": os.environ.get("SSLBOOK_TESTS_OUTSIDE", ""),
        MARK: str(root),
    }
    return kept | threads | own


MARK = "ATTACKED_CHECKOUT"


def command(kind: str) -> list[str]:
    return [sys.executable, "-m", "sslbook", *COMMANDS[kind]]


def run(kind: str, root: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run(
        command(kind), cwd=root, env=environment(root), capture_output=True, text=True, timeout=600, **more
    )


def marked(root: Path) -> dict[int, str]:
    """The processes that a command in this checkout has started, itself among them, that still run: their command lines."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"{MARK}={root}\0".encode() in (entry / "environ").read_bytes() + b"\0"
            if mine and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def left_after(root: Path, seconds: float = 10.0) -> dict[int, str]:
    """The processes that outlive those which started them by so many seconds; they are ended here."""
    until = time.monotonic() + seconds
    while (left := marked(root)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def begin(kind: str, root: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a command and wait for its first word; the process, and the file of what it says."""
    log = root.with_name(root.name + ".log")
    with log.open("w") as out:
        process = subprocess.Popen(
            command(kind), cwd=root, env=environment(root), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    while process.poll() is None and not log.stat().st_size:
        time.sleep(0.01)
    return process, log


def kill(kind: str, root: Path, seconds: float, draw: random.Random) -> bool:
    """SIGKILL for a command at a random moment of the ``seconds`` after its first word; whether it came before its end."""
    process, _ = begin(kind, root)
    try:
        process.wait(seconds * draw.random())
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == -signal.SIGKILL


TIMES = {"seconds", "start_time", "end_time", "duration", "execution", "papermill", "date", "images_per_second"}
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
    if path.suffix == ".csv":
        rows = list(csv.DictReader(path.read_text().splitlines()))
        return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
    if path.suffix == ".pt":
        return {name: value.tolist() for name, value in load(path)["model"].items()}
    if path.name in ("ledger.html", "ledger.md", "sections.js"):  # how long a check took
        return re.sub(r"[\d.,]+ (s|seconds|minutes)\b", "a while", path.read_text())
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in TIMES}
    return [_timeless(part) for part in value] if isinstance(value, list) else value
