"""A run that is killed and goes on is the run that was never killed, bit for bit; and what stops a run leaves it whole."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import training_cases
from filelock import FileLock
from torch.nn import functional as F

from sslbook import _machine as compute
from sslbook.networks.siamese import build
from sslbook.training.augment import apply, draws
from sslbook.training.papers import run_of
from sslbook.training.run import checkpoints, distributed, trainer
from sslbook.training.run import step as steps
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import Batches, load_data
from sslbook.training.run.trainer import Diverged, train

TINY = (*training_cases.TINY, "evaluate=2")


@pytest.fixture(scope="module")
def data() -> tuple:
    return load_data(run_of("digits-simclr-nce", seed=0, changes=TINY).settings)


def settings(*changes: str, preset: str = "digits-simclr-nce", epochs: int = 2) -> Settings:
    return run_of(preset, seed=0, epochs=epochs, changes=(*TINY, *changes)).settings


def go(asked: Settings, folder: Path, data: tuple, **options: Any) -> trainer.Result:
    return train(asked, folder, data=data, **{"device": "cpu", "quiet": True, **options})


def epochs_of(folder: Path) -> list[str]:
    """The epochs of a run's log."""
    with (folder / checkpoints.LOG).open() as file:
        return [row["epoch"] for row in csv.DictReader(file)]


def same_weights(one: trainer.Result, other: trainer.Result) -> bool:
    first, second = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_is_its_loop_written_out(tmp_path: Path, data: tuple) -> None:
    """BYOL by plain SGD: orders, views, loss, rates, weight decay, target and noise, a step after the other."""
    sgd = ("optimizer=sgd", "lr=0.05", "weight_decay=0.01", "schedule=cosine", "ema=0.5", "ema_end=1", "symmetric=true")
    between = ("predictor_lr=3", "noise=0.1", "networks.predictor_hidden=8", "evaluate=0")
    asked = settings(*sgd, *between, preset="digits-byol")
    run = go(asked, tmp_path, data)
    model, pipeline = build(asked.networks, asked.seed), steps.PIPELINES["digits"]
    towers = [(model.encoder, model.target_encoder), (model.projector, model.target_projector)]
    slow = [*model.encoder.parameters(), *model.projector.parameters()]
    groups = [{"params": slow}, {"params": model.predictor.parameters()}]
    optimizer = torch.optim.SGD(groups, 1.0, 0.9, weight_decay=0.01)
    losses = []
    for step in range(4):
        if step == 2:
            model.blend_noise(0.1, steps.generator(asked.seed, "noise", 1))
        falling = 0.5 * (1 + math.cos(math.pi * step / 4))
        order = torch.randperm(128, generator=steps.generator(asked.seed, "order", step // 2))
        batch = order[step % 2 * 64 :][:64]
        views = [apply(data[0].pixels[batch], pipeline, draws(64, asked.seed, step, view)) for view in (0, 1)]
        out = model(*views)
        cosines = [F.cosine_similarity(p, t.detach()) for p, t in ((out.p1, out.t2), (out.p2, out.t1))]
        loss = -2 * sum(cosines).mean()
        optimizer.zero_grad()
        loss.backward()
        for group, factor in zip(optimizer.param_groups, (1, 3), strict=True):
            group["lr"] = 0.05 * falling * factor
        optimizer.step()
        model.symmetrize_predictor()
        keep = 1 - 0.5 * falling
        with torch.no_grad():
            for ours, theirs in towers:
                for weights, followed in zip(theirs.parameters(), ours.parameters(), strict=True):
                    weights.copy_(keep * weights + (1 - keep) * followed)
        losses.append(loss.item())
    for name, value in run.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-3, atol=1e-4)
    assert [row["loss"] for row in run.rows] == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2], rel=1e-5)
    assert [row["lr"] for row in run.rows] == pytest.approx(
        [0.05 * 0.5 * (1 + math.cos(math.pi * k / 4)) for k in (1, 3)]
    )


def test_a_new_predictor_comes_between_epochs(tmp_path: Path, data: tuple) -> None:
    asked = settings("evaluate=0", "networks.predictor_hidden=8", preset="digits-byol")
    one, other = (go(replace(asked, reset=reset), tmp_path / str(reset), data).rows for reset in (0, 1))
    assert one[0]["loss"] == other[0]["loss"]
    assert abs(one[1]["loss"] - other[1]["loss"]) > 1e-3


