"""Execution through papermill, in real kernels: what passes, what fails, what is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import nbformat
import papermill
import pytest

from sslbook.book import execute as module
from sslbook.book import kernel
from sslbook.book.chapters import choose, code_cells, find_chapters, tags
from sslbook.book.execute import Outcome, Setting, execute, stderr_notes
from sslbook.book.layout import Book
from sslbook.book.values import numbers
from sslbook.runtime.atomic_io import write_text

GOOD = """
The gap is {glue:text}`gap:.1e`.

<<import numpy as np
from tinylib import core
claim("gap", np.float64(1e-15), below=1e-12, rejects={"sign": 1.0}, id="A-Thm1")
measure("n", run.pick(quick=2, paper=20))
measure("core", core.value);>>

<<import json
from pathlib import Path
from sslbook.records import data_files
own = data_files.noted(Path(core.__file__).parents[1] / "data/results/own.json")
measure("own", json.loads(own.read_text())["n"]);>>
"""
BAD = """
<<claim("gap", 1e-3, below=1e-12, rejects={"sign": 1.0}, id="A-Thm1")>>

<<print("not reached")>>
"""
SOFT = """
<<claim("gap", 1e-15, below=1e-12, rejects={"nothing at all": 1e-15}, id="A-Thm1")>>
"""
QUICK = Setting("quick", 0, "cpu", 60)


class Ran(SimpleNamespace):
    """The book after one call of `execute`: its outcomes by chapter and the lines that were printed."""

    book: Book
    outcomes: dict[str, Outcome]
    said: list[str]

    def again(self, *names: str, force: bool = False) -> dict[str, Outcome]:
        self.said.clear()
        chapters = choose(find_chapters(self.book), names)
        return {o.chapter: o for o in execute(self.book, chapters, QUICK, force=force, jobs=2, say=self.said.append)}

    def notebook(self, name: str = "good") -> nbformat.NotebookNode:
        return nbformat.read(self.book.executed("quick") / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, write_book_at) -> Iterator[Ran]:
    """One execution of three chapters, on a machine whose ``python3`` kernel belongs to someone else."""
    root = tmp_path_factory.mktemp("book")
    library = root / "tinylib"
    library.mkdir()
    (library / "__init__.py").write_text("")
    (library / "core.py").write_text("value = 1.0\n")
    (library / "unrelated.py").write_text("")
    foreign = root / "foreign" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    foreign.joinpath("kernel.json").write_text(
        json.dumps({"argv": ["/bin/false", "{connection_file}"], "display_name": "Theirs", "language": "python"})
    )
    book = write_book_at(root, packages=(library,), good=GOOD, bad=BAD, soft=SOFT)
    write_text(book.results / "own.json", '{"n": 1}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
        patch.setenv("JUPYTER_PATH", str(root / "foreign"))
        patch.setenv("MPLBACKEND", "agg")
        patch.setenv("JPY_SESSION_NAME", "live")
        result = Ran(book=book, outcomes={}, said=[])
        result.outcomes = result.again()
        yield result


def test_the_others_go_on_when_one_fails(ran: Ran) -> None:
    assert {name: outcome.status for name, outcome in ran.outcomes.items()} == {
        "good": "executed",
        "bad": "failed",
        "soft": "failed",
    }


def test_the_numbers_are_in_the_notebook(ran: Ran) -> None:
    found = {number.name: number for number in numbers(ran.notebook())}
    assert {name: number.value for name, number in found.items()} == {"gap": 1e-15, "n": 2, "core": 1.0, "own": 1}
    gap = found["gap"]
    assert (gap.id, gap.below, gap.rejects, gap.dtype) == ("A-Thm1", 1e-12, {"sign": 1.0}, "float64")
    assert (gap.chapter, gap.scale, gap.seed, gap.device) == ("good", "quick", 0, "cpu")
    assert gap.anchor == "check-gap"


def test_the_glue_is_what_myst_nb_reads(ran: Ran) -> None:
    outputs = [o for cell in ran.notebook().cells for o in cell.get("outputs", ()) if "scrapbook" in o.metadata]
    assert [(o.metadata["scrapbook"]["name"], o.data["application/papermill.record/text/plain"]) for o in outputs] == [
        ("gap", "1e-15"),
        ("n", "2"),
        ("core", "1.0"),
        ("own", "1"),
    ]


def test_the_reader_sees_one_line_a_claim(ran: Ran) -> None:
    lines = [
        o.data for cell in ran.notebook().cells for o in cell.get("outputs", ()) if "text/html" in o.get("data", {})
    ]
    assert len(lines) == 1
    assert lines[0]["text/plain"] == "✓ A-Thm1  gap = 1e-15 ≤ 1e-12 · rejects: sign (1)"
    assert 'href="ledger.html#ledger-a-thm1"' in lines[0]["text/html"]


def test_the_notebook_says_how_it_was_made(ran: Ran) -> None:
    notebook = ran.notebook()
    record = notebook.metadata["sslbook"]
    assert {k: record[k] for k in ("chapter", "scale", "seed", "device")} == {
        "chapter": "good",
        "scale": "quick",
        "seed": 0,
        "device": "cpu",
    }
    assert notebook.metadata["papermill"]["input_path"] == "chapters/good.md"
    assert str(ran.book.root) not in json.dumps(notebook.metadata["papermill"])
    injected = [cell for cell in notebook.cells if "injected-parameters" in tags(cell)]
    assert [tags(cell) for cell in injected] == [["injected-parameters", "remove-cell"]]
    nbformat.validate(notebook)


def test_a_failing_claim_says_where_and_keeps_the_notebook(ran: Ran) -> None:
    error = ran.outcomes["bad"].error
    lines = (ran.book.chapters / "bad.md").read_text().splitlines()
    at = next(i for i, line in enumerate(lines, start=1) if line.startswith('claim("gap"'))
    assert f"chapters/bad.md:{at}: this cell failed" in error
    assert '    claim("gap", 1e-3, below=1e-12' in error
    assert "AssertionError: gap (A-Thm1): 0.001 is not ≤ 1e-12" in error
    partial = ran.book.executed("quick") / "bad.failed.ipynb"
    assert str(partial) in error
    outputs = [cell.outputs for cell in nbformat.read(partial, as_version=4).cells if cell.cell_type == "code"]
    assert any(output.output_type == "error" for cell in outputs for output in cell)
    assert "not reached\n" not in json.dumps(outputs)
    assert sorted(p.name for p in partial.parent.iterdir()) == ["bad.failed.ipynb", "good.ipynb", "soft.failed.ipynb"]


def test_a_check_that_cannot_fail_stops_its_chapter(ran: Ran) -> None:
    assert "this check can't fail: the broken variant 'nothing at all' gives 1e-15" in ran.outcomes["soft"].error


def test_nothing_changed_nothing_runs(ran: Ran) -> None:
    before = (ran.book.executed("quick") / "good.ipynb").read_bytes()
    (ran.book.root / "tinylib" / "unrelated.py").write_text("x = 1\n")
    assert ran.again("good")["good"].status == "cached"
    assert (ran.book.executed("quick") / "good.ipynb").read_bytes() == before


def test_new_prose_keeps_the_outputs(ran: Ran) -> None:
    path = ran.book.chapters / "good.md"
    path.write_text(path.read_text().replace("The gap is", "New paragraph.\n\nThe measured gap is"))
    before = ran.notebook()
    assert ran.again("good")["good"].status == "prose"
    after = ran.notebook()
    assert "The measured gap is" in "".join(cell.source for cell in after.cells)
    assert [cell.outputs for cell in code_cells(after)] == [cell.outputs for cell in code_cells(before)]
    assert [cell.source for cell in after.cells if "injected-parameters" in tags(cell)] == [
        cell.source for cell in before.cells if "injected-parameters" in tags(cell)
    ]
    assert after.metadata["sslbook"]["key"] == before.metadata["sslbook"]["key"]
    nbformat.validate(after)
    assert ran.again("good")["good"].status == "cached"


def test_a_caption_that_went_away_goes_with_the_prose(write_book) -> None:
    book = write_book(good="<<1>>")
    path = book.chapters / "good.md"
    plain = path.read_text()
    path.write_text(plain.replace("\n1\n", "\n---\nmystnb:\n  figure:\n    caption: Old\n---\n1\n"))
    executed = find_chapters(book)[0].notebook()
    assert "mystnb" in code_cells(executed)[-1].metadata
    code_cells(executed)[-1].metadata["papermill"] = {"duration": 1.0}
    path.write_text(plain)
    fresh = module.with_prose(executed, find_chapters(book)[0])
    assert dict(code_cells(fresh)[-1].metadata) == {"papermill": {"duration": 1.0}}


def test_a_worker_that_breaks_does_not_lose_the_others(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>", other="<<2>>")

    class Pool:
        def __init__(self, *arguments: object, **named: object) -> None: ...

        def submit(self, function, job) -> Future:
            future: Future = Future()
            if job.chapter.name == "good":
                future.set_exception(ZeroDivisionError("surprise"))
            else:
                future.set_result(Outcome("other", "executed"))
            return future

        def shutdown(self, **named: object) -> None: ...

    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)
    outcomes = execute(book, choose(find_chapters(book), []), QUICK, say=lambda line: None)
    assert [(o.chapter, o.status, o.error) for o in outcomes] == [
        ("good", "failed", "ZeroDivisionError: surprise"),
        ("other", "executed", ""),
    ]


def test_a_change_in_an_imported_module_runs_the_chapter_again(ran: Ran) -> None:
    (ran.book.root / "tinylib" / "core.py").write_text("value = 2.0\n")
    assert ran.again("good")["good"].status == "executed"
    assert any("tinylib/core.py changed" in line for line in ran.said)
    assert {number.name: number.value for number in numbers(ran.notebook())}["core"] == 2.0


def test_a_record_runs_the_chapters_that_asked_for_it_again(ran: Ran) -> None:
    ran.again("good")
    assert ran.notebook().metadata["sslbook"]["asked"] == ["data/results/own.json"]
    write_text(ran.book.results / "other.json", '{"n": 1}')
    assert ran.again("good")["good"].status == "cached"
    write_text(ran.book.results / "own.json", '{"n": 2}')
    assert ran.again("good")["good"].status == "executed"
    assert any("data/results/own.json changed" in line for line in ran.said)
    assert {number.name: number.value for number in numbers(ran.notebook())}["own"] == 2
    assert ran.again("good")["good"].status == "cached"


def test_plain_papermill_runs_a_chapter(ran: Ran, tmp_path: Path) -> None:
    chapter = next(c for c in find_chapters(ran.book) if c.name == "good")
    source = tmp_path / "good.ipynb"
    nbformat.write(chapter.notebook(), source)
    with kernel.environment() as environment, pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_PATH", "PYTHONPATH"):
            patch.setenv(name, environment[name])
        done = papermill.execute_notebook(
            str(source),
            str(tmp_path / "out.ipynb"),
            parameters={"scale": "paper"},
            progress_bar=False,
            start_timeout=kernel.START_SECONDS,
        )
    assert {number.name: (number.value, number.scale) for number in numbers(done)}["n"] == (20, "paper")


def test_a_cell_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import time; time.sleep(60)")])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    with kernel.environment() as environment, pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_PATH", "PYTHONPATH"):  # the kernel's first line is of this package
            patch.setenv(name, environment[name])
        result = kernel.run(notebook, partial=tmp_path / "p.ipynb", folder=tmp_path, cell_seconds=1, values={})
    assert isinstance(result, kernel.Failure)
    assert result.timed_out
    assert "longer than 1 s" in result.reason


def job(book: Book, name: str = "good") -> module._Job:
    chapter = next(c for c in find_chapters(book) if c.name == name)
    return module._Job(chapter, QUICK, book.executed("quick") / f"{name}.ipynb", {}, book)


def test_one_more_try_after_a_cell_ran_out_of_time(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>")
    book.executed("quick").mkdir(parents=True)
    results = [kernel.Failure("too long", timed_out=True), nbformat.v4.new_notebook()]
    monkeypatch.setattr(kernel, "run", lambda notebook, **rest: results.pop(0))
    outcome = module._run(job(book))
    assert (outcome.status, outcome.notes) == ("executed", ("too long; the chapter was run again",))

    results[:] = [kernel.Failure("too long", timed_out=True), kernel.Failure("too long", timed_out=True), None]
    outcome = module._run(job(book))
    assert (outcome.status, len(results)) == ("failed", 1)


def test_only_declared_parameters_are_injected(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>")
    path = book.chapters / "good.md"
    path.write_text(path.read_text().replace("seed = 0\n", ""))
    given: list[dict] = []
    monkeypatch.setattr(kernel, "run", lambda notebook, *, values, **rest: given.append(values) or kernel.Failure("x"))
    module._run(job(book))
    assert given == [{"scale": "quick", "device": "cpu"}]


def test_the_longest_chapter_starts_first(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>", slow="<<2>>", new="<<3>>")
    folder = book.executed("quick")
    folder.mkdir(parents=True)
    for name, seconds in (("good", 1.0), ("slow", 9.0)):
        (folder / f"{name}.ipynb").write_text(json.dumps({"metadata": {"sslbook": {"seconds": seconds}}, "cells": []}))
    order: list[str] = []

    def run_all(todo, environment, processes, say):
        order.extend(job.chapter.name for job in todo)
        return (Outcome(job.chapter.name, "failed") for job in todo)

    monkeypatch.setattr(module, "_run_all", run_all)
    execute(book, choose(find_chapters(book), []), QUICK, say=lambda line: None)
    assert order == ["new", "slow", "good"]


def test_what_a_cell_writes_to_stderr_is_noted() -> None:
    output = nbformat.v4.new_output("stream", name="stderr", text="UserWarning: look\nmore\n")
    cells = [nbformat.v4.new_markdown_cell("a"), nbformat.v4.new_code_cell("b", outputs=[output])]
    assert stderr_notes(nbformat.v4.new_notebook(cells=cells)) == ["cell 1 wrote to stderr: UserWarning: look"]


def test_an_unknown_chapter_is_answered_with_the_nearest(write_book) -> None:
    book = write_book(covariance="<<1>>")
    with pytest.raises(ValueError, match=r"chapter: got 'covarience'; did you mean covariance\?"):
        choose(find_chapters(book), ["covarience"])


def test_code_cells_without_a_header_are_refused(write_book) -> None:
    book = write_book(good="")
    (book.chapters / "plain.md").write_text("# Plain\n\n```{code-cell}\n1\n```\n")
    with pytest.raises(ValueError, match=r"plain.md: it has code cells but no Jupytext header"):
        find_chapters(book)


def test_pages_without_code_do_not_run(write_book) -> None:
    book = write_book(good="")
    (book.chapters / "notation.md").write_text("# Notation\n")
    (book.chapters / "ledger.md").write_text("# Generated\n")
    assert {c.name: (c.runs, c.title) for c in find_chapters(book)} == {
        "good": (True, "The chapter good"),
        "notation": (False, "Notation"),
    }
