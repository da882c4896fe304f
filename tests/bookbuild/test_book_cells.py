"""What cells become on a page: figures with captions, and checks behind a bar that a keyboard and a link of the ledger reach."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pytest
from bs4 import BeautifulSoup
from conftest import number
from docutils import nodes
from docutils.utils import new_document
from myst_nb.sphinx_ import HideCodeCellNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from bookbuild.cells import MOVED, fold_sections, summary
from sslchapters import plots
from sslchapters.values import badge

CONF = """
extensions = ["myst_nb"]
numfig = True
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]

def setup(app):
    from bookbuild.cells import connect
    connect(app)
"""


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "png")
    return out.getvalue()


def slider_html() -> str:
    """What a notebook holds of a slider with two frames."""
    shown: list[str] = []
    with mock.patch.object(plots, "display_html", lambda html, text: shown.append(html)):
        plots.slider(
            lambda _: plots.figure()[0], (0, 1), label="steps", alt=("none", "one").__getitem__, name="learning"
        )
    return shown[0]


SLIDER = slider_html()


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


def test_figures_and_tables_of_cells_have_numbers_and_their_own_captions(tmp_path: Path) -> None:
    grid = '<table class="table"><tr><td>1</td></tr></table>'
    inside = grid.replace("<tr>", "<caption>Inside &lt; 1</caption><tr>", 1)
    tables = [
        new_code_cell("show()", outputs=[new_output("display_data", data={"text/html": html, "text/plain": "1"})])
        for html in (f"<p><em>Above</em></p>{grid}", inside)
    ]
    names = "fig-learning fig-old fig-drawn tab-above tab-inside".split()  # noqa: SIM905
    page, warned = build(
        tmp_path,
        image_cell(caption="In the metadata.", name="fig-old"),
        slider_cell(),
        new_markdown_cell("(fig-learning)=\n*It learns* $x$.\nIn steps.\n\nText."),
        image_cell(),
        new_markdown_cell("(fig-drawn)=\nDrawn.\n\n## Two\n\n(tab-above)="),
        tables[0],
        new_markdown_cell("```{list-table} Listed\n:name: tab-listed\n* - 1\n```\n\n(tab-inside)="),
        tables[1],
        new_markdown_cell("See " + ", ".join(f"{{numref}}`{name}`" for name in names)),
    )
    assert warned == ""
    assert "See Fig. 2, Fig. 1, Fig. 3, Table 1, Table 3" in page.text
    said = {
        one["id"]: one.figcaption.text.strip("¶\n")
        for one in page.select("figure[id^=fig-], figure[id^=tab-]:has(table)")
    }
    assert said == {
        "fig-old": "Fig. 1 In the metadata.",
        "fig-learning": "Fig. 2 It learns \\(x\\).\nIn steps.",
        "fig-drawn": "Fig. 3 Drawn.",
        "tab-above": "Table 1 Above",
        "tab-inside": "Table 3 Inside < 1",
    }
    assert page.select_one("#fig-learning #slider-learning")
    assert "drawn" not in page.select_one("#fig-drawn").text
    assert len(page.select("[id=fig-learning]")) == 1


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    late = new_markdown_cell("Text.\n\n(fig-learning)=\nA caption.")
    none = new_markdown_cell("(fig-none)=\nA caption.\n\n(tab-none)=")
    page, warned = build(tmp_path, slider_cell(), late, new_code_cell("1"), none, new_code_cell("2"))
    for words in (
        "a slider without a caption",
        *(f"{name}: no code cell with" for name in ("fig-learning", "fig-none")),
    ):
        assert words in warned
    assert "tab-none: the code cell below it shows no table" in warned
    assert not page.select("figure[id]")


def strip(name: str, id: str | None = "A-Thm3", **more: Any) -> str:
    return badge(number(name, 2e-16, id=id, **{"below": 1e-14, **more}))


def cell(*outputs: str, tags: tuple[str, ...] = ("hide-cell",), index: int = 4) -> nodes.container:
    """A cell as MyST-NB makes it: the code, then what it printed, in one fold."""
    source = nodes.container("", nodes.literal_block("", "claim(…)"), nb_element="cell_code_source")
    said = (nodes.raw("", html, format="html") for html in outputs)
    shown = nodes.container("", *said, nb_element="cell_code_output")
    fold = HideCodeCellNode(prompt_show="Show", prompt_hide="Hide", classes=["above-input"])
    fold += [source, *([shown] if outputs else [])]
    return nodes.container("", fold, cell_index=index, classes=["cell", *(f"tag_{tag}" for tag in tags)])


def page(*cells: nodes.Element) -> nodes.document:
    tree = new_document("page")
    tree += nodes.section("", nodes.title("", "One"), *cells)
    return tree


def html_of(tree: nodes.Node) -> str:
    """The raw HTML of a tree with the code where it stands; enough to see what is before what."""
    return "".join(
        node.astext() if isinstance(node, nodes.raw) else f"<pre>{node.astext()}</pre>"
        for node in tree.findall(lambda n: isinstance(n, (nodes.raw, nodes.literal_block)))
    )


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ([strip("a"), strip("b", None)], "✓ 2 checks and the code"),
        ([strip("a")], "✓ 1 check and the code"),
        ([strip("a"), strip("b", below=1e-20)], "✗ 1 of 2 checks failed"),
        ([], "The code"),
    ],
)
def test_a_line_counts_its_checks(checks: list[str], said: str) -> None:
    assert BeautifulSoup(summary(checks), "html.parser").get_text() == said


def drawing(words: str, *shown: nodes.Node, tag: str = "hide-input") -> nodes.container:
    fold = HideCodeCellNode(prompt_show="Show", prompt_hide="Hide", classes=["above-input"])
    fold += nodes.container("", nodes.literal_block("", words))
    return nodes.container("", fold, *shown, cell_index=1, classes=["cell", f"tag_{tag}"])


def test_a_section_has_one_line_at_its_end_behind_which_checks_stand_above_their_code() -> None:
    tree = page(cell(strip("opening")))
    drawn = nodes.container("", nodes.paragraph("", "drawn"))
    inner = nodes.section("", nodes.title("", "Three"), cell(strip("b")), nodes.paragraph("", "the end"))
    kept = nodes.admonition("", cell(strip("in a solution")))
    first = cell(strip("a", rejects={"sign": 1.0}), "<p>a table</p>")
    second = nodes.section(
        "", nodes.title("", "Two"), first, nodes.paragraph("", "text"), drawing("plot()", drawn), kept, inner
    )
    tree[0] += [second, nodes.section("", nodes.title("", "Four"), nodes.paragraph("", "no cells"))]
    fold_sections(tree)
    opening, two = html_of(tree).split('<details class="sslbook-proved">')[1:]
    assert 'id="check-opening"' in opening
    parts = ['id="check-a"', "a table", "<pre>claim(…)</pre>", "<pre>plot()</pre>", 'id="check-b"']
    places = [*map(two.index, parts), two.rindex("</details>")]
    assert places == sorted(places)
    assert '<details open class="sslbook-check-rejects">' in two, "who opened the line wants all of it"
    assert second.astext().index("the end") < second.astext().index("plot()"), (
        "at the end, below the section's own sections"
    )
    assert drawn.astext() == "drawn"
    assert tree[0].index(second) == 3, "the opening's line stands above the first section"
    assert len(list(tree.findall(HideCodeCellNode))) == 1, "a solution keeps its bar"
    left = [node for node in tree.findall(nodes.container) if MOVED in node["classes"]]
    assert [node["cell_index"] for node in left] == [4, 4, 4], "where code belongs in the reader's notebook"
