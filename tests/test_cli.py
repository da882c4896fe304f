"""The command line: exit statuses, messages, and the order of a build. What the commands do is tested with their modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Told, number, store

from bookbuild import execute, render
from bookbuild.execute import Outcome
from bookbuild.layout import Book, Setting
from bookbuild.regression import read_expected, write_expected
from sslbook import cli
from sslchapters import commands, records
from sslchapters.sweep import Study

CHAPTER = "<<claim('gap', 1e-15, below=1e-12, rejects={'sign': 1.0}, id='A-Thm1')>>\n"


@pytest.fixture
def book(write_book, monkeypatch: pytest.MonkeyPatch) -> Book:
    """A book in the working folder."""
    book = write_book(good=CHAPTER, other="<<1>>\n")
    (book.root / "_config.yml").write_text("title: Tiny\n")
    monkeypatch.chdir(book.root)
    return book


@pytest.fixture
def executed(book: Book, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Execution without kernels: the chapter good gives a number; returns the chapters as they run."""
    ran: list[str] = []

    def run(book, chapters, setting: Setting, *, force, jobs, say):
        for chapter in chapters:
            fails = "fails" in chapter.text
            if force or fails or not (book.executed(setting.scale) / f"{chapter.name}.ipynb").exists():
                ran.append(chapter.name)
                given = [number("gap", 1e-15, below=1e-12, rejects={"sign": 1.0})] if chapter.name == "good" else []
                store(book, chapter.name, *given, failed=["other.md: this cell failed"] if fails else [])
        return [Outcome(chapter.name, "executed") for chapter in chapters]

    monkeypatch.setattr(execute, "execute", run)
    return ran


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Rendering without Sphinx; returns the generated pages of each call."""
    calls: list[dict] = []

    def build(executed: Path, out: Path, *, generated: dict, **named: object) -> Path:
        calls.append(generated)
        out.mkdir(parents=True, exist_ok=True)
        return out / "index.html"

    monkeypatch.setattr(render, "build", build)
    return calls


@pytest.mark.parametrize(
    "line", ["", "bild", "execute --scale papper", "execute --root nowhere", "execute godo", "bench covarience"]
)
def test_bad_input_gets_status_2_and_no_traceback(line: str, book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(line.split())
    except SystemExit as stop:  # argparse's own way out
        status = stop.code
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith(("usage: sslbook", "sslbook: "))
    assert "Traceback" not in error


def test_no_heavy_import_before_it_is_needed() -> None:
    code = "import sys, sslbook.cli; print({'torch', 'papermill', 'matplotlib', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_execute_tells_and_regression_holds(book: Book, executed: list[str], capsys, told: Told, monkeypatch) -> None:
    path = book.expected("good", "quick")
    write_expected(path, {"old": 1.0, "gap": None})
    assert cli.main(["execute"]) == 0, "what moved is told, and costs nothing"
    assert "1 number differs on this machine; no claim does:\n  good  old  none" in capsys.readouterr().out
    assert cli.main(["regression", "--junit", "report.xml"]) == 3, "nothing failed"
    printed = capsys.readouterr().out
    assert "good (quick): 1 problem:\n  old: gone, and no longer held; it was 1.0" in printed
    assert "If new numbers are meant: sslbook regression good --scale quick --update" in printed
    assert 'failures="1"' in (book.root / "report.xml").read_text()
    with monkeypatch.context() as patch:
        patch.setenv("SSLBOOK_NOISE", "1")
        assert cli.main(["regression", "--update"]) == 2
    assert "data/expected/good.quick.json: 1 change" in told(["regression", "good", "--update"])
    assert "As expected: 1 number." in told(["regression"])
    assert cli.main(["execute", "good", "--force"]) == 0
    assert executed == ["good", "other", "good"]
    write_expected(path, {"old": 1.0, "gap": None})
    assert "this is seed 3" in told(["execute", "--seed", "3"])
    assert told(["ledger"]).splitlines()[0] == "A-Thm1  good           open  1e-15 ≤ 1e-12"


def test_a_chapter_that_fails_gives_status_1_and_is_not_accepted(book: Book, executed: list[str], capsys) -> None:
    path = book.chapters / "other.md"
    path.write_text(path.read_text() + "fails\n")
    write_expected(book.expected("other", "quick"), {"old": 1.0})
    for command in (["execute"], ["build"], ["regression", "--update"]):
        assert cli.main(command) == 1
        assert "other.md: this cell failed" in capsys.readouterr().out
    assert read_expected(book.expected("other", "quick")) == {"old": 1.0}


def test_build(book: Book, executed: list[str], rendered: list[dict], capsys: pytest.CaptureFixture[str]) -> None:
    write_expected(book.expected("good", "quick"), {"old": 1.0, "gap": None})
    assert cli.main(["build"]) == 0, "a number that moved stops no build"
    assert "good.html#check-gap" in rendered[0]["chapters/ledger"]
    assert capsys.readouterr().out.endswith(f"Open {(book.html / 'index.html').as_uri()}\n")
    assert cli.main(["build"]) == 0
    assert len(rendered) == 1, "nothing changed: nothing is rendered"
    assert "The pages are up to date." in capsys.readouterr().out
    (book.root / "_config.yml").write_text("title: Other\n")
    assert cli.main(["build"]) == 0
    assert len(rendered) == 2, "a new configuration"


def test_record_runs_the_named_function_and_writes_its_numbers(tmp_path: Path, monkeypatch) -> None:
    study = Study(lambda seeds: {"sum": sum(seeds)}, (1, 2))
    monkeypatch.setitem(sys.modules, "tiny", SimpleNamespace(STUDIES={"tiny": study}))
    monkeypatch.setattr(commands, "RECORDERS", {"tiny": "tiny"})
    monkeypatch.setattr(records, "results_folder", lambda: tmp_path)
    assert cli.main(["record", "tiny"]) == 0
    found = records.recorded("tiny", folder=tmp_path)
    assert found["sum"] == 3
    assert found.provenance.seeds == (1, 2)
    assert found.provenance.command == "sslbook record tiny --seeds 1 2"
    assert cli.main(["record", "tiny", "--seeds", "5"]) == 2, "--replace makes it anew"
    assert cli.main(["record", "tiny", "--seeds", "5", "5", "--replace"]) == 0
    assert records.recorded("tiny", folder=tmp_path).provenance.seeds == (5,), "a seed is one trial"
