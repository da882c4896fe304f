"""Every chapter as a reader has it: the notebook of the download button, run by plain papermill with the package from its wheel."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import papermill
import pytest
from reader_cases import kernel_of

from bookbuild import execute as kernel
from bookbuild import regression
from bookbuild.execute import stderr_notes
from bookbuild.layout import Chapter, find_book, find_chapters
from sslchapters.values import numbers

BOOK = find_book(Path(__file__).resolve().parents[2])
CHAPTERS = [chapter for chapter in find_chapters(BOOK) if chapter.runs]


def notebook_of(chapter: Chapter) -> Path:
    """The chapter's notebook as the download button has it."""
    return BOOK.html / "notebooks" / f"{chapter.name}.ipynb"


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_chapter_runs_alone_and_gives_its_numbers(chapter: Chapter, reader: Path, tmp_path: Path) -> None:
    """By papermill, in the environment of `requirements.txt` with the package's wheel, outside the checkout, without a warning."""
    with kernel.environment() as variables, pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(variables) | {"PYTHONPATH"}:
            patch.delenv(name, raising=False)
        for name in set(variables) - {"PYTHONPATH"}:
            patch.setenv(name, variables[name])
        patch.setenv("JUPYTER_PATH", str(kernel_of(reader, tmp_path)))
        executed = papermill.execute_notebook(
            str(notebook_of(chapter)),
            str(tmp_path / "out.ipynb"),
            parameters={"scale": "quick", "seed": 0},
            cwd=str(tmp_path),
            progress_bar=False,
            start_timeout=kernel.START_SECONDS,
            execution_timeout=1800,
        )
    assert stderr_notes(executed) == []
    found = list(numbers(executed))
    assert [number.name for number in found if number.failure] == []
    held, whole = regression.read_expected(BOOK.expected(chapter.name, "quick")), [n for n in found if not n.part_of]
    assert regression.differences(whole, held, regression.printed_as(BOOK)) == []
    if chapter.name != "intro":
        claims = [number for number in found if number.criterion.asserts and not number.part_of]
        assert claims, "a chapter without claims checks nothing"
        assert all(number.rejects or number.rivals for number in claims)


def test_a_kernel_whose_port_was_taken_is_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = ["Kernel died before replying to kernel_info", "no Python here"]

    executed = nbformat.v4.new_notebook()

    def once(*_: object, **__: object) -> nbformat.NotebookNode:
        if told:
            raise RuntimeError(told.pop(0))
        return executed

    monkeypatch.setattr(papermill, "execute_notebook", once)
    given = {"partial": tmp_path / "a.ipynb", "folder": tmp_path, "cell_seconds": 1.0, "values": {}}
    _, (failed,) = kernel.run(nbformat.v4.new_notebook(), **given)
    assert failed.reason.endswith("no Python here"), "why a kernel did not start is told"
    told.append("Kernel died before replying to kernel_info")
    assert kernel.run(nbformat.v4.new_notebook(), **given) == (executed, [])
