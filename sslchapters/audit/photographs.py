"""Photographs with planted gratings whose dose is chosen, and a ResNet that is trained on them: which gratings does it learn?

A view is an augmented photograph of CIFAR-10 and, added *after* the augmentation, gratings: waves over the whole image, of one
frequency and direction each.  The coordinate in a view is ``SIZE (MEAN + sqrt(a) mu + sqrt(b) nu)``: ``mu`` belongs to the image,
``nu`` is drawn for each view.  All gratings have the same mean: a convolutional network that averages over the image hardly tells
a wave from its negative, so that it can learn a *contrast*, but not a number around zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import pi
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.losses import pairs
from sslbook.networks.siamese import Siamese, build
from sslbook.training.augment import NUMBERS, PIPELINES, apply, plain
from sslbook.training.evaluate import knn_accuracy
from sslbook.training.objectives import objective
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import FACTOR, SUBSET_SEED, Batches, generator, layout_of, make_optimizer
from sslchapters.growth.dose import Response, between, response
from sslchapters.intervals import Interval
from sslchapters.probing import ridge
from sslchapters.records import kept, parts_folder, rounded
from sslchapters.sweep import Study
from sslchapters.training.records import settings_of

SIZE, MEAN = 0.15, 1.5
"""A grating's coordinate is so large, in units of a pixel's deviation, and has this mean."""
SHARED, UNSHARED = (0.125, 0.25, 0.5, 1.0), (0.125, 0.354, 1.0)
DOSES = tuple((a, b) for a in SHARED for b in UNSHARED)
"""Variances between images and within views: the twelve gratings have all pairs of them, in an order of each seed."""
CONTROLS = ((0.5, 0.354), (0.5, 0.354), (0.0, 0.0), (0.0, 0.0))
"""Two gratings whose shared part is a function of the class, and two that are constant."""
WAVES = (
    *((4, 0), (0, 4), (3, 3), (3, -3)),
    *((7, 0), (0, 7), (5, 5), (5, -5)),
    *((10, 0), (0, 10), (7, 7), (7, -7)),
    *((6, 3), (3, -6), (3, 6), (6, -3)),
)
"""Periods over the image, down and across: four directions by three frequencies, then the controls."""
NEW = (*((5, 0), (0, 5), (4, 4), (4, -4)), *((8, 0), (0, 8), (6, 6), (6, -6)), *((11, 0), (0, 11), (8, 8), (8, -8)))
"""Twelve waves that no network has seen, for the zero of growth."""
PROBED = 1.0
"""The variance of all gratings' coordinates where they are measured: the same, so that only the network differs."""
LOOKS = (0, 1, 3)
"""Epochs after which the zero of growth and the layers are looked at; the gratings are measured after the last."""
IMAGES, HELD_OUT, FITTED = 5000, 3000, 2000


def gratings(waves: Sequence[tuple[int, int]], seed: int) -> Tensor:
    """Waves ``(K, 32, 32)`` of mean square 1, each at a phase of its own, orthogonal to each other."""
    phases = 2 * pi * torch.rand(len(waves), generator=generator(seed, f"phases of {waves[0]}", 0))
    down, across = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    turns = [(i * down + j * across) * 2 * pi / 32 + phase for (i, j), phase in zip(waves, phases, strict=True)]
    return 2**0.5 * torch.stack(turns).cos()


def with_gratings(views: Tensor, coordinates: Tensor, waves: Tensor) -> Tensor:
    """Views ``(n, 3, 32, 32)`` with gratings added to all colours, of coordinates ``(n, K)`` in units of `SIZE`."""
    return views + torch.einsum("nk,kij->nij", SIZE * coordinates, waves)[:, None]


