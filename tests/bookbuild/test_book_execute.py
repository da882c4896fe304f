"""Execution in real kernels: what passes, what fails, what is kept; the same under every shell; one command at a time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from bookbuild import execute as module
from bookbuild.commands import alone
from bookbuild.execute import Outcome, execute, stderr_notes
from bookbuild.layout import Book, Setting, choose, code_cells, find_chapters, tags
from bookbuild.regression import read_numbers
from sslbook import cli
from sslbook._check import InputError
from sslchapters.values import numbers

GOOD = """
The gap is {glue:text}`gap:.1e`.

<<---
mystnb:
  figure:
    caption: Old
---
import numpy as np
from tinylib import core
claim("gap", np.float64(1e-15), below=1e-12, rejects={"sign": 1.0}, id="A-Thm1")
measure("n", run.pick(quick=2, paper=20))
measure("core", core.value);>>
"""
BAD = """
<<claim("gap", 1e-3, below=1e-12, rejects={"sign": 1.0}, id="A-Thm1")>>

<<import sys
sys.exit()>>

<<unknown + 1>>

<<measure("behind", 1.0)>>
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
    """One execution of two chapters, on a machine whose ``python3`` kernel belongs to someone else."""
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
    book = write_book_at(root, packages=(library,), good=GOOD, bad=BAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
        patch.setenv("JUPYTER_PATH", str(root / "foreign"))
        patch.setenv("MPLBACKEND", "agg")
        patch.setenv("JPY_SESSION_NAME", "live")
        result = Ran(book=book, outcomes={}, said=[])
        result.outcomes = result.again()
        yield result


def test_the_others_are_executed_where_one_fails(ran: Ran) -> None:
    assert {name: outcome.status for name, outcome in ran.outcomes.items()} == {"good": "executed", "bad": "failed"}


def test_the_numbers_are_in_the_notebook_and_glued_as_myst_nb_reads_them(ran: Ran) -> None:
    found = {number.name: number for number in numbers(ran.notebook())}
    assert {name: number.value for name, number in found.items()} == {"gap": 1e-15, "n": 2, "core": 1.0}
    gap = found["gap"]
    assert (gap.id, gap.below, gap.rejects, gap.dtype) == ("A-Thm1", 1e-12, {"sign": 1.0}, "float64")
    assert (gap.chapter, gap.scale, gap.seed, gap.device) == ("good", "quick", 0, "cpu")
    assert gap.anchor == "check-gap"
    outputs = [o for cell in ran.notebook().cells for o in cell.get("outputs", ()) if "scrapbook" in o.metadata]
    assert [(o.metadata["scrapbook"]["name"], o.data["application/papermill.record/text/plain"]) for o in outputs] == [
        ("gap", "1e-15"),
        ("n", "2"),
        ("core", "1.0"),
    ]


def test_the_notebook_says_how_it_was_made(ran: Ran) -> None:
    notebook = ran.notebook()
    record = notebook.metadata["sslbook"]
    assert [record[part] for part in ("chapter", "scale", "seed", "device")] == ["good", "quick", 0, "cpu"]
    assert notebook.metadata["papermill"]["input_path"] == "chapters/good.md"
    assert str(ran.book.root) not in json.dumps(notebook.metadata["papermill"])
    injected = [cell for cell in notebook.cells if "injected-parameters" in tags(cell)]
    assert [tags(cell) for cell in injected] == [["injected-parameters", "remove-cell"]]
    nbformat.validate(notebook)


def test_what_fails_leaves_its_mark_and_the_cells_behind_it_run(ran: Ran) -> None:
    error = ran.outcomes["bad"].error
    lines = (ran.book.chapters / "bad.md").read_text().splitlines()
    leaves, raises = (lines.index(line) + 1 for line in ("import sys", "unknown + 1"))
    assert f"chapters/bad.md:{leaves}: this cell failed: SystemExit" in error, "a notebook that leaves early has failed"
    assert f"chapters/bad.md:{raises}: this cell failed: NameError: name 'unknown' is not defined" in error
    assert "    unknown + 1" in error
    found = {number.name: number for number in numbers(ran.notebook("bad"))}
    assert found["gap"].failure == "0.001 is not ≤ 1e-12", "a check that fails stops nothing"
    assert found["behind"].value == 1.0
    record = ran.notebook("bad").metadata["sslbook"]
    assert len(record["failed"]) == 2
    assert "parts" not in record, "it is executed again"
    assert sorted(p.name for p in ran.book.executed("quick").iterdir()) == ["bad.ipynb", "good.ipynb"]


def test_nothing_changed_nothing_runs(ran: Ran) -> None:
    before = (ran.book.executed("quick") / "good.ipynb").read_bytes()
    (ran.book.root / "tinylib" / "unrelated.py").write_text("x = 1\n")
    assert ran.again("good")["good"].status == "cached"
    assert (ran.book.executed("quick") / "good.ipynb").read_bytes() == before


def test_new_prose_keeps_the_outputs(ran: Ran) -> None:
    path = ran.book.chapters / "good.md"
    path.write_text(path.read_text().replace("The gap is", "New paragraph.\n\nThe measured gap is"))
    path.write_text(re.sub(r"---\nmystnb:.*?---\n", "", path.read_text(), flags=re.DOTALL))
    before = ran.notebook()
    assert "mystnb" in code_cells(before)[-1].metadata
    assert ran.again("good")["good"].status == "prose"
    after = ran.notebook()
    assert "The measured gap is" in "".join(cell.source for cell in after.cells)
    assert [cell.outputs for cell in code_cells(after)] == [cell.outputs for cell in code_cells(before)]
    assert {"mystnb", "papermill"} & set(code_cells(after)[-1].metadata) == {"papermill"}, "a caption goes, too"
    assert after.metadata["sslbook"]["parts"] == before.metadata["sslbook"]["parts"]
    nbformat.validate(after)
    assert ran.again("good")["good"].status == "cached"


def test_a_worker_that_breaks_does_not_lose_the_others(write_book, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(good="<<1>>", other="<<2>>")
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda at_once, **named: ThreadPoolExecutor(at_once))
    monkeypatch.setattr(module, "_run", lambda job: Outcome("other", "executed") if job.name == "other" else 1 / 0)
    outcomes = execute(book, choose(find_chapters(book), []), QUICK, say=lambda line: None)
    assert {o.chapter: (o.status, o.error) for o in outcomes} == {
        "good": ("failed", "ZeroDivisionError: division by zero"),
        "other": ("executed", ""),
    }


def test_a_change_in_an_imported_module_runs_the_chapter_again(ran: Ran) -> None:
    (ran.book.root / "tinylib" / "core.py").write_text("value = 2.0\n")
    assert ran.again("good")["good"].status == "executed"
    assert any("tinylib/core.py changed" in line for line in ran.said)
    assert {number.name: number.value for number in numbers(ran.notebook())}["core"] == 2.0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import time; time.sleep(60)", "longer than 3 s"),
        ("import os; os._exit(0)", "the kernel died"),
    ],
)
def test_a_cell_that_does_not_end_and_those_behind_it_have_failed(tmp_path: Path, source: str, reason: str) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in ("1", source, "2", "3")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    with module.environment() as environment, pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "IPYTHONDIR", "JUPYTER_PATH", "PYTHONPATH"):  # the kernel's first line is of this package
            patch.setenv(name, environment[name])
        seconds = 3 if "sleep" in source else 60
        result, failures = module.run(
            notebook, partial=tmp_path / "p.ipynb", folder=tmp_path, cell_seconds=seconds, values={}
        )
    told = {failure.source: failure.reason for failure in failures}
    assert set(told) <= {source, "2", "3"}
    assert any(reason in text for text in told.values())
    assert any(text.startswith("it did not run") for text in told.values())
    assert any(output.output_type == "error" for cell in result.cells for output in cell.get("outputs", ()))


