"""The way back: an edit in a reader's notebook changes the source of the chapter by what was edited, and nothing else."""

from __future__ import annotations

import copy
import logging
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat import NotebookNode

from sslbook.arguments import InputError
from sslbook.book import lab
from sslbook.book.chapters import Chapter, find_chapters, read_chapter
from sslbook.book.layout import Book, find_book
from sslbook.book.notebooks import INSTALL, made, origin, reader_notebook
from sslbook.book.plain import Piece

BOOK = find_book(Path(__file__).resolve().parents[1])
SOURCE = """---
jupytext:
  text_representation: {extension: .md, format_name: myst, format_version: 0.13}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# One

By {prf:ref}`thm-first` the gap is {glue:text}`gap:.1e`, which is rounding.
It gains {interval}`rise:+.1f`, {least}`rise:.1f` or more.
A second sentence.

```{code-cell} ipython3
:tags: [parameters]

seed = 0
```

```{code-cell} ipython3
:tags: [remove-cell]

hidden = 1
```

Between the cells.

```{code-cell} ipython3
x = 1
```

The end.
"""
PAGE = [
    Piece(
        "text",
        0,
        "# 1. One\n\nBy [Theorem 1.1](#thm-first) the gap is 1.2\u00a0×\u00a010⁻¹⁵, which is rounding.\n"
        "It gains +1.3 (+0.4\u00a0to\u00a0+2.1, n\u00a0=\u00a05), 1.2 or more.\nA second sentence.",
    ),
    Piece("code", 1, ""),
    Piece("text", 3, "Between the cells."),
    Piece("code", 4, ""),
    Piece("caption", -1, "**Figure 1** A caption."),
    Piece("text", 5, "The end."),
]


@pytest.fixture
def chapter(tmp_path: Path) -> Chapter:
    (tmp_path / "chapters").mkdir()
    path = tmp_path / "chapters/one.md"
    path.write_text(SOURCE, encoding="utf-8")
    return read_chapter(path)


@pytest.fixture
def written(chapter: Chapter) -> NotebookNode:
    notebook = chapter.notebook()
    notebook.cells[0].source = re.sub(r"\{[\w:]+\}`[^`]*`", "a number", notebook.cells[0].source)  # pasted: not here
    return reader_notebook("one", notebook, PAGE, "sslbook")


def cell_with(notebook: NotebookNode, text: str) -> NotebookNode:
    (found,) = [cell for cell in notebook.cells if text in cell.source]
    return found


def after(chapter: Chapter, written: NotebookNode, edit: Callable[[NotebookNode], None]) -> tuple[str, list[str]]:
    edited = copy.deepcopy(written)
    edit(edited)
    return lab.carried(chapter, written, edited)


def test_every_cell_of_the_source_is_there_in_order(written: NotebookNode) -> None:
    assert [origin(cell) for cell in written.cells if not made(cell)] == [0, 1, 2, 3, 4, 5]
    assert [cell.source for cell in written.cells if made(cell)] == [
        INSTALL.format(requirement="sslbook").rstrip(),
        "**Figure 1** A caption.",
    ]


def test_nothing_edited_changes_nothing(chapter: Chapter, written: NotebookNode) -> None:
    def run(notebook: NotebookNode) -> None:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = 3
                cell.outputs = [nbformat.v4.new_output("stream", text="ran\n")]
        notebook.metadata["widgets"] = {}

    assert after(chapter, written, run) == (SOURCE, [])


def test_an_edited_word_changes_the_word(chapter: Chapter, written: NotebookNode) -> None:
    def edit(notebook: NotebookNode) -> None:
        cell = cell_with(notebook, "A second")
        cell.source = cell.source.replace("rounding", "noise").replace(
            "A second sentence.", "A second, longer sentence."
        )

    text, refused = after(chapter, written, edit)
    assert refused == []
    assert text == SOURCE.replace("rounding", "noise").replace("A second sentence.", "A second, longer sentence.")


