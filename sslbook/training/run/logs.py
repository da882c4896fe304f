"""What a run says of itself: rows in a CSV file, curves for TensorBoard, a line on the terminal."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbook.runtime.arguments import installing
from sslbook.runtime.atomic_io import write_text

COLUMNS = ("epoch", "step", "rate", "loss", "knn", "rank", "linear", "linear_best", "seconds", "images_per_second")
"""``epoch`` and ``step`` are those done; ``loss`` is the epoch's mean; accuracies are shares of 1; a cell may be empty."""

Row = dict[str, Any]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """All rows so far, atomically: a resumed run begins again with those of its checkpoint."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if row.get(name) is None else row[name] for name in COLUMNS} for row in rows)
    write_text(path, text.getvalue())


class Curves:
    """Curves for TensorBoard in the folder of a run, if they are asked for; raises ValueError without the package.

    first: the first step that is yet to come; points of an interrupted run from there on are not shown.
    """

    def __init__(self, folder: Path | None = None, first: int = 0) -> None:
        self._writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(f"TensorBoard is not installed: {installing('train')}") from None
        self._writer = SummaryWriter(str(folder), purge_step=first)

    def add(self, row: Row) -> None:
        """One point a column."""
        if self._writer is None:
            return
        for name, value in row.items():
            if name not in ("epoch", "step") and value is not None:
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


class Progress:
    """A line on the terminal that grows with the steps; nothing where tqdm is absent or nobody looks."""

    def __init__(self, total: int = 0, done: int = 0, name: str = "", *, visible: bool = False) -> None:
        self._bar: Any = None
        self.gone = False
        if visible and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, initial=done, desc=name, unit="step", dynamic_ncols=True)

    def step(self) -> None:
        """One step more."""
        if self._bar is not None:
            self._bar.update()

    def say(self, text: str) -> None:
        """A line above the bar; a plain line on standard error without one; ``gone`` is true once nobody reads them."""
        try:
            if self._bar is not None:
                self._bar.write(text, file=sys.stderr)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:  # a terminal that was closed, or head, which has had enough
            self.gone = True

    def show(self, values: Mapping[str, Any]) -> None:
        """The newest numbers beside the bar."""
        if self._bar is not None:
            self._bar.set_postfix({name: f"{value:.4g}" for name, value in values.items() if value is not None})

    def close(self) -> None:
        """Leave the line as it is."""
        if self._bar is not None:
            self._bar.close()


def line(row: Row) -> str:
    """A row as a line to read: ``epoch 3  loss 4.512  k-NN 38.1 %  rank 12.3  1,204 images/s``."""
    parts = [f"epoch {row['epoch']}", f"loss {row['loss']:.4f}" if row.get("loss") is not None else ""]
    for name, label in (("knn", "k-NN"), ("linear", "linear")):
        if row.get(name) is not None:
            parts.append(f"{label} {100 * row[name]:.2f} %")
    if row.get("rank") is not None:
        parts.append(f"rank {row['rank']:.1f}")
    if row.get("images_per_second"):
        parts.append(f"{row['images_per_second']:,.0f} images/s")
    return "  ".join(part for part in parts if part)
