"""Augmentation of a batch of images on whatever device holds them: a pure function of the pixels and of uniform numbers.

In the order of the released code: crop and resize, mirror, colour jitter, grey, blur, mean and standard deviation.
Every image has its own parameters in every step, made from :data:`NUMBERS` uniform numbers an image and view; `draws` makes these
from ``(seed, step, view)`` alone, so that a resumed run, another device or another number of processes sees the same views.

Levels stay floating-point numbers where Pillow cuts them to bytes after every operation, and that is all the difference
to Pillow there is, but for hue, of which Pillow keeps 8 bits.  The largest differences, in levels of 255, on noise and
on photographs: crop and resize 1, mirror 0, brightness 1, contrast 1.6, saturation 1.4, grey 0.5, hue 17 (0.3 on
average on photographs).  The tests and the audit page of the chapter on training hold them.  With TF32 products, a GPU adds up
to half a level to crops and blurs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sslbook._ambient import anywhere
from sslbook._check import keep_plain, require_number, require_whole

ATTEMPTS = 10
CROP_NUMBERS = 2 * ATTEMPTS + 2
"""Uniform numbers for a box: an area and a ratio an attempt, then the row and the column of its corner."""

LUMA = (0.299, 0.587, 0.114)
LEVELS = 255.0
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
ORDERS = tuple(itertools.permutations(range(4)))
JITTER_NUMBERS = 6
"""Uniform numbers for a jitter: whether, in which order, and the four factors."""

FLIP = CROP_NUMBERS
JITTER = slice(FLIP + 1, FLIP + 1 + JITTER_NUMBERS)
GREY = JITTER.stop
BLUR, SIGMA = GREY + 1, GREY + 2
NUMBERS = SIGMA + 1
"""Uniform numbers that one view of one image takes."""

CHUNK = 128
"""Images that a processor augments at once: their intermediate results stay in its cache."""


# --- pipelines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """A pipeline describes one random augmentation.

    size: the side of a view, in pixels.  jitter: the strengths of changes in brightness, contrast, saturation and hue.
    scale, ratio: the ranges of a crop's share of the image's area and of its aspect ratio.
    flip, jitter_probability, grey, blur: the probabilities of these operations.
    blur_kernel: the kernel's side, an odd number of pixels.  blur_sigma: the range of the blur's standard deviation in pixels.
    mean, std: the mean and deviation of each channel, for pixels in [0, 1]; without them, pixels aren't standardised.

    >>> Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.1)).grey
    0.2
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_probability: float = 0.8
    grey: float = 0.2
    blur: float = 0.0
    blur_kernel: int = 9
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError, with an explanation, for values that can't be used; lists, as in JSON, become tuples."""
        keep_plain(self)
        require_whole("size", self.size, least=1)
        for name in ("flip", "jitter_probability", "grey", "blur"):
            require_number(name, getattr(self, name), least=0, most=1)
        for name in ("scale", "ratio", "jitter", "blur_sigma", "mean", "std"):
            parts = getattr(self, name) if isinstance(getattr(self, name), tuple | list) else (getattr(self, name),)
            object.__setattr__(self, name, tuple(require_number(name, part) for part in parts))
        for name, most in (("scale", 1.0), ("ratio", math.inf), ("blur_sigma", math.inf)):
            if len(ends := getattr(self, name)) != 2 or not 0 < ends[0] <= ends[1] <= most:
                raise ValueError(f"{name} must be two numbers in order, above 0 and at most {most:g}, got {ends}")
        if len(self.jitter) != 4 or min(self.jitter) < 0 or self.jitter[3] > 0.5:
            wanted = "four strengths of at least 0, of brightness, contrast, saturation and hue, the last at most 0.5"
            raise ValueError(f"jitter must be {wanted}, got {self.jitter}")
        if self.blur_kernel % 2 == 0 or (self.blur and self.blur_kernel // 2 >= self.size):
            raise ValueError(f"blur_kernel must be odd, less than twice the size {self.size}, got {self.blur_kernel}")
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ValueError(f"mean and std must have one number a channel, std above 0, got {self.mean}, {self.std}")


CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PIPELINES: dict[str, Pipeline] = {
    "cifar10": Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.1), mean=CIFAR10_MEAN, std=CIFAR10_STD),
    "stl10": Pipeline(96, jitter=(0.8, 0.8, 0.8, 0.2), blur=1.0),
    "simclr-cifar10": Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.1)),
    "simclr-stl10": Pipeline(96, jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5),
    "digits": Pipeline(8, scale=(0.5, 1.0), flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0),
    "mnist": Pipeline(28, scale=(0.3, 1.0), flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0),
}
"""By name.  "cifar10" and "stl10" are those of the released code, where STL-10 is always blurred and has no mean and deviation;
"simclr-cifar10" and "simclr-stl10" those of [chen2020simclr], of strengths 0.5 and 1, with pixels in [0, 1] and blur for half of
the larger images; "digits" and "mnist" are ours: gentler crops, and no mirror images, since a digit's is no digit."""


