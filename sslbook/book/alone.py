"""One command at a time in what a book is built into."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from sslbook.book.layout import SCALES, Book
from sslbook.runtime.arguments import InputError
from sslbook.runtime.atomic_io import naming, remove_parts, write_text


@contextmanager
def alone(book: Book, command: str) -> Iterator[None]:
    """Hold what is built of ``book`` for this process; the system lets it go if the process dies.

    Removes what a process that was killed left half-written.  Raises InputError, naming the other process, if another one holds
    it: two builds at once would leave a mixture of both; and OSError, naming the file or this folder, where nothing can be written.
    """
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
