r"""Real images: how closely the operator predicts a real SimCLR step, and what it says will be learned.

The population is ``N`` images with all their translations (or flips and brightness levels) as views, so that the operator is
exact; a SimCLR step draws a batch of images and two views of each, back-propagates through both towers and steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslbook._check import require_whole
from sslbook.losses import pairs as losses
from sslbook.operator.covariance import CovarianceOperator, covariance_operator
from sslbook.operator.layer import vec
from sslbook.operator.view_weights import Mixing
from sslchapters import enumerated
from sslchapters.enumerated import Scene, scene, scene_network
from sslchapters.enumerated import digits_scene as digits_scene
from sslchapters.records import parts_folder, rounded
from sslchapters.sweep import Study, sweep

OPERATOR = "operator"
RIVALS = ("views not averaged", "covariance within views", "no augmentation")
"""Operators that the covariance between images is easily mistaken for."""


def scene_operator(
    net: nn.Module, layer: str, scene: Scene, *, loss: str = "simple", tau: float = 0.5
) -> CovarianceOperator:
    """The operator that belongs to ``loss``: plain for ``"simple"``, weighted and l2-normalised for ``"info_nce"`` as in SimCLR."""
    if loss == "simple":
        return covariance_operator(net, layer, scene.views)
    return covariance_operator(net, layer, scene.views, loss=loss, temperature=tau, normalize=True, clean=scene.clean)


def theories(net: nn.Module, layer: str, scene: Scene, *, loss: str = "simple", tau: float = 0.5) -> dict[str, Tensor]:
    """The steps that :data:`OPERATOR` and its rivals predict for a loss, in the weight's shape; the rivals of :data:`RIVALS` first.

    For ``"info_nce"`` all are of normalised outputs and have the weights of one negative, but for the two that leave
    these out; the last has no weights either.
    """
    found = _operators(net, layer, scene, loss=loss, tau=tau)
    op = found[0]
    if loss != "simple":
        found += [replace(op, mixing=Mixing()), replace(op, normalize=False, mixing=Mixing())]
    names = (OPERATOR, *RIVALS, "weights left out", "outputs not normalised")
    return {name: 2 * each.update() for name, each in zip(names, found, strict=False)}


def _operators(
    net: nn.Module, layer: str, scene: Scene, *, loss: str = "simple", tau: float = 0.5
) -> list[CovarianceOperator]:
    """The operator of a scene, and those that it is mistaken for, in the order of :data:`RIVALS`."""
    op = scene_operator(net, layer, scene, loss=loss, tau=tau)
    alone = scene.views.flatten(0, 1)
    others = (replace(scene, views=x[:, None], clean=x) for x in (alone, scene.clean))
    mixed, still = (scene_operator(net, layer, each, loss=loss, tau=tau) for each in others)
    return [op, mixed, replace(op, mixing=Mixing(inter=0.0, intra=1.0)), still]


@dataclass(frozen=True)
class Agreement:
    """Cosines between the means of ``batches`` SimCLR gradients and what theories predict: by theory a row a mean's size."""

    batches: tuple[int, ...]
    cosines: dict[str, tuple[tuple[float, ...], ...]]
    lengths: dict[str, tuple[float, ...]]
    """How long the mean gradient of all batches of a replicate is along what a theory predicts, in units of that."""

    def of(self, theory: str = OPERATOR) -> Tensor:
        """The mean cosine for each of ``batches``."""
        return torch.tensor([sum(row) / len(row) for row in self.cosines[theory]], dtype=torch.float64)

    @property
    def rivals(self) -> dict[str, float]:
        """The others' mean cosines with the means of most batches."""
        return {name: float(self.of(name)[-1]) for name in self.cosines if name != OPERATOR}


