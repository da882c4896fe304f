"""The chapter's longer records, each kept part by part: predictors drawn anew seldom or never, and what an average is worth.

``sslbook record NAME --replace`` makes one again, and goes on where it was stopped: ``byol-resets``, ``byol-average`` or
``byol-average-cifar10``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sslbook.chapters.byol import tables
from sslbook.chapters.byol.ablation import Cell, Protocol, Split, cifar10, digits, run
from sslbook.chapters.byol.tables import CIFAR10, CIFAR10_IMAGES, DIGITS
from sslbook.chapters.byol.trained import probes, probes_and_terms
from sslbook.records import kept, parts_folder, rounded

RESETS = {"never": 0, "T = 50": 50}
"""Epochs of the digits, 21 steps each: 50 are 1,050 steps.  The papers' ten epochs of STL-10 are some 8,200, which are 390 of the
digits': in a run of so few steps that is never."""

MOMENTS = {"never": (0, 10, 50, 100, 200), "T = 50": (0, 50, 100)}
"""Epochs after which to measure; a measurement comes before the reset of its moment."""

AVERAGES = (0.0, 0.97, 0.996)
DIGITS_AT, CIFAR10_AT = (0, 5, 10, 20, 50, 100), (0, 2, 5, 10, 20, 40)


def resets_values(
    seeds: Sequence[int],
    *,
    protocol: Protocol = DIGITS,
    data: Split | None = None,
    resets: Mapping[str, int] = RESETS,
    moments: Mapping[str, Sequence[int]] = MOMENTS,
    root: Path | None = None,
) -> dict[str, Any]:
    """Tables 8 and 9 with resets by steps, and without; Theorem 8's terms along each run.

    root: where finished parts lie; by default those of this commit.
    """
    data = data or digits()
    tabled = {label: cell for name in ("B-Tab8", "B-Tab9") for label, cell in tables.cells(name, protocol).items()}
    found: dict[str, Any] = {}
    for name, reset in resets.items():
        at, length = moments[name], replace(protocol, epochs=max(moments[name]))
        found[name] = {}
        for norm in ("BN", "no BN"):
            chosen = {
                label: replace(cell, reset=reset) for label, cell in tabled.items() if label.startswith(f"{norm} in")
            }

            def make(chosen: dict[str, Cell] = chosen, length: Protocol = length, at: Sequence[int] = at) -> Any:
                return run(length, chosen, seeds, data, at=at, measure=probes_and_terms(length))

            found[name] |= _part(root, f"byol-resets {name} {norm}", seeds, make)
    return {
        "axes": "runs[resets][cell][measure][moment][seed]",
        "epochs": {name: list(moments[name]) for name in resets},
        "steps": len(data.train) // protocol.batch,
        "runs": found,
    }


def average_values(
    seeds: Sequence[int],
    *,
    protocol: Protocol = DIGITS,
    data: Split | None = None,
    at: Sequence[int] = DIGITS_AT,
    root: Path | None = None,
) -> dict[str, Any]:
    """Predictor and BatchNorm with and without a moving average, on the digits."""
    data = data or digits()
    cells = _averages()
    found: dict[str, Any] = {}
    for names in (["0"], [name for name in cells if name != "0"]):
        chosen = {name: cells[name] for name in names}

        def make(chosen: dict[str, Cell] = chosen) -> Any:
            return run(replace(protocol, epochs=max(at)), chosen, seeds, data, at=at, measure=probes)

        found |= _part(root, f"byol-average {' '.join(names)}", seeds, make)
    return {"axes": "averages[average][measure][epoch][seed]", "epochs": list(at), "averages": found}


def average_cifar10_values(
    seeds: Sequence[int],
    *,
    protocol: Protocol = CIFAR10,
    data: Split | None = None,
    at: Sequence[int] = CIFAR10_AT,
    device: str | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """The same on CIFAR-10 for 40 epochs: three quarters of an hour of one core, a cell and a seed at a time."""
    data = data or cifar10(CIFAR10_IMAGES)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    length, cells = replace(protocol, epochs=max(at)), _averages()
    found: dict[str, dict[str, Any]] = {}
    for seed in seeds:  # seed by seed, so that what there is after an hour can be compared
        for name, cell in cells.items():

            def make(name: str = name, cell: Cell = cell, seed: int = seed) -> Any:
                return run(length, {name: cell}, [seed], data, at=at, measure=probes, device=device)[name]

            one = _part(root, f"byol-average-cifar10 {name}", [seed], make)
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


def _part(root: Path | None, name: str, seeds: Sequence[int], make: Callable[[], Any]) -> dict[str, Any]:
    path = (root or parts_folder()) / f"{name}, {' '.join(map(str, seeds))}.json"
    return kept(path, lambda: rounded(make(), digits=6))
