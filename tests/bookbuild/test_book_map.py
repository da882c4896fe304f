"""The map of the book, what its directive says and what is drawn; and how long a chapter takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document

from bookbuild.cells import BOX, ROW, TIME, WIDTH, Stop, draw, minutes, stops, tell_time, time_of
from bookbuild.notebooks import MARK, Links, pieces

ROOT = Path(__file__).resolve().parents[2]
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
INTRO = (ROOT / "chapters/intro.md").read_text(encoding="utf-8")
PAGES = {str(chapter["file"]): ("<Title>", "31 min to read") for part in TOC["parts"] for chapter in part["chapters"]}


def lines() -> list[str]:
    found = re.search(r"^```\{book-map\}\n(.*?)^```$", INTRO, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def book() -> dict[str, list[Stop]]:
    return stops(TOC, lines(), PAGES)


def test_the_landing_page_tells_of_every_chapter_and_each_part_has_its_story() -> None:
    found = [stop for part in book().values() for stop in part]
    assert [stop.number for stop in found] == list(range(1, len(found) + 1))
    assert all(stop.needs for stop in found[1:]), "every chapter but the first builds on one"
    for caption, part in book().items():
        story = INTRO.partition(f"\n### {caption}\n")[2].partition("\n#")[0]
        assert len(story.split()) > 90, caption
        for stop in part:
            assert re.search(rf"<{stop.name.replace('_', '[-_]')}>`", story), stop.name


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("covariance: What? | training", "covariance needs a line, 'name: question | chapters before it'"),
        ("nowhere: What?", "no part has a chapter nowhere"),
    ],
)
def test_a_map_that_is_not_this_book_s_is_refused(line: str, problem: str) -> None:
    name = line.partition(":")[0]
    with pytest.raises(ValueError, match=re.escape(problem)):
        stops(TOC, [other for other in lines() if not other.startswith(f"{name}:")] + [line], PAGES)


def test_every_chapter_has_a_box_of_its_own_and_an_arrow_from_each_that_it_builds_on() -> None:
    html = BeautifulSoup(draw(book()), "html.parser")
    links = [str(link["href"]) for link in html.select("li a")]
    assert len(links) == len(set(links)) == 10
    assert html.select_one("li a").text == "1. <Title>"
    assert len(html.select(".sslbook-map-arrow")) == sum(len(stop.needs) for part in book().values() for stop in part)
    height = int(html.svg["viewbox"].split()[3])
    boxes = [tuple(map(int, re.findall(r"\d+", str(box["style"])))) for box in html.select("li[style]")]
    for i, (x, y) in enumerate(boxes):
        assert 0 <= x <= WIDTH - BOX
        assert 0 <= y <= height - ROW
        assert all(abs(x - u) >= BOX or abs(y - v) >= ROW + 10 for u, v in boxes[:i])


THEOREM = "```{prf:theorem}\n:label: thm\n$$ a = b $$\n$$ c = d $$\n```\n"


def test_minutes_are_words_and_formulas_of_theorems() -> None:
    words = "word " * 180
    assert minutes(f"# Title\n\n{words}\n\n```python\n{words}\n```\n\n$$ {words} $$\n") == 1
    assert minutes(f"{words}\n\n{THEOREM}") == 2
    assert minutes(f"{words}\n\n{THEOREM * 4}") == 5
    assert minutes(f"{words}\n\n```{{prf:example}} By hand\n{words}\n```") == 3, "an example takes twice the time"


@pytest.mark.parametrize(
    ("seconds", "said"), [(61.2, " · runs in 60 s"), (12.4, " · runs in 12 s"), (7200, " · runs in 120 min"), (0, "")]
)
def test_a_chapter_says_how_long_it_takes(tmp_path: Path, seconds: float, said: str) -> None:
    cells = [{"cell_type": "markdown", "source": ["word " * 360]}, {"cell_type": "code", "source": ["word " * 360]}]
    notebook = {"cells": cells, "metadata": {"sslbook": {"seconds": seconds}}}
    (tmp_path / "one.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    assert time_of(tmp_path / "one.ipynb") == f"2 min to read{said}"


def test_the_line_ends_the_first_box_of_the_opening() -> None:
    tree = new_document("page")
    box = nodes.admonition("", nodes.title("", "What you will see"), nodes.paragraph("", "Before this: nothing."))
    later = nodes.admonition("", nodes.paragraph("", "Another."))
    tree += nodes.section("", nodes.title("", "One"), box, nodes.section("", nodes.title("", "Two"), later))
    tell_time(tree, "31 min to read")
    assert (box[-1].astext(), box[-1]["classes"]) == ("31 min to read", [TIME])
    assert len(later) == 1
    html = f'<{MARK} data-cell="0"></{MARK}><p>Before this.</p><p class="{TIME}">Half an hour to read</p>'
    assert pieces(html, Links([]))[0].text == "Before this.", "a notebook leaves it out"
