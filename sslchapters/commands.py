"""The commands of recorded runs and printed tables: ``sslbook record`` makes, ``sslbook table`` shows (and runs).

What there is of both stands here by name, as strings, so that a list of names loads no experiment.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from typing import Any

from sslbook._check import InputError, counted, seed, unknown
from sslchapters import records as store
from sslchapters.data_files import folder, read_yaml, require_writable

_READ = read_yaml(folder() / "catalogue.yml", dict)
RECORDERS: dict[str, str] = {
    name: f"sslchapters.{module}" for module, names in _READ["records"].items() for name in names.split()
}
"""The module whose ``STUDIES`` declares each record of `data/results` that no table of full runs is."""
TABLES: dict[str, str] = {
    f"{name}{way}": f"sslchapters.audit.{module}"
    for name, row in _READ["tables"].items()
    for way, module in ([("", row["module"])] if "module" in row else [(f"-{w}", m) for w, m in _READ["ways"].items()])
}
"""The module whose ``TABLES`` declares each table: the paper's name of it, and where it is one
of several experiments, its images and its network."""
WORDS: dict[str, str] = {name: row["what"] for name, row in _READ["tables"].items()}
"""What each table of a paper compares, by the paper's name of it."""


def printed_name(name: str) -> str:
    """The paper's name of a table, without where we run it: ``B-Tab3`` of ``B-Tab3-digits-convnet``."""
    return "-".join(name.split("-")[:2])


def declared(name: str) -> Any:
    """The `sslchapters.tables.Table` of a name; raises InputError, with the names that are meant, for another."""
    if kin := [known for known in TABLES if known.startswith(f"{name}-")]:
        raise InputError(f"printed table: {name} is run in several ways; name one of {', '.join(kin)}")
    if name not in TABLES:
        raise unknown("printed table", name, TABLES)
    return importlib.import_module(TABLES[name]).TABLES[name]


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
    if name in RECORDERS:
        how = "--replace makes it anew"
    elif name in TABLES and declared(name).record == name:
        how = f"sslbook table {name} --record adds finished runs to it"
        if options.replace or not there.is_file():
            raise InputError(
                f"{there} is the record of a table's runs: sslbook table {name} --run makes them, and {how}"
            )
    else:
        raise unknown("recorded run", name, RECORDERS)
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
    study = importlib.import_module(RECORDERS[name]).STUDIES[name]
    seeds = asked or study.seeds
    print(f"Making {name} with {RECORDERS[name]}, {counted(len(seeds), 'seed')} …", flush=True)
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
        chosen = declared(name)
        from sslchapters import tables  # torch takes seconds, which a list does not need

        return tables.main(chosen, rest)
    said = {known: WORDS[printed_name(known)] for known in TABLES}
    found = [known for known in said if all(word.casefold() in f"{known} {said[known]}".casefold() for word in rest)]
    if not found:
        raise unknown("printed table", " ".join(rest), TABLES)
    print("usage: sslbook table ID [--help] [--run] …\n       sslbook table --list [WORD …]\n")
    for printed in dict.fromkeys(map(printed_name, found)):
        print(f"{printed:<8} {WORDS[printed]}")
        if ways := [known for known in found if known != printed and printed_name(known) == printed]:
            print(f"{'':<8} {', '.join(ways)}")
    return 0
