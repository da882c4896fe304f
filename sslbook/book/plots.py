"""How the book's figures look: one style, a palette that colour-blind readers can tell apart, and four small helpers.

Figures are drawn dark on white. In the dark theme the page's style sheet turns their lightness round and keeps their hues, so
"the blue line" stays blue; a picture that must keep its values (a photograph) opts out with the class `keep-colors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import matplotlib as mpl
import numpy as np
from cycler import cycler
from IPython import get_ipython
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.scale import LogScale, register_scale
from matplotlib.ticker import LogFormatterSciNotation
from numpy.typing import ArrayLike

from sslbook.book.values import typeset

PALETTE: Final = {
    "blue": "#084573",
    "vermilion": "#b03e09",
    "green": "#0e9e7d",
    "purple": "#dc44da",
    "ochre": "#d48201",
    "ink": "#272727",
}
"""Found by search: any two differ by at least 20 in CIELAB, seen with full colour vision and with each of the three
dichromacies, and each has 3:1 contrast with the page, light and dark. In order of use; the first four differ most."""

WIDTH: Final = 5.8
"""Width of a figure in inches. On a phone it shrinks to 0.65 of that: text below 11 pt is hard to read there."""

_RC: Final[dict[str, Any]] = {
    "figure.figsize": (WIDTH, 3.2),
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": ["Book Serif", "DejaVu Sans"],
    "mathtext.fontset": "custom",
    "mathtext.rm": "Book Serif",
    "mathtext.it": "Book Serif:italic",
    "mathtext.bf": "Book Serif:bold",
    "mathtext.cal": "Book Serif:italic",
    "mathtext.sf": "Book Serif",
    "mathtext.fallback": "stix",
    "font.size": 12.5,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 12.5,
    "axes.edgecolor": "#333333",
    "axes.labelcolor": "#1a1a1a",
    "axes.linewidth": 0.9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=list(PALETTE.values())),
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "lines.linewidth": 2.0,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 11.5,
    "image.cmap": "cividis",
    "image.interpolation": "nearest",
    "svg.fonttype": "path",
    "svg.hashsalt": "sslbook",
}


class FewLabels(LogFormatterSciNotation):
    """Minor labels of a logarithmic axis: none where two powers of ten are in view, else only those at 2 and 5."""

    def __init__(self) -> None:
        super().__init__(labelOnlyBase=False, minor_thresholds=(np.inf, np.inf))

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label at `x`, or nothing."""
        if self.axis is None or x <= 0:
            return ""
        low, high = np.log10(np.sort(np.abs(self.axis.get_view_interval())))
        if np.floor(high) - np.ceil(low) >= 1:
            return ""
        leading = round(x / 10 ** np.floor(np.log10(x)))
        return super().__call__(x, pos) if leading in (2, 5) else ""


class BookLogScale(LogScale):
    """matplotlib's logarithmic scale with `FewLabels`; `style` puts it in that one's place, as no rcParam does this."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # with the axis before matplotlib 3.11, without it since

    def set_default_locators_and_formatters(self, axis: Axis) -> None:
        """As matplotlib does it, but for the minor labels of base 10."""
        super().set_default_locators_and_formatters(axis)
        if self.base == 10:
            axis.set_minor_formatter(FewLabels())


@cache
def _add_fonts() -> None:
    for path in sorted((Path(__file__).parent / "assets/fonts").glob("*.ttf")):
        fontManager.addfont(path)


def style() -> None:
    """Set the book's matplotlib style; in IPython also let figures come out as SVG in their true size, uncropped."""
    _add_fonts()
    mpl.rcParams.update(cast(Any, _RC))  # newer type stubs list the keys one by one
    register_scale(BookLogScale)
    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg", "png", bbox_inches=None, metadata={"Date": None})


def figure(columns: int = 1, rows: int = 1, *, height: float = 3.2, **subplots: Any) -> tuple[Figure, Any]:
    """A figure as wide as the text with `rows` x `columns` axes, each row `height` inches high: `(figure, axes)`.

    `axes` is one `Axes` or an array of them, as from `pyplot.subplots`, which takes the other keywords.
    """
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(WIDTH, height * rows), **subplots)


