"""Trees and lucky nodes; training: gradients, losses, replicas; correlations from samples; tables, curves and records."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hltm_cases import correlation, triplet_loss
from scipy import integrate, stats
from torch import Tensor

from sslbook._random import Streams
from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.exact import TreeNetwork, initial_network
from sslbook.trees.latent import LatentTree
from sslchapters.audit import hltm as records
from sslchapters.hltm import lucky_nodes, runs, theory
from sslchapters.hltm.runs import (
    FORMULAS,
    MIXED,
    CentredCorrelation,
    TreeRun,
    best_correlations,
    forward,
    minibatches,
    normalize,
    start,
    step,
    train_protocols,
    train_trees,
)
from sslchapters.hltm.theory import random_symmetric

GRID = [(0.25, 0.95), (1.0, 0.0), (4.0, 0.5), (25.0, 0.1)]


@pytest.mark.parametrize("y", [-2.0, 0.1, 3.0, 40.0])
def test_mills_ratio_is_its_integral(y: float) -> None:
    integral, _ = integrate.quad(lambda t: math.exp(-y * t - t * t / 2), 0, math.inf, epsabs=0, epsrel=1e-12)
    assert lucky_nodes.mills_ratio(y) == pytest.approx(integral, rel=1e-11)
    if y <= 10:
        assert lucky_nodes.mills_ratio(y) == pytest.approx(stats.norm.sf(y) / stats.norm.pdf(y), rel=1e-10)


@pytest.mark.parametrize(("c", "gamma"), GRID)
def test_the_tail_and_its_lower_bound(c: float, gamma: float) -> None:
    low, high = lucky_nodes.residue_bounds(c, gamma)
    assert 0 < low <= lucky_nodes.residue(c, gamma) <= high <= 2 * low
    tail = lucky_nodes.tail_probability(c, gamma)
    mean, cov = [0.0, 0.0], [[1.0, -gamma], [-gamma, 1.0]]
    # the upper tail of a pair is the lower one of its negative, whose covariance is the same
    reference = stats.multivariate_normal.cdf([-math.sqrt(c), 0.0], mean, cov, abseps=1e-14, releps=1e-12)
    assert tail == pytest.approx(reference, rel=1e-7, abs=1e-13)
    assert 0 < lucky_nodes.tail_bound(c, gamma) <= tail * (1 + 1e-10)
    printed = lucky_nodes.tail_bound(c, gamma, as_printed=True)
    if gamma:
        assert printed > tail, "the printed exponent makes it no lower bound"
    else:
        assert printed == lucky_nodes.tail_bound(c, gamma) == pytest.approx(tail, rel=1e-10), "two independent tails"


def test_which_units_are_lucky() -> None:
    """By hand: h = (1, 1), a = (1, -0.5): h + a = (2, 0.5), h - a = (0, 1.5); the threshold is sqrt(c/2) |h + a|."""
    h, a, c = torch.tensor([1.0, 1.0]).double(), torch.tensor([1.0, -0.5]).double(), 2.0
    threshold = math.sqrt(4.25)
    units = [
        ([2.0, -1.0], True),  # up 3.5, down -1.5
        ([2.0, 1.0], False),  # down 1.5
        ([1.0, -0.1], False),  # up 1.95 < 2.06
        ([(threshold + 0.05) / 2, -1e-3], True),
        ([-2.0, 3.0], False),  # up -2.5
    ]
    weights = torch.tensor([w for w, _ in units]).double()
    wanted = [is_lucky for _, is_lucky in units]
    assert lucky_nodes.is_lucky(weights, h, a, c, 1.0).tolist() == wanted
    assert lucky_nodes.is_lucky(weights, h, -a, c, 1.0).tolist() == wanted, (
        "the two values of the variable change roles"
    )
    assert lucky_nodes.is_lucky(weights, h, a, c, 10.0).tolist() == [False] * 5
    both = lucky_nodes.is_lucky(weights, torch.stack([h, h]), torch.stack([a, -a]), c, 1.0)
    assert both.tolist() == [wanted, wanted]


@pytest.mark.parametrize(("n", "c"), [(3, 1.0), (40, 1.0)])
def test_the_chance_of_a_lucky_unit_with_uniform_weights(n: int, c: float) -> None:
    part = lucky_nodes.balanced_part(n, 0.3, 0.9, 2)
    exact = lucky_nodes.uniform_chance(part, c, terms=400)
    weights = lucky_nodes.uniform_weights((400_000, n), 1.0, 5)
    share = float(lucky_nodes.is_lucky(weights, part.h, part.a, c, 1.0).double().mean())
    assert abs(share - exact) < 4 * (exact / 400_000) ** 0.5
    flipped = lucky_nodes.LeafPart(-part.rho)
    assert lucky_nodes.uniform_chance(flipped, c, terms=400) == pytest.approx(exact, rel=1e-9)
    if n == 40:
        assert lucky_nodes.uniform_chance(part, c, terms=60) == pytest.approx(exact, rel=1e-12)


def test_the_gaps_of_lucky_units_by_listing_patterns() -> None:
    part = lucky_nodes.LeafPart(torch.tensor([0.95, -0.9, 0.85]).double())
    found = lucky_nodes.lucky_bound(part, 4.0, 50, seed=3)
    bound = 3 * sum(0.25 * (10 / 6 * float(r) ** 2 - 1) for r in part.rho) / 3
    weights = lucky_nodes.uniform_weights((20_000, 3), 1.0, 3)
    chosen = weights[lucky_nodes.is_lucky(weights, part.h, part.a, 4.0, 1.0)][:50]
    assert len(chosen) == 50
    for w, gap in zip(chosen, found, strict=True):
        means = []
        for sign in (1, -1):
            mean = 0.0
            for x in itertools.product((0, 1), repeat=3):
                p = math.prod(
                    (1 + sign * float(rho)) / 2 if on else (1 - sign * float(rho)) / 2 for rho, on in zip(part.rho, x)
                )
                mean += p * max(0.0, sum(float(weight) * on for weight, on in zip(w, x)))
            means.append(mean)
        assert float(gap) == pytest.approx(abs(means[0] ** 2 - means[1] ** 2) / bound, rel=1e-12)
    assert float(found.min()) >= 1


def test_a_column_of_our_own_trials_is_likely_and_a_shifted_one_is_not() -> None:
    draw = torch.Generator().manual_seed(0)
    shared = torch.randn(1, 1, 50, generator=draw)  # the cells of a trial go together
    trials = shared + 0.3 * torch.randn(3, 3, 50, generator=draw)
    own, others = trials[..., :40], trials[..., 40:]
    column = records.Column(others.mean(-1), others.std(-1), trials=10)
    assert records.chance_of_column(own, column, draws=200, seed=1) > 0.05
    shifted = replace(column, mean=column.mean + 2)
    assert records.chance_of_column(own, shifted, draws=200, seed=1) < 0.02
    error = (own.var(-1) / 40 + column.std.square() / 10).sqrt()
    by_hand = ((own.mean(-1) - column.mean) / error).square().mean().sqrt()
    assert records.distance(own, column) == pytest.approx(float(by_hand))


TINY = TreeRun(depth=3, width=3, batch=32, epoch_size=128)


def parameters(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
    """A measurement: all parameters, ``(R, count)``."""
    return {"all": torch.cat([p.flatten(1) for p in (*net.weights, *net.biases)], 1).clone()}


@pytest.mark.parametrize("loss", FORMULAS + MIXED)
def test_a_step_is_gradient_descent_on_the_loss(loss: str) -> None:
    protocol = replace(TINY, loss=loss, tau=0.3)
    tree, net = start(protocol, [1, 2], torch.float64)
    leaves = next(minibatches(tree, Streams([1, 2], "minibatches"), 32, 1, torch.float64))
    copy = net.each(torch.clone)
    before = [p.requires_grad_() for p in (*copy.weights, *copy.biases)]
    value = triplet_loss(normalize(forward(copy, leaves).pre[0][:, 0]), loss, protocol.tau)
    slopes = torch.autograd.grad(value.sum(), before)
    step(net, leaves, protocol)
    for new, old, slope in zip((*net.weights, *net.biases), before, slopes, strict=True):
        assert (new - (old - protocol.rate * slope)).abs().max() < 1e-13
        assert slope.abs().max() > 0


def test_the_positive_has_the_anchors_root_and_the_negative_half_of_the_time() -> None:
    """With polarities of 1 every leaf shows its root."""
    tree = theory.random_symmetric([1, 2], 2, 1.0, signed=False)
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


@pytest.mark.parametrize(("loss", "width"), [("printed", 2), ("released", 10)])
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_replica_trains_as_it_would_alone(loss: str, width: int, dtype: torch.dtype, bar: float) -> None:
    """Few steps: a product of several replicas may round otherwise than one alone, and 120 steps make a millionfold of it."""
    protocol = TreeRun(depth=3, width=width, loss=loss, batch=32, epoch_size=32 * 4)
    together = train_trees(protocol, [7, 8, 9, 10, 11], 1, parameters, [0, 1], dtype=dtype)
    for r in (1, 4):
        alone = train_trees(protocol, [7 + r], 1, parameters, [1], dtype=dtype)[1]["all"][0]
        assert (together[1]["all"][r] - alone).abs().max() <= bar
    assert (together[1]["all"] - together[0]["all"]).abs().max() > 1e3 * bar


def test_how_replicas_are_cut_and_spread_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a measurement that a fresh process can import."""
    protocols = [TINY, replace(TINY, width=2, loss="printed")]
    seeds = [5, 3, 5, 9, 2]  # in any order, twice if need be
    measure, options = partial(best_correlations, latents=("s", "s0"), samples=1280), {"dtype": torch.float64}
    whole = train_protocols(protocols, seeds, measure, [0, 1], processes=1, **options)
    monkeypatch.setattr(runs, "CACHE_UNITS", 6)
    for processes in (1, 2):
        cut = train_protocols(protocols, seeds, measure, [0, 1], processes=processes, **options)
        for protocol, found in whole.items():
            for name, values in found.items():
                assert values.shape == (5, 2, 2)
                assert (cut[protocol][name] - values).abs().max() <= (1e-4 if name == "released" else 1e-12)
            assert found["population"][0].equal(found["population"][2])
            assert not found["population"][0].equal(found["population"][1])


