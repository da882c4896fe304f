"""In how many peaks one unit ends that climbs its own energy on digits, how large their basins are, and what shifts do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.images.datasets import shifts
from sslchapters.enumerated import digits
from sslchapters.landscape import optima
from sslchapters.landscape.layers import IMAGES
from sslchapters.landscape.theory import LINEAR, RELU, Activation, Cloud, directions
from sslchapters.sweep import Study

CLIMBS = {
    "linear, 1": (LINEAR, 1, 1000, 200),
    "linear, 9": (LINEAR, 3, 1000, 200),
    "ReLU, 1": (RELU, 1, 1000, 4000),
    "ReLU, 9": (RELU, 3, 1000, 3000),
    "ReLU, 25": (RELU, 5, 40, 2000),
    "ReLU, 81": (RELU, 9, 40, 4000),
}
"""Response and number of views (shifts by at most a pixel): the response, shifts along a side, starts, and steps of a climb."""
NEAR = 0.1
"""Largest sine of the angle between a unit and the plane of a view that counts as near."""


def shifted(pixels: Tensor, side: int) -> Tensor:
    """``side ** 2`` shifts by at most one pixel, interpolated between whole ones: ``(N, 1, H, W) -> (N, side ** 2, H W)``."""
    whole = shifts(pixels).flatten(2)
    grid = torch.cat([whole[:, 1:5], whole[:, :1], whole[:, 5:]], 1).mT.unflatten(-1, (3, 3))
    finer = F.interpolate(grid, size=(side, side), mode="bilinear", align_corners=True).flatten(2).mT
    return whole[:, :1] if side == 1 else finer


def ends(x: Tensor, act: Activation, starts: Tensor, steps: int) -> dict[str, Tensor]:
    """Of each peak on the views ``x (N, V, d)``: starts that end there, views on its kink and near it, and what they cost.

    The cost is what letting in all that is near takes off the energy's slope, a turn towards each, relative to twice the energy.
    """
    points, count = x.flatten(0, 1), x.shape[0] * x.shape[1]
    cloud = Cloud(points[None], torch.full((1, count), 1 / count, dtype=x.dtype), x.shape[1])
    found = optima.find(cloud, act, starts[None], steps=steps, first=0.2, near=1e-6)
    size, u = points.norm(dim=-1), found.w @ points.T
    near = u.abs() < NEAR * size
    cost = -cloud.centred(act(u)[None])[0] * size / count / (2 * found.energy[:, None])
    return {
        "starts": (found.share * len(starts)).round(),
        "kink": (u.abs() < 1e-9 * size).sum(-1),
        "near": near.sum(-1),
        "cost": (cost * near).sum(-1),
    }


def values(seeds: tuple[int, ...]) -> dict[str, Any]:
    """The record: by what is climbed and measured, for each seed a list with a number for each peak."""
    record: dict[str, dict[str, list[list[float]]]] = {}
    for seed in seeds:
        pixels = digits(IMAGES, seed, torch.float64).pixels
        centre = shifted(pixels, 3).mean((0, 1))
        for name, (act, side, count, steps) in CLIMBS.items():
            starts = directions(1, count, len(centre), seed)[0]
            for what, each in ends(shifted(pixels, side) - centre, act, starts, steps).items():
                record.setdefault(name, {}).setdefault(what, []).append([round(float(v), 6) for v in each])
    return record


STUDIES = {"landscape-peaks": Study(values, tuple(range(8)))}
