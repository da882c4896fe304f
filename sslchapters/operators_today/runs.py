r"""How much of a real SimCLR step each operator explains, on identical batches.

A batch is 64 images, two views each; its step is minus the gradient of NT-Xent (cosines, all 126 negatives, through both copies).
Each operator gets the same views and the same weights, and is asked for its step by :math:`f` in place of :math:`K^\top w`, so
that no bias or parallel path counts against it.

The record ``operators-today-cifar10``: real SimCLR batches of photographs, a ResNet-18 with its running statistics held.
The records ``operators-today-ingredients`` and ``-corrected``: what each ingredient of a theory is worth, in a small network.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbook.images.datasets import Dataset, load_dataset
from sslbook.losses import batch
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import covariance_operator
from sslbook.operator.layer import Layer
from sslbook.operator.view_weights import PairMixing
from sslbook.training.augment import PIPELINES, plain, random_view
from sslchapters.checks import gap
from sslchapters.enumerated import Scene, digits_scene, scene_network
from sslchapters.instances import convnet
from sslchapters.operators_today.checks import of_distances
from sslchapters.records import parts_folder, rounded
from sslchapters.sweep import Study, sweep


def simclr(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Tensor], tau: float) -> None:
    """Train by SimCLR on ``batches`` of two views each, ``(n, 2, ...)``."""
    for views in batches:
        optimizer.zero_grad()
        batch.info_nce(net(views.flatten(0, 1)).unflatten(0, views.shape[:2]), temperature=tau).backward()
        optimizer.step()


def trained(data: Scene, seed: int, *, steps: int, tau: float) -> nn.Sequential:
    """A small network after so many steps of SimCLR (batches of 64, SGD at rate 0.5)."""
    net, draw = scene_network(data, seed), torch.Generator().manual_seed(0)
    simclr(net, torch.optim.SGD(net.parameters(), lr=0.5), (data.batch(64, draw)[0] for _ in range(steps)), tau)
    return net


def steps_of(net: nn.Module, layer: str, views: Tensor, tau: float) -> dict[str, Tensor]:
    r"""Steps of a layer on one batch ``views (n, 2, ...)``, by the operator of each theory; "autograd" is the step itself.

    eq. 56: the covariance operator, outputs of length 1.  unbiased: that with distinct views in a positive pair and distinct
    images in a negative one, :math:`\beta = (n - 1)/(n (V - 1))`.  not averaged: that of single views.  all pairs alike: the
    simple loss of this batch.  one negative: the loss of one negative of this batch, over all negatives in turn.
    """
    op = partial(covariance_operator, net, layer)
    outputs = net(views.flatten(0, 1)).flatten(1).unflatten(0, views.shape[:2])
    (gradient,) = torch.autograd.grad(batch.info_nce(outputs, temperature=tau), net.get_parameter(f"{layer}.weight"))
    exact: dict[str, Callable[[Tensor], Tensor]] = {
        "this chapter": partial(batch.info_nce, temperature=tau),
        "all pairs alike": partial(of_distances, loss="simple", normalize=True),
        "one negative": partial(of_distances, loss="soft_triplet", normalize=True, temperature=tau),
    }
    found = {"autograd": -gradient} | {name: op(views, loss=loss).exact_update() for name, loss in exact.items()}
    return found | {
        "unbiased": op(views, normalize=True, beta=1 - 1 / len(views)).exact_update(),
        "eq. 56": op(views, normalize=True).exact_update(),
        "not averaged": op(views.flatten(0, 1)[:, None], normalize=True).exact_update(),
    }


def cosine(a: Tensor, b: Tensor) -> float:
    """Of two weights, or steps, of one shape."""
    return float((a * b).sum() / (a.norm() * b.norm()))


LADDER = (
    "second moment",
    "centred",
    "averaged over views",
    "of cosines",
    "no view its own partner",
    "weights at clean images",
    "weights at the views",
    "all negatives",
)
"""Theories of a step, each with one ingredient more than the last; the last is NT-Xent itself."""
BESIDE = ("all negatives, clean weights", "another batch")
"""Two rivals: the last ingredient without the one before it, and the real step of the next batch."""
CORRECTED = "averaged, no view its own partner"
"""The third theory without its excess: the table of the fifth, and outputs as they are."""


def tables(outputs: Tensor, clean: Tensor, tau: float) -> dict[str, Tensor]:
    r"""The table :math:`C` of each theory of :data:`LADDER` and of the first of :data:`BESIDE`, ``(2 N, 2 N)``, up to a factor.

    outputs: of length 1, of two views each, ``(N, 2, d)``.  clean: of the un-augmented images, of length 1, ``(N, d)``.
    From "no view its own partner" on a loss is :math:`\sum_{ab} \omega_{ab} (r_{a a^+} - r_{ab})` over views b of other images, its
    weights held: constant, :math:`\sigma(m_{ab})` of one negative, or the softmax of all, of margins
    :math:`m_{ab} = (s_{ab} - s_{a a^+}) / \tau` between cosines of the views, or of the images.
    """
    n = 2 * len(outputs)
    alone = torch.eye(n).to(outputs)
    image = torch.arange(n, device=outputs.device) // 2
    same = (image[:, None] == image).to(outputs)
    partner = same - alone

    def margins(z: Tensor) -> Tensor:
        cosines = z @ z.T
        return (cosines - (cosines * partner).sum(1, keepdim=True)) / tau

    def one(m: Tensor) -> Tensor:
        return _weighted(m.sigmoid() * (1 - same), partner)

    def every(m: Tensor) -> Tensor:
        logits = torch.cat([torch.zeros_like(m[:, :1]), m.masked_fill(same > 0, -torch.inf)], 1)
        return _weighted(logits.softmax(1)[:, 1:], partner)

    at_views, at_images = margins(outputs.flatten(0, 1)), margins(clean.repeat_interleave(2, 0))
    steps = (
        alone,
        alone - 1 / n,
        same / 2 - 1 / n,
        same / 2 - 1 / n,
        _weighted(1 - same, partner),
        one(at_images),
        one(at_views),
        every(at_views),
        every(at_images),
    )
    return dict(zip((*LADDER, BESIDE[0]), steps, strict=True))


def _weighted(weights: Tensor, partner: Tensor) -> Tensor:
    """Minus twice the table of a loss whose weights of pairs are held."""
    pull = partner * weights.sum(1)
    return pull + pull.T - weights - weights.T


def ladder(
    net: nn.Module,
    layers: Sequence[str],
    views: Tensor,
    clean: Tensor,
    tau: float,
    more: Mapping[str, Tensor] | None = None,
    only: Sequence[str] = (),
) -> dict[str, list[Tensor]]:
    """The steps of the layers that each theory predicts on a batch, up to a factor.

    The theories are those of :func:`tables`, :data:`CORRECTED` and each table in ``more``, of cosines; or ``only`` those named.
    """
    outputs = net(views.flatten(0, 1))
    units = nn.functional.normalize(outputs.detach(), dim=1)
    images, full, found = nn.functional.normalize(net(clean).detach(), dim=1), outputs.detach(), {}
    weights = [net.get_parameter(f"{layer}.weight") for layer in layers]
    listed = tables(units.unflatten(0, views.shape[:2]), images, tau) | dict(more or {})
    listed[CORRECTED] = listed[LADDER[4]]
    listed = {name: listed[name] for name in only or listed}
    for name, table in listed.items():
        move = table @ (full if name in (*LADDER[:3], CORRECTED) else units)
        if name not in (*LADDER[:3], CORRECTED):
            move = (move - units * (units * move).sum(1, keepdim=True)) / full.norm(dim=1, keepdim=True)
        found[name] = list(torch.autograd.grad(outputs, weights, move, retain_graph=True))
    return found


IMAGES, WIDTH, TAU, STEPS, BATCHES = 64, 16, 0.5, 100, 4
LAYERS = ("0.conv1", "0.layer2.0.conv2", "0.layer4.1.conv2", "1.linears.1")


def cifar10_values(seeds: tuple[int, ...]) -> dict[str, Any]:
    """For each seed, before and after a hundred steps of SimCLR, in float32.

    error, double, mixed: :func:`backward_errors`.  held: the cosine of that step with the one of training, in the batch's
    statistics, by layer.
    cosines: of each theory's step with the batch's own, lists over batches, by layer.
    """
    data = load_dataset("cifar10", "train")
    found: dict[str, Any] = {"seeds": list(seeds), "steps": [0, STEPS]}
    found |= {key: [] for key in ("error", "double", "mixed", "held", "cosines")}
    for seed in seeds:
        net = build(Networks(width=WIDTH), seed)
        model = nn.Sequential(net.encoder, net.projector)
        for steps in (0, STEPS):
            _train(model, data, steps, seed)
            for key, errors in backward_errors(model, _batch(data, seed, 0)).items():
                found[key].append(errors)
            found["held"].append(held(model, _batch(data, seed, 0)))
            of_layers: dict[str, dict[str, list[float]]] = {layer: {} for layer in LAYERS}
            for layer, number in itertools.product(LAYERS, range(BATCHES)):
                predicted = steps_of(model, layer, _batch(data, seed, number), TAU)
                truth = predicted.pop("autograd")
                for name, step in predicted.items():
                    of_layers[layer].setdefault(name, []).append(cosine(step, truth))
            found["cosines"].append(of_layers)
    return found


def backward_errors(model: nn.Module, views: Tensor) -> dict[str, dict[str, float]]:
    r"""The step of each layer by :math:`-2 \sum \Gamma_{ab} K_a f_b` against one ``.backward()`` of NT-Xent, relative.

    error: the loss in the network's precision.  double: the loss of ``outputs.double()``, its gradient rounded once.  mixed: the
    same, and :math:`\Gamma` multiplied in the network's precision, not in float64.
    """
    plain, double = (_backward(model, views, TAU, dtype) for dtype in (views.dtype, torch.float64))
    found: dict[str, dict[str, float]] = {"error": {}, "double": {}, "mixed": {}}
    for name in plain:
        op = covariance_operator(model, name, views, loss="info_nce", temperature=TAU)
        assert isinstance(op.mixing, PairMixing)
        step, coarse = -op.exact_update(), PairMixing(op.mixing.matrix.to(op.dtype))
        found["error"][name] = gap(step, plain[name])
        found["double"][name] = gap(step, double[name])
        found["mixed"][name] = gap(-replace(op, mixing=coarse).exact_update(), double[name])
    return found


def held(model: nn.Module, views: Tensor) -> dict[str, float]:
    """The cosine of a layer's step with BatchNorm's statistics held and with those of the batch, as in training."""
    as_trained, as_held = (_backward(each, views, TAU) for each in (copy.deepcopy(model).train(), model))
    return {name: cosine(as_held[name], step) for name, step in as_trained.items()}


def _backward(model: nn.Module, views: Tensor, tau: float, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Gradients in the layers' weights, of the loss in ``dtype``, the network's own if not given."""
    model.zero_grad()
    outputs = model(views.flatten(0, 1)).unflatten(0, views.shape[:2]).to(dtype or views.dtype)
    batch.info_nce(outputs, temperature=tau).backward()
    layers = {name: part for name, part in model.named_modules() if isinstance(part, Layer)}
    return {name: part.weight.grad for name, part in layers.items() if part.weight.grad is not None}


