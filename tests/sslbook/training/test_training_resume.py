"""A run that is killed and goes on is the run that was never killed, bit for bit; and what stops a run leaves it whole."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import training_cases
from training_cases import read_csv

from sslbook import _machine as compute
from sslbook.networks.siamese import build
from sslbook.training.presets.papers import run_of
from sslbook.training.run import checkpoints, distributed, parts, trainer
from sslbook.training.run.determinism import Batches
from sslbook.training.run.parts import load_data, make_batches
from sslbook.training.run.settings import Refused
from sslbook.training.run.trainer import Diverged, train

TINY = (*training_cases.TINY, "evaluate=2")


@pytest.fixture(scope="module")
def data() -> tuple:
    return load_data(run_of("digits-simclr-nce", seed=0, changes=TINY).settings)


def settings(*changes: str, preset: str = "digits-simclr-nce", epochs: int = 2) -> trainer.Settings:
    return run_of(preset, seed=0, epochs=epochs, changes=(*TINY, *changes)).settings


def go(asked: trainer.Settings, folder: Path, data: tuple, **options: Any) -> trainer.Result:
    return train(asked, folder, data=data, **{"device": "cpu", "quiet": True, **options})


def same_weights(one: trainer.Result, other: trainer.Result) -> bool:
    first, second = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_stopped_and_resumed_tells_the_same_story(tmp_path: Path, data: tuple) -> None:
    whole = go(settings(), tmp_path / "whole", data)
    half = go(settings(), tmp_path / "parts", data, stop_after=3)
    assert (half.step, half.finished) == (3, False)
    assert not (tmp_path / "parts" / checkpoints.RESULT).exists()
    rest = go(settings(), tmp_path / "parts", data)
    assert rest.finished
    assert [row["loss"] for row in rest.rows[1:]] == [row["loss"] for row in whole.rows[1:]]
    assert [row["epoch"] for row in read_csv(tmp_path / "parts" / "log.csv")] == [0, 1, 2]
    result = json.loads((tmp_path / "parts" / checkpoints.RESULT).read_text())
    assert result["hash"] == settings().hash()
    assert result["rows"][-1]["linear"] == whole.rows[-1]["linear"]
    again = go(settings(), tmp_path / "parts", data)  # nothing is left to do
    assert again.rows == rest.rows


def test_a_predictor_learns_at_a_rate_of_its_own_also_when_resumed(tmp_path: Path, data: tuple) -> None:
    """After one step of SGD the predictor has moved ten times as far, and nothing else has moved otherwise."""
    steady = ("optimizer=sgd", "momentum=0", "weight_decay=0", "evaluate=0", "ema=0.5", "ema_end=1")
    plain, faster = (
        settings(*steady, preset="digits-byol"),
        settings(*steady, "predictor_lr=10", preset="digits-byol"),
    )
    start = build(plain.networks, plain.seed).state_dict()
    one, ten = (
        go(asked, tmp_path / name, data, stop_after=1).model.state_dict()
        for name, asked in (("plain", plain), ("faster", faster))
    )
    for name, weights in start.items():
        if name.startswith("predictor.linears"):
            torch.testing.assert_close(ten[name] - weights, 10 * (one[name] - weights), rtol=1e-3, atol=1e-6)
        else:
            assert ten[name].equal(one[name]), name
    whole = go(faster, tmp_path / "whole", data)
    assert same_weights(go(faster, tmp_path / "faster", data), whole)


def test_a_longer_run_goes_on_where_the_shorter_one_ended(tmp_path: Path, data: tuple) -> None:
    steady = ("schedule=released", "evaluate=0")
    whole = go(settings(*steady, epochs=3), tmp_path / "whole", data)
    go(settings(*steady, epochs=1), tmp_path / "parts", data)
    longer = go(settings(*steady, epochs=3), tmp_path / "parts", data)
    assert [row["epoch"] for row in longer.rows] == [1, 2, 3]
    assert same_weights(whole, longer)


def test_another_runs_folder_is_refused(tmp_path: Path, data: tuple) -> None:
    go(settings(), tmp_path, data, stop_after=1)
    with pytest.raises(ValueError, match=r"another run: .* with seed 0, and this is .* \(lr .*, now 0.5\); choose"):
        go(settings("lr=0.5"), tmp_path, data)
    fresh = go(settings("lr=0.5"), tmp_path, data, resume=False)
    assert fresh.finished


def test_a_run_that_diverges_stops_says_where_and_keeps_its_checkpoint(tmp_path: Path, data: tuple) -> None:
    asked = settings("evaluate=0", epochs=4)
    with trainer.prepared(asked, tmp_path, data=data, device="cpu", quiet=True) as run:

        def poison(step: int) -> None:
            if step == 3:
                with torch.no_grad():
                    next(iter(run.state.model.encoder.parameters()))[0] = torch.nan

        with pytest.raises(Diverged, match=r"the loss is nan at step 4; the checkpoint of step 3 stays") as caught:
            run.go(save_every=1, on_step=poison)
    assert caught.value.step == 4
    assert not (tmp_path / checkpoints.RESULT).exists()
    assert (tmp_path / checkpoints.DIVERGED).read_text() == "diverged at step 4\n"
    good = checkpoints.latest(tmp_path, pytest.fail)
    assert good is not None
    assert good["step"] == 3
    assert all(value.isfinite().all() for value in good["model"].values())
    assert go(asked, tmp_path, data).finished
    assert not (tmp_path / checkpoints.DIVERGED).exists()


def test_a_run_that_is_begun_anew_is_not_finished_until_it_is(tmp_path: Path, data: tuple) -> None:
    go(settings(), tmp_path, data)
    (tmp_path / "curves").mkdir()

    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(settings(), tmp_path, data, resume=False, on_step=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log.csv"]
    assert [row["epoch"] for row in read_csv(tmp_path / "log.csv")] == [0], "the new run's"


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as a terminal has it: a shell starts what it runs in the background with that signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", compute.STOPS)
def test_a_run_that_is_told_to_stop_leaves_a_checkpoint(tmp_path: Path, data: tuple, number: signal.Signals) -> None:
    whole = go(settings(), tmp_path / "whole", data)
    if (usual := signal.getsignal(number)) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup, which is heeded")
    with pytest.raises(compute.Stopped, match="stopped; the same command goes on") as stopped:
        go(settings(), tmp_path / "parts", data, on_step=lambda step: os.kill(os.getpid(), number))
    assert compute.status(stopped.value) == 128 + number
    assert signal.getsignal(number) is usual
    assert checkpoints.newest_step(tmp_path / "parts") == 2  # heard after the first step, obeyed after the second
    rest = go(settings(), tmp_path / "parts", data)
    assert same_weights(whole, rest)


def test_a_run_that_is_told_to_stop_before_its_first_step_leaves_a_checkpoint_too(tmp_path: Path, data: tuple) -> None:
    whole = go(settings(), tmp_path / "whole", data)
    with trainer.prepared(settings(), tmp_path / "parts", data=data, device="cpu", quiet=True) as run:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(compute.Stopped):
            run.go()
    assert checkpoints.newest_step(tmp_path / "parts") == 0
    rest = go(settings(), tmp_path / "parts", data)
    assert [row["loss"] for row in rest.rows[1:]] == [row["loss"] for row in whole.rows[1:]]


def test_a_run_whose_lines_nobody_reads_any_more_stops_with_a_checkpoint(
    tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        with pytest.raises(compute.Stopped) as stopped:
            train(settings(), tmp_path, data=data, device="cpu")
        with pytest.raises(BrokenPipeError):
            gone.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)
    assert (compute.status(stopped.value), checkpoints.newest_step(tmp_path)) == (141, 1)


def test_long_epochs_have_checkpoints_too(tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "LONG_SECONDS", 0.0)
    seen = []
    go(settings(epochs=1), tmp_path, data, on_step=lambda step: seen.append(checkpoints.newest_step(tmp_path)))
    assert seen == [1, 2]


def test_another_precision_is_refused(tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(parts, "precision_of", lambda *a: torch.bfloat16)  # as auto is on a GPU
        go(settings(), tmp_path, data, stop_after=1)
    with pytest.raises(ValueError, match=r"was trained in bfloat16 so far, and here precision is float32"):
        go(settings(), tmp_path, data)


def test_auto_counts_the_encoder_and_goes_on_as_it_began(
    tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sum(p.numel() for p in build(settings().networks, 0).encoder.parameters())
    monkeypatch.setattr(parts, "has_bfloat16", lambda: True)
    for large, name in ((weights + 1, "float32"), (weights, "bfloat16")):
        monkeypatch.setattr(parts, "LARGE", large)
        go(settings(), tmp_path / name, data, stop_after=1)
        assert checkpoints.latest(tmp_path / name, print)["precision"] == name
    whole = go(settings("precision=float32"), tmp_path / "whole", data)
    again = go(settings(), tmp_path / "float32", data)
    assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))


def test_a_checkpoint_past_the_epoch_that_is_asked_for(
    tmp_path: Path, data: tuple, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = ("schedule=released", "evaluate=0")
    long = settings(*steady, "probes=1", epochs=3)
    go(long, tmp_path, data, stop_after=6)
    kept = (tmp_path / checkpoints.RESULT).read_text()
    for asked, stop in ((settings(*steady, epochs=1), None), (settings("schedule=released", "probes=1", epochs=3), 2)):
        with pytest.raises(
            Refused, match=r"is at step 6, past the 2 of epoch 1, where this run is to end: choose another"
        ):
            go(asked, tmp_path, data, stop_after=stop)
    assert (tmp_path / checkpoints.RESULT).read_text() == kept
    assert (
        "accuracy after epochs 0, 2 was not measured" in capsys.readouterr().err
    )  # of the second, which looks at both
    with pytest.raises(ValueError, match=r"is at step 6, past epoch 2, after which the linear protocol was not run"):
        go(settings(*steady, epochs=2), tmp_path, data)


def test_the_last_row_gets_what_an_earlier_run_did_not_ask_for(tmp_path: Path, data: tuple) -> None:
    steady = ("schedule=released", "evaluate=0")
    go(settings(*steady, epochs=3), tmp_path, data, stop_after=4)
    short = go(settings(*steady, epochs=2), tmp_path, data)
    assert short.finished
    assert short.rows[-1]["linear"] is not None


def test_a_loss_that_is_no_number_is_named_by_its_step() -> None:
    now = checkpoints.State(settings(), torch.nn.Linear(1, 1), None, torch.zeros(10), step=37)  # type: ignore[arg-type]
    losses = torch.zeros(7)
    checkpoints.check(losses, now)
    losses[4] = torch.nan
    with pytest.raises(Diverged, match="the loss is nan at step 35") as caught:
        checkpoints.check(losses, now)
    assert caught.value.step == 35
    with torch.no_grad():
        now.model.weight.fill_(torch.inf)  # type: ignore[operator]
    with pytest.raises(Diverged, match="a weight is no finite number after step 37"):
        checkpoints.check(torch.zeros(7), now)


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        (("batch=200",), {}, "batch must be at most the 128 images there are, got 200"),
        ((), {"device": "gpu"}, "device must be cpu, cuda or cuda:N, got 'gpu'"),
        ((), {"save_every": -1}, "save_every must be at least 1"),
        (("capture=graph",), {"device": "cpu"}, "capture must be none or compile on cpu"),
    ],
)
def test_what_cannot_be_run_gets_a_sentence(
    tmp_path: Path, data: tuple, changes: tuple, options: dict, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        train(settings(*changes), tmp_path, data=data, quiet=True, **options)


@pytest.mark.parametrize(
    ("wanted", "has", "low"), [("auto", False, False), ("float32", True, False), ("bfloat16", False, True)]
)
def test_a_precision_is_what_is_asked_and_what_is_there(
    wanted: str, has: bool, low: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "has_bfloat16", lambda: has)
    kind = parts.precision_of(wanted, torch.device("cpu"), parts.LARGE)
    assert kind == (torch.bfloat16 if low else torch.float32)


def test_half_precision_trains_and_looks_at_whole_numbers(tmp_path: Path, data: tuple) -> None:
    low = go(settings("precision=bfloat16", "evaluate=0"), tmp_path / "low", data)
    full = go(settings("precision=float32", "evaluate=0"), tmp_path / "full", data)
    assert low.rows[0]["loss"] == pytest.approx(full.rows[0]["loss"], rel=0.02)
    assert low.rows[0]["loss"] != full.rows[0]["loss"]
    assert {weights.dtype for weights in low.model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_a_compiled_step_is_the_eager_one(tmp_path: Path, data: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced, augmentation and loss and gradient; by PyTorch's own kernels, since a compiler takes minutes here."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    asked = ("evaluate=0", "batch=128")
    eager, held = (go(settings(f"capture={how}", *asked), tmp_path / how, data).rows for how in ("none", "compile"))
    assert [row["loss"] for row in held] == pytest.approx([row["loss"] for row in eager], rel=1e-5)
    assert json.loads((tmp_path / "compile" / checkpoints.RESULT).read_text())["capture"] == "compile"


def test_a_graph_is_of_a_whole_batch(data: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first batch that a resumed run sees is the last of its epoch, and not full."""
    asked = settings("batch=48", "drop_last=false")
    step = parts.make_parts(asked, data, torch.device("cpu")).step
    step.capture = "graph"
    recorded = []

    def record(step: parts.Step, *inputs: torch.Tensor) -> None:
        recorded.append([len(part) for part in inputs])
        step._inputs, step._gradients = tuple(part.clone() for part in inputs), []  # type: ignore[assignment]
        step._graph = type("Graph", (), {"replay": lambda self: None})()
        step._result = torch.tensor(1.5)

    monkeypatch.setattr(parts.Step, "_record", record)
    part, whole = (make_batches(asked, 128).at(number) for number in (2, 0))
    assert float(step(*part)) > 2
    assert recorded == []
    assert float(step(*whole)) == 1.5
    assert recorded == [[48, 48, 48]]
    assert float(step(*part)) > 2