BYOL = (
    "reset=1",
    "noise=0.1",
    "symmetric=true",
    "ema_end=1",
    "networks.predictor_hidden=8",
    "drop_last=false",
    "batch=48",
)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [("digits-simclr-nce", ()), ("digits-byol", BYOL), ("digits-byol", ("optimizer=sgd", "predictor_lr=10"))],
)
def test_a_run_stopped_and_resumed_is_the_one_left_alone(
    preset: str, changes: tuple, tmp_path: Path, data: tuple
) -> None:
    """In the middle of an epoch and at its end; its rows, log and result are the same too.  It begins with given weights."""
    asked = settings(*changes, preset=preset)
    first = {"weights": build(asked.networks, 7).state_dict()}
    whole = go(asked, tmp_path / "whole", data, **first)
    per_epoch = Batches(asked, 128).per_epoch
    for stop in (1, per_epoch, per_epoch + 1):
        part = go(asked, tmp_path / "parts", data, stop_after=stop, **first)
        assert (part.step, part.finished) == (stop, False)
        assert not (tmp_path / "parts" / checkpoints.RESULT).exists()
    rest = go(asked, tmp_path / "parts", data, **first)
    assert rest.finished
    assert same_weights(whole, rest)
    clock, runs = ("seconds", "images_per_second"), (whole, rest, go(asked, tmp_path / "drawn", data))
    one, other, drawn = ([{k: v for k, v in row.items() if k not in clock} for row in run.rows] for run in runs)
    assert one == other != drawn
    assert epochs_of(tmp_path / "parts") == ["0", "1", "2"]
    result = json.loads((tmp_path / "parts" / checkpoints.RESULT).read_text())
    assert (result["hash"], result["rows"]) == (asked.hash(), rest.rows)
    assert go(asked, tmp_path / "parts", data, **first).rows == rest.rows, "nothing is left to do"


def test_another_runs_folder_is_refused(tmp_path: Path, data: tuple) -> None:
    go(settings(), tmp_path, data, stop_after=1)
    with pytest.raises(ValueError, match=r"holds another run \(lr .*, now 0.5\); choose another folder"):
        go(settings("lr=0.5"), tmp_path, data)
    fewer = data[0].take(slice(64))
    go(settings("subset=64"), tmp_path / "other", (fewer, data[1]), stop_after=1)
    with pytest.raises(ValueError, match="of other networks or images"):
        go(settings("subset=64"), tmp_path / "other", data)
    with FileLock(tmp_path / ".lock"), pytest.raises(checkpoints.Busy, match="is being trained by another process"):
        go(settings(), tmp_path, data)
    assert go(settings("lr=0.5"), tmp_path, data, resume=False).finished