def simclr_agreement(
    op: CovarianceOperator,
    predicted: Mapping[str, Tensor],
    *,
    batches: tuple[int, ...] = (1, 4, 16, 64),
    loss: str = "simple",
    tau: float = 0.5,
    replicates: int = 4,
    seed: int = 0,
) -> Agreement:
    r"""Compare predicted steps with minus the mean gradient of ``m`` SimCLR batches (both towers), for each ``m`` of ``batches``.

    predicted: by name, as :func:`theories` has them.  A batch has 64 images.  One is noisy; what remains when many are averaged is
    the expected step, which is what the theorems are about.
    """
    fewest = math.gcd(*batches)  # finer means than these are not asked for
    drawn = [
        -simclr_gradients(op, 64, loss=loss, tau=tau, replicates=max(batches), seed=seed + r, together=fewest)
        for r in range(replicates)
    ]
    steps = torch.stack(drawn).flatten(2)
    groups = [m // fewest for m in batches]
    means = [steps[:, : steps.shape[1] // m * m].unflatten(1, (-1, m)).mean(2).flatten(0, 1) for m in groups]
    cosines = {
        name: tuple(tuple(torch.cosine_similarity(mean, step.flatten()[None]).tolist()) for mean in means)
        for name, step in predicted.items()
    }
    lengths = {
        name: tuple((steps.mean(1) @ step.flatten() / step.square().sum()).tolist()) for name, step in predicted.items()
    }
    return Agreement(batches, cosines, lengths)


def batches_of(population: tuple[int, int], size: int, replicates: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Where the two views of ``replicates`` batches of ``size`` distinct images lie among all views, ``(R, size)`` each.

    Drawn on the CPU, so that every device sees the same batches.
    """
    n, v = population
    size = require_whole("size", size, least=2, most=n)
    draw = torch.Generator().manual_seed(seed)
    sample = torch.rand(replicates, n, generator=draw).argsort(1)[:, :size]
    first, second = (sample * v + torch.randint(v, sample.shape, generator=draw) for _ in range(2))
    return first, second


def simclr_gradients(
    op: CovarianceOperator,
    size: int,
    *,
    loss: str = "simple",
    tau: float = 0.5,
    replicates: int = 16,
    seed: int = 0,
    together: int = 1,
) -> Tensor:
    """Gradients of ``replicates`` SimCLR batches of ``size`` distinct images in the operator's layer, ``(R, *weight)``.

    together: so many batches' mean in place of each, ``(R / together, *weight)``; one backward pass gives a mean.
    """
    n, v = op.population
    y = op.opened.output.detach()
    first, second = (index.to(y.device) for index in batches_of(op.population, size, replicates, seed))
    pair = [y[index].requires_grad_(True) for index in (first, second)]
    options = {"normalize": True, "temperature": tau} if loss == "info_nce" else {"normalize": False}
    value = losses.contrastive(pair[0], pair[1], loss=loss, **options)
    pulls = torch.autograd.grad(value.sum(), pair)
    cotangent = torch.zeros(replicates // together * n * v, y.shape[1], dtype=y.dtype, device=y.device)
    row = n * v * (torch.arange(replicates, device=y.device)[:, None] // together)
    for index, pull in zip((first, second), pulls, strict=True):
        cotangent.index_add_(0, (index + row).flatten(), pull.flatten(0, 1))
    return op.opened.vjp(cotangent.unflatten(0, (-1, n * v)) / together)


def train_student(net: nn.Sequential, scene: Scene, *, told: bool, steps: int, seed: int) -> nn.Sequential:
    """Train ``net`` in place by SGD on batches of 64 images, with two of their views each.

    told: by cross-entropy on the outputs of both views, which knows what the images show; else by SimCLR's InfoNCE.
    """
    draw = torch.Generator().manual_seed(seed)
    (n, v), flat = scene.views.shape[:2], scene.views.flatten(0, 1)
    labels = scene.labels.to(flat.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(steps):
        sample = torch.randperm(n, generator=draw)[:64]
        shown = [v * sample + torch.randint(v, (64,), generator=draw) for _ in range(2)]
        one, two = (net(flat[index]) for index in torch.stack(shown).to(flat.device))
        truth = labels[sample.to(flat.device)]
        optimizer.zero_grad()
        if told:
            loss = (F.cross_entropy(one, truth) + F.cross_entropy(two, truth)) / 2
        else:
            loss = losses.contrastive(one, two, temperature=0.5)
        loss.backward()
        optimizer.step()
    return net


def surviving_modes(scene: Scene, k: int = 6) -> tuple[Tensor, Tensor, float]:
    r"""Eigenvalues ``(k,)``, eigenvectors ``(k, C, H, W)`` and trace of a linear neuron's operator, :math:`V_x[\bar x]`.

    The connection of one linear neuron is its input, so the operator is the covariance of the view-averaged images.
    """
    size = scene.clean[0].numel()
    net = nn.Sequential(nn.Flatten(), nn.Linear(size, 1, bias=False, dtype=scene.views.dtype)).to(scene.views.device)
    op = covariance_operator(net, "1", scene.views)
    pairs = op.top_eigenpairs(k)
    return pairs.values.cpu(), pairs.vectors.T.reshape(k, *scene.clean.shape[1:]).cpu(), op.trace()


def cifar10_values(seeds: tuple[int, ...]) -> dict[str, object]:
    """The record ``covariance-cifar10``: how well operators predict SimCLR steps of a conv net on 256 real CIFAR-10 images.

    A view is an image or its mirror image, at one of three levels of brightness.
    cosine: by loss, theory, seed and size of the mean.
    """

    def views(pixels: Tensor) -> Tensor:
        return torch.stack([(x * level).clamp(0, 1) for x in (pixels, pixels.flip(-1)) for level in (1.0, 0.8, 1.2)], 1)

    rows: dict[str, dict[str, list[list[float]]]] = {"simple": {}, "info_nce": {}}
    for seed in seeds:
        population = scene(enumerated.read("cifar10", "test", 256, seed, dtype=torch.float64), views)
        net = scene_network(population, seed)
        for loss, row in rows.items():
            op = scene_operator(net, "2", population, loss=loss)
            found = simclr_agreement(op, theories(net, "2", population, loss=loss), loss=loss, replicates=2, seed=seed)
            for theory in found.cosines:
                row.setdefault(theory, []).append(found.of(theory).tolist())
    return {"batches": [1, 4, 16, 64], "cosine": rows}


RUN_STEPS, RUN_LAYERS = 60, ("0", "2")
STATES = {"start": (False, 0), "simclr": (False, RUN_STEPS), "labels": (True, RUN_STEPS)}
"""Whether a network of a run was told the labels, and for how many steps it was trained."""


def along_runs(seeds: tuple[int, ...]) -> dict[str, object]:
    """The record ``covariance-runs``: 128 digits and a conv net of each seed, before and after training, in both convolutions.

    cosine: by state, layer and theory, of the mean of 64 batches' InfoNCE steps with the step that is predicted; over seeds.
    share: by state, layer and operator, of the weights' squared length in its eight leading modes; over seeds.
    """
    keep = parts_folder() / "covariance-runs"
    found = sweep(_along, tuple(STATES), seeds, alike=lambda state: state, most=lambda state: 1, keep=keep)
    values: dict[str, dict[str, Any]] = {"cosine": {}, "share": {}}
    for state, measured in found.items():
        for key, numbers in measured.items():
            kind, layer, name = key.split("/")
            values[kind].setdefault(state, {}).setdefault(layer, {})[name] = rounded(numbers, 5)
    return {"steps": RUN_STEPS, **values}


def _along(chunk: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
    """Cosines and shares of each replica, by ``kind/layer/name``."""
    found: dict[str, list[float]] = {}
    for state, seed in chunk:
        scene, (told, steps) = digits_scene(128, seed=seed), STATES[state]
        net = train_student(scene_network(scene, seed), scene, told=told, steps=steps, seed=seed)
        for layer in RUN_LAYERS:
            unit = nn.functional.normalize(vec(net.get_parameter(f"{layer}.weight").detach()), dim=0)
            for name, each in zip((OPERATOR, *RIVALS), _operators(net, layer, scene), strict=True):
                inside = (
                    each.top_eigenpairs(8, tol=1e-6).vectors.T @ unit
                )  # the share of the weights in its leading modes
                found.setdefault(f"share/{layer}/{name}", []).append(float(inside.square().sum()))
            op = scene_operator(net, layer, scene, loss="info_nce")
            predicted = theories(net, layer, scene, loss="info_nce")
            agreed = simclr_agreement(op, predicted, batches=(64,), loss="info_nce", replicates=1, seed=1000 + seed)
            for name in predicted:
                found.setdefault(f"cosine/{layer}/{name}", []).append(float(agreed.of(name)[0]))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


STUDIES = {
    "covariance-cifar10": Study(cifar10_values, (0, 1, 2)),
    "covariance-runs": Study(along_runs, tuple(range(8))),
}
