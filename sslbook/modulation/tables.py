"""Table 1 and Figures 4, 5, 9, 10 and 11 of [tian2023] as cells to train, and the numbers that Table 1 prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from sslbook import shipped
from sslbook.modulation.reference import ACTIVATIONS
from sslbook.modulation.training import PRINTED, Cell, Protocol

BETAS = (1, 2, 5, 10)
PATTERNS = (1, 3, 5, 10)

PARTS = {
    "μ̸, σ̸": ("detach", "detach"),
    "μ̸, σ": ("detach", "normal"),
    "μ, σ̸": ("normal", "detach"),
    "μ, σ": ("normal", "normal"),
}
"""Table 1's columns, with the modes of mean and deviation; a stroke: not differentiated through."""

ZETAS = (2.0, 5.0, 10.0)
"""Figure 11's lengths."""

NAMES = ("C-Tab1", "C-Fig4", "C-Fig9", "C-Fig10", "C-Fig11", "C-Fig5")
"""A table with printed numbers, four figures of scores, and one of weights."""

VARIANTS = {
    "released": Protocol(),
    "released, 20 outputs": Protocol(outputs=20),
    "released, rate of the text": Protocol(rate=PRINTED.rate),
    "printed": PRINTED,
}
"""Which experiment: the released code's, with the options of its instructions or the default number of outputs, or the text's."""


def curves(name: str) -> dict[str, Cell]:
    """The curves of a figure, or the columns of Table 1: what a cell is at ``P = 1`` and :math:`\\beta = 1`, by its label.

    Raises ValueError for a name that is not one of :data:`NAMES`.
    """
    if name == "C-Tab1":
        return {label: Cell(mean=mean, std=std, zeta=10.0) for label, (mean, std) in PARTS.items()}
    if name == "C-Fig4":
        kinds = {"InfoNCE": "infonce", "quadratic loss": "quadratic"}
        return {
            f"{a}, {label}": Cell(activation=a, loss=kind) for label, kind in kinds.items() for a in ("linear", "relu")
        }
    if name in ("C-Fig9", "C-Fig10"):
        return {a: Cell(activation=a, loss="infonce" if name == "C-Fig9" else "quadratic") for a in ACTIVATIONS}
    if name == "C-Fig11":
        plain, normed = Cell(mean="omit", std="omit"), Cell()
        labels = {"BN": normed, "no BN": plain}
        return {f"{label}, ζ = {z:g}": replace(cell, zeta=z) for z in ZETAS for label, cell in labels.items()}
    if name == "C-Fig5":
        return {a: Cell(activation=a) for a in ("relu", "linear")}
    raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")


def cells(name: str) -> dict[tuple[int, int, str], Cell]:
    """All cells of a table or figure, by :math:`\\beta`, ``P`` and label; Figure 5 has :math:`\\beta = 5` and ``P = 3`` alone."""
    sizes = [(5, 3)] if name == "C-Fig5" else [(beta, p) for beta in BETAS for p in PATTERNS]
    made = curves(name)
    return {(b, p, label): replace(cell, beta=b, patterns=p) for b, p in sizes for label, cell in made.items()}


def protocol_of(name: str, protocol: Protocol) -> Protocol:
    """``protocol`` with eight tokens for Figure 5, as its caption has it; unchanged for the others."""
    curves(name)  # knows the names
    return replace(protocol, tokens=8) if name == "C-Fig5" else protocol


@dataclass(frozen=True)
class Printed:
    """Table 1 as the paper prints it: ``mean`` and ``std`` over three seeds, ``(betas, patterns, columns)``."""

    source: str
    mean: Tensor
    std: Tensor


@cache
def printed() -> Printed:
    """The numbers of Table 1."""
    raw = shipped.printed("C-Tab1")
    mean, std = (torch.tensor(raw[key], dtype=torch.float64) for key in ("mean", "std"))
    return Printed(raw["source"], mean, std)


Found = Mapping[Cell, Mapping[str, Tensor]]


def in_table(name: str, found: Found, score: str) -> Tensor:
    """One score of what :func:`sslbook.modulation.training.run` found, ``(betas, patterns, labels, seeds)``; Figure 5's is
    ``(1, 1, 2, seeds)``."""
    wanted = cells(name)
    shape = (1, 1) if name == "C-Fig5" else (len(BETAS), len(PATTERNS))
    rows: Tensor = torch.stack([found[cell][score] for cell in wanted.values()])
    return rows.view(*shape, -1, rows.shape[1])


def spread(trials: Tensor) -> tuple[Tensor, Tensor | None]:
    """Mean and sample standard deviation over the last axis; None for the latter where there is one trial."""
    return trials.mean(-1), trials.std(-1) if trials.shape[-1] > 1 else None


def distance(trials: Tensor, target: Printed, seeds: int = 3) -> tuple[float, float]:
    """How far Table 1's means lie from ours: the mean absolute difference, and the root mean square in standard errors.

    The errors are of both means, ours over the trials and theirs over ``seeds``; a printed spread of 0.00 counts as half its
    last digit.
    """
    mean, std = spread(trials)
    gap = (mean - target.mean).abs()
    if std is None:
        return gap.mean().item(), float("nan")
    error = std.square() / trials.shape[-1] + target.std.clamp_min(0.005).square() / seeds
    return gap.mean().item(), (gap.square() / error).mean().sqrt().item()


def wanted_cells(names: Sequence[str]) -> list[Cell]:
    """The cells of several tables, each once."""
    return list(dict.fromkeys(cell for name in names for cell in cells(name).values()))
