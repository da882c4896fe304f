"""Trees and lucky nodes; training: gradients, losses, replicas; correlations from samples; tables, curves and records."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import itertools
import json
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

from sslbook import cli
from sslbook._random import Streams
from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.exact import TreeNetwork, initial_network
from sslbook.trees.latent import LatentTree
from sslchapters import records as store
from sslchapters.hltm import lucky_nodes, records, runs, theory
from sslchapters.hltm.runs import (
    EPSILON,
    FORMULAS,
    MIXED,
    CentredCorrelation,
    RawCorrelation,
    TreeRun,
    best_correlations,
    forward,
    minibatches,
    normalize,
    normalize_backward,
    start,
    step,
    train_protocols,
    train_trees,
)
from sslchapters.hltm.theory import random_symmetric
from sslchapters.tables import printed


def test_regular_tables_survive_a_nearly_uniform_draw() -> None:
    """A doubly centred matrix of rounding errors, scaled up, would no longer have rows that sum to one."""
    tree = theory.random_regularized(range(2000), (2, 2, 2), (2, 2))
    for table in tree.tables:
        assert float((table.sum(-1) - 1).abs().max()) < 1e-14
        assert float(theory.residual_table(table).sum(-2).abs().max()) < 1e-13
        assert float(table.min()) >= 0


GRID = [(c, gamma) for c in (0.25, 0.5, 1.0, 2.0, 4.0, 9.0, 25.0) for gamma in (0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95)]


@pytest.mark.parametrize("y", [-2.0, -0.5, 0.0, 0.1, 1.0, 3.0, 10.0, 40.0])
def test_mills_ratio_is_its_integral(y: float) -> None:
    integral, _ = integrate.quad(lambda t: math.exp(-y * t - t * t / 2), 0, math.inf, epsabs=0, epsrel=1e-12)
    assert lucky_nodes.mills_ratio(y) == pytest.approx(integral, rel=1e-11)
    if y <= 10:
        assert lucky_nodes.mills_ratio(y) == pytest.approx(stats.norm.sf(y) / stats.norm.pdf(y), rel=1e-10)


@pytest.mark.parametrize(("c", "gamma"), GRID)
def test_the_residue_lies_between_its_bounds(c: float, gamma: float) -> None:
    low, high = lucky_nodes.residue_bounds(c, gamma)
    assert 0 < low <= lucky_nodes.residue(c, gamma) <= high
    assert high <= 2 * low


@pytest.mark.parametrize(("c", "gamma"), GRID)
def test_the_tail_and_its_lower_bound(c: float, gamma: float) -> None:
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


@pytest.mark.parametrize(("c", "gamma"), [(1.0, 0.3), (4.0, 0.9)])
def test_widths_and_etas(c: float, gamma: float) -> None:
    """(1 - p)^n <= e^{-pn} = eta for the probability p of a lucky unit."""
    n = lucky_nodes.width_needed(c, gamma, 0.05)
    assert math.exp(-n * lucky_nodes.tail_bound(c, gamma)) == pytest.approx(0.05)
    assert (1 - lucky_nodes.tail_probability(c, gamma)) ** n < 0.05
    assert lucky_nodes.width_needed(c, gamma, 0.05, as_printed=True) < n
    low, high = lucky_nodes.printed_range(c, gamma, 0.05)
    assert low <= lucky_nodes.width_needed(c, gamma, 0.05, as_printed=True) <= high
    for width, end in zip(lucky_nodes.eta_for(12.0, c, gamma), (0, 1), strict=True):
        assert lucky_nodes.printed_range(c, gamma, width)[end] == pytest.approx(12.0)


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


def test_the_bracket_as_printed_and_for_groups() -> None:
    s, rho = torch.tensor([0.5, 0.2, -0.4]).double(), torch.tensor([0.9, -0.5, 0.1]).double()
    sigma, c = torch.tensor(0.03).double(), 4.0
    printed = (s**2 * ((c + 6) / 6 * rho**2 - 1)).mean() - sigma
    assert float(lucky_nodes.bracket(s, rho, c, sigma)) == pytest.approx(float(printed), abs=1e-13)
    assert float(lucky_nodes.bracket(s, rho, c, sigma, group=2)) < float(printed)
    one = torch.ones(1).double()
    edge = lucky_nodes.polarity_needed(c)
    for rho_value, sign in [(edge * 1.01, 1), (edge * 0.99, -1)]:
        assert sign * float(lucky_nodes.bracket(one, rho_value * one, c, torch.tensor(0.0))) > 0


def sharper(s: torch.Tensor, rho: torch.Tensor, c: float) -> float:
    return float(lucky_nodes.sharper_bracket(s, rho, c, torch.zeros(()).double()))


@pytest.mark.parametrize(("pairs", "c"), [(1, 1.0), (5, 0.2), (40, 0.03), (200, 0.05)])
def test_units_at_the_edge_reach_the_sharper_bracket(pairs: int, c: float) -> None:
    part, weights = lucky_nodes.extreme_unit(pairs, c)
    n = 2 * pairs + 1
    assert weights.abs().max() <= (3 / n) ** 0.5
    assert lucky_nodes.is_lucky(weights, part.h, part.a, c, 1.0).all()
    up, down = lucky_nodes.mean_activations(part, weights)
    gap = float(up**2 - down**2) * n
    assert gap == pytest.approx(c * (pairs + 0.25) - 3 / 16, rel=1e-9)
    bound = 3 * sharper(part.s, part.rho, c) * n
    assert bound == pytest.approx(c * pairs - 3 / 16)
    assert gap - bound == pytest.approx(c / 4, rel=1e-6)


@pytest.mark.parametrize(("n", "c"), [(3, 1.0), (8, 2.0), (40, 1.0)])
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


def test_shared_children() -> None:
    found = lucky_nodes.shared_children(4, 0.9, 1.0, units=20_000, seed=0)
    assert found["worst"] > 1, "units that read one variable are not independent"
    assert found["exceeding"] > 0
    two, signs = lucky_nodes.shared_children(2, 0.9, 1.0, units=2000, seed=0), torch.tensor([1.0, 1.0, -1.0, -1.0])
    part, drawn = lucky_nodes.LeafPart(0.9 * signs.double()), lucky_nodes.uniform_weights((2000, 4), 1.0, 0)
    sums = drawn[lucky_nodes.is_lucky(drawn, part.h, part.a, 1.0, 1.0)].view(-1, 2, 2).sum(2)
    means = [
        sum(
            (1 + sign * 0.9 * (2 * a - 1))
            * (1 - sign * 0.9 * (2 * b - 1))
            / 4
            * (a * sums[:, 0] + b * sums[:, 1]).relu()
            for a in (0, 1)
            for b in (0, 1)
        )
        for sign in (1, -1)
    ]
    share, gap = sums.square().sum(1) / 3, (means[0].square() - means[1].square()).abs()
    assert (two["worst"], two["exceeding"]) == (pytest.approx(float(share.max())), float((share > 1).double().mean()))
    assert two["margin"] == pytest.approx(float(gap.min()) / (0.75 * (0.81 / 6 - 0.19)))
    shares = lucky_nodes.promising_parts(TreeRun(depth=3, width=3, lower=0.9), [0, 1], 9.0)
    assert len(shares) == 3
    assert all(0 <= share <= 1 for share in shares)


def test_untrained_networks_are_those_before_training() -> None:
    protocol = TreeRun(depth=3, width=2, epoch_size=128)
    found = runs.untrained(protocol, [1, 2, 3], ("s", "s01"), block=2)
    run = records.rerun([protocol], [1, 2, 3], latents=("s", "s01"), epochs=(0,), processes=1)
    assert (found.T - run["population"][:, 0, 0]).abs().max() < 1e-12


def test_narrow_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAPERS", TreeRun(depth=2, epoch_size=128))
    monkeypatch.setattr(records, "cores", lambda: 1)
    values = records.narrow_values([1, 2], epochs=(0, 1))
    for loss in ("printed", "released"):
        for statistic in runs.STATISTICS:
            assert torch.tensor(values[loss][statistic]).shape == (3, 3, 2, 2)  # latents, lower, epochs, trials
    assert values["printed"]["population"][0][0][0] == values["released"]["population"][0][0][0], "untrained"


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


def test_a_zero_output_has_a_finite_gradient() -> None:
    """There the derivative is the identity over epsilon, as the limit along every direction is."""
    output = torch.zeros(1, 3, 2, dtype=torch.float64)
    output[0, :, 1] = 1e-200
    grad = torch.ones(1, 3, 2, dtype=torch.float64)
    found = normalize_backward(output, grad)
    assert found.isfinite().all()
    assert found[..., 0].equal(grad[..., 0] / EPSILON)
    assert normalize(output).isfinite().all()
    assert normalize_backward(output.float(), grad.float()).isfinite().all()


TINY = TreeRun(depth=3, width=3, batch=32, epoch_size=128)


def parameters(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
    """A measurement: all parameters, ``(R, count)``."""
    return {"all": torch.cat([p.flatten(1) for p in (*net.weights, *net.biases)], 1).clone()}


@pytest.mark.parametrize("loss", FORMULAS + MIXED)
@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_a_step_is_gradient_descent_on_the_loss(loss: str, tau: float) -> None:
    protocol = replace(TINY, loss=loss, tau=tau)
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


def test_everything_below_the_root_is_redrawn() -> None:
    tree = theory.random_symmetric([1], 1, 0.0, 0.0)  # leaves that don't depend on the root
    (leaves,) = minibatches(tree, Streams([1]), 5000, 1, torch.float64)
    corr = torch.corrcoef(torch.stack(leaves[0, 0].double().chunk(3)))
    assert (corr - torch.eye(3, dtype=torch.float64)).abs().max() < 5 / 5000**0.5


def test_minibatches_follow_the_tables() -> None:
    tree = theory.random_symmetric([3], 3, 0.5)
    leaves = torch.cat(list(minibatches(tree, Streams([3]), 500, 20, torch.float64)), 2).double()
    z = 2 * leaves[0] - 1  # of pairs of leaves below one parent, the mean product is that of their polarities
    rho = trees.polarity(tree.tables[2][0])
    found = (z[0::2] * z[1::2]).mean(1)
    wanted = rho[0::2] * rho[1::2]
    assert ((found - wanted).abs() / ((1 - wanted.square()) / 30_000).sqrt()).max() < 5


@pytest.mark.parametrize("loss", FORMULAS)
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("width", [2, 10])
def test_a_replica_trains_as_it_would_alone(loss: str, dtype: torch.dtype, bar: float, width: int) -> None:
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


def test_measurements_are_made_after_the_epochs_asked_for() -> None:
    calls: list[int] = []

    def measure(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> Tensor:
        calls.append(epoch)
        return parameters(tree, net, seeds, epoch)["all"]

    found = train_trees(TINY, [1], 3, measure, [0, 2, 3])
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


@pytest.mark.parametrize("mean", [0.0, -3.0, 1e4, 1e8])
@pytest.mark.parametrize("sizes", [[1000], [1, 2, 500, 497], [999, 1], [128] * 7 + [104]])
def test_centred_agrees_with_numpy_whatever_the_blocks(mean: float, sizes: list[int]) -> None:
    z, f = data(len(sizes), 1000, mean)
    found = CentredCorrelation()
    for part_z, part_f in zip(z.split(sizes, -1), f.split(sizes, -1), strict=True):
        found.add(part_z, part_f)
    assert found.count == 1000
    assert (found.result() - by_numpy(z, f)).abs().max() < 1e-12 * max(1, abs(mean))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.3, -7.1, 1e6])
def test_centred_takes_constant_units_and_latents_as_uncorrelated(dtype: torch.dtype, value: float) -> None:
    z, f = data(1, 400)
    f[:, :, 1] = value
    f[:, :, 2] = value * (
        1 + torch.finfo(dtype).eps * torch.randint(0, 2, f[:, :, 2].shape)
    )  # constant but for rounding
    z[:, 2] = 1.0
    found = CentredCorrelation()
    for part_z, part_f in zip(z.split(150, -1), f.to(dtype).split(150, -1), strict=True):
        found.add(part_z, part_f)
    corr = found.result()
    assert corr.isfinite().all()
    assert corr[:, :, 1:3].abs().max() == 0
    assert corr[:, 2].abs().max() == 0
    assert corr[:, :2, [0, 3]].abs().min() > 0.01


def raw_by_hand(z: Tensor, f: Tensor, batch: int) -> Tensor:
    """Straightforwardly, one replica, node and unit after the other: float32 sums of each minibatch, added up in float32."""
    found = torch.empty(f.shape[:3])
    for r, node, unit in np.ndindex(*f.shape[:3]):
        total = torch.zeros(5)
        for a, b in zip(z[r, node].float().split(batch), f[r, node, unit].float().split(batch), strict=True):
            total += torch.stack([a.sum(), b.sum(), (a * a).sum(), (b * b).sum(), (a * b).sum()])
        mean_z, mean_f, zz, ff, zf = total / z.shape[-1]
        cov = zf - mean_z * mean_f
        norms = (zz - mean_z**2).clamp_min(0).sqrt() * (ff - mean_f**2).clamp_min(0).sqrt()
        small = bool(norms < 1e-6) and bool(cov.abs() < 1e-6)
        found[r, node, unit] = 0.0 if small else (cov / norms).clamp(-1, 1)
    return found


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_raw_is_what_raw_sums_give(mean: float) -> None:
    z, f = data(2, 1280, mean)
    found = RawCorrelation()
    for part_z, part_f in zip(z.split(640, -1), f.split(640, -1), strict=True):
        found.add(part_z.bool(), part_f.float())
    assert found.count == 1280
    assert found.result().dtype == torch.float32
    assert (found.result() - raw_by_hand(z, f, 128)).abs().max() < 1e-5
    assert (found.result() - by_numpy(z, f)).abs().max() < 1e-4


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


def test_the_best_linear_unit_where_leaves_repeat_each_other() -> None:
    tree = trees.symmetric_binary([torch.tensor([[1.0, 1.0]]).double()])
    assert float(runs.best_linear(tree)) == pytest.approx(1)


SHORT = TreeRun(epoch_size=256)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of few samples, epochs and trials, made by one process."""
    small = {"UNTRAINED": 2, "PAPERS": SHORT, "EPOCHS": (0, 1, 20), "NORM_EPOCHS": (0, 1), "cores": lambda: 1}
    for name, value in small.items():
        monkeypatch.setattr(records, name, value)


