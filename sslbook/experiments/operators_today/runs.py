r"""How much of a real SimCLR step each operator explains, on identical batches.

A batch is 64 images, two views each; its step is minus the gradient of NT-Xent (cosines, all 126 negatives, both towers).
Each operator gets the same views and the same weights, and is asked for its step by :math:`f` in place of :math:`K^\top w`, so
that no bias or parallel path counts against it.

The record ``operators-today-cifar10``: real SimCLR batches of photographs, a ResNet-18 with its running statistics held.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sslbook.experiments.operators_today.checks import gap
from sslbook.images import enumerated
from sslbook.images.datasets import Dataset, load_dataset
from sslbook.losses import batch
from sslbook.losses import pairs as losses
from sslbook.networks.siamese import Networks, build
from sslbook.networks.small import convnet
from sslbook.operator.covariance import covariance_operator
from sslbook.operator.layer import Layer
from sslbook.operator.view_weights import PairMixing
from sslbook.stats.intervals import Interval, difference, mean_interval
from sslbook.stats.sweep import Study
from sslbook.training.views.augment import PIPELINES, plain, random_view


@dataclass(frozen=True)
class Digits:
    """Handwritten digits with all shifts by up to one pixel: ``views (N, 9, 1, 8, 8)``, un-augmented ``clean (N, 1, 8, 8)``."""

    views: Tensor
    clean: Tensor

    def batch(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Of ``size`` images: two different views each ``(size, 2, ...)``, the images themselves, all nine views."""
        sample = torch.randperm(len(self.views), generator=draw)[:size]
        pair = torch.rand(size, self.views.shape[1], generator=draw).argsort(1)[:, :2]
        where = self.views.device
        sample, pair = sample.to(where), pair.to(where)
        return self.views[sample[:, None], pair], self.clean[sample], self.views[sample]


def digits(samples: int = 512, seed: int = 0, device: torch.device | str = "cpu") -> Digits:
    """The mean image is subtracted."""
    data = enumerated.digits(samples, seed, dtype=torch.float64)
    mean = data.pixels.mean(0)
    return Digits((enumerated.shifts(data.pixels, 1) - mean).to(device), (data.pixels - mean).to(device))


def network(seed: int = 0, device: torch.device | str = "cpu") -> nn.Sequential:
    """Two convolutions (8 and 16 channels) and a linear head of 16 outputs."""
    return convnet((1, 8, 16), 8, 16, seed=seed).to(device)


def trained(net: nn.Sequential, data: Digits, *, steps: int, tau: float) -> nn.Sequential:
    """``net`` after so many steps of SimCLR (batches of 64, SGD at rate 0.5), trained in place."""
    optimizer, draw = torch.optim.SGD(net.parameters(), lr=0.5), torch.Generator().manual_seed(0)
    for _ in range(steps):
        views, *_ = data.batch(64, draw)
        optimizer.zero_grad()
        batch.info_nce(net(views.flatten(0, 1)).unflatten(0, (64, 2)), temperature=tau).backward()
        optimizer.step()
    return net


def _cosine_loss(z: Tensor, *, loss: str, **numbers: Any) -> Tensor:
    """A loss of distances on the batch itself: cosines, and all other samples' views as negatives."""
    first, second = nn.functional.normalize(z, dim=-1).unbind(-2)
    return losses.contrastive(first, second, loss, normalize=False, **numbers)


