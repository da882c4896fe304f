"""Execution in real kernels: what passes, what fails, what is kept and why; the same under every shell; one command at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import nbformat
import pytest
from conftest import make_book

from bookbuild import execute as module
from bookbuild import kernel
from bookbuild.commands import alone
from bookbuild.execute import Outcome, execute, key_parts
from bookbuild.layout import Book, Setting, choose, code_cells, find_chapters
from sslbook import cli
from sslbook._check import InputError
from sslchapters.values import numbers

GOOD = """
The gap is {glue:text}`gap:.1e`.

<<import builtins, os, sys
import matplotlib, numpy as np
from tinylib import core
claim("gap", np.float64(1e-15), below=1e-12, rejects={"sign": 1.0}, id="A-Thm1")
measure("n", run.pick(quick=2, paper=20))
measure("core", core.value)
measure("strange", len([name for name in os.environ if name in ("PYTHONSTARTUP", "TZ", "LC_ALL", "https_proxy")]))
measure("startup", int(hasattr(builtins, "started")))
measure("whiskers", matplotlib.rcParams["boxplot.whiskers"])
measure("flags", sys.flags.utf8_mode - sys.flags.hash_randomization - sys.flags.optimize);>>
"""
BAD = """
<<claim("gap", 1e-3, below=1e-12, rejects={"sign": 1.0}, id="A-Thm1")>>

<<import sys
sys.exit()>>

<<unknown + 1>>

<<assert 1 == 2, "PYTHONOPTIMIZE would pass over this">>

<<measure("behind", 1.0)>>
"""
QUICK = Setting("quick", 0, "cpu")
SHELL = {
    **dict.fromkeys(("PYTHONOPTIMIZE", "PYTHONDEVMODE", "PYTHONHASHSEED"), "1"),
    **dict.fromkeys(("SSLBOOK_LENIENT", "JPY_SESSION_NAME", "https_proxy", "PYTHONUTF8"), "0"),
    **dict.fromkeys(("MATPLOTLIBRC", "MPLCONFIGDIR", "JUPYTER_CONFIG_DIR"), "theirs"),
    "PYTHONWARNINGS": "error",
    "MPLBACKEND": "none",
    "LC_ALL": "tr_TR.ISO-8859-9",
    "TZ": "Asia/Tokyo",
    "IPYTHONDIR": "theirs/ipython",
    "PYTHONSTARTUP": "theirs/ipython/profile_default/startup/00.py",
}
"""What a shell may hold; names of files are of the book's folder."""


