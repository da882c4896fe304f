"""Every chapter as a reader has it: a stripped notebook, run by plain papermill in an empty folder, held to its numbers."""

from __future__ import annotations

from pathlib import Path

import papermill
import pytest

from sslbook.book import kernel, regression
from sslbook.book.chapters import Chapter, find_chapters
from sslbook.book.layout import find_book
from sslbook.book.notebooks import write_notebook
from sslbook.book.values import numbers

BOOK = find_book(Path(__file__).resolve().parents[1])
CHAPTERS = [chapter for chapter in find_chapters(BOOK) if chapter.runs]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_chapter_runs_alone_and_gives_its_numbers(chapter: Chapter, tmp_path: Path) -> None:
    source = write_notebook(chapter, tmp_path)
    assert not any(cell.get("outputs") for cell in chapter.notebook().cells)
    with kernel.environment() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        executed = papermill.execute_notebook(
            str(source),
            str(tmp_path / "out.ipynb"),
            parameters={"scale": "quick", "seed": 0},
            cwd=str(tmp_path),
            progress_bar=False,
            start_timeout=kernel.START_SECONDS,
            execution_timeout=1800,
        )
    found = list(numbers(executed))
    held = regression.read_expected(BOOK.expected(chapter.name, "quick"))
    assert regression.differences(found, held) == []
    if chapter.name != "intro":
        claims = [number for number in found if number.id and number.criterion.asserts]
        assert claims, "a chapter without claims checks nothing"
        assert all(number.rejects for number in claims)


def test_the_regression_sees_a_number_that_moved() -> None:
    """The comparison above can fail: any held number, moved by more than its tolerance, is reported."""
    chapter = next(chapter for chapter in CHAPTERS if chapter.name == "covariance")
    held = regression.read_expected(BOOK.expected(chapter.name, "quick"))
    assert held, "nothing is held"
    assert len(regression.differences([], held)) == len(held)
