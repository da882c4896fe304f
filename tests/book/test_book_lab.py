"""Copies of the readers' notebooks: fresh ones replace what nobody touched, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from sslbook import cli
from sslbook.book import commands, lab
from sslbook.book.layout import Book, find_book
from sslbook.book.values import RECORD_KEY

CONFIG = find_book(Path(__file__).resolve().parents[2]).root / "_config.yml"


def build(book: Book, word: str) -> None:
    for name in ("one", "two"):
        output = new_output("stream", text="a\nb\n")
        cells = [new_markdown_cell(f"{word}\n\nof two lines", id="a"), new_code_cell("1\n2", id="b", outputs=[output])]
        lab.write(new_notebook(cells=cells, metadata={RECORD_KEY: {}}), book.html / f"notebooks/{name}.ipynb")


@pytest.fixture
def book(tmp_path: Path) -> Book:
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_toc.yml").touch()
    shutil.copy(CONFIG, tmp_path)
    build(Book(tmp_path), "old")
    return Book(tmp_path)


def edit(change: Callable[[NotebookNode], object]) -> Callable[[Path], None]:
    def edited(path: Path) -> None:
        notebook = nbformat.read(path, as_version=4)
        change(notebook)
        nbformat.write(notebook, path)

    return edited


TOUCHED = {
    "a word": edit(lambda notebook: notebook.cells[0].update(source="mine")),
    "a picture": edit(lambda notebook: notebook.cells[0].update(attachments={"a.png": {"image/png": "mine"}})),
    "a tag": edit(lambda notebook: notebook.cells[1].metadata.update(tags=["mine"])),
    "an output": edit(lambda notebook: notebook.cells[1].update(outputs=[], execution_count=3)),
    "a new cell": edit(lambda notebook: notebook.cells.append(new_markdown_cell("mine"))),
    "another notebook": edit(lambda notebook: notebook.update(metadata={})),
    "another file": lambda path: path.write_text("mine"),
    "a broken file": lambda path: path.write_bytes(b"\xff"),
    "a list": lambda path: path.write_text("[]"),
}


@pytest.mark.parametrize("touch", TOUCHED.values(), ids=TOUCHED)
@pytest.mark.parametrize("command", ["lab", "notebooks"])
def test_a_copy_that_was_touched_stays(
    book: Book, command: str, touch: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(commands, "build", lambda options: 0)
    monkeypatch.setattr(lab, "start", lambda folder, arguments: 0)
    folder = book.built / command
    run = [command, "--root", str(book.root)]
    assert cli.main(run) == 0
    assert "Left as they were" not in capsys.readouterr().out
    touch(folder / "one.ipynb")
    mine = (folder / "one.ipynb").read_bytes()
    build(book, "new")
    assert cli.main(run) == 0
    said = capsys.readouterr().out
    assert (folder / "one.ipynb").read_bytes() == mine
    assert (folder / "two.ipynb").read_bytes() == (book.html / "notebooks/two.ipynb").read_bytes()
    told = "Left as they were, since they were changed or run; remove one to have the book's again:"
    assert said.endswith(f"{told}\n  {folder}/one.ipynb\n")
    (folder / "one.ipynb").unlink()
    assert cli.main(run) == 0
    assert "new" in (folder / "one.ipynb").read_text()


def test_a_list_of_requirements_that_is_another_s_stays(book: Book, tmp_path: Path) -> None:
    assert "jupyterlab" in (lab.copy_notebooks(book, tmp_path / "to") and tmp_path / "to/requirements.txt").read_text()
    (tmp_path / "to/requirements.txt").write_text("mine\n")
    assert lab.copy_notebooks(book, tmp_path / "to")[1] == [tmp_path / "to/requirements.txt"]
    assert (tmp_path / "to/requirements.txt").read_text() == "mine\n"
    assert json.loads((tmp_path / "to/one.ipynb").read_text())
