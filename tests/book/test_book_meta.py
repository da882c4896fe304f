"""What pages say of themselves: a description in their own words, a title each, addresses where the book has one."""

from __future__ import annotations

import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document

from sslbook.book import meta
from sslbook.book.layout import find_book
from sslbook.book.reading import LINE
from sslbook.book.sphinx_ext import ASSETS

BOOK = find_book(Path(__file__).resolve().parents[2])
LONG = "This first sentence has just enough words to be kept as it is."


def paragraph(*parts: nodes.Node | str, classes: tuple[str, ...] = ()) -> nodes.paragraph:
    return nodes.paragraph("", "", *(nodes.Text(p) if isinstance(p, str) else p for p in parts), classes=list(classes))


def page(*children: nodes.Node) -> nodes.document:
    tree = new_document("page")
    tree += nodes.section("", nodes.title("", "One"), *children)
    return tree


def test_a_description_is_the_first_box_formulas_as_letters() -> None:
    box = nodes.admonition(
        "", nodes.title("", "What you will see"), paragraph("Small ", nodes.math("", r"\beta"), " help.")
    )
    box += paragraph("Half an hour", classes=(LINE,))
    lead = paragraph("A lead of more than eight words stands above the box of this page.")
    assert meta.description(page(lead, box)) == "Small β help."


def test_without_a_box_it_is_the_first_paragraph_of_some_length() -> None:
    theorem = nodes.section(
        "", nodes.title("", "Two"), nodes.admonition("", paragraph("A theorem that is no description."))
    )
    assert meta.description(page(paragraph("Short."), paragraph(LONG), theorem)) == LONG
    assert meta.description(page()) == ""


def test_it_ends_with_a_sentence_or_a_word() -> None:
    told = meta.description(page(paragraph(f"{LONG} {LONG} {LONG}")))
    assert told == f"{LONG} {LONG}"
    endless = meta.description(page(paragraph("word, " * 60)))
    assert endless.endswith("word…")
    assert len(endless) <= meta.LONGEST


def test_addresses_are_there_where_the_book_has_one() -> None:
    told = {"title": "1. <One>", "book": "Book", "page": "chapters/one", "about": 'Of "one".'}
    nowhere = BeautifulSoup(meta.head(**told, site=""), "html.parser")
    assert not nowhere.select("link, [property='og:url'], [property='og:image']")
    assert nowhere.select_one("[name=description]")["content"] == 'Of "one".'
    assert nowhere.select_one("[property='og:title']")["content"] == "1. <One>"
    somewhere = BeautifulSoup(meta.head(**told, site="https://ada.github.io/book"), "html.parser")
    assert somewhere.select_one("link[rel=canonical]")["href"] == "https://ada.github.io/book/chapters/one.html"
    picture = str(somewhere.select_one("[property='og:image']")["content"])
    assert picture.removeprefix("https://ada.github.io/book/_static/") == "sslbook/social.png"
    head = (ASSETS / "static/sslbook/social.png").read_bytes()[:24]
    assert struct.unpack(">II", head[16:]) == meta.SIZE


def test_the_site_s_map_lists_every_page() -> None:
    tree = ElementTree.fromstring(meta.sitemap("https://ada.github.io/book", ["chapters/one", "chapters/two"]))
    assert [url[0].text for url in tree] == [f"https://ada.github.io/book/chapters/{n}.html" for n in ("one", "two")]


def test_every_built_page_has_a_title_and_a_description_of_its_own() -> None:
    pages = sorted((BOOK.html / "chapters").glob("*.html"))
    if not pages:
        pytest.skip("the book is not built: make book")
    heads = [BeautifulSoup(path.read_text("utf-8").partition("</head>")[0], "html.parser") for path in pages]
    titles = [head.title.get_text() for head in heads]
    about = [str(head.select_one("meta[name=description]")["content"]) for head in heads]
    assert len(set(titles)) == len(set(about)) == len(pages)
    assert "What Survives Augmentation" in titles, "the landing page says it once"
    assert all(40 <= len(text) <= meta.LONGEST and "\\" not in text for text in about), about
