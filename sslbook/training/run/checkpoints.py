"""What a run keeps in its folder: checkpoints that a process killed at any moment can't spoil, its log, and its result.

====================  ============================================================================================
step-000000390.pt     a :class:`State`, as ``torch.save`` writes it; the newest two stay
log.csv               a row an epoch, of :data:`COLUMNS`
curves/               the same for TensorBoard, if asked for
backbone.pt           the backbone's weights by name, at the end: ``torch.load(path, weights_only=True)`` opens them anywhere
result.json           the settings, their hash, where the run was made, and its rows, at the end
diverged              where a run came to no end
====================  ============================================================================================

Each file is written whole or not at all (:mod:`sslbook._files`).  Everything random in a run is a function of its seed
and the step, so no state of a generator is in a checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from sslbook._ambient import WRAPPERS, unwrapped
from sslbook._files import atomic, remove_parts, sync, write_text
from sslbook.networks.siamese import Siamese
from sslbook.training.run import distributed
from sslbook.training.run.settings import Refused, Settings, differences, stored_settings

KEPT = 2
"""Checkpoints that stay: the newest, and the one to fall back on."""
RESULT, WEIGHTS, DIVERGED, LOG, CURVES = "result.json", "backbone.pt", "diverged", "log.csv", "curves"
COLUMNS = ("epoch", "step", "lr", "loss", "knn", "rank", "linear", "linear_best", "seconds", "images_per_second")
"""``epoch`` and ``step`` are those done; ``loss`` is the epoch's mean; accuracies are shares of 1; a cell may be empty."""
WATCHED = ("embedding_cosine", "embedding_rank", "feature_cosine", "feature_rank", "view_cosine", "variance", "least")
"""Those of :mod:`sslbook.training.collapse`, and what the loss can't fall below; ``rank`` above is that of test images."""

Row = dict[str, Any]


class Busy(Refused):
    """Another process trains in the folder."""


class Diverged(FloatingPointError):
    """The loss or a weight is no finite number any more, since ``step`` or before it; the last good checkpoint stays."""

    step = 0


