"""What a command meets: letters that a terminal can't show, a reader who has had enough, no stream, signals, its death."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import make_book

from sslbook import cli

ROOT = Path(__file__).resolve().parents[1]
LINES = ["--help", "train --list", "train cifar10-βeta", "table A-Tab2", "ledger", "ledger --json"]
RUN = ("train", "digits-simclr-nce", "--epochs", "100000", "--set", "subset=128", "--set", "batch=64")


def said(encoding: str, line: list[str], patch: pytest.MonkeyPatch) -> tuple[object, str, str]:
    """What a command line ends with, and shows on a terminal of this encoding."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        patch.setattr(sys, name, stream)
    try:
        status: object = cli.main(line)
    except SystemExit as stop:  # argparse's own way out
        status = stop.code
    shown = []
    for stream in streams:
        stream.flush()
        shown.append(stream.buffer.getvalue().decode(encoding))
    return status, shown[0], shown[1]


def test_a_letter_that_a_terminal_lacks_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else is other than in UTF-8, the status least of all; JSON is the same everywhere."""
    for line in (
        words.split() for words in (*LINES, *(f"{name} --help" for name in sorted(entry_points(group=cli.GROUP).names)))
    ):
        status, *texts = said("utf-8", line, monkeypatch)
        for encoding in ("ascii", "cp1252"):
            wanted = [text.encode(encoding, "replace").decode(encoding) for text in texts]
            assert said(encoding, line, monkeypatch) == (status, *wanted), line
        assert "Traceback" not in "".join(texts)
        assert "--json" not in line or texts[0].isascii()


def begun(line: tuple[str, ...], folder: Path, **more: object) -> subprocess.Popen[str]:
    """A command as a terminal starts it: a shell in the background would have it ignore Ctrl-C."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **more}
    usual = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{usual}; runpy.run_module('sslbook', run_name='__main__')", *line]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]


@pytest.mark.long
@pytest.mark.parametrize("line", [("train", "--list"), RUN], ids=" ".join)
def test_a_reader_who_has_had_enough_ends_a_command_quietly(line: tuple[str, ...], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = begun(line, tmp_path, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (command.communicate(timeout=300)[1], command.returncode) == ("", 141)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["execute", "table"])
def test_ctrl_c_ends_any_command_with_a_sentence(name: str, tmp_path: Path) -> None:
    """Also where it alone hears of it, and not, as from a terminal, its workers too."""
    make_book(tmp_path, good="<<import time; time.sleep(1000)>>\n")
    table = ("table", "B-Tab3-digits-convnet", "--run", "--epochs", "5000")
    command = begun(("execute",) if name == "execute" else table, tmp_path)
    assert command.stdout is not None
    if name == "execute":
        assert any("running" in line for line in command.stdout)
    else:
        with pytest.raises(subprocess.TimeoutExpired):  # nothing is said before the end, so that it is at work then
            command.wait(8)
    (os.kill if name == "execute" else os.killpg)(command.pid, signal.SIGINT)
    rest = command.communicate(timeout=60)[0]
    assert command.returncode == 130
    assert rest.splitlines()[-1] == "sslbook: stopped"
    assert "Traceback" not in rest


CHAPTER = """<<claim("gap", %s, below=1e-12, rejects={"a sign": 1.0}, id="A-Thm1", why="one sum");>>

The gap is {glue:text}`gap:.1e`.

```{bibliography}
```
"""


def building(root: Path, *command: str) -> subprocess.Popen[str]:
    """A command in a folder of its own for temporary files, by which each of its processes is known."""
    ours = ("SSLBOOK_", "PYTEST_", "COV_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "SSLBOOK_TESTS_OUTSIDE"}
    own = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    own |= {"TMPDIR": f"{root}.tmp", "SSLBOOK_COMMIT": "0" * 40}
    Path(own["TMPDIR"]).mkdir(exist_ok=True)
    line, pipe = [sys.executable, "-m", "sslbook", *command, "--processes", "1"], subprocess.PIPE
    return subprocess.Popen(line, cwd=root, env=kept | own, text=True, stdout=pipe, stderr=subprocess.STDOUT)


def built(root: Path, *command: str) -> None:
    said = (process := building(root, *command)).communicate(timeout=600)[0]
    assert process.returncode == 0, said


def changed(root: Path) -> Path:
    """A book that is built, and whose chapter has changed since."""
    for value in ("1e-15", "2e-15"):
        make_book(root, good=CHAPTER % value)
        (root / "_toc.yml").write_text("format: jb-book\nroot: chapters/good\nchapters: [{file: chapters/ledger}]\n")
        if value == "1e-15":
            (root / "data/functions.yml").write_text("{}\n")
            shutil.copy(ROOT / "_config.yml", root)
            shutil.copy(ROOT / "chapters/references.bib", root / "chapters")
            built(root, "regression", "--update")
            built(root, "build")
    return root


def numbers(root: Path) -> dict[str, Any]:
    """What a built book says: the chapter's executed cells, without their times, and its page."""
    notebook = json.loads(next(root.glob("_build/**/good.ipynb")).read_text())
    page = (root / "_build/html/chapters/good.html").read_text()
    return {"cells": [[cell["source"], cell.get("outputs")] for cell in notebook["cells"]], "page": page}


@pytest.mark.slow
@pytest.mark.long
def test_what_is_killed_and_called_again_ends_as_undisturbed(tmp_path: Path) -> None:
    """And nobody is left who works."""
    root = changed(tmp_path / "killed/book")
    reference = shutil.copytree(root, tmp_path / "undisturbed/book")
    begin = time.monotonic()
    built(reference, "build")
    seconds, draw, killed = time.monotonic() - begin, random.Random(0), 0
    for _ in range(12):
        with building(root, "build") as process:
            try:
                process.wait(seconds * draw.random())
            except subprocess.TimeoutExpired:
                process.kill()
        killed += process.returncode == -signal.SIGKILL
        left = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("TMPDIR") == f"{root}.tmp"]
        assert psutil.wait_procs(left, timeout=10)[1] == []
        if killed == 3:
            break
        if process.returncode == 0:  # it was faster
            changed(root)
    assert killed == 3
    built(root, "build")
    assert numbers(root) == numbers(reference)
