"""What a chapter depends on and what the pages are made of: what moves it and what must not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bookbuild import execute as cache
from bookbuild.execute import key_parts, pages_mark, reached
from bookbuild.layout import PACKAGES, SOURCE, Book, find_chapters


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose modules import each other in every way that there is."""
    folder = tmp_path / "tinylib"
    for name in ("inner", "lazy"):
        (folder / name).mkdir(parents=True)
    files = {
        "__init__.py": "",
        "core.py": "from tinylib.helper import h\n",
        "helper.py": "def h():\n    from tinylib.inner import deep\n",
        "inner/__init__.py": "from tinylib.cycle import c\n",
        "inner/deep.py": "import tinylib.core as core\n",
        "cycle.py": "from tinylib import core\n",
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


CLOSURE = {"__init__.py", "core.py", "helper.py", "inner/__init__.py", "inner/deep.py", "cycle.py"}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from tinylib import core", CLOSURE),
        ("%matplotlib inline\nif True:\n    import numpy, tinylib.core\n!ls", CLOSURE),
        ("import tinylib", {"__init__.py"}),
        ("from tinylib.typed import x", {"__init__.py", "typed.py", "other.py"}),
        ("from tinylib import nothing_of_the_sort", {"__init__.py"}),
        ("from tinylib.lazy import o", {"__init__.py", "lazy/__init__.py", "other.py"}),
        ("from tinylib.lazy import late", {"__init__.py", "lazy/__init__.py", "lazy/late.py"}),
        ("import tinylib\ntinylib.core.h()", CLOSURE),
        ("from tinylib import core\nthis is no python", set()),  # executing it will say so
    ],
)
def test_imports_are_followed(source: str, wanted: set[str], package: Path) -> None:
    assert {str(path.relative_to(package)) for path in reached([source], [package])} == wanted


def test_a_chapter_depends_on_what_it_calls_and_not_on_the_machinery_around_it() -> None:
    found = {str(path.relative_to(SOURCE)) for path in reached(["from sslchapters import begin, claim"], PACKAGES)}
    assert {f"sslchapters/{name}.py" for name in ("__init__", "claims", "values", "plots")} <= found
    assert not {"sslbook/cli.py", "sslchapters/ledger.py", "sslchapters/covariance/checks.py"} & found


@pytest.fixture
def book(package: Path, write_book) -> Book:
    return write_book(packages=(package,), good="<<from tinylib.core import h>>Prose.\n")


def parts(book: Book, **setting: object) -> dict[str, str]:
    chapter = next(c for c in find_chapters(book) if c.name == "good")
    return key_parts(book, chapter, **({"scale": "quick", "seed": 0, "device": "cpu"} | setting))


@pytest.mark.parametrize(
    ("path", "text", "moved"),
    [
        ("tinylib/core.py", "from tinylib.helper import h as h\n", "tinylib/core.py"),
        ("tinylib/inner/deep.py", "", "tinylib/inner/deep.py"),
        ("requirements.lock", "torch==2\n", "the lock file"),
        ("data/results/one.json", "{}", "recorded runs and printed tables"),
        (
            "tinylib/core.py",
            '"""What."""\n\nfrom tinylib.helper import (\n    h,  # a comment\n)\n"""And h."""\n',
            None,
        ),
        ("tinylib/other.py", "o = 2\n", None),
        ("chapters/other.md", "# Other\n", None),
        ("data/claims.yml", "[]\n", None),
    ],
)
def test_which_files_move_the_key(path: str, text: str, moved: str | None, book: Book) -> None:
    before = parts(book)
    (book.root / path).write_text(text)
    now = parts(book)
    assert [name for name in now if now[name] != before.get(name)] == ([moved] if moved else [])


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("def f():\n    return 1", "def f():\n    return 1  # one", True),
        ("def f():\n    return 1", "def f():\n    return 2", False),
        ("f(1)", "f(1);", False),  # whose value is not shown
        ('"shown"', '"shown below the cell"', False),
        ("%matplotlib inline", "%matplotlib widget", False),
        ("if", "if True", False),  # no Python, whose text is all that there is
    ],
)
def test_what_a_cell_does_is_what_counts(old: str, new: str, same: bool, book: Book) -> None:
    path = book.chapters / "good.md"
    path.write_text((text := path.read_text()).replace("from tinylib.core import h", old))
    before = parts(book)
    path.write_text(text.replace("from tinylib.core import h", new).replace("Prose.", "Better prose."))
    assert (parts(book) == before) is same


def test_downloaded_images_move_the_key(book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSLBOOK_DATA", raising=False)
    before = parts(book)
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path / "images"))
    assert parts(book) == before
    batch = tmp_path / "images" / "cifar-10-batches-py" / "data_batch_1"
    batch.parent.mkdir(parents=True)
    batch.write_bytes(b"pixels")
    assert parts(book) != before


def test_settings_versions_threads_a_processor_stood_in_for_and_what_the_path_adds_move_the_key(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [parts(book, **setting) for setting in ({}, {"scale": "paper"}, {"seed": 1}, {"device": "cuda"})]
    for name in ("SSLBOOK_THREADS", *cache.PROCESSOR):
        monkeypatch.setenv(name, "2")
        found.append(parts(book))
    for change in ("", "x = 1\n", "x = 2\n"):
        (tmp_path / "numpy.py").write_text(change)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        found.append(parts(book))
    monkeypatch.setattr(cache, "version", lambda name: "0")
    found.append(parts(book))
    assert all(one != other for index, one in enumerate(found) for other in found[:index])


def test_what_the_pages_are_made_of_moves_their_mark(
    write_book, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [SimpleNamespace(name="torch", version="2.5")]
    monkeypatch.setattr(cache, "PACKAGES", [package])
    monkeypatch.setattr(cache, "distributions", lambda: installed)
    book = write_book(good="<<1>>")
    marks = [pages_mark(book, "quick", {}), pages_mark(book, "quick", {"chapters/ledger": "other"})]
    for path in (book.chapters / "good.md", book.root / "data/functions.yml", package / "core.py"):
        path.write_text("other")
        marks.append(pages_mark(book, "quick", {}))
    installed[0].version = "2.6"
    marks.append(pages_mark(book, "quick", {}))
    assert len(set(marks)) == 6
    assert pages_mark(book, "quick", {}) == marks[-1]