class Ran:
    """A book, and its chapters' outcomes after the last call of `again`."""

    def __init__(self, book: Book) -> None:
        self.book, self.said = book, list[str]()
        self.outcomes = self.again()

    def again(self, *names: str, shell: Mapping[str, str] = SHELL) -> dict[str, Outcome]:
        self.said.clear()
        chapters = choose(find_chapters(self.book), names)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in shell.items():
                patch.setenv(name, value.replace("theirs", f"{self.book.root}/theirs"))
            return {o.chapter: o for o in execute(self.book, chapters, QUICK, jobs=2, say=self.said.append)}

    def notebook(self, name: str = "good") -> nbformat.NotebookNode:
        return nbformat.read(self.book.executed("quick") / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One execution of two chapters, in a shell full of variables, where the ``python3`` kernel belongs to someone else."""
    root = tmp_path_factory.mktemp("book")
    for name, text in {
        "tinylib/__init__.py": "",
        "tinylib/core.py": "value = 1.0\n",
        SHELL["PYTHONSTARTUP"]: "import builtins; builtins.started = True\n",
        "theirs/matplotlibrc": "boxplot.whiskers: 9\n",
        "foreign/kernels/python3/kernel.json": '{"argv": ["/bin/false"], "display_name": "Theirs", "language": "python"}',
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    book = make_book(root, packages=(root / "tinylib",), good=GOOD, bad=BAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
        patch.setenv("JUPYTER_PATH", str(root / "foreign"))
        yield Ran(book)


def test_the_numbers_are_in_the_notebook_and_glued_as_myst_nb_reads_them(ran: Ran) -> None:
    assert {name: outcome.status for name, outcome in ran.outcomes.items()} == {"good": "executed", "bad": "failed"}
    notebook = ran.notebook()
    found = {number.name: number for number in numbers(notebook)}
    own = {"gap": 1e-15, "n": 2, "core": 1.0}
    shell = {"strange": 0, "startup": 0, "whiskers": 1.5, "flags": 1}
    assert {name: number.value for name, number in found.items()} == own | shell, "no variable of the shell changes one"
    assert (found["gap"].id, found["gap"].below, found["gap"].rejects) == ("A-Thm1", 1e-12, {"sign": 1.0})
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", ()) if "scrapbook" in o.metadata]
    glued = {o.metadata["scrapbook"]["name"]: o.data["application/papermill.record/text/plain"] for o in outputs}
    assert glued.items() >= {"gap": "1e-15", "n": "2", "core": "1.0"}.items()
    assert [notebook.metadata["sslbook"][part] for part in ("chapter", "scale", "seed")] == ["good", "quick", 0]
    nbformat.validate(notebook)


def test_what_fails_leaves_its_mark_and_the_cells_behind_it_run(ran: Ran) -> None:
    error = ran.outcomes["bad"].error
    lines = (ran.book.chapters / "bad.md").read_text().splitlines()
    leaves, raises = (lines.index(line) + 1 for line in ("import sys", "unknown + 1"))
    assert f"chapters/bad.md:{leaves}: this cell failed: SystemExit" in error, "a notebook that leaves early has failed"
    assert f"chapters/bad.md:{raises}: this cell failed: NameError: name 'unknown' is not defined" in error
    assert "this cell failed: AssertionError: PYTHONOPTIMIZE would pass over this" in error
    found = {number.name: number for number in numbers(ran.notebook("bad"))}
    assert found["gap"].failure == "0.001 is not ≤ 1e-12", "a check that fails stops nothing"
    assert found["behind"].value == 1.0
    record = ran.notebook("bad").metadata["sslbook"]
    assert (len(record["failed"]), "parts" in record) == (3, False), "it is executed again"


def test_what_has_not_changed_is_kept_and_new_prose_keeps_the_outputs(ran: Ran) -> None:
    before, path = ran.notebook(), ran.book.chapters / "good.md"
    for shell in (SHELL, {}):
        assert ran.again("good", shell=shell)["good"].status == "cached"
    path.write_text(path.read_text().replace("The gap is", "New paragraph.\n\nThe measured gap is"))
    assert ran.again("good")["good"].status == "prose"
    after = ran.notebook()
    assert "The measured gap is" in "".join(cell.source for cell in after.cells)
    assert [cell.outputs for cell in code_cells(after)] == [cell.outputs for cell in code_cells(before)]
    assert ran.again("good")["good"].status == "cached"
    (ran.book.root / "tinylib/core.py").write_text("value = 2.0\n")
    assert ran.again("good")["good"].status == "executed"
    assert any("tinylib/ changed" in line for line in ran.said)
    assert {number.name: number.value for number in numbers(ran.notebook())}["core"] == 2.0


@pytest.fixture
def book(write_book, tmp_path: Path) -> Book:
    """A book whose library has a folder for each of two chapters, and whose chapter names one of them."""
    library = tmp_path / "sslchapters"
    for folder in ("tree", "ring"):
        (library / folder).mkdir(parents=True)
        (library / folder / "checks.py").write_text("x = 1\n")
    (library / "claims.py").write_text("def f():\n    return 1\n")
    return write_book(packages=(library,), good="<<from sslchapters.tree import checks\nchecks.f()>>Prose.\n")


@pytest.mark.parametrize(
    ("path", "old", "new", "moved"),
    [
        ("sslchapters/claims.py", "1", "2", "sslchapters/"),
        ("sslchapters/tree/checks.py", "1", "2", "sslchapters/tree"),
        ("sslchapters/ring/checks.py", "1", "2", None),  # another chapter's
        ("chapters/good.md", "checks.f()", "checks.f();", "its code"),
        ("chapters/good.md", "Prose", "Better prose", None),
        ("requirements.lock", "", "torch==2\n", "the lock file"),
        ("data/results/one.json", "", "{}", "recorded runs and printed tables"),
        ("data/claims.yml", "Later", "Sooner", None),
    ],
)
def test_what_moves_the_key(path: str, old: str, new: str, moved: str | None, book: Book) -> None:
    def parts() -> dict[str, str]:
        return key_parts(book, find_chapters(book)[0], QUICK)

    before, file = parts(), book.root / path
    file.write_text(file.read_text().replace(old, new) if file.exists() else new)
    assert [name for name, part in parts().items() if part != before.get(name)] == ([moved] if moved else [])


def test_settings_versions_images_and_what_changes_roundings_move_the_key(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chapter, batch = find_chapters(book)[0], tmp_path / "images/cifar-10-batches-py/data_batch_1"
    settings = [QUICK, Setting("paper", 0, "cpu"), Setting("quick", 1, "cpu"), Setting("quick", 0, "cuda")]
    found = [key_parts(book, chapter, setting) for setting in settings]
    batch.parent.mkdir(parents=True)
    batch.write_bytes(b"pixels")
    shell = {**dict.fromkeys(kernel.KEYED, "2"), "PYTHONPATH": "/x", "SSLBOOK_DATA": f"{tmp_path}/images"}
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
        found.append(key_parts(book, chapter, QUICK))
    monkeypatch.setattr(module, "version", lambda name: "0")
    found.append(key_parts(book, chapter, QUICK))
    assert all(one != other for index, one in enumerate(found) for other in found[:index])


@pytest.mark.parametrize(
    ("source", "reason"),
    [("import time; time.sleep(60)", "longer than 3 s"), ("import os; os._exit(0)", "the kernel died")],
)
def test_a_cell_that_does_not_end_and_those_behind_it_have_failed(tmp_path: Path, source: str, reason: str) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in ("1", source, "2", "3")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with kernel.environment() as given:
        failures = kernel.run(notebook, given, folder=tmp_path, cell_seconds=3 if "sleep" in source else 60)
    told = {source: reason for reason, source in failures}
    assert set(told) <= {source, "2", "3"}
    assert any(reason in text for text in told.values())
    assert any(text.startswith("it did not run") for text in told.values())


def test_code_cells_without_a_header_are_refused(write_book) -> None:
    book = write_book(good="")
    (book.chapters / "plain.md").write_text("# Plain\n\n```{code-cell}\n1\n```\n")
    with pytest.raises(InputError, match=r"plain.md: it has code cells but no Jupytext header"):
        find_chapters(book)


def test_the_template_of_a_chapter_runs(write_book) -> None:
    book = write_book(template="")
    text = (Path(__file__).parents[2] / "tools/chapter_template.md").read_text(encoding="utf-8")
    (book.chapters / "template.md").write_text(text, encoding="utf-8")
    (outcome,) = execute(book, find_chapters(book), QUICK, say=lambda line: None)
    assert outcome.error == ""


def test_the_second_command_is_told_of_the_first(write_book, capsys: pytest.CaptureFixture) -> None:
    book = write_book(good="<<1>>")
    with alone(book):
        for command in ("execute", "build"):
            assert cli.main([command, "--root", str(book.root)]) == 2
            assert "_build is being written by another command; wait" in capsys.readouterr().err
