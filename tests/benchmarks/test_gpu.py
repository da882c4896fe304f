"""``sslbook gpu``: its plan and its clock."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from benchmarks.gpu import STEPS, Step, work_through
from sslbook import cli
from sslbook.training.papers import run_of
from sslchapters import commands


def test_the_plan_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Presets, tables and records by their names."""
    for line in (line for step in STEPS for line in step.commands if line.startswith("sslbook ")):
        kind, name, *rest = shlex.split(line)[1:]
        known = {"table": commands.TABLES, "record": commands.RECORDERS}.get(kind, {name: ""})
        assert name in known
        assert kind != "train" or run_of(name, seed=int(rest[1]), epochs=int(rest[3]))
    assert cli.main(["gpu", "--plan", "--minutes", "10"]) == 0
    assert "not all of it in this time" in capsys.readouterr().out


def test_each_step_has_its_turn_until_the_clock_stops_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick, slow = "timeit -n 1 -r 1 pass", "timeit -n 1 -r 1 'import time; time.sleep(600)'"
    plan = [Step(name, name, 1.0, lines) for name, lines in {"well": (quick,), "bad": ("timeit -x", quick)}.items()]
    assert work_through(plan, time.monotonic() + 300, tmp_path, again=False) == 1
    assert work_through([*plan[:1], Step("slow", "", 1.0, (slow,))], time.monotonic() + 3, tmp_path, again=False) == 0
    told = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines() if not line.startswith("To carry")]
    assert told == ["well: done", "bad: exit status 2", "well: done already", "slow: stopped by the clock"]
