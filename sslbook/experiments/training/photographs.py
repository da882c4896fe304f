"""Views of photographs: one image after another by Pillow, what our batches are held against; and what one gives away of another.

The latter are simple numbers of a view, by the strength of the jitter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.training import augment
from sslbook.training.augment import Boxes, Pipeline

if TYPE_CHECKING:
    from PIL import Image


class Choice(NamedTuple):
    """What one image undergoes.  box: top, left, height, width; order: of the four jitters, empty for none."""

    box: tuple[int, int, int, int]
    mirror: bool
    order: tuple[int, ...]
    factors: tuple[float, float, float, float]
    grey: bool


def pillow_view(image: Image.Image, choice: Choice, size: int) -> Image.Image:
    """One view of one image, by Pillow's own operations on bytes."""
    from PIL import Image

    top, left, height, width = choice.box
    view = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if choice.mirror:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for kind in choice.order:
        view = pillow_jitter(view, kind, choice.factors[kind])
    if choice.grey:
        grey = view.convert("L")
        view = Image.merge("RGB", (grey, grey, grey))
    return view


def pillow_jitter(image: Image.Image, kind: int, factor: float) -> Image.Image:
    """Brightness, contrast or saturation by ImageEnhance; hue by adding to the byte of it, as torchvision does."""
    from PIL import Image, ImageEnhance

    if kind < 3:
        enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[kind]
        return enhance(image).enhance(factor)
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(int(factor * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


# -- a batch beside it --------------------------------------------------------------------------------------------------


def photographs(count: int, side: int, seed: int = 0) -> Tensor:
    """Windows of the two photographs that scikit-learn ships, uint8 ``(count, 3, side, side)``, drawn by ``seed``."""
    from sklearn.datasets import load_sample_images

    whole = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)
    windows = whole.unfold(2, side, side // 2).unfold(3, side, side // 2).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    return windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))[:count]].contiguous()


def _boxes_of(numbers: Tensor, pipeline: Pipeline, height: int, width: int) -> Boxes:
    """The boxes that :func:`sslbook.training.augment.apply` cuts for the same draws."""
    return augment.boxes(numbers[:, : augment.CROP_NUMBERS], height, width, pipeline.scale, pipeline.ratio)


def choices(numbers: Tensor, pipeline: Pipeline, height: int, width: int) -> list[Choice]:
    """What the draws ``(B, NUMBERS)`` say of each image, as Pillow is told it."""
    box = torch.stack(_boxes_of(numbers, pipeline, height, width), 1).int().tolist()
    part = numbers[:, augment.JITTER]
    order, factors = augment.order_of(part), augment.factors_of(part, pipeline.jitter, pipeline.jitter_probability)
    jittered = part[:, 0] < pipeline.jitter_probability
    return [
        Choice(
            box=tuple(box[i]),
            mirror=bool(numbers[i, augment.FLIP] < pipeline.flip),
            order=tuple(k for k in augment.ORDERS[int(order[i])] if pipeline.jitter[k]) if jittered[i] else (),
            factors=tuple(factors[i].tolist()),
            grey=bool(numbers[i, augment.GREY] < pipeline.grey),
        )
        for i in range(len(numbers))
    ]


def pillow_views(pixels: Tensor, pipeline: Pipeline, numbers: Tensor) -> Tensor:
    """Levels ``(B, 3, size, size)``: crop, mirror, jitter, grey, one image after another; no blur, no mean and deviation."""
    from PIL import Image

    views = [
        np.array(pillow_view(Image.fromarray(image.permute(1, 2, 0).numpy()), choice, pipeline.size))
        for image, choice in zip(pixels, choices(numbers, pipeline, *pixels.shape[2:]), strict=True)
    ]
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).float()


def _grid_sampled(pixels: Tensor, pipeline: Pipeline, numbers: Tensor) -> Tensor:
    """The usual shortcut for a crop, levels ``(B, 3, size, size)``: the whole image, sampled at the box's points.

    At the border of the box it takes in pixels from outside, and where it shrinks it leaves pixels out.
    """
    height, width = pixels.shape[2:]
    box = _boxes_of(numbers, pipeline, height, width)
    places = (torch.arange(pipeline.size) + 0.5) / pipeline.size
    rows = 2 * (box.top[:, None] + box.height[:, None] * places) / height - 1
    columns = 2 * (box.left[:, None] + box.width[:, None] * places) / width - 1
    grid = torch.stack(
        [
            columns[:, None].expand(-1, pipeline.size, -1),
            rows[:, :, None].expand(-1, -1, pipeline.size),
        ],
        dim=3,
    )
    return F.grid_sample(pixels.float(), grid.float(), mode="bilinear", padding_mode="border", align_corners=False)


def gaps(pipeline: Pipeline, count: int, seed: int) -> dict[str, float]:
    """How far views of so many photographs lie from Pillow's, in levels of 255, by what is compared.

    At the worst pixel, "crop": the crop alone; "grid": sampled at the box's points instead.  In the mean over the worst image,
    "view": the whole of it; "one hue": without a turn of the hue; "one order": with one order of the jitters for the batch.
    """
    pixels, numbers = photographs(count, pipeline.size), augment.draws(count, seed, 0, 0)
    crop = replace(pipeline, flip=0.0, jitter=(0.0, 0.0, 0.0, 0.0), grey=0.0)
    steady = replace(pipeline, jitter=(*pipeline.jitter[:3], 0.0))
    one_order = numbers.clone()
    one_order[:, augment.JITTER.start + 1] = numbers[0, augment.JITTER.start + 1]
    cut, view, unturned = (pillow_views(pixels, part, numbers) for part in (crop, pipeline, steady))

    def apart(part: Pipeline, theirs: Tensor, draws: Tensor) -> Tensor:
        return (255 * augment.apply(pixels, part, draws) - theirs).abs()

    return {
        "crop": float(apart(crop, cut, numbers).amax()),
        "grid": float((_grid_sampled(pixels, crop, numbers) - cut).abs().amax()),
        "view": float(apart(pipeline, view, numbers).mean((1, 2, 3)).amax()),
        "one hue": float(apart(steady, unturned, numbers).mean((1, 2, 3)).amax()),
        "one order": float(apart(pipeline, view, one_order).mean((1, 2, 3)).amax()),
    }


# -- what a view gives away -------------------------------------------------------------------------------------------

BARE = replace(augment.PIPELINES["stl10"], size=48, jitter=(0.0,) * 4, jitter_probability=1.0, grey=0.0, blur=0.0)
"""Crop and mirror image alone, of the papers' views for STL-10, smaller."""
FULL = augment.PIPELINES["stl10"].jitter
FAINT = 1e-3
"""Of a level of one, added to mean slopes, so that a flat view has a number too."""


def jittered(strength: float) -> Pipeline:
    """:data:`BARE` with so many times the papers' strengths of brightness, contrast, saturation and hue, for every image."""
    first, second, third, hue = (strength * full for full in FULL)
    return replace(BARE, jitter=(first, second, third, hue))


def redness(views: Tensor) -> Tensor:
    """Red's share of a view's light, ``(N, 3, H, W)`` to ``(N,)``: a third of a grey view's."""
    light = views.mean((2, 3))
    return light[:, 0] / light.sum(1)


def edges(views: Tensor) -> Tensor:
    """Logarithm of the mean slope across a grey view over that down it, ``(N, 3, H, W)`` to ``(N,)``: above 0, upright edges."""
    grey = views.mean(1)
    across, down = grey.diff(dim=2).abs().mean((1, 2)), grey.diff(dim=1).abs().mean((1, 2))
    return ((across + FAINT) / (down + FAINT)).log()


def drawn(images: Tensor, pipeline: Pipeline, views: int = 8, seed: int = 0) -> list[Tensor]:
    """So many views of each image, each ``(N, 3, S, S)``."""
    return [augment.random_view(images, pipeline, seed=seed, view=view) for view in range(views)]


def agreement(views: Sequence[Tensor], number: Callable[[Tensor], Tensor]) -> float:
    """Correlation over images of a number of one view with that of another, in the mean over pairs of views."""
    found = np.corrcoef(np.stack([number(view).double().numpy() for view in views]))
    count = len(found)
    return float((found.sum() - count) / (count * (count - 1)))


def shares(strengths: Sequence[float], images: Tensor) -> dict[str, list[float]]:
    """:func:`agreement` of :func:`redness` and of :func:`edges` at each strength."""
    walls = [drawn(images, jittered(strength)) for strength in strengths]
    return {
        "colour": [agreement(views, redness) for views in walls],
        "edges": [agreement(views, edges) for views in walls],
    }


def alone(images: Tensor, seed: int = 0) -> dict[str, float]:
    """:func:`agreement` of colour under one ingredient at its full strength, by its name; grey for one view in five."""
    names = ("brightness", "contrast", "saturation", "hue")
    first, second, third, hue = FULL
    rows = ((first, 0.0, 0.0, 0.0), (0.0, second, 0.0, 0.0), (0.0, 0.0, third, 0.0), (0.0, 0.0, 0.0, hue))
    each = {name: replace(BARE, jitter=row) for name, row in zip(names, rows, strict=True)}
    each["grey"] = replace(BARE, grey=0.2)
    return {name: agreement(drawn(images, pipeline, seed=seed), redness) for name, pipeline in each.items()}
