"""At which share is growth zero?  In many random networks, before and during training, against what the network outputs.

The networks are those of `sslchapters.growth.dose`.  What differs between them: how strong the digits are beside the planted
directions, and how far augmentation shifts them, so that the share of what they output lies anywhere between 0.2 and 0.8.  The
planted numbers of an image are drawn anew for each batch, as if there were no end of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sslbook._random import Streams
from sslchapters.growth.dose import BATCH, DOSES, METHODS, PIXELS, between, forward, initial, shifted_digits
from sslchapters.records import parts_folder, rounded
from sslchapters.sweep import Study, sweep

STATES = (0, 100, 300)
"""Steps of training before a network is measured."""
TRAINED = 24
"""So many networks of each kind are trained before they are measured."""


class Scenes:
    """Views for many networks, each with its own strength of the digits and of their shifts."""

    def __init__(self, streams: Streams) -> None:
        self.unit, _ = shifted_digits()
        self.streams = streams
        self.scale = 0.55 * 5.5 ** streams.uniform((1, 1, 1))
        self.strength = 1.6 * streams.uniform((1, 1, 1))
        self.a, self.b = torch.tensor(DOSES).T

    def batch(self, size: int = BATCH) -> Tensor:
        """``(R, 2 * size, 80)``, first all first views."""
        index = (len(self.unit) * self.streams.uniform((size,))).long()
        which = (9 * self.streams.uniform((2, size))).long()
        clean = self.unit[index, 0][:, None]
        digits = self.scale * (clean + self.strength * (self.unit[index[:, None], which] - clean))
        noise = self.streams.normal((3, size, len(DOSES))).float()
        planted = self.a.sqrt() * noise[:, :1] + self.b.sqrt() * noise[:, 1:]
        return torch.cat([digits, planted], 3).flatten(1, 2)


def measured(
    seeds: Sequence[int], activation: str, loss: str = "simple on cosines", steps: int = 0, batches: int = 30
) -> dict[str, Tensor]:
    """By network, ``(R,)``: ``zero``, the share at which growth is zero, and the shares of ``output`` and ``layer``.

    loss: a name of `METHODS`, by which the networks are trained for so many ``steps`` and then differentiated.
    ``zero``: growth of a direction over its variance is fitted by a line in its share.  ``output``: which part of the outputs'
    variance lies between images; ``layer``: the same of the first pre-activations; ``cosine``: partners' mean less strangers'.
    """
    method, streams = METHODS[loss], Streams(seeds, "growth-zero")
    assert method.loss is not None, "a loss of outputs alone"
    scenes = Scenes(streams)
    weights = [each.requires_grad_() for each in initial(streams, PIXELS + len(DOSES))]
    optimizer = torch.optim.SGD(weights, lr=method.rate, momentum=method.momentum)
    nothing = torch.empty(0)

    def value(x: Tensor) -> tuple[Tensor, Tensor]:
        outputs = forward(weights, x, activation).unflatten(1, (2, -1))
        return method.loss(outputs[:, 0], outputs[:, 1], nothing), outputs.detach()  # type: ignore[misc]

    for _ in range(steps):
        optimizer.zero_grad()
        value(scenes.batch())[0].sum().backward()
        optimizer.step()
    gradient = torch.zeros_like(weights[0])
    totals: dict[str, list[Tensor]] = {name: [] for name in ("output", "layer", "cosine")}
    for _ in range(batches):
        x = scenes.batch()
        each, outputs = value(x)
        gradient += torch.autograd.grad(each.sum(), weights[0])[0] / batches
        below = (x @ weights[0].detach().mT).unflatten(1, (2, -1))
        unit = torch.nn.functional.normalize(outputs, dim=3)
        for name, rows in {"output": outputs, "layer": below, "cosine": unit}.items():
            totals[name].append(torch.stack(between(rows)))
    w, g = (each.detach()[..., PIXELS:].double() for each in (weights[0], gradient))
    rate = -2 * (w * g).sum(1) / w.square().sum(1) / (scenes.a + scenes.b)
    share = (scenes.a / (scenes.a + scenes.b)).double()
    slope = rate @ (share - share.mean()) / (share - share.mean()).square().sum()
    found = {"zero": share.mean() - rate.mean(1) / slope}
    for name, parts in totals.items():
        apart, square, strangers = torch.stack(parts).double().mean(0)
        found[name] = apart if name == "cosine" else apart / (square - strangers)
    return found


def zeros(seeds: tuple[int, ...]) -> dict[str, Any]:
    """The record: by kind of network, loss and steps of training, the zero of growth and the shares that `measured` has."""

    def chunk_of(chunk: Sequence[tuple[tuple[str, str, int], int]]) -> dict[str, Tensor]:
        return measured([seed for _, seed in chunk], *chunk[0][0])

    keep = parts_folder() / "growth-zero"
    values: dict[str, Any] = {"steps": max(STATES), "trained": TRAINED}
    for steps in STATES:
        losses = ["simple on cosines", "InfoNCE, τ = 0.5"]
        cells = [(kind, loss, steps) for kind in ("linear", "relu") for loss in losses]
        some = seeds[:TRAINED] if steps else seeds
        found = sweep(chunk_of, cells, some, alike=lambda cell: cell, most=lambda cell: 20, keep=keep)
        for (kind, loss, _), of in found.items():
            values.setdefault(kind, {}).setdefault(loss, {})[str(steps)] = rounded(of, 5)
    return values


STUDIES = {"growth-zero": Study(zeros, tuple(range(200)))}
