"""The map of the book, how long a chapter takes, and the line that counts a section's checks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup
from conftest import number

from bookbuild.cells import book_map, minutes, summary, time_of
from sslchapters.values import badge

ROOT = Path(__file__).resolve().parents[2]
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
INTRO = (ROOT / "chapters/intro.md").read_text(encoding="utf-8")
PAGES = {str(chapter["file"]): ("<Title>", "31 min to read") for part in TOC["parts"] for chapter in part["chapters"]}
FOUND = re.search(r"^```\{book-map\}\n(.*?)^```$", INTRO, re.MULTILINE | re.DOTALL)
LINES = FOUND[1].splitlines() if FOUND else []


def test_every_chapter_has_a_box_of_its_own_which_says_what_it_builds_on() -> None:
    html = BeautifulSoup(book_map(TOC, LINES, PAGES), "html.parser")
    links = [str(link["href"]) for link in html.select("li a")]
    assert len(links) == len(set(links)) == len(LINES)
    assert html.select_one("li a").text == "1. <Title>"
    after = [box.text.partition(" · after ")[2] for box in html.select("li small")]
    assert after[:3] == ["", "1", "2"]
    assert sum(map(bool, after)) == sum("|" in line for line in LINES)


def test_how_long_a_chapter_takes(tmp_path: Path) -> None:
    words, theorem = "word " * 180, "```{prf:theorem}\n:label: thm\n$$ a = b $$\n$$ c = d $$\n```\n"
    assert minutes(f"# Title\n\n{words}\n\n```python\n{words}\n```\n\n$$ {words} $$\n") == 1
    assert minutes(f"{words}\n\n{theorem * 4}") == 5
    assert minutes(f"{words}\n\n```{{prf:example}} By hand\n{words}\n```") == 3, "an example takes twice the time"
    cells = [{"cell_type": kind, "source": [words, words]} for kind in ("markdown", "code")]
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": cells, "metadata": {"sslbook": {"seconds": 61.2}}}))
    assert time_of(tmp_path / "one.ipynb") == "2 min to read · runs in 60 s"


@pytest.mark.parametrize(
    ("bars", "said"),
    [
        ([1e-14, 1e-14], "✓ 2 checks and the code"),
        ([1e-14], "✓ 1 check and the code"),
        ([1e-14, 1e-20], "✗ 1 of 2 checks failed"),
        ([], "The code"),
    ],
)
def test_a_line_counts_its_checks(bars: list[float], said: str) -> None:
    checks = [badge(number(f"x{i}", 2e-16, below=below)) for i, below in enumerate(bars)]
    assert BeautifulSoup(summary(checks), "html.parser").get_text() == said
