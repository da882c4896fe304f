"""What the training side stands on: schedules against PyTorch's, checkpoints that nothing spoils, logs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_cases import TINY

from sslbook.training.papers import run_of
from sslbook.training.run import checkpoints
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import learning_rate
from sslbook.training.run.trainer import train


def torchs(epochs: int, period: int, first: int) -> list[float]:
    """PyTorch's own cosine of ``period`` epochs, stepped after each epoch from ``first`` on."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=period)
    rates = []
    for epoch in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if epoch >= first:
            schedule.step()
    return rates


def test_rates_are_torchs() -> None:
    """The released cosine steps once an epoch from the eleventh on, over as many epochs as there are batches in one."""
    for period in (39, 390, 820):
        asked = Settings(lr=1.0, schedule="released", epochs=500)
        ours = [learning_rate(asked, epoch * period + period // 2, period) for epoch in range(500)]
        assert ours == pytest.approx(torchs(500, period, 10), abs=1e-9)
        assert ours[:100] == [learning_rate(replace(asked, epochs=100), e * period, period) for e in range(100)]
    asked = Settings(lr=2.0, schedule="cosine", epochs=20, warmup=3)
    rates = [learning_rate(asked, step, 7) for step in range(140)]
    assert rates[:21] == pytest.approx([2 * (step + 1) / 21 for step in range(21)])
    assert rates[21:] == pytest.approx([2 * rate for rate in torchs(119, 119, 0)], abs=1e-12)
    assert learning_rate(replace(asked, schedule="constant", warmup=0), 139, 7) == 2


def content(step: int) -> dict:
    return {"settings": '{"networks": {}}', "step": step, "model": {"weights": torch.full((1000,), float(step))}}


def test_the_last_checkpoint_comes_back_and_what_is_none_is_refused_by_name(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    assert checkpoints.latest(tmp_path) is None
    for step in (5, 10, 100):
        newest = checkpoints.save(tmp_path, content(step))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000100.pt"]
    assert torch.equal(checkpoints.latest(tmp_path)["model"]["weights"], content(100)["model"]["weights"])
    part, bad = newest.read_bytes()[:-100], ({"step": 100, "settings": other} for other in ({"a": 1}, Trap()))
    for instead in (part, b"", *[checkpoints.save(tmp_path, other).read_bytes() for other in bad]):
        newest.write_bytes(instead)
        with pytest.raises(ValueError, match=r"step-000000100\.pt is no whole checkpoint"):
            checkpoints.latest(tmp_path)
    assert not (tmp_path / "sprung").exists(), "a checkpoint can't run code"


def test_a_process_killed_while_it_writes_leaves_the_last_good_one(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, content(1))
    child = os.fork()
    if child == 0:  # dies after half of the file
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.save(tmp_path, content(2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert any(path.name.startswith(".step-000000002") for path in tmp_path.iterdir())
    assert checkpoints.latest(tmp_path)["step"] == 1


def lost(*steps: int) -> torch.Tensor:
    return torch.zeros(10).index_fill(0, torch.tensor(steps, dtype=torch.int64), torch.nan)


def test_a_loss_that_is_no_number_is_named_by_its_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    checkpoints.require_finite(tmp_path, 37, lost(8), model)  # of the epoch before
    for losses, weight, step, sentence in (
        (lost(4, 8), 0.0, 37, "the loss is nan at step 35"),
        (lost(8), 0.0, 40, "the loss is nan at step 39"),
        (lost(), torch.inf, 37, "a weight is no finite number after step 37"),
    ):
        torch.nn.init.constant_(model.weight, weight)
        with pytest.raises(checkpoints.Diverged, match=sentence) as caught:
            checkpoints.require_finite(tmp_path, step, losses, model)
        assert str(caught.value.step) in sentence


def test_curves_of_a_resumed_run_begin_where_it_does(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    asked = run_of("digits-simclr-nce", seed=0, epochs=2, changes=(*TINY, "evaluate=0", "probes=2")).settings
    for number, stop in enumerate((2, None)):
        train(asked, tmp_path, device="cpu", quiet=True, tensorboard=True, stop_after=stop)
        (made,) = tmp_path.glob("curves/events*")
        made.rename(tmp_path / "curves" / f"{number:02}.tfevents")  # read in the order of their names
    shown = accumulator.EventAccumulator(str(tmp_path / "curves")).Reload()
    assert [point.step for point in shown.Scalars("loss")] == [2, 4]
    assert [point.step for point in shown.Scalars("linear")] == [4]
