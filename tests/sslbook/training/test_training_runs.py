"""Presets, runs on disk, tables beside the paper's numbers, and the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from training_cases import DIGITS, SET, done

from sslbook import cli
from sslbook.training.presets import command
from sslbook.training.presets import sheets as runs
from sslbook.training.presets.sheets import presets, run_of, sheets
from sslbook.training.run import checkpoints, data, trainer
from sslchapters import data_files
from sslchapters.catalogue import TABLES

ROOT = Path(__file__).resolve().parents[3]


def test_every_cell_of_every_table_has_its_preset() -> None:
    names = {"A-Tab2", "A-Tab3"} | {
        f"B-Tab{n}-{data}-resnet18" for n in (3, 4, 5, 7, 8, 9, 10) for data in ("stl10", "cifar10")
    }
    assert set(sheets()) == names
    assert names <= set(TABLES)
    for sheet in sheets().values():
        for cell in sheet.cells:
            assert cell.preset in presets(), cell
            settings = presets()[cell.preset].settings
            assert cell.epochs <= settings.epochs
            assert cell.epochs in settings.probes, "also where a longer run goes past it"
    in_tables = {cell.preset for sheet in sheets().values() for cell in sheet.cells}
    assert set(presets()) - in_tables == {"digits-simclr-nce", "digits-byol", "cifar10-small"}


def test_the_tables_carry_the_papers_numbers() -> None:
    for name, sheet in sheets().items():
        raw = data_files.printed_file("-".join(name.split("-")[:2]))
        count = 1 if raw["source"].startswith("Table 5") else len(raw["rows"])
        means = [value for row in raw["mean"][:count] for value in row]
        assert [cell.mean for cell in sheet.cells] == ([None] * len(means) if "cifar10" in name else means)
    second = {cell.label: cell for cell in sheets()["A-Tab2"].cells}
    cell = second["STL-10, InfoNCE; 500 epochs"]
    assert (cell.mean, cell.std, cell.preset, cell.epochs) == (83.82, 0.11, "stl10-simclr-nce", 500)
    third = {cell.label: cell for cell in sheets()["A-Tab3"].cells}
    assert third["CIFAR-10, β = −0.5; 100 epochs"].preset == "cifar10-simclr-beta-minus-0.5"


def told(table: str, label: str) -> dict[str, object]:
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
    for name, cell in [(sheet.name, cell) for sheet in sheets().values() for cell in sheet.cells]:
        table, images = "-".join(name.split("-")[:2]), "".join(name.split("-")[2:3])
        settings = presets()[cell.preset].settings
        assert settings.dataset == (images or ("stl10" if cell.label.startswith("STL-10") else "cifar10"))
        facts = told(table, cell.label)
        assert facts, cell.label
        for key, value in facts.items():
            home = settings if hasattr(settings, key) else settings.networks
            assert getattr(home, key) == value, (cell.label, key)
        if re.search(r"\d+ epochs", cell.label):
            assert f"; {cell.epochs} epochs" in cell.label


def test_a_folder_is_named_by_preset_seed_and_hash(tmp_path: Path) -> None:
    run = run_of("cifar10-byol", seed=3)
    assert run.folder(tmp_path).name == f"cifar10-byol-s3-{run.settings.hash()}"
    assert run_of("cifar10-byol", seed=3, epochs=5).folder(tmp_path) == run.folder(tmp_path)  # its beginning
    assert run_of("cifar10-byol", seed=3, changes=["lr=0.1"]).folder(tmp_path) != run.folder(tmp_path)


def test_finished_runs_are_known_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "train", lambda *a, **k: pytest.fail("it was finished"))
    run = run_of("cifar10-byol", seed=3, epochs=7)
    assert not run.finished(tmp_path)
    done(run, tmp_path, [{"epoch": 7, "linear": 0.5, "linear_best": 0.6}])
    assert run.finished(tmp_path)
    run.go(tmp_path)
    assert not run_of("cifar10-byol", seed=3, epochs=8).finished(tmp_path)
    assert not run_of("cifar10-byol", seed=3, epochs=7, changes=["probes=5"]).finished(tmp_path)
    (run.folder(tmp_path) / checkpoints.RESULT).write_text('{"rows": [{"epoch": 7, "knn": 0.5, "linear": null}]}')
    assert not run.finished(tmp_path), "without the number that a table shows"
    (run.folder(tmp_path) / checkpoints.RESULT).write_text("{}")
    with pytest.raises(ValueError, match=r"result\.json is not the result of a run"):
        run.finished(tmp_path)


def test_fewer_epochs_leave_out_the_later_probes() -> None:
    assert run_of("cifar10-simclr-nce", seed=0, epochs=300).settings.probes == (100, 300)
    with pytest.raises(ValueError, match=r"there is no preset 'cifar-simclr-nce'; did you mean cifar10-simclr-nce"):
        run_of("cifar-simclr-nce", seed=0)


def test_the_list_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^{re.escape(name)} ", out, flags=re.MULTILINE) for name in presets())
    assert cli.main(["train", "stl10-byol", "--list"]) == 0
    assert "B-Tab3-stl10-resnet18: 78.10 ± 0.30 %" in capsys.readouterr().out
    assert cli.main(["train", "A-Tab3", "--list"]) == 0
    head, *rows, _ = capsys.readouterr().out.splitlines()
    assert head == "A-Tab3:"
    assert [row.split()[0] for row in rows] == [
        f"{data}-simclr-beta-{beta}" for data in ("cifar10", "stl10") for beta in ("minus-0.5", "plus-0.2")
    ]
    assert cli.main(["train", "A-Tab3", "plus", "cifar10", "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        next(row for row in rows if "cifar10-simclr-beta-plus" in row)
    ]


def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["train", "digits-simclr-nce", "--epochs", "1", "--seed", "4", "--folder", str(tmp_path)]
    asked += [*SET, "--device", "cpu"]
    assert cli.main(asked) == 0
    captured = capsys.readouterr()
    assert "digits-simclr-nce: epoch 1  loss" in captured.err
    assert "  Changed: dataset=digits, " in captured.out
    assert re.search(r"k-NN \d+\.\d\d % before, \d+\.\d\d % after 1 epochs; linear", captured.out)
    assert cli.main(asked) == 0
    assert "Finished already" in capsys.readouterr().out
    asked += ["--set", "schedule=constant"]  # which doesn't know how long the run is
    assert cli.main([*asked, "--epochs", "2", "--set", "probes=1"]) == 0
    with pytest.raises(SystemExit, match="2"):  # it has that row, and the weights of a longer run
        cli.main(asked)
    assert re.search(r"the checkpoint in .* is at step \d+, past the \d+ of this run", capsys.readouterr().err)


BAD = {
    "NAME is missing": [],
    "there is no preset 'cifar-byol'; did you mean": ["cifar-byol"],
    "there is no preset 'digits mars'": ["digits", "mars", "--list"],
    "there is no setting widht; did you mean": ["digits-byol", "--set", "widht=3"],
    "a setting is given by --set lr=0.1": ["digits-byol", "--lr", "0.1"],
    "'0' is not a whole number of at least 1": ["digits-byol", "--epochs", "0"],
    "device must be cpu, cuda or cuda:N": ["digits-byol", "--device", "gpu"],
}


def test_bad_input_gets_status_2_and_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sentence, arguments in BAD.items():
        with pytest.raises(SystemExit) as stop:
            cli.main(["train", *arguments, "--folder", str(tmp_path)])
        assert stop.value.code == 2
        assert sentence in capsys.readouterr().err


def test_a_run_that_diverges_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wild = ["--set", "optimizer=sgd", "--set", "lr=1e25", "--set", "schedule=constant", "--set", "evaluate=0"]
    asked = ["train", "digits-simclr-nce", "--epochs", "2", "--folder", str(tmp_path), "--quiet", "--device", "cpu"]
    assert cli.main([*asked, *SET, *wild]) == 1
    assert "there is no checkpoint before it" in capsys.readouterr().err


def test_two_processes_share_each_batch(tmp_path: Path) -> None:
    """``--ranks 2`` begins two processes with gloo; its run is that of one process, to float32's rounding."""
    asked = ["train", "digits-simclr-nce", "--epochs", "2", *SET, "--device", "cpu", "--quiet", "--set", "evaluate=0"]
    assert cli.main([*asked, "--folder", str(tmp_path / "1")]) == 0
    command = [sys.executable, "-m", "sslbook", *asked, "--folder", str(tmp_path / "2"), "--ranks", "2"]
    two = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert two.returncode == 0, two.stderr
    one, other = (checkpoints.read_result(next((tmp_path / ranks).iterdir())) for ranks in "12")
    assert one is not None
    assert other is not None
    assert [row["loss"] for row in other["rows"]] == pytest.approx([row["loss"] for row in one["rows"]], rel=1e-4)


