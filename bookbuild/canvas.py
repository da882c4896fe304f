"""The canvas of a page: the world of the book, which a reader moves by hand, without a kernel and without a network.

The directive ``{canvas} world`` writes a still picture and its words, which paper, a phone without scripts and the readers'
notebooks show; ``canvas.js``, which pages with a canvas load, puts the drawing that moves in their place.
"""

from __future__ import annotations

import functools
import html

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from sslchapters import plots, world

CANVAS = "sslbook-canvas"
"""The class of the element that ``canvas.js`` fills."""
SCRIPT = "sslbook/canvas.js"
WORDS = (
    "Two images with two views each, at the corners of a square. Across, the images differ; up, the views of each image differ. "
    "The weight w points between the two directions, and the step of the simple loss points across."
)
NOTE = "On the book's page, with scripts, you can move the views and choose the loss."


@functools.cache
def still() -> bytes:
    """The picture that the canvas begins with, as a WebP; the same on all pages."""
    plots.style()
    fig, ax = plots.figure(height=3.6)
    weight = (0.7, 0.7)
    world.draw(ax, weight=weight, arrow={"step": world.moments().between @ weight}, reach=2.2)
    return plots.picture(fig)


def canvas(name: str) -> str:
    """The HTML of the canvas ``name``."""
    return (
        f'<div class="{CANVAS}" id="canvas-{name}" data-sslbook-canvas>\n'
        f"{plots.img(still(), WORDS, 'sslbook-frame')}\n"
        f'<p class="{CANVAS}-note">{html.escape(NOTE)}</p>\n</div>'
    )


class Canvas(SphinxDirective):
    """``{canvas} world``: once on a page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The canvas, as HTML."""
        if self.arguments != ["world"]:
            raise self.error(f"canvas: got {self.arguments[0]!r}; there is one canvas, 'world'")
        found = nodes.raw("", canvas(self.arguments[0]), format="html")
        self.set_source_info(found)
        return [found]


def connect(app: Sphinx) -> None:
    """Offer the directive."""
    app.add_directive("canvas", Canvas)
