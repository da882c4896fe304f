"""The book's figures: one style, a palette that colour-blind readers can tell apart, small helpers, `slider` and `show`.

Figures are drawn dark on white. In the dark theme the page's style sheet turns their lightness round and keeps their hues, so
"the blue line" stays blue; a picture that must keep its values (a photograph) opts out with the class `keep-colors`.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import matplotlib.style
import numpy as np
from cycler import cycler
from IPython import get_ipython
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import FancyArrowPatch
from matplotlib.scale import LogScale, register_scale
from matplotlib.ticker import LogFormatterSciNotation
from numpy.typing import ArrayLike
from PIL import Image

from sslchapters.running import LIVE
from sslchapters.values import typeset

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
"""Width of a figure in inches."""

ASSETS = Path(__file__).parent / "assets"
"""The style sheet, and the fonts that it names."""


class FewLabels(LogFormatterSciNotation):
    """Minor labels of a logarithmic axis: none where two powers of ten are in view, else only those at 2 and 5."""

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
            axis.set_minor_formatter(FewLabels(labelOnlyBase=False, minor_thresholds=(np.inf, np.inf)))


def style() -> None:
    """Set the book's matplotlib style; in IPython also let figures come out as SVG in their true size, uncropped."""
    for font in sorted(ASSETS.glob("fonts/*.ttf")):
        fontManager.addfont(font)
    matplotlib.style.use(ASSETS / "book.mplstyle")
    matplotlib.rcParams["axes.prop_cycle"] = cycler(color=list(PALETTE.values()))
    register_scale(BookLogScale)
    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg", "png", bbox_inches=None, metadata={"Date": None})


def figure(columns: int = 1, rows: int = 1, *, height: float = 3.2, **subplots: Any) -> tuple[Figure, Any]:
    """A figure as wide as the text with `rows` x `columns` axes, each row `height` inches high, as from `pyplot.subplots`."""
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

    from sslchapters.intervals import mean_interval

    rows = {name: np.asarray(values, dtype=float).ravel() for name, values in groups.items()}
    tones = {name: PALETTE[(colors or {}).get(name, "blue")] for name in rows}
    sns.stripplot(data=rows, orient="h", jitter=False, size=6, alpha=0.45, palette=tones, ax=ax)
    for row, (name, values) in enumerate(rows.items()):
        found = mean_interval(values)
        ax.plot([found.low, found.high], [row, row], color=tones[name], linewidth=2.2, solid_capstyle="butt", zorder=3)
        ax.plot(found.mean, row, marker="|", markersize=15, markeredgewidth=2.5, color=tones[name], zorder=4)
    ax.set(xlabel=label, ylabel="")
    ax.grid(visible=False, axis="y")


def image_row(
    axes: Sequence[Axes], images: ArrayLike, titles: Sequence[str] | None = None, *, signed: bool = False
) -> None:
    """Draw grey images (n, height, width) into n axes, dark ink on white, all with one scale; `titles` below them.

    `signed` images are red where they are positive and blue where they are negative.
    """
    pictures = np.asarray(images, dtype=float)
    low, high = float(pictures.min()), float(pictures.max())
    if signed:
        low, high = -float(np.abs(pictures).max()), float(np.abs(pictures).max())
    for i, (ax, picture) in enumerate(zip(axes, pictures, strict=True)):
        ax.imshow(picture, cmap="RdBu_r" if signed else "gray_r", vmin=low, vmax=high)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.set(xticks=[], yticks=[])
        if titles is not None:
            ax.set_xlabel(titles[i])


def strips(rows: Mapping[str, ArrayLike], *, height: float = 0.85, joined: bool = False) -> Figure:
    """Rows of grey images (n, height, width) below their titles, as wide as the text, each `height` inches high.

    `joined`: an arrow leads from each row to the next, whose title says what is done; rows with negative values are `signed`.
    """
    import matplotlib.pyplot as plt

    fig = plt.figure(figsize=(WIDTH, height * len(rows)))
    bands = fig.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for number, (band, (title, pictures)) in enumerate(zip(bands, rows.items(), strict=True)):
        arrow = joined and number > 0
        band.suptitle(title, x=0.06 if arrow else 0.01, ha="left", fontsize=12.5, fontweight="bold")
        values = np.asarray(pictures, dtype=float)
        image_row(list(np.atleast_1d(band.subplots(1, len(values)))), values, signed=joined and values.min() < 0)
        if arrow:
            look: dict[str, Any] = {"arrowstyle": "-|>", "linewidth": 2.2, "mutation_scale": 16}
            place = {"color": PALETTE["ink"], "transform": band.transSubfigure}
            band.add_artist(FancyArrowPatch((0.028, 1.0), (0.028, 1 - 0.3 / height), **place, **look))
    return fig


