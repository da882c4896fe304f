"""Sliders answer a question: whoever moves one by a step sees something change."""

from __future__ import annotations

import base64
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from bs4 import BeautifulSoup
from PIL import Image

from sslbook.book.layout import find_book

BOOK = find_book(Path(__file__).resolve().parents[2])
PAGES = sorted(path.stem for path in BOOK.chapters.glob("*.md") if "slider(" in path.read_text(encoding="utf-8"))
SLIDER = re.compile(r'<div class="sslbook-slider" id="slider-([\w-]+)".*?class="sslbook-slider-note"', re.DOTALL)
FRAME = re.compile(r'<img class="sslbook-frame[^"]*" src="data:image/png;base64,([^"]+)"')
SEEN, MANY = 24, 60
"""A difference of so many levels of 255 is seen, in so many pixels: a word's worth, of some 300,000."""


LABEL = re.compile(r"^\((fig-[\w-]+)\)=$|^ +name: (fig-[\w-]+)$", re.MULTILINE)
PICTURE = re.compile(r'"data:[^"]*"')


def built(name: str) -> str:
    """The HTML of a chapter's page."""
    page = BOOK.html / "chapters" / f"{name}.html"
    if not page.exists():
        pytest.skip("the book is not built: make book")
    return page.read_text(encoding="utf-8")


def changes(figure: str) -> list[int]:
    """How many pixels differ visibly between each frame and the next."""
    frames = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), dtype=int)
        for png in FRAME.findall(figure)
    ]
    return [int((abs(a - b).max(2) > SEEN).sum()) for a, b in itertools.pairwise(frames)]


@pytest.mark.parametrize("name", PAGES)
def test_neighbouring_frames_differ(name: str) -> None:
    sliders = list(SLIDER.finditer(built(name)))
    assert len(sliders) >= 2
    found = {slider[1]: changes(slider[0]) for slider in sliders}
    assert all(found.values()), "a slider with one frame"
    assert {slider: steps for slider, steps in found.items() if min(steps) < MANY} == {}


@pytest.mark.parametrize("name", PAGES)
def test_sliders_are_figures_with_numbers_like_all_others(name: str) -> None:
    page = BeautifulSoup(PICTURE.sub('""', built(name)), "html.parser")
    numbers = [number.text.split() for number in page.select("figure[id^=fig-] > figcaption .caption-number")]
    chapter = numbers[0][1].partition(".")[0]
    assert numbers == [["Figure", f"{chapter}.{n + 1}"] for n in range(len(numbers))]
    for slider in page.select("[data-sslbook-slider]"):
        figure = slider.find_parent("figure")
        assert figure is not None, f"{slider['id']}: without a caption"
        assert figure.select_one(":scope > figcaption .caption-number"), f"{figure['id']}: without a number"
        assert figure.select_one(".caption-text").text.strip()


def test_labels_of_figures_are_unique_across_chapters() -> None:
    labels = [label for path in BOOK.chapters.glob("*.md") for label in LABEL.findall(path.read_text(encoding="utf-8"))]
    assert len(labels) > 30
    assert len(labels) == len(set(labels))