def test_a_run_that_diverges_stops_says_where_and_keeps_its_checkpoint(
    tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the midst of a long epoch."""
    monkeypatch.setattr(trainer, "LONG_SECONDS", -1)
    asked = settings("evaluate=0", epochs=4)
    options = {"backbone": (build(asked.networks, 0).encoder, 16), "pipeline": steps.PIPELINES["digits"]}

    def poison(step: int) -> None:
        if step == 3:
            with torch.no_grad():
                next(options["backbone"][0].parameters())[0] = torch.nan

    with pytest.raises(Diverged, match=r"the loss is nan at step 4; the checkpoint of step 3 stays") as caught:
        go(asked, tmp_path, data, on_step=poison, **options)
    assert caught.value.step == 4
    assert not (tmp_path / checkpoints.RESULT).exists()
    assert (tmp_path / checkpoints.DIVERGED).read_text() == "diverged at step 4\n"
    assert all(value.isfinite().all() for value in checkpoints.latest(tmp_path)["model"].values())
    assert go(asked, tmp_path, data, **options).finished
    assert not (tmp_path / checkpoints.DIVERGED).exists()


def test_a_run_that_is_begun_anew_is_not_finished_until_it_is(tmp_path: Path, data: tuple) -> None:
    go(settings(), tmp_path, data)
    (tmp_path / "curves").mkdir()

    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(settings(), tmp_path, data, resume=False, on_step=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log.csv"]
    assert epochs_of(tmp_path) == ["0"], "the new run's"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_leaves_a_checkpoint(tmp_path: Path, data: tuple, number: signal.Signals) -> None:
    """At once within a step, and before the first one.  A shell may have ignored SIGINT for what it runs in the background."""
    before = signal.signal(number, signal.default_int_handler)
    whole = go(settings(), tmp_path / "whole", data)
    for tries in (1, 2):
        with pytest.raises(compute.Stopped, match="stopped; the same command goes on") as stopped:
            go(settings(), tmp_path / "parts", data, on_step=lambda step: os.kill(os.getpid(), number))
        assert stopped.value.number == number
        assert signal.getsignal(number) is signal.default_int_handler
        assert checkpoints.latest(tmp_path / "parts")["step"] == 2 * tries  # heard after a step, obeyed after the next
    assert same_weights(whole, go(settings(), tmp_path / "parts", data))
    signal.signal(number, before)


def test_a_callback_may_look_and_changes_nothing(tmp_path: Path, data: tuple) -> None:
    looked, alone = (build(settings().networks, 0).encoder for _ in range(2))

    def meddle(row: dict) -> None:
        row.clear()
        torch.manual_seed(1)
        for weights in looked.eval().parameters():
            weights.data.zero_()

    given = {"pipeline": steps.PIPELINES["digits"]}
    one = go(settings(), tmp_path / "looked", data, backbone=(looked, 16), on_epoch=meddle, **given)
    other = go(settings(), tmp_path / "alone", data, backbone=(alone, 16), **given)
    assert same_weights(one, other)
    assert [row["loss"] for row in one.rows[1:]] == [row["loss"] for row in other.rows[1:]]


def test_precision_is_what_is_asked_and_goes_on_as_it_began(
    tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(settings("precision=bfloat16"), tmp_path / "whole", data)
    for wanted, has, large, low in (
        ("auto", False, 0, False),
        ("auto", True, 10**6, False),
        ("float32", True, 0, False),
        ("bfloat16", False, 10**6, True),
        ("auto", True, 0, True),
    ):
        monkeypatch.setattr(steps, "has_bfloat16", lambda has=has: has)
        monkeypatch.setattr(steps, "LARGE", large)
        found = steps.Step(settings(f"precision={wanted}"), data[0], torch.device("cpu")).precision
        assert found == (torch.bfloat16 if low else torch.float32)
    go(settings(), tmp_path / "parts", data, stop_after=1)
    monkeypatch.undo()
    assert same_weights(whole, go(settings(), tmp_path / "parts", data))
    assert not same_weights(whole, go(settings(), tmp_path / "full", data))
    assert {weights.dtype for weights in whole.model.parameters()} == {torch.float32}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_is_the_eager_one(tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last batch of an epoch is not full, and where the run is resumed."""
    asked = ("precision=float32", "evaluate=0", "batch=48", "drop_last=false", "shuffle=true", "optimizer=sgd")
    held, options = settings(*asked), {"data": data, "device": "cuda", "quiet": True}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # nor digits that a convolution drops
        train(held, tmp_path / "held", **options, stop_after=2)
        captured = train(held, tmp_path / "held", **options)
        monkeypatch.setattr(steps, "GRAPHS", False)
        eager = train(held, tmp_path / "eager", **options)
    assert [row["loss"] for row in captured.rows] == pytest.approx([row["loss"] for row in eager.rows], rel=1e-3)
    other = captured.model.state_dict()
    for name, value in eager.model.state_dict().items():
        assert torch.allclose(value.float(), other[name].float(), rtol=1e-2, atol=1e-3), name


def test_views_and_orders_are_functions_of_the_step() -> None:
    asked = replace(settings(), batch=8, shuffle=True)
    batches, other = (Batches(replace(asked, seed=seed), 100) for seed in (0, 1))
    one, next_one, again = (torch.cat([batches.at(12 * epoch + k)[0] for k in range(12)]) for epoch in (3, 4, 3))
    assert torch.equal(one, again)
    assert not torch.equal(one, next_one)
    assert not torch.equal(one[:8], other.at(36)[0])
    assert len(set(one.tolist()) & set(range(100))) == 96
    first = batches.at(5)[1]
    assert torch.equal(first, batches.at(5)[1])
    for another in (batches.at(5)[2], batches.at(6)[1], other.at(5)[1]):
        assert not torch.equal(first, another)
    further = {"objective": "exact", "loss_kwargs": {"weights": "further"}}
    still = Batches(replace(asked, shuffle=False, drop_last=False, **further), 100)
    assert (batches.per_epoch, still.per_epoch) == (12, 13)
    assert [len(part) for part in still.at(12)] == [4] * 5
    assert still.at(13)[0].tolist() == list(range(8))


def test_processes_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(settings(), batch=8)
    whole, parts = Batches(asked, 128).at(5), []
    monkeypatch.setattr(distributed, "world", lambda: 2)
    for rank in (0, 1):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        parts.append(Batches(asked, 128).at(5))
    for number, all_rows in enumerate(whole):
        assert torch.equal(torch.cat([part[number] for part in parts]), all_rows)
    with pytest.raises(ValueError, match="batch must be a multiple of the 2 processes"):
        Batches(replace(asked, batch=63), 128)
    with pytest.raises(ValueError, match="2 processes can't share a last batch of 2"):
        Batches(replace(asked, batch=64, drop_last=False), 130)
