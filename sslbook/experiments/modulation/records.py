"""The chapter's recorded runs: Table 1 in its variants, the figures, more seeds of both, and filters of images, at the
paper's size.

``sslbook record NAME --replace`` makes one again: ``modulation-tables``, ``modulation-seeds``,
``modulation-contested`` or ``modulation-filters``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sslbook.experiments.modulation import tables
from sslbook.experiments.modulation.instances import patch_images
from sslbook.experiments.modulation.runs import (
    SCORES,
    PatchRun,
    TokenRun,
    likeness,
    living,
    mean_of,
    roughness,
    train_cells,
    train_filters,
)
from sslbook.images.enumerated import Images
from sslbook.records.store import kept, parts_folder
from sslbook.records.store import rounded as rounded_to
from sslbook.runtime.compute import cores

rounded = partial(rounded_to, decimals=tables.DIGITS)

FIGURES = ("C-Fig4", "C-Fig9", "C-Fig10", "C-Fig11")


def table_values(
    seeds: Sequence[int], *, steps: int | None = None, processes: int | None = None, names: Sequence[str] = tables.NAMES
) -> dict[str, Any]:
    """Table 1 in all of :data:`tables.VARIANTS`, the figures as the released code has them, and Figure 5's weights of the
    first seed.

    steps: minibatches, the paper's 5000 if not given.  Axes: ``tables[name][variant][score][beta][patterns][label][seed]``
    and ``weights[label][field][token][filter]``.
    """
    values: dict[str, Any] = {
        "axes": "tables[name][variant][score][beta][patterns][label][seed]; weights[label][field][token][filter]",
        "betas": tables.BETAS,
        "patterns": tables.PATTERNS,
        "labels": {name: tuple(tables.curves(name)) for name in names},
        "tables": {},
        "seconds": {},
    }
    protocols = {
        label: protocol if steps is None else replace(protocol, steps=steps)
        for label, protocol in tables.VARIANTS.items()
    }
    for variant, protocol in protocols.items():
        chosen = [name for name in names if name == "C-Tab1" or (name in FIGURES and variant == "released")]
        if not chosen:
            continue
        begun = time.monotonic()
        found = train_cells(protocol, tables.wanted_cells(chosen), seeds, processes=processes or cores())
        for name in chosen:
            scores = {score: rounded(tables.in_table(name, found, score)) for score in SCORES}
            values["tables"].setdefault(name, {})[variant] = scores
        values["seconds"][variant] = round(time.monotonic() - begun, 1)
    if "C-Fig5" in names:
        values["weights"], values["allowed"] = tables.figure5(seeds[0], steps, processes or cores())
    return values


WIDE = ("C-Fig9", "C-Fig10")
"""Figures that `seed_values` trains with spare filters and several patterns alone, where activations are compared."""


def seed_values(
    seeds: Sequence[int], *, steps: int | None = None, processes: int | None = None, parts: Path | None = None
) -> dict[str, Any]:
    """More seeds of what the chapter compares, as the released code has it: Table 1, Figure 11, and Figures 9 and 10 for
    :math:`\\beta > 1` and ``P > 1``.

    A finished seed is kept in ``parts``, by default `sslbook.records.store.parts_folder`, and not made again.  Axes:
    ``tables[name][score][beta][patterns][label][seed]``.
    """
    folder = (parts or parts_folder()) / "modulation-seeds"
    made = [kept(folder / f"{seed}.json", partial(_of_one_seed, seed, steps, processes or cores())) for seed in seeds]
    return {
        "axes": "tables[name][score][beta][patterns][label][seed]",
        "betas": {name: tables.BETAS[name in WIDE :] for name in made[0]},
        "patterns": {name: tables.PATTERNS[name in WIDE :] for name in made[0]},
        "tables": {
            name: {
                score: torch.stack([torch.tensor(one[name][score], dtype=torch.float64) for one in made], -1).tolist()
                for score in SCORES
            }
            for name in made[0]
        },
    }


def _of_one_seed(seed: int, steps: int | None, processes: int) -> dict[str, Any]:
    """The tables of `seed_values` for one seed, without its axis."""
    protocol = TokenRun() if steps is None else replace(TokenRun(), steps=steps)
    wanted = {
        name: {key: cell for key, cell in tables.cells(name).items() if name not in WIDE or min(key[:2]) > 1}
        for name in ("C-Tab1", "C-Fig11", *WIDE)
    }
    every = [cell for cells in wanted.values() for cell in cells.values()]
    found = train_cells(protocol, list(dict.fromkeys(every)), [seed], processes=processes)
    shapes = {name: [len({key[axis] for key in cells}) for axis in range(3)] for name, cells in wanted.items()}
    return {
        name: {
            score: rounded(torch.cat([found[cell][score] for cell in cells.values()]).view(shapes[name]))
            for score in SCORES
        }
        for name, cells in wanted.items()
    }


CONTESTED = {
    "C-Fig10": (3, ("linear", "relu", "quadratic")),
    "C-Fig11": (1, ("BN, ζ = 10", "no BN, ζ = 10")),
}
"""Figures with the ``P`` and the curves that few seeds leave open, each for :math:`\\beta > 1`."""


def contested_values(seeds: Sequence[int], *, steps: int | None = None, processes: int | None = None) -> dict[str, Any]:
    """Many seeds of what few leave open, :data:`CONTESTED`, scored as the released code does:
    ``tables[name][beta][label][seed]``."""
    protocol = TokenRun() if steps is None else replace(TokenRun(), steps=steps)
    wanted = {
        name: [tables.cells(name)[beta, patterns, label] for beta in tables.BETAS[1:] for label in labels]
        for name, (patterns, labels) in CONTESTED.items()
    }
    found = train_cells(
        protocol, [cell for cells in wanted.values() for cell in cells], seeds, processes=processes or cores()
    )
    return {
        "axes": "tables[name][beta][label][seed]",
        "betas": tables.BETAS[1:],
        "patterns": {name: patterns for name, (patterns, _) in CONTESTED.items()},
        "labels": {name: labels for name, (_, labels) in CONTESTED.items()},
        "tables": {
            name: rounded(torch.stack([found[cell]["released +"] for cell in cells]).unflatten(0, (-1, len(labels))))
            for (name, cells), (_, labels) in zip(wanted.items(), CONTESTED.values(), strict=True)
        },
    }


STRENGTHS = {"C-Fig12": 0.0, "C-Fig13": 0.5}

KEPT = 10
"""Filters of each field that a record keeps, the longest of the first seed; the measures are of all that live."""


def filter_values(
    seeds: Sequence[int], *, protocol: PatchRun | None = None, data: Images | None = None
) -> dict[str, Any]:
    """Figures 12 and 13: filters of image quarters without and with random crops, how many live, how rough and how alike
    these are.

    ``filters[figure][field][filter][row][column]``; ``living[figure][seed]`` is a share of all filters, ``roughness`` and
    ``likeness`` likewise are means over the living ones, before training under ``untrained``.
    """
    protocol, data = protocol or PatchRun(), data or patch_images()
    values: dict[str, Any] = {"data": data.name, "images": len(data), "steps": protocol.steps, "filters": {}}
    for name in ("living", "roughness", "likeness"):
        values[name] = {}
    for figure, strength in {"untrained": 0.0, **STRENGTHS}.items():
        steps = 1 if figure == "untrained" else protocol.steps
        found = train_filters(data, replace(protocol, strength=strength, steps=steps), list(seeds)).double()
        alive = living(found)
        values["living"][figure] = rounded(alive.double().mean((1, 2)))
        values["roughness"][figure] = rounded(mean_of(roughness(found), alive))
        values["likeness"][figure] = rounded(likeness(found, alive))
        if figure != "untrained":
            longest = found[0].flatten(2).norm(dim=2).argsort(1, descending=True)[:, :KEPT]
            values["filters"][figure] = rounded(torch.stack([w[i] for w, i in zip(found[0], longest, strict=True)]))
    return values
