"""A drawing as one number: what is placed in an axes, at which width, size and height, and in which grey."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.quiver import Quiver
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator

GREYS = {"ink": "0.1", "blue": "0.2", "vermilion": "0.4", "green": "0.5", "purple": "0.7"}
"""Stands for the book's palette, which may change."""


def geometry(draw: Callable[[Axes], object]) -> float:
    """A weighted sum of all numbers that ``draw`` gives an axes, and of its words, in matplotlib's own style.

    How large letters come out is no part of it: that depends on the fonts.
    """
    with matplotlib.style.context("default"):
        ax = Figure().add_subplot()
        draw(ax)
        found = [*ax.get_xlim(), *ax.get_ylim(), ax.axison, *(spine.get_visible() for spine in ax.spines.values())]
        for axis in (ax.xaxis, ax.yaxis):
            ticks = axis.get_ticklocs() if isinstance(axis.get_major_locator(), FixedLocator) else ()
            found += [*ticks, bool(axis.get_tick_params().get("gridOn"))]
        for artist in (*ax.lines, *ax.patches, *ax.texts, *ax.collections):
            found += [*_numbers(artist), artist.get_zorder()]
        found += [value for image in ax.images for value in (*image.get_clim(), *np.ravel(image.get_array()))]
    weights = np.sqrt(np.arange(1, len(found) + 1))  # of which no few cancel
    return float(weights @ np.array(found, dtype=float))


def _numbers(artist: Artist) -> Iterator[float]:
    """Where an artist is in the data's units, how wide and large in points, and its colours."""
    colours = []
    if isinstance(artist, Line2D):
        sizes = (artist.get_linewidth(), artist.get_markersize(), artist.get_markeredgewidth())
        yield from (*np.ravel(artist.get_xydata()), *sizes)
        colours = [artist.get_color(), artist.get_markerfacecolor(), artist.get_markeredgecolor()]
    elif isinstance(artist, FancyArrowPatch):
        bend = getattr(artist.get_connectionstyle(), "rad", 0)
        yield from (*np.ravel(artist._posA_posB), bend, artist.get_mutation_scale(), artist.get_linewidth())  # type: ignore[attr-defined]
        colours = [artist.get_edgecolor(), artist.get_facecolor()]
    elif isinstance(artist, Patch):
        corners = artist.get_patch_transform().transform(artist.get_path().vertices)
        yield from (*np.ravel(corners), artist.get_linewidth(), artist.get_fill())
        colours = [artist.get_edgecolor(), artist.get_facecolor()]
    elif isinstance(artist, Text):
        yield from (*artist.get_position(), artist.get_fontsize(), sum(artist.get_text().encode()))
        arrow = (artist.arrowprops or {}) if isinstance(artist, Annotation) else {}
        yield from (*getattr(artist, "xy", ()), *(value for value in arrow.values() if not isinstance(value, str)))
        colours = [artist.get_color(), *(value for name, value in arrow.items() if name == "color")]
    elif isinstance(artist, PathCollection):  # of scatter
        for part in (artist.get_offsets(), artist.get_sizes(), artist.get_linewidths(), artist.get_facecolors()):
            yield from np.ravel(part)
    elif isinstance(artist, Quiver):
        for part in (artist.get_offsets(), artist.U, artist.V, artist.width, artist.scale):
            yield from np.ravel(part)
    elif isinstance(artist, PolyCollection):  # of fill_between
        for part in (*(path.vertices for path in artist.get_paths()), artist.get_linewidths(), artist.get_facecolors()):
            yield from np.ravel(part)
    for colour in colours:
        yield from to_rgba(colour)
