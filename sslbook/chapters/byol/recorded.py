"""The chapter's recorded runs: every ablation on the digits for a hundred epochs, and Table 3 on CIFAR-10.

``sslbook record byol-digits --seeds 0 1 2 3 4`` and ``sslbook record byol-cifar10 --seeds 0 1 2 3 4`` make them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sslbook.chapters.byol import tables
from sslbook.chapters.byol.ablation import MEASURES, Cell, Protocol, Split, cifar10, digits, run
from sslbook.chapters.byol.siamese import Shape
from sslbook.chapters.byol.views import Augmentation

DIGITS = Protocol()
CIFAR10 = Protocol(
    shape=Shape(size=32, colours=3, channels=(16, 32, 64), width=128, output=64),
    augmentation=Augmentation(shift=0.15, zoom=0.25, rotation=0.0, gain=0.3, tint=0.2, grey=0.2, mirror=True),
    epochs=4,
    batch=128,
)
CIFAR10_IMAGES = 20_000
"""Training images: four epochs of them take a CPU half an hour for all cells and five seeds."""
MOMENTS = (0, 5, 10, 20, 50, 100)
RATES = (0.03, 0.1, 0.3, 1.0)
AVERAGES = (0.0, 0.9, 0.97, 0.99, 0.996)

Trials = dict[str, Any]


def digits_values(
    seeds: Sequence[int], *, protocol: Protocol = DIGITS, data: Split | None = None, at: Sequence[int] = MOMENTS
) -> dict[str, Any]:
    """All tables, the released code's symmetric predictor, and averages against learning rates, on handwritten digits."""
    data = data or digits()
    values: dict[str, Any] = {"axes": "tables[name][cell][measure][epoch][seed]", "epochs": tuple(at), "tables": {}}
    usual = [name for name in tables.TABLES if tables.protocol_of(name, protocol) == protocol]
    wanted = {name: tables.cells(name, protocol) for name in tables.TABLES}
    distinct = dict.fromkeys(cell for name in usual for cell in wanted[name].values())
    found = run(protocol, {str(i): cell for i, cell in enumerate(distinct)}, seeds, data, at=at)
    by_cell = dict(zip(distinct, found.values(), strict=True))
    for name, cells in wanted.items():
        if name in usual:
            rows = {label: by_cell[cell] for label, cell in cells.items()}
        else:
            rows = run(tables.protocol_of(name, protocol), cells, seeds, data, at=at)
        values["tables"][name] = {label: _rounded(measured) for label, measured in rows.items()}
    symmetric = {name: Cell(2, ema, symmetric=True) for name, ema in (("P, BN", 0.0), ("P, EMA, BN", tables.EMA))}
    values["symmetric"] = _final(protocol, symmetric, seeds, data)
    averages = {f"{ema:g}": Cell(2, ema) for ema in AVERAGES}
    values["rates"] = {
        f"{rate:g}": _final(replace(protocol, rate=rate), averages, seeds, data) for rate in RATES
    }  # rates[rate][average][measure][seed]
    return values


def cifar10_values(
    seeds: Sequence[int], *, protocol: Protocol = CIFAR10, data: Split | None = None, device: str | None = None
) -> dict[str, Any]:
    """Table 3's eight cells on CIFAR-10, on the GPU if there is one; raises FileNotFoundError without the data."""
    data = data or cifar10(CIFAR10_IMAGES)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    at = sorted({0, protocol.epochs // 2, protocol.epochs})
    found = run(protocol, tables.cells("B-Tab3", protocol), seeds, data, at=at, device=device)
    return {
        "axes": "tables[name][cell][measure][epoch][seed]",
        "epochs": at,
        "images": len(data.train),
        "batch": protocol.batch,
        "tables": {"B-Tab3": {label: _rounded(measured) for label, measured in found.items()}},
    }


def _final(protocol: Protocol, cells: Mapping[str, Cell], seeds: Sequence[int], data: Split) -> Trials:
    found = run(protocol, cells, seeds, data)
    return {name: {m: values[0] for m, values in _rounded(measured).items()} for name, measured in found.items()}


def _rounded(measured: Mapping[str, torch.Tensor]) -> Trials:
    """Each measure as nested lists, to five decimals."""
    return {m: [[round(x, 5) for x in row] for row in measured[m].tolist()] for m in MEASURES}
