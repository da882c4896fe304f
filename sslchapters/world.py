"""The world of the book: two images with two views each, centred, at the corners of a square.

Across, along the first axis, the images differ; up, along the second, augmentation changes each image. With jitter ``s``
augmentation also moves a view by ``±s`` across, so that of the first axis's variance ``1 + s²`` the share ``1 / (1 + s²)``
survives: all at ``s = 0``, 4/5 at ``s = ½``, one half at ``s = 1``. Everything about it can be computed by hand, and `draw`
draws it, with the one thing that a chapter adds.

    fig, ax = plots.figure()
    world.draw(ax, weight=(1, 1), arrow=world.moments().between @ (1, 1))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from numpy.typing import ArrayLike, NDArray

from sslchapters.plots import PALETTE

Array = NDArray[np.float64]
NAMES = ("A", "B")
"""The images: A at +1 on the first axis, B at −1."""


class Moments(NamedTuple):
    """What the second moments of the views are made of, each (d, d): ``total = between + within``, and ``common = m mᵀ``."""

    between: Array
    within: Array
    common: Array
    mean: Array


def views(jitter: float = 0.0, *, at: Sequence[float] = (0.0, 0.0)) -> Array:
    """The views, (images, views, 2): two an image without jitter, in the order down, up; four with it. ``at`` moves all of them.

    >>> views().tolist()
    [[[1.0, -1.0], [1.0, 1.0]], [[-1.0, -1.0], [-1.0, 1.0]]]
    """
    steps = (-jitter, jitter) if jitter else (0.0,)
    corners = [[[x + step, up] for step in steps for up in (-1.0, 1.0)] for x in (1.0, -1.0)]
    return np.asarray(corners, dtype=np.float64) + np.asarray(at, dtype=np.float64)


def moments(points: ArrayLike | None = None, *, jitter: float = 0.0) -> Moments:
    """Exact moments of ``points`` (images, views, d), or of the world's with this jitter: ``diag(1, 0)`` and ``diag(s², 1)``."""
    x = views(jitter) if points is None else np.asarray(points, dtype=np.float64)
    centres = x.mean(1)
    mean = centres.mean(0)
    apart, inside = centres - mean, x - centres[:, None]
    within = np.einsum("ivk,ivl->kl", inside, inside) / (x.shape[0] * x.shape[1])
    return Moments(apart.T @ apart / len(x), within, np.outer(mean, mean), mean)


def share(jitter: float) -> float:
    """The part of the first axis's variance that survives augmentation, ``1 / (1 + s²)``."""
    return 1.0 / (1.0 + jitter**2)


def draw(
    ax: Axes,
    points: ArrayLike | None = None,
    *,
    jitter: float = 0.0,
    weight: ArrayLike | None = None,
    arrow: ArrayLike | Mapping[str, ArrayLike] | None = None,
    gate: tuple[ArrayLike, float] | None = None,
    words: bool = True,
    ellipses: bool = True,
    names: Sequence[str] = NAMES,
    reach: float = 2.0,
) -> None:
    """Draw the world into ``ax``, or any ``points`` (images, views, 2), and the one thing that is new.

    Views are dots, squares for image A; a vermilion ellipse lies around the views of each image, a blue one around the
    images' means: half axes of one standard deviation, and a little more so that a flat one is seen. ``weight``: an arrow
    from the origin. ``arrow``: steps of the weight, from its tip, else from the origin; a mapping gives each its label.
    ``gate``: ``(v, b)`` greys the side on which a ReLU is off, ``v · x + b <= 0``. ``words``: whether ellipses and axes are
    labelled, for which a panel must be some 2.4 inches wide. ``ellipses``: whether there are any; what they would say has
    no place beside other lines. ``reach``: half the width of what is seen.
    """
    x = views(jitter) if points is None else np.asarray(points, dtype=np.float64)
    found = moments(x)
    ax.axhline(0, color="#cccccc", linewidth=0.8, zorder=0)
    ax.axvline(0, color="#cccccc", linewidth=0.8, zorder=0)
    if gate is not None:
        line, v = np.linspace(-reach, reach, 241), np.asarray(gate[0], dtype=float)
        height = v[0] * line[None, :] + v[1] * line[:, None] + gate[1]
        ax.contourf(line, line, height, levels=[-np.inf, 0], colors=["#dddddd"], alpha=0.7, zorder=0)
        ax.contour(line, line, height, levels=[0], colors=["#333333"], linestyles="dashed", linewidths=1.4, zorder=1)
    for image, mark, name in zip(x, "so^D", (*names, "", ""), strict=False):
        mine = moments(image[None])
        if ellipses:
            _ellipse(ax, mine.within, mine.mean, PALETTE["vermilion"])
        ax.plot(*image.T, mark, color=PALETTE["ink"], markersize=8, zorder=4)
        top = image[image[:, 1].argmax()]
        ax.annotate(name, (float(mine.mean[0]), float(top[1])), (0, 13), textcoords="offset points", ha="center")
    if ellipses:
        _ellipse(ax, found.between, found.mean, PALETTE["blue"])
    if words and ellipses:
        low = float(x[:, :, 1].min())
        ax.text(
            float(found.mean[0]), float(found.mean[1]) - 0.3, "between", color=PALETTE["blue"], ha="center", va="top"
        )
        ax.text(float(x[0].mean(0)[0]), low - 0.33, "within", color=PALETTE["vermilion"], ha="center", va="top")
        ax.set(xlabel="across: images differ", ylabel="up: views differ")
    tip = np.zeros(2) if weight is None else np.asarray(weight, dtype=float)
    if weight is not None:
        draw_arrow(ax, np.zeros(2), tip, "ink", "$w$")
    steps = arrow if isinstance(arrow, Mapping) else {} if arrow is None else {"": arrow}
    for (label, step), color in zip(steps.items(), ("green", "purple", "ochre"), strict=False):
        draw_arrow(ax, tip, np.asarray(step, dtype=float), color, label)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    ax.grid(visible=False)


def _ellipse(ax: Axes, covariance: Array, centre: Array, color: str) -> None:
    """The ellipse of one standard deviation, 0.2 wider on all sides."""
    sizes, axes = np.linalg.eigh(covariance)
    width, height = 2 * (np.sqrt(sizes.clip(0)) + 0.2)
    look: dict[str, Any] = {"facecolor": f"{color}18", "edgecolor": color, "linewidth": 2, "zorder": 2}
    turned = np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    ax.add_patch(Ellipse((float(centre[0]), float(centre[1])), width, height, angle=float(turned), **look))


def draw_arrow(ax: Axes, start: Array, step: Array, color: str, label: str = "") -> None:
    """An arrow, a step's label beyond its tip, the weight's beside it; a step of no length is a ring."""
    end = start + step
    if not np.hypot(*step) > 1e-9:
        ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": PALETTE[color], "markeredgewidth": 2}
        ax.plot(*end, "o", markersize=13, zorder=5, **ring)
    look = {"arrowstyle": "-|>", "linewidth": 2.4, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 17}
    ax.annotate("", tuple(end), tuple(start), arrowprops={"color": PALETTE[color], **look}, zorder=6)
    along = step / max(float(np.hypot(*step)), 1e-9)
    place, beyond = (start + step / 2, 11 * along[::-1] * (-1, 1)) if color == "ink" else (end, 13 * along)
    said: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "zorder": 6}
    ax.annotate(label, tuple(place), tuple(beyond), color=PALETTE[color], **said)
