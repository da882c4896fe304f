"""Tables of the page: HTML with a caption and header cells where it can be shown, aligned text elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from sslbook.tables.filled import Filled, number, spread

NARROW = 4
"""Columns from which on the rows may be stacked on a phone; then the first cell of a row is a plain one."""

_MINUS = re.compile(r"(?<![\w.])-(?=\d)")


@dataclass(frozen=True)
class Sheet:
    """A table: what it shows, the heads of its columns with their units, and its rows, the first cell of each its name."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"rows must have {len(self.heads)} cells each, as there are heads")

    def _repr_html_(self) -> str:
        first = 'td class="sslbook-row-head"' if len(self.heads) >= NARROW else 'th scope="row"'
        heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in self.heads)
        rows = "".join(
            f"<tr><{first}>{escape(row[0])}</{first[:2]}>"
            + "".join(f"<td>{escape(_MINUS.sub('−', cell))}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        return (  # a caption inside would be squeezed where rows are stacked
            f'<p><em>{escape(self.caption)}</em></p><table class="table" aria-label="{escape(self.caption)}">'
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def __repr__(self) -> str:
        wide = [max(map(len, column)) + 2 for column in zip(self.heads, *self.rows)]
        lines = [
            "".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in (self.heads, *self.rows)
        ]
        return "\n".join([self.caption, *lines])


def listing(table: Filled, caption: str) -> Sheet:
    """A row a cell: its name, the paper's number, ours of the first measure with its deviation, means of the others."""
    (first, digits), *others = table.measures.items()
    said = [axis for axis, labels in enumerate(table.axes.values()) if len(labels) > 1]
    rows = []
    for entry in table.entries:
        ours = number(*spread(entry.found.get(first, ())), digits)
        rest = (number(spread(entry.found.get(m, ()))[0], None, d) for m, d in others)
        rows.append(("; ".join(entry.at[axis] for axis in said), number(*entry.printed, digits), ours, *rest))
    return Sheet(caption, ("cell", "printed, %", "ours, %", "rank", "likeness"), tuple(rows))


def grid(table: Filled, caption: str) -> Sheet:
    """The table's own shape, its last axis the columns: in each cell the paper's mean and ours, as ``printed | ours``."""
    (measure, digits) = next(iter(table.measures.items()))
    columns = tuple(table.axes.values())[-1]
    said = [axis for axis, labels in enumerate(table.axes.values()) if len(labels) > 1][:-1]
    rows = []
    for start in range(0, len(table.entries), len(columns)):
        row = table.entries[start : start + len(columns)]
        pairs = ((entry.printed[0], spread(entry.found.get(measure, ()))[0]) for entry in row)
        cells = (f"{number(theirs, None, digits)} | {number(ours, None, digits)}" for theirs, ours in pairs)
        rows.append((", ".join(row[0].at[axis] for axis in said), *cells))
    return Sheet(caption, ("printed | ours, %", *columns), tuple(rows))
