r"""A small BYOL on images for many replicas at once: encoder, projector, predictor; and the random views that it sees.

A replica is one run: one seed of one cell of a table.  Every parameter has a leading replica axis and images come as
``(2B, S, C, H, W)`` for ``S`` seeds, the first views before the second ones.  Replica ``r`` of ``R = S * cells`` sees the images
of seed ``r // cells``, so that cells are compared on the same weights at the start, the same batches and the same augmentations.
The convolutions are grouped ones, a group a replica; BatchNorm's statistics are each view's own, as in the released code.

A view is one geometric and one photometric transformation an image, all in a batch, simpler than the augmentation that the papers
train with: an affine map (shift, zoom, rotation, mirror) read by bilinear interpolation with zeros outside, then a gain, a gain
per colour, and grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.networks.batchnorm import batch_normalize
from sslbook.stats.replica_rng import Streams

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of the networks: the encoder halves the image at each of its 3x3 convolutions; ``width`` is the hidden layers'."""

    size: int = 8
    colours: int = 1
    channels: tuple[int, ...] = (8, 32)
    width: int = 64
    output: int = 32

    @property
    def features(self) -> int:
        """Length of a representation: the last channels, each averaged over the image."""
        return self.channels[-1]


@dataclass(frozen=True)
class Norm:
    """What stands between the two layers of a head: which halves of BatchNorm (:data:`sslbook.networks.batchnorm.MODES`)."""

    mean: str = "normal"
    std: str = "normal"


NONE = Norm("omit", "omit")


def initial_weights(shape: Shape, seeds: Sequence[int], cells: int, predictor: int, dtype: torch.dtype) -> Parameters:
    r"""Weights of ``len(seeds) * cells`` replicas, equal over the cells of a seed; ``predictor``: its layers, 0, 1 or 2.

    As in PyTorch, weights and biases are uniform on :math:`\pm 1/\sqrt{\text{fan-in}}`.  Convolutions have no bias.
    """
    streams = Streams(seeds, "byol weights")
    drawn: Parameters = {}

    def draw(name: str, shape_: tuple[int, ...], fan_in: int) -> None:
        u = streams.uniform(shape_, torch.float64)
        drawn[name] = ((2 * u - 1) / math.sqrt(fan_in)).to(dtype).repeat_interleave(cells, 0)

    below = shape.colours
    for level, above in enumerate(shape.channels):
        draw(f"conv{level}", (above, below, 3, 3), 9 * below)
        below = above
    for name, fan_in, fan_out in heads(shape, predictor):
        draw(f"{name}.weight", (fan_out, fan_in), fan_in)
        draw(f"{name}.bias", (fan_out,), fan_in)
    return drawn


def heads(shape: Shape, predictor: int) -> list[tuple[str, int, int]]:
    """Name, inputs and outputs of each linear layer above the encoder."""
    layers = [("projector0", shape.features, shape.width), ("projector1", shape.width, shape.output)]
    if predictor == 1:
        return [*layers, ("predictor1", shape.output, shape.output)]
    if predictor == 2:
        return [*layers, ("predictor0", shape.output, shape.width), ("predictor1", shape.width, shape.output)]
    return layers


def encode(weights: Mapping[str, Tensor], images: Tensor, views: int = 2) -> Tensor:
    """Images ``(N, S, C, H, W)`` to representations ``(R, N, features)``: convolution, BatchNorm, ReLU; at the end, the mean.

    views: ``N`` is so many batches, one after the other, and each is normalised by its own statistics.
    """
    count, seeds = images.shape[:2]
    maps, groups = images.flatten(1, 2), seeds
    level = 0
    while (kernel := weights.get(f"conv{level}")) is not None:
        replicas, channels = kernel.shape[:2]
        maps = F.conv2d(maps, kernel.flatten(0, 1), stride=2, padding=1, groups=groups)
        maps = torch.cat([F.batch_norm(part, None, None, training=True) for part in maps.chunk(views)]).relu()
        groups, level = replicas, level + 1
    return maps.view(count, replicas, channels, -1).mean(3).transpose(0, 1)


