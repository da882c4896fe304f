"""Bring the records that a GPU gave into the book."""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sslbook.records.store import Record, path_of, recorded, require_source_tree, write_record
from sslbook.runtime.arguments import InputError
from sslbook.training.presets.sheets import sheets
from sslbook.training.presets.tables import recorded_values, seeds_of, united

RECORDS = ("A-Tab2", "B-Tab3-cifar10-resnet18", "training-operator-full")
"""The records that the plan makes."""


def merge(place: Path) -> list[Path]:
    """Write the records of an archive into data/results; of a table's, run by run beside those that are there already.

    Raises InputError where the archive or a record in it can't be read; then nothing is written.
    """
    require_source_tree()
    return [write_record(record) for record in [_joined(record) for record in _read(place)]]


def _read(place: Path) -> Iterator[Record]:
    if not zipfile.is_zipfile(place):
        raise InputError(f"--merge: got {place}, which is no results.zip of sslbook gpu")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(place) as archive:
        there = [name for name in RECORDS if f"{name}.json" in archive.namelist()]
        if not there:
            raise InputError(f"--merge: {place} holds none of the records {', '.join(RECORDS)}")
        for name in there:
            try:
                archive.extract(f"{name}.json", folder)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise InputError(f"--merge: {place} is damaged ({error})") from None
            yield _checked(name, Path(folder))


def _checked(name: str, folder: Path | None = None) -> Record:
    """A record, of the book unless ``folder`` is given; raises InputError for one that can't be read, or whose runs are none."""
    try:
        record = recorded(name, folder=folder)
        if name in sheets():
            recorded_values(sheets()[name], record["runs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        whose = "the book's" if folder is None else "the archive's"
        raise InputError(f"--merge: {whose} record {name} can't be used ({error})") from None
    return record


def _joined(record: Record) -> Record:
    """A table's record with the runs of the one that stands; any other takes that one's place."""
    if record.name not in sheets() or not path_of(record.name).is_file():
        return record
    runs = united(_checked(record.name)["runs"], record["runs"])
    seconds = sum(run.get("seconds") or 0 for run in runs.values())
    origin = replace(record.provenance, seeds=seeds_of(runs), seconds=round(seconds, 3))
    return Record(record.name, recorded_values(sheets()[record.name], runs), origin)
