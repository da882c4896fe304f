"""The command ``sslbook``: execute, build and read the book, write its notebooks, train, inspect, run its benchmarks.

Exit status: 0 if all is well; 1 if a check, a chapter or a page failed, or for `regression` a number moved; 2 if the command itself
can't be used as given; 130 after Ctrl-C, and 128 with its number for another signal that ends a process of a run.
What takes long is imported by the command that needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import sslbook
from sslbook.book import commands
from sslbook.book.layout import DEVICES, SCALES
from sslbook.runtime import compute
from sslbook.runtime.arguments import InputError, counted, folded, installing, positive, seed, unknown
from sslbook.runtime.atomic_io import require_writable

if TYPE_CHECKING:
    from sslbook.records.store import Record

TITLE = "sslbook: the library behind *What Survives Augmentation*, an executable book on self-supervised learning."
EXTRAS = {**dict.fromkeys(("pooch", "tqdm", "tensorboard", "submitit"), "train"), "jupyterlab": "book,lab"}
"""The extra, or extras, that a package is of; what else may be missing is of ``book``."""
PROGRAMS = {
    "train": ("sslbook.training.presets.command", "Train a preset of the image tables."),
    "inspect": ("sslbook.inspect.command", "Report on a trained network, layer by layer."),
    "gpu": ("sslbook.bench.gpu", "All that the book wants of a GPU."),
}
"""Commands that read the rest of their line by themselves: the module whose ``main`` does, and a line of help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    with compute.heard():
        try:
            _open_streams()
            try:
                options = _parser().parse_args(arguments)
                status = int(options.run(options))
            except SystemExit:  # argparse's way out
                sys.stdout.flush()
                raise
            sys.stdout.flush()  # what can't be written is told below, not by Python at its end
            return status
        except InputError as error:
            return _refused(str(error))
        except OSError as error:
            if isinstance(error, BrokenPipeError):  # whoever reads has had enough, as head has
                return _ended(128 + compute.BROKEN_PIPE)
            where = f"{error.filename}: " if error.filename is not None else ""
            return _refused(f"{where}{error.strerror or error}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "sslbook":
                raise
            extra = EXTRAS.get(error.name.partition(".")[0], "book")
            return _refused(f"{error.name} is not installed; this command needs: {installing(extra)}")
        except KeyboardInterrupt as error:
            return _refused(str(error) or "stopped", compute.status(error))


def _open_streams() -> None:
    """Let both streams show another letter for one that the terminal lacks, and go nowhere where they are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (to the end)
        elif isinstance(stream, io.TextIOWrapper):  # not a notebook's
            stream.reconfigure(errors="replace")


def _refused(sentence: str, status: int = 2) -> int:
    with contextlib.suppress(OSError):  # of a terminal that was closed
        print(f"sslbook: {sentence}", file=sys.stderr)
    return _ended(status)


def _ended(status: int) -> int:
    """The status, whatever can't be written any more: Python, at its end, would try again, and end with a status of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def record(options: argparse.Namespace) -> int:
    """``sslbook record``: tell of the record that there is, or make it, and with ``--replace`` anew."""
    from sslbook.experiments import catalogue
    from sslbook.records import store

    if options.name not in catalogue.RECORDERS:
        return _record_of_table(options)
    study = catalogue.study(options.name)
    there = store.path_of(options.name)
    if there.is_file() and not options.replace:
        return _tell(store.recorded(options.name), there, options.seeds, "--replace makes it anew")
    store.require_source_tree()
    require_writable(there.parent)
    seeds = tuple(dict.fromkeys(options.seeds or study.seeds))
    commands.say(f"Making {options.name} with {catalogue.RECORDERS[options.name]}, {counted(len(seeds), 'seed')} …")
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
    from sslbook.experiments import catalogue
    from sslbook.records import store

    name = options.name
    if name not in catalogue.TABLES or catalogue.table(name).record != name:
        raise unknown("recorded run", name, catalogue.RECORDERS)
    there, adds = store.path_of(name), f"sslbook table {name} --record adds finished runs to it"
    if options.replace or not there.is_file():
        raise InputError(f"{there} is the record of a table's runs: sslbook table {name} --run makes them, and {adds}")
    return _tell(store.recorded(name), there, options.seeds, adds)


def _tell(there: Record, path: Path, seeds: Sequence[int] | None, more: str) -> int:
    """Where a record is, where it comes from, and what is not as it was; raises InputError if other seeds are asked for.

    more: what changes it.
    """
    if seeds is not None and tuple(dict.fromkeys(seeds)) != there.provenance.seeds:
        held, asked = (" ".join(map(str, some)) for some in (there.provenance.seeds, seeds))
        raise InputError(f"--seeds: {path} holds {held}, got {asked}; {more}")
    print(f"{path}\nRecorded: {there.provenance}")
    commands.show(there.provenance.differences())
    print(f"It stays as it is; {more}.")
    return 0


def table(options: argparse.Namespace) -> int:
    """``sslbook table``: a table's record beside the paper's numbers, or the table anew, with the rest of the command line."""
    from sslbook.experiments import catalogue

    name, *rest = options.arguments or ["--list"]
    if name in ("--list", "--help", "-h"):
        found = [known for known in catalogue.TABLES if all(folded(word) in folded(known) for word in rest)]
        if not found:
            raise unknown("printed table", " ".join(rest), catalogue.TABLES)
        print("usage: sslbook table ID [--help] [--run] …\n       sslbook table --list [WORD …]\n")
        for printed in dict.fromkeys("-".join(known.split("-")[:2]) for known in found):
            print(", ".join(known for known in found if known == printed or known.startswith(f"{printed}-")))
        return 0
    _wait_passively()
    declared = catalogue.table(name)
    from sslbook.records import tables as command

    return command.main(declared, rest)


def program(options: argparse.Namespace) -> int:
    """``sslbook train``, ``inspect`` and ``gpu``: programs of their own, with the rest of the command line."""
    _wait_passively()
    return int(importlib.import_module(PROGRAMS[options.command][0]).main(options.arguments))


def bench(options: argparse.Namespace) -> int:
    """``sslbook bench``: run one benchmark with the rest of the command line."""
    _wait_passively()
    import sslbook.bench

    names = [module.name for module in pkgutil.iter_modules(sslbook.bench.__path__) if module.name != "gpu"]
    if options.name not in names:
        raise unknown("benchmark", options.name, names)
    return int(importlib.import_module(f"sslbook.bench.{options.name}").main(options.arguments) or 0)


def _wait_passively() -> None:
    """Threads that wait must not take the cores from those that work; OpenMP reads it when torch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sslbook", description=TITLE)
    parser.add_argument("--version", action="version", version=f"sslbook {sslbook.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: object, help: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        added = subparsers.add_parser(name, help=help, description=help, parents=parents)
        added.set_defaults(run=run, seed=0, no_execute=False)  # unless an argument of the command says so
        added.add_argument(
            "--root", type=_folder, help="the book's folder (default: the one around the working folder)"
        )
        return added

    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--scale", choices=SCALES, default="quick", help="size of the experiments (default: quick)")
    running.add_argument("--device", choices=DEVICES, default="auto", help="what computes (default: auto)")
    running.add_argument(
        "--processes", type=positive, metavar="N", help="chapters at once (default: one a core; one on CUDA)"
    )
    running.add_argument("--cell-seconds", type=positive, metavar="S", help="the longest that one cell may take")

    added = command(
        "execute", commands.execute, "Execute chapters whose inputs changed, and tell which numbers moved.", running
    )
    added.add_argument("chapters", nargs="*", metavar="CHAPTER", help="chapters to execute (default: all)")
    added.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of every generator (default: 0)")
    added.add_argument("--force", action="store_true", help="execute even what has not changed")
    added = command("regression", commands.regression, "Hold the chapters to their claims and stored numbers.", running)
    added.add_argument("chapters", nargs="*", metavar="CHAPTER", help="chapters to hold (default: all)")
    added.add_argument("--junit", type=Path, metavar="FILE", help="write what was compared as a JUnit file")
    added.add_argument("--update", action="store_true", help="accept: make the new numbers the stored ones")
    added.add_argument("--out", type=Path, metavar="DIR", help="where the executed chapters lie (default: _build)")

    added = command(
        "build", commands.build, "Execute, render and check the whole book, and tell which numbers moved.", running
    )
    added.add_argument(
        "--no-execute", action="store_true", help="stop if a chapter is not executed, instead of executing it"
    )

    added = command("ledger", commands.show_ledger, "Show every claim, its verdict and its check.")
    added.add_argument("--json", action="store_true", help="as a JSON list")
    added.add_argument("--scale", choices=SCALES, default="quick", help="whose numbers to show (default: quick)")

    added = command("margins", commands.show_margins, "Show how near each check's nearest rival comes to passing.")
    added.add_argument("chapters", nargs="*", metavar="NAME", help="chapters to show (default: all)")
    added.add_argument("--worst", type=positive, default=30, metavar="N", help="how many checks to list (default: 30)")
    added.add_argument("--scale", choices=SCALES, default="quick", help="whose numbers to show (default: quick)")

    added = command(
        "notebooks", commands.write_notebooks, "Build the book and write its chapters as notebooks.", running
    )
    added.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="where to (default: _build/notebooks)")

    added = command("pdf", commands.write_pdf, "Build the book and print it into one PDF, by Chromium.", running)
    added.add_argument("file", nargs="?", type=Path, metavar="FILE", help="where to (default: _build/book.pdf)")

    added = command("lab", commands.open_lab, "Build the book and open copies of its chapters in JupyterLab.", running)
    added.add_argument("arguments", nargs="*", metavar="…", help="JupyterLab's own arguments, after --")

    told = "Tell of a recorded run, or make it where there is none."
    added = subparsers.add_parser("record", help=told, description=told)
    added.add_argument("name", metavar="NAME", help="a file of data/results, such as covariance-cifar10")
    added.add_argument(
        "--seeds", type=seed, nargs="+", metavar="N", help="these seeds (default: those of the book's record)"
    )
    added.add_argument("--replace", action="store_true", help="make it anew where there is one")
    added.set_defaults(run=record)

    programs = [(name, help) for name, (_, help) in PROGRAMS.items()]
    for name, help in (*programs, ("table", "Show a printed table beside its record, or run it.")):
        # To these nothing is an option, so that also --list and --help, with no name before them, reach the command's own.
        added = subparsers.add_parser(name, help=help, add_help=False, prefix_chars="\0")
        added.add_argument("arguments", nargs=argparse.REMAINDER)
        added.set_defaults(run=table if name == "table" else program)

    added = subparsers.add_parser("bench", help="Run a benchmark.", description="Run a benchmark.")
    added.add_argument("name", metavar="NAME", help="a module of sslbook.bench, such as covariance")
    added.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="the benchmark's own arguments")
    added.set_defaults(run=bench)
    return parser


def _folder(text: str) -> Path:
    folder = Path(text).resolve()
    if not (folder / "_toc.yml").is_file() or not (folder / "chapters").is_dir():
        raise argparse.ArgumentTypeError(f"{text}: a folder with _toc.yml and chapters/ is needed")
    return folder
