"""Two commands at once in one checkout: the second says which is the first, and nothing is mixed."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sslbook import cli
from sslbook.book.alone import alone
from sslbook.book.layout import Book
from sslbook.runtime.arguments import InputError
from sslbook.runtime.atomic_io import PART

HOLDS = """
import sys, time
from pathlib import Path
from sslbook.book.alone import alone
from sslbook.book.layout import Book
with alone(Book(Path(sys.argv[1])), "build"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_of_the_first(
    holder: subprocess.Popen, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sentence = rf"_build is being written by sslbook build, process {holder.pid}, since \d\d:\d\d:\d\d; wait for it"
    with pytest.raises(InputError, match=sentence), alone(Book(tmp_path), "execute"):
        pass
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: chapters/intro\n")
    (tmp_path / "chapters/intro.md").write_text("# One\n")
    for command in ("execute", "build"):
        assert cli.main([command, "--root", str(tmp_path)]) == 2
        assert re.search(sentence, capsys.readouterr().err)


def test_who_dies_holds_nothing(holder: subprocess.Popen, tmp_path: Path) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    ours = rf"sslbook execute, process {os.getpid()}"
    with alone(Book(tmp_path), "execute"), pytest.raises(InputError, match=ours), alone(Book(tmp_path), "build"):
        pass
    with alone(Book(tmp_path), "build"):
        pass


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    book = Book(tmp_path)
    parts = [
        folder / f".one.ipynb.abc{PART}" for folder in (book.built, book.executed("paper"), tmp_path / "data/expected")
    ]
    for part in parts:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    with alone(book, "build"):
        assert not any(part.exists() for part in parts)


def test_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    def fill() -> None:
        with alone(Book(tmp_path), "build"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as full:
        fill()
    assert full.value.filename == str(tmp_path / "_build")
