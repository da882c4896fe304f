"""A reader's environment: what `sslbook notebooks` says that its notebooks need, and nothing of this checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError
from tool_cases import tool

from sslbook.book import execute as kernel
from sslbook.book import notebooks
from sslbook.book.layout import Book


def make(book: Book, folder: Path) -> Path:
    """Make the environment in ``folder`` as Binder would, from `requirements.txt`; returns its Python.

    The package comes last, from its wheel; what the first cell of a notebook says without it goes to `first-cell.txt`.
    """
    python = folder / "bin/python"
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    source = folder / "source"  # setuptools leaves its work where it builds
    shutil.copytree(book.root, source, ignore=shutil.ignore_patterns("_build", "_data", ".*", "tests"), symlinks=True)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*wheel, "-w", str(folder), str(source)])
    environment = tool("environment")  # which torch suits this machine, it knows
    lock = folder / "pins.txt"
    lock.write_text("".join(environment.locked(book.root / "requirements.lock", hashes=False)))
    environment.install_torch(environment.Pip(python, folder / "pip.log"), lock, "auto", environment.has_nvidia())
    (first, *_), _ = notebooks.copy_notebooks(book, folder / "notebooks")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    needed = str(folder / "notebooks/requirements.txt")
    run([*pip, "install", f"--constraint={lock}", "-r", needed])
    (folder / "first-cell.txt").write_text(run_first_cell(first, python, folder), encoding="utf-8")
    run([*pip, "install", f"--constraint={lock}", *map(str, folder.glob("sslbook-*.whl"))])
    return python


def run_first_cell(path: Path, python: Path, folder: Path) -> str:
    """Run the first code cell of a notebook where the package is missing; what it ends with."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [next(cell for cell in notebook.cells if cell.cell_type == "code")]
    nbformat.write(notebook, folder / "first.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(kernel_of(python, folder / "jupyter")))
        patch.delenv("PYTHONPATH", raising=False)
        with pytest.raises(PapermillExecutionError) as failed:
            papermill.execute_notebook(
                str(folder / "first.ipynb"),
                str(folder / "first-done.ipynb"),
                progress_bar=False,
                start_timeout=kernel.START_SECONDS,
                cwd=str(folder),
            )
    return f"{failed.value.ename}: {failed.value.evalue}"


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
