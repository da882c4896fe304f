"""How a chapter opens: what you will see, the picture, and only then the code that draws it, folded into one bar.

A notebook must compute before it can show; a page need not. The code cells of a chapter's opening (all that stands before its
first section) move below the picture that the last of them draws, together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode

from sslbook.book.captions import is_picture

PICTURE = "sslbook-picture"
"""The element that stands in the HTML before the opening's picture: ``<sslbook-picture data-cell="5"></sslbook-picture>``."""


def is_code_cell(node: nodes.Node) -> TypeGuard[nodes.container]:
    """Whether MyST-NB made ``node`` of a code cell; its place in the executed notebook is its ``cell_index``."""
    return isinstance(node, nodes.container) and "cell_index" in node


def open_with_picture(doctree: nodes.document) -> None:
    """Reorder the opening of a notebook's resolved document tree, if it has a picture."""
    chapter = next((node for node in doctree.children if isinstance(node, nodes.section)), None)
    if chapter is None:
        return
    sections = (i for i, node in enumerate(chapter.children) if isinstance(node, nodes.section))
    opening = chapter.children[: next(sections, len(chapter.children))]
    cells = [node for node in opening if is_code_cell(node)]
    drawn = next((cell for cell in reversed(cells) if _picture(cell) is not None), None)
    if drawn is None:
        return
    picture = _picture(drawn)
    assert picture is not None
    picture.parent.remove(picture)
    mark = nodes.raw("", f'<{PICTURE} data-cell="{drawn["cell_index"]}"></{PICTURE}>', format="html")
    chapter[chapter.index(drawn) : chapter.index(drawn)] = [mark, nodes.container("", picture, classes=["cell"])]
    for cell in cells:
        chapter.remove(cell)
    chapter.insert(chapter.index(mark) + 2, nodes.container("", _folded(cells), classes=["cell", "tag_hide-input"]))


def _picture(cell: nodes.Element) -> nodes.Element | None:
    """The output of ``cell`` if it is a figure or a slider."""
    for part in cell.children:
        if isinstance(part, nodes.container) and part.get("nb_element") == "cell_code_output" and is_picture(part):
            return part
    return None


def _folded(cells: Sequence[nodes.Element]) -> HideCodeCellNode:
    """One bar for all ``cells``, whose own bars go."""
    fold = HideCodeCellNode(prompt_show="Show the set-up", prompt_hide="Hide the set-up", classes=["above-input"])
    for cell in cells:
        for bar in list(cell.findall(HideCodeCellNode)):
            bar.parent.replace(bar, bar.children)
        fold += cell
    return fold
