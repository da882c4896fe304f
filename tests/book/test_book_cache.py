"""The content key: what moves it and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sslbook.book import cache
from sslbook.book.cache import changes, data_parts, imported, key, key_parts
from sslbook.book.chapters import find_chapters
from sslbook.book.layout import PACKAGE, Book


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose modules import each other in every way that there is."""
    folder = tmp_path / "tinylib"
    for name in ("inner", "lazy"):
        (folder / name).mkdir(parents=True)
    files = {
        "__init__.py": "",
        "core.py": "from .helper import h\n",
        "helper.py": "def h():\n    from tinylib.inner import deep\n",
        "inner/__init__.py": "from ..cycle import c\n",
        "inner/deep.py": "import tinylib.core as core\n",
        "cycle.py": "from . import core\n",
        "typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tinylib.other import o\n",
        "other.py": "o = 1\n",
        "unrelated.py": "import tinylib.other\n",
        "lazy/__init__.py": "def __getattr__(name): ...\n",
        "lazy/__init__.pyi": "from tinylib.other import o as o\nfrom tinylib.lazy.late import late as late\n",
        "lazy/late.py": "",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def names(found: list[Path], package: Path) -> set[str]:
    return {str(path.relative_to(package)) for path in found}


CLOSURE = {"__init__.py", "core.py", "helper.py", "inner/__init__.py", "inner/deep.py", "cycle.py"}


LAZY = {"__init__.py", "lazy/__init__.py", "lazy/__init__.pyi"}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from tinylib import core", CLOSURE),
        ("import tinylib.core", CLOSURE),
        ("from tinylib.core import h", CLOSURE),
        ("%matplotlib inline\nif True:\n    import numpy, tinylib.core\n!ls", CLOSURE),
        ("import tinylib", {"__init__.py"}),
        ("from tinylib.typed import x", {"__init__.py", "typed.py", "other.py"}),
        ("from tinylib import nothing_of_the_sort", {"__init__.py"}),
        ("from tinylib.lazy import o", {*LAZY, "other.py"}),
        ("from tinylib.lazy import late", {"__init__.py", "lazy/__init__.py", "lazy/late.py"}),
        ("import tinylib\ntinylib.core.h()", CLOSURE),
        ("import numpy", set()),
        ("from tinylib import core\nthis is no python", set()),  # executing it will say so
    ],
)
def test_imports_are_followed(source: str, wanted: set[str], package: Path) -> None:
    assert names(imported([source], (package,)), package) == wanted


def test_a_chapter_depends_on_what_it_calls_and_not_on_the_machinery_around_it() -> None:
    found = names(imported(["from sslbook.book import begin, claim"], (PACKAGE,)), PACKAGE)
    assert {"__init__.py", "book/__init__.py", "book/claims.py", "book/values.py", "book/plots.py"} <= found
    assert not {"book/execute.py", "book/regression.py", "book/ledger.py", "book/render.py", "cli.py"} & found


@pytest.fixture
def book(package: Path, write_book) -> Book:
    return write_book(packages=(package,), good="<<from tinylib.core import h>>Prose.\n")


def the_key(book: Book, **setting: object) -> str:
    chapter = next(c for c in find_chapters(book) if c.name == "good")
    return key(key_parts(book, chapter, **({"scale": "quick", "seed": 0, "device": "cpu"} | setting)))


def test_the_key_is_reproducible(book: Book) -> None:
    assert the_key(book) == the_key(book)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tinylib/core.py", "from .helper import h as h\n"),
        ("tinylib/inner/deep.py", ""),
        ("requirements.lock", "torch==2\n"),
    ],
)
def test_what_moves_the_key(path: str, text: str, book: Book) -> None:
    before = the_key(book)
    (book.root / path).write_text(text)
    assert the_key(book) != before


