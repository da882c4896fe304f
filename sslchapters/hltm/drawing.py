"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
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
    for d, found in enumerate(best):
        x = (torch.arange(2**d) + 0.5) / 2**d
        if d:
            up = x.view(-1, 2).mean(1).repeat_interleave(2)
            ax.plot(torch.stack([x, up]), [[-d], [1 - d]], color=_GREY, linewidth=0.8, zorder=1)
        size = 560 / (1 + d)
        ax.scatter(x, torch.full_like(x, -d), s=size, c="white", edgecolors=_GREY, zorder=2)
        ax.scatter(x, torch.full_like(x, -d), s=size * found[0].square(), c=color, linewidths=0, zorder=3)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[0, 1 - len(best)], yticklabels=["root", "lowest"], ylim=(0.5 - len(best), 0.5))
    ax.tick_params(length=0)
