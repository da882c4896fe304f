"""Colour jitter of a batch, each image with its own factors in its own order, clamped to the range of levels after each step.

Brightness, contrast and saturation of Pillow's ``ImageEnhance`` are one operation: x becomes ``f x + (1 - f) g``, where g is 0, the
mean of the grey image (rounded to a level), or the grey image L(x) = 0.299 R + 0.587 G + 0.114 B.  Hue turns the colour hexagon.

Which comes when differs from image to image, and a batched program takes the same steps for all.  So hue is computed once: what
comes before it goes through three slots ahead of it, what comes after through three slots behind, and a slot that an image
does not use has f = 1.  Levels are floating-point numbers from 0 to 255; Pillow cuts its own to bytes after each operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GREY = (0.299, 0.587, 0.114)
LEVELS = 255.0
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
ORDERS = tuple(itertools.permutations(range(4)))
JITTER_NUMBERS = 6
"""Uniform numbers for a jitter: whether, in which order, and the four factors."""


class Jitter(NamedTuple):
    """What each image of a batch undergoes.

    blends: ``(B, 6, 3)``, for the three slots before hue and the three after it: the share of the image, of its grey image, and of
    its mean grey.  turn: ``(B,)``, of the hue, in turns.  before: ``(B,)``, how many slots ahead of hue it uses; -1 for no jitter.
    """

    blends: Tensor
    turn: Tensor
    before: Tensor


# For each of the 24 orders, the three kinds without hue, and the place of hue.  Each column is packed into one number, 2 bits an
# order: a table on a device would have to be copied there, which no graph can hold, or be kept, which a compiler passes by.
_COLUMNS = zip(*([kind for kind in order if kind != HUE] + [order.index(HUE)] for order in ORDERS))
_PACKED = [sum(entry << 2 * order for order, entry in enumerate(column)) for column in _COLUMNS]


def _unpacked(orders: Tensor) -> Tensor:
    """The kinds without hue, in their order, and the place of hue: ``(B,)`` to ``(B, 4)``."""
    return torch.stack([torch.bitwise_right_shift(column, 2 * orders) & 3 for column in _PACKED], 1)


def order_of(numbers: Tensor) -> Tensor:
    """The place in :data:`ORDERS` that uniform numbers ``(B, JITTER_NUMBERS)`` give, ``(B,)``."""
    return (numbers[:, 1] * len(ORDERS)).long().clamp(max=len(ORDERS) - 1)


def factors_of(numbers: Tensor, strengths: Sequence[float], probability: float) -> Tensor:
    """``(B, 4)``: with ``probability``, three factors uniform in ``[(1 - s)_+, 1 + s]`` and a turn uniform in ``[-s, s]``.

    Otherwise factors of 1 and no turn.  strengths: s of brightness, contrast, saturation and hue.
    """
    applied = numbers[:, :1] < probability
    low = [max(-1.0, -s) for s in strengths]
    changes = [least + (s - least) * u for least, s, u in zip(low, strengths, numbers[:, 2:].unbind(1), strict=True)]
    change = torch.where(applied, torch.stack(changes, 1), 0)
    return change + (torch.arange(len(changes), device=change.device) != HUE)  # without jitter, 1 and no turn


def draw(numbers: Tensor, strengths: Sequence[float], probability: float) -> Jitter:
    """The jitter that uniform numbers ``(B, JITTER_NUMBERS)`` give; see `order_of` and `factors_of`."""
    kinds, places = _unpacked(order_of(numbers)).split([3, 1], 1)
    factors = factors_of(numbers, strengths, probability)
    used = factors[:, :HUE].gather(1, kinds)
    slot = torch.arange(3, device=numbers.device)
    f = torch.cat([torch.where(slot < places, used, 1), torch.where(slot < places, 1, used)], 1)
    rest, kinds = 1 - f, kinds.repeat(1, 2)
    blends = torch.stack([f, torch.where(kinds == SATURATION, rest, 0), torch.where(kinds == CONTRAST, rest, 0)], 2)
    before = torch.where(numbers[:, 0] < probability, places[:, 0], -1)
    return Jitter(blends, factors[:, HUE], before)


def jitter_(images: Tensor, what: Jitter, *, hue: bool = True, ordered: bool = False) -> Tensor:
    """In place, the images ``(B, C, H, W)`` in levels after their jitter.

    hue: whether to turn it, which takes three channels.  ordered: that ``what.before`` decreases from image to image, so that a
    slot may leave out the images which do not use it.  The result is the same; where the slots end is read from the device.
    """
    starts, ends, jittered = [0, 0, 0], [len(images)] * 3, len(images)
    if ordered:
        *ends, jittered = (what.before > torch.tensor([[0], [1], [2], [-1]])).sum(1).tolist()
        starts = ends
    for slot in range(3):
        blend_(images[: ends[slot]], what.blends[: ends[slot], slot])
    if hue:
        turn_hue_(images[:jittered], what.turn[:jittered])
    for slot in range(3):
        used = slice(starts[slot], jittered)
        blend_(images[used], what.blends[used, 3 + slot])
    return images


def blend_(images: Tensor, shares: Tensor) -> Tensor:
    """In place and clamped, a mixture of each image, its grey image and its mean grey by ``shares (B, 3)``."""
    f, of_grey, of_mean = shares[:, :, None, None, None].unbind(1)
    shift = grey(images)
    level = shift.mean((2, 3), keepdim=True).add_(0.5).floor_()
    shift.mul_(of_grey).add_(of_mean * level)
    return images.mul_(f).add_(shift).clamp_(0, LEVELS)


def grey(images: Tensor) -> Tensor:
    """``(B, 1, H, W)``, new: 0.299 R + 0.587 G + 0.114 B, or the one channel itself."""
    if images.shape[1] == 1:
        return images.clone()
    red, green, blue = images.unbind(1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])[:, None]


def grey_(images: Tensor, chosen: Tensor) -> Tensor:
    """In place, the grey image in every channel where ``chosen (B,)``."""
    share = chosen.float()[:, None, None, None]
    shift = grey(images).mul_(share)  # before the images change
    return images.mul_(1 - share).add_(shift)


def turn_hue_(images: Tensor, turns: Tensor) -> Tensor:
    """In place, the images ``(B, 3, H, W)`` with the hue of every pixel turned by ``turns (B,)``; value and saturation stay.

    With V the largest and m the smallest of the channels and h the hue in sixths of a turn, red, green and blue are
    ``m + (V - m) t`` with t = ``|h - 3| - 1``, ``2 - |h - 2|`` and ``2 - |h - 4|``, clamped to [0, 1].

    Without torch.where: a processor takes a dozen times longer over a mask than over a product.
    """
    red, green, blue = images.unbind(1)
    top, bottom = images.amax(1), images.amin(1)
    chroma = top - bottom
    first = torch.eq(top, red, out=torch.empty_like(top))
    second = torch.eq(top, green, out=torch.empty_like(top)).mul_(1 - first)
    third = (1 - first).sub_(second)
    sixth = (green - blue).mul_(first).addcmul_(blue - red, second).addcmul_(red - green, third)
    sixth.div_(chroma.clamp(min=1e-6)).add_(second, alpha=2).add_(third, alpha=4)
    sixth += turns[:, None, None] * 6
    sixth -= (sixth / 6).floor_().mul_(6)
    red, green, blue = (sixth - 3).abs_().sub_(1), (sixth - 2).abs_().neg_().add_(2), (sixth - 4).abs_().neg_().add_(2)
    share = torch.stack([red, green, blue], 1)
    return torch.add(share.clamp_(0, 1).mul_(chroma[:, None]), bottom[:, None], out=images)
