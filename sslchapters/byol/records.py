r"""The papers' ablations of BYOL on small images: Tables 3, 4, 5 and 7 to 10 of [tian2021iclr], as cells to run.

The cells are the paper's.  Networks, images, augmentation and length are small; where a table counts epochs, so do we, and where it
gives a range of initial weights, ours is the same share of Xavier's range.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sslchapters.byol.runs import MEASURES, NONE, Ablation, Norm, Recipe, Shape
from sslchapters.tables import Filled, as_html, batchnorm_modes, fill, number, printed, spread

DIGITS = Recipe()
EMA = 0.97
r"""Our :math:`\gamma_{\text{ema}}`: an average over some thirty steps of the two thousand of a full run."""
NAMES = ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")
PARTS = ("P", "EMA", "BN")
"""Table 3's parts, in the order in which its cells name them."""


def cells(name: str, protocol: Recipe) -> dict[str, Ablation]:
    """The cells of one of :data:`NAMES`, by the names that the paper's have."""
    target = printed(name)
    labels = zip(target.cells, itertools.product(*target.axes.values()), strict=True)
    return {cell: _cell(name, row, column, protocol.shape) for cell, (row, column) in labels}


def _cell(name: str, row: str, column: str, shape: Shape) -> Ablation:
    """What a cell changes of BYOL, read from the labels that the paper prints."""
    if name == "B-Tab3":
        parts = column.split(", ")
        norm = Norm() if "BN" in parts else NONE
        return Ablation(2 * ("P" in parts), EMA * ("EMA" in parts), norm, norm)
    if name == "B-Tab4":
        norm = Norm(*batchnorm_modes(column))
        return Ablation(2, EMA, norm, norm)
    if name == "B-Tab5":
        return Ablation(2, EMA, reset=0 if column == "original" else int(column.removeprefix("T = ")))

    def span(inputs: int, theirs: int, low: float, high: float) -> tuple[float, float]:
        """The same share of Xavier's range, by the numbers of inputs, as in the paper's heads of 128 outputs."""
        scale = math.sqrt((128 + theirs) / (shape.output + inputs))
        return low * scale, high * scale

    if name == "B-Tab10":
        ends = span(shape.width, 512, -float(column), float(column))
        return Ablation(2, EMA, reset=int(row.removeprefix("T = ")), span=ends)
    head = NONE if row.startswith("no BN") else Norm()
    average, reset = (0.0, 0) if name == "B-Tab7" else (EMA, 10)
    return Ablation(1, average, head=head, reset=reset, span=span(shape.output, 128, *json.loads(column)))


def after(values: Mapping[str, Mapping[str, list[list[float]]]], epoch: int = -1) -> dict[str, dict[str, Tensor]]:
    """A recorded table at one of its epochs, the last if not given: cell, measure, ``(seeds,)``."""
    return {
        cell: {m: torch.tensor(v[epoch]).double() for m, v in measured.items()} for cell, measured in values.items()
    }


def in_table(name: str, found: Mapping[str, Tensor]) -> Tensor:
    """Trials by cell name, ``(seeds,)`` each, in the table's shape: ``(rows, columns, seeds)``."""
    target = printed(name)
    return torch.stack([found[cell] for cell in target.cells]).view(*target.mean.shape, -1)


def filled(name: str, found: Mapping[str, Mapping[str, Tensor]]) -> Filled:
    """A table with what was found (cell, measure, ``(seeds,)``), accuracies in percent, not to be compared number by number."""
    scales = {"accuracy": 100.0, "rank": 1.0, "likeness": 1.0}
    trials = {m: scales[m] * in_table(name, {cell: found[cell][m] for cell in found}) for m in MEASURES if found}
    return fill(printed(name), trials, {"accuracy": 1, "rank": 1, "likeness": 3}, comparable=False)


def html_listing(table: Filled, caption: str) -> Any:
    """A row a cell: its name, the paper's number, ours of the first measure with its deviation, means of the others."""
    (first, digits), *others = table.measures.items()
    said = [axis for axis, labels in enumerate(table.axes.values()) if len(labels) > 1]
    rows = []
    for entry in table.entries:
        ours = number(*spread(entry.found.get(first, ())), digits)
        rest = (number(spread(entry.found.get(m, ()))[0], None, d) for m, d in others)
        rows.append(("; ".join(entry.at[axis] for axis in said), number(*entry.printed, digits), ours, *rest))
    return as_html(caption, ("cell", "printed, %", "ours, %", "rank", "likeness"), rows)
