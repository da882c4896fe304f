"""Sources as other editors write them: read alike, or refused by file, line and character."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookbuild import render
from bookbuild import sphinx_ext as library
from bookbuild.execute import key_parts, reached
from bookbuild.layout import Book, Repository, find_chapters
from bookbuild.regression import read_expected
from sslbook import cli
from sslbook._check import InputError
from sslchapters import data_files
from sslchapters.ledger import read_claims

TEXTS = {
    "_toc.yml": "format: jb-book\nroot: chapters/good\nchapters:\n- file: chapters/notes\n",
    "_config.yml": "repository:\n  url: https://github.com/Ada/book\n",
    "chapters/notes.md": "# Notes\n\nNo code.\n",
    "chapters/references.bib": "@book{a,\n  title = {A},\n}\n",
    "data/functions.yml": "thm-a:\n- losses.a\n",
    "data/expected/good.quick.json": '{\n"gap": 1.5\n}\n',
}


def _chapters(book: Book) -> list[Any]:
    found = find_chapters(book)
    keys = [key_parts(book, chapter, scale="quick", seed=0, device="cpu") for chapter in found]
    return [
        (c.text, c.runs, [cell.source for cell in c.notebook().cells], key) for c, key in zip(found, keys, strict=True)
    ]


def _staged(book: Book) -> list[bytes]:
    book.executed("quick").mkdir(parents=True, exist_ok=True)
    (book.executed("quick") / "good.ipynb").touch()
    staged = render.stage(book.executed("quick"), book.built / "stage", root=book.root, generated={})
    return [path.read_bytes() for path in sorted(staged.rglob("*")) if path.is_file()]


READ: dict[str, Callable[[Book], Any]] = {
    "chapters/good.md": _chapters,
    "_toc.yml": lambda book: (render.pages(book.root), _staged(book)),
    "_config.yml": lambda book: Repository.read(book.root),
    "data/claims.yml": lambda book: read_claims(book.claims),
    "data/functions.yml": lambda book: library.functions(),
    "data/expected/good.quick.json": lambda book: read_expected(book.expected("good", "quick")),
}
WAYS: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "CR": lambda text: text.replace(b"\n", b"\r"),
    "both": lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"),
}
UNSEEN = [*range(9), 11, 12, *range(14, 32), *range(127, 160), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF]


@pytest.fixture
def book(write_book, monkeypatch: pytest.MonkeyPatch) -> Book:
    made: Book = write_book(good="<<1\n2>>\n")
    for name, text in TEXTS.items():
        path = made.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    monkeypatch.setattr(data_files, "folder", lambda: made.root / "data")
    return made


@pytest.mark.parametrize("name", READ)
def test_line_ends_and_a_mark_in_front_change_nothing(name: str, book: Book) -> None:
    before, text = READ[name](book), (book.root / name).read_bytes()
    for way, write in WAYS.items():
        (book.root / name).write_bytes(write(text))
        assert READ[name](book) == before, way


@pytest.mark.parametrize("name", [name for name in READ if not name.endswith(".json")])
def test_a_character_that_is_not_seen_is_refused_by_file_line_and_number(name: str, book: Book) -> None:
    text = (book.root / name).read_text()
    first, _, rest = text.partition("\n")
    for code in UNSEEN:
        (book.root / name).write_text(f"{first}\n#{chr(code)}\n{rest}", encoding="utf-8")
        with pytest.raises(InputError, match=re.escape(f"{name}:2: it holds the character U+{code:04X}")):
            READ[name](book)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_refused_by_file(name: str, encoding: str, book: Book) -> None:
    path = book.root / name
    path.write_bytes((path.read_text() + "# é\n").encode(encoding))
    with pytest.raises(InputError, match=re.escape(name)):
        READ[name](book)


def test_a_command_says_so(book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    with (book.root / "data/claims.yml").open("a") as file:
        file.write("A\fB\n")
    assert cli.main(["ledger", "--root", str(book.root)]) == 2
    assert re.search(r"sslbook: \S*data/claims.yml:\d+: it holds the character U\+000C", capsys.readouterr().err)


def test_modules_are_read_as_python_reads_them(tmp_path: Path) -> None:
    package = tmp_path / "tiny"
    package.mkdir()
    (package / "__init__.py").write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    assert list(reached(["import tiny"], [package])) == [package / "__init__.py"]
