"""What the training side stands on: schedules against PyTorch's, checkpoints that nothing spoils, logs."""

from __future__ import annotations

import hashlib
import io
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from training_cases import TINY

from sslbook.training.presets.papers import run_of
from sslbook.training.run import checkpoints, trainer
from sslbook.training.run.parts import load_data
from sslbook.training.run.settings import SCHEDULES, Length, Refused, Settings, cosine, released
from sslbook.training.run.trainer import train


def torchs(epochs: int, period: int) -> list[float]:
    """PyTorch's own cosine, stepped as the released code steps it: after each epoch from the eleventh on."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=period)
    rates = []
    for epoch in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if epoch >= 10:
            schedule.step()
    return rates


@pytest.mark.parametrize("period", [39, 390, 820])
def test_the_released_schedule_is_torchs_cosine_stepped_once_an_epoch(period: int) -> None:
    ours = [released(epoch * period + period // 2, Length(period, 500)) for epoch in range(500)]
    theirs = torchs(500, period)
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-9
    stepped_from_the_start = [released((epoch + 10) * period, Length(period, 500)) for epoch in range(500)]
    assert max(abs(a - b) for a, b in zip(stepped_from_the_start, theirs, strict=True)) > 1e-3


def test_the_cosine_is_torchs_after_its_warm_up() -> None:
    length = Length(steps=7, epochs=20, warmup=3)
    rates = [cosine(step, length) for step in range(140)]
    assert rates[:21] == pytest.approx([(step + 1) / 21 for step in range(21)])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=119)
    theirs = []
    for _ in range(119):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[21:] == pytest.approx(theirs, abs=1e-12)


def test_only_the_cosine_depends_on_the_length() -> None:
    for name, schedule in SCHEDULES.items():
        same = all(schedule(step, Length(10, 20)) == schedule(step, Length(10, 50)) for step in range(200))
        assert same == (name != "cosine")


def content(step: int) -> dict:
    words = {"settings": "{}", "hash": "0123456789", "precision": "float32", "rows": "[]"}
    numbers = {"seed": 0, "step": step, "seconds": 1.5, "losses": torch.zeros(3)}
    return words | numbers | {"model": {"weights": torch.full((1000,), float(step))}, "optimizer": {}}


def test_a_checkpoint_comes_back_and_the_last_two_stay(tmp_path: Path) -> None:
    for step in (5, 10, 100):
        checkpoints.save(tmp_path, step, content(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010.pt", "step-000000100.pt"]
    loaded = checkpoints.latest(tmp_path, pytest.fail)
    assert loaded is not None
    assert loaded["step"] == 100
    assert torch.equal(loaded["model"]["weights"], content(100)["model"]["weights"])
    assert checkpoints.newest_step(tmp_path) == 100
    checkpoints.clear(tmp_path)
    assert checkpoints.latest(tmp_path, pytest.fail) is None
    assert checkpoints.newest_step(tmp_path) is None


def passed_over(folder: Path) -> list[str]:
    """What is said while the checkpoint of step 1 is taken, and not the newest."""
    said: list[str] = []
    loaded = checkpoints.latest(folder, said.append)
    assert loaded is not None
    assert loaded["step"] == 1
    return said


def spoilt(folder: Path) -> dict[str, bytes]:
    """What a checkpoint's file may hold, with and without a right checksum."""
    whole = checkpoints.save(folder, 2, content(2)).read_bytes()
    middle, buffer = len(whole) // 2, io.BytesIO()
    torch.save([1, 2], buffer)
    framed = {
        name: checkpoints.MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload
        for name, payload in (("a list", buffer.getvalue()), ("a broken archive", buffer.getvalue()[:-40]))
    }
    altered = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    return framed | {"truncated": whole[:-100], "altered": altered, "empty": b"", "foreign": b"no checkpoint\n" + whole}


