"""The regression: an executed chapter's claims hold, and its measured numbers are what they were.

A claim is held by its own test, and by nothing else; a rival or a broken variant must fail that test, with whatever value. A
measured number is held to `data/expected/<chapter>.<scale>.json`, which has a line for each: its value, or of an interval the
mean, the ends and n; and one line with the names of all claims, so that none goes unnoticed. How far a number may be off says
`sslchapters.values.allowed`, the same on every machine. So numbers change only on purpose, by ``sslbook regression --update``;
one that is new and one that is gone are differences, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from bookbuild.layout import Book, find_chapters
from sslbook._check import InputError
from sslbook._files import write_text
from sslchapters.data_files import read_finite
from sslchapters.intervals import Interval
from sslchapters.ledger import numbers_of
from sslchapters.running import BOOK
from sslchapters.values import RECORD_KEY, Number, Value, allowed, apart, mean_of, pasted, short

Held = Mapping[str, Value | None]
"""What each number of a chapter was, by name; None for a claim, which is held by its own test."""


@dataclass(frozen=True)
class Moved:
    """A measured number that is not what it was, or one that is new (``there`` is None) or gone (``here``); or such a claim.

    Where one has become the other, ``there`` says in words what it was.
    """

    name: str
    here: Value | None
    there: Value | str | None
    may: float = 0.0

    def __str__(self) -> str:
        if self.there is None:
            return f"{self.name}: new, {self.here}"
        if self.here is None:
            return f"{self.name}: gone, and no longer held; it was {self.there}"
        if isinstance(self.there, str):
            return f"{self.name}: {self.here}; it was {self.there}, and is no longer held as that"
        off = abs(mean_of(self.here) - mean_of(self.there))
        return f"{self.name}: {self.here}; it was {self.there} (off by {off:.2g}, and may be by {self.may:.2g})"


@dataclass(frozen=True)
class Comparison:
    """One executed chapter: its numbers, its cells that failed, its checks that fail, and what moved."""

    chapter: str
    numbers: tuple[Number, ...] = ()
    cells: tuple[str, ...] = ()
    checks: tuple[Number, ...] = ()
    moved: tuple[Moved, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all of it ran, and every check holds."""
        return not (self.cells or self.checks)

    @property
    def failed(self) -> list[str]:
        """A sentence for each cell and each check that failed."""
        return [*self.cells, *(f"{n.name}{f' ({n.id})' if n.id else ''}: {n.failure}" for n in self.checks)]

    @property
    def lines(self) -> list[str]:
        """A sentence for each thing that is not as it should be."""
        return [*self.failed, *map(str, self.moved)]


def compare(book: Book, chapters: Sequence[str], scale: str, seed: int = BOOK[1]) -> list[Comparison]:
    """What became of each of ``chapters``, all executed; numbers are compared at the book's own seed alone."""
    formats, found = printed_as(book), []
    for chapter in chapters:
        path = book.executed(scale) / f"{chapter}.ipynb"
        if not path.is_file():
            found.append(Comparison(chapter, cells=("it could not be executed",)))
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        all_ = numbers_of(notebook, chapter, scale)
        whole = [number for number in all_ if number.part_of is None]
        moved = differences(whole, read_expected(book.expected(chapter, scale)), formats) if seed == BOOK[1] else []
        failed = notebook["metadata"].get(RECORD_KEY, {}).get("failed", ())
        checks = tuple(number for number in whole if number.failure)
        found.append(Comparison(chapter, tuple(all_), tuple(failed), checks, tuple(moved)))
    return found


def differences(found: Iterable[Number], held: Held, formats: Mapping[tuple[str, str], Sequence[str]]) -> list[Moved]:
    """Every measured number on which a chapter and what is held of it don't agree, and the claims that are new or gone."""
    numbers = {number.name: number for number in found}
    moved = []
    for name, number in numbers.items():
        was = held.get(name)
        if name not in held:
            moved.append(Moved(name, number.result, None))
        elif number.criterion.asserts != (was is None):
            moved.append(Moved(name, number.result, "a claim" if was is None else f"measured, {was}"))
        elif was is not None:
            may = allowed(number, was, formats.get((number.chapter, name), ()))
            same_kind = isinstance(was, Interval) == isinstance(number.result, Interval)
            if not (same_kind and apart(number, was) <= may):
                moved.append(Moved(name, number.result, was, may))
    gone = {name: was for name, was in held.items() if name not in numbers}
    return moved + [Moved(name, None, "a claim" if was is None else was) for name, was in gone.items()]