def slope(ax: Axes, power: float, *, through: tuple[float, float], label: str = "", span: float = 10.0) -> None:
    """A dashed reference line y ~ x^power on logarithmic axes, from the point `through` over a factor `span` in x."""
    x, y = through
    xs = np.array([x, x * span])
    ax.plot(xs, y * (xs / x) ** power, color="#333333", linestyle=(0, (4, 3)), linewidth=1.3, zorder=1)
    if label:
        ax.annotate(label, (xs[1], float(y * span**power)), textcoords="offset points", xytext=(5, 0), va="center")


# --- figures for the page ----------------------------------------------------------------------------------------------
#
# Without a kernel a slider is HTML that holds one picture for each value. The first is visible without any script;
# `book.js`, which every page of the book loads, shows the control and changes the picture. In live Jupyter the same call
# gives an ipywidgets slider that calls `draw` again, at more places than the page has frames for where `draw` can take them.
# What is shown becomes a figure with a number and a caption by what stands behind its cell (`bookbuild.cells`).

_PLAY = """<button type="button" class="sslbook-play" aria-label="Play: {label}">
<svg viewBox="0 0 16 16" aria-hidden="true" focusable="false">
<path d="M4 2.5v11l9.5-5.5z"/><path d="M3.5 3h3v10h-3zM9.5 3h3v10h-3z"/></svg>
</button>
"""
"""The play button: its first path is a triangle, its second two bars; the style sheet shows one of them."""


Draw = Callable[[Any], Figure]
Told = Callable[[Any], tuple[str, str]]
"""Of a slider's value, how it is written, and what the picture shows there."""


