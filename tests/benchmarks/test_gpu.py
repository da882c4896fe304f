"""``sslbook gpu``: its plan, its clock, and how its records find their place in the book."""

from __future__ import annotations

import shlex
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import RECORDS, STEPS, Step, merged, work_through
from sslbook import cli
from sslbook._check import InputError
from sslbook.training.presets.papers import run_of
from sslchapters import catalogue
from sslchapters import records as store
from sslchapters.audit.full_runs import recorded_values
from sslchapters.audit.paper_tables import paper_tables


def test_the_plan_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Presets, tables and records by their names."""
    for line in (line for step in STEPS for line in step.commands if line.startswith("sslbook ")):
        kind, name, *rest = shlex.split(line)[1:]
        known = {"table": catalogue.TABLES, "record": catalogue.RECORDERS}.get(kind, {name: ""})
        assert name in known
        assert kind != "train" or run_of(name, seed=int(rest[1]), epochs=int(rest[3]))
    assert set(RECORDS) <= {*catalogue.TABLES, *catalogue.RECORDERS}
    assert cli.main(["gpu", "--plan", "--minutes", "10"]) == 0
    assert "not all of it in this time" in capsys.readouterr().out


def test_each_step_has_its_turn_until_the_clock_stops_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick, slow = "timeit -n 1 -r 1 pass", "timeit -n 1 -r 1 'import time; time.sleep(600)'"
    plan = [Step(name, name, 1.0, lines) for name, lines in {"well": (quick,), "bad": ("timeit -x", quick)}.items()]
    assert work_through(plan, time.monotonic() + 300, tmp_path, again=False) == 1
    assert work_through([*plan[:1], Step("slow", "", 1.0, (slow,))], time.monotonic() + 3, tmp_path, again=False) == 0
    told = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines() if not line.startswith("To carry")]
    assert told == ["well: done", "bad: exit status 2", "well: done already", "slow: stopped by the clock"]


def test_records_of_a_table_are_joined_run_by_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "results_folder", lambda: tmp_path / "book")
    for seed, accuracy, folder in ((1, 0.7, "book"), (1, 0.8, "gpu"), (2, 0.9, "gpu")):
        rows = [{"epoch": 100, "linear": accuracy, "linear_best": accuracy}]
        slug = run_of("cifar10-simclr-nce", seed=seed, epochs=100).folder(Path()).name
        runs = {slug: {"seed": seed, "seconds": 300.0, "device": "a GPU", "rows": rows}}
        values = recorded_values(paper_tables()["A-Tab2"], runs)
        path = store.save_record("A-Tab2", values, seeds=[seed], seconds=300.0, folder=tmp_path / folder)
    with zipfile.ZipFile(tmp_path / "results.zip", "w") as archive:
        archive.write(path, path.name)
    (joined,) = merged(tmp_path / "results.zip")
    assert joined.provenance.seeds == (1, 2)
    assert [cell["final"] for cell in joined["cells"] if cell["final"]] == [[0.7, 0.9]]
    path.write_text("{")
    with zipfile.ZipFile(tmp_path / "results.zip", "w") as archive:
        archive.write(path, path.name)
    with pytest.raises(InputError, match="can't be used"):
        merged(tmp_path / "results.zip")
