"""Training: the two losses and their gradients, triplets, replicas against themselves alone, bad input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hltm_cases import triplet_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sslbook import losses
from sslbook.chapters.hltm import kinds
from sslbook.chapters.hltm.gradients import normalize
from sslbook.chapters.hltm.tables import Measurement
from sslbook.chapters.hltm.training import (
    FORMULAS,
    Protocol,
    minibatches,
    start,
    step,
    train,
    train_chunks,
    triplet_gradient,
)
from sslbook.streams import Streams
from sslbook.trees import latent as trees
from sslbook.trees.latent import LatentTree
from sslbook.trees.network import TreeNetwork, forward

TINY = Protocol(depth=3, width=3, batch=32, epoch_size=128)


def parameters(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
    """A measurement: all parameters, ``(R, count)``."""
    return {"all": torch.cat([p.flatten(1) for p in (*net.weights, *net.biases)], 1).clone()}


def outputs(seed: int, width: int = 3, batch: int = 8) -> Tensor:
    drawn = torch.randn(2, width, 3 * batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(drawn)


# --- the losses ------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(FORMULAS), st.integers(1, 5), st.sampled_from([0.1, 1.0]))
def test_gradients_agree_with_autograd(seed: int, loss: str, width: int, tau: float) -> None:
    output = outputs(seed, width).requires_grad_()
    (wanted,) = torch.autograd.grad(triplet_loss(output, loss, tau).sum(), output)
    assert (triplet_gradient(output.detach(), loss, tau) - wanted).abs().max() < 1e-13


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.5]))
def test_the_printed_loss_is_the_papers(seed: int, tau: float) -> None:
    output = outputs(seed)
    a, p, n = (part.transpose(1, 2) for part in output.chunk(3, dim=2))
    r_pos, r_neg = losses.half_squared_distance(a, p), losses.half_squared_distance(a, n)
    by_hand = -torch.log((-r_pos / tau).exp() / ((-r_pos / tau).exp() + (-r_neg / tau).exp())).mean(1)
    found = triplet_loss(output, "printed", tau)
    assert (found - by_hand).abs().max() < 1e-12
    assert (found - losses.info_nce(r_pos, r_neg[..., None], tau).mean(1)).abs().max() < 1e-13
    assert (triplet_loss(output, "released", tau) - by_hand).abs().min() > 1e-3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_the_released_loss_has_no_logarithm_and_averages_first(seed: int, width: int) -> None:
    """On distances averaged over batch and units, -e^{-p/tau} / (e^{-p/tau} + e^{-n/tau})."""
    output, batch, tau = outputs(seed, width), 8, 0.3
    for replica, found in zip(output, triplet_loss(output, "released", tau), strict=True):
        p = n = 0.0
        for b in range(batch):
            for unit in range(width):
                anchor, positive, negative = (float(replica[unit, b + k * batch]) for k in range(3))
                p += (anchor - positive) ** 2 / (batch * width)
                n += (anchor - negative) ** 2 / (batch * width)
        wanted = -math.exp(-p / tau) / (math.exp(-p / tau) + math.exp(-n / tau))
        assert float(found) == pytest.approx(wanted, abs=1e-13)


@pytest.mark.parametrize("loss", FORMULAS)
def test_a_step_is_gradient_descent_on_the_loss(loss: str) -> None:
    protocol = replace(TINY, loss=loss)
    tree, net = start(protocol, [1, 2], torch.float64)
    leaves = next(minibatches(tree, Streams([1, 2], "minibatches"), 32, 1, torch.float64))
    copy = net.clone()
    before = [p.requires_grad_() for p in (*copy.weights, *copy.biases)]
    value = triplet_loss(normalize(forward(copy, leaves).pre[0][:, 0]), loss, protocol.tau)
    slopes = torch.autograd.grad(value.sum(), before)
    step(net, leaves, protocol)
    for new, old, slope in zip((*net.weights, *net.biases), before, slopes, strict=True):
        assert (new - (old - protocol.rate * slope)).abs().max() < 1e-13
        assert slope.abs().max() > 0


# --- triplets --------------------------------------------------------------------------------------------------------


def test_the_positive_has_the_anchors_root_and_the_negative_half_of_the_time() -> None:
    """With polarities of 1 every leaf shows its root."""
    tree = kinds.random_symmetric([1, 2], 2, 1.0, signed=False)
    kept, met, batch = [], [], 128
    for leaves in minibatches(tree, Streams([1, 2]), batch, 100, torch.float32):
        assert leaves.shape == (2, 4, 3 * batch)
        assert leaves.eq(leaves[:, :1]).all()
        anchor, positive, negative = leaves[:, 0].chunk(3, dim=1)
        kept.append(anchor.eq(positive).all())
        met.append(anchor.eq(negative).double().mean(1))
    assert all(kept)
    share = torch.stack(met).mean(0)
    assert ((share - 0.5).abs() < 5 * 0.5 / (100 * batch) ** 0.5).all()


def test_everything_below_the_root_is_redrawn() -> None:
    tree = kinds.random_symmetric([1], 1, 0.0, 0.0)  # leaves that don't depend on the root
    (leaves,) = minibatches(tree, Streams([1]), 5000, 1, torch.float64)
    corr = torch.corrcoef(torch.stack(leaves[0, 0].double().chunk(3)))
    assert (corr - torch.eye(3, dtype=torch.float64)).abs().max() < 5 / 5000**0.5


def test_minibatches_follow_the_tables() -> None:
    tree = kinds.random_symmetric([3], 3, 0.5)
    leaves = torch.cat(list(minibatches(tree, Streams([3]), 500, 20, torch.float64)), 2).double()
    z = 2 * leaves[0] - 1  # of pairs of leaves below one parent, the mean product is that of their polarities
    rho = trees.polarity(tree.tables[2][0])
    found = (z[0::2] * z[1::2]).mean(1)
    wanted = rho[0::2] * rho[1::2]
    assert ((found - wanted).abs() / ((1 - wanted.square()) / 30_000).sqrt()).max() < 5


# --- replicas --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("loss", FORMULAS)
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("width", [2, 10])
def test_a_replica_trains_as_it_would_alone(loss: str, dtype: torch.dtype, bar: float, width: int) -> None:
    protocol = Protocol(depth=3, width=width, loss=loss, batch=32, epoch_size=32 * 120)
    together = train(protocol, [7, 8, 9, 10, 11], 1, parameters, [0, 1], dtype=dtype)
    for r in (1, 4):
        alone = train(protocol, [7 + r], 1, parameters, [1], dtype=dtype)[1]["all"][0]
        assert (together[1]["all"][r] - alone).abs().max() <= bar
    assert (together[1]["all"] - together[0]["all"]).abs().max() > 1e3 * bar


def test_how_replicas_are_cut_into_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = [replace(TINY, epoch_size=32 * 100), replace(TINY, width=2, loss="printed", epoch_size=32 * 100)]
    seeds = [5, 3, 5, 9, 2]  # in any order, twice if need be
    whole = train_chunks(protocols, seeds, 1, parameters, [0, 1], processes=1, dtype=torch.float64)
    for units, processes in [(3, 1), (6, 1), (60, 3)]:
        monkeypatch.setattr("sslbook.chapters.hltm.training.CACHE_UNITS", units)
        if processes > 1:
            monkeypatch.setattr("sslbook.machine.ProcessPoolExecutor", Inline)
        cut = train_chunks(protocols, seeds, 1, parameters, [0, 1], processes=processes, dtype=torch.float64)
        for a, b in zip(whole, cut, strict=True):
            for epoch in (0, 1):
                assert (a[epoch]["all"] - b[epoch]["all"]).abs().max() <= 1e-12
                assert a[epoch]["all"][0].equal(a[epoch]["all"][2])
                assert not a[epoch]["all"][0].equal(a[epoch]["all"][1])


class Inline:
    """A pool that calls at once, in this process."""

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, call, *columns):  # type: ignore[no-untyped-def]
        return map(call, *columns)


def test_worker_processes_give_the_same() -> None:
    """With a measurement that a fresh process can import."""
    protocol, seeds = replace(TINY, depth=2, epoch_size=32 * 100), [5, 3, 9]
    measure = Measurement(("s", "s0"), 1280)
    there = train_chunks([protocol], seeds, 1, measure, [0, 1], processes=2)[0]
    here = train_chunks([protocol], seeds, 1, measure, [0, 1], processes=1)[0]
    for epoch in (0, 1):
        assert (there[epoch]["population"] - here[epoch]["population"]).abs().max() <= 1e-6
    assert (here[1]["population"] - here[0]["population"]).abs().max() > 1e-3


def test_measurements_are_made_after_the_epochs_asked_for() -> None:
    calls: list[int] = []

    def measure(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> Tensor:
        calls.append(epoch)
        return parameters(tree, net, seeds, epoch)["all"]

    found = train(TINY, [1], 3, measure, [0, 2, 3])
    assert calls == [0, 2, 3]
    tree, net = start(TINY, [1])
    assert found[0].equal(parameters(tree, net, [1], 0)["all"])
    streams = Streams([1], "minibatches")
    for _ in range(2):
        for leaves in minibatches(tree, streams, TINY.batch, TINY.steps, torch.float32):
            step(net, leaves, TINY)
    assert found[2].equal(parameters(tree, net, [1], 2)["all"])
    assert not found[2].equal(found[3])
    assert TINY.steps == 4


def test_training_lowers_the_loss() -> None:
    protocol = replace(TINY, loss="printed", epoch_size=128 * 100, lower=0.9)

    def loss(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> Tensor:
        (leaves,) = minibatches(tree, Streams(seeds, "test"), 1000, 1, torch.float32)
        return triplet_loss(normalize(forward(net, leaves).pre[0][:, 0]), "printed", protocol.tau)

    found = train(protocol, range(8), 2, loss, [0, 2])
    assert (found[2] < found[0]).all()
    assert found[2].mean() < found[0].mean() - 0.1


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("loss", "nce", "loss must be one of printed, released, got 'nce'"),
        ("depth", 0, "depth must be at least 1, got 0"),
        ("width", 0, "width must be at least 1, got 0"),
        ("batch", 0, "batch must be at least 1, got 0"),
        ("epoch_size", 0, "epoch_size must be at least 1, got 0"),
        ("epoch_size", 100, "epoch_size must be at least batch = 128, got 100"),
        ("tau", 0.0, "tau must be above 0, got 0"),
        ("rate", -1.0, "rate must be above 0, got -1"),
        ("tau", math.nan, "tau must be finite, got nan"),
    ],
)
def test_bad_protocols(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Protocol(), **{field: value})


def test_bad_runs() -> None:
    with pytest.raises(ValueError, match=r"within \[-1, 1\], got \[1.5, 1"):
        start(replace(TINY, lower=1.5), [0])
    with pytest.raises(ValueError, match=r"from 0 to epochs = 2, got \[0, 3\]"):
        train(TINY, [0], 2, parameters, [3, 0])
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        train_chunks([TINY], [0], 1, parameters, [1], processes=0)
