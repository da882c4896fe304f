"""A table for a page, where rows and columns have heads that a reader of the screen hears."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def as_html(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header cell for each of ``columns``; the first cell of each of ``rows`` heads its row."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<table class="table"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
