"""One view of a table: aligned for a terminal, or for a page, where rows and columns have heads that are read aloud."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

Rows = Iterable[Sequence[str]]


def as_text(columns: Sequence[str], rows: Rows) -> str:
    """Lines of cells, names to the left and numbers to the right; strokes through letters take no room."""
    lines = [columns, *rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        (name, after), *others = ((cell, " " * (w - _width(cell))) for w, cell in zip(widths, line, strict=True))
        text.append(f"{name}{after}{''.join(f'  {space}{cell}' for cell, space in others)}".rstrip())
    return "\n".join(text)


def _width(cell: str) -> int:
    return sum(not unicodedata.combining(letter) for letter in cell)


def as_html(caption: str, columns: Sequence[str], rows: Rows) -> str:
    """A table with a header cell for each of ``columns``; the first cell of each of ``rows`` heads its row."""

    def row(cells: Iterable[str]) -> str:
        return "\n".join(("    <tr>", *(f"      {cell}" for cell in cells), "    </tr>\n"))

    head = row(f'<th scope="col">{escape(column, quote=False)}</th>' for column in columns)
    body = [[escape(cell, quote=False) for cell in cells] for cells in rows]
    lines = "".join(
        row((f'<th scope="row">{name}</th>', *(f"<td>{cell}</td>" for cell in cells))) for name, *cells in body
    )
    parts = f"  <thead>\n{head}  </thead>\n  <tbody>\n{lines}  </tbody>\n"
    return f'<table class="table"><caption>{escape(caption)}</caption>\n{parts}</table>'
