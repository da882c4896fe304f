"""`sslbook.book.captions`: what stands behind a cell becomes the caption of its figure, with a number."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from sslbook.book.widgets import _slider_html

CONF = """
extensions = ["myst_nb"]
numfig = True
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]

def setup(app):
    from sslbook.book.captions import Captions
    app.add_transform(Captions)
"""


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "png")
    return out.getvalue()


SLIDER = _slider_html([png(), png()], texts=["0", "1"], alts=["none", "one"], label="steps", name="learning")


def slider_cell() -> nbformat.NotebookNode:
    return new_code_cell("slider(draw)", outputs=[new_output("display_data", data={"text/html": SLIDER})])


def image_cell(**figure: str) -> nbformat.NotebookNode:
    outputs = [
        new_output("stream", name="stdout", text="drawn\n"),
        new_output("display_data", data={"image/png": base64.b64encode(png()).decode()}),
    ]
    return new_code_cell("plot()", outputs=outputs, metadata={"mystnb": {"figure": figure}} if figure else {})


def build(folder: Path, *cells: nbformat.NotebookNode) -> tuple[BeautifulSoup, str]:
    """The page of a book of one notebook, and what Sphinx warned of."""
    folder.joinpath("conf.py").write_text(CONF)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(
        nbformat.v4.new_notebook(cells=[new_markdown_cell("# One"), *cells], metadata=kernel), folder / "index.ipynb"
    )
    warned = io.StringIO()
    with patch_docutils(str(folder)), docutils_namespace():
        app = Sphinx(
            *map(str, (folder, folder, folder / "html", folder / "tree")),
            "html",
            status=None,
            warning=warned,
            freshenv=True,
        )
        app.build()
    return BeautifulSoup((folder / "html/index.html").read_text(encoding="utf-8"), "html.parser"), warned.getvalue()


def test_what_stands_behind_a_cell_is_in_the_figure_and_has_its_number(tmp_path: Path) -> None:
    words = "\n\nSee {numref}`fig-learning`, {numref}`fig-old` and {numref}`fig-drawn`."
    page, warned = build(
        tmp_path,
        image_cell(caption="In the metadata.", name="fig-old"),
        slider_cell(),
        new_markdown_cell(f"(fig-learning)=\n*It learns* $x$.\nIn steps.{words}"),
        image_cell(),
        new_markdown_cell("(fig-drawn)=\nDrawn.\n\n## Two"),
    )
    assert warned == ""
    figures = page.select("figure[id]")
    assert [(figure["id"], figure.select_one(".caption-number").text) for figure in figures] == [
        ("fig-old", "Fig. 1 "),
        ("fig-learning", "Fig. 2 "),
        ("fig-drawn", "Fig. 3 "),
    ]
    assert figures[1].select_one("#slider-learning")
    assert figures[1].select_one("figcaption em").text == "It learns"
    assert figures[2].img
    assert "drawn" not in figures[2].text
    assert [p.text for p in page.select("section p") if p.find_parent("figure") is None] == [
        "See Fig. 2, Fig. 1 and Fig. 3."
    ]
    assert len(page.select("[id=fig-learning]")) == 1


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([slider_cell(), new_markdown_cell("Text.")], "a slider without a caption"),
        ([slider_cell(), new_markdown_cell("Text.\n\n(fig-learning)=\nA caption.")], "a slider without a caption"),
        (
            [slider_cell(), new_markdown_cell("Text.\n\n(fig-late)=\nA caption.")],
            "fig-late: no code cell with a picture",
        ),
        ([new_code_cell("1"), new_markdown_cell("(fig-none)=\nA caption.")], "fig-none: no code cell with a picture"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, cells: list[nbformat.NotebookNode], words: str) -> None:
    page, warned = build(tmp_path, *cells)
    assert words in warned
    assert "index.ipynb" in warned
    assert not page.select("figure[id]")
