"""tools/versions.py: what it asks uv for, what it reads in pytest's last line, what it leaves alone."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from tool_cases import tool

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def versions() -> ModuleType:
    return tool("versions")


def test_it_tries_every_python_that_the_package_names(versions: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert list(versions.PYTHONS) == named
    assert project["requires-python"] == f">={versions.PYTHONS[0]}"


def test_each_kind_asks_uv_for_other_versions(versions: ModuleType) -> None:
    asked = {kind: versions.requirements(versions.Case(kind, "3.12")) for kind in versions.KINDS}
    assert "lowest-direct" in asked["oldest"]
    assert "highest" in asked["newest"]
    assert str(versions.LOCK) in asked["locked"]
    assert "--resolution" not in asked["locked"]
    for kind in ("oldest", "newest"):
        assert str(ROOT / "pyproject.toml") in asked[kind], "the ranges"
        assert "--all-extras" in asked[kind]


def test_a_torch_that_is_asked_for_is_held_and_named(versions: ModuleType) -> None:
    case = versions.Case("newest", "3.12", "2.11.0")
    assert versions.requirements(case)[-1] == "torch==2.11.0"
    assert case.name != versions.Case("newest", "3.12").name


@pytest.mark.parametrize(
    ("summary", "counted"),
    [
        ("1300 passed, 20 skipped, 57 deselected in 512.30s (0:08:32)", "1300/0/20"),
        ("3 failed, 10 passed, 2 errors in 1.00s", "10/5/0"),
        ("ImportError: No module named torch", "ImportError: No module named torch"),
        ("", "no tests"),
    ],
)
def test_the_last_line_of_pytest_is_counted(versions: ModuleType, summary: str, counted: str) -> None:
    assert versions.counts(summary) == counted


def test_the_table_has_a_line_for_each_case_installed_or_not(versions: ModuleType) -> None:
    numbers = tuple(f"{n}.0" for n in range(len(versions.SHOWN)))
    good = versions.Outcome(versions.Case("oldest", "3.11"), True, "5/0/1", "as expected", numbers)
    bad = versions.Outcome(versions.Case("newest", "3.13"), False, "not installed")
    head, first, second = versions.table([good, bad]).splitlines()
    assert first.index("5/0/1") == second.index("not installed") == head.index("tests")
    assert all(number in first for number in numbers)


def test_a_wheel_on_disk_is_offered_to_uv(versions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    assert versions.surroundings()["UV_FIND_LINKS"] == "/a,/b"
    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    assert versions.surroundings()["UV_FIND_LINKS"] == "/mine"
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert "UV_FIND_LINKS" not in versions.surroundings()


def test_a_python_that_is_missing_is_no_failure_but_nothing_tried_is(
    versions: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "find_uv", lambda: ["uv"])
    monkeypatch.setattr(versions, "torch_source", list)
    monkeypatch.setattr(versions, "find_python", lambda version: sys.executable if version == "3.11" else None)
    monkeypatch.setattr(versions, "make", lambda case, *rest: (sys.executable, tmp_path / case.name))
    monkeypatch.setattr(versions, "tried", lambda case, *rest: versions.Outcome(case, case.kind != "locked", "1/0/0"))
    assert versions.main([str(tmp_path), "--kind", "oldest"]) == 0
    assert "oldest-3.13: skipped: there is no Python 3.13" in capsys.readouterr().out
    assert versions.main([str(tmp_path), "--kind", "oldest", "--python", "3.13"]) == 1
    assert versions.main([str(tmp_path), "--python", "3.11"]) == 1, "one kind failed"


def test_the_lock_takes_no_other_torch(
    versions: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "find_uv", lambda: ["uv"])
    with pytest.raises(SystemExit) as stopped:
        versions.main([str(tmp_path), "--torch", "2.11.0"])
    assert stopped.value.code == 2
    assert "--torch: got 2.11.0, but the lock holds a torch of its own" in capsys.readouterr().err


def test_a_folder_that_is_no_environment_is_left_alone(versions: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(versions.Failed, match="is no virtual environment: it is left alone"):
        versions.make(versions.Case("oldest", "3.11"), sys.executable, tmp_path, ["uv"], [])
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
