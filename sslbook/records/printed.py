"""A table as its paper prints it, and what its labels say."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sslbook.records import data_files

STL = ("STL-10, 100 epochs",)
PARTS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "A-Tab4": ("A-Tab6", {"latents": ("s",), "columns": ("initial", "converged")}),
    "B-Tab5": ("B-Tab5", {"rows": STL}),  # its second row is on ImageNet
}
"""Tables that are a part of a file of `data/printed`: the file, and the labels that they keep."""
FORMS = {"lower": "U[{:g}, 1]", "widths": "{} units", "betas": "β = {}", "patterns": "P = {}"}
"""How labels that are numbers are written, by axis."""


@dataclass(frozen=True)
class Printed:
    """A table: ``mean`` has an axis for each of ``axes``, float64, NaN where nothing is printed; so has ``std``, if any."""

    name: str
    source: str
    axes: Mapping[str, tuple[Any, ...]]
    mean: Tensor
    std: Tensor | None = None

    @property
    def columns(self) -> tuple[Any, ...]:
        """The labels of the last axis."""
        return tuple(self.axes.values())[-1]

    @property
    def cells(self) -> list[str]:
        """The names of its cells, row by row: a label of each axis that has more than one."""
        return ["; ".join(texts) for texts in itertools.product(*(t for t in self.texts().values() if len(t) > 1))]

    def numbers(self) -> list[tuple[float | None, float | None]]:
        """Mean and deviation of each cell, row by row; None for what is not printed."""
        means = [None if math.isnan(value) else value for value in self.mean.flatten().tolist()]
        return list(zip(means, [None] * len(means) if self.std is None else self.std.flatten().tolist(), strict=True))

    def texts(self) -> dict[str, tuple[str, ...]]:
        """The labels of each axis as they are written."""
        return {
            axis: tuple(FORMS.get(axis, "{}").format(label) for label in found) for axis, found in self.axes.items()
        }

    def only(self, **chosen: Any) -> Printed:
        """The part with these labels of these axes; a tuple keeps its axis, one label, as in ``patterns=10``, takes it away."""
        found = self
        for axis, wanted in chosen.items():
            found = found._along(axis, wanted if isinstance(wanted, tuple) else (wanted,), isinstance(wanted, tuple))
        return found

    def _along(self, axis: str, wanted: tuple[Any, ...], keep: bool) -> Printed:
        place, index = list(self.axes).index(axis), [self.axes[axis].index(label) for label in wanted]
        axes = {name: wanted if name == axis else labels for name, labels in self.axes.items() if keep or name != axis}
        parts = [self.mean, self.std]
        parts = [part if part is None else part.index_select(place, torch.tensor(index)) for part in parts]
        mean, std = (part if keep or part is None else part.squeeze(place) for part in parts)
        assert mean is not None
        return replace(self, axes=axes, mean=mean, std=std)


@cache
def printed(name: str) -> Printed:
    """A table by the name of its claim, such as ``A-Tab6``; raises ValueError, naming those there are, for another."""
    file, part = PARTS.get(name, (name, {}))
    raw = data_files.printed_file(file)
    keys = [axis if axis in raw else f"{axis}s" for axis in re.findall(r"\[(\w+)\]", raw["axes"])]
    mean, std = (None if raw[key] is None else torch.tensor(raw[key], dtype=torch.float64) for key in ("mean", "std"))
    assert mean is not None
    return Printed(name, raw["source"], {key: tuple(raw[key]) for key in keys}, mean, std).only(**part)


def unprinted(name: str, source: str, axes: Mapping[str, tuple[Any, ...]]) -> Printed:
    """A table of which no number is printed, or a figure."""
    return Printed(name, source, axes, torch.full([len(labels) for labels in axes.values()], math.nan).double())


def batchnorm_modes(label: str) -> tuple[str, str]:
    """Modes of BatchNorm's mean and deviation by a column such as ``μ̸, σ``: a stroke detaches a statistic, no letter omits it."""
    parts = label.split(", ")
    mean, std = (("detach" if f"{sign}\u0338" in parts else "normal" if sign in parts else "omit") for sign in "μσ")
    return mean, std


# --- what each cell of Tables 3 to 10 of [tian2021iclr] changes of BYOL, read from the labels that the paper prints ---

ABLATIONS = ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")
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
def ablations(name: str) -> Mapping[str, Change]:
    """The cells of one of `ABLATIONS`, by their names as :attr:`Printed.cells` has them."""
    if name not in ABLATIONS:
        raise ValueError(f"name must be one of {', '.join(ABLATIONS)}, got {name!r}")
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
