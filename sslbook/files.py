"""Writing files so that a reader, or a process killed halfway, never leaves or sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A temporary path beside ``target`` that replaces it when the block ends well, and is removed when it doesn't.

    Makes the folder of ``target`` if it isn't there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    path = Path(name)
    try:
        yield path
        path.chmod(0o644)  # mkstemp makes files that only the owner reads
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write ``text`` to ``target`` through `atomic`."""
    with atomic(target) as path:
        path.write_text(text, encoding="utf-8")
