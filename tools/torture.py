#!/usr/bin/env python3
"""Attack the library and the book with all that is known, and count what gives way: ``python3 tools/torture.py``.

The attacks are tests, and `make test` makes a few of each; here they are told to try more (``SSLBOOK_TORTURE``), what they report
is added up, and the sums are written to ``data/torture.json``, which the page *How to reproduce* shows.  Where Cosmic Ray is
installed (``pip install cosmic-ray``), some changes of the library are tried as well, by ``tools/mutants.py``.
Some twenty minutes on two cores.  Exit status 1 if anything gave way.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "data/torture.json"
MUTANTS = 6
ATTACKS = {
    "hostile networks": ("test_guards.py::test_a_hostile_network_is_served_right_or_refused",),
    "hostile calls": ("test_hostile_calls.py",),
    "hostile command lines": ("test_cli_hostile.py",),
    "damaged and odd files": ("test_odd_files.py",),
    "full disks": ("test_no_room.py::test_a_full_disk_is_told_of_and_spoils_nothing",),
    "folders without leave": ("test_no_room.py::test_a_folder_without_leave_is_named",),
    **{f"kills: {kind}": (f"test_killed.py::{{test}}[{kind}]",) for kind in ("execute", "build", "record", "table")},
    "kills: train": (
        "test_killed.py::{test}[train]",
        "test_killed.py::{test}[ranks]",
        "test_training_resume.py::test_killed_twenty_times_and_still_the_same",
    ),
}
KILLED = "test_what_is_killed_and_called_again_ends_as_undisturbed"
"""Which tests make each attack, by the beginning of their names."""
COUNTED = ("tried", "silent", "tracebacks")
"""What a test may report of itself: inputs, wrong values that nobody was told of, errors that are not ours."""


class Count:
    """What pytest's reports add up to, by attack."""

    def __init__(self) -> None:
        self.sums: dict[str, Counter[str]] = {name: Counter() for name in ATTACKS}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test: its outcome, and what it says of itself."""
        name = attack_of(report.nodeid)
        if name is None or (report.when != "call" and report.outcome == "passed"):
            return
        told = {key: int(value) for key, value in report.user_properties if key in COUNTED}
        sums = self.sums[name]
        if report.outcome == "skipped":
            sums["skipped"] += 1
            return
        sums.update({"tried": 1} | told)
        if report.outcome == "failed":
            if not any(told.get(key) for key in COUNTED[1:]):  # it looked at one thing: a value, or an error
                told = {"silent" if _is_value(report) else "tracebacks": 1}
                sums.update(told)
            sums["gave way"] += sum(told.get(key, 0) for key in COUNTED[1:])


def _is_value(report: Any) -> bool:
    """Whether a test failed since something was not as it should be, and not by another error."""
    said = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
    return bool(said.startswith(("assert", "AssertionError", "Failed: DID NOT RAISE")))


def attack_of(nodeid: str) -> str | None:
    """The attack that a test makes, None for another test."""
    test = nodeid.removeprefix("tests/")
    for name, beginnings in ATTACKS.items():
        if any(test.startswith(beginning.format(test=KILLED)) for beginning in beginnings):
            return name
    return None


def rows(sums: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """A row for each attack: inputs tried, silent wrong values, tracebacks, and how many were survived."""
    return [
        {
            "attack": name,
            **{key: found.get(key, 0) for key in COUNTED},
            "survived": found.get("tried", 0) - found.get("gave way", 0),
            "skipped": found.get("skipped", 0),
        }
        for name, found in sums.items()
    ]


def attack(workers: int, only: Iterable[str]) -> tuple[list[dict[str, Any]], bool]:
    """Run the tests; the rows, and whether all passed."""
    import pytest

    os.environ["SSLBOOK_TORTURE"] = "1"
    count = Count()
    chosen = [beginning for name in only for beginning in ATTACKS[name]]
    files = sorted({f"tests/{beginning.partition('::')[0]}" for beginning in chosen})
    # The kills come last and take longest: who is idle takes them over.
    status = pytest.main(["-n", str(workers), "--dist", "worksteal", "-q", "--durations=15", *files], plugins=[count])
    return rows({name: count.sums[name] for name in only}), status == 0


def mutants(count: int, seed: int) -> dict[str, Any]:
    """What came of changes of the library; a sentence where Cosmic Ray is not here."""
    if importlib.util.find_spec("cosmic_ray") is None:
        return {"tried": 0, "caught": 0, "note": "No change of the library was tried: Cosmic Ray was not installed."}
    sys.path.insert(0, str(ROOT / "tools"))
    import mutants as tool

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "tools/mutants.py"), folder, "--count", str(count), "--seed", str(seed)]
        subprocess.run(command, check=False)
        found = list(tool.outcomes(Path(folder)))
    explained = tool.explanations()
    real = [one for one in found if one["by"] or tool.essence(one["diff"]) not in explained]
    return {"tried": len(real), "caught": sum(bool(one["by"]) for one in real), "note": ""}


def write(values: Mapping[str, Any], seconds: float, path: Path) -> None:
    """The file that the page shows, with where it comes from."""
    from sslbook.files import write_text
    from sslbook.records import origin

    provenance = asdict(origin(seeds=(0,), seconds=round(seconds), command="make torture", device="cpu"))
    del provenance["date"]  # the commit tells more
    content = {"name": "torture", "values": values, "provenance": provenance}
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="tests at once (default: 2)")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, help="these attacks, and nothing is written")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help=f"changes of the library (default: {MUTANTS})")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(ROOT)
    start = time.monotonic()
    found, good = attack(options.workers, options.only or ATTACKS)
    for row in found:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    if not options.only:
        changed = mutants(options.mutants, 0)
        print(f"mutants: {changed}")
        write({"attacks": found, "mutants": changed}, time.monotonic() - start, OUT)
        good = good and changed["caught"] == changed["tried"]
        print(f"Written: {OUT}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
