"""Which machines ran the book, when, with which versions, and how many numbers came out as expected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sslbook.arguments import InputError, counted
from sslbook.book.layout import Book
from sslbook.files import write_text

PLACE = "<!-- the table of machines -->"
"""Where `chapters/reproduce.md` wants the table."""
PAGE = "chapters/reproduce"


@dataclass(frozen=True)
class Entry:
    """One run of the chapters at ``scale`` on one machine; ``passed`` and ``failed`` count the tests that need a GPU.

    numbers: those of the chapters that ran; agreed: of these, those as expected there and then.
    """

    name: str
    system: str
    driver: str
    python: str
    torch: str
    commit: str
    date: str
    scale: str
    chapters: int
    numbers: int
    agreed: int
    passed: int | None = None
    failed: int | None = None


def path(book: Book) -> Path:
    """The file that holds the table."""
    return book.root / "data" / "machines.json"


def entries(book: Book) -> list[Entry]:
    """The table, oldest first; raises InputError for a file that can't be read."""
    file = path(book)
    if not file.is_file():
        return []
    try:
        return [Entry(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: not a table of machines ({error})") from None


def add(book: Book, entry: Entry) -> Path:
    """Put an entry into the table, in the place of the one of the same machine, day and commit; returns the file."""
    kept = [row for row in entries(book) if _key(row) != _key(entry)]
    rows = sorted([*kept, entry], key=lambda row: row.date)
    write_text(path(book), json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n")
    return path(book)


def _key(entry: Entry) -> tuple[str, ...]:
    return entry.name, entry.torch, entry.python, entry.date, entry.commit


def pages(book: Book) -> dict[str, str]:
    """`chapters/reproduce` with the table in its place, by its name; nothing where the book has no such page."""
    source = book.root / f"{PAGE}.md"
    if not source.is_file():
        return {}
    return {PAGE: source.read_text(encoding="utf-8").replace(PLACE, table(entries(book)))}


def table(rows: Sequence[Entry]) -> str:
    """The entries as a Markdown table, newest first; a sentence where there is none."""
    if not rows:
        return "No machine has been entered yet."
    head = "| Machine | Date | Versions | Numbers as expected | GPU tests |\n|---|---|---|---|---|"
    return "\n".join([head, *map(_row, reversed(rows))])


def _row(entry: Entry) -> str:
    versions = ", ".join(filter(None, [f"Python {entry.python}", f"torch {entry.torch}", entry.driver, entry.system]))
    tests = "–" if not entry.passed and not entry.failed else f"{entry.passed} passed, {entry.failed} failed"
    numbers = f"{entry.agreed} of {entry.numbers} in {counted(entry.chapters, 'chapter')}" if entry.chapters else "–"
    return f"| {entry.name} | {entry.date}, `{entry.commit[:10] or 'unknown'}` | {versions} | {numbers} | {tests} |"
