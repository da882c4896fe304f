"""Every chapter as a reader has it: the notebook of the download button, run by plain papermill with the package from its wheel."""

from __future__ import annotations

import os
from pathlib import Path

import papermill
import pytest
from reader_cases import kernel_of

from bookbuild import kernel, regression
from bookbuild.layout import Chapter, find_book, find_chapters
from sslchapters.values import numbers

BOOK = find_book(Path(__file__).resolve().parents[2])
CHAPTERS = [chapter for chapter in find_chapters(BOOK) if chapter.runs]


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
            str(BOOK.html / "notebooks" / f"{chapter.name}.ipynb"),
            str(tmp_path / "out.ipynb"),
            parameters={"scale": "quick", "seed": 0, "strict": True},
            cwd=str(tmp_path),
            progress_bar=False,
            start_timeout=kernel.START_SECONDS,
            execution_timeout=1800,
        )
    outputs = [output for cell in executed.cells for output in cell.get("outputs", ())]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    found = list(numbers(executed))
    assert [number.name for number in found if number.failure] == []
    held, whole = regression.read_expected(BOOK.expected(chapter.name, "quick")), [n for n in found if not n.part_of]
    assert regression.differences(whole, held, regression.printed_as(BOOK)) == []
