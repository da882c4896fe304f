"""Which operator points along training: each theory of a step against the displacement of fifty real steps, on the average.

The records ``operators-displacement``, of small networks, and ``operators-displacement-resnet``, of a ResNet-18 whose BatchNorm
holds its statistics; what was predicted, and what would refute it: data/predictions/displacement.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbook._machine import cores
from sslbook.images.datasets import Dataset, load_dataset
from sslbook.losses import batch
from sslbook.networks.siamese import Networks, build
from sslbook.training.augment import PIPELINES, plain, random_view
from sslchapters.enumerated import Scene, digits_scene, scene_network
from sslchapters.instances import convnet
from sslchapters.operators_today.runs import BESIDE, LADDER, ladder, of_halves
from sslchapters.records import parts_folder
from sslchapters.sweep import Study, sweep

AHEAD, IMAGES = 50, 64
"""Steps of a continuation; images of a batch."""
THEORIES = (*LADDER, BESIDE[0], "within images", "between classes")
Cell = tuple[str, float]
"""Digits or photographs, by SimCLR of a temperature or, at 0, by labels."""


@dataclass(frozen=True)
class Photographs:
    """CIFAR-10, with two fresh random views of each image."""

    data: Dataset

    def labelled_batch(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """As that of a scene."""
        rows = torch.randperm(len(self.data), generator=draw)[:size]
        pixels, how, seed = self.data.pixels[rows], PIPELINES["cifar10"], int(torch.randint(2**31, (), generator=draw))
        views = torch.stack([random_view(pixels, how, seed=seed, view=view) for view in (0, 1)], 1)
        return views, plain(pixels, how), self.data.labels[rows]


Population = Scene | Photographs


@dataclass(frozen=True)
class Design:
    """The weights of ``layers`` after ``moments`` steps, and what is measured there.

    world: images and a network, of a cell's images and a seed.  outputs: of the network.  runs: continuations.  batches: that a
    theory is averaged over.  rate: of SGD; None is the temperature, since the gradient grows as one over it, or 0.1 with labels.
    """

    world: Callable[[str, int], tuple[Population, nn.Sequential]]
    outputs: int
    layers: tuple[str, ...]
    moments: tuple[int, ...]
    runs: int
    batches: int
    rate: float | None = None


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


def _resnet(images: str, seed: int) -> tuple[Photographs, nn.Sequential]:
    """All photographs, and an untrained ResNet-18 with its projector."""
    net = build(Networks(width=16), seed)
    model = nn.Sequential(net.encoder, net.projector).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Photographs(load_dataset("cifar10", "train")), model


SMALL = Design(_world, 16, ("0", "2"), (0, 100, 300, 1000), 16, 64)
STAGES = tuple(f"0.layer{stage}.{block}.conv2" for stage, block in ((1, 0), (2, 0), (3, 0), (4, 1)))
RESNET = Design(_resnet, 128, ("0.conv1", *STAGES, "1.linears.1"), (0, 150, 500), 8, 16, 0.1)


def _train(
    design: Design, nets: Sequence[nn.Module], scene: Population, tau: float, steps: int, draw: torch.Generator
) -> None:
    """Steps of a network and its classifier, which counts where there is no temperature."""
    net, head = nets
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=design.rate or tau or 0.1)
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


def _weights(net: nn.Module, layers: Sequence[str]) -> list[Tensor]:
    return [net.get_parameter(f"{layer}.weight").detach().clone() for layer in layers]


def _predicted(design: Design, net: nn.Module, scene: Population, tau: float, seed: int) -> list[Tensor]:
    """Of each layer the steps by :data:`THEORIES` on each batch, ``(batches, theories, weights)``."""
    draw, rows = torch.Generator().manual_seed(5_000_000 + seed), []
    image = torch.arange(2 * IMAGES) // 2
    same = (image[:, None] == image).float()
    for _ in range(design.batches):
        views, clean, labels = scene.labelled_batch(IMAGES, draw)
        alike = (labels[image][:, None] == labels[image]).float()
        more = {
            "within images": torch.eye(2 * IMAGES) - same / 2,
            "between classes": alike / alike.sum(1, keepdim=True) - 1 / (2 * IMAGES),
        }
        rows.append(ladder(net, design.layers, views, clean, tau or 0.5, more))
    return [
        torch.stack([_across(torch.stack([row[name][place] for name in THEORIES]), weight) for row in rows])
        for place, weight in enumerate(_weights(net, design.layers))
    ]


def _displaced(design: Design, nets: Sequence[nn.Module], scene: Population, tau: float, seed: int) -> list[Tensor]:
    """Of each layer the displacements of all continuations, ``(runs, weights)``."""
    before, found = _weights(nets[0], design.layers), []
    for number in range(design.runs):
        copies, draw = copy.deepcopy(nets), torch.Generator().manual_seed(1_000_003 * (seed + 1) + number)
        _train(design, copies, scene, tau, AHEAD, draw)
        found.append([after - w for after, w in zip(_weights(copies[0], design.layers), before, strict=True)])
    return [_across(torch.stack(moves), w) for moves, w in zip(zip(*found, strict=True), before, strict=True)]


def _measured(design: Design, chunk: Sequence[tuple[Cell, int]]) -> dict[str, Tensor]:
    """By replica, moment and layer: cosines of the theories with D, of the halves of D, and of those of each theory's mean."""
    found: dict[str, list[Tensor]] = {"cosine": [], "halves": [], "own halves": []}
    for (images, tau), seed in chunk:
        scene, net = design.world(images, seed)
        torch.manual_seed(seed)
        head, draw, rows = nn.Linear(design.outputs, 10), torch.Generator().manual_seed(seed), []
        for start, moment in zip((0, *design.moments), design.moments, strict=False):
            _train(design, (net, head), scene, tau, moment - start, draw)
            # a copy whose BatchNorm holds its statistics, once twenty batches more have passed without a step
            held, later = copy.deepcopy(net), torch.Generator().manual_seed(7_000_000 + seed)
            with torch.no_grad():
                for _ in range(20):
                    held(scene.labelled_batch(IMAGES, later)[0].flatten(0, 1))
            moved = _displaced(design, (held.eval(), head), scene, tau, seed)
            for d, step in zip(moved, _predicted(design, held, scene, tau, seed), strict=True):
                cosines = nn.functional.cosine_similarity(step.mean(0), d.mean(0), dim=-1)
                rows.append((cosines, of_halves(d), of_halves(step)))
        for name, values in zip(found, zip(*rows, strict=True), strict=True):
            found[name].append(torch.stack(values).unflatten(0, (len(design.moments), len(design.layers))))
    return {name: torch.stack(values) for name, values in found.items()}


