"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from sslchapters.linear_byol import instances, theory
from sslchapters.linear_byol.theory import Array

Colours = Mapping[str, str]

SHADE = "#e2e2e2"


def portrait(ax: Axes, kind: str, ratio: float, colours: Colours) -> None:
    """One panel of Figure 5: directions of the flow, nullclines or fixed points, and a few trajectories."""
    field = theory.planar_field(kind, ratio)
    low, high = -1.5, 1.5
    x, y = np.meshgrid(np.linspace(low, high, 15), np.linspace(low, high, 15))
    u, v = field(x, y)
    length = np.hypot(u, v)
    length[length == 0] = 1
    ax.quiver(x, y, u / length, v / length, color="#9a9a9a", width=0.006, scale=22)
    line = np.linspace(low, high, 400)
    if kind == "fixed target":
        for half in (line[line > 0.05], line[line < -0.05]):
            ax.plot(half, ratio / half, color=colours["vermilion"])
        stable, unstable = np.zeros((0, 2)), np.zeros((1, 2))
    else:
        ax.plot(line, line, color=colours["green"], linewidth=1.6)
        bend = line**2 / ratio if kind == "tied predictor" else line / ratio
        ax.plot(line, bend, "--", color=colours["blue"], linewidth=1.6)
        if kind == "tied predictor":
            ax.plot([0, 0], [low, high], "--", color=colours["blue"], linewidth=1.6)
            stable, unstable = np.array([[ratio, ratio]]), np.zeros((1, 2))
        else:
            stable, unstable = np.zeros((1, 2)), np.zeros((0, 2))
    begin = _begin(kind)
    paths = instances.planar_path(field, begin[:, 0], begin[:, 1], 40.0, 300)
    ax.plot(paths[:, 0], paths[:, 1], color=colours["ink"], linewidth=1.1)
    ax.plot(begin[:, 0], begin[:, 1], "o", color=colours["ink"], markersize=3)
    ax.plot(*stable.T, "o", color=colours["vermilion"], markersize=7)
    ax.plot(*unstable.T, "o", markerfacecolor="white", markeredgecolor=colours["vermilion"], markersize=7)
    names = ("$w_1$", "$w_2$") if kind == "fixed target" else ("$w$", r"$\theta$")
    ax.set(
        xlim=(low, high),
        ylim=(low, high),
        xlabel=names[0],
        ylabel=names[1],
        aspect="equal",
        xticks=(-1, 0, 1),
        yticks=(-1, 0, 1),
    )
    ax.grid(visible=False)


def _begin(kind: str) -> Array:
    """Starts whose paths are drawn."""
    if kind == "tied predictor":
        return np.array([[0.08, 0.02], [1.4, 0.1], [0.3, 1.4], [0.5, -1.2], [-0.3, 1.2], [-1.2, -0.6], [-0.2, -1.4]])
    if kind == "fixed target":
        return np.array([[0.15, 0.05], [1.4, -0.4], [-0.1, -0.05], [-1.3, 0.9], [0.2, 1.4], [-0.6, -1.3]])
    return np.array([[1.3, 0.2], [0.3, 1.4], [-1.3, -0.4], [-0.4, 1.3], [0.9, -1.2]])
