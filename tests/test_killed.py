"""A command that is killed, whose disk is full, or that meets odd files: nothing is half, each says what is wrong.

A small checkout of its own, two commands that write into it: its book has one chapter, its run trains the digits for some seconds.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sslbook import cli
from sslbook.book import execute, render
from sslbook.images.datasets import load_dataset
from sslbook.images.own import read_images
from sslbook.records.store import kept
from sslbook.training.run.checkpoints import load

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
CHAPTER = """---
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
CHANGES = (
    *("networks.width=2", "networks.projector_hidden=8", "networks.projector_out=8", "networks.predictor_hidden=8"),
    *("subset=150", "batch=64", "evaluate=1", "reset=3", "noise=0.01", "rate=0.001"),  # the last batch is not full
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "build": ("build", "--processes", "1"),
    "train": (
        *("train", "digits-byol", "--epochs", "8", "--folder", "runs"),
        *(part for change in CHANGES for part in ("--set", change)),
    ),
}
KINDS = [
    pytest.param("train", marks=pytest.mark.slow),
    pytest.param("build", marks=[pytest.mark.slow, pytest.mark.long]),
]


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
    trainer = root / "sslbook/training/run/trainer.py"
    trainer.write_text(trainer.read_text().replace("SAVE_SECONDS = 30.0", "SAVE_SECONDS = 0.0"))  # each epoch
    return root


def write_chapter(root: Path, value: str) -> None:
    (root / "chapters/one.md").write_text(CHAPTER % value)


def temporary(root: Path) -> Path:
    return root.with_name(root.name + ".tmp")


