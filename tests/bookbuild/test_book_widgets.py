"""Sliders work with no kernel, recompute with one, and answer a question: whoever moves one by a step sees something change."""

from __future__ import annotations

import base64
import io
import itertools
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from PIL import Image
from test_prose import CHAPTERS

from bookbuild.layout import find_book
from sslchapters import plots as widgets


def draw(value: float, *, width: float = 3.0) -> Figure:
    fig, ax = plt.subplots(figsize=(width, 2))
    ax.plot([0, 1], [0, value])
    return fig


def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the HTML that would be displayed."""
    pages: list[str] = []
    monkeypatch.setattr(widgets, "_display", lambda html, text: pages.append(html))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return pages


def test_one_frame_a_value_and_the_start_is_visible_without_script(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = shown(monkeypatch)
    words = {"label": "slope <a>", "name": "line"}
    values = [0.5, 1.0, 2.0]
    widgets.slider(draw, values, **words, alt=lambda v: f"A line of slope {v}", start=1, format="{:.1f}")
    soup = BeautifulSoup(pages[0], "html.parser")
    frames = soup.select("div#slider-line img")
    assert [frame["data-text"] for frame in frames] == ["0.5", "1.0", "2.0"]
    assert [frame["alt"] for frame in frames] == [f"A line of slope {v}" for v in values]
    assert [frame.has_attr("hidden") for frame in frames] == [True, False, True]
    assert soup.select_one(".sslbook-slider-control").has_attr("hidden"), "without the script the control does nothing"
    control = soup.select_one("input[type=range]")
    assert (control["min"], control["max"], control["value"], control["aria-valuetext"]) == ("0", "2", "1", "1.0")
    assert soup.select_one("label")["for"] == control["id"]
    assert soup.select_one("label").text == "slope <a>"
    assert not soup.select("button"), "it plays only where the author says so"
    assert len({frame["src"] for frame in frames}) == 3


def test_frames_are_small_uncropped_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown(monkeypatch)
    plt.close("all")
    fig = draw(1.0)
    fig.set_dpi(100)
    image = Image.open(io.BytesIO(widgets.picture(fig)))
    assert image.format == "WEBP"
    assert image.convert("RGB").getcolors(widgets.COLOURS) is not None, "more colours than the palette"
    assert image.width / image.height == pytest.approx(1.5, abs=0.01), "cropped: frames would jump"
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "two words"}, "name: got 'two words'"),
        ({"alt": ""}, "alt: got nothing"),
        ({"draw": lambda value: draw(value, width=value)}, "frames of different sizes"),
    ],
)
def test_bad_input_is_named(monkeypatch: pytest.MonkeyPatch, change: dict[str, object], message: str) -> None:
    shown(monkeypatch)
    good = {"draw": draw, "values": [2.0, 3.0], "label": "slope", "alt": "A line", "name": "line"} | change
    with pytest.raises(ValueError, match=message):
        widgets.slider(good.pop("draw"), good.pop("values"), **good)
    plt.close("all")


def test_show_carries_its_words_and_keeps_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = shown(monkeypatch)
    widgets.show(photograph(), alt='A "red" square', keep_colors=True)
    image = BeautifulSoup(pages[0], "html.parser").img
    assert image["alt"] == 'A "red" square'
    assert "keep-colors" in image["class"]
    Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))).verify()
    with pytest.raises(ValueError, match="alt: got nothing"):
        widgets.show(draw(1.0), alt="")
    plt.close("all")


def photograph() -> Figure:
    """A red square in the middle of the figure, and no words."""
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.imshow([[[1.0, 0.0, 0.0]]])
    ax.axis("off")
    return fig


def test_photographs_lie_on_the_page_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A white ground would be a lamp in the dark."""
    shown(monkeypatch)
    kept = Image.open(io.BytesIO(widgets.picture(photograph(), keep_colors=True))).convert("RGBA")
    middle = (kept.width // 2, kept.height // 2)
    assert (kept.getpixel((1, 1))[3], kept.getpixel(middle)) == (0, pytest.approx((255, 0, 0, 255), abs=3))
    plain = Image.open(io.BytesIO(widgets.picture(photograph()))).convert("RGBA")
    assert (plain.getpixel((1, 1)), plain.getpixel(middle)) == ((255, 255, 255, 255), (255, 0, 0, 255))
    plt.close("all")


def test_live_jupyter_recomputes_when_the_slider_moves_and_plays_what_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    ipywidgets = pytest.importorskip("ipywidgets")
    monkeypatch.setenv("JPY_SESSION_NAME", "chapter.ipynb")
    boxes: list[object] = []
    monkeypatch.setattr(widgets, "display", boxes.append)
    drawn: list[float] = []

    def counted(value: float) -> Figure:
        drawn.append(value)
        return draw(value)

    for play in (False, True):
        words = {"label": "slope", "alt": lambda v: f"Slope {v}", "name": "line"}
        widgets.slider(counted, [0.5, 1.0, 2.0], start=1, play=play, **words)
    assert drawn == [1.0, 1.0], "a live slider draws what is looked at, not every frame"
    picture, row = boxes[0].children
    choice = next(child for child in row.children if isinstance(child, ipywidgets.IntSlider))
    choice.value = 2
    assert drawn[2:] == [2.0]
    assert 'alt="Slope 2.0"' in picture.value
    assert ipywidgets.Play not in map(type, row.children)
    button = boxes[1].children[1].children[0]
    assert (type(button), button.value, button.max, button.repeat) == (ipywidgets.Play, 1, 2, False)


def test_a_slider_recomputes_between_the_values_that_it_came_with() -> None:
    assert widgets._places([0, 1], 0.25) == [0, 0.25, 0.5, 0.75, 1]
    assert widgets._places([0, 2.4], 1) == [0, 1, 2, 2.4]
    assert widgets._places([0, 0.95, 2.6], 1) == [0, 0.95, 2, 2.6], "no place beside a value, none beyond the last"


BOOK = find_book(Path(__file__).resolve().parents[2])
PAGES = sorted(path.stem for path in BOOK.chapters.glob("*.md") if "slider(" in path.read_text(encoding="utf-8"))
SLIDER = re.compile(r'<div class="sslbook-slider" id="slider-([\w-]+)".*?class="sslbook-slider-note"', re.DOTALL)
FRAME = re.compile(r'<img class="sslbook-frame[^"]*" src="data:image/webp;base64,([^"]+)"')
SEEN, MANY = 24, 60
"""A difference of so many levels of 255 is seen, in so many pixels: a word's worth, of some 300,000."""


PICTURE = re.compile(r'"data:[^"]*"')


def built(name: str) -> str:
    """The HTML of a chapter's page."""
    return (BOOK.html / "chapters" / f"{name}.html").read_text(encoding="utf-8")


def changes(figure: str) -> list[int]:
    """How many pixels differ visibly between each frame and the next."""
    frames = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(frame))).convert("RGB"), dtype=int)
        for frame in FRAME.findall(figure)
    ]
    return [int((abs(a - b).max(2) > SEEN).sum()) for a, b in itertools.pairwise(frames)]


