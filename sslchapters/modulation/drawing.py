"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from sslchapters.modulation.records import BETAS, PATTERNS

Colours = Mapping[str, str]

PATTERN, ONE, TWO = "*CB*A**DE*", "FCBHAADDEB", "ACBGAEHDEC"
"""A generator and two sequences of it."""

GREY = "#8a8a8a"


def world(ax: Axes, colours: Colours) -> None:
    """A generator, two views of it, and the two layers above the first view: places as boxes, filters as dots."""
    rows = (("generator", PATTERN, 0.0), ("view", TWO, 2.2), ("view", ONE, 4.0))
    for name, letters, y in rows:
        ax.text(-0.25, y + 0.45, name, ha="right", va="center", fontsize=11.5)
        for k, letter in enumerate(letters):
            fixed = PATTERN[k] != "*"
            face = colours["blue"] if fixed else "white"
            ax.add_patch(Rectangle((k + 0.06, y), 0.88, 0.9, facecolor=face, edgecolor=colours["ink"], linewidth=0.8))
            tone = "white" if fixed else GREY
            ax.text(k + 0.5, y + 0.42, letter, ha="center", va="center", color=tone, fontsize=12)
    for k in range(10):
        for x in (k + 0.28, k + 0.72):
            ax.plot([k + 0.5, x], [4.9, 5.9], color=GREY, linewidth=0.8)
            ax.plot([x, 5.0], [5.9, 7.6], color=GREY, linewidth=0.4)
            ax.plot(x, 5.9, "o", color=colours["vermilion"], markersize=6)
    ax.add_patch(Rectangle((3.2, 7.5), 3.6, 0.9, facecolor=colours["green"], edgecolor="none"))
    ax.text(5.0, 7.92, "output", ha="center", va="center", color="white", fontsize=12)
    ax.text(-0.25, 5.9, "filters", ha="right", va="center", fontsize=11.5)
    ax.text(-0.25, 7.95, "top layer", ha="right", va="center", fontsize=11.5)
    ax.set(xlim=(-2.6, 10.1), ylim=(-0.15, 8.6), aspect="auto")
    ax.axis("off")


def field_order(last: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens, those of :math:`R_k^g` first, and filters by the token that they lean to most; ``last (d, M)``, ``allowed (d,)``."""
    tokens = allowed.to(torch.int8).argsort(descending=True, stable=True)
    leaning = last[tokens]
    size = leaning.abs().amax(0)
    faded = size < 0.2 * size.amax()  # these last
    return tokens, (leaning.abs().argmax(0) - size / size.amax() + 100 * faded).argsort()


def filters(ax: Axes, weights: Tensor, count: int, colours: Colours) -> None:
    """Filters in rows, ``weights (d, M)``, in units of the field's largest; a bar under the first ``count`` tokens."""
    matrix(ax, (weights / weights.abs().amax().clamp_min(1e-9)).T, aspect="auto")
    d, m = weights.shape
    ax.plot([-0.4, count - 0.6], [m + 0.1, m + 0.1], color=colours["ink"], linewidth=4, clip_on=False)
    ax.set(xlim=(-0.5, d - 0.5), ylim=(m + 0.4, -0.5))


def matrix(ax: Axes, values: Tensor, aspect: Literal["equal", "auto"] = "equal") -> None:
    """Numbers from -1 to 1 as colours, and nothing around them."""
    ax.imshow(values.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect=aspect)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[])


def panels(axes: NDArray[Any], trials: Tensor, styles: Mapping[str, tuple[str, str]]) -> None:
    r"""Four panels of Figures 4 to 11, one a ``P``: score against :math:`\beta`, from ``trials (betas, patterns, labels, seeds)``.

    styles: colour and line of each label.  Lines are means; a dot a seed.
    """
    places = np.arange(len(BETAS))
    for j, (ax, patterns) in enumerate(zip(axes.flat, PATTERNS, strict=True)):
        for c, (label, (tone, line)) in enumerate(styles.items()):
            ax.plot(places, trials[:, j, c].numpy(), ".", color=tone, markersize=3.5, alpha=0.45)
            ax.plot(places, trials[:, j, c].mean(-1), line, color=tone, linewidth=1.6, markersize=5, label=label)
        ax.set(xticks=places, xticklabels=[str(beta) for beta in BETAS], xlim=(-0.3, len(BETAS) - 0.7))
        ax.set_title(f"P = {patterns}")
    for ax in axes[-1]:
        ax.set_xlabel("β")


def helps(ax: Axes, share: NDArray[Any], names: Sequence[str], colours: Colours) -> None:
    """Who helps whom: fields as dots below the top layer; the arrow that comes down to field k is ``1 - share[k]`` wide."""
    count = len(share)
    x = np.linspace(0, 1, count) if count > 1 else np.array([0.5])
    ax.plot(0.5, 1, "s", markersize=16, color=colours["green"])
    ax.annotate("top layer", (0.5, 1), xytext=(14, 0), textcoords="offset points", va="center")
    for at, own, name in zip(x, share, names, strict=True):
        ax.plot(at, 0, "o", markersize=13, color=colours["ink"])
        ax.annotate("", (at, 0.09), (0.5, 0.93), arrowprops={
            "arrowstyle": "-|>", "linewidth": 0.4 + 7 * (1 - own), "mutation_scale": 10 + 12 * (1 - own), "shrinkA": 6,
            "shrinkB": 2, "color": colours["blue"], "alpha": 0.8,
        })  # fmt: skip
        ax.annotate(
            f"{name}\nown {own:.2f}", (at, 0), xytext=(0, -14), textcoords="offset points", ha="center", va="top"
        )
    ax.set(xlim=(-0.25, 1.25), ylim=(-0.55, 1.15))
    ax.axis("off")


def crowd(ax: Axes, path: Tensor, taken: Tensor, colours: Colours) -> None:
    """How much of the class each field's filter sees, ``path (steps, K)``, thick where the output listens, ``taken (steps, K)``."""
    steps = np.arange(len(path))
    for k in range(path.shape[1]):
        ax.plot(steps, path[:, k], color=colours["blue"], linewidth=0.8)
        ax.scatter(steps, path[:, k], s=60 * taken[:, k], color=colours["blue"], linewidths=0)
    ax.set(xlabel="steps", ylim=(-0.06, 1.06))
