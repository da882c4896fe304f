"""Every chapter as a reader has it: the notebook of the download button, run by plain papermill with the package from its wheel."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import papermill
import pytest
from filelock import FileLock

from sslbook.book import kernel, regression
from sslbook.book.chapters import Chapter, find_chapters
from sslbook.book.execute import stderr_notes
from sslbook.book.layout import find_book
from sslbook.book.values import numbers

BOOK = find_book(Path(__file__).resolve().parents[1])
CHAPTERS = [chapter for chapter in find_chapters(BOOK) if chapter.runs]


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the package from its wheel, and what it needs; one for all processes of pytest."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder) / "reader"
    python = folder / "bin/python"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            run([sys.executable, "-m", "venv", "--clear", str(folder)])
            source = folder / "source"  # setuptools leaves its work where it builds
            left_out = shutil.ignore_patterns("_build", "_data", ".*", "tests")
            shutil.copytree(BOOK.root, source, ignore=left_out, symlinks=True)
            wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
            run([*wheel, "-w", str(folder), str(source)])
            lock = BOOK.root / "requirements.lock"
            tool = runpy.run_path(str(BOOK.root / "tools/environment.py"))  # which torch suits this machine, it knows
            tool["install_torch"](tool["Pip"](python, folder / "pip.log"), lock, "auto", tool["has_nvidia"]())
            (made,) = folder.glob("sslbook-*.whl")
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run([*pip, f"--constraint={lock}", str(made), "ipykernel", "ipywidgets"])
            (folder / "ready").touch()
    return python


def run(command: list[str]) -> None:
    """Run a command, and say what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def kernel_of(python: Path, folder: Path) -> Path:
    """A folder for JUPYTER_PATH in which the kernel `python3` is ``python``."""
    spec = folder / "kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
    return folder


def notebook_of(chapter: Chapter) -> Path:
    """The chapter's notebook as the download button has it."""
    path = BOOK.html / "notebooks" / f"{chapter.name}.ipynb"
    if not path.exists():
        pytest.skip("the book is not built: make book")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_chapter_runs_alone_and_gives_its_numbers(chapter: Chapter, reader: Path, tmp_path: Path) -> None:
    """By papermill, in an environment made from the wheel, outside the checkout, and without a warning."""
    with kernel.environment() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.delenv("PYTHONPATH")
        patch.setenv("JUPYTER_PATH", str(kernel_of(reader, tmp_path)))
        executed = papermill.execute_notebook(
            str(notebook_of(chapter)),
            str(tmp_path / "out.ipynb"),
            parameters={"scale": "quick", "seed": 0},
            cwd=str(tmp_path),
            progress_bar=False,
            start_timeout=kernel.START_SECONDS,
            execution_timeout=1800,
        )
    assert stderr_notes(executed) == []
    found = list(numbers(executed))
    held = regression.read_expected(BOOK.expected(chapter.name, "quick"))
    assert regression.differences(found, held) == []
    if chapter.name != "intro":
        claims = [number for number in found if number.id and number.criterion.asserts]
        assert claims, "a chapter without claims checks nothing"
        assert all(number.rejects for number in claims)


def test_the_regression_sees_a_number_that_moved() -> None:
    """The comparison above can fail: any held number, moved by more than its tolerance, is reported."""
    chapter = next(chapter for chapter in CHAPTERS if chapter.name == "covariance")
    held = regression.read_expected(BOOK.expected(chapter.name, "quick"))
    assert held, "nothing is held"
    assert len(regression.differences([], held)) == len(held)