def test_a_rerun_is_the_population_up_to_sampling() -> None:
    samples = 12_800
    protocols = [TreeRun(depth=3, width=width, epoch_size=samples) for width in (2, 5)]
    run = records.rerun(protocols, [1, 2, 3], latents=("s", "s0"), epochs=(0, 1, 2, 3), processes=1)
    assert set(run) == set(runs.STATISTICS)
    assert all(corr.shape == (2, 2, 4, 3) for corr in run.values())
    assert ((run["exact"] - run["population"]).abs() < 5 / samples**0.5).all()
    assert ((run["released"] - run["exact"]).abs() < 0.01).all()
    assert (run["exact"][:, :, 0] - run["exact"][:, :, 1]).abs().max() > 0, "training changes something"
    assert not run["exact"].equal(run["population"])


def test_a_table_has_the_axes_of_the_printed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[TreeRun, tuple[int, ...]]] = []

    def rerun(protocols, seeds, *, latents, epochs, processes, device="cpu"):
        calls.extend((protocol, tuple(epochs)) for protocol in protocols)
        shape = (len(latents), len(protocols), len(epochs), len(seeds))
        return dict.fromkeys(runs.STATISTICS, torch.arange(float(math.prod(shape))).view(shape))

    monkeypatch.setattr(records, "rerun", rerun)
    found = records.table(printed("A-Tab6"), range(1, 11), TreeRun(loss="printed"))
    assert found["exact"].shape == (5, 3, 2, 3, 10)
    assert [(p.lower, p.width) for p, _ in calls] == [(low, width) for low in (0.7, 0.8, 0.9) for width in (2, 10)]
    assert {p.loss for p, _ in calls} == {"printed"}
    assert {epochs for _, epochs in calls} == {(0, 1, 49)}
    # latent 4, third range, second width, last column, trial 7
    assert float(found["exact"][4, 2, 1, 2, 7]) == 4 * 180 + (2 * 2 + 1) * 30 + 2 * 10 + 7


