"""What changes while a run goes on: kept in its checkpoints, checked for sense, and written down at its end."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sslbook
from sslbook.networks.siamese import Siamese
from sslbook.records import data_files
from sslbook.runtime.atomic_io import write_text
from sslbook.runtime.compute import device_name
from sslbook.training.run import checkpoints, distributed
from sslbook.training.run.logs import Row
from sslbook.training.run.settings import Settings


class Diverged(FloatingPointError):
    """The loss or a weight is no finite number any more, since ``step`` or before it; the last good checkpoint stays."""

    def __init__(self, sentence: str, step: int) -> None:
        super().__init__(sentence)
        self.step = step


def row_at(rows: list[Row], epoch: int) -> Row:
    """The row of an epoch; raises ValueError, naming the epochs there are."""
    for row in rows:
        if row["epoch"] == epoch:
            return row
    raise ValueError(f"epoch must be one of {', '.join(str(row['epoch']) for row in rows) or 'none'}, got {epoch}")


@dataclass
class State:
    """What changes while a run goes on, and all of it that a checkpoint holds."""

    model: Siamese
    optimizer: torch.optim.Optimizer
    losses: Tensor
    precision: str = "float32"
    step: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def content(self, settings: Settings) -> dict[str, Any]:
        """As :func:`sslbook.training.run.checkpoints.save` takes it."""
        return {
            "settings": json.dumps(settings.as_json()),
            "hash": settings.hash(),
            "seed": settings.seed,
            "precision": self.precision,
            "step": self.step,
            "seconds": self.seconds,
            "rows": json.dumps(self.rows),
            "losses": self.losses.cpu(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, content: dict[str, Any], settings: Settings, folder: Path) -> None:
        """Go back to a checkpoint; raises ValueError if it is another run's, of another precision, or damaged within."""
        theirs, ours = (content["hash"], content["seed"]), (settings.hash(), settings.seed)
        if theirs != ours:
            raise ValueError(
                f"{folder} holds another run: settings {theirs[0]} with seed {theirs[1]}, and this is {ours[0]} with seed "
                f"{ours[1]}; choose another folder"
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
        self.step, self.seconds, self.rows = content["step"], content["seconds"], json.loads(content["rows"])
        for row in self.rows:
            if not {"epoch", "step"} <= row.keys():
                raise ValueError(f"a row must have its epoch and its step, got {reprlib.repr(row)}")
        if content["losses"].shape != self.losses.shape:
            raise ValueError(
                f"an epoch must have {len(self.losses)} losses, got the shape {tuple(content['losses'].shape)}"
            )
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


def write_result(folder: Path, settings: Settings, state: State, origin: Mapping[str, Any]) -> None:
    """``result.json``: the settings, their hash, where it was made, and a row for each epoch; only a finished run has it."""
    content = {
        "settings": settings.as_json(),
        "hash": settings.hash(),
        "seed": settings.seed,
        "seconds": round(state.seconds, 3),
        **origin,
        "rows": rows_until(state.rows, settings.epochs),
    }
    write_text(folder / checkpoints.RESULT, json.dumps(content, indent=2) + "\n")


def origin_of(device: torch.device, precision: str, capture: str) -> dict[str, Any]:
    """Where a result comes from: device, versions, commit, and how a step was computed."""
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "sslbook": sslbook.__version__,
        "commit": data_files.commit(),
        "precision": precision,
        "capture": capture,
        "processes": distributed.world(),
    }


def rows_until(rows: list[Row], epochs: int) -> list[Row]:
    """The rows of a run of so many epochs, also if the checkpoint that they come from is past them."""
    return [row for row in rows if row["epoch"] <= epochs]
