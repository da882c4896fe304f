"""The commands of the book: execute its chapters, build its pages, print them, write its notebooks, open them in JupyterLab.

Each takes the command line's options and returns an exit status: 0 if all is well, 1 if a chapter, a number or a page is not as
it should be.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sslbook.book.alone import alone
from sslbook.book.layout import Book, NoBookError, find_book
from sslbook.records import data_files
from sslbook.runtime.arguments import InputError, counted
from sslbook.runtime.atomic_io import require_writable

if TYPE_CHECKING:
    from sslbook.book.chapters import Chapter
    from sslbook.book.execute import Outcome, Setting


def execute(options: argparse.Namespace) -> int:
    """``sslbook execute``: bring chapters up to date and hold their numbers to the expected ones."""
    from sslbook.book.chapters import choose, find_chapters

    book = find_book(options.root)
    chapters = choose(find_chapters(book), options.chapters)
    if options.update_expected and options.seed != 0:
        raise InputError(f"--seed: got {options.seed}; --update-expected holds the numbers of seed 0")
    if options.spread is not None and not options.update_expected:
        raise InputError("--spread: it writes tolerances, and so needs --update-expected")
    with alone(book, "execute"):
        return _execute_and_hold(book, chapters, options)


def _execute_and_hold(book: Book, chapters: Sequence[Chapter], options: argparse.Namespace) -> int:
    outcomes = _execute(book, chapters, _setting(options), force=options.force, jobs=options.processes)
    good = [outcome.chapter for outcome in outcomes if outcome.status != "failed"]
    if options.seed != 0:
        print(f"The numbers are not compared: expected values are held for seed 0, this is seed {options.seed}.")
        agree = True
    else:
        agree = _hold(book, good, options.scale, update=options.update_expected)
    if options.spread is not None:
        from sslbook.book import spread

        for chapter in [chapter for chapter in chapters if chapter.name in good]:
            show(spread.measure(book, chapter, _setting(options), options.spread, say))
    return 0 if agree and len(good) == len(outcomes) else 1


def build(options: argparse.Namespace) -> int:
    """``sslbook build``: execute, compare, write the ledger, render, check the pages."""
    from sslbook.book.chapters import choose, find_chapters

    book = find_book(options.root)
    chapters = choose(find_chapters(book), [])
    with alone(book, "build"):
        return _build(book, chapters, options)


def _build(book: Book, chapters: Sequence[Chapter], options: argparse.Namespace) -> int:
    from sslbook.book import ledger

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
    return _render(book, options.scale, {"chapters/ledger": ledger.page(book, options.scale)})


def show_ledger(options: argparse.Namespace) -> int:
    """``sslbook ledger``: every claim with its verdict and its first check."""
    from sslbook.book import ledger

    try:
        book = find_book(options.root)
        claims, numbers = book.claims, ledger.all_numbers(book, options.scale)
    except NoBookError:  # the library alone: it has the claims, and nothing was executed
        claims, numbers = data_files.folder() / "claims.yml", []
    entries = ledger.join(ledger.read_claims(claims), numbers)
    if options.json:
        print(json.dumps(ledger.as_json(entries), indent=2, allow_nan=False))
        return 0
    width = max(len(entry.claim.id) for entry in entries)
    for entry in entries:
        first = entry.checks[0] if entry.checks else None
        number = f"  {first.value:.3g} {first.criterion}" if first else ""
        more = f" (and {len(entry.checks) - 1} more)" if len(entry.checks) > 1 else ""
        print(f"{entry.claim.id:<{width}}  {entry.claim.chapter:<13}  {entry.claim.verdict}{number}{more}")
    return 0


def show_margins(options: argparse.Namespace) -> int:
    """``sslbook margins``: how far each check's bar stands from what is measured and from the nearest rival, worst first."""
    from sslbook.book import ledger, margins

    numbers = ledger.all_numbers(find_book(options.root), options.scale)
    found = [m for m in margins.margins(numbers) if not options.chapters or m.number.chapter in options.chapters]
    if options.rivals:
        found.sort(key=lambda margin: (-margin.place, margin.rival))
    for line in margins.table(found[: options.worst]):
        print(line)
    counts = margins.loose(margin.number for margin in found)
    told = ", ".join(f"{chapter} {count}" for chapter, count in counts.items())
    print(f"Bars of more than {margins.LOOSE:.0f} times what is measured: {told or 'nothing is executed yet'}")
    return 0


def write_notebooks(options: argparse.Namespace) -> int:
    """``sslbook notebooks``: the built book's notebooks, and what they need, in a folder of their own."""
    from sslbook.book import lab

    options.no_execute = False
    if options.folder:
        require_writable(options.folder)  # before the build, which takes minutes
    if status := build(options):
        return status
    book = find_book(options.root)
    copies, kept = lab.copy_notebooks(book, options.folder or book.built / "notebooks")
    for path in copies:
        print(path)
    _tell_kept(kept)
    return 0


def write_pdf(options: argparse.Namespace) -> int:
    """``sslbook pdf``: the built book as one PDF."""
    from sslbook.book import paper

    paper.chromium()  # before the build, which takes minutes
    if options.file:
        require_writable(options.file.parent)
    options.no_execute = False
    if status := build(options):
        return status
    book = find_book(options.root)
    print(paper.write(book, options.file or book.built / "book.pdf", say))
    return 0


def open_lab(options: argparse.Namespace) -> int:
    """``sslbook lab``: copies of the notebooks, in `_build/lab`, in JupyterLab."""
    if importlib.util.find_spec("jupyterlab") is None:  # before the build, which takes minutes
        raise ModuleNotFoundError("it opens the notebooks", name="jupyterlab")
    from sslbook.book import lab

    options.no_execute = False
    book = find_book(options.root)
    if build(options):
        print("The book was not built; JupyterLab has the notebooks of the last time that it was.")
    folder = book.built / "lab"
    _, kept = lab.copy_notebooks(book, folder)
    _tell_kept(kept)
    return lab.start(folder, options.arguments)


def _tell_kept(files: Sequence[Path]) -> None:
    if files:
        print("Left as they were, since they were changed or run; remove one to have the book's again:")
        show([str(path) for path in files])


def _setting(options: argparse.Namespace) -> Setting:
    from sslbook.book.execute import CELL_SECONDS, Setting, device_kind

    seconds = options.cell_seconds or CELL_SECONDS[options.scale]
    return Setting(options.scale, options.seed, device_kind(options.device), seconds)


def _execute(
    book: Book, chapters: Sequence[Chapter], setting: Setting, *, force: bool, jobs: int | None
) -> list[Outcome]:
    from sslbook.book.execute import execute as run

    start = time.monotonic()
    outcomes = run(book, chapters, setting, force=force, jobs=jobs, say=say)
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
            show([*accepted, *regression.left_out(book, name, scale)])
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
        from sslbook.book import render

        say("Rendering …")
        start = time.monotonic()
        try:
            first = render.build(book.executed(scale), book.html, root=book.root, generated=generated)
        except render.RenderError as error:
            print(error)
            return 1
        wrong = render.problems(book, scale)
        if wrong:
            return _report("The pages have problems", wrong)
        stamp.set_current(book, mark)
        print(f"Rendered and checked in {time.monotonic() - start:.1f} s.")
    print(f"Open {first.as_uri()}")
    return 0


def _report(title: str, lines: Sequence[str]) -> int:
    print(f"{title}:")
    show(lines)
    return 1


def show(lines: Sequence[str]) -> None:
    """Print lines below what they belong to."""
    for line in lines:
        print(f"  {line}")


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)
