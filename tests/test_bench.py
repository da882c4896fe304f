"""The benchmark: what it measures at small sizes, its verdicts and its exit status."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from sslbook import cli
from sslbook.bench import covariance as bench
from sslbook.bench._timing import mean_seconds, medians
from sslbook.connection import Layer
from sslbook.networks import mlp
from sslbook.operators import CovarianceOperator, covariance_operator


def test_quick_run_measures_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "covariance", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"cores", "threads", "torch"} <= set(found["machine"])
    rows = {(row["part"].split(",")[0], row["what"]): row for row in found["rows"]}
    whats = {what for _, what in rows}
    assert {"simple", "beta < 0", "beta > 0", "intra", "soft_triplet", "info_nce", "l2", "l2, info_nce"} <= whats
    assert {"largest relative residual", "peak memory of the process", "dense: one product"} <= whats
    assert sum("forward + backward" in part for part, _ in rows) == 5  # two layers of the MLP, three of the conv net
    for row in found["rows"]:
        assert math.isfinite(row["value"])
        assert row["value"] >= 0
        assert row["verdict"] == ("" if row["bar"] is None else "ok")


def test_a_missed_bar_is_exit_status_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [bench.Row("a", "fast", 1.0, "s", 2.0), bench.Row("a", "slow", 3.0, "s", 2.0), bench.Row("b", "free", 9.0)]
    monkeypatch.setattr(bench, "run", lambda *, quick: rows)
    assert bench.main([]) == 1
    out = capsys.readouterr().out
    assert "slow          3 s    <= 2      MISSED" in out
    assert "1 of 2 bars are met." in out
    monkeypatch.setattr(bench, "run", lambda *, quick: rows[:1])
    assert bench.main([]) == 0


def test_verdicts() -> None:
    assert bench.Row("", "", 1.0, bar=1.0).verdict == "ok"
    assert bench.Row("", "", 1.1, bar=1.0).verdict == "MISSED"
    assert bench.Row("", "", math.nan, bar=1.0).verdict == "MISSED"
    assert bench.Row("", "", 1.1).verdict == ""


def test_bars_are_those_of_the_project() -> None:
    bars = (bench.ERROR_BAR, bench.RATIO_BAR, bench.RESIDUAL_BAR, bench.SECONDS_BAR, bench.MEMORY_BAR)
    assert bars == (1e-12, 1.3, 1e-6, 60, 4)


def test_architectures_stay_below_3000_weights_a_layer_and_come_near_it() -> None:
    sizes = []
    for seed in range(20):
        net, shape = bench.architecture(seed)
        assert net(torch.zeros(1, *shape, dtype=torch.float64)).shape[0] == 1
        sizes += [module.weight.numel() for module in net.modules() if isinstance(module, Layer)]
    assert max(sizes) <= 3000
    assert max(sizes) > 2000


def test_the_error_sees_a_wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    _, views = bench.population((4,), 3, 2, seed=0, dtype=torch.float64)
    op = covariance_operator(mlp((4, 5, 2)), "0", views)
    assert bench.product_error(op) < 1e-14
    right = CovarianceOperator.apply_transpose
    monkeypatch.setattr(CovarianceOperator, "apply_transpose", lambda self, d: right(self, d) * (1 + 1e-9))
    assert 1e-11 < bench.product_error(op) < 1e-8
    monkeypatch.setattr(CovarianceOperator, "apply", lambda self, d: d * math.nan)
    assert math.isnan(bench.product_error(op))


def test_nan_is_the_worst_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([0.0, math.nan] + [1e-15] * 1000)
    monkeypatch.setattr(bench, "product_error", lambda op: next(errors))
    rows = bench.accuracy(2)
    assert [row.verdict for row in rows].count("MISSED") == 1


def test_medians_are_measured_in_turns() -> None:
    calls: list[str] = []
    found = medians([lambda: calls.append("a"), lambda: calls.append("b")], 3)
    assert calls == ["a", "b"] * 4  # the first round warms up
    assert len(found) == 2
    assert min(found) > 0


def test_the_mean_leaves_out_what_warms_up() -> None:
    calls: list[str] = []
    ticks = iter([10.0, 16.0])
    assert mean_seconds(lambda: calls.append("a"), 3, warm=2, clock=lambda: next(ticks)) == 2.0
    assert calls == ["a"] * 5


def test_operators_leave_normalisation_out_where_an_output_is_zero() -> None:
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()).double()
    nn.init.constant_(net[0].weight, -1.0)
    clean = torch.ones(3, 4, dtype=torch.float64)
    kinds = [kind for kind, _ in bench.operators(net, "0", clean[:, None], clean)]
    assert kinds == ["simple", "beta < 0", "beta > 0", "intra", "soft_triplet", "info_nce"]


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--threads", "0"])
    assert stopped.value.code == 2
    assert "at least 1" in capsys.readouterr().err
    assert cli.main(["bench", "covarience"]) == 2
    assert "covariance" in capsys.readouterr().err
