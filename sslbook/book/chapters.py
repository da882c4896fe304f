"""The chapters as they stand in the repository: which there are, and what of them is code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sslbook.book.layout import Book
from sslbook.runtime.arguments import InputError, unknown
from sslbook.runtime.atomic_io import read_source

if TYPE_CHECKING:
    from nbformat import NotebookNode

GENERATED = frozenset({"ledger"})
"""Pages that the build writes; a file of that name in `chapters/` is no chapter."""

_HEADER = re.compile(r"\A---\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)
_CODE_CELL = re.compile(r"^(`{3,}|:{3,})\{code-cell\}", re.MULTILINE)


@dataclass(frozen=True)
class Chapter:
    """One page of the book. ``runs`` says whether it is a notebook with code cells."""

    name: str
    path: Path
    text: str
    runs: bool

    def notebook(self) -> NotebookNode:
        """The page as a notebook without outputs, with cell ids that don't change from one reading to the next."""
        import jupytext  # of the extra `book`: the ledger does without

        return number_cells(jupytext.reads(self.text, fmt="md:myst"))

    @property
    def title(self) -> str:
        """The page's first heading, or its name."""
        match = re.search(r"^# +(.+?)\s*$", self.text, re.MULTILINE)
        return match.group(1) if match else self.name


def find_chapters(book: Book) -> list[Chapter]:
    """Every page in `chapters/`, by name.

    Raises InputError for a page with code cells but without the Jupytext header, which everyone would read as plain
    Markdown, and as `read_source` does.
    """
    return [read_chapter(path) for path in sorted(book.chapters.glob("*.md")) if path.stem not in GENERATED]


def read_chapter(path: Path) -> Chapter:
    """The page in the file ``path``; raises InputError as `find_chapters` does."""
    text = read_source(path)
    header = _HEADER.match(text)
    is_notebook = header is not None and "format_name: myst" in header.group(1)
    has_code = _CODE_CELL.search(text) is not None
    if has_code and not is_notebook:
        raise InputError(
            f"{path.name}: it has code cells but no Jupytext header (format_name: myst), so they would not run"
        )
    return Chapter(path.stem, path, text, runs=has_code)


def choose(chapters: Iterable[Chapter], names: Sequence[str]) -> list[Chapter]:
    """The runnable chapters called ``names`` (all, if none is named); raises InputError for one that isn't there."""
    runnable = {chapter.name: chapter for chapter in chapters if chapter.runs}
    for name in names:
        if name not in runnable:
            raise unknown("chapter", name, runnable)
    return [runnable[name] for name in dict.fromkeys(names)] if names else list(runnable.values())


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that the author wrote: papermill's injected one left out."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and "injected-parameters" not in tags(cell)]


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def parameters(notebook: NotebookNode) -> set[str]:
    """The names that the cell tagged ``parameters`` assigns: what the chapter can be run with."""
    names: set[str] = set()
    for cell in code_cells(notebook):
        if "parameters" in tags(cell):
            for node in ast.walk(parse_cell(cell.source)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
    return names


def parse_cell(source: str) -> ast.Module:
    """A cell's syntax tree, magics and shell lines made plain Python; empty if it doesn't parse (executing it says why)."""
    from IPython.core.inputtransformer2 import TransformerManager  # the ledger needs none of it

    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def number_cells(notebook: NotebookNode) -> NotebookNode:
    """Give the cells ids by position: Jupytext and papermill draw new random ones each time."""
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:03d}"
    return notebook
