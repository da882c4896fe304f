"""Checkpoints that a process killed at any moment can't spoil.

A checkpoint is one file, ``step-000000390.pt``: a line with the SHA-256 of the rest, then what ``torch.save`` wrote.  It is
written beside its place, brought to the disk, and renamed, and the one before it stays; so there is always a whole one.
Everything random in a run is a function of its seed and the step, so no state of a generator is in it.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

KEPT = 2
"""Checkpoints that stay: the newest, and the one to fall back on."""
MAGIC = b"sslbook-checkpoint sha256 "


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut; makes its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp makes files that only the owner reads
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def save(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of ``step``, drop all but the last :data:`KEPT`, and return its file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    path = folder / f"step-{step:09d}.pt"
    write_bytes(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    for old in [*_files(folder)[:-KEPT], *folder.glob(".step-*")]:  # the latter: what a killed process was writing
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    """What :func:`save` wrote, on the CPU, without the right to run code.

    Raises ValueError, naming the file, if it is truncated, altered or something else.
    """
    line, newline, payload = path.read_bytes().partition(b"\n")
    if not line.startswith(MAGIC) or not newline:
        raise ValueError(f"{path} is no checkpoint of this program, or its beginning is lost; nothing was loaded")
    if hashlib.sha256(payload).hexdigest().encode() != line.removeprefix(MAGIC):
        raise ValueError(f"{path} is truncated or altered: its checksum is not that of its content; nothing was loaded")
    content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return content


def latest(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; says by name which ones are not.  None if there is none."""
    for path in reversed(_files(folder)):
        try:
            return load(path)
        except ValueError as error:
            say(f"{error}. The checkpoint before it is used.")
    return None


def clear(folder: Path) -> None:
    """Remove all checkpoints of a folder."""
    for path in _files(folder):
        path.unlink()


def newest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, by its name alone; None if there is none."""
    files = _files(folder)
    return int(files[-1].stem.removeprefix("step-")) if files else None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d{9,}\.pt", path.name))