def test_what_a_cell_writes_to_stderr_is_noted() -> None:
    output = nbformat.v4.new_output("stream", name="stderr", text="UserWarning: look\nmore\n")
    cells = [nbformat.v4.new_markdown_cell("a"), nbformat.v4.new_code_cell("b", outputs=[output])]
    assert stderr_notes(nbformat.v4.new_notebook(cells=cells)) == ["cell 1 wrote to stderr: UserWarning: look"]


def test_code_cells_without_a_header_are_refused(write_book) -> None:
    book = write_book(good="")
    (book.chapters / "plain.md").write_text("# Plain\n\n```{code-cell}\n1\n```\n")
    with pytest.raises(ValueError, match=r"plain.md: it has code cells but no Jupytext header"):
        find_chapters(book)


SHELL_CHAPTER = """
<<import builtins, json, os, sys
import matplotlib
print(json.dumps(sorted(os.environ)))
measure("startup", int(hasattr(builtins, "started")), atol=0)
measure("whiskers", matplotlib.rcParams["boxplot.whiskers"], atol=0)
measure("flags", sys.flags.utf8_mode - sys.flags.hash_randomization - sys.flags.optimize, atol=0)>>
"""
FAILS = '<<assert 1 == 2, "this must stop the build">>\n'
OWN = {
    *("JUPYTER_PATH", "IPYTHONDIR", "JUPYTER_PLATFORM_DIRS", "MATPLOTLIBRC", "MPLBACKEND", "CUBLAS_WORKSPACE_CONFIG"),
    *(
        "SSLBOOK_THREADS",
        "SSLBOOK_LEDGER",
        "SSLBOOK_LENIENT",
        "SSLBOOK_DATA",
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "PYTHONUTF8",
    ),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("JPY_PARENT_PID", "LC_CTYPE", "TERM", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "PAGER", "GIT_PAGER", "PWD"),
    *("PYDEVD_USE_FRAME_EVAL", "MPLBACKEND", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"),
}
"""What we set, and what Jupyter, Python and the libraries set for themselves."""


def hostile(folder: Path) -> dict[str, str]:
    """What a shell may have set, with files that would be noticed."""
    started = "import builtins; builtins.started = True\n"
    startup = folder / "ipython/profile_default/startup/00.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(started)
    (folder / "startup.py").write_text(started)
    (folder / "matplotlibrc").write_text("boxplot.whiskers: 9\n")
    return {
        **dict.fromkeys(("PYTHONOPTIMIZE", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "PYTHONDEVMODE"), "1"),
        **dict.fromkeys(("PYTORCH_JIT", "KMP_AFFINITY", "SSLBOOK_LENIENT", "JPY_SESSION_NAME", "https_proxy"), "0"),
        **dict.fromkeys(("MATPLOTLIBRC", "MPLCONFIGDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"), str(folder)),
        "JUPYTER_RUNTIME_DIR": str(folder / "startup.py/none"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONSTARTUP": str(folder / "startup.py"),
        "PYTHONWARNINGS": "error",
        "PYTHONHASHSEED": "7",
        "PYTHONUTF8": "0",
        "MPLBACKEND": "none",
        "CUBLAS_WORKSPACE_CONFIG": ":16:8",
        "LC_ALL": "tr_TR.ISO-8859-9",
        "TZ": "Asia/Tokyo",
    }


def test_no_variable_of_the_shell_changes_a_chapter_or_what_it_checks(
    write_book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = write_book(good=SHELL_CHAPTER, fails=FAILS)
    chapters = choose(find_chapters(book), ["good", "fails"])

    def parts() -> list[dict[str, str]]:
        return [module.key_parts(book, chapter, scale="quick", seed=0, device="cpu") for chapter in chapters]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path / "images"))
    before = parts()
    for name, value in hostile(tmp_path / "theirs").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SSLBOOK_DATA", "images")  # the same folder, said otherwise
    good, fails = execute(book, chapters, QUICK, jobs=2, say=lambda line: None)
    assert good.error == ""
    assert "this must stop the build" in fails.error
    found = {number.name: number.value for number in read_numbers(book, "good", "quick")}
    assert found == {"startup": 0, "whiskers": 1.5, "flags": 1}
    told = json.loads(book.executed("quick").joinpath("good.ipynb").read_text())["cells"][-1]["outputs"]
    names = next(json.loads(line) for output in told for line in output.get("text", ()) if line.startswith('["'))
    assert set(names) - OWN <= {*module.PASSED, *module.PROCESSOR}
    assert parts() == before


@pytest.mark.parametrize("how", [["-O"], ["-OO"], []])
def test_a_chapter_does_not_begin_where_assertions_are_left_out(how: list[str]) -> None:
    """A reader's kernel is started by whatever they use."""
    environment = os.environ | ({} if how else {"PYTHONOPTIMIZE": "1"})
    code = "from sslchapters import begin; begin('covariance')"
    done = subprocess.run(
        [sys.executable, *how, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "RuntimeError: this Python leaves out assertions, and so the book's checks" in done.stderr


HOLDS = """
import sys, time
from pathlib import Path
from bookbuild.commands import alone
from bookbuild.layout import Book
with alone(Book(Path(sys.argv[1])), "build"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_of_the_first(
    holder: subprocess.Popen, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sentence = rf"_build is being written by sslbook build, process {holder.pid}, since \d\d:\d\d:\d\d; wait for it"
    with pytest.raises(InputError, match=sentence), alone(Book(tmp_path), "execute"):
        pass
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: chapters/intro\n")
    (tmp_path / "chapters/intro.md").write_text("# One\n")
    for command in ("execute", "build"):
        assert cli.main([command, "--root", str(tmp_path)]) == 2
        assert re.search(sentence, capsys.readouterr().err)


def test_who_dies_holds_nothing(holder: subprocess.Popen, tmp_path: Path) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    ours = rf"sslbook execute, process {os.getpid()}"
    with alone(Book(tmp_path), "execute"), pytest.raises(InputError, match=ours), alone(Book(tmp_path), "build"):
        pass
    with alone(Book(tmp_path), "build"):
        pass