@dataclass
class State:
    """What changes while a run goes on, and all of it that a checkpoint holds.

    losses: those of the epoch's steps, on the device.  rows: those of the epochs done.
    """

    settings: Settings
    model: Siamese
    optimizer: torch.optim.Optimizer
    losses: Tensor
    precision: str = "float32"
    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """The state as :func:`save` takes it: settings, with their hash, and rows as JSON, all tensors by their names."""
        return {
            "settings": json.dumps(self.settings.as_json()),
            "hash": self.settings.hash(),
            "precision": self.precision,
            "step": self.step,
            "seconds": self.seconds,
            "rows": json.dumps(self.rows),
            "losses": self.losses.cpu(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, content: Mapping[str, Any], folder: Path) -> None:
        """Go back to the ``content`` of a checkpoint in ``folder``: networks, optimiser, precision, step and rows.

        Raises ValueError, with what differs, if it is another run's, and if it doesn't fit these networks and images.
        """
        theirs, ours = stored_settings(content["settings"]), self.settings
        if (theirs.hash(), theirs.seed) != (ours.hash(), ours.seed):
            told = differences(theirs.as_json(), ours.as_json())
            longer = ours.epochs > theirs.epochs and not ("; " in told or ours.seed != theirs.seed)
            why = f"its rate has fallen to 0 by epoch {theirs.epochs}; " if ours.schedule == "cosine" else ""
            hint = f"{why}a run with schedule='constant' and no ema_end can be trained on; " if longer else ""
            raise ValueError(f"{folder} holds another run ({told}); {hint}choose another folder")
        try:
            self.losses.copy_(content["losses"].view(len(self.losses)))  # copy_ alone would repeat a single one
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
        except (RuntimeError, ValueError) as error:
            why = f"of other networks or images: {' '.join(str(error).split())}"
            raise ValueError(f"{folder} holds a run {why}; choose another folder") from None
        self.precision, self.step, self.seconds = content["precision"], content["step"], content["seconds"]
        self.rows = json.loads(content["rows"])

    def require_finite(self, folder: Path) -> None:
        """Raise :class:`Diverged`, and note it in the folder, unless the epoch's losses so far and all weights are finite.

        Asked at the ends of epochs and before a checkpoint is written, so that none holds what is no number; the step that the
        error names is that of the first such loss, and the one done where a weight alone is none.
        """
        count, done = len(self.losses), (self.step - 1) % len(self.losses) + 1 if self.step else 0
        bad = (~self.losses[:done].isfinite()).nonzero()
        sizes = torch.stack(torch._foreach_norm([p.detach() for p in self.model.parameters()]))
        if not len(bad) and bool(sizes.isfinite().all()):
            return
        at, what = self.step, f"a weight is no finite number after step {self.step}"
        if len(bad):
            at = (self.step - 1) // count * count + int(bad[0]) + 1
            what = f"the loss is {self.losses[bad[0]].item()} at step {at}"
        if distributed.rank() == 0:
            write_text(folder / DIVERGED, f"diverged at step {at}\n")
        last = max(kept(folder), default=0)
        error = Diverged(
            f"{what}; " + (f"the checkpoint of step {last} stays" if last else "there is no checkpoint before it")
        )
        error.step = at
        raise error


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


def save(folder: Path, step: int, content: Mapping[str, Any]) -> Path:
    """Write the checkpoint of ``step``, whole or not at all, drop all but the last :data:`KEPT`, and return its file.

    content: as :meth:`State.content` has it; numbers and words, tensors, and containers of them.
    """
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    path = folder / f"step-{step:09d}.pt"
    with atomic(path) as part:
        part.write_bytes(buffer.getvalue())
    for old in list(kept(folder).values())[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def latest(place: Path, warn: Callable[[str], object]) -> dict[str, Any] | None:
    """What :func:`save` wrote last and can be read, on the CPU; None if there is nothing.

    place: a folder, of which ``warn`` is told by name of each file that is damaged and passed over; or a file, for which that is
    a ValueError.  A file can't run code: ``weights_only`` builds tensors and plain containers alone.
    """
    files = [place] if place.is_file() else list(kept(place).values())[::-1]
    for path in files:
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            stored_settings(content["settings"])
        except Exception as error:  # a damaged archive may fail in any way
            why = f"{path} is no whole checkpoint: {str(error) or type(error).__name__}"
            if place.is_file():
                raise ValueError(why) from None
            warn(f"{why}. {'Starting from the beginning.' if path == files[-1] else 'The one before it is used.'}")
        else:
            return content
    return None


def kept(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by their steps, the oldest first, as ``{390: .../step-000000390.pt}``, by their names alone."""
    files = sorted(path for path in folder.glob("step-*.pt") if path.is_file() and path.stem[5:].isdigit())
    return {int(path.stem[5:]): path for path in files}


def clear(folder: Path) -> None:
    """Remove what a run wrote, so that another one can begin in its folder.

    Its result goes first, and from the disk too: nobody shall take an old result for that of an interrupted new run.
    """
    (folder / RESULT).unlink(missing_ok=True)
    sync(folder)
    for path in [folder / DIVERGED, folder / WEIGHTS, folder / LOG, *kept(folder).values()]:
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / CURVES, ignore_errors=True)


# --- for people and other programs -----------------------------------------------------------------------------------


def write_result(folder: Path, state: State, origin: Mapping[str, Any]) -> None:
    """The end of a run: ``backbone.pt``, and ``result.json`` with ``origin``, where the run was made.

    Names of weights are those of the plain network: ``torch.compile`` and ``DataParallel`` put themselves between a name's words,
    also within a network.  What a module keeps beside tensors stays as it is.
    """
    net, plain = unwrapped(state.model.encoder), {}
    for name, value in net.state_dict().items():
        module, words = net, []
        for word in name.split("."):
            words += [word] * (WRAPPERS.get(type(module).__name__) != word)
            module = getattr(module, word, None)
        plain[".".join(words)] = value.detach().cpu().contiguous() if isinstance(value, Tensor) else value
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    with atomic(folder / WEIGHTS) as part:
        part.write_bytes(buffer.getvalue())
    settings = state.settings
    content = {"settings": settings.as_json(), "hash": settings.hash(), "seed": settings.seed}
    content |= {"seconds": round(state.seconds, 3), "precision": state.precision, **origin, "rows": state.rows}
    write_text(folder / RESULT, json.dumps(content, indent=2) + "\n")
    (folder / DIVERGED).unlink(missing_ok=True)


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run wrote to ``result.json``: its settings, their hash, and its ``rows``; None if there is no such file.

    Raises ValueError, which names the file, if it is damaged: a table would show a run that was made as missing.
    """
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        content["rows"] = list(content["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the result of a run ({error}); remove it and run again") from None
    return content
