"""The commands of the book: execute its chapters, build its pages, print them, write its notebooks, open them in JupyterLab.

Each takes the command line's options and returns an exit status: 0 if all is well, 1 if a check, a cell or a page failed. That a
measured number moved is told, and is an error of `regression` alone.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sslbook.book.layout import SCALES, Book, Chapter, NoBookError, Setting, choose, find_book, find_chapters
from sslbook.records import data_files
from sslbook.runtime.arguments import InputError, counted
from sslbook.runtime.atomic_io import naming, remove_parts, require_writable, write_bytes, write_text

if TYPE_CHECKING:
    from sslbook.book.regression import Comparison


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
    """``sslbook execute``: bring chapters up to date; 1 if a check or a cell failed."""
    book = find_book(options.root)
    chapters = choose(find_chapters(book), options.chapters)
    with alone(book, "execute"):
        _execute(book, chapters, options, force=options.force)
        found = _tell(book, chapters, options)
    return 0 if all(one.holds for one in found) else 1


def regression(options: argparse.Namespace) -> int:
    """``sslbook regression``: execute what changed; 1 if a check or a cell failed, or a measured number moved."""
    from sslbook.book import regression

    book = replace(find_book(options.root), out=options.out and options.out.resolve())
    chapters = choose(find_chapters(book), options.chapters)
    if options.update and "SSLBOOK_NOISE" in os.environ:
        raise InputError("--update: SSLBOOK_NOISE is set, and another machine's numbers are not to be held")
    if options.junit:
        require_writable(options.junit.parent)
    with alone(book, "regression"):
        _execute(book, chapters, options)
        found = regression.compare(book, [chapter.name for chapter in chapters], options.scale)
        for name in [one.chapter for one in found if options.update and not one.cells]:
            accepted = regression.update(book, name, options.scale)
            print(f"{book.shown(book.expected(name, options.scale))}: {counted(len(accepted), 'change')}")
            show([*map(str, accepted), *regression.left_out(book, name, options.scale)])
        if options.update:
            found = regression.compare(book, [chapter.name for chapter in chapters], options.scale)
    if options.junit:
        regression.write_junit(options.junit, found, options.scale)
    for one in found:
        if one.lines:
            _report(f"{one.chapter} ({options.scale}): {counted(len(one.lines), 'problem')}", one.lines)
    if moved := [one.chapter for one in found if one.moved]:
        print(f"If new numbers are meant: sslbook regression {' '.join(moved)} --scale {options.scale} --update")
    if any(one.lines for one in found):
        return 1
    print(f"As expected: {counted(sum(one.count for one in found), 'number')}.")
    return 0


def build(options: argparse.Namespace) -> int:
    """``sslbook build``: execute, tell what moved, write the ledger, render. The pages come in any case; 1 if a check failed."""
    return _build(options)[0]


def _build(options: argparse.Namespace) -> tuple[int, bool]:
    """As `build`; and whether the pages are those of this book."""
    from sslbook.book import ledger
    from sslbook.book.execute import is_current

    book = find_book(options.root)
    chapters = choose(find_chapters(book), [])
    with alone(book, "build"):
        if not options.no_execute:
            _execute(book, chapters, options)
        elif stale := [chapter.name for chapter in chapters if not is_current(book, chapter, Setting.of(options))]:
            print(f"Not executed, or changed since: {', '.join(stale)}. Run: sslbook execute {' '.join(stale)}")
            return 1, False
        found = _tell(book, chapters, options)
        numbers = ledger.all_numbers(book, options.scale)
        wrong = ledger.problems(ledger.join(ledger.read_claims(book.claims), numbers), numbers)
        problems, rendered = _render(book, options, found)
        wrong += problems
    if wrong:
        _report("Problems", wrong)
    return 1 if wrong or not all(one.holds for one in found) else 0, rendered


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
    """``sslbook margins``: how far each check's nearest rival is from its bar, the nearest first."""
    from sslbook.book import ledger

    numbers = ledger.all_numbers(find_book(options.root), options.scale)
    found = ledger.margins(n for n in numbers if not options.chapters or n.chapter in options.chapters)
    show(ledger.margin_lines(found, options.worst))
    return 0


def write_notebooks(options: argparse.Namespace) -> int:
    """``sslbook notebooks``: the built book's notebooks, and what they need, in a folder of their own."""
    from sslbook.book import notebooks

    if options.folder:
        require_writable(options.folder)  # before the build, which takes minutes
    status, rendered = _build(options)
    if not rendered:
        return status
    book = find_book(options.root)
    copies, kept = notebooks.copy_notebooks(book, options.folder or book.built / "notebooks")
    for path in copies:
        print(path)
    _tell_kept(kept)
    return status


