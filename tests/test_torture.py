"""``tools/torture.py``: what is counted, and the table that the page shows; `make torture` runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tool_cases import tool

from sslbook.arguments import InputError
from sslbook.book import attacks, machines
from sslbook.book.layout import Book

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def torture() -> ModuleType:
    return tool("torture")


def report(nodeid: str, outcome: str = "passed", when: str = "call", said: str = "", **told: int) -> Any:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message=said))
    return SimpleNamespace(
        nodeid=f"tests/{nodeid}", outcome=outcome, when=when, longrepr=crash, user_properties=list(told.items())
    )


NETWORK = "test_guards.py::test_a_hostile_network_is_served_right_or_refused[tied-0]"
CALL = "test_hostile_calls.py::test_every_call_is_answered_by_us[mlp]"


def test_what_tests_tell_is_added_up(torture: ModuleType) -> None:
    count = torture.Count()
    for given in (
        report(NETWORK, when="setup"),
        report(NETWORK),
        report(NETWORK, "failed", said="assert 0.5 < 1e-12"),
        report(NETWORK, "failed", said="RuntimeError: of torch"),
        report(CALL, tried=40, silent=0, tracebacks=0),
        report(CALL, "failed", tried=60, silent=1, tracebacks=2, said="AssertionError"),
        report("test_guards.py::test_there_are_enough_of_them"),
        report("test_killed.py::test_what_is_killed_and_called_again_ends_as_undisturbed[build]", tried=20),
        report("test_no_room.py::test_a_full_disk_is_told_of_and_spoils_nothing[build]", "skipped", "setup"),
    ):
        count.pytest_runtest_logreport(given)
    rows = {row["attack"]: row for row in torture.rows(count.sums)}
    assert rows["hostile networks"] == {
        "attack": "hostile networks",
        "tried": 3,
        "silent": 1,
        "tracebacks": 1,
        "survived": 1,
        "skipped": 0,
    }
    assert (rows["hostile calls"]["tried"], rows["hostile calls"]["survived"]) == (100, 97)
    assert (rows["kills: build"]["tried"], rows["kills: execute"]["tried"]) == (20, 0)
    assert (rows["full disks"]["tried"], rows["full disks"]["skipped"]) == (0, 1)


def test_every_attack_is_a_test_that_is_there(torture: ModuleType) -> None:
    for beginnings in torture.ATTACKS.values():
        for beginning in beginnings:
            file, _, test = beginning.format(test=torture.KILLED).partition("::")
            assert f"def {test.partition('[')[0]}" in (ROOT / "tests" / file).read_text(encoding="utf-8")


FOUND = {
    "values": {
        "attacks": [{"attack": "hostile calls", "tried": 1234, "silent": 0, "tracebacks": 1, "survived": 1233}],
        "mutants": {"tried": 6, "caught": 6, "note": ""},
    },
    "provenance": {"commit": "0123456789abcdef+changes", "seconds": 1500, "versions": {"python": "3", "torch": "2"}},
}


def test_the_page_shows_the_table(tmp_path: Path) -> None:
    (tmp_path / "chapters").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "chapters/reproduce.md").write_text(f"{machines.PLACE}\n\n{attacks.PLACE}\n")
    book = Book(tmp_path)
    assert "Nothing has been counted yet." in machines.pages(book)["chapters/reproduce"]
    (tmp_path / "data/torture.json").write_text(json.dumps(FOUND))
    page = machines.pages(book)["chapters/reproduce"]
    assert "| hostile calls | 1,234 | 0 | 1 | 1,233 |" in page
    assert "Commit `0123456789`, Python 3, torch 2, 25 minutes. Of 6 changes of the library, tests caught 6." in page
    for wrong in ("", "[]", '{"values": {}}'):
        (tmp_path / "data/torture.json").write_text(wrong)
        with pytest.raises(InputError, match=r"torture\.json: not what make torture writes"):
            machines.pages(book)


def test_the_books_page_has_a_place_for_it() -> None:
    assert (ROOT / "chapters/reproduce.md").read_text(encoding="utf-8").count(attacks.PLACE) == 1
    assert re.search(r"^torture: .*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_what_is_written_has_no_date(torture: ModuleType, tmp_path: Path) -> None:
    torture.write(FOUND["values"], 1.0, tmp_path / "torture.json")
    written = json.loads((tmp_path / "torture.json").read_text())
    assert written["values"] == FOUND["values"]
    assert "date" not in written["provenance"]
    assert {"commit", "hardware", "versions", "seconds", "command"} <= set(written["provenance"])
