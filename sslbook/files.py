"""Writing files so that nobody sees or is left with half of one: no reader, no process killed halfway, nor after a power cut."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".part"
"""How the name ends of a file that is being written; a process that is killed leaves one, with a dot in front."""


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A temporary path beside ``target`` that replaces it when the block ends well, and is removed when it doesn't.

    Makes the folder of ``target`` if it isn't there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=PART)
    os.close(handle)
    path = Path(name)
    try:
        yield path
        path.chmod(0o644)  # mkstemp makes files that only the owner reads
        sync(path)  # before the rename: a name must not reach the disk before its content
        path.replace(target)
    except OSError as error:
        if error.filename is None:  # a full disk doesn't say whose
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise
    finally:
        path.unlink(missing_ok=True)
    sync(target.parent)  # the rename itself


def write_bytes(target: Path, content: bytes) -> None:
    """Write ``content`` to ``target`` through `atomic`."""
    with atomic(target) as path:
        path.write_bytes(content)


def write_text(target: Path, text: str) -> None:
    """Write ``text``, in UTF-8, to ``target`` through `atomic`."""
    write_bytes(target, text.encode())


def sync(path: Path) -> None:
    """Bring to the disk what a file holds, or which files a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