def write_pdf(options: argparse.Namespace) -> int:
    """``sslbook pdf``: the built book as one PDF."""
    from sslbook.book import render

    render.chromium()  # before the build, which takes minutes
    if options.file:
        require_writable(options.file.parent)
    status, rendered = _build(options)
    if not rendered:
        return status
    book = find_book(options.root)
    print(render.write_pdf(book, options.file or book.built / "book.pdf", say))
    return status


def open_lab(options: argparse.Namespace) -> int:
    """``sslbook lab``: copies of the notebooks, in `_build/lab`, in JupyterLab."""
    if importlib.util.find_spec("jupyterlab") is None:  # before the build, which takes minutes
        raise ModuleNotFoundError("it opens the notebooks", name="jupyterlab")
    from sslbook.book import notebooks

    book = find_book(options.root)
    if not _build(options)[1]:
        print("The book was not built; JupyterLab has the notebooks of the last time that it was.")
    folder = book.built / "lab"
    _, kept = notebooks.copy_notebooks(book, folder)
    _tell_kept(kept)
    return subprocess.run([*notebooks.lab_command(folder), *options.arguments], check=False).returncode


def _tell_kept(files: Sequence[Path]) -> None:
    if files:
        print("Left as they were, since they were changed or run; remove one to have the book's again:")
        show([str(path) for path in files])


def _execute(book: Book, chapters: Sequence[Chapter], options: argparse.Namespace, *, force: bool = False) -> None:
    """Bring the chapters up to date."""
    from sslbook.book.execute import execute as run

    start = time.monotonic()
    outcomes = run(book, chapters, Setting.of(options), force=force, jobs=options.processes, say=say)
    ran = sum(outcome.status in ("executed", "failed") for outcome in outcomes)
    kept = len(outcomes) - ran
    print(f"{counted(len(outcomes), 'chapter')}: {ran} executed, {kept} kept, in {time.monotonic() - start:.1f} s.")


def _tell(book: Book, chapters: Sequence[Chapter], options: argparse.Namespace) -> list[Comparison]:
    """Compare the executed chapters with what is expected, and say what failed and what moved."""
    from sslbook.book import regression

    found = regression.compare(book, [chapter.name for chapter in chapters], options.scale, options.seed)
    for one in found:
        if not one.holds:
            _report(f"{one.chapter} ({options.scale}): FAILED", [line.splitlines()[0] for line in one.failed])
    if moved := regression.table(found):
        claims = "no claim does" if all(one.holds for one in found) else "and see above what failed"
        print(f"{regression.differ(len(moved))}; {claims}:")
        show(moved)
        print("  That costs nothing here; `make regression` is the gate that asks for each.")
    if options.seed != regression.SEED:
        print(
            f"Measured numbers are not compared: they are held for seed {regression.SEED}, this is seed {options.seed}."
        )
    elif not moved and all(one.holds for one in found):
        print(f"As expected: {counted(sum(one.count for one in found), 'number')}.")
    return found


def _render(book: Book, options: argparse.Namespace, found: Sequence[Comparison]) -> tuple[list[str], bool]:
    """Render and check the pages, unless they already are what these inputs give; their problems, and whether they are there."""
    from sslbook.book import ledger, regression
    from sslbook.book.execute import pages_mark, stamp

    generated = {"chapters/ledger": ledger.page(book, options.scale)}
    for chapter in find_chapters(book):
        if regression.HERE in chapter.text:
            here = chapter.text.replace(regression.HERE, regression.on_this_machine(found))
            generated[f"{book.chapters.name}/{chapter.name}"] = here
    notes = {one.chapter: regression.note(one) for one in found}
    mark = pages_mark(book, options.scale, generated | {name: "".join(note) for name, note in notes.items()})
    stamped, good = stamp(book, mark)
    wrong: list[str] = []
    if stamped.is_file() and stamped.read_bytes() == good:
        print("The pages are up to date.")
    else:
        from sslbook.book import render

        say("Rendering …")
        start = time.monotonic()
        strict = all(one.holds for one in found)  # a cell that failed leaves numbers out, which Sphinx warns of
        try:
            render.build(
                book.executed(options.scale), book.html, root=book.root, generated=generated, notes=notes, strict=strict
            )
        except render.RenderError as error:
            return [str(error)], False
        wrong = render.problems(book, options.scale)
        if not wrong:
            write_bytes(*stamp(book, mark))
        print(f"Rendered and checked in {time.monotonic() - start:.1f} s.")
    print(f"Open {(book.html / 'index.html').as_uri()}")
    return wrong, True


def _report(title: str, lines: Sequence[str]) -> None:
    print(f"{title}:")
    show(lines)


def show(lines: Sequence[str]) -> None:
    """Print lines below what they belong to."""
    for line in lines:
        print(f"  {line}")


say = functools.partial(print, flush=True)
