"""What a command meets: letters that a terminal can't show, a reader who has had enough, no stream, signals, its death."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import make_book

from benchmarks.commands import BENCHMARKS
from sslbook import cli
from sslbook.training.run import checkpoints

COMMANDS = list(cli._declared())
BENCHES = BENCHMARKS
LINES = [
    *((name, "--help") for name in COMMANDS),
    *(("bench", name, "--help") for name in BENCHES),
    ("train", "--list"),
    ("train", "cifar10-βeta"),
    ("table", "--list"),
    ("gpu", "--plan"),
    ("ledger", "--json"),
]
TOLD = [("--help",), ("table", "A-Tab2"), ("ledger",), ("margins", "--worst", "1000")]
"""What has the most letters of its own, and is shown in each encoding."""
RUN = ("train", "digits-simclr-nce", "--epochs", "100000", "--set", "subset=128", "--set", "batch=64")
NAP = "<<import time; time.sleep(1000)>>\n"


def said(encoding: str, line: tuple[str, ...], patch: pytest.MonkeyPatch) -> tuple[object, str, str]:
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


@pytest.mark.parametrize(
    ("line", "encodings"),
    [*((line, ["ascii"]) for line in LINES), *((line, ["ascii", "latin-1", "cp1252"]) for line in TOLD)],
    ids=lambda part: " ".join(part),
)
def test_a_letter_that_a_terminal_lacks_is_another(
    line: tuple[str, ...], encodings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else is other than in UTF-8, the status least of all; JSON is the same everywhere."""
    status, *texts = said("utf-8", line, monkeypatch)
    for encoding in encodings:
        wanted = [text.encode(encoding, "replace").decode(encoding) for text in texts]
        assert said(encoding, line, monkeypatch) == (status, *wanted)
    assert "Traceback" not in "".join(texts)
    if "--json" in line:
        assert texts[0].isascii()


