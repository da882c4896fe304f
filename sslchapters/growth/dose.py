"""Digits with planted directions whose dose is chosen, and networks that are trained on them: which directions grow?

A view is a shifted digit, 64 numbers, and beside it the planted coordinates; since the first weights are drawn from a distribution
that no rotation changes, planting along coordinates is planting along any orthonormal directions.  Seeds are an axis of every
tensor; each has streams of its own, so that a seed's numbers do not depend on how many others run beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._random import Streams
from sslbook.inspect.dose import DoseResponse
from sslbook.losses import batch, pairs
from sslchapters import enumerated
from sslchapters.intervals import Interval, difference, ratio_of_means
from sslchapters.records import parts_folder, rounded
from sslchapters.sweep import Study, sweep

GRID = (0.02, 0.04, 0.08, 0.16)
"""Variances between images and within views: the sixteen directions have all pairs of them."""
DOSES = tuple((a, b) for a in GRID for b in GRID)
CONSTANT = (0.04, 0.16)
"""Squares of two coordinates that are equal in all views of all images."""
OF_CLASS = tuple((a, 0.04) for a in GRID)
"""Variances of four coordinates whose shared part is a function of the digit's class."""
PIXELS, WIDTH, OUTPUTS, BATCH = 64, 128, 32, 128
INPUTS = PIXELS + len(DOSES) + len(CONSTANT) + len(OF_CLASS)

Weights = list[Tensor]


def forward(weights: Weights, x: Tensor, activation: str = "relu") -> Tensor:
    """Outputs of three layers without biases, ``(R, M, D)`` of inputs ``(R, M, d)``."""
    act = torch.relu if activation == "relu" else torch.Tensor.clone
    return act(act(x @ weights[0].mT) @ weights[1].mT) @ weights[2].mT


def initial(streams: Streams, inputs: int = INPUTS) -> Weights:
    """Weights of variance 2 / inputs, 1 / inputs in the last layer."""
    shapes, gains = ((WIDTH, inputs), (WIDTH, WIDTH), (OUTPUTS, WIDTH)), (2.0, 2.0, 1.0)
    return [streams.normal(shape).float() * (gain / shape[1]) ** 0.5 for shape, gain in zip(shapes, gains, strict=True)]


def shifted_digits() -> tuple[Tensor, Tensor]:
    """Digits of mean zero and mean square length 1, each with its nine shifts, itself first, ``(N, 9, 64)``; and their classes."""
    data = enumerated.digits()
    pixels = data.pixels - data.pixels.mean(0)
    return enumerated.shifts(pixels, 1).flatten(2) / pixels.square().sum((1, 2, 3)).mean().sqrt(), data.labels


class Images:
    """Digits and planted coordinates of several seeds: ``views(index)`` draws two views of images, ``(R, 2, n, d)``."""

    def __init__(self, streams: Streams, random_labels: bool = False) -> None:
        self.shifted, labels = shifted_digits()
        self.streams, replicas, n = streams, len(streams), len(labels)
        of_class = torch.tensor(OF_CLASS).expand(replicas, -1, -1)
        zeros = torch.zeros(replicas, len(CONSTANT))
        doses = torch.tensor(DOSES).expand(replicas, -1, -1)
        self.noise = torch.cat([doses[..., 1], of_class[..., 1], zeros], 1).sqrt()
        a = _standard(streams.normal((n, len(DOSES))).float())
        codes = streams.normal((10, len(OF_CLASS))).float()
        b = _standard(codes[:, labels])
        constant = torch.tensor(CONSTANT).sqrt().expand(replicas, n, -1)
        self.shared = torch.cat([a * doses[:, None, :, 0].sqrt(), b * of_class[..., 0].sqrt()[:, None], constant], 2)
        self.labels = labels.expand(replicas, n)
        if random_labels:
            self.labels = torch.gather(self.labels, 1, streams.uniform((n,)).argsort(1))

    def batch(self, size: int = BATCH) -> tuple[Tensor, Tensor]:
        """Two views ``(R, 2 * size, d)``, first all first ones, and the labels ``(R, size)`` of a batch of distinct images."""
        index = self.streams.uniform((self.shared.shape[1],)).argsort(1)[:, :size]
        return self.views(index, self.streams), torch.gather(self.labels, 1, index)

    def views(self, index: Tensor, streams: Streams) -> Tensor:
        """Two views of the images ``index``, ``(R, n)``, as `batch` has them, drawn from these streams."""
        which = (9 * streams.uniform((2, index.shape[1]))).long()
        digits = self.shifted[index[:, None], which]
        shared = torch.gather(self.shared, 1, index[..., None].expand(-1, -1, self.shared.shape[2]))
        noise = streams.normal((2, index.shape[1], self.noise.shape[1])).float() * self.noise[:, None, None]
        return torch.cat([digits, shared[:, None] + noise], 3).flatten(1, 2)