def test_processes_agree_on_their_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(into: list, mine: int) -> None:
        into[:] = [mine, 6]

    distributed.agree(5)
    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(distributed.dist, "all_gather_object", gather)
    distributed.agree(6)
    with pytest.raises(
        ValueError, match="the processes read checkpoints of steps 5 and 6: all must see the same folder"
    ):
        distributed.agree(5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("capture", ["graph", *(pytest.param(k, marks=pytest.mark.long) for k in ("compile", "both"))])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_captured_step_is_the_eager_one(tmp_path: Path, data: tuple, capture: str, optimizer: str) -> None:
    """Also where the last batch of an epoch is not full, and where the run is resumed; the loss alone with Adam, whose first
    steps go as far along a gradient of rounding errors as along any other."""
    asked = ("precision=float32", "evaluate=0", "batch=48", "drop_last=false", "shuffle=true", f"optimizer={optimizer}")
    held, options = settings(f"capture={capture}", *asked), {"data": data, "device": "cuda", "quiet": True}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # nor digits that a convolution drops
        eager = train(settings("capture=none", *asked), tmp_path / "eager", **options)
        train(held, tmp_path / "held", **options, stop_after=2)
        captured = train(held, tmp_path / "held", **options)
    assert [row["loss"] for row in captured.rows] == pytest.approx([row["loss"] for row in eager.rows], rel=1e-3)
    one, other = eager.model.state_dict(), captured.model.state_dict()
    for name, value in one.items() if optimizer == "sgd" else ():
        assert torch.allclose(value.float(), other[name].float(), rtol=1e-2, atol=1e-3), name


def test_views_and_orders_are_functions_of_the_step() -> None:
    batches, other = (Batches(100, 8, seed=seed, shuffle=True) for seed in (0, 1))
    assert not torch.equal(batches.order(3), batches.order(4))
    assert not torch.equal(batches.order(3), other.order(3))
    assert sorted(batches.order(3).tolist()) == list(range(100))
    index, one, two = batches.at(5)
    assert torch.equal(index, batches.order(0)[40:48])
    assert all(map(torch.equal, batches.at(5), (index, one, two)))
    for another in (two, batches.at(6)[1], other.at(5)[1]):
        assert not torch.equal(one, another)
    still = Batches(100, 8, seed=0, drop_last=False, views=4)
    assert (batches.per_epoch, still.per_epoch) == (12, 13)
    assert [len(part) for part in still.at(12)] == [4] * 5
    assert still.at(13)[0].tolist() == list(range(8))


def test_processes_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Batches(128, 8, seed=0).at(5), []
    monkeypatch.setattr(distributed, "world", lambda: 2)
    for rank in (0, 1):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        parts.append(Batches(128, 8, seed=0).at(5))
    for number, all_rows in enumerate(whole):
        assert torch.equal(torch.cat([part[number] for part in parts]), all_rows)
    for images, size, said in (
        (128, 63, "batch must be a multiple of the 2 processes, got 63"),
        (129, 64, "drop_last must be true here: the last batch of 1 can't be shared by 2"),
        (130, 64, "the last batch of 2 can't be shared by 2 processes, at least 2 each"),
    ):
        with pytest.raises(ValueError, match=said):
            Batches(images, size, seed=0, drop_last=False)
