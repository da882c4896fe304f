"""Copies of the readers' notebooks: in a folder of their own, and opened in JupyterLab.

A copy is its reader's. Another one comes in its place only where it still is as the build wrote it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from sslbook.book.cache import digest
from sslbook.book.layout import Book
from sslbook.book.site import Repository
from sslbook.book.values import RECORD_KEY
from sslbook.runtime.arguments import InputError
from sslbook.runtime.atomic_io import read_text, write_text

NOTEBOOKS = "notebooks"
"""The folder of the built book that holds them."""
_MARK = "written"


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a reader's notebook so that `copy_notebooks` can tell whether it is still as it was written."""
    notebook.metadata[RECORD_KEY][_MARK] = _content(notebook)
    write_text(path, nbformat.writes(notebook))


def copy_notebooks(book: Book, folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy the built notebooks into ``folder``, with a `requirements.txt` for whoever has no `sslbook`.

    Returns the copies, and the files that are left as they were, since somebody changed or ran them. Raises InputError if the
    book is not built.
    """
    built = sorted((book.html / NOTEBOOKS).glob("*.ipynb"))
    if not built:
        raise InputError("the notebooks are not built; run: sslbook build")
    folder.mkdir(parents=True, exist_ok=True)
    copies = [folder / path.name for path in built]
    kept = [copy for copy in copies if copy.exists() and not _as_written(copy)]
    for path, copy in zip(built, copies, strict=True):
        if copy not in kept:
            shutil.copy(path, copy)
    requirement = (
        Repository.read(book.root).requirement or "# sslbook itself: pip install PATH, of a checkout of the book"
    )
    kernel = "ipykernel>=6.29,<7.3  # 7.4 prints a warning whenever a kernel starts"
    needed, list_ = f"{requirement}\n{kernel}\nipywidgets>=8.1,<9\njupyterlab>=4.2,<5\n", folder / "requirements.txt"
    if list_.exists() and read_text(list_) != needed:
        return copies, [*kept, list_]
    write_text(list_, needed)
    return copies, kept


def _as_written(path: Path) -> bool:
    """Whether a copy has the cells that the build gave it, their outputs too; what can't be read has not."""
    try:
        notebook = nbformat.reads(read_text(path), as_version=4)
        return bool(notebook.metadata[RECORD_KEY][_MARK] == _content(notebook))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _content(notebook: NotebookNode) -> str:
    return digest(json.dumps(notebook.cells, sort_keys=True).encode())


def start(folder: Path, arguments: Sequence[str]) -> int:
    """Open JupyterLab on ``folder``; returns its exit status when it is closed."""
    options = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return subprocess.run([*command(folder), *options, *arguments], check=False).returncode


def command(folder: Path) -> list[str]:
    """The command that opens JupyterLab on ``folder``."""
    return [sys.executable, "-m", "jupyter", "lab", f"--notebook-dir={folder}"]
