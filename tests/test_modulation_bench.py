"""The benchmark of the token experiments: its slow way computes what the fast way does, its rows, its exit status."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch

from sslbook import cli
from sslbook.bench import modulation as bench
from sslbook.chapters.modulation import training
from sslbook.chapters.modulation.reference import outputs
from sslbook.chapters.modulation.tokens import WILDCARD, make_world
from sslbook.chapters.modulation.training import Cell


def test_the_slow_network_is_the_fast_one() -> None:
    cell, protocol = Cell(2, 3, zeta=2.0), bench.PROTOCOL
    torch.manual_seed(0)
    net = bench.SlowNetwork(cell, protocol)
    world = make_world([0], [2], zeta=[2.0])
    random.seed(0)
    views = bench.slow_views(world.generators[0].tolist(), world.lengths[0].float().diag(), protocol)
    x = torch.stack(views)
    assert x.sum(-1).unique().tolist() == [0.5, 2.0]
    tokens = x.argmax(-1)
    fits = [((g == WILDCARD) | (g == tokens)).all(-1).all(0) for g in world.generators[0]]
    assert torch.stack(fits).any(0).all(), "each pair has a generator"
    weights = torch.stack([layer.weight.T for layer in net.fields])
    top = net.top.weight.T.view(protocol.fields, cell.filters, -1)
    fast = outputs(x, weights, top, activation="relu", mean="normal", std="detach")
    assert (torch.stack([net(view) for view in views]) - fast).abs().max() < 1e-5


def test_rows_and_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = [Cell(1, 1, zeta=10.0), Cell(2, 2, zeta=10.0)]
    monkeypatch.setattr(bench, "CELLS", small)
    monkeypatch.setattr(bench, "extrapolated", lambda processes: (60.0, 100.0))
    assert cli.main(["bench", "modulation", "--quick", "--json", "--processes", "1"]) in (0, 1)
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["minutes"]["value"] == 1
    assert rows["ours is faster over the table by"]["bar"] == bench.RATIO_BAR
    assert rows["float64"]["verdict"] == "ok"
    for name in ("Lemma 4", "Lemma 5", "Lemma 6", "Theorem 4", "Theorem 5", "Corollary 3"):
        assert rows[name]["verdict"] == "ok"


def test_the_table_is_timed_by_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CELLS", [Cell(1, 1)])
    monkeypatch.setattr(bench, "SEEDS", (1,))
    wall, cpu = bench.table_seconds(1, 1)
    assert 0 < cpu < wall * 2
    assert [cell.filters for part in bench._shares() for cell in part] == [1]
    assert training.run(replace(bench.PROTOCOL, steps=1), bench.CELLS, [1])


def test_bad_processes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "modulation", "--processes", "0"])
    assert stopped.value.code == 2
    assert "at least 1" in capsys.readouterr().err
