"""The commands of recorded runs and printed tables: ``sslbook record`` makes, ``sslbook table`` shows (and runs)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

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
    name, there = options.name, store.path_of(options.name)
    asked = tuple(dict.fromkeys(options.seeds or ()))
    if name in catalogue.RECORDERS:
        how = "--replace makes it anew"
    elif name in catalogue.TABLES and catalogue.table(name).record == name:
        how = f"sslbook table {name} --record adds finished runs to it"
        if options.replace or not there.is_file():
            raise InputError(
                f"{there} is the record of a table's runs: sslbook table {name} --run makes them, and {how}"
            )
    else:
        raise unknown("recorded run", name, catalogue.RECORDERS)
    if there.is_file() and not options.replace:
        origin = store.recorded(name).provenance
        if asked and asked != origin.seeds:
            held, wanted = (" ".join(map(str, some)) for some in (origin.seeds, asked))
            raise InputError(f"--seeds: {there} holds {held}, got {wanted}; {how}")
        print("\n  ".join([f"{there}\nRecorded: {origin}", *origin.differences()]))
        print(f"It stays as it is; {how}.")
        return 0
    store.require_source_tree()
    require_writable(there.parent)
    study = catalogue.study(name)
    seeds = asked or study.seeds
    print(f"Making {name} with {catalogue.RECORDERS[name]}, {counted(len(seeds), 'seed')} …", flush=True)
    start = time.monotonic()
    try:
        values = study.values(seeds)
    except FileNotFoundError as error:
        raise InputError(str(error)) from None
    command = f"sslbook record {name} --seeds {' '.join(map(str, seeds))}"
    path = store.save_record(name, values, seeds=seeds, seconds=time.monotonic() - start, command=command)
    print(f"Written: {path}")
    return 0


def table(arguments: Sequence[str]) -> int:
    """Show a printed table beside its record, or run it."""
    name, *rest = arguments or ["--list"]
    if name not in ("--list", "--help", "-h"):
        declared = catalogue.table(name)
        from sslchapters import tables  # torch takes seconds, which a list does not need

        return tables.main(declared, rest)
    said = {known: catalogue.WORDS[catalogue.printed_name(known)] for known in catalogue.TABLES}
    found = [known for known in said if all(word.casefold() in f"{known} {said[known]}".casefold() for word in rest)]
    if not found:
        raise unknown("printed table", " ".join(rest), catalogue.TABLES)
    print("usage: sslbook table ID [--help] [--run] …\n       sslbook table --list [WORD …]\n")
    for printed in dict.fromkeys(map(catalogue.printed_name, found)):
        print(f"{printed:<8} {catalogue.WORDS[printed]}")
        if ways := [known for known in found if known != printed and catalogue.printed_name(known) == printed]:
            print(f"{'':<8} {', '.join(ways)}")
    return 0
