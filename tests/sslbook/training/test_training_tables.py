"""Tables of full runs beside the paper's numbers: what is shown, what is compared, what is made, here and on clusters."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import SET, done

from sslbook import cli
from sslbook.training.presets import cluster
from sslbook.training.presets.sheets import Run, Sheet, run_of, sheets
from sslbook.training.run import checkpoints
from sslbook.training.run.checkpoints import Diverged
from sslchapters import data_files
from sslchapters import records as store
from sslchapters.audit import full_runs as tables
from sslchapters.audit.full_runs import runs_of


def first_two(sheet: Sheet) -> Sheet:
    """A table of two cells."""
    return replace(sheet, target=sheet.target.only(columns=sheet.target.columns[:2]), cells=sheet.cells[:2])


def test_a_table_shows_paper_ours_and_difference_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, best in ((1, 0.84), (2, 0.85)):
        rows = [{"epoch": 100, "linear": best - 0.01, "linear_best": best}, {"epoch": 500, "linear": None}]
        done(run_of("cifar10-simclr-nce", seed=seed), tmp_path, rows)
    assert cli.main(["table", "A-Tab2", "--folder", str(tmp_path), "--seeds", "1", "2"]) == 0
    out = capsys.readouterr().out
    assert "Table 2 of [tian2020]" in out
    line = next(line for line in out.splitlines() if line.startswith("CIFAR-10, InfoNCE; 100 epochs"))
    assert line.split()[-5:] == ["84.20±0.09", "84.50±0.71", "+0.30", "83.50±0.71", "2"]
    assert re.search(r"CIFAR-10, InfoNCE; 300 epochs +87\.57±0\.31 .* no run", out)
    again = f"sslbook table A-Tab2 --seeds 1 2 --folder {tmp_path} --run"
    assert f"12 runs of 12 not made yet: {again} makes them, in about 6 hours on one H200." in out

    assert cli.main(["table", "A-Tab2", "--folder", str(tmp_path), "--seeds", "1", "2", "--json"]) == 0
    cells = {"; ".join(cell["at"]): cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert cells["CIFAR-10, InfoNCE; 100 epochs"]["found"]["best"] == [84.0, 85.0]
    assert cells["STL-10, exact; 100 epochs"]["found"]["best"] == []

    assert cli.main(["table", "A-Tab2", "--folder", str(tmp_path), "--seeds", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "6 runs missing." in out
    assert str(run_of("stl10-simclr-exact", seed=1).folder(tmp_path)) in out


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # submitit leaves its logs open
@pytest.mark.parametrize("how", [["--run"], ["--cluster", "debug", "--jobs", "2"]])
def test_a_table_makes_what_is_missing(
    tmp_path: Path, how: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--cluster" in how:
        pytest.importorskip("submitit")
    sheet = first_two(sheets()["B-Tab5-cifar10-resnet18"])
    monkeypatch.setattr(tables, "sheets", lambda: {sheet.name: sheet})
    asked = ["table", sheet.name, *how, "--epochs", "1", "--seeds", "1", "--folder", str(tmp_path), "--device", "cpu"]
    small = ["--set", "evaluate=0", "--set", "networks.predictor_hidden=8", "--quiet"]
    assert cli.main([*asked, *SET, *small]) == 0
    out = capsys.readouterr().out
    assert "no run" not in out
    assert "not made yet" not in out
    assert cli.main([*asked, *SET, *small, "--dry-run"]) == 0
    assert "0 runs missing." in capsys.readouterr().out


def test_slurm_that_is_not_here_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="cluster must be local here, where Slurm's sbatch is not to be found"):
        cluster.submit([], tmp_path, "slurm")


def test_slurm_gets_an_array_with_a_gpu_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything up to the submission, with a stand-in for Slurm's own program."""
    pytest.importorskip("submitit")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text('#!/bin/sh\ncp "$1" "$0.seen"\necho "Submitted batch job 12"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    wanted = runs_of(sheets()["A-Tab3"], [1], epochs=1)
    done(wanted[0], tmp_path, [{"epoch": 1, "linear": 0.5, "linear_best": 0.5}])
    jobs = cluster.submit(wanted, tmp_path, "slurm", at_once=2, sbatch=["partition=gpu"])
    script = (programs / "sbatch.seen").read_text()
    assert len(jobs) == len(wanted) - 1
    assert "--array=0-2%2" in script
    assert "--gpus-per-node=1" in script
    assert "--partition=gpu" in script
    assert "--cpus-per-task=8\n" in script
    assert "--time=1440\n" in script, "a day, in minutes"
    assert [cluster.job_of(run, tmp_path) for run in wanted[1:]] == ["12_0", "12_1", "12_2"]

    cluster.submit(wanted, tmp_path, "slurm", hours=3, sbatch=["--cpus-per-task=2", "exclusive"], device="cpu")
    script = (programs / "sbatch.seen").read_text()
    assert "gpu" not in script, "none is asked for where none is used"
    assert "--cpus-per-task=2\n" in script
    assert "--cpus-per-task=8" not in script
    assert "--exclusive\n" in script
    assert "--time=180\n" in script


def test_what_slurm_says_of_a_job_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho '12_0 RUNNING None'; echo '12_1 PENDING Priority'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    wanted = runs_of(sheets()["A-Tab3"], [1], epochs=1)
    for number, run in enumerate(wanted[:3]):
        run.folder(tmp_path).mkdir()
        (run.folder(tmp_path) / cluster.JOB).write_text(f"12_{number}\n")
    said = [sentence.partition(": ")[2] for sentence in cluster.fates(wanted, tmp_path)]
    log = tmp_path / "jobs" / "12_2_0_log.err"
    assert said == [
        "job 12_0 is running",
        "job 12_1 is pending (Priority)",
        f"job 12_2 ended without it: {log} says why",
    ]
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert cluster.fates(wanted, tmp_path) == [], "no answer is no news"


@pytest.mark.parametrize(
    ("option", "instead"), [("time=5", ", and --hours sets that"), ("--array=0-3", ""), ("=5", "")]
)
def test_an_option_that_is_set_elsewhere_is_not_handed_to_slurm(option: str, instead: str) -> None:
    with pytest.raises(ValueError, match=f"--slurm must be an option of sbatch, .* got '{option}'{instead}"):
        cluster.submit([], Path(), "slurm", sbatch=[option])


def test_a_worker_of_this_machine_has_a_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    from submitit.local import local

    started: list[str] = []

    def start(**options: Any) -> Any:
        started.append(options["cuda_devices"])
        assert options["timeout_min"] >= 60 * 24 * 100, "no run is killed for its length"
        return type("Process", (), {"pid": len(started), "poll": lambda self: 0})()

    monkeypatch.setattr(local, "start_controller", start)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    wanted = runs_of(sheets()["A-Tab2"], [1], epochs=1)
    assert len(cluster.submit(wanted, tmp_path, "local", at_once=3)) == 3
    assert started == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    cluster.submit(wanted, tmp_path, "local", at_once=2)
    assert started[3:] == ["2", "5"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    cluster.submit(wanted, tmp_path, "local")
    assert started[5:] == [""]


def test_a_job_that_is_stopped_is_queued_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    work = cluster.Work([], tmp_path, {})
    assert work() == []
    assert work.checkpoint().function is work


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Sheet:
    """A table of two cells."""
    sheet = first_two(sheets()["B-Tab5-stl10-resnet18"])
    monkeypatch.setattr(tables, "sheets", lambda: {sheet.name: sheet})
    return sheet


def test_a_run_that_diverges_does_not_stop_the_table(
    two: Sheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def go(run: Run, root: Path, **options: Any) -> None:
        if run.name == "stl10-byol":
            run.folder(root).mkdir()
            (run.folder(root) / checkpoints.DIVERGED).write_text("diverged at step 12\n")
            raise Diverged("the loss is nan at step 12; the checkpoint of step 9 stays", 12)
        done(run, root, [{"epoch": 100, "linear": 0.7, "linear_best": 0.7}])

    monkeypatch.setattr(Run, "go", go)
    assert cli.main(["table", two.name, "--run", "--seeds", "1", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "stl10-byol seed 1: the loss is nan at step 12; the checkpoint of step 9 stays" in said.err
    assert re.search(r"^original +78\.10 .* diverged at step 12$", said.out, flags=re.MULTILINE)
    assert re.search(r"^T = 5 .* 70\.00 ", said.out, flags=re.MULTILINE)


def test_a_run_that_another_process_makes_is_left_to_it(
    two: Sheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def go(run: Run, root: Path, **options: Any) -> None:
        raise checkpoints.Busy(f"{run.name} is being trained by another process")

    monkeypatch.setattr(Run, "go", go)
    assert cli.main(["table", two.name, "--run", "--seeds", "1", "--folder", str(tmp_path), "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.err.count("is being trained by another process, and left to it") == 2
    assert "2 runs of 2 not made yet" in said.out


def test_what_is_not_comparable_is_not_compared(two: Sheet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = {"linear": 0.7, "linear_best": 0.7}
    done(run_of("stl10-byol", seed=1), tmp_path, [{"epoch": epoch, **accuracy} for epoch in (50, 100)])
    asked = ["table", two.name, "--seeds", "1", "--folder", str(tmp_path)]
    assert cli.main(asked) == 0
    assert re.search(r"^original .* 70\.00 +-8\.10 ", capsys.readouterr().out, flags=re.MULTILINE)
    assert cli.main([*asked, "--epochs", "50"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^original .* 70\.00 .* after 50$", out, flags=re.MULTILINE)
    assert f"sslbook table {two.name} --seeds 1 --epochs 50 --folder {tmp_path} --run" in out

    done(run_of("stl10-byol", seed=1, changes=["lr=0.1"]), tmp_path, [{"epoch": 100, **accuracy}])
    assert cli.main([*asked, "--set", "lr=0.1"]) == 0
    out = capsys.readouterr().out
    assert "\nchanged lr=0.1; 1 seed: 1.\n" in out
    assert re.search(r"^original +78\.10 +70\.00 +70\.00 ", out, flags=re.MULTILINE)
    assert f"sslbook table {two.name} --set lr=0.1 --seeds 1 --folder" in out
    assert cli.main([*asked, "--set", "capture=none"]) == 0, "which touches no weight"
    assert re.search(r"^original .* 70\.00 +-8\.10 ", capsys.readouterr().out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--download"], "--download is for a run: add --run"),
        (["--jobs", "2"], "--jobs is for a cluster: add --cluster local"),
        (["--cluster", "local", "--slurm", "partition=gpu"], "--slurm is for a cluster: add --cluster slurm"),
        (["--set", "epochs=3"], "epochs is given by --epochs, not by --set"),
    ],
)
def test_a_table_refuses_with_status_2(
    two: Sheet, more: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["table", two.name, *more, "--folder", str(tmp_path)])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_record_stands_in_for_runs_that_are_not_here(
    two: Sheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    assert cli.main([*asked, "--record"]) == 0
    here = capsys.readouterr().out
    assert "recorded" not in here

    written = json.loads((tmp_path / "results" / f"{two.name}.json").read_text())
    assert written["provenance"]["seconds"] == 12.5
    assert written["values"]["runs"][run.folder(tmp_path).name]["precision"] == "bfloat16"
    away = tmp_path / "elsewhere"
    elsewhere = ["table", two.name, "--seeds", "1", "--folder", str(away)]
    assert cli.main(elsewhere) == 0
    out = capsys.readouterr().out
    assert re.search(r"^original +78\.10 +75\.00 +-3\.10 +70\.00 +1 +recorded$", out, flags=re.MULTILINE)
    assert re.search(r"^T = 5 .* no run$", out, flags=re.MULTILINE)
    assert "Recorded: " in out
    assert cli.main([*elsewhere, "--set", "lr=0.1"]) == 0
    assert "recorded" not in capsys.readouterr().out
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
