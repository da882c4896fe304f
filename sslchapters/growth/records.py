"""The records: every method with 24 seeds, and the zero of growth in 200 networks of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sslchapters.growth.dose import METHODS, TIMES, response, train
from sslchapters.growth.zero import STATES, measured
from sslchapters.records import parts_folder, rounded
from sslchapters.sweep import Study, sweep

TRAINED = 24
"""So many networks of each kind are trained before they are measured."""


LOOKS = (10, 20, 25, 50, 100, 200, 400)
"""Steps after which a network's own shares are measured, as they are before the first."""


def doses(
    seeds: tuple[int, ...], times: tuple[int, ...] = TIMES, looks: tuple[int, ...] = LOOKS, parts: Path | None = None
) -> dict[str, Any]:
    """By method, of seed and time: ``growth`` by direction (in the order of `sslchapters.growth.dose.train`), and the ``loss``.

    By look: ``shares`` (the `SHARES` of `sslchapters.growth.dose`), the first before training; ``slopes``, as `Response` has them.
    """
    keep = (parts or parts_folder()) / "growth-dose"

    def trained(chunk: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
        return train(chunk[0][0], [seed for _, seed in chunk], looks)

    found = sweep(trained, tuple(METHODS), seeds, alike=lambda method: method, most=lambda method: 12, keep=keep)
    of_times = [looks.index(time) for time in times]
    fits = {name: [response(of["growth"][:, look]) for look in range(len(looks))] for name, of in found.items()}
    return {
        "times": list(times),
        "looks": [0, *looks],
        "steps": max(times),
        "growth": {method: rounded(of["growth"][:, of_times], 4) for method, of in found.items()},
        "loss": {method: rounded(of["loss"][:, of_times], digits=5) for method, of in found.items()},
        "shares": {method: rounded(of["shares"], 5) for method, of in found.items()},
        "slopes": {name: rounded([(fit.by_shared, fit.by_unshared) for fit in of], 5) for name, of in fits.items()},
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
