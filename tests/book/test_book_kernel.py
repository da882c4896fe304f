"""What a chapter does, and what is checked, is the same under every shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sslbook.book import cache, kernel
from sslbook.book.chapters import choose, find_chapters
from sslbook.book.execute import Setting, execute
from sslbook.book.regression import read_numbers

CHAPTER = """
<<import builtins, json, os, sys
import matplotlib
print(json.dumps(sorted(os.environ)))
measure("startup", int(hasattr(builtins, "started")), atol=0)
measure("whiskers", matplotlib.rcParams["boxplot.whiskers"], atol=0)
measure("flags", sys.flags.utf8_mode - sys.flags.hash_randomization - sys.flags.optimize, atol=0)>>
"""
FAILS = '<<assert 1 == 2, "this must stop the build">>\n'
UNCLAIMED = '<<claim("gap", 1.0, below=0.5, rejects={"sign": 2.0}, id=None)>>\n'
OWN = {
    *("JUPYTER_PATH", "IPYTHONDIR", "JUPYTER_PLATFORM_DIRS", "MATPLOTLIBRC", "MPLBACKEND", "CUBLAS_WORKSPACE_CONFIG"),
    *(
        "SSLBOOK_THREADS",
        "SSLBOOK_LEDGER",
        "SSLBOOK_DATA",
        "SSLBOOK_READS",
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
        **dict.fromkeys(("PYTORCH_JIT", "TORCH_LOGS", "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_DYNAMIC"), "0"),
        **dict.fromkeys(("SSLBOOK_LENIENT", "JPY_SESSION_NAME", "COLAB_RELEASE_TAG", "https_proxy", "COLUMNS"), "20"),
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
        "SEABORN_DATA": str(folder),
    }


def test_no_variable_of_the_shell_changes_a_chapter_or_what_it_checks(
    write_book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = write_book(good=CHAPTER, fails=FAILS, unclaimed=UNCLAIMED)
    chapters = choose(find_chapters(book), ["good", "fails", "unclaimed"])
    setting = Setting("quick", 0, "cpu", 120)

    def parts() -> list[cache.Parts]:
        return [cache.key_parts(book, chapter, scale="quick", seed=0, device="cpu") for chapter in chapters]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path / "images"))
    before = parts()
    for name, value in hostile(tmp_path / "theirs").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SSLBOOK_DATA", "images")  # the same folder, said otherwise
    good, fails, unclaimed = execute(book, chapters, setting, jobs=2, say=lambda line: None)
    assert good.error == ""
    assert "this must stop the build" in fails.error
    assert "gap" in unclaimed.error
    found = {number.name: number.value for number in read_numbers(book, "good", "quick")}
    assert found == {"startup": 0, "whiskers": 1.5, "flags": 1}
    told = json.loads(book.executed("quick").joinpath("good.ipynb").read_text())["cells"][-1]["outputs"]
    names = next(json.loads(line) for output in told for line in output.get("text", ()) if line.startswith('["'))
    assert set(names) - OWN <= set(kernel.PASSED)
    assert parts() == before


def test_what_stands_in_for_another_processor_and_what_the_path_adds_is_in_the_key(
    write_book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = write_book(good="<<1>>")
    (chapter,) = find_chapters(book)

    def key() -> str:
        return cache.key(cache.key_parts(book, chapter, scale="quick", seed=0, device="cpu"))

    keys = [key()]
    for name in ("SSLBOOK_THREADS", *kernel.PROCESSOR):
        monkeypatch.setenv(name, "2")
        keys.append(key())
    for change in ("", "x = 1\n"):
        (tmp_path / "numpy.py").write_text(change)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        keys.append(key())
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("how", [["-O"], ["-OO"], []])
def test_a_chapter_does_not_begin_where_assertions_are_left_out(how: list[str]) -> None:
    """A reader's kernel is started by whatever they use."""
    environment = os.environ | ({} if how else {"PYTHONOPTIMIZE": "1"})
    code = "from sslbook.book import begin; begin('covariance')"
    done = subprocess.run(
        [sys.executable, *how, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "RuntimeError: this Python leaves out assertions, and so the book's checks" in done.stderr
