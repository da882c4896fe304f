"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from torch import Tensor

_GREY = "#888888"


def bare(ax: Axes, **limits: Any) -> None:
    """Axes without ticks, grid and frame."""
    ax.set(xticks=[], yticks=[], **limits)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def correlations(ax: Axes, best: Sequence[Tensor], color: str) -> None:
    """A circle for each part of a network on a binary tree; of its area, as much is filled as its best unit explains.

    best: the largest correlation of a unit with the part's variable, one tensor ``(1, nodes)`` a depth, root first.
    """
    for d, (found, x) in enumerate(zip(best, _edges(ax, len(best)), strict=True)):
        look: dict[str, Any] = {"zorder": 2, "linewidths": 1}
        ax.scatter(x, torch.full_like(x, -d), s=_size(d), c="white", edgecolors=_GREY, **look)
        ax.scatter(x, torch.full_like(x, -d), s=_size(d) * found[0].square(), c=color, linewidths=0, zorder=3)


def signals(ax: Axes, strength: Sequence[Tensor], color: str, lowest: float) -> None:
    """The same tree, each circle the darker the stronger the root's signal: white at ``lowest``, full at 0.3, by its logarithm.

    strength: one tensor ``(1, nodes)`` a depth, root first.
    """
    shades = LinearSegmentedColormap.from_list("signal", ["#ffffff", color])
    norm = LogNorm(lowest, 0.3, clip=True)
    for d, (found, x) in enumerate(zip(strength, _edges(ax, len(strength)), strict=True)):
        look: dict[str, Any] = {"cmap": shades, "norm": norm, "edgecolors": _GREY, "linewidths": 1, "zorder": 2}
        ax.scatter(x, torch.full_like(x, -d), s=_size(d), c=found[0].clamp_min(lowest), **look)
    bar = plt.colorbar(ScalarMappable(norm, shades), ax=ax, orientation="horizontal", fraction=0.06, pad=0, aspect=30)
    bar.ax.tick_params(length=0)


def by_depth(ax: Axes, steps: Sequence[int], rows: Tensor, color: str) -> None:
    """A curve a depth over ``steps``, rows (steps, depths): the root's is thick; its name and the lowest one's at the start."""
    lowest = rows.shape[1] - 1
    for d, mark in zip(range(lowest + 1), "os^Dv", strict=False):
        look: dict[str, Any] = {"color": color, "linewidth": 2.6} if d == 0 else {"color": _GREY, "linewidth": 1.2}
        ax.plot(steps, rows[:, d], marker=mark, **look)
    for d, name in ((0, "root"), (lowest, "lowest")):
        up = 9 if rows[0, d] == rows[0].max() else -12
        ax.annotate(name, (0, float(rows[0, d])), (4, up), textcoords="offset points", va="center")


def _size(depth: int) -> float:
    return 560 / (1 + depth)


def _edges(ax: Axes, depths: int) -> list[Tensor]:
    """Draw the edges of a binary tree into bare axes; returns where its nodes lie across, a tensor a depth."""
    across = [(torch.arange(2**d) + 0.5) / 2**d for d in range(depths)]
    for d, x in enumerate(across[1:], 1):
        up = across[d - 1].repeat_interleave(2)
        ax.plot(torch.stack([x, up]), [[-d], [1 - d]], color=_GREY, linewidth=0.8, zorder=1)
    bare(ax, ylim=(0.5 - depths, 0.5))
    ax.set(yticks=[0, 1 - depths], yticklabels=["root", "lowest"])
    ax.tick_params(length=0)
    return across
