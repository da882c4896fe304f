"""The commands of the book: execute its chapters, build its pages, print them, write its notebooks, open them in JupyterLab.

Each takes the rest of the command line and returns an exit status: 0 if all is well, 1 if a check, a cell or a page failed. That a
measured number moved is told, and is an error of `regression` alone: 3, if nothing failed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bookbuild.layout import Book, Chapter, Setting, choose, find_book, find_chapters
from sslbook._check import InputError, counted, positive, seed
from sslbook._files import remove_parts, write_text
from sslchapters.data_files import ROOT, book_folder, require_writable
from sslchapters.ledger import join, read_claims
from sslchapters.running import BOOK, DEVICES, SCALES, device_kind

if TYPE_CHECKING:
    from bookbuild.regression import Comparison

say = functools.partial(print, flush=True)


def show(title: str, lines: Iterable[object]) -> None:
    """Print lines below what they belong to."""
    print("\n  ".join([title, *map(str, lines)]))


def _parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The options of every command that executes chapters."""
    parser = argparse.ArgumentParser(prog=f"sslbook {name}", description=doc)
    parser.set_defaults(seed=0)  # unless an argument of the command says so
    parser.add_argument("--root", type=book_folder, help=ROOT)
    parser.add_argument("--scale", choices=SCALES, default="quick", help="size of the experiments (default: quick)")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="what computes (default: auto)")
    parser.add_argument(
        "--processes", type=positive, metavar="N", help="chapters at once (default: one a core; one on CUDA)"
    )
    return parser


@contextmanager
def alone(book: Book) -> Iterator[None]:
    """Hold what is built of ``book`` for this process; the system lets it go if the process dies.

    Removes what a process that was killed left half-written.  Raises InputError if another process holds it: two builds at once
    would leave a mixture of both; and OSError where nothing can be written.
    """
    from filelock import FileLock, Timeout

    book.built.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(book.built / ".lock", timeout=0):
            for folder in (book.built, *map(book.executed, SCALES), book.expected("", "").parent):
                remove_parts(folder)
            yield
    except Timeout:
        where = book.shown(book.built)
        raise InputError(f"{where} is being written by another command; wait for it, or stop it") from None


def execute(arguments: Sequence[str]) -> int:
    """Execute chapters whose inputs changed, and tell which numbers moved."""
    parser = _parser("execute", execute.__doc__)
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="chapters to execute (default: all)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of every generator (default: 0)")
    parser.add_argument("--force", action="store_true", help="execute even what has not changed")
    options = parser.parse_args(arguments)
    book = find_book(options.root)
    chapters = choose(find_chapters(book), options.chapters)
    with alone(book):
        _execute(book, chapters, options, force=options.force)
        found = _tell(book, chapters, options)
    return 0 if all(one.holds for one in found) else 1


def regression(arguments: Sequence[str]) -> int:
    """Hold the chapters to their claims and stored numbers."""
    parser = _parser("regression", regression.__doc__)
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="chapters to hold (default: all)")
    parser.add_argument("--update", action="store_true", help="accept: make the new numbers the stored ones")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the executed chapters lie (default: _build)")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write what was compared as a JUnit file")
    options = parser.parse_args(arguments)
    from bookbuild import regression as held

    book = replace(find_book(options.root), out=options.out and options.out.resolve())
    chapters = choose(find_chapters(book), options.chapters)
    names, scale = [chapter.name for chapter in chapters], options.scale
    if options.update and "SSLBOOK_NOISE" in os.environ:
        raise InputError("--update: SSLBOOK_NOISE is set, and another machine's numbers are not to be held")
    if options.junit:
        require_writable(options.junit.parent)  # before the chapters run, which takes minutes
    with alone(book):
        _execute(book, chapters, options)
        found = held.compare(book, names, scale)
        if options.update:
            for one in [one for one in found if one.holds]:
                held.update(book, one, scale)
                show(f"{book.shown(book.expected(one.chapter, scale))}: {counted(len(one.moved), 'change')}", one.moved)
            found = held.compare(book, names, scale)
    if options.junit:
        held.write_junit(options.junit, found, scale)
    for one in [one for one in found if one.lines]:
        show(f"{one.chapter} ({scale}): {counted(len(one.lines), 'problem')}:", one.lines)
    if failed := [one.chapter for one in found if options.update and not one.holds]:
        print(f"Not accepted, as something failed there: {', '.join(failed)}")
    if moved := [one.chapter for one in found if one.moved and one.holds]:
        print(f"If new numbers are meant: sslbook regression {' '.join(moved)} --scale {scale} --update")
    if any(one.lines for one in found):
        return 3 if all(one.holds for one in found) else 1
    print(f"As expected: {counted(sum(len(one.numbers) for one in found), 'number')}.")
    return 0


def build(arguments: Sequence[str]) -> int:
    """Execute, render and check the whole book, and tell which numbers moved."""
    return _build(_parser("build", build.__doc__).parse_args(arguments))[0]


def show_margins(arguments: Sequence[str]) -> int:
    """Show how near each check's nearest rival comes to passing."""
    parser = argparse.ArgumentParser(prog="sslbook margins", description=show_margins.__doc__)
    parser.add_argument("chapters", nargs="*", metavar="NAME", help="chapters to show (default: all)")
    options = parser.parse_args(arguments)
    from bookbuild import ledger

    numbers = ledger.all_numbers(find_book(), "quick")
    found = ledger.margins(n for n in numbers if not options.chapters or n.chapter in options.chapters)
    rows = (f"{times:9.3g}  {n.chapter}: {n.name} {n.criterion}; {nearest}" for times, nearest, n in found[:30])
    show("  rival/bar  check and its nearest rival, the 30 nearest", rows)
    return 0


