"""The notebooks that readers take away: the page's sentences, word for word, and a first cell that asks nobody for a bare name."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup, Tag
from markdown_it import MarkdownIt
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from bookbuild import notebooks
from bookbuild.canvas import CANVAS
from bookbuild.cells import TIME
from bookbuild.layout import Book, find_book, find_chapters
from bookbuild.markdown import Piece
from bookbuild.notebooks import MOVES, reader_notebook
from sslchapters.values import RECORD_KEY

BOOK = find_book(Path(__file__).resolve().parents[2])
CHAPTERS = [chapter.name for chapter in find_chapters(BOOK) if chapter.runs]
NO_SENTENCE = f".headerlink, .highlight, svg, script, style, pre, summary, .{TIME}, .dropdown > .admonition-title"
MARKDOWN = MarkdownIt("commonmark").enable("table")


def squeezed(text: str) -> str:
    return re.sub(r"[\s∎]+", "", text)


def sentences(soup: Tag) -> Iterator[str]:
    """The sentences of some HTML; of nested blocks those of the inner ones."""
    for block in soup.find_all(["p", "li", "td", "th", "h1", "h2", "h3", "h4"]):
        if block.find(["p", "li"]) is None:
            yield from filter(squeezed, re.split(r"(?<=[.!?:;])\s+", block.get_text()))


def of_notebook(notebook: NotebookNode) -> BeautifulSoup:
    """Its text as HTML, but for where a picture moves; each formula is a letter."""
    cells = [
        cell.source for cell in notebook.cells if cell.cell_type == "markdown" and not cell.source.startswith("Next: ")
    ]
    texts = [re.sub(r"\$\$.*?\$\$|\$[^$]+\$", "𝑥", cell.replace(MOVES, ""), flags=re.DOTALL) for cell in cells]
    return BeautifulSoup("\n".join(map(MARKDOWN.render, texts)), "html.parser")


def of_page(page: str) -> Tag:
    """Its text, without what cells show, and with the words of a picture that moves; each formula is a letter."""
    article = BeautifulSoup(page, "html.parser").select_one("article")
    assert article is not None
    for still in article.select(f".{CANVAS} img"):
        still.replace_with(str(still["alt"]))
    for element in article.select(".math"):
        element.replace_with("𝑥")
    for element in article.select(".cell_output"):
        captions = element.select("figcaption")
        element.clear()
        element.extend(captions)
    return article


def unlike(notebook: NotebookNode, page: str) -> list[str]:
    """The sentences of a notebook that its page hasn't, and those of the page that the notebook hasn't."""
    told, article = of_notebook(notebook), of_page(page)
    for soup in (told, article):
        for element in soup.select(NO_SENTENCE):
            element.decompose()
    if (cited := told.find("h2", string="References")) and not article.select(".citation"):  # a notebook has its own
        for element in [cited, *cited.find_all_next()]:
            element.decompose()
    here, there = (squeezed(soup.get_text()) for soup in (told, article))
    lost = [text for text in sentences(told) if squeezed(text) not in there]
    return lost + [text for text in sentences(article) if squeezed(text) not in here]


@pytest.mark.built
def test_a_notebook_has_the_sentences_of_its_page_and_no_others() -> None:
    for name in CHAPTERS:
        path = BOOK.html / "notebooks" / f"{name}.ipynb"
        page = (BOOK.html / "chapters" / f"{name}.html").read_text(encoding="utf-8")
        assert unlike(nbformat.read(path, as_version=4), page) == [], name


PAGE = [Piece("text", 0, "# One"), Piece("code", 1, ""), Piece("text", 2, "The end.")]


def first_cell(requirement: str) -> str:
    executed = new_notebook(cells=[new_markdown_cell("# One"), new_code_cell("1"), new_markdown_cell("The end.")])
    written = reader_notebook("one", executed, PAGE, requirement, "[Two](two.ipynb)", {})
    own = ["# One", "1", "The end.", f"# {notebooks.SUM}\nsum_up()", "Next: [Two](two.ipynb)"]
    assert [cell.source for cell in written.cells if "sslchapters" not in cell.source] == own
    return str(next(cell.source for cell in written.cells if cell.cell_type == "code"))


def test_the_first_cell_asks_for_no_bare_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that nobody holds can be anybody's tomorrow."""
    installing = [
        line.strip() for line in first_cell("sslbook @ git+https://github.com/Ada/book").splitlines() if "%pip" in line
    ]
    assert installing == ['%pip install --quiet "sslbook @ git+https://github.com/Ada/book" scikit-learn seaborn']
    source = first_cell("")
    exec(source)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("sslbook", "sslchapters")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"needs the book's library .*: run %pip install 'PATH\[notebooks\]'"):
        exec(source)


def build(book: Book, word: str) -> None:
    for name in ("one", "two"):
        output = new_output("stream", text="a\nb\n")
        cells = [new_markdown_cell(f"{word}\n\nof two lines", id="a"), new_code_cell("1\n2", id="b", outputs=[output])]
        notebooks.write(new_notebook(cells=cells, metadata={RECORD_KEY: {}}), book.html / f"notebooks/{name}.ipynb")


TOUCHED: dict[str, Callable[[str], str]] = {
    "a word": lambda text: text.replace("old", "mine"),
    "an output": lambda text: text.replace('"b\\n"', '"c\\n"'),
    "a broken file": lambda text: text[:-9],
}


@pytest.mark.parametrize("touch", TOUCHED.values(), ids=TOUCHED)
def test_a_copy_that_was_touched_stays(touch: Callable[[str], str], tmp_path: Path) -> None:
    book, folder = Book(tmp_path), tmp_path / "lab"
    shutil.copy(BOOK.root / "_config.yml", tmp_path)
    build(book, "old")
    assert notebooks.copy_notebooks(book, folder) == ([folder / "one.ipynb", folder / "two.ipynb"], [])
    mine = touch((folder / "one.ipynb").read_text())
    assert mine != (folder / "one.ipynb").read_text()
    (folder / "one.ipynb").write_text(mine)
    build(book, "new")
    assert notebooks.copy_notebooks(book, folder)[1] == [folder / "one.ipynb"]
    assert (folder / "one.ipynb").read_text() == mine
    assert (folder / "two.ipynb").read_bytes() == (book.html / "notebooks/two.ipynb").read_bytes()
    (folder / "one.ipynb").unlink()
    assert notebooks.copy_notebooks(book, folder)[1] == []
    assert "new" in (folder / "one.ipynb").read_text()
