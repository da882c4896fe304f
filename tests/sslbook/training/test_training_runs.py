"""Presets, runs on disk, tables beside the paper's numbers, and the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_cases import SET, TINY, done

from sslbook import cli
from sslbook.images.datasets import load_dataset
from sslbook.networks.siamese import Networks
from sslbook.training import cluster
from sslbook.training.papers import presets, run_of
from sslbook.training.run import checkpoints
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import Step
from sslbook.training.run.trainer import load_data, train

ROOT = Path(__file__).resolve().parents[3]


def test_a_run_is_named_by_preset_seed_and_hash_and_by_its_beginning(tmp_path: Path) -> None:
    run = run_of("cifar10-byol", seed=3)
    assert run.folder(tmp_path).name == f"cifar10-byol-s3-{run.settings.hash()}"
    assert run_of("cifar10-byol", seed=3, epochs=5).folder(tmp_path) == run.folder(tmp_path)
    assert run_of("cifar10-byol", seed=3, changes=["lr=0.1"]).folder(tmp_path) != run.folder(tmp_path)
    assert run_of("cifar10-simclr-nce", seed=0, epochs=300).settings.probes == (100, 300)


def test_finished_runs_are_known_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "train", lambda *a, **k: pytest.fail("it was finished"))
    run = run_of("cifar10-byol", seed=3, epochs=7)
    assert not run.finished(tmp_path)
    done(run, tmp_path, [{"epoch": 7, "linear": 0.5, "linear_best": 0.6}])
    assert run.finished(tmp_path)
    assert cluster.Work([run], tmp_path, {})() == []
    assert not run_of("cifar10-byol", seed=3, epochs=8).finished(tmp_path)
    assert not run_of("cifar10-byol", seed=3, epochs=7, changes=["probes=5"]).finished(tmp_path)
    (run.folder(tmp_path) / checkpoints.RESULT).write_text('{"rows": [{"epoch": 7, "knn": 0.5, "linear": null}]}')
    assert not run.finished(tmp_path), "without the number that a table shows"


def test_the_list_names_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert cli.main(["train", *words, "--list"]) == 0
        return capsys.readouterr().out

    listed = said()
    assert {line.split()[0] for line in listed.splitlines()} >= {*presets()}
    assert "sslbook table B-Tab3-stl10-resnet18 and sslbook table B-Tab5-stl10-resnet18: " in said("stl10-byol")
    head, *rows, _ = said("A-Tab3").splitlines()
    wanted = [f"{data}-simclr-beta-{beta}" for data in ("cifar10", "stl10") for beta in ("minus-0.5", "plus-0.2")]
    assert (head, [row.split()[0] for row in rows]) == ("A-Tab3:", wanted)
    assert said("A-Tab3", "plus", "cifar10").splitlines()[1:-1] == [rows[1]]


def test_accuracy_is_measured_in_the_epochs_that_are_asked_for(tmp_path: Path) -> None:
    settings = run_of("digits-simclr-nce", seed=0, epochs=7, changes=(*TINY, "evaluate=3", "probes=2")).settings
    rows = train(settings, tmp_path, data=load_data(settings), quiet=True, device="cpu").rows
    assert [row["epoch"] for row in rows if row.get("knn") is not None] == [0, 2, 3, 6, 7]
    assert not torch.backends.cudnn.benchmark  # which is for a GPU


def test_narrow_networks_and_own_ones_are_not_channels_last_on_a_processor() -> None:
    """oneDNN would write behind its workspace."""
    data = load_dataset("digits", "train").take(range(8))
    own = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Conv2d(4, 4, 3), torch.nn.Flatten())
    for width, backbone, wanted in ((8, None, False), (16, None, True), (64, (own, 64), False)):
        settings = Settings(batch=8, pipeline="digits", networks=Networks(width=width, channels=1, stem="cifar"))
        step = Step(settings, data, torch.device("cpu"), backbone, None, None, None)
        kernels = [
            kernel for kernel in step.model.encoder.parameters() if kernel.ndim == 4 and min(kernel.shape[1:]) > 1
        ]
        assert {kernel.stride(-1) > 1 for kernel in kernels} == {wanted}


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
    assert cli.main([*asked, "--epochs", "3", "--set", "probes=1"]) == 0
    assert "going on after step" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):  # it has that row, and the weights of a longer run
        cli.main(asked)
    assert re.search(r"the checkpoint in .* is at step \d+, past the \d+ of this run", capsys.readouterr().err)


def test_bad_input_gets_status_2_and_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        ([], "one NAME is needed"),
        (["cifar-byol"], "preset: got 'cifar-byol'; did you mean"),
        (["digits-byol", "--set", "seed=3"], "seed is given by --seed, not by --set"),
        (["digits-byol", "--device", "gpu"], "'gpu' is not one of this machine's devices"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["train", *arguments, "--folder", str(tmp_path)])
        assert sentence in capsys.readouterr().err


def test_two_processes_share_each_batch(tmp_path: Path) -> None:
    """``--ranks 2`` begins two processes with gloo; its run is that of one process, to float32's rounding."""
    asked = ["train", "digits-simclr-nce", "--epochs", "2", *SET, "--device", "cpu", "--quiet", "--set", "evaluate=0"]
    assert cli.main([*asked, "--folder", str(tmp_path / "1")]) == 0
    command = [sys.executable, "-m", "sslbook", *asked, "--folder", str(tmp_path / "2"), "--ranks", "2"]
    two = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert two.returncode == 0, two.stderr
    one, other = (checkpoints.read_result(next((tmp_path / ranks).iterdir())) for ranks in "12")
    assert [row["loss"] for row in other["rows"]] == pytest.approx([row["loss"] for row in one["rows"]], rel=1e-4)


def test_a_run_that_diverges_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wild = ["--set", "optimizer=sgd", "--set", "lr=1e25", "--set", "schedule=constant", "--set", "evaluate=0"]
    asked = ["train", "digits-simclr-nce", "--epochs", "2", "--folder", str(tmp_path), "--quiet", "--device", "cpu"]
    assert cli.main([*asked, *SET, *wild]) == 1
    assert "there is no checkpoint before it" in capsys.readouterr().err