def _batch(data: Dataset, seed: int, number: int, size: int = IMAGES) -> Tensor:
    """Two views of ``size`` images of a batch, ``(size, 2, 3, 32, 32)``."""
    pixels = data.pixels[_rows(data, seed, number, size)]
    return torch.stack([random_view(pixels, PIPELINES["cifar10"], seed=seed, step=number, view=v) for v in (0, 1)], 1)


def _rows(data: Dataset, seed: int, number: int, size: int) -> Tensor:
    return torch.randint(len(data.pixels), (size,), generator=torch.Generator().manual_seed(1_000_003 * seed + number))


def _train(model: nn.Module, data: Dataset, steps: int, seed: int) -> None:
    """SimCLR by Adam on batches of 128, and then the running statistics are held; without a step they are those of 20 batches."""
    model.train()
    batches = (_batch(data, seed, number, 128) for number in range(1000, 1000 + max(steps, 20)))
    if steps:
        simclr(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, TAU)
    else:
        with torch.no_grad():
            for views in batches:
                model(views.flatten(0, 1))
    model.eval()


PRICED, PRICED_STEPS, PRICED_LAYERS = 16, 100, ("0", "2")
Cell = tuple[str, int, float]
"""Images, steps of training, and the temperature of these and of the steps that are predicted."""
CELLS: tuple[Cell, ...] = tuple(
    (images, steps, tau)
    for images in ("digits", "photographs")
    for steps in (0, PRICED_STEPS)
    for tau in (0.05, 0.1, 0.5)
)