def test_the_command_at_tiny_size(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--run", "--seeds", "1", "--epoch-size", "128", "--processes", "1", "--statistic", "population"]
    assert cli.main(["table", "B-Tab2", *asked, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert all(0 <= cell["found"]["correlation"][0] <= 1 for cell in cells)
    assert all(cell["printed"]["std"] is None for cell in cells)
    assert cli.main(["table", "A-Tab4", *asked]) == 0
    out = capsys.readouterr().out
    assert "loss released; statistic population; samples an epoch 128; 1 seed: 1." in out
    assert "0.35±0.20 | " in out


@pytest.mark.usefixtures("short")
def test_recorded_trials_are_those_of_a_rerun(tmp_path) -> None:
    values = records.table_values([1])
    store.save_record("hltm-tables", values, seeds=[1], seconds=1.0, folder=tmp_path)
    found = store.recorded("hltm-tables", folder=tmp_path)
    again = records.table(printed("B-Tab2"), [1], SHORT, processes=1)
    for statistic in runs.STATISTICS:
        mine = records.recorded_trials(found.values, printed("B-Tab2"), "released", statistic)
        assert (mine - again[statistic]).abs().max() < 2e-5
        assert torch.equal(mine, torch.tensor(store.rounded(mine, 5), dtype=mine.dtype)), "five digits are kept"


def test_means_before_training_stand_by_latent_polarity_and_width() -> None:
    found = torch.tensor(records._untrained_means(2, widths=(2, 5)), dtype=torch.float64)
    assert found.shape == (len(records.LATENTS), 3, 2)
    for i, lower in enumerate(records.LOWER):
        for j, width in enumerate((2, 5)):
            alone = runs.untrained(TreeRun(lower=lower, width=width), [1, 2], records.LATENTS)
            assert found[:, i, j].tolist() == pytest.approx(alone.mean(0).tolist(), abs=6e-6), (lower, width)


BRIEF = replace(records.BASE, batch=32, epoch_size=64)


def test_seven_cells() -> None:
    cells = records.norm_cells()
    assert list(cells) == ["base", "depth 3", "depth 4", "lower 0.7", "lower 0.9", "width 2", "width 5"]
    assert cells["base"] == records.BASE
    for name, protocol in cells.items():
        if name != "base":
            factor, value = name.split()
            assert str(getattr(protocol, factor)) == value
            assert replace(protocol, **{factor: getattr(records.BASE, factor)}) == records.BASE


@pytest.mark.parametrize(("depth", "parts"), [(3, ["s0", "s1"]), (4, ["s0", "s1", "s010"]), (5, list(records.PARTS))])
def test_parts_that_a_tree_lacks_are_left_out(depth: int, parts: list[str]) -> None:
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


@pytest.mark.usefixtures("short")
def test_the_record_of_the_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    base = replace(BRIEF, depth=4, width=3)
    monkeypatch.setattr(records, "FACTORS", {"depth": (3,), "width": (2,)})
    monkeypatch.setattr(records, "BASE", base)
    values = store.plain(records.norm_values([1, 2]))
    assert (list(values["cells"]), values["epochs"]) == (["base", "depth 3", "width 2"], [0, 1])
    curves = records.curves({"base": base}, [1, 2], (0, 1), processes=1)["base"]
    for part, wanted in curves.items():
        found = torch.tensor(values["cells"]["base"][part]).double()
        assert found.shape == (2, 2)
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.usefixtures("short")
def test_the_record_under_the_printed_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    base = replace(BRIEF, depth=2)
    monkeypatch.setattr(records, "FACTORS", {"width": (2, 3)})
    monkeypatch.setattr(records, "BASE", base)
    values = store.plain(records.norm_values([1, 2], vary=records.printed_loss))
    assert list(values["cells"]) == ["width 2", "width 3"]
    released = records.curves({"it": replace(base, width=3)}, [1, 2], (0, 1), processes=1)["it"]["s0"]
    found = torch.tensor(values["cells"]["width 3"]["s0"]).double()
    assert (found[0] - released[0]).abs().max() <= 1e-5 * released[0].max()
    assert (found[1] - released[1]).abs().max() > 1e-4 * released[1].max()


def test_records_were_made_with_the_sizes_that_stand_in_the_code() -> None:
    assert store.recorded("hltm-norms")["epochs"] == list(records.NORM_EPOCHS)
    assert store.recorded("hltm-tables")["untrained"]["trials"] == records.UNTRAINED
