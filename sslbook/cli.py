"""The command ``sslbook``: execute the chapters, build the book, read its ledger, write its notebooks, train, run its benchmarks.

Exit status: 0 if all is well; 1 if a chapter, a number or a page is not as it should be; 2 if the command itself
can't be used as given; 130 after Ctrl-C. What takes long is imported by the command that needs it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import sslbook
from sslbook.arguments import InputError, counted, positive, seed, unknown
from sslbook.book.layout import DEVICES, SCALES, Book, find_book

if TYPE_CHECKING:
    from sslbook.book.chapters import Chapter
    from sslbook.book.execute import Outcome, Setting
    from sslbook.records import Record

TRAINING = ("pooch", "tqdm", "tensorboard", "submitit")
"""Packages of the extra ``train``; what else may be missing is of the extra ``book``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"sslbook: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads has had enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "sslbook":
            raise
        extra = "train" if error.name.partition(".")[0] in TRAINING else "book"
        print(
            f"sslbook: {error.name} is not installed; this command needs: pip install 'sslbook[{extra}]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("sslbook: stopped", file=sys.stderr)
        return 130


def execute(options: argparse.Namespace) -> int:
    """``sslbook execute``: bring chapters up to date and hold their numbers to the expected ones."""
    from sslbook.book.chapters import choose, find_chapters

    book = find_book(options.root)
    chapters = choose(find_chapters(book), options.chapters)
    if options.update_expected and options.seed != 0:
        raise InputError(f"--seed: got {options.seed}; --update-expected holds the numbers of seed 0")
    outcomes = _execute(book, chapters, _setting(options), force=options.force, jobs=options.processes)
    good = [outcome.chapter for outcome in outcomes if outcome.status != "failed"]
    if options.seed != 0:
        print(f"The numbers are not compared: expected values are held for seed 0, this is seed {options.seed}.")
        agree = True
    else:
        agree = _hold(book, good, options.scale, update=options.update_expected)
    return 0 if agree and len(good) == len(outcomes) else 1


def build(options: argparse.Namespace) -> int:
    """``sslbook build``: execute, compare, write the ledger, render, check the pages."""
    from sslbook.book import ledger, machines
    from sslbook.book.chapters import choose, find_chapters

    book = find_book(options.root)
    chapters = choose(find_chapters(book), [])
    setting = _setting(options)
    if options.no_execute:
        stale = _stale(book, chapters, setting)
        if stale:
            print(f"Not executed, or changed since: {', '.join(stale)}. Run: sslbook execute {' '.join(stale)}")
            return 1
    else:
        outcomes = _execute(book, chapters, setting, force=False, jobs=options.processes)
        if any(outcome.status == "failed" for outcome in outcomes):
            return 1
    if not _hold(book, [chapter.name for chapter in chapters], options.scale, update=False):
        return 1
    numbers = ledger.all_numbers(book, options.scale)
    wrong = ledger.problems(ledger.join(ledger.read_claims(book.claims), numbers), numbers)
    if wrong:
        return _report("The ledger and the notebooks contradict each other", wrong)
    return _render(book, options.scale, {"chapters/ledger": ledger.page(book, options.scale), **machines.pages(book)})


def show_ledger(options: argparse.Namespace) -> int:
    """``sslbook ledger``: every claim with its verdict and its first check."""
    from sslbook.book import ledger

    book = find_book(options.root)
    entries = ledger.join(ledger.read_claims(book.claims), ledger.all_numbers(book, options.scale))
    if options.json:
        print(json.dumps(ledger.as_json(entries), indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    width = max(len(entry.claim.id) for entry in entries)
    for entry in entries:
        first = entry.checks[0] if entry.checks else None
        number = f"  {first.value:.3g} {first.criterion}" if first else ""
        more = f" (and {len(entry.checks) - 1} more)" if len(entry.checks) > 1 else ""
        print(f"{entry.claim.id:<{width}}  {entry.claim.chapter:<13}  {entry.claim.verdict}{number}{more}")
    return 0


def write_notebooks(options: argparse.Namespace) -> int:
    """``sslbook notebooks``: the built book's notebooks, and what they need, in a folder of their own."""
    from sslbook.book import lab

    options.no_execute = False
    if status := build(options):
        return status
    book = find_book(options.root)
    for path in lab.copy_notebooks(book, options.folder or book.built / "notebooks"):
        print(path)
    return 0


def open_lab(options: argparse.Namespace) -> int:
    """``sslbook lab``: the notebooks in JupyterLab, where a saved edit goes into its chapter's source."""
    from sslbook.book import lab

    options.no_execute = False
    book = find_book(options.root)
    if build(options):
        print("The book was not built; JupyterLab has the notebooks of the last time that it was.")
    return lab.start(book, options.arguments)


def record(options: argparse.Namespace) -> int:
    """``sslbook record``: tell of the record that there is, or make it, and with ``--replace`` anew."""
    from sslbook import records
    from sslbook.catalogue import RECORDERS

    if options.name not in RECORDERS:
        raise unknown("recorded run", options.name, RECORDERS)
    recorder = RECORDERS[options.name]
    there = records.path_of(options.name)
    if there.is_file() and not options.replace:
        return _tell(records.recorded(options.name), there, options.seeds)
    seeds = tuple(options.seeds or recorder.seeds)
    _say(f"Making {options.name} with {recorder.maker}, {counted(len(seeds), 'seed')} …")
    start = time.monotonic()
    try:
        values = recorder(seeds)
    except FileNotFoundError as error:
        raise InputError(str(error)) from None
    command = f"sslbook record {options.name} --seeds {' '.join(map(str, seeds))}"
    path = records.save_record(options.name, values, seeds=seeds, seconds=time.monotonic() - start, command=command)
    print(f"Written: {path}")
    return 0


def _tell(there: Record, path: Path, seeds: Sequence[int] | None) -> int:
    """Where a record is, where it comes from, and what is not as it was; raises InputError if other seeds are asked for."""
    if seeds is not None and tuple(seeds) != there.provenance.seeds:
        held, asked = (" ".join(map(str, some)) for some in (there.provenance.seeds, seeds))
        raise InputError(f"--seeds: {path} holds {held}, got {asked}; --replace makes it anew")
    print(f"{path}\nRecorded: {there.provenance}")
    _list(there.provenance.differences())
    print("It stays as it is; --replace makes it anew.")
    return 0


def table(options: argparse.Namespace) -> int:
    """``sslbook table``: a table's record beside the paper's numbers, or the table anew, with the rest of the command line."""
    from sslbook import catalogue

    name, *rest = options.arguments or ["--list"]
    if name in ("--list", "--help", "-h"):
        print(f"usage: sslbook table ID [--help] [--run] …\n\nID: {', '.join(catalogue.TABLES)}")
        return 0
    _wait_passively()
    declared = catalogue.table(name)
    from sslbook.tables import command

    return command.main(declared, rest)


def train(options: argparse.Namespace) -> int:
    """``sslbook train``: run a preset with the rest of the command line."""
    _wait_passively()
    from sslbook.chapters.training import command

    return command.main(options.arguments)


def gpu(options: argparse.Namespace) -> int:
    """``sslbook gpu``: work through what the book wants of a GPU, with the rest of the command line."""
    from sslbook.bench.gpu import show

    return show.main(options.arguments)


def bench(options: argparse.Namespace) -> int:
    """``sslbook bench``: run one benchmark with the rest of the command line."""
    _wait_passively()
    import sslbook.bench

    modules = pkgutil.iter_modules(sslbook.bench.__path__)
    names = [module.name for module in modules if not (module.ispkg or module.name.startswith("_"))]
    if options.name not in names:
        raise unknown("benchmark", options.name, names)
    return int(importlib.import_module(f"sslbook.bench.{options.name}").main(options.arguments) or 0)


def _wait_passively() -> None:
    """Threads that wait must not take the cores from those that work; OpenMP reads it when torch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _setting(options: argparse.Namespace) -> Setting:
    from sslbook.book.execute import CELL_SECONDS, Setting, device_kind

    seconds = options.cell_seconds or CELL_SECONDS[options.scale]
    return Setting(options.scale, options.seed, device_kind(options.device), seconds)


def _execute(
    book: Book, chapters: Sequence[Chapter], setting: Setting, *, force: bool, jobs: int | None
) -> list[Outcome]:
    from sslbook.book.execute import execute as run

    start = time.monotonic()
    outcomes = run(book, chapters, setting, force=force, jobs=jobs, say=_say)
    ran = sum(outcome.status in ("executed", "failed") for outcome in outcomes)
    failed = [outcome.chapter for outcome in outcomes if outcome.status == "failed"]
    print(
        f"{counted(len(outcomes), 'chapter')}: {ran} executed, {len(outcomes) - ran} kept, in {time.monotonic() - start:.1f} s."
    )
    if failed:
        print(f"Failed: {', '.join(failed)}.")
    return outcomes


def _stale(book: Book, chapters: Sequence[Chapter], setting: Setting) -> list[str]:
    from sslbook.book.execute import is_current

    return [chapter.name for chapter in chapters if not is_current(book, chapter, setting)]


def _hold(book: Book, chapters: Sequence[str], scale: str, *, update: bool) -> bool:
    """Compare the chapters' numbers with the expected ones, or make them the expected ones; whether all is well."""
    from sslbook.book import regression

    if update:
        for name in chapters:
            accepted = regression.update(book, name, scale)
            print(f"{book.shown(book.expected(name, scale))}: {counted(len(accepted), 'change')}")
            _list([*accepted, *regression.left_out(book, name, scale)])
        return True
    compared = [regression.compare(book, name, scale) for name in chapters]
    for result in compared:
        if result.problems:
            count = counted(len(result.problems), "number")
            _report(f"{result.chapter} ({scale}): {count} not as expected", result.problems)
            print(f"  If that is meant: {result.command}")
    if all(not result.problems for result in compared):
        print(f"As expected: {counted(sum(result.compared for result in compared), 'number')}.")
        return True
    return False


def _render(book: Book, scale: str, generated: dict[str, str]) -> int:
    """Render and check the pages, unless they already are what these inputs give."""
    from sslbook.book import stamp

    first = book.html / "index.html"
    mark = stamp.fingerprint(book, scale, generated)
    if stamp.is_current(book, mark):
        print("The pages are up to date.")
    else:
        from sslbook.book import htmlcheck, render

        _say("Rendering …")
        start = time.monotonic()
        try:
            first = render.build(book.executed(scale), book.html, root=book.root, generated=generated)
        except render.RenderError as error:
            print(error)
            return 1
        wrong = htmlcheck.check_html(book, scale, book.html)
        if wrong:
            return _report("The pages have problems", wrong)
        stamp.set_current(book, mark)
        print(f"Rendered and checked in {time.monotonic() - start:.1f} s.")
    print(f"Open {first.as_uri()}")
    return 0


def _report(title: str, lines: Sequence[str]) -> int:
    print(f"{title}:")
    _list(lines)
    return 1


def _list(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"  {line}")


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sslbook", description=sslbook.__doc__)
    parser.add_argument("--version", action="version", version=f"sslbook {sslbook.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: object, help: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help, parents=parents)
        added.set_defaults(run=run)
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

    added = command("execute", execute, "Execute chapters whose inputs changed, and compare their numbers.", running)
    added.add_argument("chapters", nargs="*", metavar="CHAPTER", help="chapters to execute (default: all)")
    added.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of every generator (default: 0)")
    added.add_argument("--force", action="store_true", help="execute even what has not changed")
    added.add_argument("--update-expected", action="store_true", help="make the new numbers the expected ones")

    added = command("build", build, "Execute, compare, render and check the whole book.", running)
    added.add_argument(
        "--no-execute", action="store_true", help="stop if a chapter is not executed, instead of executing it"
    )
    added.set_defaults(seed=0)

    added = command("ledger", show_ledger, "Show every claim, its verdict and its check.")
    added.add_argument("--json", action="store_true", help="as a JSON list")
    added.add_argument("--scale", choices=SCALES, default="quick", help="whose numbers to show (default: quick)")

    added = command("notebooks", write_notebooks, "Build the book and write its chapters as notebooks.", running)
    added.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="where to (default: _build/notebooks)")
    added.set_defaults(seed=0)

    added = command("lab", open_lab, "Build the book and open its chapters in JupyterLab.", running)
    added.add_argument("arguments", nargs="*", metavar="…", help="JupyterLab's own arguments, after --")
    added.set_defaults(seed=0)

    told = "Tell of a recorded run, or make it where there is none."
    added = commands.add_parser("record", help=told, description=told)
    added.add_argument("name", metavar="NAME", help="a file of data/results, such as covariance-cifar10")
    added.add_argument("--seeds", type=seed, nargs="+", metavar="N", help="these seeds (default: the record's)")
    added.add_argument("--replace", action="store_true", help="make it anew where there is one")
    added.set_defaults(run=record)

    # To this parser nothing is an option, so that also --list and --help, with no name before them, reach the command's own.
    added = commands.add_parser("train", help="Train a preset of the image tables.", add_help=False, prefix_chars="\0")
    added.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="a preset and its options")
    added.set_defaults(run=train)

    added = commands.add_parser("gpu", help="All that the book wants of a GPU.", add_help=False, prefix_chars="\0")
    added.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="options")
    added.set_defaults(run=gpu)

    told = "Show a printed table beside its record, or run it."
    added = commands.add_parser("table", help=told, add_help=False, prefix_chars="\0")
    added.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="a table and its options")
    added.set_defaults(run=table)

    added = commands.add_parser("bench", help="Run a benchmark.", description="Run a benchmark.")
    added.add_argument("name", metavar="NAME", help="a module of sslbook.bench, such as covariance")
    added.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="the benchmark's own arguments")
    added.set_defaults(run=bench)
    return parser


def _folder(text: str) -> Path:
    folder = Path(text).resolve()
    if not (folder / "_toc.yml").is_file() or not (folder / "chapters").is_dir():
        raise argparse.ArgumentTypeError(f"{text}: a folder with _toc.yml and chapters/ is needed")
    return folder
