"""The timed stages run, and count what a ResNet-18 costs."""

from __future__ import annotations

import pytest

from sslbook.bench import _training_stages as stages
from sslbook.training.networks.siamese import Networks

TINY = Networks(width=4, projector_hidden=16, projector_out=8, predictor=2, predictor_hidden=16, target="ema")


def test_every_stage_has_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "REPEATS", 1)
    for speed in (
        stages.measure_forward(TINY, size=16, batch=4),
        stages.measure_step(TINY, "byol", size=16, batch=4),
    ):
        assert speed.images == pytest.approx(4 / speed.seconds)
        assert speed.flops > 0
    assert set(stages.measure_evaluate(8, train=300, test=50)) == {"knn", "linear epoch"}
    assert stages.measure_rate() > 1e8


def test_operations_are_those_of_the_standard_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.56 billion multiplications and additions for an image of 32 pixels at width 64: 1/16 of it at width 16, nearly."""
    monkeypatch.setattr(stages, "REPEATS", 1)
    speed = stages.measure_forward(Networks(width=16), batch=2)
    multiplications = speed.flops * speed.seconds / 2 / 2
    assert multiplications == pytest.approx(0.557e9 / 16, rel=0.02)


def test_every_stage_gives_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network and a data set that cost nothing; the numbers are for reading."""
    from sslbook.bench import _training_rows as rows
    from sslbook.bench import training as bench

    monkeypatch.setattr(rows, "SMALL_WIDTH", 2)
    monkeypatch.setattr(rows, "SMALL_IMAGES", 256)
    monkeypatch.setattr(rows, "TESTS", 64)
    monkeypatch.setattr(rows, "device", lambda: "cpu")
    found = {}
    for name in ("forward", "step", "epoch", "evaluate"):
        found[name] = bench.STAGES[name](quick=True)
        assert all(row.value > 0 for row in found[name])
    assert [row.bar for row in found["epoch"]] == [None, None, rows.MINUTES_BAR]
    assert found["evaluate"][-1].bar == 5.0
