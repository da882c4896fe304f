"""The book as one PDF: every page is in it, none is blank, bookmarks and links lead to where they should."""

from __future__ import annotations

import shutil
from typing import Any

import browser_cases
import pypdf
import pytest

from bookbuild import pdf as paper
from bookbuild.layout import Book
from bookbuild.sphinx_ext import ASSETS
from sslbook._check import InputError

HEAD = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><link rel="stylesheet" href="book.css"></head>'
PAGE = """{head}<body><nav><a href="#first-{name}">first</a> <a href="#second-{name}">second</a></nav>
<article class="bd-article"><section id="{name}"><h1>{number}. <em>{name}</em><a class="headerlink" href="#{name}">#</a></h1>
<p>See <a href="{other}.html#second-{other}">there</a> and <a href="missing.ipynb">beside</a> and <a href="https://a.org">out</a>.</p>
<section id="first-{name}"><h2>{number}.1. First \\(\\beta\\)</h2><p style="height: 240mm">Some text.</p></section>
<section id="second-{name}"><h2>{number}.2. Second</h2><p>More text.</p>
<details class="hide above-input"><summary>Show the code</summary><pre>folded</pre></details>
<div class="cell_input"><div class="highlight"><pre style="overflow-x: auto">{code}</pre></div></div>
<div class="solution dropdown admonition toggle-hidden"><p class="admonition-title">Solution</p><p>secret</p></div>
</section></section></article></body></html>"""
CODE = "\n".join(f"line {i}" for i in range(20))


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """A built book of two pages, with the book's own style sheet."""
    root = tmp_path_factory.mktemp("book")
    (root / "_config.yml").write_text('title: A Book\nauthor: "Ada"\n')
    (root / "_toc.yml").write_text(
        "root: chapters/one\nparts:\n  - caption: Part I\n    chapters:\n      - file: chapters/two\n"
    )
    folder = root / "_build/html/chapters"
    folder.mkdir(parents=True)
    shutil.copy(ASSETS / "static/sslbook/book.css", folder)
    for number, name, other in ((1, "one", "two"), (2, "two", "one")):
        text = PAGE.format(head=HEAD, number=number, name=name, other=other, code=CODE)
        text = text.replace("\\(\\beta\\)", '<span class="math">\\(\\beta\\)</span>')
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return Book(root)


@pytest.fixture(scope="module")
def pdf(book: Book, tmp_path_factory: pytest.TempPathFactory) -> Any:
    target = tmp_path_factory.mktemp("pdf") / "sub/book.pdf"
    assert paper.write_pdf(book, target, say=lambda line: None) == target
    return pypdf.PdfReader(target)


def titles(pdf: Any, items: Any = None, depth: int = 0) -> list[tuple[str, int]]:
    """Bookmarks and their pages, those of sections indented."""
    found = []
    for item in pdf.outline if items is None else items:
        own = [(" " * depth + item.title, pdf.get_destination_page_number(item))] if not isinstance(item, list) else []
        found += own or titles(pdf, item, depth + 1)
    return found


@browser_cases.in_browser
def test_cover_contents_and_every_page(pdf: Any) -> None:
    texts = [page.extract_text() for page in pdf.pages]
    assert all(len(text.split()) > 1 for text in texts), "none is blank but for its number"
    assert "A Book" in texts[0]
    assert "Contents" in texts[1]
    assert pdf.metadata.title == "A Book"
    assert titles(pdf) == [
        ("1. one", 2), (" 1.1. First β", 2), (" 1.2. Second", 3),
        ("2. two", 4), (" 2.1. First β", 4), (" 2.2. Second", 5),
    ]  # fmt: skip
    rows = [line.rsplit(maxsplit=1) for line in texts[1].splitlines()]
    assert {row[0]: row[1] for row in rows if len(row) == 2}.items() >= {"1. one": "1", "2.2. Second": "4"}.items()
    assert [text.split()[-1] for text in texts[2:]] == pdf.page_labels[2:] == ["1", "2", "3", "4"], (
        "each bears its number"
    )


@browser_cases.in_browser
def test_what_is_folded_stays_folded_and_code_whole(pdf: Any) -> None:
    texts = [page.extract_text() for page in pdf.pages]
    assert not [word for word in ("folded", "Show the code", "secret") if word in "\n".join(texts)]
    assert all("line 0" in text and "line 19" in text for text in texts[3::2])


@browser_cases.in_browser
def test_links_lead_inside_the_file(pdf: Any) -> None:
    places, addresses = [], []
    for number, page in enumerate(pdf.pages):
        for annotation in (entry.get_object() for entry in page.get("/Annots", ())):
            if "/Dest" in annotation:
                places.append((number, pdf.pages.index(annotation["/Dest"][0].get_object())))
            elif "/A" in annotation:
                addresses.append(annotation["/A"].get("/URI"))
    assert set(addresses) == {"https://a.org/"}
    assert {(2, 5), (4, 3)} <= set(places), "from each page to the section of the other"
    assert {(1, 2), (1, 4)} <= set(places), "and from the contents"


def test_without_a_browser_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="no Chromium here to print with"):
        paper.chromium()
