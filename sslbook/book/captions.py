"""Captions behind cells: a paragraph with a label ``fig-…`` directly below a code cell goes into the figure that the cell draws.

    (fig-survivors)=
    *What survives.*
    Left, the five largest eigenvalues …

So a slider, or a picture whose caption has formulas or pasted numbers, is a figure like any other: with a number, in the
chapter's sequence, and with an anchor for ``{numref}``. Short captions may as well stand in the metadata of the cell.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

LABEL = "fig-"
"""How a figure's label begins."""
_SLIDER, _FIGURE = '<div class="sslbook-slider"', '<div class="sslbook-figure"'  # as `sslbook.book.widgets` writes them
_LOG = logging.getLogger(__name__)


class Captions(SphinxTransform):
    """Set each caption into its figure; a caption without a picture, and a slider without a caption, is a warning."""

    default_priority = 500  # labels have found their paragraphs (260), and Sphinx has not collected them (850)

    def apply(self, **kwargs: Any) -> None:
        """Change the document."""
        for paragraph in list(self.document.findall(nodes.paragraph)):
            if label := next((name for name in paragraph["names"] if name.startswith(LABEL)), None):
                picture = _last_picture(_before(paragraph))
                if picture is None:
                    _LOG.warning("%s: no code cell with a picture stands directly above it", label, location=paragraph)
                else:
                    self._set(paragraph, picture)
        for raw in self.document.findall(nodes.raw):
            if _SLIDER in raw.astext() and not _inside_figure(raw):
                words = "a slider without a caption: write (fig-…)= and a paragraph below its cell"
                _LOG.warning(words, location=raw.parent)

    def _set(self, paragraph: nodes.paragraph, picture: nodes.Element) -> None:
        """Wrap ``picture`` in a figure with the words and the label of ``paragraph``, which goes."""
        label = _before(paragraph, skip=nodes.comment)
        if isinstance(label, nodes.target):
            label.parent.remove(label)
        paragraph.parent.remove(paragraph)
        caption = nodes.caption(paragraph.rawsource, "", *paragraph.children)
        caption.source, caption.line = paragraph.source, paragraph.line
        figure = nodes.figure("", ids=paragraph["ids"], names=paragraph["names"])
        figure.source, figure.line = picture.source, picture.line
        picture.parent.replace(picture, figure)
        figure += [picture, caption]
        for name in figure["ids"]:
            self.document.ids[name] = figure


def is_picture(node: nodes.Element) -> bool:
    """Whether an output, or what holds it, shows a picture: an image, or the HTML of a slider or of `show`."""
    if next(iter(node.findall(nodes.image)), None) is not None:
        return True
    return any(sign in raw.astext() for raw in node.findall(nodes.raw) for sign in (_SLIDER, _FIGURE))


def _before(
    node: nodes.Element, skip: type[nodes.Node] | tuple[type[nodes.Node], ...] = (nodes.target, nodes.comment)
) -> nodes.Node | None:
    """What stands before ``node`` in its parent, without labels and comments."""
    at = node.parent.index(node)
    return next((other for other in reversed(node.parent.children[:at]) if not isinstance(other, skip)), None)


def _last_picture(cell: nodes.Node | None) -> nodes.Element | None:
    """The last output of ``cell`` that is a picture and no figure yet."""
    if not isinstance(cell, nodes.Element):
        return None
    outputs = (node for node in cell.findall(nodes.container) if node.get("nb_element") == "mime_bundle")
    return next((node for node in reversed(list(outputs)) if is_picture(node) and not _inside_figure(node)), None)


def _inside_figure(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.figure):
            return True
    return False
