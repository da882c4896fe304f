"""What tests of runs and of tables share: a run that costs nothing, one that is done, and patience."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sslbook.training.papers import Run
from sslbook.training.run import checkpoints

TINY = ("networks.width=2", "networks.projector_hidden=8", "networks.projector_out=8", "subset=128", "batch=64")
DIGITS = ("dataset=digits", "split=train", "pipeline=digits", "networks.channels=1", "networks.stem=cifar", *TINY)
SET = [part for change in DIGITS for part in ("--set", change)]


def done(run: Run, root: Path, rows: list[checkpoints.Row]) -> None:
    folder = run.folder(root)
    folder.mkdir(parents=True)
    (folder / checkpoints.RESULT).write_text(json.dumps({"rows": rows, "hash": run.settings.hash()}))


def until(there: Callable[[], Any]) -> Any:
    """What is there at last."""
    end = time.monotonic() + 300
    while not (found := there()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return found
