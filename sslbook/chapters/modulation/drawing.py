"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from sslbook.chapters.modulation.tables import BETAS, PATTERNS

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
    scaled = weights / weights.abs().amax().clamp_min(1e-9)
    ax.imshow(scaled.T.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    d, m = weights.shape
    ax.plot([-0.4, count - 0.6], [m + 0.1, m + 0.1], color=colours["ink"], linewidth=4, clip_on=False)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[], xlim=(-0.5, d - 0.5), ylim=(m + 0.4, -0.5))


def scores(ax: Axes, trials: Tensor, labels: Sequence[str], styles: Mapping[str, tuple[str, str]]) -> None:
    """One panel of Figures 4 to 11: score against :math:`\\beta`, mean and deviation of ``trials (betas, labels, seeds)``."""
    mean, deviation = trials.mean(-1), trials.std(-1) if trials.shape[-1] > 1 else None
    places = np.arange(len(BETAS))
    for c, label in enumerate(labels):
        tone, line = styles[label]
        if deviation is not None:
            ax.errorbar(places, mean[:, c], deviation[:, c], fmt="none", ecolor=tone, elinewidth=1)
        ax.plot(places, mean[:, c], line, color=tone, linewidth=1.6, markersize=4, label=label)
    ax.set(xticks=places, xticklabels=[str(beta) for beta in BETAS], xlim=(-0.3, len(BETAS) - 0.7))


def panels(axes: NDArray[Any], trials: Tensor, labels: Sequence[str], styles: Mapping[str, tuple[str, str]]) -> None:
    """Four panels of scores, one a ``P``, from ``trials (betas, patterns, labels, seeds)``."""
    for j, (ax, patterns) in enumerate(zip(axes.flat, PATTERNS, strict=True)):
        scores(ax, trials[:, j], labels, styles)
        ax.set_title(f"P = {patterns}")
    for ax in axes[-1]:
        ax.set_xlabel("β")


def tiles(ax: Axes, pictures: Tensor, *, gap: int = 2, least: float = 0.0) -> None:
    """Small pictures ``(n, S, S)`` in a row, each in units of its own largest value; those shorter than ``least`` blank."""
    shown = pictures / pictures.abs().amax((1, 2), keepdim=True).clamp_min(1e-9)
    shown = shown * (pictures.flatten(1).norm(dim=1) >= least)[:, None, None]
    padded = torch.nn.functional.pad(shown, (0, gap), value=0.0)
    row = torch.cat(list(padded), 1)
    ax.imshow(row[:, : row.shape[1] - gap].numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[])