def values(name: str, cells: Mapping[str, tuple[Cell, Design]], seeds: tuple[int, ...]) -> dict[str, Any]:
    """A record: by kind of training what :func:`_measured` finds; cosines are signed, and null where a network diverged."""
    found: dict[str, dict[str, Any]] = {}
    for label, (cell, design) in cells.items():
        part, keep = partial(_measured, design), parts_folder() / name / label
        of = sweep(part, [cell], seeds, alike=str, most=lambda _: 1, processes=cores(), keep=keep)[cell]
        numbers = {kind: each.double().numpy().round(4) for kind, each in of.items()}
        found[label] = {kind: np.where(np.isnan(each), np.array(None), each).tolist() for kind, each in numbers.items()}
    settings = {label: {k: v for k, v in vars(design).items() if k != "world"} for label, (_, design) in cells.items()}
    return {
        "axes": "cells[cell][measure][seed][moment][layer][theory]",
        "moments": list(next(iter(settings.values()))["moments"]),  # of the first cell
        "settings": settings,
        "theories": list(THEORIES),
        "cells": found,
    }


CELLS = {
    f"{images}, {name}": ((images, tau), SMALL)
    for images in ("digits", "photographs")
    for name, tau in (("SimCLR 0.5", 0.5), ("SimCLR 0.1", 0.1), ("labels", 0.0))
}
LABELS = replace(RESNET, moments=RESNET.moments[1:2], runs=4)
PAIR = {"SimCLR 0.5": (("photographs", 0.5), RESNET), "labels": (("photographs", 0.0), LABELS)}
STUDIES = {
    name: Study(partial(values, name, cells), tuple(range(seeds)))
    for name, cells, seeds in (
        ("operators-displacement", CELLS, 8),
        ("operators-displacement-resnet", PAIR, 3),
    )
}