def steps_of(
    net: nn.Module, layer: str, views: Tensor, clean: Tensor, tau: float, every: Tensor | None = None
) -> dict[str, Tensor]:
    r"""Steps of a layer on one batch ``views (n, 2, ...)``, by the operator of each theory; "autograd" is the step itself.

    theorem 3: the covariance operator, outputs as they are.  eq. 56: of outputs of length 1.  theorem 4: that with the weights of
    one negative.  unbiased: eq. 56 with distinct views in a positive pair and distinct images in a negative one,
    :math:`\beta = (n - 1)/(n (V - 1))`.  all views: eq. 56 of ``every`` view of these images, if given.  not averaged: eq. 56 of
    single views.  no augmentation: eq. 56 of the images.  all pairs alike: the simple loss of this batch.  one negative: the loss
    of one negative of this batch, over all negatives in turn.
    """
    op = partial(covariance_operator, net, layer)
    outputs = net(views.flatten(0, 1)).flatten(1).unflatten(0, views.shape[:2])
    (gradient,) = torch.autograd.grad(batch.info_nce(outputs, temperature=tau), net.get_parameter(f"{layer}.weight"))
    exact: dict[str, Callable[[Tensor], Tensor]] = {
        "this chapter": partial(batch.info_nce, temperature=tau),
        "all pairs alike": partial(_cosine_loss, loss="simple"),
        "one negative": partial(_cosine_loss, loss="soft_triplet", temperature=tau),
    }
    found = {"autograd": -gradient} | {name: op(views, loss=loss).exact_update() for name, loss in exact.items()}
    theories: dict[str, dict[str, Any]] = {
        "unbiased": {"views": views, "normalize": True, "beta": 1 - 1 / len(views)},
        "cross-covariance": {"views": views, "normalize": True},
        "weighted": {"views": views, "normalize": True, "loss": "info_nce", "temperature": tau, "clean": clean},
        "all nine shifts": {"views": every, "normalize": True},
        "not averaged": {"views": views.flatten(0, 1)[:, None], "normalize": True},
        "no augmentation": {"views": clean[:, None], "normalize": True},
        "no cosines": {"views": views},
    }
    if every is None:
        del theories["all nine shifts"]
    return found | {name: op(**given).exact_update() for name, given in theories.items()}


@dataclass(frozen=True)
class Explained:
    """Cosines of each theory's step with the batch's own: a list over batches, by name."""

    cosines: dict[str, Tensor]
    error: float
    """Relative error of "this chapter", the largest over the batches."""

    def interval(self, name: str) -> Interval:
        """The mean over the batches, with its 95 % confidence interval by Student's t."""
        return mean_interval(self.cosines[name].numpy())

    def ahead(self, first: str, second: str) -> Interval:
        """The same of the difference of two theories, paired over the batches."""
        return difference(self.cosines[first].numpy(), self.cosines[second].numpy())


def explained(
    net: nn.Module, layer: str, data: Digits, *, tau: float, batches: int, size: int = 64, seed: int = 0
) -> Explained:
    """How much of the step of a layer each theory explains, on ``batches`` batches that all get.

    another batch: the step that the next batch takes, exactly.
    """
    draw, rows, errors, truths = torch.Generator().manual_seed(seed), [], [], []
    for _ in range(batches):
        views, clean, every = data.batch(size, draw)
        found = steps_of(net, layer, views, clean, tau, every)
        truths.append(found.pop("autograd"))
        rows.append({name: cosine(step, truths[-1]) for name, step in found.items()})
        errors.append(float((found["this chapter"] - truths[-1]).norm() / truths[-1].norm()))
    cosines = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    pairs = zip(truths, truths[1:] + truths[:1], strict=True)
    cosines["another batch"] = torch.tensor([cosine(other, truth) for truth, other in pairs])
    return Explained(cosines, max(errors))


def pair_shares(matrix: Tensor) -> Sequence[float]:
    r"""Over how many views an anchor's push is spread: :math:`e^{\text{entropy}}` of a row's negative entries, a row each."""
    push = (-matrix).clamp_min(0) * ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    share = push / push.sum(1, keepdim=True)
    found: list[float] = torch.special.entr(share).sum(1).exp().tolist()
    return found


def cosine(a: Tensor, b: Tensor) -> float:
    """Of two weights, or steps, of one shape."""
    return float((a * b).sum() / (a.norm() * b.norm()))


# ---------------------------------------------------------------------------------------------------------------------
# The record

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
        op = covariance_operator(model, name, views, loss="info_nce", temperature=TAU)
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
    batch.info_nce(outputs, temperature=tau).backward()
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
            loss = batch.info_nce(model(views.flatten(0, 1)).unflatten(0, (128, 2)), temperature=TAU)
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
