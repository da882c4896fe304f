"""Sliders work with no kernel, recompute with one, and answer a question: whoever moves one by a step sees something change."""

from __future__ import annotations

import base64
import io
from functools import partial

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from PIL import Image

from sslchapters import plots as widgets


def draw(value: float, *, width: float = 3.0) -> Figure:
    fig, ax = plt.subplots(figsize=(width, 2))
    ax.plot([0, 1], [0, value])
    return fig


def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the HTML that would be displayed."""
    pages: list[str] = []
    monkeypatch.setattr(widgets, "display_html", lambda html, text: pages.append(html))
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


def test_frames_that_would_jump_and_pictures_without_words_or_place_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown(monkeypatch)
    good = partial(widgets.slider, draw, [2.0, 3.0], label="slope", alt="A line", name="line")
    with pytest.raises(ValueError, match="name: got 'two words'"):
        good(name="two words")
    with pytest.raises(ValueError, match="alt: got nothing"):
        good(alt="")
    with pytest.raises(ValueError, match="frames of different sizes"):
        widgets.slider(lambda value: draw(value, width=value), [2.0, 3.0], **good.keywords)
    plt.close("all")


def test_show_carries_its_words_and_keeps_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = shown(monkeypatch)
    widgets.show(draw(1.0), alt='A "red" square', keep_colors=True)
    image = BeautifulSoup(pages[0], "html.parser").img
    assert image["alt"] == 'A "red" square'
    assert "keep-colors" in image["class"]
    Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))).verify()


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
    assert 'img[alt="Slope 1.0"] { display: none }' in picture.value, "the still one, as it was"
    assert ipywidgets.Play not in map(type, row.children)
    button = boxes[1].children[1].children[0]
    assert (type(button), button.value, button.max, button.repeat) == (ipywidgets.Play, 1, 2, False)
