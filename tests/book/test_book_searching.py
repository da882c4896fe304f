"""Search: what is indexed of a page, and that readers' words find the sections that treat them, also from a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sslbook.book.layout import find_book
from sslbook.book.searching import Section, readable, sections, write

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
