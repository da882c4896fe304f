"""The mark of the pages: what they are made of moves it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sslbook.book import stamp
from sslbook.exports import homes


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "__init__.pyi").write_text("from lib.one import shown as shown\n")
    (folder / "one.py").write_text('def shown():\n    """Words."""\n\n\ndef other():\n    """Words."""\n')
    monkeypatch.setattr(stamp, "PACKAGE", folder)
    homes.cache_clear()
    return folder


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('def shown():\n    """Words."""', 'def shown():\n    """Better words."""', False),
        ("def shown():", "def shown(x=1):", False),
        ('def other():\n    """Words."""', 'def other():\n    """Better words."""', True),
        ("def other():", "# why\ndef other():", True),
    ],
)
def test_promised_docstrings_are_pages(write_book, package: Path, old: str, new: str, same: bool) -> None:
    book = write_book(good="<<1>>")
    before = stamp.fingerprint(book, "quick", {})
    path = package / "one.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert (stamp.fingerprint(book, "quick", {}) == before) is same


def test_sources_and_statements_move_the_mark(write_book, package: Path) -> None:
    book = write_book(good="<<1>>")
    marks = {stamp.fingerprint(book, "quick", {}), stamp.fingerprint(book, "quick", {"chapters/ledger": "other"})}
    for path in (book.chapters / "good.md", book.root / "data/functions.yml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("other")
        marks.add(stamp.fingerprint(book, "quick", {}))
    assert len(marks) == 4
