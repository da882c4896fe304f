"""Tables of full runs beside the paper's numbers: what is shown, what is compared, what is made, here and on clusters."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Told
from training_cases import SET, done

from sslbook import cli
from sslbook.training import cluster
from sslbook.training.papers import presets, run_of
from sslbook.training.run import checkpoints
from sslbook.training.run.checkpoints import Diverged
from sslbook.training.run.settings import Settings
from sslchapters import data_files
from sslchapters import records as store
from sslchapters.audit import full_runs as tables
from sslchapters.audit.full_runs import PaperTable, paper_tables
from sslchapters.commands import TABLES


def test_every_cell_of_every_table_has_its_preset() -> None:
    names = {"A-Tab2", "A-Tab3"} | {
        f"B-Tab{n}-{data}-resnet18" for n in (3, 4, 5, 7, 8, 9, 10) for data in ("stl10", "cifar10")
    }
    assert set(paper_tables()) == names
    assert names <= set(TABLES)
    in_tables = {cell.preset for sheet in paper_tables().values() for cell in sheet.cells}
    assert set(presets()) - in_tables == {"digits-simclr-nce", "digits-byol", "cifar10-small"}


def said_of(table: str, label: str) -> dict[str, object]:
    """What a cell's label says of its run, in the words of the settings."""
    facts: dict[str, object] = {}
    if table == "A-Tab2":
        facts["objective"] = "info_nce" if "InfoNCE" in label else "exact"
        facts["noise"] = 0.01 if "η = 0.01" in label else 0.0
    if table == "A-Tab3":
        sign, size = re.search(r"β = (.)(\d\.\d)", label).groups()  # type: ignore[union-attr]
        facts["loss_kwargs"] = {"temperature": 0.5, "beta": float(size) * (-1 if sign == "−" else 1)}
    if table == "B-Tab3":
        parts = label.split(", ")
        norm = ("normal", "normal") if "BN" in parts else None
        facts |= {"predictor": 2 if "P" in parts else 0, "target": "ema" if "EMA" in parts else None}
        facts |= {"projector_norm": norm, "predictor_norm": norm}
    if table == "B-Tab4":
        modes = dict.fromkeys("μσ", "omit") | {p[0]: "normal" if len(p) == 1 else "detach" for p in label.split(", ")}
        facts |= {"projector_norm": (modes["μ"], modes["σ"]), "unbiased": True, "predictor": 2, "target": "ema"}
    if table in ("B-Tab7", "B-Tab8", "B-Tab9"):
        low, high = map(float, re.search(r"\[(.+), (.+)\]", label).groups())  # type: ignore[union-attr]
        facts |= {"predictor": 1, "predictor_range": (low, high), "projector_norm": ("normal", "normal")}
        facts["predictor_norm"] = None if "no BN in predictor" in label else ("normal", "normal")
        facts["target"] = None if table == "B-Tab7" else "ema"
    if table == "B-Tab10":
        end = float(label.split("; ")[1])
        facts |= {"predictor": 2, "predictor_range": (-end, end), "lr": 0.02}
    if table in ("B-Tab5", "B-Tab10"):
        period = re.search(r"T = (\d+)", label)
        facts["reset"] = int(period.group(1)) if period else 0
    return facts


def test_a_cells_settings_are_what_its_label_says() -> None:
    for name, printed in paper_tables().items():
        table, data = "-".join(name.split("-")[:2]), "".join(name.split("-")[2:3])
        for cell in printed.cells:
            settings = presets()[cell.preset].settings
            assert cell.epochs <= settings.epochs
            assert cell.epochs in settings.probes, "also where a longer run goes past it"
            assert settings.dataset == (data or ("stl10" if cell.label.startswith("STL-10") else "cifar10"))
            facts = said_of(table, cell.label)
            assert facts, cell.label
            for key, value in facts.items():
                home = settings if hasattr(settings, key) else settings.networks
                assert getattr(home, key) == value, (cell.label, key)
            assert f"; {cell.epochs} epochs" in cell.label or not re.search(r"\d+ epochs", cell.label)
            assert name in presets()[cell.preset].tables


