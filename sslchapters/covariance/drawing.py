"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from sslchapters.covariance.runs import OPERATOR, Agreement

Colors = Mapping[str, str]


def cosines(ax: Axes, found: Mapping[str, float], colors: Colors) -> None:
    """Cosines as bars from -1 to 1, the first in colour and on top, its rivals grey."""
    ax.barh(list(found), list(found.values()), color=[colors["blue"]] + ["#999999"] * (len(found) - 1))
    ax.axvline(0, color=colors["ink"], linewidth=0.8)
    ax.set(xlim=(-1, 1), xlabel="cosine")
    ax.invert_yaxis()


def rising_cosines(ax: Axes, found: Agreement, wrong: str, colors: Colors) -> None:
    """Cosines of mean steps with the operator's and with a wrong operator's prediction, by the number of batches averaged."""
    for size, row in zip(found.batches, found.cosines[OPERATOR], strict=True):
        ax.plot([size] * len(row), row, ".", color=colors["blue"], alpha=0.3)
    lines = ((OPERATOR, OPERATOR, "-", "blue", 7), (wrong, "best wrong one", ":", "vermilion", -18))
    for name, label, style, color, above in lines:
        ax.plot(found.batches, found.of(name), style, color=colors[color])
        place = (found.batches[-1], float(found.of(name)[-1]))
        ax.annotate(label, place, textcoords="offset points", xytext=(0, above), ha="right", color=colors[color])
    ax.set(xscale="log", xlabel="batches averaged", ylabel="cosine", ylim=(-0.3, 1.15))
    ax.set_xticks(found.batches, [str(b) for b in found.batches])
    ax.minorticks_off()
