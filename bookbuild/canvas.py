"""The canvases: drawings that a reader moves by hand, without a kernel and without a network.

``{canvas} world`` is the world of the book, ``{canvas} fates`` the plane in which runs of linear BYOL start. The directive writes
a still picture and its words, which paper, a phone without scripts and the readers' notebooks show; ``canvas.js``, which pages
with a canvas load, puts the drawing that moves in their place.
"""

from __future__ import annotations

import functools

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from sslchapters import plots, world
from sslchapters.linear_byol import drawing

CANVAS = "sslbook-canvas"
"""The class of the element that ``canvas.js`` fills."""
WORDS = {
    "world": "Two images with two views each, at the corners of a square. Across, the images differ; up, the views of each image "
    "differ. The weight w points between the two directions, and the step of the simple loss points across.",
    "fates": "The plane of the weights w1, across, and w2, up. From a wedge above the origin and a cone below it, runs end at "
    "w1 = 0. From everywhere else they run along their hyperbolas to the dashed line, where w2 is the share one half.",
}
CAN = {"world": "move the views and choose the loss", "fates": "start a run wherever you press, and choose the share"}


@functools.cache
def still(name: str) -> bytes:
    """The picture that the canvas ``name`` begins with, as a WebP; the same on all pages."""
    plots.style()
    fig, ax = plots.figure(height=3.6)
    if name == "fates":
        drawing.plane_of_fates(ax, 0.5)
    else:
        weight = (0.7, 0.7)
        world.draw(ax, weight=weight, arrow={"step": world.moments().between @ weight}, reach=2.2)
    return plots.picture(fig)


def canvas(name: str) -> str:
    """The HTML of the canvas ``name``."""
    return (
        f'<div class="{CANVAS}" id="canvas-{name}" data-sslbook-canvas="{name}">\n'
        f"{plots.img(still(name), WORDS[name])}\n"
        f'<p class="{CANVAS}-note">On the book&#x27;s page, with scripts, you can {CAN[name]}.</p>\n</div>'
    )


class Canvas(SphinxDirective):
    """``{canvas} world`` or ``{canvas} fates``: each once on a page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The canvas, as HTML."""
        found = nodes.raw("", canvas(self.arguments[0]), format="html")
        self.set_source_info(found)
        return [found]
