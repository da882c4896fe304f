"""Search: what is indexed of a page, and that readers' words find the sections that treat them, also from a folder."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_cases
import pytest

from sslbook.book.layout import find_book
from sslbook.book.searching import INDEX, Section, readable, sections, write

BOOK = find_book(Path(__file__).resolve().parents[2])
PAGE = r"""<html><body><nav><section id="no"><h1>Contents</h1></section></nav><article class="bd-article">
<section id="top"><h1>2. One<a class="headerlink" href="#top">#</a></h1><p>First <span class="math">\(\beta\)</span>.</p>
<div class="cell"><div class="highlight-ipython3 notranslate"><div class="highlight"><pre>import torch</pre></div>
</div></div>
<section id="two"><h2>2.1. Two</h2><p>Second.</p>
<div class="proof theorem admonition" id="thm"><p class="admonition-title">Theorem 2.1 (Name)</p>
<section class="theorem-content" id="proof-content"><p>So <code>op</code>.</p>
<div class="math">\[\begin{split}a\end{split}\]</div></section></div>
<div class="cell"><p>Printed.</p><figure id="fig"><img alt="no"><figcaption><p>Figure 2.1 Drawn.</p></figcaption>
</figure></div>
<section id="three"><h3>2.1.1. Three</h3><p>Third.</p></section></section></section></article></body></html>"""


def test_each_section_has_its_own_words_and_no_code(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(PAGE, encoding="utf-8")
    script = write(tmp_path, ["one"]).read_text(encoding="utf-8")
    rows = json.loads(script.removeprefix("window.sslbookSections = ").rstrip(";\n"))
    assert [row["anchor"] for row in rows] == ["top", "two", "three"]
    assert list(sections("chapters/one", PAGE)) == [
        Section("chapters/one", "top", "2. One", "2. One", "", "First β."),
        Section(
            "chapters/one",
            "two",
            "2. One",
            "2.1. Two",
            "Theorem 2.1 (Name)",
            "Second. Theorem 2.1 (Name) So op. … Figure 2.1 Drawn.",
        ),
        Section("chapters/one", "three", "2. One", "2.1.1. Three", "", "Third."),
    ]
    assert list(sections("search", "<html><body>no article</body></html>")) == []


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        (r"\(\beta\)", "β"),
        (r"\(W_l\)", "W_l"),
        (r"\(\mathbf x\)", "x"),
        (r"\(n \times d\)", "n × d"),
        (r"\(0 < \beta < \frac{a}{a+b}\)", "…"),
        (r"\(\bar K\)", "…"),
        (r"\(\lVert w \rVert\)", "‖ w ‖"),
    ],
)
def test_a_formula_in_an_excerpt_shows_no_source(formula: str, shown: str) -> None:
    assert readable(formula) == shown


# ---- In a browser, over the built book ------------------------------------------------------------------------------

ANSWERS = {
    "collapse": [
        "byol.html#the-update-and-what-collapses",
        "linear_byol.html#one-unit-who-collapses-and-where-the-others-end",
    ],
    "BatchNorm": ["byol.html#batchnorm-as-it-acts-on-the-gradient", "modulation.html#batchnorm-taken-apart"],
    "batch norm": ["byol.html#batchnorm-as-it-acts-on-the-gradient", "modulation.html#batchnorm-taken-apart"],
    "InfoNCE": ["covariance.html#infonce-and-triplets-a-weighted-covariance"],
    "stop-gradient": ["byol.html#stop-gradient"],
    "temperature": ["landscape.html#linear-filters-and-a-temperature"],
    "moving average": ["byol.html#the-moving-average"],
    "Theorem 6": ["hltm.html#what-survives-from-the-root", "errata.html#theorem-6-the-statement-and-its-proof"],
    "eq 56": ["covariance.html#normalised-outputs"],
    "A-Thm3": ["covariance.html#one-covariance-moves-every-layer"],
    "neural tangent kernel": ["covariance.html#is-it-the-neural-tangent-kernel"],
}
text_of = functools.cache(lambda path: Path(path).read_text(encoding="utf-8"))
FOUND = """
return [...document.querySelectorAll('#search-results ul.search > li')].map(row => [
  row.querySelector('a').href, row.querySelector('p').textContent, row.querySelectorAll('mark').length]);
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    if not (BOOK.html / INDEX).is_file():
        pytest.skip("the book is not built: make book")
    driver = browser_cases.headless("hide-scrollbars", "window-size=1300,900", logging={"browser": "ALL"})
    yield driver
    driver.quit()


def look(driver: Any, query: str) -> list[tuple[str, str, int]]:
    from urllib.parse import quote

    from selenium.webdriver.support.wait import WebDriverWait

    driver.get(f"{(BOOK.html / 'search.html').as_uri()}?q={quote(query)}")
    WebDriverWait(driver, 110, 0.05).until(lambda d: d.execute_script("return !!window.sslbookSearch"))
    return [tuple(row) for row in driver.execute_script(FOUND)]


@browser_cases.in_browser
@pytest.mark.parametrize("query", ANSWERS)
def test_a_reader_s_word_finds_the_section_among_the_first_three(driver: Any, query: str) -> None:
    found = look(driver, query)
    first = [href.rpartition("/")[2] for href, _, _ in found[:3]]
    assert set(first) & set(ANSWERS[query]), first
    for href, excerpt, _ in found:
        path, _, anchor = href.removeprefix("file://").partition("#")
        assert not anchor or f'id="{anchor}"' in text_of(path)
        assert "\\" not in excerpt.replace("\\ -m", "")
        assert not {".md", ".pdf", "import torch"} & set(excerpt.split())
    assert all(marks for _, _, marks in found[:10]), "each shows what was looked for"
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@browser_cases.in_browser
def test_what_is_typed_is_found_at_once_and_nothing_is_said_so(driver: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    assert look(driver, "zzyzx") == []
    status = driver.find_element(By.CSS_SELECTOR, "#search-results [role=status]")
    assert "zzyzx" in status.text
    field = driver.find_element(By.CSS_SELECTOR, ".bd-search-container input")
    field.clear()
    field.send_keys("predictor")
    WebDriverWait(driver, 60, 0.05).until(lambda d: "sections for “predictor”" in status.text)
