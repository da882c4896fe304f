"""What the chapter's figures draw into their axes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from sslchapters.linear_byol import instances, theory
from sslchapters.plots import PALETTE


def plane_of_fates(ax: Axes, ratio: float) -> None:
    """The plane of w1 and w2 with theta = w1: where starts collapse, the line on which the others end, and paths."""
    reach = 1.6
    side = np.linspace(-reach, reach, 481)
    ax.contourf(side, side, ~theory.survives(*np.meshgrid(side, side), ratio), levels=[0.5, 1.5], colors=["#e2e2e2"])
    ax.axhline(ratio, color=PALETTE["green"], linestyle="--", linewidth=1.6)
    a, b = (part.ravel() for part in np.meshgrid(np.linspace(-1.35, 1.35, 4), np.linspace(-1.45, 1.45, 6)))
    path = instances.follow(a, b, a, ratio, 300.0, points=np.append(0, np.geomspace(1e-4, 1, 150)))
    for (x, y), alive in zip(path[:, :2].transpose(2, 1, 0), theory.survives(a, b, ratio), strict=True):
        tone = PALETTE["blue" if alive else "vermilion"]
        ax.plot(x, y, color=tone, linewidth=1.1)
        ax.plot(x[0], y[0], "o", color=tone, markersize=2.5)
        ax.plot(x[-1], y[-1], "s" if alive else "X", color=tone, markersize=5)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xlabel="$w_1$", ylabel="$w_2$", aspect="equal")
