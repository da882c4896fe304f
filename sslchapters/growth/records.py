"""The records: every method with 24 seeds, and the zero of growth in 200 networks of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sslchapters.growth.dose import METHODS, TIMES, train
from sslchapters.growth.zero import STATES, measured
from sslchapters.records import parts_folder, rounded
from sslchapters.sweep import Study, sweep

TRAINED = 24
"""So many networks of each kind are trained before they are measured."""


def doses(seeds: tuple[int, ...], times: tuple[int, ...] = TIMES, parts: Path | None = None) -> dict[str, Any]:
    """``growth``: by method, of each seed, time and direction (in the order of `sslchapters.growth.dose.train`); ``loss``, too."""
    keep = (parts or parts_folder()) / "growth-dose"

    def trained(chunk: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
        return train(chunk[0][0], [seed for _, seed in chunk], times)

    found = sweep(trained, tuple(METHODS), seeds, alike=lambda method: method, most=lambda method: 12, keep=keep)
    return {
        "times": list(times),
        "steps": max(times),
        "growth": {method: rounded(of["growth"], 4) for method, of in found.items()},
        "loss": {method: rounded(of["loss"], digits=5) for method, of in found.items()},
    }


Cell = tuple[str, str, int]


def _measured(chunk: Sequence[tuple[Cell, int]]) -> dict[str, Tensor]:
    activation, loss, steps = chunk[0][0]
    return measured([seed for _, seed in chunk], activation, loss, steps)


def zeros(seeds: tuple[int, ...]) -> dict[str, Any]:
    """By kind of network, loss and steps of training: the zero of growth and the shares of each network, as `measured` has them."""
    keep = parts_folder() / "growth-zero"
    values: dict[str, Any] = {"steps": max(STATES), "trained": TRAINED}
    for steps in STATES:
        losses = ["simple on cosines", "InfoNCE, τ = 0.5"]
        cells: list[Cell] = [(kind, loss, steps) for kind in ("linear", "relu") for loss in losses]
        some = seeds[:TRAINED] if steps else seeds
        found = sweep(_measured, cells, some, alike=lambda cell: cell, most=lambda cell: 20, keep=keep)
        for (kind, loss, _), of in found.items():
            values.setdefault(kind, {}).setdefault(loss, {})[str(steps)] = rounded(of, 5)
    return values


STUDIES = {
    "growth-dose": Study(doses, tuple(range(24))),
    "growth-zero": Study(zeros, tuple(range(200))),
}
