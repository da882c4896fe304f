"""The map of the book: what its directive says, what is drawn, and the list that says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup

from sslbook.book.bookmap import BOX, ROW, WIDTH, Part, draw, parts, read_lines
from sslbook.book.plain import MARK, Links, pieces

ROOT = Path(__file__).resolve().parents[2]
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
INTRO = (ROOT / "chapters/intro.md").read_text(encoding="utf-8")


def told() -> dict[str, tuple[str, tuple[str, ...]]]:
    found = re.search(r"^```\{book-map\}\n(.*?)^```$", INTRO, re.MULTILINE | re.DOTALL)
    assert found is not None
    return read_lines(found[1].splitlines())


def book() -> list[Part]:
    pages = [str(chapter["file"]) for part in TOC["parts"] for chapter in part["chapters"]]
    return parts(TOC, told(), {page: (page.rpartition("/")[2].title(), "31 min") for page in pages})


def test_the_landing_page_tells_of_every_chapter_once() -> None:
    found = book()
    numbered = [part for part in TOC["parts"] if part.get("numbered")]
    assert [part.caption for part in found] == [part["caption"] for part in numbered]
    stops = [stop for part in found for stop in part.stops]
    assert [stop.page for stop in stops] == [chapter["file"] for part in numbered for chapter in part["chapters"]]
    assert [stop.number for stop in stops] == list(range(1, len(stops) + 1))
    assert all(stop.needs for stop in stops[1:]), "every chapter but the first builds on one"


def test_each_part_has_its_story() -> None:
    for part in book():
        story = INTRO.partition(f"\n### {part.caption}\n")[2].partition("\n#")[0]
        assert len(story.split()) > 90, part.caption
        for stop in part.stops:
            assert re.search(rf"<{stop.page.rpartition('/')[2].replace('_', '[-_]')}>`", story), stop.page


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("covariance", "'name: question | needs' is needed"),
        ("nowhere: What?", "nowhere is no chapter of a numbered part"),
        ("covariance: What? | training", "covariance needs training, which is no chapter before it"),
        ("", "no line for the chapter covariance"),
    ],
)
def test_a_map_that_is_not_this_book_s_is_refused(line: str, problem: str) -> None:
    gone = "" if line.startswith("nowhere") else "covariance"
    lines = {name: value for name, value in told().items() if name != gone}
    with pytest.raises(ValueError, match=re.escape(problem)):
        parts(TOC, lines | read_lines([line]), {str(c["file"]): ("x", "") for p in TOC["parts"] for c in p["chapters"]})


def test_drawing_and_list_lead_to_the_same_pages() -> None:
    html = BeautifulSoup(draw(book()), "html.parser")
    drawn = [link["href"] for link in html.select("svg a")]
    assert drawn == [link["href"] for link in html.select("ul a")]
    assert len(drawn) == len(set(drawn)) == 10
    assert html.nav["aria-label"] == "Map of the book"
    words = [" ".join(link.get_text().split()) for link in html.select("svg a")]
    assert words[0] == "1. Dual_Networks What of a loss reaches a layer deep inside? 31 min", (
        "what a screen reader says"
    )
    assert html.svg["role"] == "group", "an image's links would be hidden from a screen reader"
    assert all(part.caption in html.svg["aria-label"] for part in book())
    assert len(html.select(".sslbook-map-arrow")) == sum(len(stop.needs) for part in book() for stop in part.stops)


def test_boxes_stay_apart_and_inside() -> None:
    html = BeautifulSoup(draw(book()), "html.parser")
    height = float(html.svg["viewbox"].split()[3])
    boxes = [(float(rect["x"]), float(rect["y"])) for rect in html.select("rect")]
    assert all(0 <= x <= WIDTH - BOX and 0 <= y <= height - ROW for x, y in boxes)
    for i, (x, y) in enumerate(boxes):
        assert all(abs(x - u) >= BOX or abs(y - v) >= ROW + 10 for u, v in boxes[:i])
    for link in html.select("a"):
        rows = [float(text["y"]) for text in link.select("text")]
        assert rows == sorted(set(rows)), "no line of a box is written over another"


def test_a_notebook_has_the_list() -> None:
    links = Links([stop.page.rpartition("/")[2] for part in book() for stop in part.stops])
    (piece,) = pieces(f'<{MARK} data-cell="0"></{MARK}>{draw(book())}', links)
    assert "[2. Covariance](covariance.ipynb)" in piece.text
    assert "after 1" in piece.text
    assert piece.text.count("Part II ·") == 1