def test_code_and_roles_that_the_author_types_go_as_they_are(chapter: Chapter, written: NotebookNode) -> None:
    def edit(notebook: NotebookNode) -> None:
        cell_with(notebook, "x = 1").source = "x = 2\ny = 3"
        cell_with(notebook, "The end.").source = "The end.\nSee {prf:ref}`thm-first`."

    text, refused = after(chapter, written, edit)
    assert refused == []
    assert text == SOURCE.replace("x = 1", "x = 2\ny = 3").replace("The end.", "The end.\nSee {prf:ref}`thm-first`.")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.2\u00a0×", "1.3\u00a0×"),
        ("Theorem 1.1", "Theorem 1.2"),
        ("1. One", "2. One"),
        ("+2.1", "+2.2"),
        ("+1.3 (", "+1.4 ("),
        ("n\u00a0=\u00a05", "n\u00a0=\u00a06"),
        ("1.2 or", "1.5 or"),
    ],
)
def test_what_stands_for_a_role_is_refused(chapter: Chapter, written: NotebookNode, old: str, new: str) -> None:
    def edit(notebook: NotebookNode) -> None:
        cell = cell_with(notebook, old)
        cell.source = cell.source.replace(old, new)
        cell_with(notebook, "x = 1").source = "x = 2"

    text, (refused,) = after(chapter, written, edit)
    assert "the source has a role or a directive; edit it there" in refused
    assert text == SOURCE.replace("x = 1", "x = 2"), "the rest is carried over"


def test_an_edited_caption_is_refused(chapter: Chapter, written: NotebookNode) -> None:
    def edit(notebook: NotebookNode) -> None:
        cell_with(notebook, "A caption.").source = "**Figure 1** Another."

    assert after(chapter, written, edit) == (SOURCE, ["“**Figure 1** Another.” is not text of its own there"])


def test_cells_come_and_go(chapter: Chapter, written: NotebookNode) -> None:
    def edit(notebook: NotebookNode) -> None:
        at = notebook.cells.index(cell_with(notebook, "Between"))
        notebook.cells[at + 1 : at + 1] = [nbformat.v4.new_code_cell("new = 1"), nbformat.v4.new_markdown_cell("")]
        notebook.cells.remove(cell_with(notebook, "The end."))

    text, refused = after(chapter, written, edit)
    assert refused == []
    assert text == SOURCE.replace(
        "Between the cells.\n", "Between the cells.\n\n```{code-cell} ipython3\nnew = 1\n```\n"
    ).replace("\nThe end.\n", "")


