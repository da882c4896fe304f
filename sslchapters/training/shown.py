"""The chapter's tables as HTML with header cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from IPython.display import HTML

from sslchapters.plots import WIDTH as WIDTH
from sslchapters.tables import as_html
from sslchapters.training.records import COURSES, last, span


def table(caption: str, heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> HTML:
    """A row a name; the first of ``heads`` stands above the names."""
    return HTML(as_html(caption, heads, [(name, *row) for name, row in rows.items()]))


def accuracies(values: Mapping[str, Any], caption: str, names: Sequence[str] | None = None) -> HTML:
    """A line a run, of a record's or those with ``names``: k-NN and linear accuracy at the end, mean and
    deviation over seeds if there are several, mean rank, and mean span."""

    def percent(name: str, measure: str) -> str:
        numbers = 100 * last(values, name, measure)
        spread = f" ±\N{NO-BREAK SPACE}{numbers.std(ddof=1):.1f}" if len(numbers) > 1 else ""
        return f"{numbers.mean():.1f}{spread}"

    rows = {
        COURSES[name].label: (
            percent(name, "knn"),
            percent(name, "linear"),
            f"{last(values, name, 'rank').mean():.1f}",
            *([f"{span(values, name).mean():.1f}"] if "axes" in found else []),
        )
        for name, found in ((name, values["last"][name]) for name in names or values["last"])
    }
    heads = ("trained with", "k-NN, %", "linear, %", "rank", "embeddings' rank")
    return table(caption, heads[: 1 + len(next(iter(rows.values())))], rows)
