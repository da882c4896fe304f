"""Table 1 and Figures 4, 5, 9, 10 and 11 of [tian2023] as cells to train, and the numbers that Table 1 prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from sslbook import shipped
from sslbook.chapters.modulation.reference import ACTIVATIONS
from sslbook.chapters.modulation.training import PRINTED, Cell, Protocol

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
        kinds = {"InfoNCE": "info_nce", "quadratic loss": "quadratic"}
        return {
            f"{a}, {label}": Cell(activation=a, loss=kind) for label, kind in kinds.items() for a in ("linear", "relu")
        }
    if name in ("C-Fig9", "C-Fig10"):
        return {
            a.replace("_", " "): Cell(activation=a, loss="info_nce" if name == "C-Fig9" else "quadratic")
            for a in ACTIVATIONS
        }
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

    def only(self, patterns: int) -> Printed:
        """The rows of one ``P``, ``(betas, columns)``."""
        j = PATTERNS.index(patterns)
        return Printed(self.source, self.mean[:, j], self.std[:, j])


@cache
def printed() -> Printed:
    """The numbers of Table 1."""
    raw = shipped.printed("C-Tab1")
    mean, std = (torch.tensor(raw[key], dtype=torch.float64) for key in ("mean", "std"))
    return Printed(raw["source"], mean, std)


Found = Mapping[Cell, Mapping[str, Tensor]]


def in_table(name: str, found: Found, score: str) -> Tensor:
    """One score of what :func:`sslbook.chapters.modulation.training.run` found, ``(betas, patterns, labels, seeds)``; Figure 5's is
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
    gap, errors = _apart(trials, target.mean, target.std, seeds, trials.ndim - 1)
    return gap.item(), errors.item()


def standard_error(trials: Tensor, target: Printed, seeds: int = 3) -> float:
    """The standard error of the difference of the two means, mean over the cells; NaN for one trial."""
    return _errors(trials, target.std, seeds).mean().item()


def chance(trials: Tensor, target: Printed, draws: int, seed: int, seeds: int = 3) -> tuple[Tensor, Tensor]:
    """The two numbers of :func:`distance`, ``(draws,)`` each, where nothing but chance differs: a perfect reproduction's.

    Ours and theirs are drawn from one normal distribution a cell, with the printed mean and the mean of the two variances;
    theirs are rounded as the table is.  Errors that are estimated from three seeds make the second number larger than 1.
    """
    draw = torch.Generator().manual_seed(seed)
    scale = ((trials.var(-1) + target.std.square()) / 2).sqrt()[..., None]

    def drawn(count: int) -> Tensor:
        noise = torch.randn(draws, *trials.shape[:-1], count, generator=draw, dtype=trials.dtype)
        return target.mean[..., None] + scale * noise

    own, theirs = drawn(trials.shape[-1]), drawn(seeds)
    mean, std = (part.mul(100).round() / 100 for part in (theirs.mean(-1), theirs.std(-1)))
    return _apart(own, mean, std, seeds, trials.ndim - 1)


def _errors(trials: Tensor, std: Tensor, seeds: int) -> Tensor:
    own = trials.std(-1) if trials.shape[-1] > 1 else torch.full(trials.shape[:-1], torch.nan, dtype=trials.dtype)
    return (own.square() / trials.shape[-1] + std.clamp_min(0.005).square() / seeds).sqrt()


def _apart(trials: Tensor, mean: Tensor, std: Tensor, seeds: int, cells: int) -> tuple[Tensor, Tensor]:
    """:func:`distance` over the last ``cells`` axes of the means."""
    gap, over = (trials.mean(-1) - mean).abs(), tuple(range(-cells, 0))
    return gap.mean(over), (gap / _errors(trials, std, seeds)).square().mean(over).sqrt()


def wanted_cells(names: Sequence[str]) -> list[Cell]:
    """The cells of several tables, each once."""
    return list(dict.fromkeys(cell for name in names for cell in cells(name).values()))
