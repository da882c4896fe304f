"""Where the book is published, and what its pages say of themselves there: each a title and a description of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document

from sslbook.book import site
from sslbook.book.bookmap import TIME
from sslbook.book.layout import find_book

BOOK = find_book(Path(__file__).resolve().parents[2])
LONG = "This first sentence has just enough words to be kept as it is."


def page(*children: nodes.Node) -> nodes.document:
    tree = new_document("page")
    tree += nodes.section("", nodes.title("", "One"), *children)
    return tree


def test_one_address_gives_all_the_others(tmp_path: Path) -> None:
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://github.com/Ada/book/\n")
    none, some = site.Repository(), site.Repository.read(tmp_path)
    assert (none.site, none.requirement, none.launches("chapters/one"), none.suggestions("chapters/one")) == (
        "",
        "",
        [],
        [],
    )
    assert some.requirement == "sslbook @ git+https://github.com/Ada/book"
    assert some.suggestions("chapters/ledger")[0][0].endswith("/edit/main/data/claims.yml")
    assert site.Repository("https://github.com/Ada/book.git").site == some.site == "https://ada.github.io/book"
    with pytest.raises(ValueError, match="OWNER/NAME is needed"):
        _ = site.Repository("https://example.org/book").site


def test_a_description_is_the_first_box_else_the_first_paragraph_of_some_length() -> None:
    box = nodes.admonition("", nodes.title("", "What you will see"))
    box += nodes.paragraph("", "", nodes.Text("Small "), nodes.math("", r"\beta"), nodes.Text(" help."))
    lead = nodes.paragraph("", "A lead of more than eight words stands above the box of this page.")
    assert site.description(page(lead, box)) == "Small β help."
    timed = nodes.admonition("", nodes.paragraph("", "Half an hour", classes=[TIME]))
    assert site.description(page(timed, nodes.paragraph("", "Short."), nodes.paragraph("", LONG))) == LONG
    assert site.description(page()) == ""
    endless = site.description(page(nodes.paragraph("", "word, " * 60)))
    assert endless.endswith("word, …")
    assert len(endless) <= site.LONGEST


def test_addresses_are_there_where_the_book_has_one() -> None:
    told = {"title": "1. <One>", "book": "Book", "page": "chapters/one", "about": 'Of "one".'}
    nowhere = BeautifulSoup(site.head(**told, site=""), "html.parser")
    assert not nowhere.select("link, [property='og:url'], [property='og:image']")
    assert nowhere.select_one("[name=description]")["content"] == 'Of "one".'
    assert nowhere.select_one("[property='og:title']")["content"] == "1. <One>"
    somewhere = BeautifulSoup(site.head(**told, site="https://ada.github.io/book"), "html.parser")
    assert somewhere.select_one("link[rel=canonical]")["href"] == "https://ada.github.io/book/chapters/one.html"


def test_every_built_page_has_a_title_and_a_description_of_its_own() -> None:
    pages = sorted((BOOK.html / "chapters").glob("*.html"))
    if not pages:
        pytest.skip("the book is not built: make book")
    heads = [BeautifulSoup(path.read_text("utf-8").partition("</head>")[0], "html.parser") for path in pages]
    titles = [head.title.get_text() for head in heads]
    about = [str(head.select_one("meta[name=description]")["content"]) for head in heads]
    assert len(set(titles)) == len(set(about)) == len(pages)
    assert "What Survives Augmentation" in titles, "the landing page says it once"
    assert all(40 <= len(text) <= site.LONGEST and "\\" not in text for text in about), about