@pytest.mark.parametrize(
    "path",
    [
        *("tinylib/unrelated.py", "tinylib/other.py", "README.md", "chapters/other.md", "data/claims.yml"),
        "data/results/nobody_asked.json",
    ],
)
def test_what_does_not_move_the_key(path: str, book: Book) -> None:
    before = the_key(book)
    (book.root / path).write_text("# changed\n")
    assert the_key(book) == before


@pytest.mark.parametrize(
    "text",
    [
        "from .helper import h  # a comment\n",
        '"""What it is."""\n\n\nfrom .helper import h\n',
        '"""What it is.\n\nAnd why."""\nfrom .helper import (\n    h,\n)\n"""What h is."""\n',
    ],
)
def test_words_about_code_do_not_move_the_key(text: str, book: Book) -> None:
    before = the_key(book)
    (book.root / "tinylib/core.py").write_text(text)
    assert the_key(book) == before


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('def f():\n    """One."""\n    return 1', 'def f():\n    """Two."""\n    return 1  # one', True),
        ('def f():\n    """One."""\n    return 1', 'def f():\n    """One."""\n    return 2', False),
        ('class C:\n    """One."""\n    x = "a"', 'class C:\n    """Two."""\n    x = "a"', True),
        ('class C:\n    """One."""\n    x = "a"', 'class C:\n    """One."""\n    x = "b"', False),
        ("def f():\n    return 1", 'def f():\n    """One."""\n    return 1', True),
        ("f = '%s'", "f = '%r'", False),
        ("f(1)", "f(1);", False),  # whose value is not shown
        ('"shown"', '"shown below the cell"', False),  # a cell's value, and no docstring
        ("%matplotlib inline", "%matplotlib widget", False),
        ("if", "if True", False),  # no Python, whose text is all that there is
    ],
)
def test_what_a_cell_does_is_what_counts(old: str, new: str, same: bool, book: Book) -> None:
    path = book.chapters / "good.md"
    cell = "from tinylib.core import h"
    path.write_text((text := path.read_text()).replace(cell, old))
    before = the_key(book)
    path.write_text(text.replace(cell, new))
    assert (the_key(book) == before) is same


def test_a_file_that_is_missing_is_part_of_the_key(book: Book) -> None:
    before = data_parts(book, ["data/results/run.json"])
    (book.root / "data/results").mkdir(parents=True, exist_ok=True)
    (book.root / "data/results/run.json").write_text("{}")
    assert before == {"data/results/run.json": "absent"} != data_parts(book, ["data/results/run.json"])


@pytest.mark.parametrize("setting", [{"scale": "paper"}, {"seed": 1}, {"device": "cuda"}])
def test_the_setting_moves_the_key(setting: dict, book: Book) -> None:
    assert the_key(book, **setting) != the_key(book)


def test_code_moves_the_key_and_prose_does_not(book: Book) -> None:
    before, path = the_key(book), book.chapters / "good.md"
    path.write_text(path.read_text().replace("Prose.", "Better prose."))
    assert the_key(book) == before
    path.write_text(path.read_text().replace("import h", "import h as g"))
    assert the_key(book) != before


def test_a_version_moves_the_key(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    before = the_key(book)
    monkeypatch.setattr(cache, "_version", lambda name: "0" if name == "torch" else "1")
    assert the_key(book) != before


def test_the_number_of_threads_moves_the_key(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLBOOK_THREADS", raising=False)
    before = the_key(book)
    monkeypatch.setenv("SSLBOOK_THREADS", "4")
    assert the_key(book) != before


def test_downloaded_images_move_the_key(book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLBOOK_DATA", raising=False)
    before = the_key(book)
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path / "images"))
    assert the_key(book) == before
    batch = tmp_path / "images" / "cifar-10-batches-py" / "data_batch_1"
    batch.parent.mkdir(parents=True)
    batch.write_bytes(b"pixels")
    assert the_key(book) != before


def test_changes_are_named() -> None:
    assert changes({"a": "1", "b": "1", "gone": "1"}, {"a": "1", "b": "2", "new": "1"}) == ["b", "new", "gone"]
