"""What the training side stands on: schedules against PyTorch's, checkpoints that nothing spoils, logs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_cases import TINY

from sslbook.training.presets.papers import run_of
from sslbook.training.run import checkpoints
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import learning_rate, target_average
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
        assert max(abs(a - b) for a, b in zip(ours, torchs(500, period, 10), strict=True)) < 1e-9
        assert max(abs(a - b) for a, b in zip(ours, torchs(500, period, 0), strict=True)) > 1e-3
        assert ours[:100] == [learning_rate(replace(asked, epochs=100), e * period, period) for e in range(100)]
    asked = Settings(lr=2.0, schedule="cosine", epochs=20, warmup=3)
    rates = [learning_rate(asked, step, 7) for step in range(140)]
    assert rates[:21] == pytest.approx([2 * (step + 1) / 21 for step in range(21)])
    assert rates[21:] == pytest.approx([2 * rate for rate in torchs(119, 119, 0)], abs=1e-12)
    assert learning_rate(replace(asked, schedule="constant", warmup=0), 139, 7) == 2


def test_an_average_grows_as_byols() -> None:
    """1 - (1 - s)(cos(πk/K) + 1)/2 of step k of K (Grill et al. 2020, Section 3.3); without an end it stays."""
    grows = Settings(ema=0.9, ema_end=1.0, epochs=5)
    wanted = [0.9, 1 - 0.1 * (0.5**0.5 + 1) / 2, 0.95, 1.0]
    assert [target_average(grows, k, 4) for k in (0, 5, 10, 20)] == pytest.approx(wanted)
    assert [target_average(replace(grows, ema_end=None), k, 4) for k in (0, 7, 19)] == [0.9] * 3


def content(step: int) -> dict:
    words = {"settings": '{"networks": {}}', "hash": "0123456789", "precision": "float32", "rows": "[]"}
    numbers = {"step": step, "seconds": 1.5, "losses": torch.zeros(3)}
    return words | numbers | {"model": {"weights": torch.full((1000,), float(step))}, "optimizer": {}}


def test_a_checkpoint_comes_back_and_the_last_two_stay(tmp_path: Path) -> None:
    for step in (5, 10, 100):
        checkpoints.save(tmp_path, step, content(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010.pt", "step-000000100.pt"]
    loaded = checkpoints.latest(tmp_path, pytest.fail)
    assert loaded["step"] == 100
    assert torch.equal(loaded["model"]["weights"], content(100)["model"]["weights"])
    assert list(checkpoints.kept(tmp_path)) == [10, 100]
    checkpoints.clear(tmp_path)
    assert checkpoints.latest(tmp_path, pytest.fail) is None
    assert checkpoints.kept(tmp_path) == {}


def test_what_is_in_a_checkpoints_place_is_passed_over_by_name(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    newest = checkpoints.save(tmp_path, 2, content(2))
    whole = newest.read_bytes()
    others = [checkpoints.save(tmp_path, 2, other).read_bytes() for other in ({"a": 1}, {"trap": Trap()})]
    for instead in (whole[:-100], b"", b"no checkpoint\n" + whole[:50], *others):
        before = checkpoints.save(tmp_path, 1, content(1))
        newest.write_bytes(instead)
        said: list[str] = []
        assert checkpoints.latest(tmp_path, said.append)["step"] == 1
        before.write_bytes(b"")
        assert checkpoints.latest(tmp_path, said.append) is None
        assert newest.name in said[0]
        assert said[0].endswith("The one before it is used.")
        assert said[-1].endswith("Starting from the beginning.")
    assert not (tmp_path / "sprung").exists(), "a checkpoint can't run code"


def test_a_process_killed_while_it_writes_leaves_the_last_good_one(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, content(1))
    child = os.fork()
    if child == 0:  # dies after half of the file
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.save(tmp_path, 2, content(2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert any(path.name.startswith(".step-000000002") for path in tmp_path.iterdir())
    loaded = checkpoints.latest(tmp_path, pytest.fail)
    assert loaded["step"] == 1
    with checkpoints.locked(tmp_path):  # clears away what the dead one left
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "step-000000001.pt"]


def test_a_folder_is_one_processs_at_a_time(tmp_path: Path) -> None:
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        with checkpoints.locked(tmp_path / "run"):
            os.write(there, b"held")
            signal.pause()
    os.read(here, 4)
    busy = pytest.raises(checkpoints.Busy, match="run is being trained by another process")
    with busy, checkpoints.locked(tmp_path / "run"):
        pytest.fail("both hold it")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with checkpoints.locked(tmp_path / "run"):
        pass  # the system let it go


def test_a_loss_that_is_no_number_is_named_by_its_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    state = checkpoints.State(Settings(), model, None, torch.zeros(10), step=37)
    state.losses[8] = torch.nan  # of the epoch before
    state.require_finite(tmp_path)
    for losses, weight, step, sentence in (
        ({4: torch.nan, 8: torch.nan}, 0.0, 37, "the loss is nan at step 35"),
        ({8: torch.nan}, 0.0, 40, "the loss is nan at step 39"),
        ({}, torch.inf, 37, "a weight is no finite number after step 37"),
    ):
        state.losses = torch.tensor([losses.get(k, 0.0) for k in range(10)])
        state.step = step
        torch.nn.init.constant_(model.weight, weight)
        with pytest.raises(checkpoints.Diverged, match=sentence) as caught:
            state.require_finite(tmp_path)
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
