"""What the chapter's figures draw into their axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes

from sslchapters.landscape import optima
from sslchapters.landscape.theory import Activation


def crown(
    ax: Axes, points: Sequence[float], act: Activation, color: str,
    found: optima.Maxima, weights: tuple[str, float] = ("uniform", 1.0), **style: Any,
) -> None:  # fmt: skip
    """The energy over the filter's angle over its largest value; a filled dot on each smooth peak, an open one on a kink."""
    theta = torch.linspace(-math.pi, math.pi, 2881, dtype=torch.float64)
    curve = optima.energy(theta, points, act, *weights)
    ax.plot(theta, curve / curve.max(), color=color, **style)
    for angles, fill in ((found.smooth, color), (found.kinks, "white")):
        at = torch.tensor(angles, dtype=torch.float64)
        if len(at):
            value = optima.energy(at, points, act, *weights) / curve.max()
            ax.plot(at, value, "o", color=color, markerfacecolor=fill, markersize=7, zorder=4)
    ticks = {"xticks": [-math.pi, 0, math.pi], "xticklabels": ["$-\\pi$", "0", "$\\pi$"]}
    ax.set(xlim=(-math.pi, math.pi), ylim=(0, 1.08), **ticks)
