"""The chapter's trees and lucky nodes, and what is recorded of networks before training."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import itertools
import math
from dataclasses import replace

import pytest
import torch
from held import hold
from scipy import integrate, stats

from sslbook.experiments.hltm import lucky_nodes, records, runs, theory
from sslbook.experiments.hltm.runs import TreeRun

# --- kinds of trees --------------------------------------------------------------------------------------------------


def test_regular_tables_survive_a_nearly_uniform_draw() -> None:
    """A doubly centred matrix of rounding errors, scaled up, would no longer have rows that sum to one."""
    tree = theory.random_regularized(range(2000), (2, 2, 2), (2, 2))
    for table in tree.tables:
        assert float((table.sum(-1) - 1).abs().max()) < 1e-14
        assert float(theory.residual_table(table).sum(-2).abs().max()) < 1e-13
        assert float(table.min()) >= 0


# --- lucky nodes -----------------------------------------------------------------------------------------------------


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
    hold({"low": low, "high": high})


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
    assert float(lucky_nodes.bracket(s, rho, c, sigma)) == pytest.approx(float(printed), abs=1e-15)
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


# --- identities, bounds, growth --------------------------------------------------------------------------------------


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
