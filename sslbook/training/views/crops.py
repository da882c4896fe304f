"""Random resized crops and blurs of a batch, each image with its own, both as two small matrix products.

The boxes have the distribution of torchvision's ``RandomResizedCrop``: up to ten attempts of an area, uniform in ``scale``
times the image's, and a ratio of sides, log-uniform in ``ratio``; the first whose box fits the image is placed uniformly;
if none fits, the largest central box whose ratio is allowed.  All ten attempts are made at once and the first that fits gathered.

The resize is that of Pillow, ``image.crop(box).resize((size, size), BILINEAR)``: output pixel i has its centre at
``(i + 1/2) h / size`` of the box's h pixels and averages those around it with weights ``(1 - |distance| / s)_+``, s the larger of
1 and ``h / size``, over the box only and normalised to sum to 1.  Rows and columns are apart, so that a box is a pair of
matrices, and a mirror image the same pair with the rows of one in reversed order.

A blur's kernel has ``kernel`` taps ``exp(-t^2 / (2 sigma^2))``, normalised; borders are reflected without repeating the edge
pixel.  It is linear along each side, so it is a matrix too, and the reflected border is part of that matrix.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

ATTEMPTS = 10
CROP_NUMBERS = 2 * ATTEMPTS + 2
"""Uniform numbers for a box: an area and a ratio an attempt, then the row and the column of its corner."""


class Boxes(NamedTuple):
    """The boxes of a batch, each ``(B,)``, in whole pixels, float64."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def boxes(numbers: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Boxes:
    """The boxes that uniform numbers ``(B, CROP_NUMBERS)`` give in images of ``height`` by ``width``.

    In float64, so that a size on the edge of rounding falls where the reference sampler's does.
    """
    u = numbers.double()
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, 0 : 2 * ATTEMPTS : 2])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * u[:, 1 : 2 * ATTEMPTS : 2]).exp()
    wide, tall = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)  # 0 also where none fits
    some = fits.gather(1, first)[:, 0]
    central_height, central_width = central(height, width, ratio)
    h = torch.where(some, tall.gather(1, first)[:, 0], central_height)
    w = torch.where(some, wide.gather(1, first)[:, 0], central_width)
    top = torch.where(
        some, torch.minimum((u[:, -2] * (height - h + 1)).floor(), height - h), (height - h).div(2).floor()
    )
    left = torch.where(some, torch.minimum((u[:, -1] * (width - w + 1)).floor(), width - w), (width - w).div(2).floor())
    return Boxes(top, left, h, w)


def central(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Height and width of the largest central box whose width over height lies within ``ratio``."""
    if width < min(ratio) * height:
        return round(width / min(ratio)), width
    if width > max(ratio) * height:
        return height, round(height * max(ratio))
    return height, width


def weights(start: Tensor, length: Tensor, side: int, size: int, mirror: Tensor | None = None) -> Tensor:
    """Bilinear weights ``(B, size, side)`` that take ``length`` pixels from ``start`` on, each ``(B,)``, to ``size`` pixels.

    mirror: ``(B,)``, whether the output pixels come in reversed order.
    """
    start, length = start.float()[:, None], length.float()[:, None]
    step = length / size
    places = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5
    centres = start + step * (places if mirror is None else torch.where(mirror[:, None], size - places, places))
    pixels = torch.arange(side, device=start.device, dtype=torch.float32)
    inside = ((pixels >= start) & (pixels < start + length)).float()
    near = (pixels + 0.5 - centres[:, :, None]).abs_().mul_(-1 / step.clamp(min=1)[:, :, None]).add_(1).relu_()
    near *= inside[:, None]
    return near.div_(near.sum(-1, keepdim=True))


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``rows_b images_bc columns_b^T``: ``(B, C, H, W)``, ``(B, S, H)``, ``(B, S, W)`` to ``(B, C, S, S)``, float32."""
    count, channels, height, width = images.shape
    size = rows.shape[1]
    across = torch.bmm(images.float().reshape(count, channels * height, width), columns.mT)
    every = rows[:, None].expand(count, channels, size, height).reshape(count * channels, size, height)
    return torch.bmm(every, across.view(count * channels, height, size)).view(count, channels, size, size)


def _shifts(kernel: int, side: int, device: torch.device) -> Tensor:
    """For each tap, the matrix ``(kernel, side * side)`` that moves pixels by it, reflected at the borders."""
    offset, pixel = torch.arange(kernel, device=device) - kernel // 2, torch.arange(side, device=device)
    source = (pixel + offset[:, None]).abs()
    source = torch.where(source > side - 1, 2 * (side - 1) - source, source)
    return (source[:, :, None] == pixel).float().flatten(1)  # row i of a tap's matrix reads pixel i + offset


def taps(sigma: Tensor, kernel: int, applied: Tensor) -> Tensor:
    """The kernels ``(B, kernel)`` of widths ``sigma (B,)``, in pixels; a single tap of 1 where a blur is not ``applied (B,)``."""
    offset = torch.arange(kernel, device=sigma.device, dtype=torch.float32) - kernel // 2
    bell = (-0.5 * (offset / sigma.float()[:, None]).square()).exp()
    return torch.where(applied[:, None], bell / bell.sum(1, keepdim=True), (offset == 0).float())


def blur(images: Tensor, kernels: Tensor) -> Tensor:
    """The images ``(B, C, S, S)`` under their kernels ``(B, kernel)``, along rows and columns."""
    count, _, side, _ = images.shape
    matrices = (kernels @ _shifts(kernels.shape[1], side, images.device)).view(count, side, side)
    return resample(images, matrices, matrices)