def test_errors_of_the_machine_get_status_2_and_those_of_the_program_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", "digits-simclr-nce", "--epochs", "1", *SET, "--device", "cpu", "--quiet"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        cli.main([*asked, "--folder", str(tmp_path / "file")])
    assert stop.value.code == 2
    assert "Not a directory: " in capsys.readouterr().err

    def broken(*arguments: object) -> float:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(trainer, "learning_rate", broken)
    with pytest.raises(ValueError, match="a mistake of ours"):
        cli.main([*asked, "--folder", str(tmp_path)])


def test_images_are_fetched_once_before_the_processes_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(command, "load_data", lambda settings, download: told.append(f"{settings.dataset} {download}"))
    monkeypatch.setattr(command, "_train", lambda *a: 0)
    monkeypatch.setattr(command, "_spread", lambda *a: told.append("spread") or 0)
    assert cli.main(["train", "digits-byol", "--download", "--ranks", "2", "--folder", str(tmp_path)]) == 0
    assert told == ["digits True", "spread"]


def test_processes_take_turns_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the second finds what the first has fetched, or fetches it where it has a folder of its own."""
    told: list[object] = []
    settings = run_of("digits-byol", seed=0, changes=DIGITS).settings
    load = data.datasets.load_dataset
    monkeypatch.setattr(data.datasets, "load_dataset", lambda *a, download: told.append(download) or load(*a))
    monkeypatch.setattr(data.distributed, "world", lambda: 3)
    monkeypatch.setattr(data.distributed, "rank", lambda: 1)
    monkeypatch.setattr(data.distributed, "wait_for_all", lambda: told.append("waited"))
    assert len(data.load_data(settings, download=True)[0]) == 128
    assert told == ["waited", True, True, "waited", "waited"]
    told.clear()
    data.load_data(settings)
    assert told == [False, False]