def test_the_hook_writes_the_source_and_says_what_it_could_not(
    chapter: Chapter, written: NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: chapters/one\n")
    monkeypatch.setenv("SSLBOOK_ROOT", str(tmp_path))
    book = Book(tmp_path)
    (book.html / "notebooks").mkdir(parents=True)
    nbformat.write(written, book.html / "notebooks/one.ipynb")
    (tmp_path / "_config.yml").write_text("title: One\n")
    folder = lab.lay_out(book)
    manager = SimpleNamespace(log=logging.getLogger("lab"))

    def save(edit: Callable[[NotebookNode], None], name: str = "one.ipynb", kind: str = "notebook") -> str:
        notebook = nbformat.read(folder / "one.ipynb", as_version=4)
        edit(notebook)
        nbformat.write(notebook, folder / name)
        lab.saved(model={"type": kind}, os_path=str(folder / name), contents_manager=manager)
        return chapter.path.read_text()

    def say(old: str, new: str) -> Callable[[NotebookNode], None]:
        def edit(notebook: NotebookNode) -> None:
            cell = cell_with(notebook, old)
            cell.source = cell.source.replace(old, new)

        return edit

    before = chapter.path.stat().st_mtime_ns
    save(lambda notebook: None)
    assert chapter.path.stat().st_mtime_ns == before, "not written where nothing changed"
    assert save(say("x = 1", "x = 2")) == SOURCE.replace("x = 1", "x = 2")
    added = SOURCE.replace("x = 1", "x = 2").replace(
        "Between the cells.\n", "Between the cells.\n\n```{code-cell} ipython3\nnew = 1\n```\n"
    )
    assert save(lambda notebook: notebook.cells.insert(5, nbformat.v4.new_code_cell("new = 1"))) == added
    assert save(lambda notebook: None) == added, "a new cell is new once"
    assert save(say("The end.", "The very end.")) == added.replace("The end.", "The very end."), (
        "what comes behind it keeps its place"
    )
    assert save(say("The very end.", "The end.")) == added
    with pytest.raises(InputError, match=r"chapters/one\.md was not changed where the notebook says: at “1”"):
        save(say("1.2", "2.2"))
    assert save(lambda notebook: None) == added, "said once"
    save(lambda notebook: None, kind="file")
    save(say("x = 2", "x = 7"), name="mine.ipynb")  # a copy of the reader's own
    assert chapter.path.read_text() == added
    chapter.path.write_text(added.replace("The end.", "Changed in an editor."))
    with pytest.raises(InputError, match="was changed elsewhere since the notebook was written, and stays as it is"):
        save(say("x = 2", "x = 3"))
    assert "Changed in an editor." in chapter.path.read_text()


def test_cells_that_were_moved_or_changed_their_kind_are_refused(chapter: Chapter, written: NotebookNode) -> None:
    def swap(notebook: NotebookNode) -> None:
        notebook.cells[0], notebook.cells[-1] = notebook.cells[-1], notebook.cells[0]

    assert after(chapter, written, swap) == (SOURCE, ["cells were moved; move them there"])

    def turn(notebook: NotebookNode) -> None:
        cell_with(notebook, "x = 1").cell_type = "raw"

    assert after(chapter, written, turn) == (SOURCE, ["“x = 1” became a cell of another kind"])


# --- the real chapters -----------------------------------------------------------------------------------------------


def built(chapter: Chapter) -> NotebookNode:
    path = BOOK.html / "notebooks" / f"{chapter.name}.ipynb"
    if not path.exists():
        pytest.skip("the book is not built: make book")
    return nbformat.read(path, as_version=4)


CHAPTERS = [chapter for chapter in find_chapters(BOOK) if chapter.runs]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_random_words_of_a_chapter_go_where_they_belong(chapter: Chapter) -> None:
    """One word in each text: the source gets that word and no other change, or the edit is refused; few are."""
    notebook = built(chapter)
    assert lab.carried(chapter, notebook, notebook) == (chapter.text, [])
    draw = random.Random(0)
    carried = refused = 0
    for i, cell in enumerate(notebook.cells):
        text = re.sub(r"</?details>|</?summary>", lambda tag: " " * len(tag[0]), cell.source)
        words = list(re.finditer(r"\b[a-z]{4,}\b", text))
        if cell.cell_type != "markdown" or made(cell) or not words:
            continue
        word = draw.choice(words)
        edited = copy.copy(notebook)
        edited.cells = [copy.copy(cell) for cell in notebook.cells]
        edited.cells[i].source = cell.source[: word.start()] + "Zebra" + cell.source[word.end() :]
        found, problems = lab.carried(chapter, notebook, edited)
        if problems:
            assert found == chapter.text
            refused += 1
        else:
            assert found.count("Zebra") == chapter.text.count("Zebra") + 1
            assert found.replace("Zebra", word[0]) == chapter.text
            carried += 1
    assert carried >= 5 * refused, (carried, refused)


def test_copies_say_what_they_need(tmp_path: Path) -> None:
    (tmp_path / "html/notebooks").mkdir(parents=True)
    (tmp_path / "html/notebooks/one.ipynb").write_text("{}")
    shutil.copy(BOOK.root / "_config.yml", tmp_path)
    book = type(BOOK)(tmp_path, out=tmp_path)
    assert [path.name for path in lab.copy_notebooks(book, tmp_path / "to")] == ["one.ipynb"]
    assert "jupyterlab" in (tmp_path / "to/requirements.txt").read_text()