def test_what_is_in_a_checkpoints_place_is_passed_over_by_name(tmp_path: Path) -> None:
    newest = tmp_path / "step-000000002.pt"
    for name, instead in spoilt(tmp_path).items():
        checkpoints.save(tmp_path, 1, content(1))
        newest.write_bytes(instead)
        (said,) = passed_over(tmp_path)
        assert newest.name in said, name
        assert said.endswith("The one before it is used."), name
        (tmp_path / "step-000000001.pt").write_bytes(b"")
        told: list[str] = []
        assert checkpoints.latest(tmp_path, told.append) is None, name
        assert told[-1].endswith("Starting from the beginning.")
    checkpoints.save(tmp_path, 1, content(1))
    newest.unlink()
    newest.mkdir()
    assert passed_over(tmp_path) == []
    newest.rmdir()
    newest.symlink_to(tmp_path / "gone.pt")
    assert len(passed_over(tmp_path)) == 1


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        *((part, None) for part in ("settings", "losses", "optimizer")),
        *(("step", step) for step in (2.0, True, -2)),
    ],
)
def test_a_checkpoint_with_a_damaged_part_is_passed_over(tmp_path: Path, part: str, instead: object) -> None:
    checkpoints.save(tmp_path, 1, content(1))
    for damaged in (content(2) | {part: instead}, {name: held for name, held in content(2).items() if name != part}):
        newest = checkpoints.save(tmp_path, 2, damaged)
        with pytest.raises(ValueError, match=rf"step-000000002\.pt holds no checkpoint: its {part} is"):
            checkpoints.load(newest)
        assert [newest.name in sentence for sentence in passed_over(tmp_path)] == [True]


def tiny(*changes: str) -> Settings:
    return run_of("digits-simclr-nce", seed=0, epochs=2, changes=(*TINY, *changes)).settings


@pytest.mark.parametrize("damage", [{"rows": "[{}]"}, {"rows": "["}, {"losses": torch.zeros(1)}, {"model": {}}])
def test_a_checkpoint_damaged_within_is_refused_in_a_sentence(tmp_path: Path, damage: dict) -> None:
    go = partial(train, tiny("evaluate=0"), tmp_path, device="cpu", quiet=True, stop_after=1)
    go()
    checkpoints.save(tmp_path, 1, checkpoints.load(tmp_path / "step-000000001.pt") | damage)
    with pytest.raises(Refused, match=r"the checkpoint in .* is damaged, or of other images: .*; begin anew"):
        go()


def test_test_images_that_networks_and_views_can_not_take_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    asked = tiny()
    images, test = load_data(asked)
    for change, said in (
        ({"pixels": test.pixels.expand(-1, 3, -1, -1)}, "networks.channels must be 3"),
        ({"pixels": test.pixels[..., :4]}, "pipeline=digits is not for digits-test"),
        ({"pixels": test.pixels[:0], "labels": test.labels[:0]}, "digits-test must hold one image or more"),
    ):
        with pytest.raises(Refused, match=f"^{said}"):
            train(asked, tmp_path, data=(images, replace(test, **change)), device="cpu", quiet=True)
        assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_can_not_run_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    path = checkpoints.save(tmp_path, 1, {"trap": Trap()})
    with pytest.raises(ValueError, match=r"step-000000001\.pt can't be read with weights_only"):
        checkpoints.load(path)
    assert not (tmp_path / "sprung").exists()


def test_a_process_killed_while_it_writes_leaves_the_last_good_one(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, content(1))
    child = os.fork()
    if child == 0:  # dies after half of the file
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.save(tmp_path, 2, content(2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert any(path.name.startswith(".step-000000002") for path in tmp_path.iterdir())
    loaded = checkpoints.latest(tmp_path, pytest.fail)
    assert loaded is not None
    assert loaded["step"] == 1
    checkpoints.save(tmp_path, 3, content(3))
    assert any(path.name.startswith(".step-000000002") for path in tmp_path.iterdir()), "it may be another process's"
    with checkpoints.locked(tmp_path):  # clears away what the dead one left
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "step-000000001.pt", "step-000000003.pt"]


def test_a_folder_is_one_processs_at_a_time(tmp_path: Path) -> None:
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        with checkpoints.locked(tmp_path / "run"):
            os.write(there, b"held")
            signal.pause()
    os.read(here, 4)
    with (
        pytest.raises(checkpoints.Busy, match="run is being trained by another process"),
        checkpoints.locked(tmp_path / "run"),
    ):
        pytest.fail("both hold it")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with checkpoints.locked(tmp_path / "run"):
        pass  # the system let it go


def test_curves_of_a_resumed_run_begin_where_it_does(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, step in ((1, 10), (11, 20), (15, 25)):
        writer = trainer.curves(tmp_path, first)
        trainer.draw(writer, {"epoch": 1, "step": step, "loss": float(step)})
        writer.close()
        (made,) = tmp_path.glob("events*")
        made.rename(tmp_path / f"{first:02}.tfevents")  # TensorBoard reads files in the order of their names
    shown = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [point.step for point in shown.Scalars("loss")] == [10, 25]
