"""What a run keeps in its folder: checkpoints that a process killed at any moment can't spoil, and its result.

A checkpoint is one file, ``step-000000390.pt``: a line with the SHA-256 of the rest, then what ``torch.save`` wrote.  It is
written whole or not at all (:mod:`sslbook._files`), and the one before it stays; so there is always a whole one.
Everything random in a run is a function of its seed and the step, so no state of a generator is in it.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import re
import reprlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from sslbook._check import WRAPPERS, unwrapped
from sslbook._files import read_bytes, remove_parts, require_parts, sync, write_bytes, write_text
from sslbook.networks.siamese import Siamese
from sslbook.training.run.settings import Refused, Settings, differences, stored

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
"""What a checkpoint holds by name, and of what kind it is; :class:`State` says what it means."""
RESULT, WEIGHTS, DIVERGED = "result.json", "backbone.pt", "diverged"
"""What a run leaves at its end: its numbers, its backbone's weights by name; and what one leaves that came to no end."""


COLUMNS = ("epoch", "step", "lr", "loss", "knn", "rank", "linear", "linear_best", "seconds", "images_per_second")
"""``epoch`` and ``step`` are those done; ``loss`` is the epoch's mean; accuracies are shares of 1; a cell may be empty."""

Row = dict[str, Any]


class Busy(Refused):
    """Another process trains in the folder."""


class Diverged(FloatingPointError):
    """The loss or a weight is no finite number any more, since ``step`` or before it; the last good checkpoint stays."""

    def __init__(self, sentence: str, step: int) -> None:
        super().__init__(sentence)
        self.step = step


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
    net, plain = unwrapped(backbone), {}
    for name, held in net.state_dict().items():  # with what a module of the caller's keeps beside its tensors
        part, kept = net, []
        for word in name.split("."):
            kept += [word] * (WRAPPERS.get(type(part).__name__) != word)  # nor with those of wrappers further in
            part = getattr(part, word, None)
        plain[".".join(kept)] = held.detach().cpu().contiguous() if isinstance(held, Tensor) else held
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


# --- what changes while a run goes on -----------------------------------------------------------------------------


@dataclass
class State:
    """What changes while a run goes on, and all of it that a checkpoint holds.  settings: whose run it is."""

    settings: Settings
    model: Siamese
    optimizer: torch.optim.Optimizer
    losses: Tensor
    precision: str = "float32"
    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """As :func:`save` takes it."""
        return {
            "settings": json.dumps(self.settings.as_json()),
            "hash": self.settings.hash(),
            "seed": self.settings.seed,
            "precision": self.precision,
            "step": self.step,
            "seconds": self.seconds,
            "rows": json.dumps(self.rows),
            "losses": self.losses.cpu(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, content: dict[str, Any], folder: Path) -> None:
        """Go back to a checkpoint; raises ValueError if it is another run's, of another precision, or damaged within."""
        theirs, ours = (content["hash"], content["seed"]), (self.settings.hash(), self.settings.seed)
        if theirs != ours:
            told = differences(stored(content["settings"]), self.settings.as_json())
            raise ValueError(
                f"{folder} holds another run: settings {theirs[0]} with seed {theirs[1]}, and this is {ours[0]} with seed "
                f"{ours[1]}{told and f' ({told})'}; choose another folder"
            )
        if content["precision"] != self.precision:
            raise ValueError(
                f"{folder} was trained in {content['precision']} so far, and here precision is {self.precision}: go on with it "
                "on a machine like the first one, or begin anew with --again"
            )
        try:
            self._take(content)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
            why = " ".join(str(error).split())
            raise ValueError(
                f"the checkpoint in {folder} is damaged, or of other images: {why}; begin anew with --again"
            ) from None

    def _take(self, content: dict[str, Any]) -> None:
        """Take what a checkpoint holds; whatever its damage makes Python or torch raise."""
        self.step, self.seconds, self.rows = content["step"], content["seconds"], stored(content["rows"])
        for row in self.rows:
            if not {"epoch", "step"} <= row.keys():
                raise ValueError(f"a row must have its epoch and its step, got {reprlib.repr(row)}")
        if content["losses"].shape != self.losses.shape:
            raise ValueError(f"an epoch has {len(self.losses)} losses, got the shape {tuple(content['losses'].shape)}")
        self.losses.copy_(content["losses"])
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])


def check(losses: Tensor, state: State) -> None:
    """Raise :class:`Diverged` unless the epoch's losses so far and all weights are finite numbers."""
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        at = (state.step - 1) // len(state.losses) * len(state.losses) + int(bad[0]) + 1
        raise Diverged(f"the loss is {losses[bad[0]].item()} at step {at}", at)
    sizes = torch._foreach_norm([p.detach() for p in state.model.parameters()])
    if not bool(torch.stack(sizes).isfinite().all()):
        raise Diverged(f"a weight is no finite number after step {state.step}", state.step)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """All rows so far, atomically: a resumed run begins again with those of its checkpoint."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_result(folder: Path, state: State, origin: Mapping[str, Any]) -> None:
    """``result.json``: the settings, their hash, where it was made, and a row for each epoch; only a finished run has it."""
    settings = state.settings
    content = {
        "settings": settings.as_json(),
        "hash": settings.hash(),
        "seed": settings.seed,
        "seconds": round(state.seconds, 3),
        "precision": state.precision,
        **origin,
        "rows": state.rows,
    }
    write_text(folder / RESULT, json.dumps(content, indent=2) + "\n")


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run wrote; None if there is nothing; raises ValueError, naming the file, if it is damaged."""
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = stored(path.read_text(encoding="utf-8"))
        if not isinstance(content["rows"], list):
            raise TypeError("rows is no list")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the result of a run ({error}); remove it and run again") from None
    return content