# --- views -----------------------------------------------------------------------------------------------------------


def draws(count: int, seed: int, step: int, view: int) -> Tensor:
    """Uniform numbers in [0, 1), float32 ``(count, NUMBERS)``, on the CPU: a function of ``(seed, step, view)`` and nothing else.

    They are those of a Philox generator, whose key NumPy's SeedSequence makes of the three; none may be negative.  Row i does not
    depend on ``count``, nor any on the pipeline, so that two can be compared image by image.  With several processes, each takes
    its rows of the global batch's.

    >>> torch.equal(draws(2, seed=0, step=7, view=1), draws(5, seed=0, step=7, view=1)[:2])
    True
    """
    key = np.random.SeedSequence([seed, step, view, *b"augment"])
    return torch.from_numpy(np.random.Generator(np.random.Philox(key)).random((count, NUMBERS), dtype=np.float32))


@anywhere  # bfloat16 would cost a level of 256
@torch.no_grad()
def apply(pixels: Tensor, pipeline: Pipeline, draws: Tensor) -> Tensor:
    """One view of each image: ``(B, C, H, W)`` uint8, or floating in [0, 1], to float32 ``(B, C, size, size)`` on the same device.

    draws: ``(B, NUMBERS)``, on the device too if nothing shall wait: from a processor's pageable memory they are copied first.
    On a GPU there is no Python loop over images, no shape that depends on data, nothing read back and no table kept: a graph can
    hold it all.  A processor takes :data:`CHUNK` images at once, sorted by the place of hue, so that each passes only the slots of
    the jitter that it uses; this saves a tenth of the time, and an eighth on images of 96 by 96.
    """
    _require_pixels(pixels, pipeline)
    numbers = draws.to(pixels.device, non_blocking=True)
    blends, turn, before = jitter_of(numbers[:, JITTER], pipeline.jitter, pipeline.jitter_probability)
    batch = (pixels, numbers, blends, turn, before)
    if pixels.device.type != "cpu" or torch.compiler.is_compiling():
        return _view(pipeline, *batch)
    order = before.argsort(descending=True, stable=True)
    parts = zip(*(whole.index_select(0, order).split(CHUNK) for whole in batch), strict=True)
    views = torch.cat([_view(pipeline, *part, ordered=True) for part in parts])
    return views.index_select(0, order.argsort())


@anywhere
def random_view(pixels: Tensor, pipeline: Pipeline, *, seed: int = 0, step: int = 0, view: int = 0) -> Tensor:
    """Return one random view of each image, as float32 ``(B, C, size, size)`` from pixels ``(B, C, H, W)``.

    It depends only on the pixels, ``seed``, ``step`` (the batch's number) and ``view`` (the view's number).  Pixels are uint8, or
    floating in [0, 1]; raises ValueError for others.

    >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    >>> random_view(images, PIPELINES["cifar10"], seed=1, view=0).shape
    torch.Size([8, 3, 32, 32])
    """
    if pixels.is_floating_point():
        low, high = (float(end) for end in pixels.aminmax())
        if not (low >= 0 and high <= 1):
            raise ValueError(f"pixels must be uint8, or floating in [0, 1], got values from {low:g} to {high:g}")
    return apply(pixels, pipeline, draws(len(pixels), seed, step, view))