def data(seed: int, count: int, mean: float = 0.0) -> tuple[Tensor, Tensor]:
    """Latents ``(2, 3, count)`` in {0, 1} and units ``(2, 3, 4, count)`` of unit spread about ``mean``."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.randint(0, 2, (2, 3, count), generator=draw).double()
    noise = torch.randn(2, 3, 4, count, generator=draw, dtype=torch.float64)
    share = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64)[:, None]
    return z, noise + share * z[:, :, None] + mean


def by_numpy(z: Tensor, f: Tensor) -> Tensor:
    found = torch.empty(f.shape[:3], dtype=torch.float64)
    for r, node, unit in np.ndindex(*f.shape[:3]):
        found[r, node, unit] = np.corrcoef(z[r, node].numpy(), f[r, node, unit].numpy())[0, 1]
    return found


@pytest.mark.parametrize("mean", [0.0, 1e8])
@pytest.mark.parametrize("sizes", [[1000], [1, 2, 500, 497]])
def test_centred_agrees_with_numpy_whatever_the_blocks(mean: float, sizes: list[int]) -> None:
    z, f = data(len(sizes), 1000, mean)
    found = CentredCorrelation()
    for part_z, part_f in zip(z.split(sizes, -1), f.split(sizes, -1), strict=True):
        found.add(part_z, part_f)
    assert found.count == 1000
    assert (found.result() - by_numpy(z, f)).abs().max() < 1e-12 * max(1, abs(mean))


def test_the_best_linear_unit() -> None:
    """One leaf: its own correlation.  Two: no unit on a circle of directions is better, and the best of them is as good."""
    alone = trees.symmetric_binary([torch.tensor([[0.7], [-0.4]], dtype=torch.float64)], root_polarity=0.0)
    assert runs.best_linear(alone).tolist() == pytest.approx([0.7, 0.4])
    tree = trees.random_categorical([5, 6], (2, 2), (2,))
    assignments, chance = theory.joint(tree)
    angle = torch.linspace(0, math.pi, 20_001, dtype=torch.float64)
    units = torch.stack([angle.cos(), angle.sin()], 1) @ assignments[-1][0].double()
    for found, p in zip(runs.best_linear(tree), chance, strict=True):
        tried = correlation(assignments[0][0, 0].double(), units, p).abs()
        assert float(tried.max()) <= float(found) + 1e-12
        assert float(tried.max()) == pytest.approx(float(found), abs=1e-7)


BRIEF = replace(records.BASE, batch=32, epoch_size=64)


def test_operator_norms_are_those_of_theorem_6() -> None:
    depth, parts = 4, ["s0", "s1", "s010"]  # a part that a shallow tree lacks is left out
    tree = random_symmetric([0, 1], depth, 0.7)
    net = initial_network([0, 1], tree.branching, 2)
    found = records.operator_norms(tree, net, [0, 1], 0)
    assert list(found) == [f"{part}{kind}" for part in parts for kind in ("", " released", " weights", " children")]
    assert all(values.shape == (2,) for values in found.values())
    listed = exact.list_parts(tree, net)
    for part in parts:
        connection = theory.expected_connection(tree, net, listed, part)
        assert found[part].equal(theory.operator_norm(tree, connection))
        assert found[f"{part} released"].equal(theory.operator_norm(tree, connection, "units"))
        level, index = theory.place(tree, part)
        a = theory.child_selectivity(tree, listed, level)[:, index]
        theorem = records.reach(replace(BRIEF, depth=depth, lower=0.7), [0, 1], part) * a.square().sum(-1)
        assert (found[f"{part} children"] - theorem).abs().max() < 1e-12  # Theorem 6; a fair root
    assert found["s1 weights"][1] == pytest.approx(float(net.weights[1][1, 1].double().norm()))
