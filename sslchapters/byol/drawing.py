"""Pictures of the chapter: how BYOL is wired, the tug of war, and outputs on a circle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch
from torch import Tensor

from sslchapters.plots import PALETTE

TOP, MIDDLE, BOTTOM = 2.1, 1.2, 0.3
"""Heights of the online tower, of what both towers share, and of the target."""

HALF = 0.37
"""Half the height of a box."""


def wiring(ax: Axes) -> None:
    """Draw both towers into ``ax``, and where the gradient flows.

    What only the online tower has, and what the gradient does, is vermilion; what is the target's is dashed.
    """
    ink, blue, red, green = (PALETTE[name] for name in ("ink", "blue", "vermilion", "green"))
    size = 12.0  # of the letters

    def box(x: float, y: float, words: str, color: str, width: float, line: str = "-") -> None:
        corner, shape = (x - width / 2, y - HALF), "round,pad=0,rounding_size=0.08"
        ax.add_patch(FancyBboxPatch(corner, width, 2 * HALF, shape, fc="white", ec=color, lw=1.8, ls=line))
        ax.text(x, y, words, ha="center", va="center", size=size, color=ink, linespacing=1.2)

    def arrow(start: tuple[float, float], end: tuple[float, float], color: str, line: str = "-") -> None:
        shape = {"arrowstyle": "-|>", "color": color, "lw": 1.6, "ls": line, "shrinkA": 2, "shrinkB": 2}
        ax.annotate("", end, start, arrowprops=shape)

    box(0.35, MIDDLE, "image\n" + r"$\mathbf{x}$", ink, 0.8)
    for y, view, network, line in ((TOP, 1, "online\n$W$", "-"), (BOTTOM, 2, "target\n$W'$", "--")):
        side = 1 if y == TOP else -1
        box(1.45, y, "view\n" + rf"$\mathbf{{x}}_{view}$", ink, 0.75)
        box(3.1, y, network, blue, 1.1, line)
        arrow((0.5, MIDDLE + side * HALF), (1.07, y - side * 0.12), ink)
        arrow((1.83, y), (2.55, y), ink)
    box(5.05, TOP, "predictor\n$W_p$", red, 1.4)
    box(6.85, MIDDLE, "loss\n$r$", ink, 0.75)
    arrow((3.65, TOP), (4.35, TOP), ink)
    arrow((5.75, TOP), (6.65, MIDDLE + HALF), ink)
    arrow((3.65, BOTTOM), (6.65, MIDDLE - HALF), ink)
    for x in (5.0, 5.15):  # the stroke through the target's way back
        ax.plot([x - 0.1, x + 0.1], [BOTTOM + 0.02, BOTTOM + 0.52], color=red, lw=2.4, solid_capstyle="butt")
    ax.text(5.1, BOTTOM - 0.22, "stop-gradient", ha="center", va="center", size=size, color=red)
    arrow((3.1, TOP - HALF), (3.1, BOTTOM + HALF), green, "--")
    ax.text(3.25, MIDDLE, "moving\naverage", ha="left", va="center", size=size, color=green)
    arrow((6.85, TOP + 0.55), (2.6, TOP + 0.55), red)
    ax.text(4.75, TOP + 0.75, "gradient", ha="center", va="center", size=size, color=red)
    ax.set(xlim=(-0.1, 7.3), ylim=(-0.15, 3.0))
    ax.axis("off")


DIGITS = {0: ("blue", "o"), 1: ("vermilion", "s"), 4: ("green", "^")}
"""The digits that are shown on the circle, each with its colour and its mark."""


def circle(ax: Axes, outputs: Tensor, labels: Tensor) -> None:
    """Draw outputs of length 1, ``(N, 2)``, of the digits 0, 1 and 4; their radius is jittered, so that all can be seen."""
    radius = 1 + 0.09 * torch.randn(len(labels), 1, generator=torch.Generator().manual_seed(1))
    ax.add_patch(Circle((0, 0), 1, fill=False, color="#999999", lw=0.8))
    for digit, (color, mark) in DIGITS.items():
        chosen = labels == digit
        x, y = (radius[chosen] * outputs[chosen]).T.numpy()
        ax.plot(x, y, mark, ms=3.5, mec="none", color=PALETTE[color], label=f"{digit}")
    ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
    ax.axis("off")


def bias(ax: Axes, size: float) -> None:
    """Two predictions, which have lost their mean, and the targets of two images with a bias of this size, on the circle.

    Outputs are ``(1, size)`` and ``(-1, size)``; arrows show the part of each target perpendicular to its prediction.
    """
    ax.add_patch(Circle((0, 0), 1, fill=False, color="#999999", lw=0.8))
    for side in (1, -1):
        x, y = np.array([side, size]) / np.hypot(1, size)
        ax.annotate(
            "",
            (side, y),
            (side, 0),
            arrowprops={"arrowstyle": "-|>", "color": PALETTE["vermilion"], "lw": 2, "shrinkA": 4, "shrinkB": 0},
        )
        ax.plot(x, y, "s", ms=9, color=PALETTE["blue"])
        ax.plot(side, 0, "o", ms=9, color=PALETTE["ink"])
    ax.text(0, 0, "predictions", ha="center", va="center", color=PALETTE["ink"])
    ax.text(0, y - 0.12 if size < 1 else y - 0.2, "targets", ha="center", va="center", color=PALETTE["blue"])
    ax.set(xlim=(-1.35, 1.35), ylim=(-0.35, 1.2), aspect="equal")
    ax.axis("off")


def tug(ax: Axes, beta: float, directions: Mapping[str, tuple[float, float]]) -> None:
    """For each direction, by name with its ``(a, b)``: the push to the right, the pull to the left, the net arrow below.

    Lengths are those of the law of β; an arrow that is too short to be seen is left out.
    """
    for row, (name, (a, b)) in enumerate(directions.items()):
        push, pull, y = beta * a, beta**2 * (a + b), -2.0 * row
        arrows = (
            (0.28, push, "blue", "push", "bottom"),
            (0.28, -pull, "vermilion", "pull", "bottom"),
            (-0.35, push - pull, "ink", "net", "top"),
        )
        for up, length, color, word, side in arrows:
            if abs(length) > 0.02:
                size = {"lw": min(3, 20 * abs(length)), "mutation_scale": min(16, 100 * abs(length))}
                look = {"arrowstyle": "-|>", "color": PALETTE[color], "shrinkA": 0, "shrinkB": 0}
                ax.annotate("", (length, y + up), (0, y + up), arrowprops={**look, **size})
                at, beyond = math.copysign(max(abs(length) / 2, 0.3), length), 0.13 if side == "bottom" else -0.13
                ax.text(at, y + up + beyond, word, color=PALETTE[color], ha="center", va=side)
        ax.plot(0, y, "o", ms=7, color=PALETTE["ink"])
        ax.text(-1.45, y + 0.85, name, ha="left", va="center", weight="bold")
    ax.set(xlim=(-1.5, 1.2), ylim=(-2.0 * len(directions) + 0.7, 1.2), yticks=[], xlabel=r"growth of $w$")
    ax.axvline(0, color="#cccccc", lw=0.8, zorder=0)
    ax.grid(visible=False)


def parabolas(ax: Axes, beta: float, shares: Mapping[float, float], measured: Callable[[float], float]) -> None:
    """The growth rate across for ``a = 1`` up to ``beta``, by jitter with its share; that of jitter ½ is heavy, with dots."""
    fine, dots = np.linspace(0, beta if beta < 1 else 1.1, 111), np.linspace(0, 1, 11)
    dots = dots[dots < beta + 1e-9]
    ax.axhline(0, color="#888888", lw=1)
    for jitter, share in shares.items():
        main, rate = jitter == 0.5, fine * (1 - fine / share)
        ax.plot(fine, rate, color=PALETTE["ink" if main else "blue"], lw=2.4 if main else 1.2, alpha=1 if main else 0.6)
        bold = "bold" if main else "normal"
        if share < beta + 1e-9:
            place = {"xytext": (4, 9)} if share == 1 else {"xytext": (-5, -5), "ha": "right", "va": "top"}
            ax.annotate(f"share\n{share:g}", (share, 0), textcoords="offset points", weight=bold, size=9, **place)
    ax.plot(dots, [measured(float(each)) for each in dots], "o", ms=5, color=PALETTE["vermilion"])
    ax.plot(beta, measured(beta), "D", ms=11, mfc="none", mew=2, color=PALETTE["ink"])
    ax.set(xlabel=r"predictor $\beta$", ylabel="growth rate across", xlim=(0, 1.2), ylim=(-0.4, 0.3))
