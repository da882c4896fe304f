"""What the chapter's figures draw into their axes; the page's colours come from the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

Colors = Mapping[str, str]


def kernels(ax: Axes, mode: Tensor, label: str) -> None:
    """A mode of a first convolution, ``(filters, 1, height, width)``, as a row of kernels; red and blue are its two signs."""
    count, _, height, width = mode.shape
    tile = torch.full((height, count * (width + 1) - 1), float("nan"), dtype=mode.dtype)
    for place, kernel in enumerate(mode[:, 0]):
        tile[:, place * (width + 1) : place * (width + 1) + width] = kernel
    reach = float(mode.abs().max())
    ax.imshow(tile, cmap="RdBu_r", vmin=-reach, vmax=reach)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[])
    ax.set_ylabel(label, rotation=0, ha="right", va="center")


def signed_spectrum(ax: Axes, values: Tensor, colors: Colors) -> None:
    """Eigenvalues as bars, largest first; those below zero in another colour and hatched."""
    ordered = values.flip(0)
    for part, color, hatch in ((ordered >= 0, "blue", ""), (ordered < 0, "vermilion", "///")):
        at = torch.nonzero(part)[:, 0]
        ax.bar(at, ordered[at], width=1.0, color=colors[color], hatch=hatch, edgecolor="white", linewidth=0.2)
    ax.axhline(0, color=colors["ink"], linewidth=0.8)


def weights_of_pairs(ax: Axes, distances: Tensor, at: Tensor, weight: Tensor, colors: Colors) -> None:
    """A histogram of the distances of pairs, and over it a loss's weight at the distances ``at``, scaled to the axes."""
    ax.hist(distances, bins=40, density=True, color="#cccccc")
    ax.plot(at, weight / weight.max() * ax.get_ylim()[1], color=colors["blue"])
    ax.set(xlabel="distance r", yticks=[], xlim=(float(at.min()), float(at.max())), title="weight")


def cosines(ax: Axes, found: Mapping[str, float], colors: Colors) -> None:
    """Cosines as bars from -1 to 1, the first in colour and on top, its rivals grey."""
    ax.barh(list(found), list(found.values()), color=[colors["blue"]] + ["#999999"] * (len(found) - 1))
    ax.axvline(0, color=colors["ink"], linewidth=0.8)
    ax.set(xlim=(-1, 1), xlabel="cosine")
    ax.invert_yaxis()


def images_in_a_plane(ax: Axes, views: Tensor, names: Sequence[str], colors: Colors) -> None:
    """Two images with their views in the plane of two inputs: a full mark for a view, a ring for the mean of an image's views."""
    for mine, name, color, mark in zip(views, names, ("blue", "vermilion"), ("s", "o"), strict=True):
        mean = mine.mean(0)
        ax.plot(*mine.T, mark, color=colors[color], markersize=9, zorder=3)
        ax.plot(*mine.T, color=colors[color], linewidth=1.0, linestyle=":")
        ax.plot(*mean, mark, markersize=14, markerfacecolor="none", markeredgecolor=colors[color], markeredgewidth=1.8)
        ax.annotate(name, tuple(mine[1].tolist()), textcoords="offset points", xytext=(9, -4), color=colors[color])
    ax.set(xlabel="first input", ylabel="second input", aspect="equal")


def steps_in_a_plane(ax: Axes, steps: Mapping[str, tuple[float, float]], colors: Colors) -> None:
    """Where a pair of weights is moved by each of several operators: arrows from the origin, with their names at the tips."""
    for (name, (x, y)), color in zip(steps.items(), ("blue", "vermilion", "green"), strict=False):
        ax.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": colors[color], "linewidth": 2})
        ax.annotate(
            name, (x, y), textcoords="offset points", xytext=(0, 7 if y else -17), ha="center", color=colors[color]
        )
    ax.set(xlim=(-0.3, 4), ylim=(-0.8, 2.7), xlabel="first weight", ylabel="second weight", aspect="equal")
