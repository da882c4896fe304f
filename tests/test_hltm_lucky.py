"""Lucky nodes: Mills' ratio and its bounds, the tail of a Gaussian pair, widths, the event itself, the bound on a gap."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from held import hold
from scipy import integrate, stats

from sslbook.chapters.hltm import lucky

GRID = [(c, gamma) for c in (0.25, 0.5, 1.0, 2.0, 4.0, 9.0, 25.0) for gamma in (0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95)]


@pytest.mark.parametrize("y", [-2.0, -0.5, 0.0, 0.1, 1.0, 3.0, 10.0, 40.0])
def test_mills_ratio_is_its_integral(y: float) -> None:
    integral, _ = integrate.quad(lambda t: math.exp(-y * t - t * t / 2), 0, math.inf, epsabs=0, epsrel=1e-12)
    assert lucky.mills_ratio(y) == pytest.approx(integral, rel=1e-11)
    if y <= 10:
        assert lucky.mills_ratio(y) == pytest.approx(stats.norm.sf(y) / stats.norm.pdf(y), rel=1e-10)


def test_mills_ratio_lies_between_its_bounds() -> None:
    for y in [0.01 * 1.2**k for k in range(60)]:
        low, high = lucky.mills_bounds(y)
        assert low < lucky.mills_ratio(y) < high
    low, high = lucky.mills_bounds(30.0)
    assert high / low < 1.001, "and they meet"


@pytest.mark.parametrize(("c", "gamma"), GRID)
def test_the_residue_lies_between_its_bounds(c: float, gamma: float) -> None:
    low, high = lucky.residue_bounds(c, gamma)
    assert 0 < low <= lucky.residue(c, gamma) <= high
    assert high <= 2 * low
    hold({"low": low, "high": high})


@pytest.mark.parametrize(("c", "gamma"), GRID)
def test_the_tail_and_its_lower_bound(c: float, gamma: float) -> None:
    tail = lucky.tail_probability(c, gamma)
    mean, cov = [0.0, 0.0], [[1.0, -gamma], [-gamma, 1.0]]
    # the upper tail of a pair is the lower one of its negative, whose covariance is the same
    reference = stats.multivariate_normal.cdf([-math.sqrt(c), 0.0], mean, cov, abseps=1e-14, releps=1e-12)
    assert tail == pytest.approx(reference, rel=1e-7, abs=1e-13)
    assert 0 < lucky.tail_bound(c, gamma) <= tail * (1 + 1e-10)
    printed = lucky.tail_bound(c, gamma, as_printed=True)
    if gamma:
        assert printed > tail, "the printed exponent makes it no lower bound"
    else:
        assert printed == lucky.tail_bound(c, gamma) == pytest.approx(tail, rel=1e-10), "two independent tails"


def test_the_residue_tends_to_its_asymptote() -> None:
    """For large c, and gamma towards 1."""
    gamma = 0.999
    ratios = [lucky.residue(c, gamma) / lucky.residue_asymptote(c, gamma) for c in (0.1, 1.0, 10.0, 100.0)]
    errors = [abs(ratio - 1) for ratio in ratios]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 2e-3
    assert abs(lucky.residue(1.0, 0.3) / lucky.residue_asymptote(1.0, 0.3) - 1) > 0.1


@pytest.mark.parametrize(("c", "gamma"), [(1.0, 0.3), (4.0, 0.9)])
def test_widths_and_etas(c: float, gamma: float) -> None:
    """(1 - p)^n <= e^{-pn} = eta for the probability p of a lucky unit."""
    n = lucky.width_needed(c, gamma, 0.05)
    assert math.exp(-n * lucky.tail_bound(c, gamma)) == pytest.approx(0.05)
    assert (1 - lucky.tail_probability(c, gamma)) ** n < 0.05
    assert lucky.width_needed(c, gamma, 0.05, as_printed=True) < n
    low, high = lucky.printed_range(c, gamma, 0.05)
    assert low <= lucky.width_needed(c, gamma, 0.05, as_printed=True) <= high
    for width, end in zip(lucky.eta_for(12.0, c, gamma), (0, 1), strict=True):
        assert lucky.printed_range(c, gamma, width)[end] == pytest.approx(12.0)


def test_bad_numbers() -> None:
    for c in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"c must be (above 0|finite), got"):
            lucky.tail_probability(c, 0.5)
    for gamma in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\), got"):
            lucky.residue(1.0, gamma)
    for eta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"eta must be (above 0 and below 1|finite), got"):
            lucky.width_needed(1.0, 0.5, eta)
        with pytest.raises(ValueError, match=r"eta must be (above 0 and below 1|finite), got"):
            lucky.printed_range(1.0, 0.5, eta)


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
    assert lucky.is_lucky(weights, h, a, c, 1.0).tolist() == wanted
    assert lucky.is_lucky(weights, h, -a, c, 1.0).tolist() == wanted, "the two values of the variable change roles"
    assert lucky.is_lucky(weights, h, a, c, 10.0).tolist() == [False] * 5
    both = lucky.is_lucky(weights, torch.stack([h, h]), torch.stack([a, -a]), c, 1.0)
    assert both.tolist() == [wanted, wanted]


def test_the_chance_of_a_lucky_unit_is_the_tails() -> None:
    """With many leaves the pair is Gaussian, nearly."""
    part = lucky.balanced_part(400, 0.7, 1.0, seed=0)
    assert part.rho.abs().min() >= 0.7
    assert lucky.pair_correlation(part.h, part.a) == pytest.approx(part.gamma)
    weights = lucky.uniform_weights((40_000, 400), 1.0, seed=1)
    flip = 1 if part.a.clamp_min(0).square().sum() >= part.a.clamp_max(0).square().sum() else -1
    pair = weights @ torch.stack([part.h + flip * part.a, part.h - flip * part.a], 1)
    assert float(torch.corrcoef(pair.T)[0, 1]) == pytest.approx(part.gamma, abs=0.02)
    one = lucky.chance_of_lucky_part(part, 1, 1.0, draws=40_000, seed=1)
    p = lucky.tail_probability(1.0, part.gamma)
    assert abs(one.share - p) < 5 * one.error + 0.003
    several = lucky.chance_of_lucky_part(part, 8, 1.0, draws=5_000, seed=2)
    assert several.share == pytest.approx(1 - (1 - p) ** 8, abs=0.04)
    assert several.draws == 5_000


def test_uniform_weights_have_their_variance() -> None:
    weights = lucky.uniform_weights((20_000, 5), 0.7, seed=0)
    assert weights.var().item() == pytest.approx(0.49 / 5, rel=0.02)
    assert weights.abs().max() <= 0.7 * math.sqrt(3 / 5)


def test_the_bracket_as_printed_and_for_groups() -> None:
    s, rho = torch.tensor([0.5, 0.2, -0.4]).double(), torch.tensor([0.9, -0.5, 0.1]).double()
    sigma, c = torch.tensor(0.03).double(), 4.0
    printed = (s**2 * ((c + 6) / 6 * rho**2 - 1)).mean() - sigma
    assert float(lucky.bracket(s, rho, c, sigma)) == pytest.approx(float(printed), abs=1e-15)
    assert float(lucky.bracket(s, rho, c, sigma, group=2)) < float(printed)
    one = torch.ones(1).double()
    edge = lucky.polarity_needed(c)
    for rho_value, sign in [(edge * 1.01, 1), (edge * 0.99, -1)]:
        assert sign * float(lucky.bracket(one, rho_value * one, c, torch.tensor(0.0))) > 0


def sharper(s: torch.Tensor, rho: torch.Tensor, c: float) -> float:
    return float(lucky.sharper_bracket(s, rho, c, torch.zeros(()).double()))


def test_the_sharper_bracket_bounds_the_gaps_of_lucky_units() -> None:
    for part in (lucky.balanced_part(8, 0.8, 1.0, 0), lucky.balanced_part(8, 0.0, 1.0, 1)):
        for c in (0.5, 4.0):
            check = lucky.lucky_bound(part, c, 200, seed=1)
            bound = 3 * sharper(part.s, part.rho, c)
            assert bound >= 4 * check.bound - 1e-12
            assert float(check.gaps.min()) >= bound


@pytest.mark.parametrize(("pairs", "c"), [(1, 1.0), (5, 0.2), (40, 0.03), (200, 0.05)])
def test_units_at_the_edge_reach_the_sharper_bracket(pairs: int, c: float) -> None:
    part, weights = lucky.extreme_unit(pairs, c)
    n = 2 * pairs + 1
    assert weights.abs().max() <= (3 / n) ** 0.5
    assert lucky.is_lucky(weights, part.h, part.a, c, 1.0).all()
    up, down = lucky.mean_activations(part, weights)
    gap = float(up**2 - down**2) * n
    assert gap == pytest.approx(c * (pairs + 0.25) - 3 / 16, rel=1e-9)
    bound = 3 * sharper(part.s, part.rho, c) * n
    assert bound == pytest.approx(c * pairs - 3 / 16)
    assert gap - bound == pytest.approx(c / 4, rel=1e-6)


def test_the_bracket_needs_its_variance() -> None:
    """A leaf that nearly always follows the opposite of its variable lifts v- and not v+, if its weight is large."""
    part, weights = lucky.LeafPart(torch.tensor([-0.9, 1, 1, -1]).double()), torch.tensor([[1, 0, 0, -0.9501]]).double()
    c, sigma_w = 0.0037, 2 / 3**0.5
    assert weights.abs().max() <= sigma_w * (3 / 4) ** 0.5 + 1e-12
    assert lucky.is_lucky(weights, part.h, part.a, c, sigma_w).all()
    up, down = lucky.mean_activations(part, weights)
    assert float(up) == pytest.approx(0.05)
    assert float(down) == pytest.approx(0.95 * 0.0499)
    gap = float(up**2 - down**2)
    nothing = torch.zeros(())
    assert 3 * sigma_w**2 * float(lucky.bracket(part.s, part.rho, c, nothing)) < gap
    assert 3 * sigma_w**2 * float(lucky.bracket(part.s, part.rho, c, nothing, group=0)) > 2 * gap


def test_an_extreme_unit_has_weights_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"pairs = 4 and c = 0.01 ask for a weight of -0"):
        lucky.extreme_unit(4, 0.01)
    with pytest.raises(ValueError, match=r"pairs = 1 and c = 99 ask for a weight of"):
        lucky.extreme_unit(1, 99.0)


@pytest.mark.parametrize(("n", "c"), [(3, 1.0), (8, 2.0), (40, 1.0)])
def test_the_chance_of_a_lucky_unit_with_uniform_weights(n: int, c: float) -> None:
    part = lucky.balanced_part(n, 0.3, 0.9, 2)
    exact = lucky.uniform_chance(part, c, terms=400)
    weights = lucky.uniform_weights((400_000, n), 1.0, 5)
    share = float(lucky.is_lucky(weights, part.h, part.a, c, 1.0).double().mean())
    assert abs(share - exact) < 4 * (exact / 400_000) ** 0.5
    flipped = lucky.LeafPart(-part.rho)
    assert lucky.uniform_chance(flipped, c, terms=400) == pytest.approx(exact, rel=1e-9)
    if n == 40:
        assert lucky.uniform_chance(part, c, terms=60) == pytest.approx(exact, rel=1e-12)


def test_with_many_leaves_the_chance_is_the_gaussian_one() -> None:
    off = []
    for n in (16, 64, 256):
        part = lucky.LeafPart(torch.full((n,), 0.5).double() * torch.tensor([1.0, -1.0]).repeat(n // 2))
        off.append(lucky.uniform_chance(part, 4.0) / lucky.tail_probability(4.0, part.gamma) - 1)
    assert off[0] / off[1] == pytest.approx(4, rel=0.15)
    assert off[1] / off[2] == pytest.approx(4, rel=0.1)
    assert off[2] < 0


def test_some_unit_of_many() -> None:
    assert lucky.some_unit(0.25, 3) == pytest.approx(1 - 0.75**3, rel=1e-15)


def test_the_gaps_of_lucky_units_by_listing_patterns() -> None:
    part = lucky.LeafPart(torch.tensor([0.95, -0.9, 0.85]).double())
    check = lucky.lucky_bound(part, 4.0, 50, seed=3)
    weights = lucky.uniform_weights((20_000, 3), 1.0, 3)
    chosen = weights[lucky.is_lucky(weights, part.h, part.a, 4.0, 1.0)][:50]
    assert len(chosen) == 50
    for w, gap in zip(chosen, check.gaps, strict=True):
        means = []
        for sign in (1, -1):
            mean = 0.0
            for x in itertools.product((0, 1), repeat=3):
                p = math.prod(
                    (1 + sign * float(rho)) / 2 if on else (1 - sign * float(rho)) / 2 for rho, on in zip(part.rho, x)
                )
                mean += p * max(0.0, sum(float(weight) * on for weight, on in zip(w, x)))
            means.append(mean)
        assert float(gap) == pytest.approx(abs(means[0] ** 2 - means[1] ** 2), abs=1e-13)
    assert check.bound == pytest.approx(3 * sum(0.25 * (10 / 6 * float(r) ** 2 - 1) for r in part.rho) / 3)
    assert check.margin == pytest.approx(float(check.gaps.min()) / check.bound)
    assert 1 <= check.margin <= check.looseness
