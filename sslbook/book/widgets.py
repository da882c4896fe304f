"""Figures for the page: `slider`, which works with no kernel and recomputes with one, and `show`.

Without a kernel a slider is HTML that holds one picture for each value. The first is visible without any script;
`book.js`, which every page of the book loads, shows the control and changes the picture. In live Jupyter the same call
gives an ipywidgets slider that calls `draw` again, at more places than the page has frames for where `draw` can take them.
What is shown becomes a figure with a number and a caption by what stands behind its cell (`sslbook.book.cells`).
"""

from __future__ import annotations

import base64
import importlib.util
import io
import os
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from IPython import get_ipython
from IPython.display import display
from matplotlib.figure import Figure
from PIL import Image

from sslbook.book.layout import LIVE

_PLAY = """<button type="button" class="sslbook-play" aria-label="Play: {label}">
<svg viewBox="0 0 16 16" aria-hidden="true" focusable="false">
<path d="M4 2.5v11l9.5-5.5z"/><path d="M3.5 3h3v10h-3zM9.5 3h3v10h-3z"/></svg>
</button>
"""
"""The play button: its first path is a triangle, its second two bars; the style sheet shows one of them."""
COLOURS = 256
"""Colours kept in a drawing: a third of the bytes."""
QUALITY = 80
"""Of photographs, as WebP counts it: half the bytes of a palette, and no bands in a sky."""


