"""Sources as other editors write them: read alike, or refused by file, line and character."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookbuild import render
from bookbuild.layout import Book, Repository, find_chapters
from bookbuild.regression import read_expected
from sslbook._check import InputError
from sslchapters.ledger import read_claims

TEXTS = {
    "_toc.yml": "format: jb-book\nroot: chapters/good\n",
    "_config.yml": "repository:\n  url: https://github.com/Ada/book\n",
    "data/expected/good.quick.json": '{\n"gap": 1.5\n}\n',
}
READ: dict[str, Callable[[Book], Any]] = {
    "chapters/good.md": lambda book: [
        (c.text, [cell.source for cell in c.notebook().cells]) for c in find_chapters(book)
    ],
    "_toc.yml": lambda book: render.pages(book.root),
    "_config.yml": lambda book: Repository.read(book.root),
    "data/claims.yml": lambda book: read_claims(book.claims),
    "data/expected/good.quick.json": lambda book: read_expected(book.expected("good", "quick")),
}


@pytest.fixture
def book(write_book) -> Book:
    made: Book = write_book(good="<<1\n2>>\n")
    for name, text in TEXTS.items():
        path = made.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return made


@pytest.mark.parametrize("name", READ)
def test_line_ends_and_a_mark_in_front_change_nothing_and_another_encoding_is_refused(name: str, book: Book) -> None:
    before, text = READ[name](book), (book.root / name).read_bytes()
    for other in (text.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n")):
        (book.root / name).write_bytes(other)
        assert READ[name](book) == before
    (book.root / name).write_bytes((text.decode() + "# é\n").encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(name)):
        READ[name](book)


def test_one_address_gives_all_the_others(tmp_path: Path) -> None:
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://github.com/Ada/book.git\n")
    url = "https://github.com/Ada/book"
    assert Repository.read(tmp_path) == (url, "https://ada.github.io/book", f"sslbook @ git+{url}")
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://example.org/book\n")
    with pytest.raises(InputError, match="OWNER/NAME is needed"):
        Repository.read(tmp_path)