def slider(
    draw: Draw,
    values: Sequence[Any],
    *,
    label: str,
    alt: str | Callable[[Any], str],
    name: str,
    start: int = 0,
    format: str | Callable[[Any], str] = "{:g}",
    keep_colors: bool = False,
    step: float | None = None,
    play: bool = False,
) -> None:
    """Show `draw(value)` with a slider over `values`, the one with index `start` first.

    `label` stands before the slider; `format` (a format string or a function) writes the value after it. `alt` says what
    the picture shows, for readers who do not see it: one text for all values, or a function of the value. `name` is unique
    on the page: the slider's anchor is `slider-<name>`. All frames must have one size, or the page would jump.
    `keep_colors` keeps the picture as it is in the dark theme, for photographs; words belong in the caption, as they would be dark
    on dark. With a `step`, `draw` and `alt` take any number from the least value to the largest, and in live Jupyter the slider
    moves by `step` and computes at each place. With `play` it has a button that shows the frames in turn: for what runs in time.

    Raises ValueError for an empty `alt`, a name that is not an anchor, or frames of different sizes.
    """
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise ValueError(f"name: got {name!r}; allowed are letters, digits, '-' and '_', beginning with a letter")

    def told(value: Any) -> tuple[str, str]:
        text = format(value) if callable(format) else format.format(value)
        return text, alt(value) if callable(alt) else alt

    # a person runs this, and so `draw` can be called again
    if any(variable in os.environ for variable in LIVE) and importlib.util.find_spec("ipywidgets") is not None:
        places = list(values)
        if step is not None:  # all from the least to the largest, and the values themselves
            least, most = min(values), max(values)
            fine = [least + step * k for k in range(int((most - least) / step + 0.5) + 1)]
            apart = (x for x in fine if x <= most and all(abs(x - value) > step / 4 for value in values))
            places = sorted([*apart, *values])
        _live_slider(draw, places, label, told, places.index(values[start]), play=play)
        return
    frames = [picture(draw(value), keep_colors=keep_colors) for value in values]
    sizes = {_size(frame) for frame in frames}
    if len(sizes) > 1:
        raise ValueError(f"draw: got frames of different sizes, {sorted(sizes)} pixels; draw them all with one figsize")
    texts, alts = zip(*map(told, values), strict=True)
    kind = ["keep-colors"] * keep_colors
    still = sorted({0, len(frames) // 2, len(frames) - 1})  # on paper and without scripts
    pictures = "\n".join(
        img(frame, words, *kind, *["sslbook-still"] * (i in still), text=text, hidden=i != start)
        for i, (frame, text, words) in enumerate(zip(frames, texts, alts, strict=True))
    )
    control, shown, width = f"slider-{name}-control", escape(texts[start]), max(map(len, texts))
    button = _PLAY.format(label=escape(label)) if play else ""
    html = f"""<div class="sslbook-slider" id="slider-{name}" data-sslbook-slider>
<div class="sslbook-frames">
{pictures}
</div>
<div class="sslbook-slider-control" hidden>
<label for="{control}">{escape(label)}</label>
{button}<input type="range" id="{control}" min="0" max="{len(frames) - 1}" step="1" value="{start}" aria-valuetext="{shown}">
<output for="{control}" style="min-width: {width}ch">{shown}</output>
</div>
<p class="sslbook-slider-note">From left to right, {escape(label)} = {escape(", ".join(texts[i] for i in still))}.</p>
</div>"""
    display_html(html, f"[figure with a slider: {label} = {texts[0]} to {texts[-1]}]")


def show(fig: Figure, *, alt: str, keep_colors: bool = False) -> None:
    """Show a figure with its alternative text (for figures outside the cell metadata's `mystnb: image: alt`), and close it."""
    image = img(picture(fig, keep_colors=keep_colors), alt, *["keep-colors"] * keep_colors)
    display_html(f'<div class="sslbook-figure">{image}</div>', f"[figure: {alt}]")


def picture(fig: Figure, *, keep_colors: bool = False) -> bytes:
    """The figure as a WebP at the style's resolution, uncropped; the figure is closed.

    A drawing has a palette of 256 colours, without loss.  With `keep_colors` the figure holds photographs: it is
    compressed as they are, and its ground is transparent, so that they lie on the page itself, light or dark.
    """
    import matplotlib.pyplot as plt

    full, small = io.BytesIO(), io.BytesIO()
    fig.savefig(full, format="png", transparent=keep_colors)
    plt.close(fig)
    image = Image.open(full)
    if keep_colors:
        image.save(small, format="webp", quality=80, method=6)  # half the bytes of a palette, and no bands in a sky
    else:
        palette = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        palette.convert("RGB").save(small, format="webp", lossless=True, method=6)
    return small.getvalue()


def _size(frame: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    return Image.open(io.BytesIO(frame)).size


def img(frame: bytes, alt: str, *classes: str, text: str | None = None, hidden: bool = False) -> str:
    """The HTML of a picture inside the page, of further ``classes``; ``text`` is what a slider says of it."""
    if not alt.strip():
        raise ValueError("alt: got nothing; say what the picture shows")
    width, height = _size(frame)
    data = "" if text is None else f' data-text="{escape(text)}"'
    kind, source = " ".join(("sslbook-frame", *classes)), base64.b64encode(frame).decode()
    return (
        f'<img class="{kind}" src="data:image/webp;base64,{source}" alt="{escape(alt)}"'
        f' width="{width}" height="{height}"{data}{" hidden" if hidden else ""}>'
    )


def display_html(html: str, text: str) -> None:
    """Show HTML (and `text` where HTML is not shown); in plain Python the figures were drawn, and that is all."""
    if get_ipython() is not None:
        display({"text/html": html, "text/plain": text}, raw=True)


def _live_slider(draw: Draw, values: Sequence[Any], label: str, told: Told, start: int, play: bool) -> None:
    """The ipywidgets slider, which hides the still picture of it that an opening has (`bookbuild.notebooks`).

    No `Output` and no `interact`: both can hang when a notebook is executed without a person.
    """
    import ipywidgets

    shown = ipywidgets.HTML()
    choice = ipywidgets.IntSlider(value=start, min=0, max=len(values) - 1, description=label, readout=False)
    choice.style.description_width = "initial"
    reading = ipywidgets.Label()
    # as a reader's notebook has it
    still = " ".join(told(values[start])[1].split()).replace("[", "(").replace("]", ")")
    hides = f"<style>.jp-RenderedMarkdown img[alt={json.dumps(still, ensure_ascii=False)}] {{ display: none }}</style>"

    def update(_: object = None) -> None:
        frame = picture(draw(values[choice.value]))
        reading.value, alt = told(values[choice.value])
        image = img(frame, alt)
        shown.value = hides + image.replace("<img ", '<img style="max-width: 100%; height: auto" ')

    choice.observe(update, names="value")
    update()
    row = [choice, reading]
    if play:
        button = ipywidgets.Play(value=start, min=0, max=len(values) - 1, interval=700, show_repeat=False)
        ipywidgets.jslink((button, "value"), (choice, "value"))
        row.insert(0, button)
    display(ipywidgets.VBox([shown, ipywidgets.HBox(row)]))
