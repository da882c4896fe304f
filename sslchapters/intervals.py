"""What a few seeds can tell: a mean, a difference or a share with its interval, and when two things are level.

SciPy does the statistics; here its answers get one shape, `Interval`, which the book's checks take as they take numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sslbook._check import keep_plain, require_number, require_whole

Values = Sequence[float] | np.ndarray
ANYTHING = (-math.inf, math.inf)
NEARLY_EQUAL: dict[str, Any] = {"action": "ignore", "category": RuntimeWarning}
"""SciPy warns of values that are nearly equal; their interval is then a point, as it should be."""


@dataclass(frozen=True)
class Interval:
    """An estimate from ``n`` values (the fewer of two groups', if they are not paired) with the ends of its confidence interval.

    Raises ValueError unless ``low <= mean <= high``, all finite, and ``n`` is at least 2; TypeError for what is no number.
    """

    mean: float
    low: float
    high: float
    n: int

    def __post_init__(self) -> None:
        keep_plain(self)
        for part in ("mean", "low", "high"):
            require_number(part, getattr(self, part))
        require_whole("n", self.n, least=2)
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"low <= mean <= high is needed, got {self.low}, {self.mean}, {self.high}")

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g}, n = {self.n})"


def mean_interval(values: Values, level: float = 0.95, within: tuple[float, float] = ANYTHING) -> Interval:
    r"""The mean and its t-interval, :math:`\bar x \pm t_{n-1}\, s / \sqrt n`: exact for independent normal values.

    ``within`` are the least and the largest mean that there can be, -1 and 1 of cosines: the interval ends there.
    Raises ValueError for values that are not ``within``, and for more than one axis.
    """
    from scipy import stats  # a second, which a table of numbers does not need

    x = _values("values", values)
    with warnings.catch_warnings(**NEARLY_EQUAL):
        ends = stats.ttest_1samp(x, 0.0).confidence_interval(level)
    return _interval(float(x.mean()), _cut(ends, within, x), x.size)


def difference(
    ours: Values, theirs: Values, paired: bool = True, level: float = 0.95, within: tuple[float, float] = ANYTHING
) -> Interval:
    """The mean of ``ours`` less that of ``theirs``, with its interval: "ahead" is one that lies above zero.

    ``paired`` values share what else varies (a seed, a network, a batch) place by place, and the interval is that of their
    differences; without it the groups are independent, may differ in size and spread, and the interval is Welch's. ``within`` are
    the least and the largest difference that there can be.
    """
    from scipy import stats

    a, b = _values("ours", ours), _values("theirs", theirs)
    with warnings.catch_warnings(**NEARLY_EQUAL):
        test = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
        ends = test.confidence_interval(level)
    mean = (a - b).mean() if paired else a.mean() - b.mean()
    return _interval(float(mean), _cut(ends, within, np.array([mean])), min(a.size, b.size))


def proportion(hits: Values) -> Interval:
    """The share of trials that hit, of zeros and ones, with its Clopper-Pearson interval, which holds the truth in 95% or more.

    Raises ValueError for values that are neither 0 nor 1.
    """
    from scipy import stats

    x = _values("hits", hits)
    if not np.isin(x, (0, 1)).all():
        raise ValueError(f"hits must be zeros and ones, got {x[~np.isin(x, (0, 1))][0]}")
    return _interval(float(x.mean()), stats.binomtest(int(x.sum()), x.size).proportion_ci(method="exact"), x.size)


def bootstrap(values: Values, statistic: Callable[[np.ndarray], float]) -> Interval:
    """A statistic of the values, such as ``numpy.median``, with the 95% interval of its bias-corrected, accelerated bootstrap.

    For what has no t-interval; of few values any bootstrap is too narrow. There are 9,999 resamples.
    """
    from scipy import stats

    x = _values("values", values)
    with warnings.catch_warnings(**NEARLY_EQUAL):
        found = stats.bootstrap((x,), statistic, vectorized=False, random_state=np.random.default_rng(0))
    ends = found.confidence_interval
    return _interval(float(statistic(x)), ends, x.size)


def ratio_of_means(above: Values, below: Values) -> Interval:
    """The ratio of two means, paired by seed, with the 95% percentile interval of 9,999 resamples of the seeds.

    Where resampled means of ``below`` change their sign the interval is wide.
    """
    a, b = _values("above", above), _values("below", below)
    drawn = np.random.default_rng(0).integers(b.size, size=(9999, b.size))
    low, high = np.percentile(a[drawn].mean(1) / b[drawn].mean(1), [2.5, 97.5])
    return _interval(float(a.mean() / b.mean()), (low, high), b.size)


def _cut(ends: tuple[float, float], within: tuple[float, float], x: np.ndarray) -> tuple[float, float]:
    """The part of an interval in which a mean of values ``within`` two numbers can lie."""
    least, most = within
    slack = 1e-9  # a cosine of one, and its rounding
    if not (least - slack <= x.min() and x.max() <= most + slack):
        raise ValueError(f"within: got {within}, but values from {x.min():.6g} to {x.max():.6g}")
    return max(float(ends[0]), least), min(float(ends[1]), most)


def _interval(mean: float, ends: tuple[float, float], n: int) -> Interval:
    """The ends hold the estimate, whatever rounding (or a skew bootstrap) says."""
    return Interval(mean, min(float(ends[0]), mean), max(float(ends[1]), mean), n)


def _values(argument: str, values: Values) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise ValueError(f"{argument} must have one axis, got shape {x.shape}")
    return x