def first_two(sheet: PaperTable) -> PaperTable:
    """A table of two cells."""
    return replace(sheet, target=sheet.target.only(columns=sheet.target.columns[:2]), cells=sheet.cells[:2])


def test_a_table_shows_paper_ours_and_difference_and_says_what_is_missing(tmp_path: Path, told: Told) -> None:
    for seed, best in ((1, 0.84), (2, 0.85)):
        rows = [{"epoch": 100, "linear": best - 0.01, "linear_best": best}, {"epoch": 500, "linear": None}]
        done(run_of("cifar10-simclr-nce", seed=seed), tmp_path, rows)
    asked = ["table", "A-Tab2", "--folder", str(tmp_path), "--seeds", "1"]
    out = told([*asked, "2"])
    assert "Table 2 of [tian2020]" in out
    line = next(line for line in out.splitlines() if line.startswith("CIFAR-10, InfoNCE; 100 epochs"))
    assert line.split()[-5:] == ["84.20±0.09", "84.50±0.71", "+0.30", "83.50±0.71", "2"]
    assert re.search(r"CIFAR-10, InfoNCE; 300 epochs +87\.57±0\.31 .* no run", out)
    again = f"sslbook table A-Tab2 --seeds 1 2 --folder {tmp_path} --run"
    assert f"12 runs of 12 not made yet: {again} makes them, in about 6 hours on one H200." in out

    cells = {"; ".join(cell["at"]): cell for cell in json.loads(told([*asked, "2", "--json"]))["cells"]}
    assert cells["CIFAR-10, InfoNCE; 100 epochs"]["found"]["best"] == [84.0, 85.0]
    assert cells["STL-10, exact; 100 epochs"]["found"]["best"] == []

    out = told([*asked, "--dry-run"])
    assert "6 runs missing." in out
    assert str(run_of("stl10-simclr-exact", seed=1).folder(tmp_path)) in out


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # submitit leaves its logs open
@pytest.mark.parametrize("how", [["--run"], ["--cluster", "debug", "--jobs", "2"]])
def test_a_table_makes_what_is_missing(
    tmp_path: Path, how: list[str], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--cluster" in how:
        pytest.importorskip("submitit")
    sheet = first_two(paper_tables()["B-Tab5-cifar10-resnet18"])
    monkeypatch.setattr(tables, "paper_tables", lambda: {sheet.name: sheet})
    asked = ["table", sheet.name, *how, "--epochs", "1", "--seeds", "1", "--folder", str(tmp_path), "--device", "cpu"]
    small = ["--set", "evaluate=0", "--set", "networks.predictor_hidden=8", "--quiet"]
    out = told([*asked, *SET, *small])
    assert "no run" not in out
    assert "not made yet" not in out
    assert "0 runs missing." in told([*asked, *SET, *small, "--dry-run"])


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> PaperTable:
    """A table of two cells."""
    sheet = first_two(paper_tables()["B-Tab5-stl10-resnet18"])
    monkeypatch.setattr(tables, "paper_tables", lambda: {sheet.name: sheet})
    return sheet


def test_a_run_that_diverges_or_is_made_elsewhere_does_not_stop_the_table(
    two: PaperTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(settings: Settings, folder: Path, *, name: str, **options: Any) -> None:
        if name == "stl10-byol seed 1":
            folder.mkdir()
            (folder / checkpoints.DIVERGED).write_text("diverged at step 12\n")
            raise Diverged("the loss is nan at step 12; the checkpoint of step 9 stays")
        raise checkpoints.Busy(f"{folder} is being trained by another process")

    monkeypatch.setattr(cluster, "train", train)
    assert cli.main(["table", two.name, "--run", "--seeds", "1", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "stl10-byol seed 1: the loss is nan at step 12; the checkpoint of step 9 stays" in said.err
    assert "is being trained by another process, and left to it" in said.err
    assert re.search(r"^original +78\.10 .* diverged at step 12$", said.out, flags=re.MULTILINE)
    assert re.search(r"^T = 5 .* no run$", said.out, flags=re.MULTILINE)


def test_what_is_not_comparable_is_not_compared(
    two: PaperTable, tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    accuracy = {"linear": 0.7, "linear_best": 0.7}
    done(run_of("stl10-byol", seed=1), tmp_path, [{"epoch": epoch, **accuracy} for epoch in (50, 100)])
    asked = ["table", two.name, "--seeds", "1", "--folder", str(tmp_path)]
    assert re.search(r"^original .* 70\.00 +-8\.10 ", told(asked), flags=re.MULTILINE)
    out = told([*asked, "--epochs", "50"])
    assert re.search(r"^original .* 70\.00 .* after 50$", out, flags=re.MULTILINE)
    assert f"sslbook table {two.name} --seeds 1 --epochs 50 --folder {tmp_path} --run" in out

    done(run_of("stl10-byol", seed=1, changes=["lr=0.1"]), tmp_path, [{"epoch": 100, **accuracy}])
    out = told([*asked, "--set", "lr=0.1"])
    assert "\nchanged lr=0.1; 1 seed: 1.\n" in out
    assert re.search(r"^original +78\.10 +70\.00 +70\.00 ", out, flags=re.MULTILINE)
    assert f"sslbook table {two.name} --set lr=0.1 --seeds 1 --folder" in out
    assert cli.main([*asked, "--set", "evaluate=5"]) == 0, "which touches no weight"
    assert re.search(r"^original .* 70\.00 +-8\.10 ", capsys.readouterr().out, flags=re.MULTILINE)


def test_a_record_stands_in_for_runs_that_are_not_here(
    two: PaperTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    monkeypatch.setattr(store, "results_folder", lambda: tmp_path / "results")
    asked = ["table", two.name, "--seeds", "1", "--folder", str(tmp_path)]
    with pytest.raises(SystemExit):
        cli.main([*asked, "--record"])
    assert "there is nothing to record" in capsys.readouterr().err
    run = run_of("stl10-byol", seed=1)
    done(run, tmp_path, [{"epoch": 100, "linear": 0.7, "linear_best": 0.75}])
    content = json.loads((run.folder(tmp_path) / checkpoints.RESULT).read_text())
    content |= {"seed": 1, "seconds": 12.5, "precision": "bfloat16", "device": "a GPU", "commit": "0123456789abc"}
    (run.folder(tmp_path) / checkpoints.RESULT).write_text(json.dumps(content))
    here = told([*asked, "--record"])
    assert "recorded" not in here

    written = json.loads((tmp_path / "results" / f"{two.name}.json").read_text())
    assert written["provenance"]["seconds"] == 12.5
    assert written["values"]["runs"][run.folder(tmp_path).name]["precision"] == "bfloat16"
    away = tmp_path / "elsewhere"
    elsewhere = ["table", two.name, "--seeds", "1", "--folder", str(away)]
    out = told(elsewhere)
    assert re.search(r"^original +78\.10 +75\.00 +-3\.10 +70\.00 +1 +recorded$", out, flags=re.MULTILINE)
    assert re.search(r"^T = 5 .* no run$", out, flags=re.MULTILINE)
    assert "Recorded: " in out
    assert "recorded" not in told([*elsewhere, "--set", "lr=0.1"])
    with pytest.raises(SystemExit):
        cli.main([*asked, "--record", "--set", "lr=0.1"])
    assert "--record is of the table as it is printed" in capsys.readouterr().err

    debt = tables.owed(two.name, [1], away)
    assert (debt.runs, debt.finished) == (2, 1), "what is recorded is not owed"
    assert tables.owed(two.name, [2], away).finished == 0
    assert "78.1 | 75.0" in tables.on_page(two.name, [1], away).data
    assert "<td>78.1</td>" in tables.on_page(two.name, [2], away).data
    monkeypatch.setattr(data_files, "PACKAGE", tmp_path)
    for more in ([], ["--run"], ["--dry-run"]):
        with pytest.raises(SystemExit):
            cli.main([*elsewhere, "--record", *more])
        assert "is of an installed package" in capsys.readouterr().err
