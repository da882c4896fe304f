"""What one view of a photograph gives away of another: simple numbers of a view, by the strength of the jitter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from sslbook.training.views import augment
from sslbook.training.views.augment import Pipeline

BARE = replace(augment.PIPELINES["stl10"], size=48, jitter=(0.0,) * 4, jitter_probability=1.0, grey=0.0, blur=0.0)
"""Crop and mirror image alone, of the papers' views for STL-10, smaller."""
FULL = augment.PIPELINES["stl10"].jitter
WIDTH = 5.8
"""Of a figure of the book, in inches."""
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


def wall(images: Tensor, pipeline: Pipeline, views: int = 5) -> Figure:
    """A row an image: the image, a gap, and so many of its views, edge to edge."""
    rows = [images.float() / 255, *(view.clamp(0, 1) for view in drawn(images, pipeline, views))]
    widths = [1.0, 0.08, *[1.0] * views]
    size = (WIDTH, WIDTH * len(images) / sum(widths))
    fig, axes = plt.subplots(
        len(images), len(widths), figsize=size, layout="none", gridspec_kw={"width_ratios": widths}
    )
    fig.subplots_adjust(0.005, 0.01, 0.995, 0.99, wspace=0.03, hspace=0.03)
    for i, line in enumerate(axes):
        line[1].set_visible(False)
        for ax, pictures in zip((line[0], *line[2:]), rows, strict=True):
            ax.imshow(pictures[i].permute(1, 2, 0), aspect="auto")
            ax.set(xticks=[], yticks=[])
            ax.grid(visible=False)
            ax.spines[:].set_visible(False)
    return fig


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


__all__ = ["agreement", "alone", "drawn", "edges", "jittered", "redness", "shares", "wall"]