class Planted:
    """Images and what one seed plants in them: ``shared (N, 16)``, and the deviations within views, ``noise (16,)``."""

    def __init__(self, images: Dataset, seed: int) -> None:
        draw = generator(seed, "planted", 0)
        self.images, self.seed = images, seed
        self.order = torch.randperm(len(DOSES), generator=draw)
        doses = torch.tensor([*(DOSES[place] for place in self.order), *CONTROLS])
        self.waves = gratings(WAVES, seed)
        a = torch.randn(len(images.labels), len(WAVES), generator=draw)
        a[:, 12:14] = torch.randn(10, 2, generator=draw)[images.labels]
        a = (a - a.mean(0)) / a.std(0, correction=0)
        self.shared, self.noise = a * doses[:, 0].sqrt(), doses[:, 1].sqrt()

    def batch(self, batches: Batches, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """The images' numbers, and two views of each, augmented and planted: a function of seed and step."""
        index, *draws = batches.at(step)
        views = []
        for number, drawn in enumerate(draws):
            noise = torch.randn(len(index), len(WAVES), generator=generator(self.seed, f"noise {number}", step))
            coordinates = MEAN + self.shared[index] + self.noise * noise
            plain_view = apply(self.images.pixels[index], PIPELINES["cifar10"], drawn)
            views.append(with_gratings(plain_view, coordinates, self.waves))
        return index, views[0], views[1]


# ---------------------------------------------------------------------------------------------------------------- methods


def cross_entropy(outputs: Any) -> Tensor:
    """Classification by the first ten outputs, of both views."""
    one, two = (F.cross_entropy(z[:, :10], outputs.labels) for z in (outputs.z1, outputs.z2))
    return 0.5 * (one + two)


@dataclass(frozen=True)
class Method:
    """A course of `sslchapters.training.records`, and what is changed in it; another loss of the outputs, if there is one."""

    course: str = "info_nce"
    changes: tuple[str, ...] = ()
    loss: Callable[[Any], Tensor] | None = None
    random_labels: bool = False


METHODS = {
    "simple on cosines": Method("simple"),
    "InfoNCE, τ = 0.5": Method(),
    "InfoNCE, τ = 0.1": Method("tau 0.1"),
    "InfoNCE, β = −0.5": Method("beta -0.5"),
    "BYOL": Method("byol, both"),
    "labels": Method(loss=cross_entropy),
    "random labels": Method(loss=cross_entropy, random_labels=True),
    "simple loss": Method(loss=lambda of: pairs.contrastive(of.z1, of.z2, "simple", normalize=False)),  # not of cosines
}
UNTRAINED = {"untrained": "InfoNCE, τ = 0.5", "untrained, BYOL": "BYOL"}
"""Networks that are only measured, and the method whose networks they are."""
SLUGS = dict(zip(METHODS, ("cosines", "nce-05", "nce-01", "beta", "byol", "labels", "random", "simple"), strict=True))
"""What the pages' numbers call a method."""
CHANGES = ("subset=5000", "networks.width=16", "shuffle=true", "drop_last=true", "precision=bfloat16")


def settings(method: str, seed: int) -> Settings:
    """Of one run: those of the book's short runs on CIFAR-10."""
    of = METHODS[method]
    return settings_of(of.course, seed, (*CHANGES, *of.changes, f"epochs={max(LOOKS)}"))


def run(name: str, seed: int) -> dict[str, Any]:
    """Train one network and measure it: ``loss`` by epoch, what `end` measures, and by look what `on_the_way` does.

    name: of `METHODS`, or of `UNTRAINED`, which is measured as it is.
    """
    method = UNTRAINED.get(name, name)
    made, of = settings(method, seed), METHODS[method]
    data = datasets.subset(datasets.load_dataset("cifar10", "train"), IMAGES, SUBSET_SEED)
    world = World(data, datasets.load_dataset("cifar10", "test").take(slice(HELD_OUT)), seed)
    labels = data.labels
    if of.random_labels:
        labels = labels[torch.randperm(len(labels), generator=generator(seed, "random labels", 0))]
    model = build(made.networks, seed).to(memory_format=layout_of(16, torch.device("cpu")))  # type: ignore[call-overload]
    if name in UNTRAINED:
        return rounded(end(model, world), digits=5)
    loss = of.loss or objective(made.objective, **made.loss_kwargs)
    optimizer = make_optimizer(made, model.learning(), model.predictor)
    for group in optimizer.param_groups:
        group["lr"] = made.lr * group.get(FACTOR, 1)
    batches = Batches(made, len(data.pixels))

    def value(index: Tensor, one: Tensor, two: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            outputs = model(one, two)
        return loss(outputs._replace(labels=labels[index]))

    rows, losses = [on_the_way(model, world, value)], []
    for epoch in range(1, max(LOOKS) + 1):
        model.train()
        for step in range((epoch - 1) * batches.per_epoch, epoch * batches.per_epoch):
            found = value(*world.planted.batch(batches, step))
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            model.update_target(made.ema)
            losses.append(float(found.detach()))
        if epoch in LOOKS:
            rows.append(on_the_way(model, world, value))
    by_epoch = np.array(losses).reshape(max(LOOKS), -1).mean(1).tolist()
    on_way = {measure: [row[measure] for row in rows] for measure in rows[0]}
    return rounded({"loss": by_epoch, **end(model, world), **on_way}, digits=5)


# --------------------------------------------------------------------------------------------------------------- measures


class World:
    """The images of a run: those that it trains on, and held-out views in which every grating has the same variance."""

    def __init__(self, known: Dataset, held_out: Dataset, seed: int) -> None:
        self.held_out, self.planted = held_out, Planted(known, seed)
        draw = generator(seed, "held out", 0)
        numbers = torch.rand(len(held_out.pixels), NUMBERS, generator=draw)
        self.coordinates = PROBED**0.5 * torch.randn(len(held_out.pixels), len(WAVES), generator=draw)
        views = apply(held_out.pixels, PIPELINES["cifar10"], numbers)
        self.views = with_gratings(views, MEAN + self.coordinates, self.planted.waves)

    def batches(self, kind: int, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of 128 that no training draws; another kind has others."""
        made = replace(settings("InfoNCE, τ = 0.5", self.planted.seed), batch=128)
        whole = Batches(made, len(self.planted.images.pixels))
        for step in range(kind * 1_000_000, kind * 1_000_000 + count):
            yield self.planted.batch(whole, step)


@torch.no_grad()
def end(model: Siamese, world: World) -> dict[str, Any]:
    """Of features and embeddings, ``r2`` and ``slope`` of each of the sixteen gratings, and ``knn``, the classes' accuracy.

    ``r2``: of a linear probe for the grating's coordinate.  ``slope``: logarithm of the squared norm of the mean derivative of the
    outputs by the coordinate, over the outputs' variance.  ``knn``: by features of images that are not augmented, with every
    grating at its mean.
    """
    # BatchNorm's running statistics from planted views of the training images, a plain average
    batches = (torch.cat([one, two]) for _, one, two in world.batches(1, 6))
    update_bn(batches, nn.Sequential(model.encoder, model.projector))
    model.eval()
    outputs = _both(model, world.views)
    parts = []
    for images in (world.planted.images.take(slice(2000)), world.held_out.take(slice(1500))):
        views = plain(images.pixels, PIPELINES["cifar10"])
        planted = with_gratings(views, torch.full((len(views), len(WAVES)), MEAN), world.planted.waves)
        parts += [torch.cat([model.encoder(part) for part in planted.split(500)]), images.labels]
    return {
        "order": world.planted.order.tolist(),
        "r2": {place: r_squared(z, world.coordinates) for place, z in outputs.items()},
        "slope": slopes(model, world),
        "knn": knn_accuracy(*parts),
    }


def _both(model: Siamese, views: Tensor) -> dict[str, Tensor]:
    features = torch.cat([model.encoder(part) for part in views.split(500)])
    return {"features": features, "embeddings": model.projector(features)}


def r_squared(outputs: Tensor, coordinates: Tensor) -> list[float]:
    """R² of a ridge regression for each coordinate, fitted to the first `FITTED` rows, on the others: ``(16,)``."""
    truth = coordinates[FITTED:].double()
    rest = truth - ridge(outputs[:FITTED], coordinates[:FITTED], outputs[FITTED:])
    return (1 - rest.square().sum(0) / (truth - truth.mean(0)).square().sum(0)).tolist()


def slopes(model: Siamese, world: World, by: float = 0.5) -> dict[str, list[float]]:
    """Of each grating: log of the squared norm of the outputs' mean change with its coordinate, over their variance."""
    views = world.views[:128]
    at_rest = _both(model, views)
    found: dict[str, list[float]] = {place: [] for place in at_rest}
    for wave in world.planted.waves:
        more, less = (_both(model, views + sign * by * SIZE * wave) for sign in (1, -1))
        for place, rest in at_rest.items():
            change = (more[place] - less[place]).double().mean(0) / (2 * by)
            found[place].append(float((change.square().sum() / rest.double().var(0).sum()).log()))
    return found


def on_the_way(model: Siamese, world: World, value: Callable[[Tensor, Tensor, Tensor], Tensor]) -> dict[str, Any]:
    """``line``, the growth of new gratings, in `growth_by_share`, and of every layer the variances ``between`` and ``within``."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    found = growth_by_share(model, world, value) | parts_of_layers(model, world)
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return found


def growth_by_share(model: Siamese, world: World, value: Callable[[Tensor, Tensor, Tensor], Tensor]) -> dict[str, Any]:
    """Growth of `NEW` gratings over their variance, fitted by a line in their share, and the share of the outputs' cosines.

    A new grating's coordinate gets a gain, and growth is minus the loss's derivative by the gain's logarithm: in a linear network
    that is twice the rate of its squared weight.  ``line``: slope, value at share 0, correlation; it is 0 at minus the second over
    the first.
    """
    waves = gratings(NEW, world.planted.seed)
    shares, rates, cosines = [], [], []
    for number, (index, *views) in enumerate(world.batches(2, 6)):
        draw = generator(world.planted.seed, "new", number)
        doses = torch.tensor(DOSES)[torch.randperm(len(DOSES), generator=draw)]
        a, *noises = torch.randn(3, len(index), len(NEW), generator=draw)
        gain = torch.ones(len(NEW), requires_grad=True)
        drawn = [a * doses[:, 0].sqrt() + noise * doses[:, 1].sqrt() for noise in noises]
        planted = [with_gratings(view, MEAN + gain * each, waves) for view, each in zip(views, drawn, strict=True)]
        (slope,) = torch.autograd.grad(value(index, *planted), gain)
        shares.append(doses[:, 0] / doses.sum(1))
        rates.append(-slope / doses.sum(1))
        with torch.no_grad():
            unit = [F.normalize(model.projector(model.encoder(view)), dim=1).double() for view in planted]
        cosines.append(float(between(torch.stack(unit)[None])[0]))
    share, rate = (torch.cat(each).double().numpy() for each in (shares, rates))
    return {
        "line": [*np.polyfit(share, rate, 1).tolist(), float(np.corrcoef(share, rate)[0, 1])],
        "share": float(np.mean(cosines)),
    }


@torch.no_grad()
def parts_of_layers(model: Siamese, world: World) -> dict[str, Any]:
    """Logarithms of every convolution's and linear layer's variance between images and within views, over places and units."""
    parts = [model.encoder, model.projector]
    layers = [part for whole in parts for part in whole.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    held: list[Tensor] = []
    hooks = [part.register_forward_hook(lambda _, __, out: held.append(out)) for part in layers]
    sums = torch.zeros(2, len(layers), dtype=torch.float64)
    for _, *views in world.batches(3, 2):
        held.clear()
        for view in views:
            model.projector(model.encoder(view))
        for place, (x, y) in enumerate(zip(held[: len(layers)], held[len(layers) :], strict=True)):
            x, y = x - x.mean(0), y - y.mean(0)
            sums[0, place] += float((x * y).sum())
            sums[1, place] += float((x - y).square().sum()) / 2
    for hook in hooks:
        hook.remove()
    return {name: part.clamp(min=1e-30).log().tolist() for name, part in zip(("between", "within"), sums, strict=True)}


# ----------------------------------------------------------------------------------------------------------------- record


def values(seeds: tuple[int, ...]) -> dict[str, Any]:
    """The record: by method and measure, a seed each; a finished network is a file, and all of a seed come before the next."""
    folder = parts_folder() / "growth-photographs"
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (*UNTRAINED, *METHODS)}
    for seed in seeds:
        for number, (name, rows) in enumerate(found.items()):
            rows.append(kept(folder / f"s{seed}-{number}.json", partial(run, name, seed)))
    return {
        "epochs": list(LOOKS),
        "doses": DOSES,
        "of": {name: {measure: [row[measure] for row in rows] for measure in rows[0]} for name, rows in found.items()},
    }


# -- as the page shows it ---------------------------------------------------------------------------------------------


def untrained(found: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """What was measured of a method's networks before they were trained."""
    return found["of"]["untrained, BYOL" if method == "BYOL" else "untrained"]


def gains(found: Mapping[str, Any], method: str, measure: str = "r2", place: str = "features") -> np.ndarray:
    """What training added to ``r2`` or ``slope``, ``(seeds, 16)``: twelve gratings in the order of `DOSES`, then the controls."""
    before, after, rows = untrained(found, method), found["of"][method], []
    for order, new, old in zip(after["order"], after[measure], before[measure], strict=True):
        gained = np.array(new[place]) - np.array(old[place])
        rows.append(np.concatenate([gained[np.argsort(order)], gained[len(DOSES) :]]))
    return np.stack(rows)


def responses(found: Mapping[str, Any], method: str, measure: str = "r2", place: str = "features") -> Response:
    """What the gains depend on, as on digits."""
    return response(gains(found, method, measure, place), DOSES)


def verdict(leads: Sequence[Interval]) -> str:
    """By the rule of `data/predictions/growth.md`, of the share's lead over the amount in several measures."""
    if min(lead.low for lead in leads) > 0.15:
        return "share wins"
    if min(lead.low for lead in leads) > 0:
        return "share leads"
    return "amount leads" if max(lead.high for lead in leads) < 0 else "not decided"


STUDIES = {"growth-photographs": Study(values, tuple(range(1, 7)))}
