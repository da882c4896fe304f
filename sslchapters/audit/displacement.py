"""Which operator points along training: each theory of a step against the displacement of fifty real steps, on the average.

The record ``operators-displacement``; what was predicted, and what would refute it: data/predictions/displacement.md.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbook.images.datasets import load_dataset
from sslbook.losses import batch
from sslbook.training.augment import PIPELINES, plain, random_view
from sslchapters.enumerated import Scene, digits_scene, scene_network
from sslchapters.instances import convnet
from sslchapters.operators_today.runs import BESIDE, LADDER, ladder
from sslchapters.records import parts_folder
from sslchapters.sweep import Study, sweep

MOMENTS, RUNS, AHEAD, BATCHES, IMAGES = (0, 100, 300, 1000), 16, 50, 64, 64
"""Checkpoints; from each so many continuations of so many steps; batches that a theory is averaged over; images of a batch."""
LAYERS = ("0", "2")
THEORIES = (*LADDER, BESIDE[0], "within images", "between classes")


@dataclass(frozen=True)
class Cell:
    """One kind of training: digits or photographs, by SimCLR of a temperature or, at 0, by labels."""

    images: str
    tau: float

    @property
    def name(self) -> str:
        """For a record."""
        return f"{self.images}, {f'SimCLR {self.tau:g}' if self.tau else 'labels'}"


CELLS = tuple(Cell(images, tau) for images in ("digits", "photographs") for tau in (0.5, 0.1, 0.0))


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


def _draw(scene: Scene, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Of a batch: two different views of each image ``(n, 2, ...)``, the images themselves, and their labels."""
    sample = torch.randperm(len(scene.views), generator=draw)[:IMAGES]
    pair = torch.rand(IMAGES, scene.views.shape[1], generator=draw).argsort(1)[:, :2]
    return scene.views[sample[:, None], pair], scene.clean[sample], scene.labels[sample]


def _train(net: nn.Module, head: nn.Module, scene: Scene, tau: float, steps: int, draw: torch.Generator) -> None:
    """By plain SGD, at the temperature as the rate, since the gradient grows as one over it; by labels at 0.1."""
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=tau or 0.1)
    for _ in range(steps):
        views, _, labels = _draw(scene, draw)
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
        views, clean, labels = _draw(scene, draw)
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


def _halves(rows: Tensor) -> Tensor:
    """The cosine of the means of even and odd rows."""
    return nn.functional.cosine_similarity(rows[::2].mean(0), rows[1::2].mean(0), dim=-1)


def _measured(chunk: Sequence[tuple[Cell, int]]) -> dict[str, Tensor]:
    """By replica, moment and layer: cosines of the theories with D, of the halves of D, and of those of each theory's mean."""
    found: dict[str, list[Tensor]] = {"cosine": [], "halves": [], "own halves": []}
    for cell, seed in chunk:
        scene, net = _world(cell.images, seed)
        torch.manual_seed(seed)
        head, draw, rows = nn.Linear(16, 10), torch.Generator().manual_seed(seed), []
        for start, moment in zip((0, *MOMENTS), MOMENTS, strict=False):
            _train(net, head, scene, cell.tau, moment - start, draw)
            moved, steps = _displaced(net, head, scene, cell.tau, seed), _predicted(net, scene, cell.tau, seed)
            for d, step in zip(moved, steps, strict=True):
                cosines = nn.functional.cosine_similarity(step.mean(0), d.mean(0), dim=-1)
                rows.append((cosines, _halves(d), _halves(step)))
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
    found = sweep(_measured, CELLS, seeds, alike=lambda cell: cell, most=lambda cell: 1, keep=keep)
    return {
        "axes": "cells[cell][measure][seed][moment][layer][theory]",
        "moments": list(MOMENTS),
        "theories": list(THEORIES),
        "cells": {cell.name: {name: _known(each) for name, each in of.items()} for cell, of in found.items()},
    }


STUDIES = {"operators-displacement": Study(values, tuple(range(8)))}