def linear(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """``(R, N, inputs) -> (R, N, outputs)``."""
    return torch.baddbmm(weights[f"{name}.bias"][:, None], x, weights[f"{name}.weight"].mT)


def normalize(x: Tensor, norm: Norm, views: int = 2) -> Tensor:
    """The halves of BatchNorm over each view's batch, ``(R, N, n)``; unbiased variance, as the released code has it."""
    split = x.unflatten(1, (views, -1))
    return batch_normalize(split, mean=norm.mean, std=norm.std, dims=2, unbiased=True).flatten(1, 2)


def project(weights: Mapping[str, Tensor], features: Tensor, norm: Norm, views: int = 2) -> Tensor:
    """Linear, BatchNorm, ReLU, linear: ``(R, N, features) -> (R, N, output)``."""
    return linear(weights, "projector1", normalize(linear(weights, "projector0", features), norm, views).relu())


def predict(weights: Mapping[str, Tensor], projected: Tensor, norm: Norm) -> Tensor:
    """The same with two layers; BatchNorm and linear with one; the identity without a predictor."""
    if "predictor0.weight" in weights:
        return linear(weights, "predictor1", normalize(linear(weights, "predictor0", projected), norm).relu())
    if "predictor1.weight" in weights:
        return linear(weights, "predictor1", normalize(projected, norm))
    return projected


def byol_loss(predicted: Tensor, target: Tensor) -> Tensor:
    r"""Each replica's :math:`-2\cos(p_1, t_2) - 2\cos(p_2, t_1)`, averaged over the batch: ``(R, 2B, n) -> (R,)``, in [-4, 4]."""
    crossed = torch.cat(target.chunk(2, 1)[::-1], 1)
    return -4 * F.cosine_similarity(predicted, crossed, dim=2).mean(1)


NUMBERS = 10
"""Uniform random numbers that one view takes."""


@dataclass(frozen=True)
class Augmentation:
    """How far each part goes; a part is uniform between plus and minus its number.

    shift: share of the image's side.  zoom: share of its size.  rotation: radians.  gain: share of the brightness;
    tint: the same for each colour alone.  grey: the probability that the colours are averaged; mirror: left-right with 1/2.
    """

    shift: float = 0.12
    zoom: float = 0.1
    rotation: float = 0.1
    gain: float = 0.1
    tint: float = 0.0
    grey: float = 0.0
    mirror: bool = False


def augment(images: Tensor, u: Tensor, augmentation: Augmentation) -> Tensor:
    """One view of each image: ``images (N, C, H, W)``, uniform numbers ``u (N, NUMBERS)`` in [0, 1)."""
    v = (2 * u - 1).to(images)
    angle, size = augmentation.rotation * v[:, 0], 1 + augmentation.zoom * v[:, 1]
    side = (v[:, 9].sign() if augmentation.mirror else torch.ones_like(angle)) * size
    moved = 2 * augmentation.shift * v[:, 2:4]  # the image spans -1 to 1
    rows = (
        torch.stack([side * angle.cos(), -size * angle.sin(), moved[:, 0]], 1),
        torch.stack([side * angle.sin(), size * angle.cos(), moved[:, 1]], 1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    seen = F.grid_sample(images, grid, align_corners=False)
    colours = images.shape[1]
    if augmentation.tint:
        seen = seen * (1 + augmentation.tint * v[:, 5 : 5 + colours, None, None])
    if augmentation.grey:
        grey = (u[:, 8] < augmentation.grey).to(seen)[:, None, None, None]
        seen = torch.lerp(seen, seen.mean(1, keepdim=True).expand_as(seen), grey)
    return seen * (1 + augmentation.gain * v[:, 4, None, None, None])
