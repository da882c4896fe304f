"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
    scaled = weights / weights.abs().amax().clamp_min(1e-9)
    ax.imshow(scaled.T.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    d, m = weights.shape
    ax.plot([-0.4, count - 0.6], [m + 0.1, m + 0.1], color=colours["ink"], linewidth=4, clip_on=False)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[], xlim=(-0.5, d - 0.5), ylim=(m + 0.4, -0.5))


def scores(ax: Axes, trials: Tensor, labels: Sequence[str], styles: Mapping[str, tuple[str, str]]) -> None:
    """One panel of Figures 4 to 11: score against :math:`\\beta`, mean of ``trials (betas, labels, seeds)``, and a dot a seed."""
    places = np.arange(len(BETAS))
    for c, label in enumerate(labels):
        tone, line = styles[label]
        ax.plot(places, trials[:, c].numpy(), ".", color=tone, markersize=3.5, alpha=0.45)
        ax.plot(places, trials[:, c].mean(-1), line, color=tone, linewidth=1.6, markersize=5, label=label)
    ax.set(xticks=places, xticklabels=[str(beta) for beta in BETAS], xlim=(-0.3, len(BETAS) - 0.7))


def panels(axes: NDArray[Any], trials: Tensor, labels: Sequence[str], styles: Mapping[str, tuple[str, str]]) -> None:
    """Four panels of scores, one a ``P``, from ``trials (betas, patterns, labels, seeds)``."""
    for j, (ax, patterns) in enumerate(zip(axes.flat, PATTERNS, strict=True)):
        scores(ax, trials[:, j], labels, styles)
        ax.set_title(f"P = {patterns}")
    for ax in axes[-1]:
        ax.set_xlabel("β")


def blocks(axes: NDArray[Any], coupling: Tensor, covariance: Tensor, size: int) -> None:
    """Who listens to whom, what varies together, and their entrywise product; lines between fields of ``size`` rows."""
    import seaborn as sns

    ones = torch.ones(len(covariance) // len(coupling), len(covariance) // len(coupling), dtype=coupling.dtype)
    spread = torch.kron(coupling, ones)
    for ax, matrix in zip(axes, (spread, covariance, spread * covariance), strict=True):
        reach = float(matrix.abs().max())
        sns.heatmap(
            matrix.numpy(),
            ax=ax,
            cmap="RdBu_r",
            vmin=-reach,
            vmax=reach,
            square=True,
            cbar=False,
            xticklabels=False,
            yticklabels=False,
        )
        for edge in range(size, len(covariance), size):
            ax.axhline(edge, color=GREY, linewidth=0.8)
            ax.axvline(edge, color=GREY, linewidth=0.8)
        ax.grid(visible=False)


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


def circle(ax: Axes, angles: Tensor, won: Tensor, free: float, colours: Colours) -> None:
    """Starts on the circle, marked by the direction that they end at, and the ray beyond which the free flow ends elsewhere."""
    marks = ((0, "o", "blue"), (1, "s", "vermilion"), (-1, "x", "ink"))
    for winner, mark, tone in marks:
        chosen = angles[won == winner]
        ax.plot(chosen.cos(), chosen.sin(), mark, color=colours[tone], markersize=5.5)
    ax.plot([0, math.cos(free)], [0, math.sin(free)], ":", color=colours["ink"], linewidth=1.6)
    for x, y, name in ((1.2, 0.0, "$u_1$"), (0.0, 1.18, "$u_2$")):
        ax.text(x, y, name, ha="center", va="center")
    ax.set(xlim=(-1.35, 1.35), ylim=(-1.2, 1.35), aspect="equal")
    ax.axis("off")


def shares(ax: Axes, found: Mapping[float, Sequence[float]], chosen: float, colours: Colours) -> None:
    """Shares of starts against the advantage, of the unit and of the free flow, with rings around those of ``chosen``."""
    for i, (name, line, tone) in enumerate((("length 1", "o-", "blue"), ("free", "s--", "vermilion"))):
        ax.plot(list(found), [pair[i] for pair in found.values()], line, color=colours[tone], label=name, markersize=4)
        ax.plot(chosen, found[chosen][i], "o", color=colours[tone], markersize=11, fillstyle="none")
    ax.set(xlabel="advantage c", ylabel="share in 5 dimensions", ylim=(0, 0.56))
    ax.legend(loc="lower right")


def uneven(ax: Axes, pairs: Mapping[str, tuple[Tensor, Tensor]], colours: Colours) -> None:
    """How unequal the fields are, without and with BatchNorm: a violin a quantity, split in two, from ``pairs`` of samples."""
    import seaborn as sns

    rows: dict[str, list[Any]] = {"quantity": [], "": [], "value": []}
    for name, samples in pairs.items():
        for kind, values in zip(("without", "with"), samples, strict=True):
            rows["quantity"] += [name] * len(values)
            rows[""] += [f"{kind} BatchNorm"] * len(values)
            rows["value"] += values.tolist()
    sns.violinplot(
        rows,
        x="quantity",
        y="value",
        hue="",
        split=True,
        inner="quart",
        cut=0,
        density_norm="width",
        gap=0.08,
        linewidth=1.2,
        ax=ax,
        palette=[colours["vermilion"], colours["blue"]],
    )
    ax.set(xlabel="", ylabel="deviation / mean")


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
