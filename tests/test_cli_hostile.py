"""Command lines that nobody should type: each ends with a sentence and a status, and none with a traceback."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest
import torch

from sslbook import cli
from sslbook.images.datasets import Dataset
from sslbook.training.run import trainer
from sslbook.training.run.settings import Refused, known_keys

PRESET = "digits-simclr-nce"
VALUES = ("", "x", "-1", "0", "nan", "inf", "1e400", "none", "true", "1,2", "[1]", "99999999999999999999")
MANY = tuple(f"{key}={value}" for key in known_keys() for value in VALUES if not key.startswith("own"))
CHANGES = (
    *("networks.channels=2", "pipeline=cifar10", "networks.width=100000", "networks.width", "=1", "no.such.key=1"),
    *("networks={}", "numbers.tau=0", "numbers.taf=1", "subset=1", "batch=100000"),
)
OPTIONS = (
    *("--set objective=supervised_contrastive --set subset=1", "--folder file", "--folder file/below"),
    *("--folder /proc/nowhere", f"--folder {'x' * 300}", "--device cuda:99", "--device mps:x", "--device ''"),
    *("--seed -1", "--epochs 0", "--epochs 1e3", "--ranks 0"),
)
OTHERS = (
    *("train digit-simclr-nce", "train ''", "train", "train --no-such-option", "inspect", "inspect nowhere digits"),
    *("inspect file digits", "inspect . digits", "inspect . digits --views 1", "inspect . digits --images 0"),
    *("inspect . nothing-at-all", "table", "table A-Tab99", "table A-Tab2 --seeds", "table A-Tab2 --seeds x"),
    *("table A-Tab2 --epochs -5", "table A-Tab2 --folder file", "table C-Tab1 --no-such"),
    *(
        "table B-Tab3-digits-convnet --epochs x",
        "record",
        "record no-such-record",
        "record ../../etc/passwd",
        "record ''",
    ),
    *("record training-cifar10 --seeds", "record training-cifar10 --seeds -1", f"record {'x' * 5000}"),
    *(
        "gpu --minutes x",
        "gpu --only no-such-step",
        "gpu --merge nowhere",
        "gpu --merge file",
        "gpu --merge .",
        "gpu --minutes nan --plan",
    ),
    *("bench", "bench no-such", "bench ../../x", "bench _rows", "ledger --root nowhere", "ledger --root file"),
    *("ledger --scale ''", "margins --worst 0", "margins --worst x", "execute --root file", "execute --spread 3"),
    *("execute --spread 0 --update-expected", "execute --seed 99999999999", "execute --cell-seconds -1"),
    *("execute --processes 1.5", "execute no-such-chapter", "execute ''", "execute ../covariance"),
    *("notebooks --processes 0", "build extra", "build --no-such", "''", "--seed"),
)


def lines() -> list[tuple[str, ...]]:
    """All of these, training with each value of each setting, and with two to four of them at once, drawn at random."""
    draw = random.Random(0)
    sets = [(one,) for one in (*CHANGES, *MANY)] + [draw.sample(MANY, draw.randint(2, 4)) for _ in range(20)]
    return [
        *(tuple(shlex.split(line)) for line in OTHERS),
        *(("train", PRESET, *shlex.split(line)) for line in OPTIONS),
        *(("train", PRESET, *(part for change in one for part in ("--set", change))) for one in sets),
    ]


@pytest.fixture(autouse=True)
def nothing_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run begins, and stops after its first step, unwritten; files lie in a folder of the test's own."""

    def stop(self: trainer.Trainer, *arguments: object) -> None:
        self.advance()  # which meets whatever in networks and views doesn't fit
        raise Refused("it would train")

    monkeypatch.setattr(trainer.Trainer, "go", stop)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SSLBOOK_RUNS", raising=False)
    (tmp_path / "file").write_text("not a folder")


def test_no_command_line_ends_in_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for line in lines():
        try:
            status = cli.main(line)
        except SystemExit as stop:  # argparse's own way out
            status = stop.code
        except BaseException as error:
            wrong.append((line, f"{type(error).__name__}: {error}"[:200]))
            continue
        said = capsys.readouterr()
        if status not in (0, 1, 2) or (status == 2 and not said.err.strip()) or "Traceback" in said.err + said.out:
            wrong.append((line, f"status {status}: {said.err[-200:]}"))
    assert wrong == []


COLOURS = Dataset(
    torch.zeros(256, 3, 32, 32, dtype=torch.uint8), torch.zeros(256, dtype=torch.int64), "cifar10-train", 10
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("networks.channels=2", "networks.channels must be 1, as the images of digits-train have, got 2"),
        ("networks.channels=3", "networks.channels must be 1, as the images of digits-train have, got 3"),
        (
            "pipeline=cifar10",
            "pipeline=cifar10 is not for digits-train: pixels must have 3 channels, as mean has, got 1",
        ),
        ("pipeline=stl10", "pipeline=stl10 is not for digits-train: pixels must be at least 96 by 96, got 8 by 8"),
        ("pipeline=mnist", "pipeline=mnist is not for digits-train: pixels must be at least 28 by 28, got 8 by 8"),
        ("dataset=cifar10", "networks.channels must be 3, as the images of cifar10-train have, got 1"),
    ],
)
def test_networks_and_views_that_can_not_take_the_images_are_told_of_before_a_step(
    change: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "dataset=cifar10":
        monkeypatch.setattr(trainer, "images_of", lambda settings, download: (COLOURS, COLOURS))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", PRESET, "--epochs", "1", "--folder", "runs", "--set", change])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert [path for path in tmp_path.glob("runs/**/*") if path.is_file()] == []