def begun(line: tuple[str, ...], folder: Path, **more: object) -> subprocess.Popen[str]:
    """A command as a terminal starts it: a shell in the background would have it ignore Ctrl-C."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **more}
    usual = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    usual += f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if pipes.pop('nohup', False) else 'SIG_DFL'})"
    command = [sys.executable, "-c", f"{usual}; runpy.run_module('sslbook', run_name='__main__')", *line]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]


@pytest.mark.parametrize("line", [("--help",), ("train", "--list"), ("table", "--list"), RUN], ids=" ".join)
def test_a_reader_who_has_had_enough_ends_a_command_quietly(line: tuple[str, ...], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = begun(line, tmp_path, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (command.communicate(timeout=300)[1], command.returncode) == ("", 141)


@pytest.mark.parametrize(
    ("shell", "status"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("<&- >&-", 0), (">/dev/full", 2)]
)
def test_a_stream_that_is_closed_or_full_is_no_traceback(shell: str, status: int, tmp_path: Path) -> None:
    line = f'exec "{sys.executable}" -m sslbook table --list {shell}'
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    wanted = "sslbook: No space left on device\n" if status else ""
    assert (done.returncode, done.stderr) == (status, wanted)


def until(lines: Iterator[str], sign: str) -> list[str]:
    """The lines up to that with a sign of life."""
    seen = []
    for line in lines:
        seen.append(line)
        if sign in line:
            return seen
    raise AssertionError("".join(seen))


@pytest.mark.slow
def test_nohup_is_heeded(tmp_path: Path) -> None:
    run = begun((*RUN, "--folder", "."), tmp_path, nohup=True)
    assert run.stdout is not None
    until(run.stdout, "epoch 1 ")
    run.send_signal(signal.SIGHUP)
    until(run.stdout, "epoch 4 ")
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=300)
    assert run.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_terminal_that_closes_leaves_a_checkpoint(tmp_path: Path) -> None:
    """Nothing can be written to it any more, and the system sends SIGHUP."""
    ours, its = pty.openpty()
    run = begun((*RUN, "--folder", "."), tmp_path, stdin=its, stdout=its, stderr=its)
    os.close(its)
    with os.fdopen(ours, "rb", buffering=0) as shown:
        while b"k-NN" not in shown.read(4096):
            pass
    run.send_signal(signal.SIGHUP)
    assert run.wait(300) == 128 + signal.SIGHUP
    assert checkpoints.newest_step(next(tmp_path.glob("digits*"))) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "sign", "send"),
    [
        (("execute",), "running", os.kill),
        (("build",), "running", os.killpg),
        (("inspect", "RUN", "digits"), "layer 1 of", os.kill),
        (("table", "B-Tab3-digits-convnet", "--run", "--epochs", "5000"), None, os.killpg),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else "",
)
def test_ctrl_c_ends_any_command_with_a_sentence(
    line: tuple[str, ...], sign: str | None, send: Callable[[int, int], None], tmp_path: Path
) -> None:
    """Also where it alone hears of it, and not, as from a terminal, its workers too."""
    make_book(tmp_path, good=NAP)
    if line[0] == "inspect":
        assert cli.main([*RUN, "--folder", str(tmp_path), "--quiet", "--epochs", "1"]) == 0
        line = (line[0], next(path.name for path in tmp_path.glob("digits*")), *line[2:])
    command = begun(line, tmp_path)
    assert command.stdout is not None
    if sign is not None:
        until(command.stdout, sign)
    else:
        with pytest.raises(subprocess.TimeoutExpired):  # nothing is said before the end, so that it is at work then
            command.wait(8)
    send(command.pid, signal.SIGINT)
    rest = command.communicate(timeout=60)[0]
    assert command.returncode == 130
    assert rest.splitlines()[-1] == "sslbook: stopped"
    assert "Traceback" not in rest


ROOT = Path(__file__).resolve().parents[1]
TOC = "format: jb-book\nroot: chapters/good\nchapters: [{file: chapters/ledger}]\n"
CHAPTER = """<<claim("gap", %s, below=1e-12, rejects={"a sign": 1.0}, id="A-Thm1", why="one sum");>>

The gap is {glue:text}`gap:.1e`.

```{bibliography}
```
"""
KILLS = 3


def building(root: Path, *command: str) -> subprocess.Popen[str]:
    """A command in a folder of its own for temporary files, by which each of its processes is known."""
    ours = ("SSLBOOK_", "PYTEST_", "COV_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "SSLBOOK_TESTS_OUTSIDE"}
    own = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    own |= {"TMPDIR": f"{root}.tmp", "SSLBOOK_COMMIT": "0" * 40}
    Path(own["TMPDIR"]).mkdir(exist_ok=True)
    line, pipe = [sys.executable, "-m", "sslbook", *command, "--processes", "1"], subprocess.PIPE
    return subprocess.Popen(line, cwd=root, env=kept | own, text=True, stdout=pipe, stderr=subprocess.STDOUT)


def seconds_of(root: Path, *command: str) -> float:
    """The seconds that a command takes to its end."""
    start, process = time.monotonic(), building(root, *command)
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
    seconds_of(root, "regression", "--update")
    seconds_of(root, "build")
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


@pytest.mark.slow
@pytest.mark.long
def test_what_is_killed_three_times_and_called_again_ends_as_undisturbed(tmp_path: Path) -> None:
    """Bit for bit, but for times; and nobody is left who works."""
    reference, root = (changed(tmp_path / name / "book") for name in ("undisturbed", "killed"))
    seconds, after, before = seconds_of(reference, "build"), files(reference), files(root)
    draw, killed = random.Random(0), 0
    for _ in range(4 * KILLS):
        with building(root, "build") as process:
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
    seconds_of(root, "build")
    ended = files(root)
    assert sorted(ended) == sorted(after)
    assert [name for name in after if ended[name] != after[name]] == []
