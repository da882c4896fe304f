r"""The papers' ablations of BYOL on small images: Tables 3, 4, 5 and 7 to 10 of [tian2021iclr].

The cells are the paper's.  Networks, images, augmentation and length are small; where a table counts epochs, so do we, and where it
gives a range of initial weights, ours is the same share of Xavier's range.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from sslbook.chapters.byol.ablation import MEASURES, Cell, Protocol, Split, cifar10, digits, run
from sslbook.chapters.byol.siamese import NONE, Norm, Shape
from sslbook.chapters.byol.views import Augmentation
from sslbook.records import Record
from sslbook.tables.ablation import NAMES, Change, Modes, changes
from sslbook.tables.command import EPOCHS, Table
from sslbook.tables.filled import Filled, fill, listing
from sslbook.tables.printed import printed

DIGITS = Protocol()
CIFAR10 = Protocol(
    shape=Shape(size=32, colours=3, channels=(16, 32, 64), width=128, output=64),
    augmentation=Augmentation(shift=0.15, zoom=0.25, rotation=0.0, gain=0.3, tint=0.2, grey=0.2, mirror=True),
    epochs=4,
    batch=128,
)
CIFAR10_IMAGES = 20_000
"""Training images: four epochs of them take a CPU half an hour for all cells and five seeds."""

EMA = 0.97
r"""Our :math:`\gamma_{\text{ema}}`: an average over some thirty steps of the two thousand of a full run."""

PARTS = ("P", "EMA", "BN")
"""Table 3's parts, in the order in which its cells name them."""

SLOWER = 2 / 3
"""Table 10's learning rate, as a share of the other tables' (0.02 and 0.03 in the paper)."""

Found = Mapping[str, Mapping[str, Tensor]]
"""Cell, measure, ``(seeds,)``."""


def cells(name: str, protocol: Protocol) -> dict[str, Cell]:
    """The cells of a table, by the names that the paper's have."""
    return {label: _cell(change, protocol.shape, EMA) for label, change in changes(name).items()}


def _cell(change: Change, shape: Shape, ema: float) -> Cell:
    span = None
    if change.span is not None:  # the same share of Xavier's range as in the paper's heads
        inputs, theirs = (shape.width, 512) if change.predictor == 2 else (shape.output, 128)
        scale = xavier(shape.output, inputs) / xavier(128, theirs)
        span = (change.span[0] * scale, change.span[1] * scale)
    average, norms = ema if change.ema else 0.0, (_norm(change.projector), _norm(change.head))
    return Cell(change.predictor, average, *norms, reset=change.reset, span=span)


def _norm(modes: Modes | None) -> Norm:
    return NONE if modes is None else Norm(*modes)


def protocol_of(name: str, protocol: Protocol) -> Protocol:
    """``protocol`` with the learning rate of the table: Table 10's is smaller than the others'."""
    return replace(protocol, rate=protocol.rate * SLOWER) if name == "B-Tab10" else protocol


def xavier(inputs: int, outputs: int) -> float:
    r"""Half the width of Xavier's uniform range, :math:`\sqrt{6/(\text{inputs} + \text{outputs})}`."""
    return math.sqrt(6 / (inputs + outputs))


def in_table(name: str, found: Mapping[str, Tensor]) -> Tensor:
    """Trials by cell name, ``(seeds,)`` each, in the table's shape: ``(rows, columns, seeds)``."""
    target = printed(name)
    return torch.stack([found[cell] for cell in target.cells]).view(*target.mean.shape, -1)


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


# ---------------------------------------------------------------------------------------------------------------------
# The tables of ``sslbook table``

IMAGES: dict[str, tuple[Callable[[], Split], Protocol]] = {
    "digits": (digits, DIGITS),
    "cifar10": (lambda: cifar10(CIFAR10_IMAGES), CIFAR10),
}


def filled(name: str, found: Found) -> Filled:
    """A table with what was found, accuracies in percent, not to be compared with the paper's number by number."""
    scales = {"accuracy": 100.0, "rank": 1.0, "likeness": 1.0}
    trials = {m: scales[m] * in_table(name, {cell: found[cell][m] for cell in found}) for m in MEASURES if found}
    return fill(printed(name), trials, {"accuracy": 1, "rank": 1, "likeness": 3}, comparable=False)


def _recall(name: str, record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return filled(name, {})
    epochs = list(record["epochs"])
    epoch = options.epochs or epochs[-1]
    if epoch not in epochs:
        raise ValueError(f"--epochs: the record holds {', '.join(map(str, epochs))}, got {epoch}; --run runs others")
    shown = filled(name, after(record["tables"][name], epochs.index(epoch)))
    return replace(shown, facts={"epochs": epoch}, seeds=record.provenance.seeds)


def _run(name: str, data: str, options: argparse.Namespace) -> Filled:
    load, protocol = IMAGES[data]
    protocol = protocol_of(name, replace(protocol, epochs=options.epochs or protocol.epochs))
    fresh = run(protocol, cells(name, protocol), options.seeds, load(), device=options.device or "cpu")
    found = {cell: {m: values[m][0] for m in MEASURES} for cell, values in fresh.items()}
    return replace(filled(name, found), facts={"epochs": protocol.epochs})


def _declared(name: str, data: str) -> Table:
    title = f"Theirs on STL-10 with a ResNet-18, ours on {data} with a small conv net"
    recall, rerun = partial(_recall, name), partial(_run, name, data)
    long = f"{name}-{data}-convnet"
    record = f"byol-{data}" if (name, data) in RECORDED else ""
    return Table(long, title, record, (0, 1, 2, 3, 4), recall, rerun, (EPOCHS,), listing)


RECORDED = {("B-Tab3", "cifar10"), *((name, "digits") for name in NAMES)}
TABLES = {table.name: table for data in IMAGES for name in NAMES for table in [_declared(name, data)]}
