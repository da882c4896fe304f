r"""The papers' ablations of BYOL on small images: Tables 3, 4, 5 and 7 to 10 of [tian2021iclr], as cells to run.

The cells are the paper's.  Networks, images, augmentation and length are small; where a table counts epochs, so do we, and where it
gives a range of initial weights, ours is the same share of Xavier's range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sslchapters.byol.runs import MEASURES, NONE, Ablation, Norm, Recipe, Shape
from sslchapters.tables import Change, Filled, Modes, Rows, ablations, as_html, fill, number, printed, spread

DIGITS = Recipe()
EMA = 0.97
r"""Our :math:`\gamma_{\text{ema}}`: an average over some thirty steps of the two thousand of a full run."""
PARTS = ("P", "EMA", "BN")
"""Table 3's parts, in the order in which its cells name them."""


def cells(name: str, protocol: Recipe) -> dict[str, Ablation]:
    """The cells of a table, by the names that the paper's have."""
    return {label: _cell(change, protocol.shape) for label, change in ablations(name).items()}


def _cell(change: Change, shape: Shape) -> Ablation:
    def xavier(inputs: int, outputs: int) -> float:  # half the width of its uniform range
        return math.sqrt(6 / (inputs + outputs))

    def norm(modes: Modes | None) -> Norm:
        return NONE if modes is None else Norm(*modes)

    span = None
    if change.span is not None:  # the same share of Xavier's range as in the paper's heads, 512 or 128 to 128
        inputs, theirs = (shape.width, 512) if change.predictor == 2 else (shape.output, 128)
        scale = xavier(shape.output, inputs) / xavier(128, theirs)
        span = (change.span[0] * scale, change.span[1] * scale)
    average, norms = EMA if change.ema else 0.0, (norm(change.projector), norm(change.head))
    return Ablation(change.predictor, average, *norms, reset=change.reset, span=span)


def together(found: Mapping[str, Tensor], one: str, other: str) -> Tensor:
    """What two of Table 3's parts (P, EMA, BN) give together beyond what each gives alone, a mean over the third: ``(seeds,)``."""
    (third,) = {*PARTS} - {one, other}

    def cell(*parts: str) -> Tensor:
        return found[", ".join(part for part in PARTS if part in parts) or "–"]

    def gain(*rest: str) -> Tensor:
        return cell(one, other, *rest) - cell(one, *rest) - cell(other, *rest) + cell(*rest)

    return (gain() + gain(third)) / 2


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


def html_table(caption: str, heads: Sequence[str], rows: Rows) -> Any:
    """A table for the page; its rows begin with their names, and a minus is no hyphen."""
    from IPython.display import HTML  # a command that prints the table needs none

    return HTML(re.sub(r"(?<![\w.])-(?=\d)", "−", as_html(caption, heads, rows)))


def html_listing(table: Filled, caption: str) -> Any:
    """A row a cell: its name, the paper's number, ours of the first measure with its deviation, means of the others."""
    (first, digits), *others = table.measures.items()
    said = [axis for axis, labels in enumerate(table.axes.values()) if len(labels) > 1]
    rows = []
    for entry in table.entries:
        ours = number(*spread(entry.found.get(first, ())), digits)
        rest = (number(spread(entry.found.get(m, ()))[0], None, d) for m, d in others)
        rows.append(("; ".join(entry.at[axis] for axis in said), number(*entry.printed, digits), ours, *rest))
    return html_table(caption, ("cell", "printed, %", "ours, %", "rank", "likeness"), rows)
