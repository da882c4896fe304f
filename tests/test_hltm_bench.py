"""The benchmark of the latent trees: its slow way computes what the fast way does, its rows, its exit status."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hltm_cases import triplet_loss

from sslbook import cli
from sslbook.bench import hltm as bench
from sslbook.bench._report import Row, table
from sslbook.chapters.hltm import kinds
from sslbook.chapters.hltm.gradients import normalize
from sslbook.chapters.hltm.training import Protocol, step
from sslbook.streams import Streams
from sslbook.trees import latent as trees
from sslbook.trees.network import forward, initial_network


def twins(width: int, seed: int) -> tuple[bench.Node, bench.TreeNetwork, trees.LatentTree]:
    """One network, in the slow way's layers and in the fast way's tensors."""
    tree = kinds.random_symmetric([seed], 3, 0.7)
    net, root = initial_network([seed], tree.branching, width), bench.grow(tree, width)
    with torch.no_grad():
        level = [root]
        for weight, bias in zip(net.weights, net.biases, strict=True):
            for k, node in enumerate(level):
                assert node.layer is not None
                node.layer.weight.copy_(weight[0, k])
                node.layer.bias.copy_(bias[0, k])
            level = [child for node in level for child in node.children]
    return root, net, tree


@pytest.mark.parametrize("width", [2, 5])
def test_a_step_of_the_slow_way_is_a_step_of_the_fast_way(width: int) -> None:
    root, net, _ = twins(width, 3)
    protocol = Protocol(depth=3, width=width, batch=16, epoch_size=16)
    triplets = torch.randint(0, 2, (3, 16, 8), generator=torch.Generator().manual_seed(0)).float()
    leaves = triplets.flatten(0, 1).T[None]
    loss = bench.slow_loss(root, list(triplets), protocol.tau)
    assert loss.item() == pytest.approx(
        triplet_loss(normalize(forward(net, leaves).pre[0][:, 0]), "released", 0.1).item()
    )
    layers = [node.layer for node in bench.walk(root) if node.layer is not None]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], protocol.rate)
    loss.backward()
    optimizer.step()
    before = net.weights[0].clone()
    step(net, leaves, protocol)
    assert root.layer is not None
    assert (root.layer.weight - net.weights[0][0, 0]).abs().max() < 1e-6
    assert (layers[-1].weight - net.weights[-1][0, -1]).abs().max() < 1e-6
    assert (before - net.weights[0]).abs().max() > 1e-5
    assert len(layers) == 7


def test_the_slow_way_draws_from_the_same_tree() -> None:
    torch.manual_seed(0)
    root, _, tree = twins(2, 5)
    drawn = torch.stack([bench.draw_leaves(root, 1) for _ in range(800)])
    wanted = trees.from_root(tree)[-1][0, :, 1, 1]
    assert ((drawn.mean(0) - wanted).abs() / (wanted * (1 - wanted) / 800).sqrt()).max() < 5
    anchor, positive, negative = bench.slow_triplets(root, tree.root[0], 6)
    assert anchor.shape == positive.shape == negative.shape == (6, 8)
    assert not anchor.equal(positive)


def test_the_slow_statistics_are_raw_sums() -> None:
    torch.manual_seed(0)
    root, _, tree = twins(2, 5)
    for _ in range(2):
        bench.slow_statistics(root, tree.root[0].float(), 20)
    parts = [node for node in bench.walk(root) if node.layer is not None]
    assert len(parts) == 7
    for node in parts:
        assert node.pre is not None
        z, f, zz, ff, zf = node.sums
        assert 0 <= z.item() <= 40
        assert z.item() == zz.item() == pytest.approx(float(zz))
        assert ff.shape == f.shape == zf.shape == (2,)
        assert (ff * 40 >= f.square() * 0.999).all()


@pytest.mark.usefixtures("one_thread")
def test_the_rows_of_a_tiny_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Not minibatches of four: 200 steps on those make a rounding visible, on processors that round a batch otherwise.
    monkeypatch.setattr(bench, "PROTOCOL", Protocol(depth=4, batch=32, epoch_size=96))
    monkeypatch.setattr(bench, "TRIALS", 2)
    monkeypatch.setattr(bench, "process_pool", Inline)
    monkeypatch.setattr(bench, "table_seconds", lambda size, seeds, processes, epochs=50: 1.0 + size / 128)
    ours = 1 + 96 / 128
    assert bench.extrapolated(1) == pytest.approx(ours), "on the line"
    monkeypatch.setattr(bench, "RATIO_BAR", 0.0)
    assert cli.main(["bench", "hltm", "--quick", "--json", "--processes", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    whats = [row["what"] for row in rows]
    assert whats[:1] == ["minutes"]
    assert {"float32", "float64", "ours is faster by", "2 units: steps of one replica"} <= set(whats)
    for row in rows:
        assert math.isfinite(row["value"])
        assert row["verdict"] == ("" if row["bar"] is None else "ok")
    assert "two short runs" in rows[0]["part"]
    by_name = {row["what"]: row["value"] for row in rows}
    epoch, one_pass = by_name["one epoch of training of one trial"], by_name["one pass of statistics of one trial"]
    whole = 12 * 50 * (epoch + one_pass)
    assert by_name["Table 6, measured before every epoch"] * 3600 == pytest.approx(whole)
    assert by_name["ours is faster by"] == pytest.approx(whole / ours)


class Inline:
    """A pool that runs what is submitted at once, in this process."""

    def __init__(self, processes: int) -> None:
        assert processes == 1

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, call, *arguments):  # type: ignore[no-untyped-def]
        found = call(*arguments)
        return type("Done", (), {"result": lambda self: found})()


def test_the_table_is_trained_for_all_its_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple] = []
    monkeypatch.setattr(bench, "train_chunks", lambda *arguments, **named: calls.append((*arguments, named)))
    bench.table_seconds(256, range(1, 11), 2)
    ((protocols, seeds, epochs, measure, at, named),) = calls
    assert [(p.lower, p.width) for p in protocols] == [(low, width) for low in (0.7, 0.8, 0.9) for width in (2, 10)]
    assert {(p.epoch_size, p.loss, p.depth, p.batch, p.tau, p.rate) for p in protocols} == {
        (256, "released", 5, 128, 0.1, 0.1)
    }
    assert (len(seeds), epochs, at, named) == (10, 50, [0, 1, 49], {"processes": 2})
    assert (len(measure.latents), measure.samples) == (5, 256)


@pytest.mark.usefixtures("one_thread")
def test_a_replica_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PROTOCOL", Protocol(depth=3, batch=8))
    assert [row.verdict for row in bench.alone(5)] == ["ok", "ok"]
    right = Streams.__init__

    def one_for_all(self: Streams, seeds, purpose: str = "") -> None:  # type: ignore[no-untyped-def]
        right(self, [seed + len(seeds) for seed in seeds], purpose)

    monkeypatch.setattr(Streams, "__init__", one_for_all)
    assert [row.verdict for row in bench.alone(5)] == ["MISSED", "MISSED"]


def test_bars_are_those_of_the_project() -> None:
    assert (bench.MINUTES_BAR, bench.RATIO_BAR) == (12, 1000)
    assert {torch.float32: 1e-6, torch.float64: 1e-12} == bench.ALONE_BARS
    assert (bench.TRIALS, bench.EPOCHS, bench.MEASURED) == (10, 50, (0, 1, 49))
    assert bench.PROTOCOL.epoch_size == 64_000


def test_verdicts_from_below() -> None:
    assert Row("", "", 1000.0, bar=1000.0, at_least=True).verdict == "ok"
    assert Row("", "", 999.0, bar=1000.0, at_least=True).verdict == "MISSED"
    assert Row("", "", math.nan, bar=1000.0, at_least=True).verdict == "MISSED"
    assert table([Row("p", "fast", 999.0, "x", 1000.0, at_least=True)]).endswith("999 x    >= 1000   MISSED")


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "hltm", "--processes", "0"])
    assert stopped.value.code == 2
    assert "at least 1" in capsys.readouterr().err
