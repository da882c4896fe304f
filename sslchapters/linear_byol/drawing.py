"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from sslchapters.linear_byol import instances, theory
from sslchapters.linear_byol.theory import Array

Colours = Mapping[str, str]

SHADE = "#e2e2e2"


def plane_of_fates(ax: Axes, ratio: float, colours: Colours) -> None:
    """The plane of w1 and w2 with theta = w1: where starts collapse, the line on which the others end, and paths."""
    reach = 1.6
    side = np.linspace(-reach, reach, 481)
    ax.contourf(side, side, ~theory.survives(*np.meshgrid(side, side), ratio), levels=[0.5, 1.5], colors=[SHADE])
    ax.axhline(ratio, color=colours["green"], linestyle="--", linewidth=1.6)
    a, b = (part.ravel() for part in np.meshgrid(np.linspace(-1.35, 1.35, 4), np.linspace(-1.45, 1.45, 6)))
    path = instances.follow(a, b, a, ratio, 300.0, points=np.append(0, np.geomspace(1e-4, 1, 150)))
    for (x, y), alive in zip(path[:, :2].transpose(2, 1, 0), theory.survives(a, b, ratio), strict=True):
        tone = colours["blue"] if alive else colours["vermilion"]
        ax.plot(x, y, color=tone, linewidth=1.1)
        ax.plot(x[0], y[0], "o", color=tone, markersize=2.5)
        ax.plot(x[-1], y[-1], "s" if alive else "X", color=tone, markersize=5)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xlabel="$w_1$", ylabel="$w_2$", aspect="equal")


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
