"""Checkpoints that a process killed at any moment can't spoil.

A checkpoint is one file, ``step-000000390.pt``: a line with the SHA-256 of the rest, then what ``torch.save`` wrote.  It is
written whole or not at all (:mod:`sslbook.runtime.atomic_io`), and the one before it stays; so there is always a whole one.
Everything random in a run is a function of its seed and the step, so no state of a generator is in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from sslbook.runtime.atomic_io import read_bytes, remove_parts, require_parts, sync, write_bytes
from sslbook.training.run.settings import Refused

KEPT = 2
"""Checkpoints that stay: the newest, and the one to fall back on."""
MAGIC = b"sslbook-checkpoint sha256 "
PARTS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("settings", "hash", "precision", "rows"), str),
    **dict.fromkeys(("seed", "step"), int),
    "seconds": (int, float),
    "losses": Tensor,
    **dict.fromkeys(("model", "optimizer"), Mapping),
}
"""What a checkpoint holds by name, and of what kind it is; :class:`sslbook.training.run.state.State` says what it means."""
RESULT, WEIGHTS, DIVERGED = "result.json", "backbone.pt", "diverged"
"""What a run leaves at its end: its numbers, its backbone's weights by name; and what one leaves that came to no end."""


class Busy(Refused):
    """Another process trains in the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, made if need be, for this process alone; the system lets it go if the process dies.

    Files that a dead process was writing are removed.  Raises :class:`Busy` if another process holds the folder.  On a network's
    file system the lock is as good as that system's: where it has none, filelock warns and goes by a file's existence.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder / ".lock", timeout=0))
        except Timeout:
            raise Busy(f"{folder} is being trained by another process") from None
        remove_parts(folder)
        yield


def save(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write the checkpoint of ``step``, drop all but the last :data:`KEPT`, and return its file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    path = folder / f"step-{step:09d}.pt"
    write_bytes(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    for old in _files(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def save_weights(folder: Path, backbone: nn.Module) -> None:
    """``backbone.pt``: the weights by name, on the CPU, as ``torch.load(path, weights_only=True)`` opens them anywhere."""
    buffer = io.BytesIO()
    state = backbone.state_dict()  # with what a module of the caller's keeps beside its tensors
    plain = {
        name: part.detach().cpu().contiguous() if isinstance(part, Tensor) else part for name, part in state.items()
    }
    torch.save(plain, buffer)
    write_bytes(folder / WEIGHTS, buffer.getvalue())


def load(path: Path) -> dict[str, Any]:
    """What :func:`save` wrote, on the CPU, without the right to run code.

    Raises ValueError, naming the file, if it is truncated, altered or something else, or holds more than numbers and words.
    """
    line, newline, payload = read_bytes(path).partition(b"\n")
    if not line.startswith(MAGIC) or not newline:
        raise ValueError(f"{path} is no checkpoint of this program, or its beginning is lost; nothing was loaded")
    if hashlib.sha256(payload).hexdigest().encode() != line.removeprefix(MAGIC):
        raise ValueError(f"{path} is truncated or altered: its checksum is not that of its content; nothing was loaded")
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # a checksum says nothing of who made it, and a damaged pickle may fail in any way
        raise ValueError(f"{path} can't be read with weights_only: {str(error) or type(error).__name__}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no checkpoint but a {type(content).__name__}; nothing was loaded")
    try:
        require_parts(content, PARTS)
        if content["step"] < 0:
            raise ValueError(f"its step is {content['step']}")
    except ValueError as error:
        raise ValueError(f"{path} holds no checkpoint: {error}; nothing was loaded") from None
    return content


def latest(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; says by name which ones are not.  None if there is none."""
    files = _files(folder)
    for path in reversed(files):
        try:
            return load(path)
        except (OSError, ValueError) as error:
            warn(f"{error}. {'Starting from the beginning.' if path == files[0] else 'The one before it is used.'}")
    return None


def clear(folder: Path) -> None:
    """Remove what a run wrote; its result first, so that nobody takes an old result for that of an interrupted new run."""
    (folder / RESULT).unlink(missing_ok=True)
    sync(folder)
    for path in [folder / DIVERGED, folder / WEIGHTS, folder / "log.csv", *_files(folder)]:
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "curves", ignore_errors=True)


def newest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, by its name alone; None if there is none."""
    files = _files(folder)
    return int(files[-1].stem.removeprefix("step-")) if files else None


def _files(folder: Path) -> list[Path]:
    named = (path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d{9,}\.pt", path.name))
    return sorted(path for path in named if not path.is_dir())