def started(kind: str, root: Path) -> dict[str, Any]:
    """How a command is started: with this checkout's package, one thread, temporary files of its own, which mark every process."""
    temporary(root).mkdir(exist_ok=True)
    ours = ("SSLBOOK_", "PYTEST_", "COV_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "SSLBOOK_TESTS_OUTSIDE"}
    own = {
        **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")},
        "PYTHONPATH": os.pathsep.join((str(ROOT / "tests/offline"), str(root))),
        "TMPDIR": str(temporary(root)),
        "SSLBOOK_COMMIT": "0" * 40,
    }
    return {"args": [sys.executable, "-m", "sslbook", *COMMANDS[kind]], "cwd": root, "env": kept | own}


def run(kind: str, root: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run(**started(kind, root), capture_output=True, text=True, timeout=600, **more)


def begin(kind: str, root: Path) -> subprocess.Popen[bytes]:
    """Start a command and wait for its first word."""
    log = root.with_name(root.name + ".log")
    with log.open("w") as out:
        process = subprocess.Popen(**started(kind, root), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    while process.poll() is None and not log.stat().st_size:
        time.sleep(0.01)
    return process


def left_after(root: Path, seconds: float = 10.0) -> list[str]:
    """The command lines of processes of this checkout that outlive those which started them by so long; they are ended here."""
    until = time.monotonic() + seconds
    while (left := marked(root)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return list(left.values())


def marked(root: Path) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"TMPDIR={temporary(root)}\0".encode() in (entry / "environ").read_bytes() + b"\0"
            if mine and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


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
                found[name] = content_of(path)
            except (ValueError, KeyError, RuntimeError) as error:
                found[name] = error
    return found


def content_of(path: Path) -> Any:
    if path.name in ("html.stamp.json", ".buildinfo", ".lock"):
        return None  # the times of files, or of the build
    if path.suffix in (".json", ".ipynb"):
        return timeless(json.loads(path.read_text()))
    if path.suffix == ".csv":
        return timeless(list(csv.DictReader(path.read_text().splitlines())))
    if path.name == "backbone.pt":  # of a run that has ended: whole weights, and nothing else
        return timeless(torch.load(path, weights_only=True))
    if path.suffix == ".pt":  # weights, and the moments of the optimiser, bit for bit
        content = load(path)
        return timeless([content["model"], content["optimizer"]["state"]])
    if path.name in ("ledger.html", "ledger.md", "sections.js"):  # how long a check took
        return re.sub(r"[\d.,]+ (s|seconds|minutes)\b", "a while", path.read_text())
    return path.read_bytes()


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in TIMES}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [timeless(part) for part in value] if isinstance(value, list) else value


# --- kills and full disks --------------------------------------------------------------------------------------------

KILLS = 3


def ready(kind: str, root: Path) -> None:
    """Nothing trained yet; or a book that is built, whose chapter has changed."""
    shutil.rmtree(root / "runs", ignore_errors=True)
    if kind == "build":
        write_chapter(root, "1e-15")
        assert run(kind, root).returncode == 0
        write_chapter(root, "2e-15")


def half(before: dict[str, Any], found: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The files that are neither what they were nor what they become; the pages also if some are old and some are new."""
    names = [name for name in found if not name.endswith((".part", ".running.ipynb")) and not name.startswith("runs/")]
    wrong = [n for n in names if found[n] not in (before.get(n, found[n]), after.get(n))]
    pages = [{n: c for n, c in all.items() if n.startswith("_build/html/")} for all in (before, found, after)]
    return wrong + ["_build/html"] * (pages[1] not in (pages[0], pages[2], {}))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_killed_three_times_and_called_again_ends_as_undisturbed(kind: str, tmp_path: Path) -> None:
    """Bit for bit, but for times; and nobody is left who works."""
    reference = make_checkout(tmp_path / "undisturbed" / "book")
    ready(kind, reference)
    process = begin(kind, reference)
    start = time.monotonic()
    assert process.wait(600) == 0
    seconds, after = time.monotonic() - start, outcome(reference)

    root = make_checkout(tmp_path / "killed" / "book")
    ready(kind, root)
    draw, before, killed, tried = random.Random(kind), outcome(root), 0, 0
    while killed < KILLS and tried < 4 * KILLS:
        tried += 1
        process = begin(kind, root)
        try:
            process.wait(seconds * draw.random())
        except subprocess.TimeoutExpired:
            process.kill()
        if process.wait() == -signal.SIGKILL:
            killed += 1
            assert left_after(root) == []
            assert half(before, outcome(root), after) == []
        else:  # it was faster
            ready(kind, root)
    assert killed == KILLS
    done = run(kind, root)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = outcome(root)
    assert sorted(ended) == sorted(after)
    assert [name for name in after if ended[name] != after[name]] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_told_of_and_spoils_nothing(kind: str, tmp_path: Path) -> None:
    """A limit to the size of a file stands in for it."""
    root = make_checkout(tmp_path / "book")
    ready(kind, root)
    before = outcome(root)
    for left in (0, 65536):
        done = run(kind, root, preexec_fn=lambda left=left: resource.setrlimit(resource.RLIMIT_FSIZE, (left, left)))
        said, found = done.stdout + done.stderr, outcome(root)
        assert done.returncode == 2, said
        assert "Traceback" not in said
        assert str(root) in done.stderr or "_build" in done.stderr, said
        anew = {"_build/executed/quick/one.ipynb"}  # executed anew it may be another one, and a whole one
        assert [name for name in before if found.get(name) != before[name] and name not in anew] == []
        assert [n for n in found if n.endswith(".part") or (n in anew and isinstance(found[n], Exception))] == []
        shutil.rmtree(root / "runs", ignore_errors=True)
    done = run(kind, root)
    assert done.returncode == 0, done.stdout + done.stderr


# --- odd files: a pipe, a folder, a dangling link or rubbish where a file should be --------------------------------

ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "itself": lambda path: path.symlink_to(path.name),
    "nothing": Path.touch,
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "half": lambda path: path.write_text('{"numbers": ['),
    "a list of words": lambda path: path.write_text('["a", "b"]'),
}
BOOK_FILES = (
    *("_toc.yml", "_config.yml", "chapters/one.md", "chapters/references.bib", "data/claims.yml", "data/functions.yml"),
    *("data/expected/one.quick.json", "requirements.lock", "_build/executed/quick/one.ipynb", "_build/html.stamp.json"),
    "_build/.lock.told",
)
RUN_FILES = ("log.csv", "result.json", "step-000000024.pt", "diverged", "curves")
TRIED = random.Random(0).sample([(name, odd) for name in (*BOOK_FILES, *RUN_FILES) for odd in ODD], 40)
NOT_HERE = "there was no reason to stop before the work begins"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which everything has been made once, by this process."""
    root = make_checkout(tmp_path_factory.mktemp("whole") / "book")
    with contextlib.chdir(root):
        assert [cli.main(line) for line in COMMANDS.values()] == [0, 0]
    return root


@pytest.fixture
def soon() -> Iterator[None]:
    """Whoever waits for a pipe is woken by an error."""

    def wake(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def replaced(path: Path, aside: Path) -> Iterator[None]:
    """Something else in a file's place, for a while."""
    there = path.is_file()
    if there:
        path.rename(aside)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if there:
            aside.rename(path)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("name", "odd"), TRIED)
def test_an_odd_file_ends_no_command_in_a_traceback(
    name: str,
    odd: str,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise render.RenderError(NOT_HERE)

    monkeypatch.setattr(render, "_jupyter_book", refuse)
    monkeypatch.setattr(execute, "_run_all", lambda *_: [execute.Outcome("one", "failed", error=NOT_HERE)])
    monkeypatch.chdir(whole)
    path = whole / name if name in BOOK_FILES else next((whole / "runs").glob("digits-byol-s0-*")) / name
    lines = [COMMANDS["train"]] if name in RUN_FILES else [(*COMMANDS["build"], "--root", str(whole))]
    lines += [("inspect", str(path), "digits", "--images", "8", "--out", "report")] * name.endswith(".pt")
    with replaced(path, aside=tmp_path / "aside"):
        ODD[odd](path)
        for line in lines:
            try:
                status = cli.main(line)
            except SystemExit as stop:  # argparse's own way out
                status = int(stop.code or 0)
            said = "".join(capsys.readouterr())
            assert status in (0, 1, 2)
            assert "Traceback" not in said
            assert status != 2 or path.name in said, said


READERS: dict[str, Callable[[Path], object]] = {
    "a data set": lambda folder: load_dataset("cifar10", "train", folder=folder),
    "pictures": lambda folder: read_images(folder / "cifar-10-batches-py"),
    "a checkpoint": lambda folder: load(folder / "cifar-10-batches-py/data_batch_1"),
    "a part of a record": lambda folder: kept(folder / "cifar-10-batches-py", dict),
}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("odd", ["pipe", "folder", "dangling link", "itself"])
@pytest.mark.parametrize("reader", READERS)
def test_the_library_reads_files_alone(reader: str, odd: str, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name in ("data_batch_1", "one.png"):
        ODD[odd](tmp_path / "cifar-10-batches-py" / name)
    with pytest.raises((ValueError, OSError), match="cifar-10-batches-py"):
        READERS[reader](tmp_path)
