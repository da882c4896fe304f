"""``sslbook gpu``: what its plan names is there, its clock stops what can go on, and its records find their place in the book."""

from __future__ import annotations

import json
import shlex
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import RECORDS, STEPS, Step, merge, work_through
from sslbook import cli
from sslbook._check import InputError
from sslbook.training.presets.papers import run_of
from sslchapters import catalogue
from sslchapters import records as store
from sslchapters.records import recorded, save_record
from sslchapters.training.full_runs import recorded_values
from sslchapters.training.paper_tables import paper_tables

RUN = "cifar10-simclr-nce"


def test_the_plan_names_what_there_is() -> None:
    """Presets, tables and records by their names; and of each table the cells that it trains, each in its record at once."""
    made: dict[str, set[str]] = {}
    words = [shlex.split(line)[1:] for step in STEPS for line in step.commands if line.startswith("sslbook ")]
    for kind, name, *rest in words:
        made.setdefault(kind, set()).add(name)
        if kind == "train":
            assert run_of(name, seed=int(rest[1]), epochs=int(rest[3]))
    assert made["table"] <= catalogue.TABLES.keys()
    assert made["record"] <= catalogue.RECORDERS.keys()
    cells = {cell.preset for table in RECORDS if table in paper_tables() for cell in paper_tables()[table].cells}
    assert made["train"] == {preset for preset in cells if preset.startswith("cifar10-")}
    assert made["table"] | made["record"] >= set(RECORDS)
    assert len({step.name for step in STEPS}) == len(STEPS)


def status(arguments: list[str]) -> int | str | None:
    try:
        return cli.main(["gpu", *arguments])
    except SystemExit as stop:
        return stop.code


def test_the_plan_is_told_where_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert status(["--plan", "--minutes", "10"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {step.name} " in out and step.commands[-1] in out for step in STEPS)
    assert "not all of it in this time" in out
    assert status([]) == 2
    assert "no GPU: torch" in capsys.readouterr().err


def step(name: str, *commands: str) -> Step:
    return Step(name, name, 1.0, commands)


QUICK, WRONG, ABSENT = "timeit -n 1 -r 1 pass", "unittest no_such_test", "no_such_module"
SLOW = "timeit -n 1 -r 1 'import time; time.sleep(600)'"
PLAN = (
    step("well", QUICK, QUICK),
    step("wrong", WRONG, QUICK),
    step("absent", "timeit -x", QUICK),
    step("last", QUICK),
)


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


def test_each_step_has_its_turn_and_what_is_done_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work_through(PLAN, soon(300), tmp_path, again=False) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" in ")[0] for line in told] == [
        "well: done",
        "wrong: exit status 1",
        "absent: exit status 2",
        "last: done",
    ]
    assert f"(all of it: {tmp_path / 'wrong.log'})" in told[1]
    count = {path.name: path.read_text().count("$ ") for path in tmp_path.glob("*.log")}
    assert count == {"well.log": 2, "wrong.log": 2, "absent.part.log": 1, "last.log": 1}, "no use in the rest of a step"
    assert work_through(PLAN[:1], soon(300), tmp_path, again=False) == 0
    assert "done already" in capsys.readouterr().out
    assert work_through(PLAN[:1], soon(300), tmp_path, again=True) == 0
    assert "well: done in" in capsys.readouterr().out


def test_the_clock_stops_a_step_which_is_not_done_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert work_through((step("slow", QUICK, SLOW, QUICK), PLAN[0]), soon(5), tmp_path, again=False) == 0
    assert [line.partition(" in ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "slow: stopped by the clock",
        "well: stopped by the clock",
    ]
    assert [path.name for path in sorted(tmp_path.glob("*.log"))] == ["slow.part.log", "well.part.log"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "results_folder", lambda: tmp_path / "results")
    return tmp_path / "results"


def archive(tmp_path: Path, **members: str | Path) -> Path:
    """An archive with a file for each record."""
    with zipfile.ZipFile(tmp_path / "results.zip", "w") as file:
        for name, content in members.items():
            text = content.read_text() if isinstance(content, Path) else content
            file.writestr(f"{name.replace('_', '-')}.json", text)
    return tmp_path / "results.zip"


def of_table(folder: Path, seed: int, accuracy: float, epochs: tuple[int, ...] = (100,)) -> Path:
    """A record of A-Tab2 with one run."""
    run = run_of(RUN, seed=seed, epochs=epochs[-1])
    rows = [{"epoch": epoch, "linear": accuracy, "linear_best": accuracy + 0.01} for epoch in epochs]
    runs = {run.folder(Path()).name: {"seed": seed, "seconds": 3.0 * epochs[-1], "device": "a GPU", "rows": rows}}
    values: dict[str, Any] = recorded_values(paper_tables()["A-Tab2"], runs)
    return save_record("A-Tab2", values, seeds=[seed], seconds=300.0, folder=folder)


def test_records_of_a_table_are_joined_run_by_run(results: Path, tmp_path: Path) -> None:
    """Of two runs of one name the newer rows; one of 100 epochs is the beginning of one of 500, and has its name."""
    for seed, accuracy, epochs in ((1, 0.8, (100, 300, 500)), (2, 0.9, (100,)), (2, 0.85, (100,)), (1, 0.7, (100,))):
        (written,) = merge(archive(tmp_path, A_Tab2=of_table(tmp_path / "gpu", seed, accuracy, epochs)))
        assert written == results / "A-Tab2.json"
    joined = recorded("A-Tab2", folder=results)
    assert joined.provenance.seeds == (1, 2)
    assert joined.provenance.seconds == 1800.0
    cells = {cell["epochs"]: cell["final"] for cell in joined["cells"] if cell["final"]}
    assert cells == {100: [0.7, 0.85], 300: [0.8], 500: [0.8]}


def test_a_damaged_archive_changes_nothing(results: Path, tmp_path: Path) -> None:
    good = of_table(tmp_path / "gpu", 1, 0.8)
    no_runs = json.dumps(json.loads(good.read_text()) | {"values": {"cells": [], "runs": [1]}})
    for bad in ("{", no_runs):
        with pytest.raises(InputError, match="the archive's record A-Tab2 can't be used"):
            merge(archive(tmp_path, A_Tab2=bad))
    with pytest.raises(InputError, match="holds none of the records"):
        merge(archive(tmp_path, other=good))
    whole = bytearray(archive(tmp_path, A_Tab2=good).read_bytes())
    whole[200] ^= 0xFF
    (tmp_path / "results.zip").write_bytes(whole)
    with pytest.raises(InputError, match="is damaged"):
        merge(tmp_path / "results.zip")
    assert not results.exists()
    results.mkdir()
    (results / "A-Tab2.json").write_text("{")
    with pytest.raises(InputError, match="the book's record A-Tab2 can't be used"):
        merge(archive(tmp_path, A_Tab2=good))
