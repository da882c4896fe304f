"""Intervals: against closed forms, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sslchapters.intervals import difference, mean_interval, proportion


def test_the_t_interval_of_two_values_is_known_in_closed_form() -> None:
    """With one degree of freedom t is Cauchy, and its quantile a tangent: half the width is |a - b| / 2 · tan(π level / 2)."""
    found = mean_interval([1.0, 3.0], level=0.9)
    half = 1.0 * math.tan(math.pi * 0.9 / 2)
    assert (found.mean, found.n) == (2.0, 2)
    assert found.low == pytest.approx(2 - half, rel=1e-12)
    assert found.high == pytest.approx(2 + half, rel=1e-12)
    assert difference([4.0, 5.0], [3.0, 2.0], level=0.9) == found, "paired: the mean of the differences"


def test_an_interval_ends_where_the_mean_can_not_lie() -> None:
    cosines = [0.99, 1.0, 0.95]
    free, cut = mean_interval(cosines), mean_interval(cosines, within=(-1, 1))
    assert free.high > 1
    assert (cut.mean, cut.low, cut.high) == (free.mean, free.low, 1.0)
    apart = difference(cosines, [-1.0, -0.99, -0.9], within=(-2, 2))
    assert apart.high == min(2.0, difference(cosines, [-1.0, -0.99, -0.9]).high)
    with pytest.raises(ValueError, match=r"within: got \(-1, 1\), but values from 0.95 to 1.2"):
        mean_interval([1.2, 0.95], within=(-1, 1))


def test_groups_of_their_own_spread_have_welchs_interval() -> None:
    a, b = np.array([1.0, 2.0, 4.0]), np.array([0.0, 0.1, 0.3, 0.2, 0.15])
    found = difference(a, b, paired=False)
    u, v = a.var(ddof=1) / 3, b.var(ddof=1) / 5
    freedom = (u + v) ** 2 / (u**2 / 2 + v**2 / 4)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(u + v)
    assert found.low == pytest.approx(a.mean() - b.mean() - half, rel=1e-12)
    assert found.n == 3


def test_a_share_has_the_interval_of_clopper_and_pearson() -> None:
    """At its ends the observed count is as far out as 2.5 %; of no hits at all, one end is known in closed form."""
    found = proportion(np.arange(20) > 0)
    assert (found.mean, found.n) == (0.95, 20)
    assert stats.binom.sf(18, 20, found.low) == pytest.approx(0.025, abs=1e-9)
    assert stats.binom.cdf(19, 20, found.high) == pytest.approx(0.025, abs=1e-9)
    assert proportion([0.0] * 40).high == pytest.approx(1 - 0.025 ** (1 / 40), abs=1e-12)
    with pytest.raises(ValueError, match=r"hits must be zeros and ones, got 0\.5"):
        proportion([1.0, 0.5])