@pytest.mark.built
@pytest.mark.parametrize("name", PAGES)
def test_neighbouring_frames_differ(name: str) -> None:
    sliders = list(SLIDER.finditer(built(name)))
    assert len(sliders) >= (2 if name in CHAPTERS else 1)
    found = {slider[1]: changes(slider[0]) for slider in sliders}
    assert all(found.values()), "a slider with one frame"
    assert {slider: steps for slider, steps in found.items() if min(steps) < MANY} == {}


@pytest.mark.built
@pytest.mark.parametrize("name", PAGES)
def test_sliders_are_figures_with_numbers_like_all_others(name: str) -> None:
    page = BeautifulSoup(PICTURE.sub('""', built(name)), "html.parser")
    numbers = [number.text.split() for number in page.select("figure[id^=fig-] > figcaption .caption-number")]
    begin = re.split(r"(\d+)$", numbers[0][1])  # pages that are not numbered count on
    assert numbers == [["Figure", f"{begin[0]}{int(begin[1]) + n}"] for n in range(len(numbers))]
    for slider in page.select("[data-sslbook-slider]"):
        figure = slider.find_parent("figure")
        assert figure is not None, f"{slider['id']}: without a caption"
        assert figure.select_one(":scope > figcaption .caption-number"), f"{figure['id']}: without a number"
        assert figure.select_one(".caption-text").text.strip()
