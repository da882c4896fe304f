"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

Colours = Mapping[str, str]

_GREY = "#888888"
NAMES = ("s", "s0", "s1", "s00", "s01", "s10", "s11")
"""The variables of a tree of depth 2, parents before children."""


def spot(name: str) -> tuple[float, float]:
    """Where a variable of a tree of depth 2 is drawn: across from 0 to 4, one down for each step from the root."""
    steps = name[1:]
    left, width = 0.0, 4.0
    for digit in steps:
        width /= 2
        left += int(digit) * width
    return left + width / 2, -float(len(steps))


def smallest_tree(ax: Axes, colours: Colours, polarities: Mapping[str, float]) -> None:
    """The tree of depth one whose root is the image: an arrow to each pixel, with its polarity, and grey where that is 0."""
    for k, (name, rho) in enumerate(polarities.items()):
        x = 1.0 + 2 * k
        look: dict[str, Any] = {
            "arrowstyle": "-|>",
            "color": colours["blue"] if rho else _GREY,
            "linewidth": 1.6,
            "shrinkA": 17,
            "shrinkB": 15,
        }
        ax.annotate("", (x, -1.0), (2.0, 0.0), arrowprops={**look, "linestyle": "-" if rho else ":"})
        ax.text(2 + 0.65 * (2 * k - 1), -0.42, f"polarity {rho:g}", ha=("right", "left")[k], va="center")
        ax.text(
            x, -1.0, name, ha="center", va="center", bbox={"boxstyle": "square,pad=0.4", "fc": "#e2e2e2", "ec": _GREY}
        )
    ax.text(2.0, 0.0, "image", ha="center", va="center", bbox={"boxstyle": "round,pad=0.5", "fc": "white", "ec": _GREY})
    ax.set(xlim=(-0.2, 4.2), ylim=(-1.4, 0.4), xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def latent_tree(ax: Axes, colours: Colours) -> None:
    """The world: every variable is drawn from its parent, from the root down to the leaves."""
    _arrows(ax, colours["blue"], down=True)
    for name in NAMES:
        _variable(ax, name, hidden=len(name) < 3)
    _finish(ax, "the world draws")


def tree_network(ax: Axes, colours: Colours) -> None:
    """The network on it: a part of three units over every hidden variable, which reads the parts below."""
    _arrows(ax, colours["vermilion"], down=False)
    for name in NAMES:
        x, y = spot(name)
        if len(name) == 3:
            _variable(ax, name, hidden=False)
            continue
        ax.add_patch(FancyBboxPatch((x - 0.5, y - 0.21), 1.0, 0.42, boxstyle="round,pad=0.06", fc="white", ec=_GREY))
        for k in range(3):
            ax.plot(x - 0.32 + 0.32 * k, y, "o", color=colours["vermilion"], markersize=7, zorder=3)
        ax.text(x + 0.64, y + 0.12, rf"$\mathcal{{N}}_\mathtt{{{name}}}$", va="bottom", ha="left")
    _finish(ax, "the network reads")


def _variable(ax: Axes, name: str, *, hidden: bool) -> None:
    x, y = spot(name)
    if hidden:
        ax.plot(x, y, "o", color="white", markeredgecolor=_GREY, markersize=32, zorder=2)
    else:
        ax.add_patch(FancyBboxPatch((x - 0.34, y - 0.2), 0.68, 0.4, boxstyle="square,pad=0.05", fc="#e2e2e2", ec=_GREY))
    ax.text(x, y, name, ha="center", va="center", family="monospace", fontsize=11.5, zorder=4)


def _arrows(ax: Axes, color: str, *, down: bool) -> None:
    for name in NAMES[1:]:
        (x, y), (above_x, above_y) = spot(name), spot(name[:-1])
        along = (x - above_x, y - above_y)
        high = (above_x + 0.42 * along[0], above_y + 0.42 * along[1])
        low = (above_x + 0.72 * along[0], above_y + 0.72 * along[1])
        begin, end = (high, low) if down else (low, high)
        style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.6}
        ax.annotate("", end, begin, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})


def _finish(ax: Axes, title: str) -> None:
    ax.set(xlim=(-0.05, 4.2), ylim=(-2.4, 0.5), title=title, xticks=[], yticks=[])
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
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[0, 1 - depths], yticklabels=["root", "lowest"], ylim=(0.5 - depths, 0.5))
    ax.tick_params(length=0)
    return across
