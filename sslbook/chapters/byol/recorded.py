"""The chapter's recorded runs: every ablation on the digits for a hundred epochs, and Table 3 on CIFAR-10.

``sslbook record NAME --replace`` makes one again: ``byol-digits`` or ``byol-cifar10``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sslbook.chapters.byol import tables
from sslbook.chapters.byol.ablation import Cell, Protocol, Split, cifar10, digits, run
from sslbook.chapters.byol.tables import CIFAR10, CIFAR10_IMAGES, DIGITS
from sslbook.records import rounded
from sslbook.tables.ablation import NAMES

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
    usual = [name for name in NAMES if tables.protocol_of(name, protocol) == protocol]
    wanted = {name: tables.cells(name, protocol) for name in NAMES}
    distinct = dict.fromkeys(cell for name in usual for cell in wanted[name].values())
    found = run(protocol, {str(i): cell for i, cell in enumerate(distinct)}, seeds, data, at=at)
    by_cell = dict(zip(distinct, found.values(), strict=True))
    for name, cells in wanted.items():
        if name in usual:
            rows = {label: by_cell[cell] for label, cell in cells.items()}
        else:
            rows = run(tables.protocol_of(name, protocol), cells, seeds, data, at=at)
        values["tables"][name] = {label: rounded(measured, 5) for label, measured in rows.items()}
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
        "tables": {"B-Tab3": {label: rounded(measured, 5) for label, measured in found.items()}},
    }


def _final(protocol: Protocol, cells: Mapping[str, Cell], seeds: Sequence[int], data: Split) -> Trials:
    found = run(protocol, cells, seeds, data)
    return {name: {m: values[0] for m, values in rounded(measured, 5).items()} for name, measured in found.items()}
