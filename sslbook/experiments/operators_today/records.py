r"""The record ``operators-today-cifar10``: real SimCLR batches of photographs, a ResNet-18 with its running statistics held."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sslbook.experiments.operators_today.checks import gap
from sslbook.experiments.operators_today.explained import cosine, steps_of
from sslbook.images.datasets import Dataset, load_dataset
from sslbook.losses import batch
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import covariance_operator
from sslbook.operator.layer import Layer
from sslbook.operator.view_weights import PairMixing
from sslbook.stats.sweep import Study
from sslbook.training.views.augment import PIPELINES, plain, random_view

IMAGES, WIDTH, TAU, STEPS, BATCHES = 64, 16, 0.5, 100, 4
LAYERS = ("0.conv1", "0.layer2.0.conv2", "0.layer4.1.conv2", "1.linears.1")


def cifar10_values(seeds: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    """For each seed, before and after a hundred steps of SimCLR, in float32.

    error, double, mixed: :func:`backward_errors`.  rounding: the relative error of ``.backward()`` against itself in float64, in
    each layer, by its name.  held: the cosine of that step with the one of training, in the batch's statistics.
    cosines: of each theory's step with the batch's own, lists over batches, by layer.
    """
    data = load_dataset("cifar10", "train")
    found: dict[str, Any] = {
        "seeds": list(seeds),
        "steps": [0, STEPS],
        "error": [],
        "double": [],
        "mixed": [],
        "rounding": [],
        "held": [],
        "cosines": [],
    }
    for seed in seeds:
        net = build(Networks(width=WIDTH), seed)
        model = nn.Sequential(net.encoder, net.projector)
        for steps in (0, STEPS):
            _train(model, data, steps, seed)
            for key, errors in backward_errors(model, _batch(data, seed, 0)).items():
                found[key].append(errors)
            found["rounding"].append(rounding(model, _batch(data, seed, 0)))
            found["held"].append(held(model, _batch(data, seed, 0)))
            found["cosines"].append({name: _cosines(model, name, data, seed) for name in LAYERS})
    return found


def backward_errors(model: nn.Module, views: Tensor) -> dict[str, dict[str, float]]:
    r"""The step of each layer by :math:`-2 \sum \Gamma_{ab} K_a f_b` against one ``.backward()`` of NT-Xent, relative.

    error: the loss in the network's precision.  double: the loss of ``outputs.double()``, its gradient rounded once.  mixed: the
    same, and :math:`\Gamma` multiplied in the network's precision, not in float64.
    """
    plain, double = (_backward(model, views, TAU, dtype) for dtype in (views.dtype, torch.float64))
    found: dict[str, dict[str, float]] = {"error": {}, "double": {}, "mixed": {}}
    for name in plain:
        op = covariance_operator(model, name, views, loss="nt_xent", tau=TAU)
        assert isinstance(op.mixing, PairMixing)
        step, coarse = -op.exact_update(), PairMixing(op.mixing.matrix.to(op.dtype))
        found["error"][name] = gap(step, plain[name])
        found["double"][name] = gap(step, double[name])
        found["mixed"][name] = gap(-replace(op, mixing=coarse).exact_update(), double[name])
    return found


def rounding(model: nn.Module, views: Tensor) -> dict[str, float]:
    """How far ``.backward()`` in float32 is from that in float64, relative, by layer."""
    whole = _backward(copy.deepcopy(model).double(), views.double(), TAU)
    single = _backward(model, views, TAU)
    return {name: gap(single[name], truth) for name, truth in whole.items()}


def held(model: nn.Module, views: Tensor) -> dict[str, float]:
    """The cosine of a layer's step with BatchNorm's statistics held and with those of the batch, as in training."""
    as_trained = _backward(copy.deepcopy(model).train(), views, TAU)
    as_held = _backward(model, views, TAU)
    return {name: cosine(as_held[name], step) for name, step in as_trained.items()}


def _backward(model: nn.Module, views: Tensor, tau: float, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Gradients in the layers' weights, of the loss in ``dtype``, the network's own if not given."""
    model.zero_grad()
    outputs = model(views.flatten(0, 1)).unflatten(0, views.shape[:2]).to(dtype or views.dtype)
    batch.nt_xent(outputs, tau=tau).backward()
    layers = {name: part for name, part in model.named_modules() if isinstance(part, Layer)}
    return {name: part.weight.grad for name, part in layers.items() if part.weight.grad is not None}


def _batch(data: Dataset, seed: int, number: int, size: int = IMAGES) -> Tensor:
    """Two views of ``size`` images of a batch, ``(size, 2, 3, 32, 32)``."""
    pixels = data.pixels[_rows(data, seed, number, size)]
    views = [random_view(pixels, PIPELINES["cifar10"], seed=seed, step=number, view=view) for view in (0, 1)]
    return torch.stack(views, dim=1)


def _rows(data: Dataset, seed: int, number: int, size: int) -> Tensor:
    draw = torch.Generator().manual_seed(1_000_003 * seed + number)
    return torch.randint(len(data.pixels), (size,), generator=draw)


def _train(model: nn.Module, data: Dataset, steps: int, seed: int) -> None:
    """SimCLR by Adam on batches of 128, and then the running statistics are held; without a step they are those of 20 batches."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(1000, 1000 + max(steps, 20)):
        with torch.set_grad_enabled(steps > 0):
            views = _batch(data, seed, number, 128)
            loss = batch.nt_xent(model(views.flatten(0, 1)).unflatten(0, (128, 2)), tau=TAU)
        if steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()


def _cosines(model: nn.Module, layer: str, data: Dataset, seed: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for number in range(BATCHES):
        views = _batch(data, seed, number)
        clean = plain(data.pixels[_rows(data, seed, number, IMAGES)], PIPELINES["cifar10"])
        steps = steps_of(model, layer, views, clean, TAU)
        truth = steps.pop("autograd")
        for name, step in steps.items():
            found.setdefault(name, []).append(cosine(step, truth))
    return found


STUDIES = {"operators-today-cifar10": Study(cifar10_values, (1, 2, 3))}
