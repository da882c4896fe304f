"""The commands of recorded runs and printed tables: ``sslbook record``, ``sslbook table``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from sslbook._check import InputError, counted, seed, unknown
from sslchapters import catalogue
from sslchapters import records as store
from sslchapters.data_files import require_writable


def record(arguments: Sequence[str]) -> int:
    """Tell of a recorded run, or make it where there is none."""
    parser = argparse.ArgumentParser(prog="sslbook record", description=record.__doc__)
    parser.add_argument("name", metavar="NAME", help="a file of data/results, such as covariance-cifar10")
    parser.add_argument(
        "--seeds", type=seed, nargs="+", metavar="N", help="these seeds (default: those of the book's record)"
    )
    parser.add_argument("--replace", action="store_true", help="make it anew where there is one")
    options = parser.parse_args(arguments)
    if options.name not in catalogue.RECORDERS:
        return _record_of_table(options)
    study, there = catalogue.study(options.name), store.path_of(options.name)
    if there.is_file() and not options.replace:
        return _describe(store.recorded(options.name), there, options.seeds, "--replace makes it anew")
    store.require_source_tree()
    require_writable(there.parent)
    seeds = tuple(dict.fromkeys(options.seeds or study.seeds))
    maker = catalogue.RECORDERS[options.name]
    print(f"Making {options.name} with {maker}, {counted(len(seeds), 'seed')} …", flush=True)
    start = time.monotonic()
    try:
        values = study.values(seeds)
    except FileNotFoundError as error:
        raise InputError(str(error)) from None
    command = f"sslbook record {options.name} --seeds {' '.join(map(str, seeds))}"
    path = store.save_record(options.name, values, seeds=seeds, seconds=time.monotonic() - start, command=command)
    print(f"Written: {path}")
    return 0


def _record_of_table(options: argparse.Namespace) -> int:
    """Tell of the record of a table of full runs; raises InputError if it isn't there, to be made anew, or no such table's."""
    name = options.name
    if name not in catalogue.TABLES or catalogue.table(name).record != name:
        raise unknown("recorded run", name, catalogue.RECORDERS)
    there, adds = store.path_of(name), f"sslbook table {name} --record adds finished runs to it"
    if options.replace or not there.is_file():
        raise InputError(f"{there} is the record of a table's runs: sslbook table {name} --run makes them, and {adds}")
    return _describe(store.recorded(name), there, options.seeds, adds)


def _describe(there: store.Record, path: Path, seeds: Sequence[int] | None, more: str) -> int:
    """Where a record is, where it comes from, and what is not as it was; raises InputError if other seeds are asked for.

    more: what changes it.
    """
    if seeds is not None and tuple(dict.fromkeys(seeds)) != there.provenance.seeds:
        held, asked = (" ".join(map(str, some)) for some in (there.provenance.seeds, seeds))
        raise InputError(f"--seeds: {path} holds {held}, got {asked}; {more}")
    print("\n  ".join([f"{path}\nRecorded: {there.provenance}", *there.provenance.differences()]))
    print(f"It stays as it is; {more}.")
    return 0


def table(arguments: Sequence[str]) -> int:
    """Show a printed table beside its record, or run it."""
    name, *rest = arguments or ["--list"]
    if name in ("--list", "--help", "-h"):
        found = [known for known in catalogue.TABLES if all(word.casefold() in known.casefold() for word in rest)]
        if not found:
            raise unknown("printed table", " ".join(rest), catalogue.TABLES)
        print("usage: sslbook table ID [--help] [--run] …\n       sslbook table --list [WORD …]\n")
        for printed in dict.fromkeys("-".join(known.split("-")[:2]) for known in found):
            print(", ".join(known for known in found if known == printed or known.startswith(f"{printed}-")))
        return 0
    declared = catalogue.table(name)
    from sslchapters import tables  # torch takes seconds, which a list does not need

    return tables.main(declared, rest)
