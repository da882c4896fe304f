"""The chapter's tables as HTML with header cells, and its drawings of views and of a ResNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from IPython.display import HTML
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from sslchapters.tables import as_html
from sslchapters.training.records import COURSES, last, span

WIDTH = 5.8
"""Of a figure of the book, in inches."""

STAGES = ((64, 32), (128, 16), (256, 8), (512, 4))
"""Channels, and the side of the picture, of the four stages of a ResNet-18 of width 64 on images of 32 by 32."""


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


def resnet(fig: Figure, ax: Any) -> Figure:
    """Stem, stages of two blocks each, mean and projector, from left to right: heights follow the side of the picture."""
    ink, soft = "#272727", "#c9d8e6"
    place, middle = 0.0, 0.0
    parts: list[tuple[float, float, str, str]] = [(0.5, 1.5, "image", "3"), (0.25, 1.5, "stem", str(STAGES[0][0]))]
    parts += [(1.1, 0.5 + side / STAGES[0][1], "", str(channels)) for channels, side in STAGES]
    parts += [(0.25, 0.5, "mean", str(STAGES[-1][0])), (0.45, 0.4, "head", "128")]
    for number, (wide, high, name, below) in enumerate(parts):
        _part(ax, (place, middle), (wide, high), ink, soft, blocks=2 <= number < 2 + len(STAGES))
        stage = f"stage {number - 1}" if 2 <= number < 2 + len(STAGES) else name
        ax.text(place + wide / 2, 1.15, stage, ha="center", fontsize=12)
        ax.text(place + wide / 2, -1.05, below, ha="center", fontsize=12)
        place += wide + (0.3 if 2 <= number < 1 + len(STAGES) else 0.55)
    ax.set(xlim=(-0.25, place - 0.3), ylim=(-1.2, 1.4))
    ax.axis("off")
    return fig


def _part(ax: Any, at: tuple[float, float], size: tuple[float, float], ink: str, soft: str, *, blocks: bool) -> None:
    """One box, or the two blocks of a stage, each with the sum that leads around it."""
    (x, y), (wide, high) = at, size
    each = (wide - 0.15) / 2 if blocks else wide
    for left in (x, x + each + 0.15) if blocks else (x,):
        ax.add_patch(Rectangle((left, y - high / 2), each, high, facecolor=soft, edgecolor=ink, lw=1))
        if blocks:
            ax.plot([left + each / 2] * 2, [y - high / 2, y + high / 2], color=ink, lw=0.8)
            start, end = (left - 0.06, y + high / 2), (left + each + 0.06, y + high / 2)
            ax.add_patch(
                FancyArrowPatch(
                    start, end, connectionstyle="arc3,rad=-0.6", arrowstyle="-|>", mutation_scale=8, color=ink
                )
            )