RECORDS = {
    "operators-today-corrected": (LADDER[2], CORRECTED, LADDER[-1]),
    "operators-today-ingredients": (*LADDER, BESIDE[0]),
}


def ingredient_values(name: str, seeds: tuple[int, ...]) -> dict[str, Any]:
    """A record of :data:`RECORDS`: cosines with the real step, of each of its theories and of another batch.

    batch: of single batches, the mean over these.  mean: of the mean step of the batches with the mean of the theory's steps.
    Axes: images, steps of training, temperature, layer, theory, seed.
    """
    train, keep = partial(_priced, RECORDS[name]), parts_folder() / name
    found = sweep(train, CELLS, seeds, alike=lambda cell: cell, most=lambda cell: 1, keep=keep)
    values: dict[str, Any] = {"batches": PRICED, "size": IMAGES, "cosines": {}}
    for (images, steps, tau), measured in found.items():
        of_cell = values["cosines"].setdefault(images, {}).setdefault(str(steps), {})
        of_cell[str(tau)] = {
            layer: {
                theory: {kind: rounded(measured[kind][:, i, j], 4) for kind in ("batch", "mean")}
                for j, theory in enumerate((*RECORDS[name], BESIDE[1]))
            }
            for i, layer in enumerate(PRICED_LAYERS)
        }
    return values