def _standard(x: Tensor) -> Tensor:
    x = x - x.mean(1, keepdim=True)
    return x / x.square().mean(1, keepdim=True).sqrt()


def between(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of two views of each image ``(R, 2, n, D)``: mean product of partners less that of strangers, and mean square, ``(R,)``."""
    n, mean = rows.shape[2], rows.mean(2)
    partners = (rows[:, 0] * rows[:, 1]).sum(2).mean(1)
    strangers = (n * (mean[:, 0] * mean[:, 1]).sum(1) - partners) / (n - 1)
    return partners - strangers, rows.square().sum(3).mean((1, 2)), strangers


SHARES = ("output", "with the mean", "unit length", "layer")
"""The part between images of the outputs' variance, of their mean square, of unit outputs' square, of the first layer's."""


@torch.no_grad()
def shares(weights: Weights, x: Tensor, outputs: int = OUTPUTS) -> Tensor:
    """The `SHARES` of a network with so many outputs, ``(R, 4)``, of two views of each image, ``(R, 2 n, d)``."""
    out = forward(weights, x)[..., :outputs].unflatten(1, (2, -1)).double()
    apart, square, strangers = between(out)
    layer = between((x @ weights[0].mT).unflatten(1, (2, -1)).double())
    cosines = between(F.normalize(out, dim=3))[0]
    return torch.stack([apart / (square - strangers), apart / square, cosines, layer[0] / (layer[1] - layer[2])], 1)


# ---------------------------------------------------------------------------------------------------------------- methods


def _two(loss: Callable[..., Tensor], **numbers: Any) -> Callable[..., Tensor]:
    return lambda one, two, labels: loss(torch.stack([one, two], 2), **numbers)


def simple(one: Tensor, two: Tensor, labels: Tensor, normalize: bool = False) -> Tensor:
    """The simple loss of a batch, all views of other images as negatives, of outputs or of cosines."""
    return pairs.contrastive(one, two, "simple", normalize=normalize)


def alignment(one: Tensor, two: Tensor, labels: Tensor) -> Tensor:
    """Minus the mean cosine of two views: no negatives, and nothing in their place."""
    return -F.cosine_similarity(one, two, dim=-1).mean(-1)


def cross_entropy(one: Tensor, two: Tensor, labels: Tensor) -> Tensor:
    """Classification by the first ten outputs, of both views."""
    logits = torch.stack([one, two])[..., :10].movedim(-1, 1)
    return F.cross_entropy(logits, labels.expand(2, *labels.shape), reduction="none").mean((0, 2))


def predicted(outputs: Tensor, targets: Tensor, predictor: Tensor) -> Tensor:
    """BYOL's loss ``(R,)`` of two views' outputs ``(R, 2, n, D)``: one's prediction with the other's target, both standardised."""
    guess = _standard(outputs.movedim(1, 0).flatten(0, 1)) @ predictor.repeat(2, 1, 1).mT
    aim = _standard(targets.detach().flip(1).movedim(1, 0).flatten(0, 1))
    cosines: Tensor = F.cosine_similarity(guess, aim, dim=-1).mean(-1).unflatten(0, (2, -1))
    return 1 - cosines.mean(0)


@dataclass(frozen=True)
class Method:
    """A loss of the outputs of two views, ``(R, n, D)`` each, and labels, and how it is trained.

    average: the momentum of BYOL's target, 0 without one (SimSiam); None where there is no predictor.  steps: at most so many.
    """

    loss: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    rate: float = 0.05
    momentum: float = 0.9
    average: float | None = None
    steps: int = 10_000
    random_labels: bool = False


METHODS = {
    "simple loss": Method(simple, rate=0.01, momentum=0.0, steps=60),
    "simple on cosines": Method(partial(simple, normalize=True)),
    "InfoNCE, τ = 2": Method(_two(batch.info_nce, temperature=2.0)),
    "InfoNCE, τ = 0.5": Method(_two(batch.info_nce, temperature=0.5)),
    "InfoNCE, τ = 0.1": Method(_two(batch.info_nce, temperature=0.1)),
    "spectral": Method(_two(batch.spectral_contrastive), rate=0.01),
    "Barlow Twins": Method(_two(batch.barlow_twins, weight=5e-3), rate=0.002),
    "VICReg": Method(_two(batch.vicreg), rate=0.002),
    "BYOL": Method(None, average=0.99),
    "SimSiam": Method(None, average=0.0),
    "alignment alone": Method(alignment),
    "labels": Method(cross_entropy),
    "random labels": Method(cross_entropy, random_labels=True),
}
CONTROLS = ("alignment alone", "labels", "random labels")
TIMES = (25, 100, 400)


def train(name: str, seeds: Sequence[int], times: Sequence[int] = TIMES) -> dict[str, Tensor]:
    """Log growth of ``|W_1 q|^2`` at each time, ``(R, T, 22)``, the loss, and `SHARES`, first untrained, ``(R, 1 + T, 4)``.

    The directions: sixteen of `DOSES`, four of the class, two constant.  Times after the method's last are its last.
    """
    method, streams = METHODS[name], Streams(seeds, "growth-dose")
    data = Images(streams, method.random_labels)
    weights = initial(streams)
    predictor = streams.normal((OUTPUTS, OUTPUTS)).float() / OUTPUTS**0.5
    parameters = [each.requires_grad_() for each in [*weights, *([predictor] if method.average is not None else [])]]
    target = [each.detach().clone() for each in weights]
    planted = weights[0][..., PIXELS:].detach().square().sum(1).log()
    optimizer = torch.optim.SGD(parameters, lr=method.rate, momentum=method.momentum)
    own, every = Streams(seeds, "growth-share"), torch.arange(data.shared.shape[1]).expand(len(seeds), -1)
    used, last = 10 if method.loss is cross_entropy else OUTPUTS, min(max(times), method.steps)
    growth, losses, seen = [], [], [shares(weights, data.views(every, own), used)]
    for step in range(1, last + 1):
        x, labels = data.batch()
        outputs = forward(weights, x).unflatten(1, (2, -1))
        if method.loss is not None:
            value = method.loss(outputs[:, 0], outputs[:, 1], labels)
        else:
            aims = forward(target, x).unflatten(1, (2, -1)) if method.average else outputs
            value = predicted(outputs, aims, predictor)
        optimizer.zero_grad()
        value.sum().backward()
        optimizer.step()
        if method.average:
            for old, new in zip(target, weights, strict=True):
                old.lerp_(new.detach(), 1 - method.average)
        if step in times or step == last:
            growth.append(weights[0][..., PIXELS:].detach().square().sum(1).log() - planted)
            losses.append(value.detach())
            seen.append(shares(weights, data.views(every, own), used))
    late = len(times) - len(losses)
    found = {"growth": growth, "loss": losses, "shares": seen}
    return {name: torch.stack(of + of[-1:] * late, 1) for name, of in found.items()}


# --------------------------------------------------------------------------------------------------------------- measures


@dataclass(frozen=True)
class Response:
    """What the growth of the sixteen directions depends on; an array over seeds each.

    amount, share: Spearman's correlation of growth with the amount and with the share.  by_shared, by_unshared: slopes of growth
    in the logarithm of the variance between images and within views.
    """

    amount: np.ndarray
    share: np.ndarray
    by_shared: np.ndarray
    by_unshared: np.ndarray

    @property
    def lead(self) -> Interval:
        """By how much the correlation with the share exceeds that with the amount, paired by seed."""
        return difference(self.share, self.amount)

    @property
    def theta(self) -> Interval:
        r""":math:`\theta = -\bar b_u / \bar b_s`, with its bootstrap over seeds."""
        return ratio_of_means(-self.by_unshared, self.by_shared)


def response(growth: Tensor | np.ndarray, doses: Sequence[tuple[float, float]] = DOSES) -> Response:
    """Of the growth of directions of these ``doses`` and, behind them, of what else was planted: ``(R, 16 or more)``."""
    rows = np.asarray(growth, dtype=np.float64)[:, : len(doses)]
    shared, unshared = np.array(doses).T
    found = [DoseResponse(shared, unshared, row) for row in rows]
    return Response(*np.array([(*each.ranks, *each.slopes) for each in found]).T)


# ----------------------------------------------------------------------------------------------------------------- record

LOOKS = (10, 20, 25, 50, 100, 200, 400)
"""Steps after which a network's own shares are measured, as they are before the first."""


def doses(seeds: tuple[int, ...], times: Sequence[int] = TIMES, looks: Sequence[int] = LOOKS) -> dict[str, Any]:
    """The record: by method, of seed and time, ``growth`` by direction (in the order of `train`), and the ``loss``.

    By look: ``shares`` (the `SHARES`), the first before training; ``slopes``, as `Response` has them.
    """

    def trained(chunk: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
        return train(chunk[0][0], [seed for _, seed in chunk], looks)

    keep = parts_folder() / "growth-dose"
    found = sweep(trained, tuple(METHODS), seeds, alike=lambda method: method, most=lambda method: 12, keep=keep)
    of_times = [looks.index(time) for time in times]
    fits = {name: [response(of["growth"][:, look]) for look in range(len(looks))] for name, of in found.items()}
    return {
        "times": list(times),
        "looks": [0, *looks],
        "steps": max(times),
        "growth": {method: rounded(of["growth"][:, of_times], 4) for method, of in found.items()},
        "loss": {method: rounded(of["loss"][:, of_times], digits=5) for method, of in found.items()},
        "shares": {method: rounded(of["shares"], 5) for method, of in found.items()},
        "slopes": {name: rounded([(fit.by_shared, fit.by_unshared) for fit in of], 5) for name, of in fits.items()},
    }


STUDIES = {"growth-dose": Study(doses, tuple(range(24)))}
