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
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", "SSLBOOK_COMMIT": "0" * 40}
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


def written(root: Path, value: str) -> Path:
    """A small book, whose chapter gives this number."""
    make_book(root, good=CHAPTER % value)
    (root / "_toc.yml").write_text("format: jb-book\nroot: chapters/good\nchapters: [{file: chapters/ledger}]\n")
    (root / "data/functions.yml").write_text("{}\n")
    shutil.copy(ROOT / "_config.yml", root)
    shutil.copy(ROOT / "chapters/references.bib", root / "chapters")
    return root


def built(root: Path, *command: str) -> dict[str, Any]:
    """What a built book says: the chapter's executed cells, without their times, and its page."""
    process = begun((*command, "--processes", "1"), root)
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said
    if command != ("build",):
        return {}
    notebook = json.loads(next(root.glob("_build/**/good.ipynb")).read_text())
    page = (root / "_build/html/chapters/good.html").read_text()
    return {"cells": [[cell["source"], cell.get("outputs")] for cell in notebook["cells"]], "page": page}


@pytest.mark.slow
@pytest.mark.long
def test_what_is_killed_and_called_again_ends_as_undisturbed(tmp_path: Path) -> None:
    """And nobody is left who works."""
    root = written(tmp_path / "killed/book", "1e-15")
    built(root, "regression", "--update")
    built(root, "build")
    reference = shutil.copytree(root, tmp_path / "undisturbed/book")
    begin = time.monotonic()
    wanted = built(written(reference, "2e-15"), "build")
    seconds, draw, killed = time.monotonic() - begin, random.Random(0), 0
    for attempt in range(12):
        process = begun(("build", "--processes", "1"), written(root, f"{3 + attempt}e-15"))
        time.sleep(seconds * draw.random())
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        assert psutil.wait_procs(workers, timeout=10)[1] == []
        if killed == 3:
            break
    assert killed == 3
    assert built(written(root, "2e-15"), "build") == wanted
