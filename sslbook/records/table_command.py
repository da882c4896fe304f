"""The program ``sslbook table ID``: the record of a table beside the paper's numbers at once, or the table anew.

A chapter declares a table (`Table`); what the options mean is said here, once for all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sslbook.records.filled import Filled, as_json, grid, summary
from sslbook.records.store import Record, recorded
from sslbook.runtime.arguments import InputError, counted, device, positive, seed
from sslbook.runtime.compute import cores


@dataclass(frozen=True)
class Option:
    """An option of a table.  running: has a meaning with ``--run`` alone.  starts: means ``--run`` too.  more: of argparse."""

    flag: str
    help: str
    running: bool = False
    starts: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name among the parsed options."""
        return str(self.more.get("dest", self.flag.lstrip("-").replace("-", "_")))


def option(flag: str, help: str, *, running: bool = False, starts: bool = False, **more: Any) -> Option:
    """An `Option` that takes a value if ``more`` says of which kind, and is on or off otherwise."""
    return Option(flag, help, running, starts, more or {"action": "store_true"})


def choice(flag: str, help: str, *allowed: str) -> Option:
    """An option with these values, the first if it is not given; the help quotes them where one has a comma."""
    named: dict[str, Any] = {}
    if any("," in value for value in allowed):
        help, named = f"{help}: {', '.join(map(repr, allowed))}", {"metavar": "NAME"}
    return option(flag, f"{help} (default: {allowed[0]})", choices=allowed, default=allowed[0], **named)


def count(flag: str, help: str, *, running: bool = False) -> Option:
    """An option that takes a whole number of at least 1."""
    return option(flag, help, running=running, type=positive, metavar="N")


RUN = option("--run", "run it (default: show the record)")
SEEDS = option(
    "--seeds", "these seeds (default: the table's own, or those that are recorded)", type=seed, nargs="+", metavar="N"
)
DEVICE = option("--device", "cpu, cuda or cuda:N (default: the table's)", running=True, type=device, metavar="D")
COMMON = (RUN, SEEDS, DEVICE, option("--json", "as JSON, with every number"))
PROCESSES = count("--processes", "processes at once (default: one a core, or one on a GPU)", running=True)
EPOCHS = count("--epochs", "after so many epochs (default: the table's)")


@dataclass(frozen=True)
class Table:
    """A table that can be shown and run, as a chapter declares it.

    title: what is run, in a line.  record: the name of the record that holds it, empty for none.  seeds: of a run, unless others
    are given.  recall: the table from its record, which is None if there is none.  run: the table from a run.  Both get the
    options, ``run`` with ``seeds`` filled in; both raise ValueError or OSError, with a sentence, for what can't be.
    layout: `filled.grid` or `filled.listing`.  plan: what a run would do, for ``--dry-run``.  legend: what the names of rows and
    columns mean.
    """

    name: str
    title: str
    record: str
    seeds: tuple[int, ...]
    recall: Callable[[Record | None, argparse.Namespace], Filled]
    run: Callable[[argparse.Namespace], Filled]
    options: tuple[Option, ...] = ()
    layout: Callable[[Filled], str] = grid
    plan: Callable[[argparse.Namespace], str] | None = None
    legend: str = ""


def main(table: Table, arguments: Sequence[str]) -> int:
    """Show or run a table; exit status 1 if a run came to no end, 2 for what can't be done."""
    parser = parser_of(table)
    options = parser.parse_args(arguments)
    used = [known for known in table.options + COMMON if getattr(options, known.name) not in (None, False, [])]
    options.run = options.run or any(known.starts for known in used)
    options.given = list(arguments)
    for known in used:
        if known.running and not options.run:
            parser.error(f"{known.flag} is for a run: add --run")
    try:
        if table.plan is not None and options.dry_run:
            print(table.plan(_with_seeds(table, options)))
            return 0
        shown = _run(table, options) if options.run else _recalled(table, options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(as_json(shown), indent=2, allow_nan=False))
    else:
        print(text(table, shown))
    return 1 if shown.wrong else 0


def parser_of(table: Table) -> argparse.ArgumentParser:
    """What the options of a table are parsed with."""
    parser = argparse.ArgumentParser(
        prog=f"sslbook table {table.name}", description=f"{table.title}.", allow_abbrev=False
    )
    for known in (*COMMON, *table.options):
        parser.add_argument(known.flag, help=known.help, **known.more)
    return parser


def record_of(name: str) -> Record | None:
    """The record of that name; None if it was never made.  Raises ValueError if its file is damaged."""
    try:
        return recorded(name) if name else None
    except InputError:
        return None


def processes_of(options: argparse.Namespace) -> int:
    """How many processes a run takes: those asked for, else one a core, or one on a GPU."""
    return int(options.processes or (cores() if options.device in (None, "cpu") else 1))


def _with_seeds(table: Table, options: argparse.Namespace) -> argparse.Namespace:
    options.seeds = tuple(dict.fromkeys(options.seeds or table.seeds))
    return options


def _recalled(table: Table, options: argparse.Namespace) -> Filled:
    asked, record = options.seeds, record_of(table.record)
    shown = table.recall(record, options)
    if shown.origin:
        return shown
    if record is None or not any(entry.found for entry in shown.entries):
        maker = f", and sslbook record {table.record} makes its record" if record is None and table.record else ""
        return replace(shown, origin=f"No record holds it: sslbook table {table.name} --run runs it{maker}.")
    shown = replace(shown, origin=f"Recorded: {record.provenance}\nsslbook table {table.name} --run runs it again.")
    return shown if asked is None else shown.only_seeds(tuple(dict.fromkeys(asked)))


def _run(table: Table, options: argparse.Namespace) -> Filled:
    begun = time.monotonic()
    shown = table.run(_with_seeds(table, options))
    if shown.origin:
        return shown
    at_once = f" in {counted(processes_of(options), 'process')}" if hasattr(options, "processes") else ""
    where = "the CPU" if options.device in (None, "cpu") else options.device
    return replace(shown, seeds=options.seeds, origin=f"{time.monotonic() - begun:.0f} s on {where}{at_once}.")


def text(table: Table, shown: Filled) -> str:
    """The table with its title, what was run, and where our numbers come from."""
    said = [f"{name} {value}" for name, value in shown.facts.items()]
    if shown.seeds:
        said.append(f"{counted(len(shown.seeds), 'seed')}: {' '.join(map(str, shown.seeds))}")
    head = [f"{table.name}: {shown.source}.", f"{table.title}.", *["; ".join(said) + "."] * bool(said)]
    return "\n".join([*head, "", table.layout(shown), "", *filter(None, (table.legend, summary(shown), shown.origin))])
