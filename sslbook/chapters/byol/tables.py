r"""The papers' ablations of BYOL as cells to run: Tables 3, 4, 5 and 7 to 10 of [tian2021iclr].

The cells are the paper's.  Networks, images, augmentation and length are small; where a table counts epochs, so do we, and where it
gives a range of initial weights, ours is the same share of Xavier's range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sslbook import shipped
from sslbook.chapters.byol.ablation import Cell, Protocol
from sslbook.chapters.byol.siamese import NONE, Norm

TABLES = ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")

EMA = 0.97
r"""Our :math:`\gamma_{\text{ema}}`: an average over some thirty steps of the two thousand of a full run."""

PARTS = {
    "–": NONE,
    "μ": Norm("normal", "omit"),
    "σ": Norm("omit", "normal"),
    "μ, σ": Norm(),
    "μ̸": Norm("detach", "omit"),
    "σ̸": Norm("omit", "detach"),
    "μ̸, σ": Norm("detach", "normal"),
    "μ, σ̸": Norm("normal", "detach"),
    "μ̸, σ̸": Norm("detach", "detach"),
}
"""Table 4's columns; a stroke through a statistic: it is not differentiated through."""

SLOWER = 2 / 3
"""Table 10's learning rate, as a share of the other tables' (0.02 and 0.03 in the paper)."""


@dataclass(frozen=True)
class Printed:
    """A table as the paper prints it, in percent: ``mean`` and ``std`` are ``(rows, columns)``; no std where none is printed."""

    name: str
    source: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    mean: Tensor
    std: Tensor | None

    @property
    def cells(self) -> list[str]:
        """The names of its cells, row by row: the column's, or the row's and the column's where there are rows."""
        if len(self.rows) == 1:
            return list(self.columns)
        return [f"{row}; {column}" for row in self.rows for column in self.columns]


def printed(name: str) -> Printed:
    """One of :data:`TABLES`; of Table 5, the row on STL-10 alone."""
    if name not in TABLES:
        raise ValueError(f"name must be one of {', '.join(TABLES)}, got {name!r}")
    raw = shipped.printed(name)
    rows = 1 if name == "B-Tab5" else len(raw["rows"])
    mean = torch.tensor(raw["mean"][:rows], dtype=torch.float64)
    std = None if raw["std"] is None else torch.tensor(raw["std"][:rows], dtype=torch.float64)
    return Printed(name, raw["source"], tuple(raw["rows"][:rows]), tuple(raw["columns"]), mean, std)


def cells(name: str, protocol: Protocol, ema: float = EMA) -> dict[str, Cell]:
    """The cells of a table, by the names that :attr:`Printed.cells` gives them."""
    makers = {
        "B-Tab3": lambda: [Cell(p, e, norm, norm) for p in (0, 2) for norm in (NONE, Norm()) for e in (0.0, ema)],
        "B-Tab4": lambda: [Cell(2, ema, norm, norm) for norm in PARTS.values()],
        "B-Tab5": lambda: [Cell(2, ema, reset=epochs) for epochs in (0, 5, 10, 20)],
        "B-Tab7": lambda: _positive(protocol, (0.01, 0.02, 0.05), 0.0, 0),
        "B-Tab8": lambda: _positive(protocol, (0.003, 0.005, 0.007), ema, 10),
        "B-Tab9": lambda: _positive(protocol, (0.01, 0.02, 0.05), ema, 10),
        "B-Tab10": lambda: _small(protocol, (0.01, 0.02, 0.03, 0.05), ema, (3, 5, 10, 20)),
    }
    if name not in makers:
        raise ValueError(f"name must be one of {', '.join(TABLES)}, got {name!r}")
    return dict(zip(printed(name).cells, makers[name](), strict=True))


def protocol_of(name: str, protocol: Protocol) -> Protocol:
    """``protocol`` with the learning rate of the table: Table 10's is smaller than the others'."""
    return replace(protocol, rate=protocol.rate * SLOWER) if name == "B-Tab10" else protocol


def _positive(protocol: Protocol, ends: Sequence[float], ema: float, reset: int) -> list[Cell]:
    """One-layer predictors with weights uniform on [0, end], with and without BatchNorm before it."""
    scale = xavier(protocol.shape.output, protocol.shape.output) / xavier(128, 128)
    spans = [(0.0, end * scale) for end in ends]
    return [Cell(1, ema, head=head, reset=reset, span=span) for head in (Norm(), NONE) for span in spans]


def _small(protocol: Protocol, ends: Sequence[float], ema: float, resets: Sequence[int]) -> list[Cell]:
    """Two-layer predictors with weights uniform on [-end, end]; a row a reset."""
    scale = xavier(protocol.shape.output, protocol.shape.width) / xavier(128, 512)
    return [Cell(2, ema, reset=epochs, span=(-end * scale, end * scale)) for epochs in resets for end in ends]


def xavier(inputs: int, outputs: int) -> float:
    r"""Half the width of Xavier's uniform range, :math:`\sqrt{6/(\text{inputs} + \text{outputs})}`."""
    return math.sqrt(6 / (inputs + outputs))


def in_table(name: str, found: Mapping[str, Tensor]) -> Tensor:
    """Trials by cell name, ``(seeds,)`` each, in the table's shape: ``(rows, columns, seeds)``."""
    target = printed(name)
    trials = torch.stack([found[cell] for cell in target.cells])
    return trials.view(len(target.rows), len(target.columns), -1)


def above(better: Tensor, worse: Tensor) -> tuple[float, float]:
    """Mean over the seeds, and its standard error, of ``better - worse``, both ``(seeds,)`` with the same seeds."""
    gap = better - worse
    return gap.mean().item(), gap.std().item() / math.sqrt(len(gap))