def _view(pipeline: Pipeline, *batch: Tensor, ordered: bool = False) -> Tensor:
    """The view of each image that its uniform numbers ``(B, NUMBERS)`` and their :func:`jitter_of` say, in levels until the end.

    batch: the pixels, the numbers, and the three parts of the jitter.  ordered: as :func:`jitter_` has it.
    Mirroring reverses the columns' weights, so it costs nothing.
    """
    pixels, numbers, blends, turn, before = batch
    (channels, height, width), size = pixels.shape[1:], pipeline.size
    top, left, tall, wide = boxes(numbers[:, :CROP_NUMBERS], height, width, pipeline.scale, pipeline.ratio)
    columns = weights(left, wide, width, size, numbers[:, FLIP] < pipeline.flip)
    view = resample(pixels, weights(top, tall, height, size), columns)
    if pixels.dtype != torch.uint8:
        view *= LEVELS
    if any(pipeline.jitter):
        view = jitter_(view, blends, turn, before, hue=channels == 3 and pipeline.jitter[3] > 0, ordered=ordered)
    if pipeline.grey and channels == 3:
        share = (numbers[:, GREY] < pipeline.grey).float()[:, None, None, None]
        shift = grey(view).mul_(share)  # before the images change
        view.mul_(1 - share).add_(shift)
    if pipeline.blur:
        low, high = pipeline.blur_sigma
        sigma = (low + (high - low) * numbers[:, SIGMA]).float()[:, None]
        taps = torch.arange(pipeline.blur_kernel, device=sigma.device, dtype=torch.float32)
        offset = taps - pipeline.blur_kernel // 2
        bell = (-0.5 * (offset / sigma).square()).exp()
        blurred = (numbers[:, BLUR] < pipeline.blur)[:, None]
        view = blur(view, torch.where(blurred, bell / bell.sum(1, keepdim=True), (offset == 0).float()))
    return _normalised(view, pipeline)


def plain(pixels: Tensor, pipeline: Pipeline) -> Tensor:
    """The images as a test sees them: float32, the central ``size`` by ``size`` pixels, mean and standard deviation.

    Nothing is random.  Raises ValueError for pixels that are smaller, or that the pipeline can't take.
    """
    _require_pixels(pixels, pipeline)
    height, width = pixels.shape[2:]
    if min(height, width) < pipeline.size:
        raise ValueError(f"pixels must be at least {pipeline.size} by {pipeline.size}, got {height} by {width}")
    top, left = (height - pipeline.size) // 2, (width - pipeline.size) // 2
    middle = pixels[:, :, top : top + pipeline.size, left : left + pipeline.size]
    return _normalised(middle.float() if pixels.dtype == torch.uint8 else middle.float() * LEVELS, pipeline)


def _normalised(levels: Tensor, pipeline: Pipeline) -> Tensor:
    """``(levels / 255 - mean) / std`` for each channel, as one product and one sum.

    Both numbers are filled on the device, since a copy would be waited for.
    """
    mean, std = pipeline.mean or (0.0,), pipeline.std or (1.0,)
    filled = partial(torch.full, (1, 1), dtype=torch.float32, device=levels.device)
    factor = torch.stack([filled(1 / (LEVELS * s)) for s in std])
    shift = torch.stack([filled(-m / s) for m, s in zip(mean, std)])
    return torch.mul(levels, factor).add_(shift)  # three times as fast as addcmul, which vectorises no factors


def _require_pixels(pixels: Tensor, pipeline: Pipeline) -> None:
    """Raise ValueError for integers that would pass for shares of 1, and for channels that would have another's mean."""
    known = pixels.dtype == torch.uint8 or pixels.is_floating_point()
    if not known or pixels.ndim != 4 or pixels.shape[1] not in ((len(pipeline.mean),) if pipeline.mean else (1, 3)):
        wanted = f"{len(pipeline.mean) or '1 or 3'} channels, uint8, or floating in [0, 1]"
        raise ValueError(f"pixels must be (B, C, H, W) of {wanted}, got {pixels.dtype} {tuple(pixels.shape)}")


# --- colour jitter ---------------------------------------------------------------------------------------------------


# For each of the 24 orders, the three kinds without hue, and the place of hue.  Each column is packed into one number, 2 bits an
# order: a table on a device would have to be copied there, which no graph can hold, or be kept, which a compiler passes by.
_COLUMNS = zip(*([kind for kind in order if kind != HUE] + [order.index(HUE)] for order in ORDERS))
_PACKED = [sum(entry << 2 * order for order, entry in enumerate(column)) for column in _COLUMNS]


