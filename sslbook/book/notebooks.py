"""The chapters as notebooks that a reader runs: no outputs, nothing needed but ``pip install sslbook``."""

from __future__ import annotations

from pathlib import Path

import nbformat

from sslbook.book.chapters import Chapter
from sslbook.book.files import atomic


def write_notebook(chapter: Chapter, folder: Path) -> Path:
    """Write ``chapter`` into ``folder`` as `<name>.ipynb`; the same chapter always gives the same bytes."""
    notebook = chapter.notebook()
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    target = folder / f"{chapter.name}.ipynb"
    with atomic(target) as path:
        nbformat.write(notebook, path)
    return target
