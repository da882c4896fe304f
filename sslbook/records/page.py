"""One view of a table, by pandas: aligned for a terminal, or for a page, where rows and columns have heads that are read aloud."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

import pandas as pd

Rows = Iterable[Sequence[str]]


def _frame(columns: Sequence[str], rows: Rows) -> pd.DataFrame:
    """The first of ``columns`` stands above the names of the rows, the first cell of each."""
    names, *cells = zip(*rows, strict=True)
    frame = pd.DataFrame(list(zip(*cells, strict=True)), index=list(names), dtype=object)
    return frame.set_axis(pd.Index(columns[1:], name=columns[0], dtype=object), axis=1)


def as_text(columns: Sequence[str], rows: Rows) -> str:
    """Lines of cells, names to the left and numbers to the right; strokes through letters take no room."""
    lines = [list(columns), *map(list, rows)]
    struck = sorted({found for line in lines for cell in line for found in re.findall(r"\w[\u0300-\u036f]+", cell)})
    private = {letter: chr(0xE000 + number) for number, letter in enumerate(struck)}
    for letter, stand_in in private.items():
        lines = [[cell.replace(letter, stand_in) for cell in line] for line in lines]
    text = _frame(lines[0], lines[1:]).to_string()
    for letter, stand_in in private.items():
        text = text.replace(stand_in, letter)
    return "\n".join(line.rstrip() for line in text.splitlines())


def as_html(caption: str, columns: Sequence[str], rows: Rows) -> str:
    """A table with a header cell for each of ``columns``; the first cell of each of ``rows`` heads its row."""
    with pd.option_context("display.max_colwidth", None):
        table = _frame(columns, rows).to_html(border=0, justify="unset")
    table = table.replace('class="dataframe"', 'class="table"').replace(' style="text-align: unset;"', "")
    head, body = table.split("<tbody>")
    head = head.replace(">", f"><caption>{escape(caption)}</caption>", 1).replace("<th>", '<th scope="col">')
    return f"{head}<tbody>{body}".replace("<th>", '<th scope="row">')
