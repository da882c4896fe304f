"""The notebooks that readers take away: a first cell that asks nobody for a bare name."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from sslbook.book.notebooks import reader_notebook
from sslbook.book.plain import Piece
from sslbook.book.repository import Repository

PAGE = [Piece("text", 0, "# One"), Piece("code", 1, ""), Piece("text", 2, "The end.")]


def first_cell(url: str) -> str:
    executed = new_notebook(cells=[new_markdown_cell("# One"), new_code_cell("1"), new_markdown_cell("The end.")])
    written = reader_notebook("one", executed, PAGE, Repository(url).requirement)
    assert [cell.source for cell in written.cells if "sslbook" not in cell.source] == ["# One", "1", "The end."]
    return str(next(cell.source for cell in written.cells if cell.cell_type == "code"))


def test_the_first_cell_asks_for_no_bare_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that nobody holds can be anybody's tomorrow."""
    installing = [line.strip() for line in first_cell("https://github.com/Ada/book").splitlines() if "%pip" in line]
    assert installing == ['%pip install --quiet "sslbook @ git+https://github.com/Ada/book"']
    source = first_cell("")
    exec(source)
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "sslbook":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(
        ImportError, match=r"needs the book's library .*: run %pip install PATH, where PATH is a checkout"
    ):
        exec(source)
