"""What each cell of Tables 3 to 10 of [tian2021iclr] changes of BYOL, read from the labels that the paper prints."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from sslbook.records.printed import batchnorm_modes, printed

NAMES = ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")
Modes = tuple[str, str]
BATCHNORM: Modes = ("normal", "normal")


@dataclass(frozen=True)
class Change:
    """A cell; the defaults are BYOL.

    predictor: its layers, 0 to 2.  ema: whether the target is a moving average.  projector, head: modes of BatchNorm's mean and
    deviation in the projector and in the predictor, None for no BatchNorm at all.  reset: epochs after which the predictor is
    drawn anew, 0 for never.  span: its weights are uniform on it, for heads of 128 outputs and 512 hidden units.
    """

    predictor: int = 2
    ema: bool = True
    projector: Modes | None = BATCHNORM
    head: Modes | None = BATCHNORM
    reset: int = 0
    span: tuple[float, float] | None = None


@cache
def changes(name: str) -> Mapping[str, Change]:
    """The cells of one of `NAMES`, by their names as :attr:`sslbook.records.printed.Printed.cells` has them."""
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    target = printed(name)
    pairs = itertools.product(*target.axes.values())
    return {cell: _change(name, *pair) for cell, pair in zip(target.cells, pairs, strict=True)}


def _change(name: str, row: str, column: str) -> Change:
    if name == "B-Tab3":
        parts = column.split(", ")
        norm = BATCHNORM if "BN" in parts else None
        return Change(2 if "P" in parts else 0, "EMA" in parts, norm, norm)
    if name == "B-Tab4":
        modes = batchnorm_modes(column)
        return Change(projector=modes, head=modes)
    if name == "B-Tab5":
        return Change(reset=0 if column == "original" else _epochs(column))
    if name == "B-Tab10":
        return Change(reset=_epochs(row), span=(-float(column), float(column)))
    low, high = json.loads(column)
    ema = name != "B-Tab7"
    return Change(
        1,
        ema,
        head=None if row.startswith("no BN") else BATCHNORM,
        reset=10 if ema else 0,
        span=(float(low), float(high)),
    )


def _epochs(label: str) -> int:
    """``T = 5``."""
    return int(label.removeprefix("T = "))
