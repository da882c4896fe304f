"""Figures of the chapter: the ring, responses over time, the exchanged square, the energy over the angle of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sslchapters import world
from sslchapters.emergence.ring import PATTERNS
from sslchapters.plots import PALETTE

STYLES = ("-", "--", ":")
BIG: dict[str, Any] = {"markersize": 12, "zorder": 5, "markeredgewidth": 2}


def responses(ax: Axes, paths: Tensor, hues: Mapping[str, str]) -> None:
    """Responses ``(times, 3)`` to 01, 10 and 11, each curve named at its end; those that end close together share a label."""
    for k, pattern in enumerate(PATTERNS[1:]):
        ax.plot(paths[:, k], STYLES[k], color=hues[pattern])
    ends = sorted(zip(paths[-1].tolist(), PATTERNS[1:], strict=True))
    groups = [ends[:1]]
    for end in ends[1:]:
        groups[-1].append(end) if end[0] - groups[-1][-1][0] < 0.3 else groups.append([end])
    for group in groups:
        names = sorted(pattern for _, pattern in group)
        color = hues[names[0]] if len(names) == 1 else PALETTE["ink"]
        place = (len(paths) - 1, min(group[-1][0], 3.9))
        ax.annotate(", ".join(names), place, (0, 6), textcoords="offset points", ha="right", color=color)


def pixels(ax: Axes, count: int, lit: Sequence[int], name: str) -> None:
    """A ring of pixels, of which some are ``lit``, and the neuron's window on pixels 0 and 1, at the top; clockwise."""
    turn = np.pi / 2 + np.pi / count * (1 - 2 * np.arange(count))
    x, y = np.cos(turn), np.sin(turn)
    ax.plot(x[:2], y[:2], color=PALETTE["blue"], alpha=0.3, linewidth=30, solid_capstyle="round")
    for k in range(count):
        ax.plot(
            x[k],
            y[k],
            "o",
            markersize=15,
            color=PALETTE["ink"],
            markerfacecolor=PALETTE["ink"] if k in lit else "white",
        )
    ax.annotate(name, (0, 0), ha="center", va="center")
    ax.set(xlim=(-2.2, 2.2), ylim=(-1.3, 1.4), aspect="equal")
    ax.axis("off")


def exchanged(ax: Axes, points: Tensor, means: Tensor, weight: Tensor | None) -> None:
    """The square with its partners exchanged, the images' (gated) means, and with a ``weight`` its gate and the step."""
    flat = points.numpy()
    gate = None if weight is None else (weight.numpy(), 0.0)
    world.draw(ax, flat, ellipses=False, gate=gate, words=False, names=("", ""))
    for image, name in zip(flat, "AB", strict=True):
        for x, y in image:
            ax.annotate(name, (x, y), (1.3 * x, 1.3 * y), ha="center", va="center")
    for mean, fill in zip(means.tolist(), (PALETTE["blue"], "white"), strict=True):
        ax.plot(*mean, "D", markerfacecolor=fill, markeredgecolor=PALETTE["blue"], **BIG)
    said = "mean of A, mean of B" if weight is None else ""
    ax.annotate(said, (0, -0.45), ha="center", color=PALETTE["blue"])
    if weight is not None:
        for (x, y), name, side in zip(means.tolist(), "AB", (-0.35, 0.35), strict=True):
            ax.annotate(name, (x + side, y), ha="center", va="center", color=PALETTE["blue"])
        tip, apart = 0.75 * weight.numpy(), (means[0] - means[1]).numpy()
        step = apart * (apart @ weight.numpy()) / 1.6
        world.draw_arrow(ax, 0 * tip, tip, "ink")
        world.draw_arrow(ax, tip, step, "green")
        ax.annotate("step", tip + step, (0, 4), textcoords="offset points", ha="center", color=PALETTE["green"])
        ax.annotate("$w$", (1.2, 0.25), color=PALETTE["ink"])
    ax.set(xlabel="first pixel", ylabel="second pixel" if weight is None else "")


def energy(ax: Axes, degrees: ArrayLike, height: NDArray[np.float64]) -> None:
    r"""The energy :math:`\gamma^2` above the circle of directions, its ridges, which way it is climbed, and the plains."""
    angle = np.radians(np.asarray(degrees))

    def at(degree: float, radius: float) -> tuple[float, float]:
        return radius * float(np.cos(np.radians(degree))), radius * float(np.sin(np.radians(degree)))

    ax.plot(np.cos(angle), np.sin(angle), color="#999999", linewidth=1)
    ax.plot((1 + height) * np.cos(angle), (1 + height) * np.sin(angle), color=PALETTE["blue"], linewidth=2.4)
    for middle, word in ((45, "stuck:\n01, 10, 11"), (225, "dead:\nnothing")):
        arc = np.radians(np.linspace(middle - 45, middle + 45, 60))
        ax.plot(np.cos(arc), np.sin(arc), color="#999999", linewidth=7, solid_capstyle="butt", zorder=3)
        ax.annotate(word, at(middle, 0.55), ha="center", va="center")
    for ridge, name, side in ((135, "01 alone", "right"), (315, "10 alone", "left")):
        ax.plot(*at(ridge, 1.5), "o", color=PALETTE["vermilion"], markersize=9, zorder=4)
        ax.annotate(name, at(ridge, 1.62), ha=side, va="center", color=PALETTE["vermilion"])
        for sign in (-1, 1):
            look = {
                "arrowstyle": "-|>",
                "color": PALETTE["ink"],
                "linewidth": 1.8,
                "connectionstyle": f"arc3,rad={0.14 * sign}",
            }
            ax.annotate("", at(ridge + 7 * sign, 0.93), at(ridge + 40 * sign, 0.93), arrowprops=look)
    ax.set(xlim=(-2.9, 2.9), ylim=(-1.5, 1.5), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    ax.set(xlabel="first weight", ylabel="second weight")