def write_notebooks(arguments: Sequence[str]) -> int:
    """Build the book and write its chapters as notebooks."""
    status, book = _build(_parser("notebooks", write_notebooks.__doc__).parse_args(arguments))
    if book:
        _copy(book, "notebooks")
    return status


def write_pdf(arguments: Sequence[str]) -> int:
    """Build the book and print it into one PDF, by Chromium."""
    options = _parser("pdf", write_pdf.__doc__).parse_args(arguments)
    from bookbuild import pdf

    pdf.chromium()  # before the build, which takes minutes
    status, book = _build(options)
    if book:
        print(pdf.write_pdf(book, book.built / "book.pdf", say))
    return status


def open_lab(arguments: Sequence[str]) -> int:
    """Build the book and open copies of its chapters in JupyterLab."""
    parser = _parser("lab", open_lab.__doc__)
    parser.add_argument("arguments", nargs="*", metavar="…", help="JupyterLab's own arguments, after --")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("jupyterlab") is None:  # before the build, which takes minutes
        raise ModuleNotFoundError("it opens the notebooks", name="jupyterlab")
    from bookbuild import notebooks

    if not _build(options)[1]:
        print("The book was not built; JupyterLab has the notebooks of the last time that it was.")
    folder = _copy(find_book(options.root), "lab")
    return subprocess.run([*notebooks.lab_command(folder), *options.arguments], check=False).returncode


def _copy(book: Book, name: str) -> Path:
    """Copy the readers' notebooks into a folder of what is built, and tell which files are left as they were."""
    from bookbuild import notebooks

    folder = book.built / name
    copies, kept = notebooks.copy_notebooks(book, folder)
    show(f"Notebooks in {folder}:", [path.name for path in copies])
    if kept:
        show("Left as they were, since they were changed or run; remove one to have the book's again:", kept)
    return folder


def _execute(book: Book, chapters: Sequence[Chapter], options: argparse.Namespace, *, force: bool = False) -> None:
    """Bring the chapters up to date."""
    from bookbuild.execute import execute as run

    start, setting = time.monotonic(), Setting(options.scale, options.seed, device_kind(options.device))
    outcomes = run(book, chapters, setting, force=force, jobs=options.processes, say=say)
    ran = sum(outcome.status in ("executed", "failed") for outcome in outcomes)
    took = time.monotonic() - start
    print(f"{counted(len(outcomes), 'chapter')}: {ran} executed, {len(outcomes) - ran} kept, in {took:.1f} s.")


def _tell(book: Book, chapters: Sequence[Chapter], options: argparse.Namespace) -> list[Comparison]:
    """Compare the executed chapters with what is expected, and say what failed and what moved."""
    from bookbuild import regression as held

    found = held.compare(book, [chapter.name for chapter in chapters], options.scale, options.seed)
    for one in [one for one in found if not one.holds]:
        show(f"{one.chapter} ({options.scale}): FAILED:", [line.splitlines()[0] for line in one.failed])
    if moved := held.table(found):
        claims = "no claim does" if all(one.holds for one in found) else "and see above what failed"
        differ = f"{counted(len(moved), 'number')} {'differs' if len(moved) == 1 else 'differ'} on this machine"
        show(f"{differ}; {claims}:", moved)
        print("  That costs nothing here; `make regression` is the gate that asks for each.")
    if options.seed != BOOK[1]:
        print(f"Measured numbers are not compared: they are held for seed {BOOK[1]}, this is seed {options.seed}.")
    elif not moved and all(one.holds for one in found):
        print(f"As expected: {counted(sum(len(one.numbers) for one in found), 'number')}.")
    return found


def _build(options: argparse.Namespace) -> tuple[int, Book | None]:
    """As `build`; and the book, if there are pages of it, which are rendered anew unless those there were made of the same."""
    from bookbuild import ledger, regression
    from bookbuild.execute import inputs_of_pages

    book, scale = find_book(options.root), options.scale
    chapters = choose(find_chapters(book), [])
    with alone(book):
        _execute(book, chapters, options)
        found = _tell(book, chapters, options)
        numbers = ledger.all_numbers(book, scale)
        wrong = ledger.problems(join(read_claims(book.claims), numbers), numbers)
        generated = {"chapters/ledger": ledger.page(book, scale)}
        for chapter in [chapter for chapter in find_chapters(book) if regression.HERE in chapter.text]:
            here = chapter.text.replace(regression.HERE, regression.on_this_machine(found))
            generated[f"{book.chapters.name}/{chapter.name}"] = here
        failed = {one.chapter: one.failed for one in found}
        stamp, inputs = book.html / ".made_of", inputs_of_pages(book, scale, [generated, failed])
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == inputs:
            print("The pages are up to date.")
        else:
            from bookbuild import render

            say("Rendering …")
            start = time.monotonic()
            try:
                render.build(book.executed(scale), book.html, root=book.root, generated=generated, failed=failed)
            except render.RenderError as error:
                show("Problems:", [*wrong, str(error)])
                return 1, None
            write_text(stamp, inputs)
            print(f"Rendered in {time.monotonic() - start:.1f} s.")
    print(f"Open {(book.html / 'index.html').as_uri()}")
    if wrong:
        show("Problems:", wrong)
    return int(bool(wrong or any(failed.values()))), book
