"""The chapter's recorded runs: Table 1 in its variants, the figures, and filters of images, at the paper's size.

``sslbook record NAME --replace`` makes one again: ``modulation-tables`` or ``modulation-filters``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sslbook.chapters.modulation import tables
from sslbook.chapters.modulation.patches import (
    PatchProtocol,
    images,
    likeness,
    living,
    mean_of,
    roughness,
    train_filters,
)
from sslbook.chapters.modulation.scores import SCORES
from sslbook.chapters.modulation.training import run
from sslbook.images import Images
from sslbook.machine import cores
from sslbook.records import rounded as rounded_to

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
        found = run(protocol, tables.wanted_cells(chosen), seeds, processes=processes or cores())
        for name in chosen:
            scores = {score: rounded(tables.in_table(name, found, score)) for score in SCORES}
            values["tables"].setdefault(name, {})[variant] = scores
        values["seconds"][variant] = round(time.monotonic() - begun, 1)
    if "C-Fig5" in names:
        values["weights"], values["allowed"] = tables.figure5(seeds[0], steps, processes or cores())
    return values


STRENGTHS = {"C-Fig12": 0.0, "C-Fig13": 0.5}
KEPT = 10
"""Filters of each field that a record keeps, the longest of the first seed; the measures are of all that live."""


def filter_values(
    seeds: Sequence[int], *, protocol: PatchProtocol | None = None, data: Images | None = None
) -> dict[str, Any]:
    """Figures 12 and 13: filters of image quarters without and with random crops, how many live, how rough and how alike
    these are.

    ``filters[figure][field][filter][row][column]``; ``living[figure][seed]`` is a share of all filters, ``roughness`` and
    ``likeness`` likewise are means over the living ones, before training under ``untrained``.
    """
    protocol, data = protocol or PatchProtocol(), data or images()
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
