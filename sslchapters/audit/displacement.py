"""Which operator points along training: each theory of a step against the displacement of fifty real steps, on the average.

The record ``operators-displacement``; what was predicted, and what would refute it: data/predictions/displacement.md.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbook.images.datasets import load_dataset
from sslbook.losses import batch
from sslbook.training.augment import PIPELINES, plain, random_view
from sslchapters.enumerated import Scene, digits_scene, scene_network
from sslchapters.instances import convnet
from sslchapters.operators_today.runs import BESIDE, LADDER, ladder, of_halves
from sslchapters.records import parts_folder
from sslchapters.sweep import Study, sweep

MOMENTS, RUNS, AHEAD, BATCHES, IMAGES = (0, 100, 300, 1000), 16, 50, 64, 64
"""Checkpoints; from each so many continuations of so many steps; batches that a theory is averaged over; images of a batch."""
LAYERS = ("0", "2")
THEORIES = (*LADDER, BESIDE[0], "within images", "between classes")


Cell = tuple[str, float]
"""Digits or photographs, by SimCLR of a temperature or, at 0, by labels."""
CELLS: dict[str, Cell] = {
    f"{images}, {name}": (images, tau)
    for images in ("digits", "photographs")
    for name, tau in (("SimCLR 0.5", 0.5), ("SimCLR 0.1", 0.1), ("labels", 0.0))
}


def _world(images: str, seed: int) -> tuple[Scene, nn.Sequential]:
    """A population with all of its views, float32, and an untrained network for it."""
    if images == "digits":
        shifted = digits_scene(512, seed=seed)
        net = scene_network(shifted, seed).float()
        return Scene(shifted.views.float(), shifted.clean.float(), shifted.labels), net
    data, how = load_dataset("cifar10", "train"), PIPELINES["cifar10"]
    some = torch.randperm(len(data.pixels), generator=torch.Generator().manual_seed(seed))[:1024]
    pixels = data.pixels[some]
    views = torch.stack([random_view(pixels, how, seed=seed, step=0, view=view) for view in range(16)], 1)
    return Scene(views, plain(pixels, how), data.labels[some]), convnet((3, 8, 16), 32, 16, seed=seed).float()


def _train(net: nn.Module, head: nn.Module, scene: Scene, tau: float, steps: int, draw: torch.Generator) -> None:
    """By plain SGD, at the temperature as the rate, since the gradient grows as one over it; by labels at 0.1."""
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=tau or 0.1)
    for _ in range(steps):
        views, _, labels = scene.labelled_batch(IMAGES, draw)
        outputs = net(views.flatten(0, 1))
        if tau:
            loss = batch.info_nce(outputs.unflatten(0, views.shape[:2]), temperature=tau)
        else:
            loss = nn.functional.cross_entropy(head(outputs), labels.repeat_interleave(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _across(step: Tensor, weight: Tensor) -> Tensor:
    """The part of steps ``(n, ...)`` that is orthogonal to the weight, ``(n, weights)``."""
    flat, unit = step.flatten(1), nn.functional.normalize(weight.flatten(), dim=0)
    return flat - (flat @ unit)[:, None] * unit


def _weights(net: nn.Module) -> list[Tensor]:
    return [net.get_parameter(f"{layer}.weight").detach().clone() for layer in LAYERS]


def _predicted(net: nn.Module, scene: Scene, tau: float, seed: int) -> list[Tensor]:
    """Of each layer the steps by :data:`THEORIES` on each of :data:`BATCHES` batches, ``(batches, theories, weights)``."""
    draw, rows = torch.Generator().manual_seed(5_000_000 + seed), []
    image = torch.arange(2 * IMAGES) // 2
    same = (image[:, None] == image).float()
    for _ in range(BATCHES):
        views, clean, labels = scene.labelled_batch(IMAGES, draw)
        alike = (labels[image][:, None] == labels[image]).float()
        more = {
            "within images": torch.eye(2 * IMAGES) - same / 2,
            "between classes": alike / alike.sum(1, keepdim=True) - 1 / (2 * IMAGES),
        }
        rows.append(ladder(net, LAYERS, views, clean, tau or 0.5, more))
    return [
        torch.stack([_across(torch.stack([row[name][place] for name in THEORIES]), weight) for row in rows])
        for place, weight in enumerate(_weights(net))
    ]


def _displaced(net: nn.Module, head: nn.Module, scene: Scene, tau: float, seed: int) -> list[Tensor]:
    """Of each layer the displacements of :data:`RUNS` continuations, ``(runs, weights)``."""
    before, found = _weights(net), []
    for number in range(RUNS):
        one, top = copy.deepcopy(net), copy.deepcopy(head)
        _train(one, top, scene, tau, AHEAD, torch.Generator().manual_seed(1_000_003 * (seed + 1) + number))
        found.append([after - w for after, w in zip(_weights(one), before, strict=True)])
    return [_across(torch.stack(moves), w) for moves, w in zip(zip(*found, strict=True), before, strict=True)]


def _measured(chunk: Sequence[tuple[Cell, int]]) -> dict[str, Tensor]:
    """By replica, moment and layer: cosines of the theories with D, of the halves of D, and of those of each theory's mean."""
    found: dict[str, list[Tensor]] = {"cosine": [], "halves": [], "own halves": []}
    for (images, tau), seed in chunk:
        scene, net = _world(images, seed)
        torch.manual_seed(seed)
        head, draw, rows = nn.Linear(16, 10), torch.Generator().manual_seed(seed), []
        for start, moment in zip((0, *MOMENTS), MOMENTS, strict=False):
            _train(net, head, scene, tau, moment - start, draw)
            moved, steps = _displaced(net, head, scene, tau, seed), _predicted(net, scene, tau, seed)
            for d, step in zip(moved, steps, strict=True):
                cosines = nn.functional.cosine_similarity(step.mean(0), d.mean(0), dim=-1)
                rows.append((cosines, of_halves(d), of_halves(step)))
        for name, values in zip(found, zip(*rows, strict=True), strict=True):
            found[name].append(torch.stack(values).unflatten(0, (len(MOMENTS), len(LAYERS))))
    return {name: torch.stack(values) for name, values in found.items()}


def _known(found: Tensor) -> list[Any]:
    numbers = np.round(found.double().numpy(), 4)
    known = numbers.astype(object)
    known[np.isnan(numbers)] = None
    return list(known.tolist())


def values(seeds: tuple[int, ...]) -> dict[str, Any]:
    """The record: by kind of training what :func:`_measured` finds; cosines are signed, and null where a network diverged."""
    keep = parts_folder() / "operators-displacement"
    found = sweep(_measured, list(CELLS.values()), seeds, alike=lambda cell: cell, most=lambda cell: 1, keep=keep)
    return {
        "axes": "cells[cell][measure][seed][moment][layer][theory]",
        "moments": list(MOMENTS),
        "theories": list(THEORIES),
        "cells": {name: {kind: _known(each) for kind, each in found[cell].items()} for name, cell in CELLS.items()},
    }


STUDIES = {"operators-displacement": Study(values, tuple(range(8)))}
