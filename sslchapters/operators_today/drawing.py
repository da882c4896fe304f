"""Losses as springs between the views of the world: what pulls is drawn solid, what pushes dashed, as wide as it is strong."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from sslbook.losses import batch
from sslbook.operator.view_weights import Loss, gram_weights
from sslchapters import world
from sslchapters.operators_today.checks import of_distances
from sslchapters.plots import PALETTE

SQUARE = torch.tensor([[[1, 1], [1, -1]], [[-1, -1], [-1, 1]]], dtype=torch.float64)
"""The world's views as outputs, (2, 2, 2), in the order of the chapter's example: views 1 and 2 of image A, 3 and 4 of image B."""

GALLERY: dict[str, tuple[Loss, float]] = {
    "simple": (partial(of_distances, loss="simple"), 0.5),
    "triplet": (partial(of_distances, loss="soft_triplet", temperature=1.0), 0.5),
    "NT-Xent, τ = 2": (partial(batch.info_nce, temperature=2.0), 1 / 8),
    "NT-Xent, τ = ⅕": (partial(batch.info_nce, temperature=0.2), 5 / 4),
    "decoupled, τ = 2": (partial(batch.decoupled, temperature=2.0), 1 / 8),
    "CLIP, τ = 2": (partial(batch.clip, temperature=2.0), 1 / 8),
    "SigLIP": (partial(batch.sigmoid_pairs, scale=5.0, bias=-2.0), 5 / 4),
    "spectral": (batch.spectral_contrastive, 1.0),
}
"""Losses by name, each with the pull of a partner that would be drawn at full width: the largest that the loss can have."""


def table_of(loss: Loss) -> NDArray[np.float64]:
    """The table of a loss at the views of the world."""
    return (-2 * gram_weights(loss, SQUARE)).numpy()


def springs(ax: Axes, table: NDArray[np.float64], full: float, *, reach: float = 1.5, width: float = 7.0) -> None:
    """The world with a spring for each pair of views; ``full`` is the strength that is drawn ``width`` points wide."""
    points = SQUARE.flatten(0, 1).numpy()
    world.draw(ax, SQUARE.numpy(), ellipses=False, words=False, names=("", ""), reach=reach)
    for a in range(4):
        for b in range(a):
            size, pulls = width * abs(table[a, b]) / full, table[a, b] > 0
            if size > 0.02 * width:
                color, style = ("vermilion", "-") if pulls else ("blue", (0, (2.2, 1.2)))
                (line,) = ax.plot(*points[[a, b]].T, color=PALETTE[color], linestyle=style, linewidth=size)
                line.set(solid_capstyle="butt", alpha=0.8, zorder=3)


def bare(ax: Axes, title: str = "") -> None:
    """Take the axes of a small panel away and write its title above it."""
    ax.set(xticks=(), yticks=())
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=11.5, fontweight="normal", loc="center")