def order_and_factors(numbers: Tensor, strengths: Sequence[float], probability: float) -> tuple[Tensor, Tensor]:
    """What uniform numbers ``(B, JITTER_NUMBERS)`` say of each image's jitter: the place of its order in :data:`ORDERS`, ``(B,)``.

    And factors ``(B, 4)``: with ``probability``, three of brightness, contrast and saturation, uniform in ``[(1 - s)_+, 1 + s]``,
    and a turn of the hue uniform in ``[-s, s]``; otherwise factors of 1 and no turn.  strengths: the four s.
    """
    order = (numbers[:, 1] * len(ORDERS)).long().clamp(max=len(ORDERS) - 1)
    applied = numbers[:, :1] < probability
    low = [max(-1.0, -s) for s in strengths]
    changes = [least + (s - least) * u for least, s, u in zip(low, strengths, numbers[:, 2:].unbind(1), strict=True)]
    change = torch.where(applied, torch.stack(changes, 1), 0)
    return order, change + (torch.arange(len(changes), device=change.device) != HUE)


def jitter_of(numbers: Tensor, strengths: Sequence[float], probability: float) -> tuple[Tensor, Tensor, Tensor]:
    """What each image of a batch undergoes, by uniform numbers ``(B, JITTER_NUMBERS)``: its own factors in its own order.

    Brightness, contrast and saturation of Pillow's ``ImageEnhance`` are one operation: x becomes ``f x + (1 - f) g``, where g is 0,
    the mean of the grey image (rounded to a level), or the grey image.  Which comes when differs from image to image, and a batched
    program takes the same steps for all.  So hue is turned once, with three slots ahead of it and three behind, and a slot that an
    image does not use has f = 1.

    Returns the blends, ``(B, 6, 3)``, for each slot the share of the image, of its grey image, and of its mean grey; the turn of
    the hue, ``(B,)``, in turns; and how many slots ahead of hue are used, ``(B,)``, -1 for no jitter.
    """
    order, factors = order_and_factors(numbers, strengths, probability)
    read = torch.stack([torch.bitwise_right_shift(column, 2 * order) & 3 for column in _PACKED], 1)
    kinds, places = read.split([3, 1], 1)
    used = factors[:, :HUE].gather(1, kinds)
    slot = torch.arange(3, device=numbers.device)
    f = torch.cat([torch.where(slot < places, used, 1), torch.where(slot < places, 1, used)], 1)
    rest, kinds = 1 - f, kinds.repeat(1, 2)
    blends = torch.stack([f, torch.where(kinds == SATURATION, rest, 0), torch.where(kinds == CONTRAST, rest, 0)], 2)
    return blends, factors[:, HUE], torch.where(numbers[:, 0] < probability, places[:, 0], -1)


def jitter_(
    images: Tensor, blends: Tensor, turn: Tensor, before: Tensor, *, hue: bool = True, ordered: bool = False
) -> Tensor:
    """In place, the images ``(B, C, H, W)`` in levels after their jitter, as :func:`jitter_of` gives it.

    In each of six slots, x becomes the mixture ``f x + g grey(x) + m mean(grey(x))`` that the slot's blends ``(f, g, m)`` say, with
    the mean rounded to a level, and is clamped to the range of levels; hue is turned between the third and the fourth.
    hue: whether to turn it, which takes three channels.
    ordered: that ``before`` decreases from image to image, so that a slot may leave out the images which do not use it.  The
    result is the same; where the slots end is read from the device.
    """
    starts, ends, jittered = [0] * 6, [len(images)] * 6, len(images)
    if ordered:
        *first, jittered = (before > torch.tensor([[0], [1], [2], [-1]])).sum(1).tolist()
        starts, ends = [0] * 3 + first, first + [jittered] * 3
    for slot in range(6):
        if slot == 3 and hue:
            turn_hue_(images[:jittered], turn[:jittered])
        used = slice(starts[slot], ends[slot])
        f, of_grey, of_mean = blends[used, slot, :, None, None, None].unbind(1)
        shift = grey(images[used])
        level = shift.mean((2, 3), keepdim=True).add_(0.5).floor_()
        shift.mul_(of_grey).add_(of_mean * level)
        images[used].mul_(f).add_(shift).clamp_(0, LEVELS)
    return images


