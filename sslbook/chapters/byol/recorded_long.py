"""The chapter's longer records, each kept part by part: predictors drawn anew after steps or never, and what an average is worth.

``sslbook record NAME --replace`` makes one again, and goes on where it was stopped: ``byol-resets``, ``byol-average`` or
``byol-average-cifar10``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sslbook.chapters.byol import tables
from sslbook.chapters.byol.ablation import Cell, Protocol, Split, cifar10, digits, run
from sslbook.chapters.byol.parts import part
from sslbook.chapters.byol.tables import CIFAR10, CIFAR10_IMAGES, DIGITS
from sslbook.chapters.byol.trained import probes, probes_and_terms

NEVER, RARE, OFTEN = "never", "T = 400", "T = 50"
RESETS = {RARE: 400, OFTEN: 50, NEVER: 0}
"""Epochs of the digits, 21 steps each: 8,400 steps are some ten epochs of STL-10, the papers' T."""

MOMENTS = {RARE: (0, 10, 50, 100, 200, 400, 410, 450), OFTEN: (0, 50, 100, 200, 400), NEVER: (0, 10, 50, 100, 200, 400)}
"""Up to its first reset ``T = 400`` is also what no reset gives; a measurement comes before the reset of its moment."""

AVERAGES = (0.0, 0.97, 0.996)
DIGITS_AT, CIFAR10_AT = (0, 5, 10, 20, 50, 100), (0, 2, 5, 10, 20, 40)


def resets_values(
    seeds: Sequence[int],
    *,
    protocol: Protocol = DIGITS,
    data: Split | None = None,
    resets: Mapping[str, int] = RESETS,
    moments: Mapping[str, Sequence[int]] = MOMENTS,
) -> dict[str, Any]:
    """Tables 8 and 9 with resets by steps, and Table 7 for as long; Theorem 8's terms along each run."""
    data = data or digits()
    found: dict[str, Any] = {}
    for name, reset in resets.items():
        tabled = ("B-Tab8", "B-Tab9") if reset else ("B-Tab7",)
        all_cells = {label: cell for table in tabled for label, cell in tables.cells(table, protocol).items()}
        found[name] = {}
        for norm in ("BN", "no BN"):
            chosen = {
                label: replace(c, reset=reset) for label, c in all_cells.items() if label.startswith(f"{norm} in")
            }
            at = moments[name]
            length = replace(protocol, epochs=max(at))

            def make(chosen: dict[str, Cell] = chosen, length: Protocol = length, at: Sequence[int] = at) -> Any:
                return run(length, chosen, seeds, data, at=at, measure=probes_and_terms(length))

            found[name] |= part("byol-resets", f"{name} {norm} {_listed(seeds)}", make)
    return {
        "axes": "runs[resets][cell][measure][moment][seed]",
        "epochs": {name: list(at) for name, at in moments.items()},
        "steps": len(data.train) // protocol.batch,
        "runs": found,
    }


def average_values(
    seeds: Sequence[int], *, protocol: Protocol = DIGITS, data: Split | None = None, at: Sequence[int] = DIGITS_AT
) -> dict[str, Any]:
    """Predictor and BatchNorm with and without a moving average, on the digits."""
    data = data or digits()
    cells = _averages()
    found: dict[str, Any] = {}
    for names in (["0"], [name for name in cells if name != "0"]):
        chosen = {name: cells[name] for name in names}

        def make(chosen: dict[str, Cell] = chosen) -> Any:
            return run(replace(protocol, epochs=max(at)), chosen, seeds, data, at=at, measure=probes)

        found |= part("byol-average", f"{' '.join(names)} {_listed(seeds)}", make)
    return {"axes": "averages[average][measure][epoch][seed]", "epochs": list(at), "averages": found}


def average_cifar10_values(
    seeds: Sequence[int],
    *,
    protocol: Protocol = CIFAR10,
    data: Split | None = None,
    at: Sequence[int] = CIFAR10_AT,
    device: str | None = None,
) -> dict[str, Any]:
    """The same on CIFAR-10 for 40 epochs: two hours of two cores, a cell and a seed at a time."""
    data = data or cifar10(CIFAR10_IMAGES)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    length, cells = replace(protocol, epochs=max(at)), _averages()
    found: dict[str, dict[str, Any]] = {}
    for seed in seeds:  # seed by seed, so that what there is after an hour can be compared
        for name, cell in cells.items():

            def make(name: str = name, cell: Cell = cell, seed: int = seed) -> Any:
                return run(length, {name: cell}, [seed], data, at=at, measure=probes, device=device)[name]

            one = part("byol-average-cifar10", f"{name} {seed}", make)
            rows = found.setdefault(name, {measure: [[] for _ in at] for measure in one})
            for measure, values in one.items():
                for row, value in zip(rows[measure], values, strict=True):
                    row.extend(value)
    return {
        "axes": "averages[average][measure][epoch][seed]",
        "epochs": list(at),
        "images": len(data.train),
        "batch": protocol.batch,
        "averages": found,
    }


def _averages() -> dict[str, Cell]:
    return {f"{ema:g}": Cell(2, ema) for ema in AVERAGES}


def _listed(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))
