"""``tools/mutants.py``: who is asked about a change, and what is said of those that nobody noticed; it is run weekly."""

from __future__ import annotations

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
