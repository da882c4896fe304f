"""The benchmarks: what they measure at small sizes, their verdicts and their exit status."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from benchmarks import Row, tables, training
from benchmarks import covariance as bench
from sslbook import cli
from sslbook.networks.small import mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator


def test_quick_run_measures_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bars of time and memory are held to is this machine; here every other one is met."""
    for name in ("SECONDS_BAR", "MEMORY_BAR"):
        monkeypatch.setattr(bench, name, math.inf)
    assert cli.main(["bench", "covariance", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"cores", "threads", "torch"} <= set(found["machine"])
    rows = {(row["part"].split(",")[0], row["what"]): row for row in found["rows"]}
    whats = {what for _, what in rows}
    assert {"simple", "beta < 0", "beta > 0", "intra", "soft_triplet", "info_nce", "l2", "l2, info_nce"} <= whats
    assert {"largest relative residual", "peak memory of the process"} <= whats
    assert sum("forward + backward" in part for part, _ in rows) == 5  # two layers of the MLP, three of the conv net
    for row in found["rows"]:
        assert math.isfinite(row["value"])
        assert row["value"] >= 0
        assert row["verdict"] == ("" if row["bar"] is None else "ok")


def test_a_missed_bar_is_exit_status_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row("a", "even", 2.0, "s", 2.0), Row("a", "slow", 3.0, "s", 2.0), Row("b", "free", 9.0)]
    rows += [Row("a", name, value, "x", 9.0, at_least=True) for name, value in (("few", 8.0), ("none", math.nan))]
    monkeypatch.setattr(bench, "run", lambda *, quick: rows)
    assert bench.main([]) == 1
    out = capsys.readouterr().out
    assert re.search(r"slow +3 +s +<= 2 +MISSED", out)
    assert re.search(r"few +8 +x +>= 9 +MISSED", out)
    assert [row.verdict for row in rows] == ["ok", "MISSED", "", "MISSED", "MISSED"]
    assert "1 of 4 bars are met." in out
    monkeypatch.setattr(bench, "run", lambda *, quick: rows[:1])
    assert bench.main([]) == 0


def test_the_error_sees_a_wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    _, views = bench.population((4,), 3, 2, seed=0, dtype=torch.float64)
    op = covariance_operator(mlp((4, 5, 2)), "0", views)
    assert bench.product_error(op) < 1e-13
    right = CovarianceOperator.apply_transpose
    monkeypatch.setattr(CovarianceOperator, "apply_transpose", lambda self, d: right(self, d) * (1 + 1e-9))
    assert 1e-11 < bench.product_error(op) < 1e-8
    monkeypatch.setattr(CovarianceOperator, "apply", lambda self, d: d * math.nan)
    assert math.isnan(bench.product_error(op))


def test_every_stage_gives_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a network and a data set that cost nothing; the numbers are for reading."""
    for name, small in (("SMALL_WIDTH", 2), ("SMALL_IMAGES", 256), ("TESTS", 64)):
        monkeypatch.setattr(training, name, small)
    monkeypatch.setattr(training, "_device", lambda: "cpu")
    stages = [stage for stage in training.STAGES if stage != "capture"]  # which waits for a compiler
    assert cli.main(["bench", "training", *stages, "--quick", "--json"]) in (0, 1)
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert all(row["value"] > 0 for row in rows.values())
    bars = {"ours is faster by the clock": 5, "10 epochs and two looks": 4, "share of 5 epochs of training": 5}
    assert {what: row["bar"] for what, row in rows.items() if row["bar"] is not None} == bars


def test_operations_are_those_of_the_standard_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.56 billion multiplications and additions for an image of 32 pixels at width 64: 1/16 of it at width 16, nearly."""
    monkeypatch.setattr(training, "_device", lambda: "cpu")
    rows = {row.what: row.value for row in training.forward(0.0)}
    multiplications = rows["arithmetic"] * 1e12 / rows["images"] / 2
    assert multiplications == pytest.approx(0.557e9 / 16, rel=0.02)


@pytest.mark.usefixtures("one_thread")
def test_tables_are_on_the_line_and_replicas_as_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not minibatches of four: 200 steps on those make a rounding visible, on processors that round a batch otherwise.
    monkeypatch.setattr(tables, "PROTOCOL", replace(tables.PROTOCOL, depth=3, batch=32))
    monkeypatch.setattr(tables, "process_pool", Inline)
    for name in ("trees_seconds", "tokens_seconds"):
        monkeypatch.setattr(tables, name, lambda size, processes: 1.0 + size / 128)
    assert cli.main(["bench", "tables", "--quick", "--json", "--processes", "1"]) == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["minutes of Table 6 of A"]["value"] * 60 == pytest.approx(1 + 64_000 / 128)
    assert rows["minutes of Table 1 of C"]["value"] * 60 == pytest.approx(1 + 5_000 / 128)
    bars = {row["what"]: row["bar"] for row in rows.values() if row["bar"] is not None}
    alone = {"trees, torch.float32": 1e-6, "trees, torch.float64": 1e-12}
    alone |= {"tokens, torch.float32": 1e-5, "tokens, torch.float64": 1e-12}
    assert bars == {"minutes of Table 6 of A": 12, "minutes of Table 1 of C": 20, **alone}
    assert rows["10 units: samples"]["value"] > 0


class Inline:
    """A pool that runs what is submitted at once, in this process."""

    def __init__(self, processes: int) -> None:
        assert processes == 1

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, call: Callable[[int], object], count: int) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(call(count))
        return done


def test_the_product_beside_curvlinops_is_the_same() -> None:
    pytest.importorskip("curvlinops")
    _, views = bench.population((4,), 3, 2, seed=0, dtype=torch.float64)
    (ratio, apart) = bench._beside_curvlinops(bench.mlp((4, 5, 3), seed=0), "2", views)
    assert ratio.value > 0
    assert apart.value < 1e-12
