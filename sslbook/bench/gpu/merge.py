"""Bring what a GPU gave into the book: records, the numbers of the papers' size, and a line in the table of machines."""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sslbook.arguments import InputError
from sslbook.bench.gpu.desk import MACHINE, Desk, opened, read
from sslbook.book.layout import Book
from sslbook.book.machines import Entry, add, entries
from sslbook.book.regression import accept, differences, read_expected
from sslbook.book.values import Number
from sslbook.records import Record, recorded, write_record


@dataclass(frozen=True)
class Merged:
    """What was written, and a sentence for each number that is not as expected."""

    written: tuple[Path, ...]
    differing: tuple[str, ...]


@contextlib.contextmanager
def desk_in(place: Path) -> Iterator[Desk]:
    """The folder, or the archive of one, that ``place`` names; raises InputError for anything else."""
    if place.is_dir():
        yield opened(place)
        return
    if not zipfile.is_zipfile(place):
        raise InputError(f"--merge: got {place}, which is neither a folder of sslbook gpu nor its results.zip")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(place) as archive:
        archive.extractall(folder)  # which drops leading slashes and "..", so that nothing is written elsewhere
        yield opened(Path(folder))


def merge(desk: Desk, book: Book, *, update: bool) -> Merged:
    """Records into data/results; a line into data/machines.json; with ``update``, numbers into data/expected.

    Raises InputError for a folder that was made with ``--tiny``, or where something can't be read; then nothing is written.
    """
    if desk.tiny:
        raise InputError(f"{desk.folder} was made with --tiny, which tries out the command: its numbers belong nowhere")
    records = [_joined(_record(path), book) for path in sorted(desk.records.glob("*.json"))]
    chapters = {name: values for name, values in desk.done("chapters").items() if not values["error"]}
    line = entry(desk, chapters)
    entries(book)  # which says if the table can't be read
    differing: dict[str, list[str]] = {}
    for name, values in chapters.items():
        differing[name] = differences(_numbers(values), read_expected(book.expected(name, "paper")))
    written = [write_record(record, book.results) for record in records]
    for name, problems in differing.items():
        if problems and update:
            accept(book, name, "paper", _numbers(chapters[name]))
            written.append(book.expected(name, "paper"))
    written.append(add(book, line))
    return Merged(tuple(written), tuple(f"{name}: {problem}" for name in differing for problem in differing[name]))


def _record(path: Path) -> Record:
    try:
        return recorded(path.stem, folder=path.parent)
    except ValueError as error:
        raise InputError(str(error)) from None


def _numbers(values: Mapping[str, Any]) -> list[Number]:
    return [Number.from_json(number) for number in values["numbers"]]


def _joined(record: Record, book: Book) -> Record:
    """A table's record with the runs of the one that stands; any other takes that one's place."""
    from sslbook.chapters.training.presets import sheets
    from sslbook.chapters.training.runs import recorded_values, seeds_of, united

    if record.name not in sheets() or not (book.results / f"{record.name}.json").is_file():
        return record
    before: dict[str, Any] = _record(book.results / f"{record.name}.json")["runs"]
    runs = united(before, record["runs"])
    seconds = sum(run.get("seconds") or 0 for run in runs.values())
    origin = replace(record.provenance, seeds=seeds_of(runs), seconds=round(seconds, 3))
    return Record(record.name, recorded_values(sheets()[record.name], runs), origin)


def entry(desk: Desk, chapters: Mapping[str, Mapping[str, Any]]) -> Entry:
    """The line of the table of machines: how many numbers agreed with those that were expected there and then."""
    facts, tests = read(desk.folder / MACHINE), desk.done("tests").get("gpu", {})
    try:
        return Entry(
            name=facts["name"],
            system=facts["system"],
            driver=" ".join(part for part in (facts["driver"], facts["cuda"] and f"CUDA {facts['cuda']}") if part),
            python=facts["python"],
            torch=facts["torch"],
            commit=facts["commit"] or "",
            date=facts["begun"],
            scale="paper",
            chapters=len(chapters),
            numbers=sum(values["compared"] for values in chapters.values()),
            agreed=sum(values["agreed"] for values in chapters.values()),
            passed=tests.get("passed"),
            failed=tests.get("failed"),
        )
    except KeyError as error:
        raise InputError(f"{desk.folder}: {error} is missing from what it says of its machine or chapters") from None
