"""The chapter's figures."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from torch import Tensor

from sslchapters.plots import PALETTE
from sslchapters.useful import graph
from sslchapters.useful.worlds import World

COLORS = ("blue", "vermilion", "green")


def draw_square(ax: Axes, world: World) -> None:
    """Views as dots, as large as they are likely; edges as wide as two views of one image are likely to be these."""
    joint, weights = graph.adjacency(world.table), world.table.mean(0)
    for one, two in torch.combinations(torch.arange(len(weights))).tolist():
        line = world.views[[one, two]].T.numpy()
        ax.plot(*line, color=PALETTE["ink"], linewidth=40 * float(joint[one, two]), alpha=0.35, zorder=1)
    shown = world.table / world.table.sum(0)
    for view, weight, (a, _) in zip(world.views.tolist(), weights.tolist(), shown.T.tolist()):
        mark, color = ("s", "blue") if a > 0.9 else ("o", "vermilion") if a < 0.1 else ("D", "purple")
        ax.plot(*view, mark, color=PALETTE[color], markersize=3 + 40 * weight, zorder=2)
    for x, name in ((2, "A alone"), (0, "both images"), (-2, "B alone")):
        ax.text(x, 1.75, name, ha="center")
    ax.set(xlim=(-3, 3), ylim=(-1.7, 2.3), xticks=(-2, 0, 2), yticks=(-1, 1))
    ax.grid(visible=False)


def scatter(ax: Axes, places: Tensor, labels: Tensor, digits: tuple[int, ...]) -> None:
    """Images at ``places (N, 2)``, each drawn as the digit that it shows; the first digit lies to the right, and up."""
    places = places * torch.sign(places[labels == 0].sum(0))
    for digit, color, label in zip(digits, COLORS, range(len(digits))):
        mine = places[labels == label]
        ax.scatter(mine[:, 0], mine[:, 1], marker=f"${digit}$", s=38, color=PALETTE[color], linewidths=0.3)
    ax.set(xticks=(), yticks=())


def draw_bound(ax: Axes, found: graph.Probe, last: int) -> None:
    """What a probe leaves on k = 1 … ``last`` functions, between what no probe can do and the bound; vacuous above 1."""
    ks = torch.arange(1, last + 1)
    ax.fill_between(ks, 1, 1.15, color="#dddddd", linewidth=0)
    ax.text(last, 1.075, "bounds here say nothing", ha="right", va="center")
    for values, color, style in (
        (found.bound[ks].clamp(max=1.15), "vermilion", "--"),
        (found.left[ks], "blue", "-"),
        (torch.full((last,), 1 - found.share), "ink", ":"),
    ):
        ax.plot(ks, values, style, color=PALETTE[color])
    ax.set(
        xlim=(1, last),
        ylim=(0, 1.15),
        xticks=(1, *range(5, last + 1, 5)),
        xlabel="functions k that the probe reads",
        ylabel="variance of labels left",
    )