def grey(images: Tensor) -> Tensor:
    """The grey images ``(B, 1, H, W)``, new: 0.299 R + 0.587 G + 0.114 B, Pillow's weights, or a copy of the one channel.

    They are the luma of ITU-R BT.601 and add up to 1, so a grey image stays what it is, but for rounding.

    >>> grey(torch.tensor([0.0, 200.0, 0.0]).view(1, 3, 1, 1)).item()  # of pure green
    117.4...
    """
    if images.shape[1] == 1:
        return images.clone()
    red, green, blue = images.unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])[:, None]


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


# --- crops and blurs: small matrix products, each image with its own -------------------------------------------------


class Boxes(NamedTuple):
    """The boxes of a batch, each ``(B,)``, in whole pixels, float64."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def boxes(numbers: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Boxes:
    """The boxes that uniform numbers ``(B, CROP_NUMBERS)`` give in images of ``height`` by ``width``.

    They have the distribution of torchvision's ``RandomResizedCrop``: up to ten attempts of an area, uniform in ``scale`` times the
    image's, and a ratio of sides, log-uniform in ``ratio``; the first whose box fits the image is placed uniformly; if none fits,
    the largest central box whose ratio is allowed.  All attempts are made at once and the first that fits gathered; in float64, so
    that a size on the edge of rounding falls where the reference sampler's does.
    """
    u = numbers.double()
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, 0 : 2 * ATTEMPTS : 2])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * u[:, 1 : 2 * ATTEMPTS : 2]).exp()
    wide, tall = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)  # 0 also where none fits
    some = fits.gather(1, first)[:, 0]
    h = torch.where(some, tall.gather(1, first)[:, 0], min(height, round(width / min(ratio))))
    w = torch.where(some, wide.gather(1, first)[:, 0], min(width, round(height * max(ratio))))
    down, right = height - h, width - w
    top = torch.where(some, torch.minimum((u[:, -2] * (down + 1)).floor(), down), down.div(2).floor())
    left = torch.where(some, torch.minimum((u[:, -1] * (right + 1)).floor(), right), right.div(2).floor())
    return Boxes(top, left, h, w)


def weights(start: Tensor, length: Tensor, side: int, size: int, mirror: Tensor | None = None) -> Tensor:
    """Bilinear weights ``(B, size, side)`` that take ``length`` pixels from ``start`` on, each ``(B,)``, to ``size`` pixels.

    As of Pillow's ``image.crop(box).resize((size, size), BILINEAR)``: output pixel i has its centre at ``(i + 1/2) length / size``
    of the box and averages those around it with weights ``(1 - |distance| / s)_+``, s the larger of 1 and ``length / size``, over
    the box only and normalised to sum to 1.  mirror: ``(B,)``, whether the output pixels come in reversed order.
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
    """Each image between its own two matrices, ``rows_b images_bc columns_b^T``, float32.

    ``(B, C, H, W)``, ``(B, S, H)`` and ``(B, S, W)`` to ``(B, C, S, S)``: two batched products, columns first.

    >>> turned = torch.eye(3).flip(0)[None]
    >>> resample(torch.arange(9).view(1, 1, 3, 3), turned, torch.eye(3)[None])[0, 0, 0]  # upside down
    tensor([6., 7., 8.])
    """
    count, channels, height, width = images.shape
    size = rows.shape[1]
    across = torch.bmm(images.float().reshape(count, channels * height, width), columns.mT)
    every = rows[:, None].expand(count, channels, size, height).reshape(count * channels, size, height)
    return torch.bmm(every, across.view(count * channels, height, size)).view(count, channels, size, size)


def blur(images: Tensor, kernels: Tensor) -> Tensor:
    """The images ``(B, C, S, S)`` under their kernels ``(B, kernel)``, along rows and columns.

    Borders are reflected without repeating the edge pixel.  A blur is linear along each side, so it is a matrix, ``(S, S)``: that
    which moves pixels by a tap, times the tap, summed.
    """
    (count, _, side, _), kernel = images.shape, kernels.shape[1]
    offset, pixel = torch.arange(kernel, device=images.device) - kernel // 2, torch.arange(side, device=images.device)
    origin = (pixel + offset[:, None]).abs()
    origin = torch.where(origin > side - 1, 2 * (side - 1) - origin, origin)
    moves = (origin[:, :, None] == pixel).float().flatten(1)  # row i of a tap's matrix reads pixel i + offset
    matrices = (kernels @ moves).view(count, side, side)
    return resample(images, matrices, matrices)