def _priced(theories: tuple[str, ...], chunk: Sequence[tuple[Cell, int]]) -> dict[str, Tensor]:
    """Of each replica the cosines of single batches, and of their mean, ``(replicas, layers, theories and another batch)``."""
    found: dict[str, list[Tensor]] = {"batch": [], "mean": []}
    cosine_of = partial(nn.functional.cosine_similarity, dim=-1)
    for (images, steps, tau), seed in chunk:
        draw, net = _world(images, seed)
        optimizer = torch.optim.SGD(net.parameters(), lr=tau)  # the gradient grows as 1 / tau
        simclr(net, optimizer, (draw(number)[0] for number in range(PRICED, PRICED + steps)), tau)
        rows = [list(ladder(net, PRICED_LAYERS, *draw(i), tau, only=theories).values()) for i in range(PRICED)]
        singles, means = [], []
        for i in range(len(PRICED_LAYERS)):
            predicted = torch.stack([torch.stack([step[i].flatten() for step in row]) for row in rows])
            real = predicted[:, theories.index(LADDER[-1])]
            singles.append(cosine_of(torch.cat([predicted, real.roll(1, 0)[:, None]], 1), real[:, None]).mean(0))
            means.append(torch.cat([cosine_of(predicted.mean(0), real.mean(0)), of_halves(real)[None]]))
        found["batch"].append(torch.stack(singles))
        found["mean"].append(torch.stack(means))
    return {kind: torch.stack(each) for kind, each in found.items()}


def of_halves(rows: Tensor) -> Tensor:
    """The cosine of the means of even and of odd rows: how far noise lets a mean of them be known."""
    return nn.functional.cosine_similarity(rows[::2].mean(0), rows[1::2].mean(0), dim=-1)


def _world(images: str, seed: int) -> tuple[Callable[[int], tuple[Tensor, Tensor]], nn.Sequential]:
    """Batches by their number, two views each and the images themselves, and an untrained network for them."""
    if images == "digits":
        shifted, seeds = digits_scene(512, seed=seed), 1000 * seed
        net = scene_network(shifted, seed)
        return lambda number: shifted.batch(IMAGES, torch.Generator().manual_seed(seeds + number)), net
    data = load_dataset("cifar10", "train")

    def draw(number: int) -> tuple[Tensor, Tensor]:
        return _batch(data, seed, number), plain(data.pixels[_rows(data, seed, number, IMAGES)], PIPELINES["cifar10"])

    return draw, convnet((3, 8, 16), 32, 16, seed=seed).float()


# -- as the pages show ``operators-today-ingredients``: how near each theory comes to a real step -----------------------

CALLED = {
    "averaged over views": "averaged",
    "of cosines": "cosines",
    "no view its own partner": "all pairs alike",
    "weights at clean images": "one negative, clean",
    "weights at the views": "one negative",
    "all negatives, clean weights": "all negatives, clean",
}
"""What the pages call a theory of the record, where that is not its own name."""

CASES = {
    f"{images}, {when}": (images, steps)
    for images in ("digits", "photographs")
    for when, steps in (("before", "0"), ("after", "100"))
}
"""Images, and before or after training: what is recorded of each, by the pages' names."""


def cosines(record: Any, theory: str, case: str, tau: float, kind: str = "batch", layer: str = "2") -> np.ndarray:
    """A theory's cosines with the real step, one a seed.

    ``kind``: "batch", the mean over single batches, or "mean", of the mean step of all batches. ``layer``: "0" or "2", the
    first or the second convolution.
    """
    images, steps = CASES[case]
    return np.array(record["cosines"][images][steps][str(tau)][layer][theory][kind])


def largest(record: Any, theory: str, when: str = "after", over: Any = np.mean) -> float:
    """The largest of a theory's cosines over images, temperatures, convolutions and kinds: of the mean over seeds, or ``over``."""
    return max(
        float(over(cosines(record, theory, case, tau, kind, layer)))
        for case in CASES
        if when in case
        for tau in (0.05, 0.1, 0.5)
        for kind in ("batch", "mean")
        for layer in ("0", "2")
    )


STUDIES = {"operators-today-cifar10": Study(cifar10_values, (1, 2, 3))} | {
    name: Study(partial(ingredient_values, name), tuple(range(6))) for name in RECORDS
}