def slider(
    draw: Callable[[Any], Figure],
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

    def text_of(value: Any) -> str:
        return format(value) if callable(format) else format.format(value)

    def alt_of(value: Any) -> str:
        return alt(value) if callable(alt) else alt

    if _live():
        places = list(values) if step is None else _places(values, step)
        _live_slider(draw, places, label, alt_of, text_of, places.index(values[start]), play=play)
        return
    frames = [picture(draw(value), keep_colors=keep_colors) for value in values]
    sizes = {_size(frame) for frame in frames}
    if len(sizes) > 1:
        raise ValueError(f"draw: got frames of different sizes, {sorted(sizes)} pixels; draw them all with one figsize")
    texts, alts = [text_of(value) for value in values], [alt_of(value) for value in values]
    shown = _slider_html(
        frames, texts=texts, alts=alts, label=label, name=name, start=start, keep_colors=keep_colors, play=play
    )
    _display(shown, f"[figure with a slider: {label} = {texts[0]} to {texts[-1]}]")


def show(fig: Figure, *, alt: str, keep_colors: bool = False) -> None:
    """Show a figure with its alternative text (for figures outside the cell metadata's `mystnb: image: alt`), and close it."""
    image = _img(picture(fig, keep_colors=keep_colors), alt, "sslbook-frame" + (" keep-colors" if keep_colors else ""))
    _display(f'<div class="sslbook-figure">{image}</div>', f"[figure: {alt}]")


def _slider_html(
    frames: Sequence[bytes],
    *,
    texts: Sequence[str],
    alts: Sequence[str],
    label: str,
    name: str,
    start: int = 0,
    keep_colors: bool = False,
    play: bool = False,
) -> str:
    """The HTML of a slider over `frames`; one text and one alternative text for each."""
    kind = "sslbook-frame" + (" keep-colors" if keep_colors else "")
    still = sorted({0, len(frames) // 2, len(frames) - 1})  # on paper and without scripts
    told = ", ".join(texts[i] for i in still)
    pictures = "\n".join(
        _img(frame, words, kind + (" sslbook-still" if i in still else ""), text=text, hidden=i != start)
        for i, (frame, text, words) in enumerate(zip(frames, texts, alts, strict=True))
    )
    control, shown = f"slider-{name}-control", escape(texts[start])
    width = max(len(text) for text in texts)
    button = _PLAY.format(label=escape(label)) if play else ""
    return f"""<div class="sslbook-slider" id="slider-{name}" data-sslbook-slider>
<div class="sslbook-frames">
{pictures}
</div>
<div class="sslbook-slider-control" hidden>
<label for="{control}">{escape(label)}</label>
{button}<input type="range" id="{control}" min="0" max="{len(frames) - 1}" step="1" value="{start}" aria-valuetext="{shown}">
<output for="{control}" style="min-width: {width}ch">{shown}</output>
</div>
<p class="sslbook-slider-note">From left to right, {escape(label)} = {escape(told)}.</p>
</div>"""


def picture(fig: Figure, *, keep_colors: bool = False) -> bytes:
    """The figure as a WebP at the style's resolution, uncropped; the figure is closed.

    A drawing has a palette of :data:`COLOURS` colours, without loss.  With `keep_colors` the figure holds photographs: it is
    compressed as they are, and its ground is transparent, so that they lie on the page itself, light or dark.
    """
    import matplotlib.pyplot as plt

    full, small = io.BytesIO(), io.BytesIO()
    fig.savefig(full, format="png", transparent=keep_colors)
    plt.close(fig)
    image = Image.open(full)
    if keep_colors:
        image.save(small, format="webp", quality=QUALITY, method=6)
    else:
        palette = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        palette.convert("RGB").save(small, format="webp", lossless=True, method=6)
    return small.getvalue()


def _size(frame: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    return Image.open(io.BytesIO(frame)).size


def _img(frame: bytes, alt: str, kind: str, *, text: str | None = None, hidden: bool = False) -> str:
    if not alt.strip():
        raise ValueError("alt: got nothing; say what the picture shows")
    width, height = _size(frame)
    data = "" if text is None else f' data-text="{escape(text)}"'
    return (
        f'<img class="{kind}" src="data:image/webp;base64,{base64.b64encode(frame).decode()}" alt="{escape(alt)}"'
        f' width="{width}" height="{height}"{data}{" hidden" if hidden else ""}>'
    )


def _live() -> bool:
    """Whether a person runs this, where a slider can call `draw` again."""
    return any(name in os.environ for name in LIVE) and importlib.util.find_spec("ipywidgets") is not None


def _places(values: Sequence[Any], step: float) -> list[Any]:
    """The numbers from the least of ``values`` to the largest by ``step``, and ``values`` themselves."""
    low, high = min(values), max(values)
    fine = [low + step * k for k in range(int((high - low) / step + 0.5) + 1)]
    kept = [place for place in fine if place <= high and all(abs(place - value) > step / 4 for value in values)]
    return sorted([*kept, *values])


def _display(html: str, text: str) -> None:
    """Show HTML (and `text` where HTML is not shown); in plain Python the figures were drawn, and that is all."""
    if get_ipython() is not None:
        display({"text/html": html, "text/plain": text}, raw=True)


def _live_slider(
    draw: Callable[[Any], Figure],
    values: Sequence[Any],
    label: str,
    alt_of: Callable[[Any], str],
    text_of: Callable[[Any], str],
    start: int,
    *,
    play: bool,
) -> None:
    """The ipywidgets slider. No `Output` and no `interact`: both can hang when a notebook is executed without a person."""
    import ipywidgets

    shown = ipywidgets.HTML()
    choice = ipywidgets.IntSlider(value=start, min=0, max=len(values) - 1, description=label, readout=False)
    choice.style.description_width = "initial"
    reading = ipywidgets.Label()

    def update(_: object = None) -> None:
        value = values[choice.value]
        frame = picture(draw(value))
        image = _img(frame, alt_of(value), "sslbook-frame")
        shown.value = image.replace("<img ", '<img style="max-width: 100%; height: auto" ')
        reading.value = text_of(value)

    choice.observe(update, names="value")
    update()
    row = [choice, reading]
    if play:
        button = ipywidgets.Play(value=start, min=0, max=len(values) - 1, interval=700, show_repeat=False)
        ipywidgets.jslink((button, "value"), (choice, "value"))
        row.insert(0, button)
    display(ipywidgets.VBox([shown, ipywidgets.HBox(row)]))
