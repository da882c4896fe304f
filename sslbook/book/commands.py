"""The commands of the book: execute its chapters, build its pages, print them, write its notebooks, open them in JupyterLab.

Each takes the command line's options and returns an exit status: 0 if all is well, 1 if a chapter, a number or a page is not as
it should be.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sslbook.book.layout import SCALES, Book, Chapter, NoBookError, Setting, choose, find_book, find_chapters
from sslbook.records import data_files
from sslbook.runtime.arguments import InputError, counted
from sslbook.runtime.atomic_io import naming, remove_parts, require_writable, write_bytes, write_text


@contextmanager
def alone(book: Book, command: str) -> Iterator[None]:
    """Hold what is built of ``book`` for this process; the system lets it go if the process dies.

    Removes what a process that was killed left half-written.  Raises InputError, naming the other process, if another one holds
    it: two builds at once would leave a mixture of both; and OSError, naming the file or this folder, where nothing can be written.
    """
    from filelock import FileLock, Timeout

    book.built.mkdir(parents=True, exist_ok=True)
    lock, told = book.built / ".lock", book.built / ".lock.told"
    try:
        with naming(book.built), FileLock(lock, timeout=0):
            for folder in (book.built, *map(book.executed, SCALES), book.expected("", "").parent):
                remove_parts(folder)
            write_text(told, f"sslbook {command}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}")
            yield
    except Timeout:
        who = told.read_text(encoding="utf-8") if told.is_file() else "another process"
        raise InputError(f"{book.shown(book.built)} is being written by {who}; wait for it, or stop it") from None


def execute(options: argparse.Namespace) -> int:
    """``sslbook execute``: bring chapters up to date and hold their numbers to the expected ones."""
    book = find_book(options.root)
    chapters = choose(find_chapters(book), options.chapters)
    if options.update_expected and options.seed != 0:
        raise InputError(f"--seed: got {options.seed}; --update-expected holds the numbers of seed 0")
    if options.spread is not None and not options.update_expected:
        raise InputError("--spread: it writes tolerances, and so needs --update-expected")
    with alone(book, "execute"):
        failed = _execute(book, chapters, options, force=options.force)
        good = [chapter for chapter in chapters if chapter.name not in failed]
        agree = True
        if options.seed != 0:
            print(f"The numbers are not compared: expected values are held for seed 0, this is seed {options.seed}.")
        elif options.update_expected:
            from sslbook.book import ledger

            for name in [chapter.name for chapter in good]:
                accepted = ledger.update(book, name, options.scale)
                print(f"{book.shown(book.expected(name, options.scale))}: {counted(len(accepted), 'change')}")
                show([*accepted, *ledger.left_out(book, name, options.scale)])
            for chapter in good if options.spread is not None else []:
                show(ledger.spread(book, chapter, Setting.of(options), options.spread, say))
        else:
            agree = _agree(book, good, options.scale)
    return 0 if agree and not failed else 1


def build(options: argparse.Namespace) -> int:
    """``sslbook build``: execute, compare, write the ledger, render, check the pages."""
    from sslbook.book import ledger
    from sslbook.book.execute import is_current

    book = find_book(options.root)
    chapters = choose(find_chapters(book), [])
    with alone(book, "build"):
        if options.no_execute:
            stale = [chapter.name for chapter in chapters if not is_current(book, chapter, Setting.of(options))]
            if stale:
                print(f"Not executed, or changed since: {', '.join(stale)}. Run: sslbook execute {' '.join(stale)}")
                return 1
        elif _execute(book, chapters, options):
            return 1
        if not _agree(book, chapters, options.scale):
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
    from sslbook.book import ledger

    numbers = ledger.all_numbers(find_book(options.root), options.scale)
    found = ledger.margins(n for n in numbers if not options.chapters or n.chapter in options.chapters)
    if options.rivals:
        found.sort(key=lambda margin: (-margin.place, margin.rival))
    for line in ledger.margin_lines(found, options.worst):
        print(line)
    return 0


def write_notebooks(options: argparse.Namespace) -> int:
    """``sslbook notebooks``: the built book's notebooks, and what they need, in a folder of their own."""
    from sslbook.book import notebooks

    if options.folder:
        require_writable(options.folder)  # before the build, which takes minutes
    if status := build(options):
        return status
    book = find_book(options.root)
    copies, kept = notebooks.copy_notebooks(book, options.folder or book.built / "notebooks")
    for path in copies:
        print(path)
    _tell_kept(kept)
    return 0


def write_pdf(options: argparse.Namespace) -> int:
    """``sslbook pdf``: the built book as one PDF."""
    from sslbook.book import render

    render.chromium()  # before the build, which takes minutes
    if options.file:
        require_writable(options.file.parent)
    if status := build(options):
        return status
    book = find_book(options.root)
    print(render.write_pdf(book, options.file or book.built / "book.pdf", say))
    return 0


def open_lab(options: argparse.Namespace) -> int:
    """``sslbook lab``: copies of the notebooks, in `_build/lab`, in JupyterLab."""
    if importlib.util.find_spec("jupyterlab") is None:  # before the build, which takes minutes
        raise ModuleNotFoundError("it opens the notebooks", name="jupyterlab")
    from sslbook.book import notebooks

    book = find_book(options.root)
    if build(options):
        print("The book was not built; JupyterLab has the notebooks of the last time that it was.")
    folder = book.built / "lab"
    _, kept = notebooks.copy_notebooks(book, folder)
    _tell_kept(kept)
    return subprocess.run([*notebooks.lab_command(folder), *options.arguments], check=False).returncode


def _tell_kept(files: Sequence[Path]) -> None:
    if files:
        print("Left as they were, since they were changed or run; remove one to have the book's again:")
        show([str(path) for path in files])


def _execute(book: Book, chapters: Sequence[Chapter], options: argparse.Namespace, *, force: bool = False) -> list[str]:
    """Bring the chapters up to date; the names of those that failed."""
    from sslbook.book.execute import execute as run

    start = time.monotonic()
    outcomes = run(book, chapters, Setting.of(options), force=force, jobs=options.processes, say=say)
    ran = sum(outcome.status in ("executed", "failed") for outcome in outcomes)
    failed = [outcome.chapter for outcome in outcomes if outcome.status == "failed"]
    print(
        f"{counted(len(outcomes), 'chapter')}: {ran} executed, {len(outcomes) - ran} kept, in {time.monotonic() - start:.1f} s."
    )
    if failed:
        print(f"Failed: {', '.join(failed)}.")
    return failed


def _agree(book: Book, chapters: Sequence[Chapter], scale: str) -> bool:
    """Whether the chapters' numbers are the expected ones."""
    from sslbook.book import ledger

    compared, well = 0, True
    for name in [chapter.name for chapter in chapters]:
        count, problems = ledger.compare(book, name, scale)
        compared += count
        if problems:
            well = False
            _report(f"{name} ({scale}): {counted(len(problems), 'number')} not as expected", problems)
            print(f"  If that is meant: {ledger.command(name, scale)}")
    if well:
        print(f"As expected: {counted(compared, 'number')}.")
    return well


def _render(book: Book, scale: str, generated: dict[str, str]) -> int:
    """Render and check the pages, unless they already are what these inputs give."""
    from sslbook.book.execute import pages_mark, stamp

    first = book.html / "index.html"
    mark = pages_mark(book, scale, generated)
    stamped, good = stamp(book, mark)
    if stamped.is_file() and stamped.read_bytes() == good:
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
        write_bytes(*stamp(book, mark))
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


say = functools.partial(print, flush=True)