def printed_as(book: Book) -> dict[tuple[str, str], list[str]]:
    """The formats in which all pages print each number."""
    found: dict[tuple[str, str], list[str]] = {}
    for chapter in find_chapters(book):
        for number in pasted(chapter.text, chapter.name):
            found.setdefault((number.chapter, number.name), []).append(number.form)
    return found


def read_expected(path: Path) -> dict[str, Value | None]:
    """What each number was, by name; empty without a file. Raises InputError for a file that can't be read."""
    if not path.exists():
        return {}
    try:
        content = read_finite(path)
        found: dict[str, Value | None] = dict.fromkeys(content.pop("claims", "").split())
        for name, was in content.items():
            found[name] = Interval(*was) if isinstance(was, list) else was
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a file of expected numbers ({error})") from None
    return found


def write_expected(path: Path, held: Held) -> None:
    """Write what is held of a chapter, a measured number a line."""
    rows = {n: [v.mean, v.low, v.high, v.n] if isinstance(v, Interval) else v for n, v in held.items() if v is not None}
    claims = {"claims": " ".join(name for name, was in held.items() if was is None)}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(was)}" for name, was in {**rows, **claims}.items())
    write_text(path, f"{{\n{lines}\n}}\n")


def update(book: Book, found: Comparison, scale: str) -> None:
    """Make an executed chapter's measured numbers and claims the expected ones.

    What agrees stays as it is, so that rounding makes no diff.
    """
    path, news = book.expected(found.chapter, scale), {moved.name for moved in found.moved}
    whole, held = [number for number in found.numbers if number.part_of is None], read_expected(path)
    now = {n.name: None if n.criterion.asserts else n.result if n.name in news else held[n.name] for n in whole}
    if news:
        write_expected(path, now)


# --- what is told: in the terminal, to a machine, and on the pages ------------------------------------------------------


def table(found: Iterable[Comparison]) -> list[str]:
    """The numbers that moved, a line each: chapter, name, here, what the book has."""

    def words(value: Value | str | None) -> str:
        return "none" if value is None else value if isinstance(value, str) else short(value)

    rows = [(one.chapter, m.name, words(m.here), words(m.there)) for one in found for m in one.moved]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:3]
    return ["  ".join([*map(str.ljust, row[:3], widths), f"the book has {row[3]}"]) for row in rows]


def write_junit(path: Path, found: Sequence[Comparison], scale: str) -> None:
    """Write what was compared as a JUnit file: a suite for each chapter, a case for each number and each cell that failed."""
    root = ElementTree.Element("testsuites")
    for one in found:
        cases: dict[str, tuple[str, str]] = dict.fromkeys((n.name for n in one.numbers), ("", ""))
        cases |= {n.name: ("failure", n.failure) for n in one.checks}
        cases |= {m.name: ("failure", str(m)) for m in one.moved}
        cases |= {cell.splitlines()[0]: ("error", cell) for cell in one.cells}
        kinds = [kind for kind, _ in cases.values()]
        counts = {"tests": len(cases), "failures": kinds.count("failure"), "errors": kinds.count("error")}
        told = {"name": f"{one.chapter} ({scale})", **{name: str(count) for name, count in counts.items()}}
        suite = ElementTree.SubElement(root, "testsuite", told)
        for name, (kind, words) in cases.items():
            case = ElementTree.SubElement(suite, "testcase", classname=one.chapter, name=name)
            if kind:  # a colour of the terminal is no character of XML
                ElementTree.SubElement(case, kind, message=words.splitlines()[0]).text = words.replace("\x1b", "")
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


HERE = "% on-this-machine"
"""The comment in *How to reproduce* that the build replaces by `on_this_machine`."""


def on_this_machine(found: Sequence[Comparison]) -> str:
    """What *How to reproduce* says of this build, in Markdown: which numbers differ from the book's, and which checks failed."""
    lines = table(found) + [f"{one.chapter}  {line.splitlines()[0]}" for one in found for line in one.failed]
    if not lines:
        return "In the build that made these pages, every measured number was as expected, and every check held."
    return "\n".join(["````text", *lines, "````"])
