"""The chapter's recorded runs: Table 1 in its variants, the figures, and filters of images, at the paper's size.

``sslbook record modulation-tables --seeds 1 2 3`` and ``sslbook record modulation-filters --seeds 1 2 3`` make them again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

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

FIGURES = ("C-Fig4", "C-Fig9", "C-Fig10", "C-Fig11")
DIGITS = 4


def table_values(
    seeds: Sequence[int], *, steps: int | None = None, workers: int | None = None, names: Sequence[str] = tables.NAMES
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
        found = run(protocol, tables.wanted_cells(chosen), seeds, workers=workers or cores())
        for name in chosen:
            scores = {score: rounded(tables.in_table(name, found, score)) for score in SCORES}
            values["tables"].setdefault(name, {})[variant] = scores
        values["seconds"][variant] = round(time.monotonic() - begun, 1)
    if "C-Fig5" in names:
        values["weights"], values["allowed"] = figure5(seeds[0], steps, workers or cores())
    return values


def figure5(seed: int, steps: int | None, workers: int = 1) -> tuple[dict[str, Any], Any]:
    """Figure 5's weights by activation, and which tokens the generators may fix, ``[field][token]``."""
    protocol = tables.protocol_of("C-Fig5", tables.VARIANTS["released"])
    protocol = protocol if steps is None else replace(protocol, steps=steps)
    wanted = tables.cells("C-Fig5")
    found = run(protocol, list(wanted.values()), [seed], workers=workers, keep=True)
    weights = {label: rounded(found[cell]["weights"][0]) for (_, _, label), cell in wanted.items()}
    first = next(iter(wanted.values()))
    return weights, found[first]["allowed"][0].tolist()


def trials(values: Mapping[str, Any], name: str, variant: str, score: str) -> Tensor:
    """One table of :func:`table_values`, ``(betas, patterns, labels, seeds)``; raises ValueError, naming the variants there
    are."""
    kept = values["tables"].get(name, {})
    if variant not in kept:
        raise ValueError(f"variant must be one of {', '.join(kept) or 'none'} for {name}, got {variant!r}")
    return torch.tensor(kept[variant][score], dtype=torch.float64)


def rounded(values: Tensor) -> Any:
    """Nested lists of numbers to :data:`DIGITS` decimals."""

    def each(value: Any) -> Any:
        return [each(part) for part in value] if isinstance(value, list) else round(value, DIGITS)

    return each(values.double().tolist())


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
