"""``tools/mutants.py``: who is asked about a change, and what is said of those that nobody noticed; it is run weekly."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from tool_cases import tool

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def mutants() -> ModuleType:
    return tool("mutants")


def test_the_tests_of_a_module_are_asked_and_its_own_come_first(mutants: ModuleType) -> None:
    asked = [path.name for path in mutants.concerned(ROOT / "sslbook/gaps.py", ROOT)]
    assert asked[0] == "test_gaps.py"
    assert "test_house.py" not in asked
    assert mutants.concerned(ROOT / "sslbook/chapters/byol/ema.py", ROOT)[0].name.startswith("test_byol")


def test_every_module_has_a_test_that_is_asked(mutants: ModuleType) -> None:
    modules = [path for path in (ROOT / "sslbook").rglob("*.py") if path.stat().st_size > 200]
    assert [str(path) for path in modules if not mutants.concerned(path, ROOT)] == []


def test_the_chapters_that_use_a_module_are_asked(mutants: ModuleType) -> None:
    assert mutants.chapters_of(ROOT / "sslbook/chapters/byol/ema.py", ROOT) == ["byol"]
    assert {"covariance", "operators_today", "training"} <= set(
        mutants.chapters_of(ROOT / "sslbook/operators.py", ROOT)
    )


def test_annotations_are_passed_over(mutants: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def f(x: int | None) -> int:\n    return x | 1\n\n\ny: int | str = 1 | 2\n")
    assert mutants.annotated(file) == {1, 5}


def test_what_survives_is_shown_unless_it_is_explained(mutants: ModuleType) -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-    a < b\n+    a <= b\n"
    found = [{"files": ["x.py"], "by": "tests", "diff": ""}] * 18 + [{"files": ["x.py"], "by": "byol", "diff": ""}]
    table, good = mutants.report([*found, {"files": ["x.py"], "by": "", "diff": diff}], {})
    assert good
    assert "caught by tests       18 of 20  90.0%" in table
    assert "and by a chapter       1 of 20  together 95.0%" in table
    assert table.endswith("survived: x.py\n-    a < b\n+    a <= b")
    table, good = mutants.report(
        [*found, {"files": ["x.py"], "by": "", "diff": diff}], {"-    a < b\n+    a <= b": "equal"}
    )
    assert "18 of 19" in table
    assert "survived" not in table
    assert not mutants.report([{"files": [], "by": "", "diff": diff}], {})[1]


def test_what_survived_is_judged_once_more_at_the_checkouts_commit(mutants: ModuleType, tmp_path: Path) -> None:
    home, clone, folder = (tmp_path / name for name in ("home", "clone", "folder"))
    folder.mkdir()

    def git(where: Path, *words: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *name, *words], cwd=where, capture_output=True, text=True, check=True).stdout

    for name, text in {
        "sslbook/sums.py": "def twice(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n",
        "tests/test_sums.py": "from sslbook.sums import twice\n\n\ndef test_it() -> None:\n    assert twice(0) == 0\n",
        "sslbook/__init__.py": "",
        "chapters/one.md": "# One\n",
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    git(home, "init", "--quiet")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "-m", "one")
    git(tmp_path, "clone", "--quiet", "home", "clone")

    def changed(old: str, new: str) -> dict:
        file = clone / "sslbook/sums.py"
        file.write_text(file.read_text().replace(old, new))
        one = mutants.judge(clone, chapters=False)
        git(clone, "checkout", "--quiet", ".")
        return one

    found = [changed("2 * x", "3 * x"), changed("x / 2", "x / 3"), changed("2 * x", "2 + x")]
    assert [bool(one["by"]) for one in found] == [False, False, True]
    mutants.keep(folder, found)
    (home / "tests/test_sums.py").write_text(
        "from sslbook.sums import twice\n\n\ndef test_it() -> None:\n    assert twice(1) == 2\n"
    )
    git(home, "commit", "--quiet", "-a", "-m", "two")
    mutants.judge_again(clone, folder, chapters=False)
    again = list(mutants.outcomes(folder))
    assert [bool(one["by"]) for one in again] == [True, False, True]
    assert "test_sums.py::test_it" in again[0]["said"]
    assert [one["diff"] for one in again] == [one["diff"] for one in found]
    assert git(clone, "status", "--porcelain") == ""