def heatmap(ax: Axes, matrix: ArrayLike, *, label: str = "", signed: bool = True, **options: Any) -> None:
    """Draw a matrix with its colour bar: red and blue around a white zero if `signed`, else cividis from its least value.

    A `signed` scale is symmetric, so that equal colours are equal sizes; an all-zero matrix is drawn white. Names of rows and
    columns, numbers in the cells and the like are seaborn's `options`.
    """
    import seaborn as sns

    values = np.asarray(matrix, dtype=float)
    reach = float(np.nanmax(np.abs(values))) or 1.0
    scale: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach} if signed else {"cmap": "cividis"}
    names: dict[str, Any] = {"xticklabels": False, "yticklabels": False, "square": True}
    bar = {"label": label, "shrink": 0.8}
    sns.heatmap(values, ax=ax, cbar_kws=bar, **{**scale, **names, **options})
    for number in ax.texts:
        number.set_text(typeset(number.get_text()))
    ax.grid(visible=False)


def over_seeds(
    ax: Axes, groups: Mapping[str, ArrayLike], *, label: str = "", colors: Mapping[str, str] | None = None
) -> None:
    """A row for each group of `groups`: a dot for each seed's number, and their mean with its 95 % t-interval.

    `colors` maps groups to names of `PALETTE`; without it all are blue.
    """
    import seaborn as sns

    from sslbook.stats.intervals import mean_interval

    rows = {name: np.asarray(values, dtype=float).ravel() for name, values in groups.items()}
    tones = {name: PALETTE[(colors or {}).get(name, "blue")] for name in rows}
    sns.stripplot(data=rows, orient="h", jitter=False, size=6, alpha=0.45, palette=tones, ax=ax)
    for row, (name, values) in enumerate(rows.items()):
        found = mean_interval(values)
        ax.plot([found.low, found.high], [row, row], color=tones[name], linewidth=2.2, solid_capstyle="butt", zorder=3)
        ax.plot(found.mean, row, marker="|", markersize=15, markeredgewidth=2.5, color=tones[name], zorder=4)
    ax.set(xlabel=label, ylabel="")
    ax.grid(visible=False, axis="y")


def image_row(axes: Sequence[Axes], images: ArrayLike, titles: Sequence[str] | None = None) -> None:
    """Draw grey images (n, height, width) into n axes, dark ink on white, all with one scale; `titles` below them."""
    pictures = np.asarray(images, dtype=float)
    low, high = float(pictures.min()), float(pictures.max())
    for i, (ax, picture) in enumerate(zip(axes, pictures, strict=True)):
        ax.imshow(picture, cmap="gray_r", vmin=low, vmax=high)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.set(xticks=[], yticks=[])
        if titles is not None:
            ax.set_xlabel(titles[i])


def strips(rows: Mapping[str, ArrayLike]) -> Figure:
    """Rows of grey images (n, height, width) below their titles, as wide as the text."""
    import matplotlib.pyplot as plt

    fig = plt.figure(figsize=(WIDTH, 0.85 * len(rows)))
    bands = fig.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for band, (title, pictures) in zip(bands, rows.items(), strict=True):
        band.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold")
        image_row(list(np.atleast_1d(band.subplots(1, len(np.asarray(pictures))))), pictures)
    return fig


def slope(ax: Axes, power: float, *, through: tuple[float, float], label: str = "", span: float = 10.0) -> None:
    """A dashed reference line y ~ x^power on logarithmic axes, from the point `through` over a factor `span` in x."""
    x, y = through
    xs = np.array([x, x * span])
    ax.plot(xs, y * (xs / x) ** power, color="#333333", linestyle=(0, (4, 3)), linewidth=1.3, zorder=1)
    if label:
        ax.annotate(label, (xs[1], float(y * span**power)), textcoords="offset points", xytext=(5, 0), va="center")
