r"""A whole layer of filters on digits: do its filters end at different peaks, do they lie on kinks, and are they of use?

Each filter :math:`w_k` of unit length climbs with steps whose length falls from 0.2 to 1e-7.  `RULES` says what is climbed: its
own energy (half the variance of its view-averaged response), as under the simple loss, which adds up over filters; or minus InfoNCE
of all responses together, scaled to length 1.  Gradients are exact, over all images and views, or of two random views a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._random import Streams
from sslbook.images.datasets import shifts
from sslbook.training.evaluate import effective_rank, linear_probe
from sslchapters.enumerated import Images, digits
from sslchapters.landscape.optima import climb, find
from sslchapters.landscape.theory import LINEAR, RELU, Activation, Cloud, directions
from sslchapters.records import rounded
from sslchapters.sweep import Study

IMAGES, FILTERS, STEPS = 60, 32, 600
ON_KINK, BAND = 1e-6, 0.02
"""Largest sine of the angle between a filter and a plane that counts as lying on it, and as lying near it."""


@dataclass(frozen=True)
class Rule:
    """What a layer climbs: its response, InfoNCE's temperature (None: the energy of each filter), and by which views."""

    act: Activation
    tau: float | None = None
    augmented: bool = True
    sampled: bool = False


RULES = {
    "alone, linear": Rule(LINEAR),
    "alone, ReLU": Rule(RELU),
    "alone, ReLU, no augmentation": Rule(RELU, augmented=False),
    "together, linear, 0.5": Rule(LINEAR, 0.5),
    "together, ReLU, 0.5": Rule(RELU, 0.5),
    "together, ReLU, 0.1": Rule(RELU, 0.1),
    "together, ReLU, 0.5, two views a step": Rule(RELU, 0.5, sampled=True),
}


def info_nce(z: Tensor, tau: float) -> Tensor:
    """Mean over all pairs of views of one image of InfoNCE against all views of the other images: ``z (N, V, D)`` of length 1."""
    count, views, _ = z.shape
    likeness = torch.einsum("ivd,jwd->ivjw", z, z) / tau
    own = torch.eye(count, dtype=torch.bool)[:, None, :, None]
    others = likeness.masked_fill(own, -torch.inf).logsumexp((2, 3))
    pairs = likeness.diagonal(dim1=0, dim2=2).movedim(-1, 0)  # (N, V, V)
    return F.softplus(others[:, :, None] - pairs)[:, ~torch.eye(views, dtype=torch.bool)].mean()


def climbed(w: Tensor, x: Tensor, rule: Rule, draw: Streams) -> Tensor:
    """Where filters that start at ``w`` come to rest on views ``x (N, V, d)``."""

    def uphill(w: Tensor) -> Tensor:
        free, seen = w.clone().requires_grad_(), x
        chosen = draw.uniform(x.shape[:2], torch.float64)[0].argsort(1)[:, :2, None].expand(-1, -1, x.shape[-1])
        if rule.sampled:
            seen = x.gather(1, chosen)
        response = rule.act(seen @ free.T)
        if rule.tau is None:
            gain = 0.5 * response.mean(1).var(0, correction=0).sum()
        else:
            gain = -info_nce(F.normalize(response, dim=-1, eps=1e-9), rule.tau)
        (slope,) = torch.autograd.grad(gain, free)
        return slope

    return climb(w, uphill, steps=STEPS, first=0.2)


def measured(w: Tensor, x: Tensor, act: Activation, train: Images, test: Images, centre: Tensor) -> dict[str, float]:
    """Different filters (cosine below 0.999), views on a filter's kink and by chance, probe's accuracy in %, effective rank."""
    inputs = x.flatten(0, 1)
    sine = (inputs @ w.T).abs() / inputs.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    features = [act((part.pixels.flatten(1) - centre) @ w.T).float() for part in (train, test)]
    probe = linear_probe(features[0], train.labels, features[1], test.labels, epochs=200, lr=1e-2)
    return {
        "different": float((~(w @ w.T > 0.999).tril(-1).any(1)).sum()),
        "on kink": float((sine < ON_KINK).sum(0).double().mean()),
        "by chance": float((sine < BAND).sum(0).double().mean()) * ON_KINK / BAND,
        "accuracy": 100 * probe.final,
        "rank": float(effective_rank(features[1])),
    }


def layer_values(seeds: tuple[int, ...]) -> dict[str, Any]:
    """The record: by rule and measure, a number a seed; all rules start from the random filters of ``at the start``."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        data = digits(1460, seed, torch.float64)
        seen, train, test = (
            replace(data, pixels=data.pixels[part], labels=data.labels[part])
            for part in (slice(IMAGES), slice(IMAGES, 960), slice(960, 1460))
        )
        x = shifts(seen.pixels).flatten(2)
        centre, draw = x.mean((0, 1)), Streams([seed], "filters")
        x = x - centre
        start = F.normalize(draw.normal((FILTERS, x.shape[-1]))[0], dim=-1)
        ends = {"at the start": (start, x, RELU)}
        for name, rule in RULES.items():
            views = x if rule.augmented else x[:, :1]
            ends[name] = climbed(start, views, rule, draw), views, rule.act
        for name, (w, views, act) in ends.items():
            for what, value in measured(w, views, act, train, test, centre).items():
                found.setdefault(name, {}).setdefault(what, []).append(value)
    return {
        name: {what: rounded(torch.tensor(of), digits=5) for what, of in each.items()} for name, each in found.items()
    }


# --- One unit that climbs its own energy: in how many peaks it ends, how large their basins are, and what shifts do -----

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
    found = find(cloud, act, starts[None], steps=steps, first=0.2, near=1e-6)
    size, u = points.norm(dim=-1), found.w @ points.T
    near = u.abs() < NEAR * size
    cost = -cloud.centred(act(u)[None])[0] * size / count / (2 * found.energy[:, None])
    return {
        "starts": (found.share * len(starts)).round(),
        "kink": (u.abs() < 1e-9 * size).sum(-1),
        "near": near.sum(-1),
        "cost": (cost * near).sum(-1),
    }


def peak_values(seeds: tuple[int, ...]) -> dict[str, Any]:
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


STUDIES = {
    "landscape-layer": Study(layer_values, tuple(range(8))),
    "landscape-peaks": Study(peak_values, tuple(range(8))),
}
