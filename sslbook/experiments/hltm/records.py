"""The chapter's recorded runs: the tables for every loss and statistic, and the norm curves, at the papers' sizes.

``sslbook record NAME --replace`` makes one again: ``hltm-tables``, ``hltm-narrow``, ``hltm-norms`` or ``hltm-norms-printed``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslbook.experiments.hltm import norms, tables
from sslbook.experiments.hltm.runs import FORMULAS, TreeRun
from sslbook.records.store import rounded
from sslbook.runtime.compute import cores

LATENTS = ("s", "s0", "s1", "s101", "s0111")
NARROW = LATENTS[:3]
LOWER = (0.7, 0.8, 0.9)
WIDTHS = (2, 5, 10)
UNTRAINED = 200
EPOCHS = (0, 1, 20, 49, 50)
"""What the three printed tables show, together; ``converged`` is after 49 epochs in the released experiments, 50 in the text."""


def table_values(
    seeds: Sequence[int],
    *,
    base: TreeRun | None = None,
    epochs: Sequence[int] = EPOCHS,
    processes: int | None = None,
) -> dict[str, Any]:
    """Trials for :data:`FORMULAS` x :data:`tables.STATISTICS`, as nested lists whose axes are named under ``axes``.

    base: the protocol to vary, the papers' if not given.  processes: one a core if not given.
    """
    base = base or TreeRun()
    values: dict[str, Any] = {
        "axes": "values[loss][statistic][latent][lower][width][epoch][trial]",
        "latents": LATENTS,
        "lower": LOWER,
        "widths": WIDTHS,
        "epochs": tuple(epochs),
        "samples": base.epoch_size,
        "untrained": {"trials": UNTRAINED, "mean": _untrained_means(UNTRAINED)},
        "seconds": {},
    }
    for loss in FORMULAS:
        start = time.monotonic()
        cells = [replace(base, loss=loss, lower=lower, width=width) for lower in LOWER for width in WIDTHS]
        found = _trials(cells, seeds, LATENTS, epochs, processes)
        values[loss] = {
            statistic: rounded(trials.unflatten(1, (len(LOWER), len(WIDTHS))), 5) for statistic, trials in found.items()
        }
        values["seconds"][loss] = round(time.monotonic() - start, 1)
    return values


def narrow_values(
    seeds: Sequence[int],
    *,
    base: TreeRun | None = None,
    epochs: Sequence[int] = (0, 1, 20, 49),
    processes: int | None = None,
) -> dict[str, Any]:
    """The narrowest networks again with as many trials as there are ``seeds``: ten say little where one in three dies.

    The root and its two children, :data:`NARROW`: latents x lower x epochs x trials.
    """
    base = base or TreeRun(width=min(WIDTHS))
    values: dict[str, Any] = {
        "axes": "values[loss][statistic][latent][lower][epoch][trial]",
        "latents": NARROW,
        "lower": LOWER,
        "epochs": tuple(epochs),
    }
    for loss in FORMULAS:
        cells = [replace(base, loss=loss, lower=lower) for lower in LOWER]
        found = _trials(cells, seeds, NARROW, epochs, processes)
        values[loss] = {statistic: rounded(trials, 5) for statistic, trials in found.items()}
    return values


def _trials(
    cells: Sequence[TreeRun],
    seeds: Sequence[int],
    latents: Sequence[str],
    epochs: Sequence[int],
    processes: int | None,
) -> dict[str, Tensor]:
    """By statistic the correlations of all cells: latents x cells x epochs x trials."""
    at_once, samples = processes or cores(), cells[0].epoch_size
    runs = tables.rerun(cells, seeds, latents=latents, epochs=epochs, processes=at_once, samples=samples)
    return {name: torch.stack([run[name] for run in runs]).movedim(-1, 0) for name in tables.STATISTICS}


def _untrained_means(count: int, widths: Sequence[int] = WIDTHS) -> Any:
    """Normalised correlation before training over the population, means over ``count`` trials: latents x lower x widths."""
    cells = [TreeRun(lower=lower, width=width) for lower in LOWER for width in widths]
    means = torch.stack([tables.untrained(cell, range(1, count + 1), LATENTS).mean(0) for cell in cells])
    return rounded(means.unflatten(0, (len(LOWER), len(widths))).permute(2, 0, 1), 5)


def norm_values(
    seeds: Sequence[int],
    *,
    base: TreeRun = norms.BASE,
    epochs: Sequence[int] = norms.EPOCHS,
    processes: int | None = None,
) -> dict[str, Any]:
    """For each of :func:`norms.cells`, a norm's name to its values, epochs x seeds, to six significant digits."""
    return _curves(norms.cells(base), seeds, epochs, processes)


def printed_norm_values(
    seeds: Sequence[int],
    *,
    base: TreeRun = norms.BASE,
    epochs: Sequence[int] = norms.EPOCHS,
    processes: int | None = None,
) -> dict[str, Any]:
    """For each of :func:`norms.printed_loss`, values as those of :func:`norm_values`, from the same seeds."""
    return _curves(norms.printed_loss(base), seeds, epochs, processes)


def _curves(
    protocols: Mapping[str, TreeRun], seeds: Sequence[int], epochs: Sequence[int], processes: int | None
) -> dict[str, Any]:
    curves = norms.curves(protocols, seeds, epochs, processes=processes or cores())
    cells = {cell: {part: rounded(found, digits=6) for part, found in parts.items()} for cell, parts in curves.items()}
    return {"axes": "cells[cell][norm][epoch][seed]", "epochs": tuple(epochs), "cells": cells}
