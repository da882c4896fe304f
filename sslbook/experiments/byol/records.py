"""The chapter's records, each made again by ``sslbook record NAME --replace``.

``byol-digits``: every ablation on the digits for a hundred epochs.  ``byol-cifar10``: Table 3 on CIFAR-10.  ``byol-resets``:
predictors drawn anew seldom or never.  ``byol-average`` and ``byol-average-cifar10``: what an average is worth.  The last three
are kept part by part, and go on where they were stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sslbook.experiments.byol import tables
from sslbook.experiments.byol.runs import (
    Ablation,
    Recipe,
    Split,
    cifar10,
    digits,
    probes,
    probes_and_terms,
    train_ablations,
)
from sslbook.experiments.byol.tables import CIFAR10, CIFAR10_IMAGES, DIGITS
from sslbook.records.ablation import NAMES
from sslbook.records.store import kept, parts_folder, rounded

DIGITS_MOMENTS = (0, 5, 10, 20, 50, 100)

RATES = (0.03, 0.1, 0.3, 1.0)

AVERAGES = (0.0, 0.9, 0.97, 0.99, 0.996)

Trials = dict[str, Any]


def digits_values(
    seeds: Sequence[int], *, protocol: Recipe = DIGITS, data: Split | None = None, at: Sequence[int] = DIGITS_MOMENTS
) -> dict[str, Any]:
    """All tables, the released code's symmetric predictor, and averages against learning rates, on handwritten digits."""
    data = data or digits()
    values: dict[str, Any] = {"axes": "tables[name][cell][measure][epoch][seed]", "epochs": tuple(at), "tables": {}}
    usual = [name for name in NAMES if tables.protocol_of(name, protocol) == protocol]
    wanted = {name: tables.cells(name, protocol) for name in NAMES}
    distinct = dict.fromkeys(cell for name in usual for cell in wanted[name].values())
    found = train_ablations(protocol, {str(i): cell for i, cell in enumerate(distinct)}, seeds, data, at=at)
    by_cell = dict(zip(distinct, found.values(), strict=True))
    for name, cells in wanted.items():
        if name in usual:
            rows = {label: by_cell[cell] for label, cell in cells.items()}
        else:
            rows = train_ablations(tables.protocol_of(name, protocol), cells, seeds, data, at=at)
        values["tables"][name] = {label: rounded(measured, 5) for label, measured in rows.items()}
    symmetric = {name: Ablation(2, ema, symmetric=True) for name, ema in (("P, BN", 0.0), ("P, EMA, BN", tables.EMA))}
    values["symmetric"] = _final(protocol, symmetric, seeds, data)
    averages = {f"{ema:g}": Ablation(2, ema) for ema in AVERAGES}
    values["rates"] = {
        f"{rate:g}": _final(replace(protocol, rate=rate), averages, seeds, data) for rate in RATES
    }  # rates[rate][average][measure][seed]
    return values


def cifar10_values(
    seeds: Sequence[int], *, protocol: Recipe = CIFAR10, data: Split | None = None, device: str | None = None
) -> dict[str, Any]:
    """Table 3's eight cells on CIFAR-10, on the GPU if there is one; raises FileNotFoundError without the data."""
    data = data or cifar10(CIFAR10_IMAGES)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    at = sorted({0, protocol.epochs // 2, protocol.epochs})
    found = train_ablations(protocol, tables.cells("B-Tab3", protocol), seeds, data, at=at, device=device)
    return {
        "axes": "tables[name][cell][measure][epoch][seed]",
        "epochs": at,
        "images": len(data.train),
        "batch": protocol.batch,
        "tables": {"B-Tab3": {label: rounded(measured, 5) for label, measured in found.items()}},
    }


def _final(protocol: Recipe, cells: Mapping[str, Ablation], seeds: Sequence[int], data: Split) -> Trials:
    found = train_ablations(protocol, cells, seeds, data)
    return {name: {m: values[0] for m, values in rounded(measured, 5).items()} for name, measured in found.items()}


RESETS = {"never": 0, "T = 50": 50}
"""Epochs of the digits, 21 steps each: 50 are 1,050 steps.  The papers' ten epochs of STL-10 are some 8,200, which are 390 of the
digits': in a run of so few steps that is never."""

RESET_MOMENTS = {"never": (0, 10, 50, 100, 200), "T = 50": (0, 50, 100)}
"""Epochs after which to measure; a measurement comes before the reset of its moment."""

LONG_AVERAGES = (0.0, 0.97, 0.996)

DIGITS_AT, CIFAR10_AT = (0, 5, 10, 20, 50, 100), (0, 2, 5, 10, 20, 40)


def resets_values(
    seeds: Sequence[int],
    *,
    protocol: Recipe = DIGITS,
    data: Split | None = None,
    resets: Mapping[str, int] = RESETS,
    moments: Mapping[str, Sequence[int]] = RESET_MOMENTS,
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

            def make(chosen: dict[str, Ablation] = chosen, length: Recipe = length, at: Sequence[int] = at) -> Any:
                return train_ablations(length, chosen, seeds, data, at=at, measure=probes_and_terms(length))

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
    protocol: Recipe = DIGITS,
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

        def make(chosen: dict[str, Ablation] = chosen) -> Any:
            return train_ablations(replace(protocol, epochs=max(at)), chosen, seeds, data, at=at, measure=probes)

        found |= _part(root, f"byol-average {' '.join(names)}", seeds, make)
    return {"axes": "averages[average][measure][epoch][seed]", "epochs": list(at), "averages": found}


def average_cifar10_values(
    seeds: Sequence[int],
    *,
    protocol: Recipe = CIFAR10,
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

            def make(name: str = name, cell: Ablation = cell, seed: int = seed) -> Any:
                return train_ablations(length, {name: cell}, [seed], data, at=at, measure=probes, device=device)[name]

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


def _averages() -> dict[str, Ablation]:
    return {f"{ema:g}": Ablation(2, ema) for ema in LONG_AVERAGES}


def _part(root: Path | None, name: str, seeds: Sequence[int], make: Callable[[], Any]) -> dict[str, Any]:
    path = (root or parts_folder()) / f"{name}, {' '.join(map(str, seeds))}.json"
    return kept(path, lambda: rounded(make(), digits=6))
