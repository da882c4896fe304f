"""How much room each check leaves: between what is measured and its bar, and between the bar and the nearest wrong theory.

A bar that stands far from the measured value would not notice if something went wrong; one that a rival nearly reaches says
little of the theory. `margins` reads both from the executed chapters, worst first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from sslbook.book.values import Criterion, Number, Value
from sslbook.stats.intervals import Interval

LOOSE = 100.0
"""A bar that is more than this many times what is measured is counted as loose; one of ten times is what a bar should be."""


@dataclass(frozen=True)
class Margin:
    """A check's two margins, as factors.

    ``bar`` is how many times what was measured its bar is (an error of 2e-15 under a bar of 1e-12: 500); 1 for a check that
    allows no error. ``rival`` is how many times the bar the nearest rival or reject has (an error of 0.5 under that bar: 5e11);
    just above 1 it nearly passes. ``nearest`` names it; infinity and an empty name where the check has neither.
    """

    number: Number
    bar: float
    rival: float
    nearest: str

    @property
    def place(self) -> float:
        """Where the bar stands on the way from the value (0) to the nearest rival (1), in orders of magnitude."""
        near, far = math.log(max(self.bar, 1.0)), math.log(max(self.rival, 1.0))
        return 1.0 if near + far == 0 else near / (near + far) if math.isfinite(far) else 0.0


def margins(numbers: Iterable[Number]) -> list[Margin]:
    """The margins of all checks among ``numbers``, the loosest bar first."""
    found = [_margin(number) for number in numbers if number.criterion.asserts and number.part_of is None]
    return sorted(found, key=lambda margin: (-margin.bar, margin.rival))


def _margin(number: Number) -> Margin:
    test = number.criterion
    others = {**number.rivals, **number.rejects}
    missed = {what: _times(test, value) for what, value in others.items()}
    nearest = min(missed, key=lambda what: missed[what], default="")
    reached = _times(test, number.result)
    return Margin(number, 1 / reached if reached else math.inf, missed.get(nearest, math.inf), nearest)


def _times(test: Criterion, value: Value) -> float:
    """What is measured in units of what is allowed: at most 1 if it passes; of an interval its worse end.

    Of several conditions the tightest counts. A bound that is zero, or of another sign than the value, has no factor: there
    it is the distance from the bound in units of the larger of the two, on the right side of 1.
    """
    if isinstance(value, Interval):
        return max(_times(test, value.low), _times(test, value.high))
    if not math.isfinite(value):
        return math.inf
    shares = []
    if test.expect is not None:
        off, allowed = abs(value - test.expect), test.allowed()
        resolution = sys.float_info.epsilon * max(abs(test.expect), sys.float_info.min)
        shares.append((1.0 if off == 0 else math.inf) if allowed == 0 else max(off, min(resolution, allowed)) / allowed)
    if test.below is not None:
        shares.append(_share(value, test.below))
    if test.above is not None:
        shares.append(_share(-value, -test.above))
    return max(shares)


def _share(value: float, bound: float) -> float:
    """``value / bound`` for an upper bound, of negative numbers its inverse: below 1 where ``value < bound``."""
    if value == bound:
        return 1.0
    if bound > 0 and value >= 0:
        return max(value, min(sys.float_info.epsilon, bound)) / bound
    if bound < 0 and value < 0:
        return bound / value
    size = max(abs(value), abs(bound))
    return 1 / (1 + (bound - value) / size) if value < bound else 1 + (value - bound) / size


def table(found: Iterable[Margin]) -> list[str]:
    """The margins as lines: chapter, name, how many times the measured the bar is, the nearest rival and how far it misses."""
    lines = ["bar/value  rival/bar  check"]
    for margin in found:
        number, near = margin.number, f"  nearest: {margin.nearest}" if margin.nearest else ""
        who = f"{number.chapter}: {number.name}" + (f" ({number.id})" if number.id else "")
        lines.append(f"{margin.bar:9.3g}  {margin.rival:9.3g}  {who} {number.criterion}{near}")
    return lines


def loose(numbers: Iterable[Number]) -> dict[str, int]:
    """How many checks of each chapter have a bar of more than `LOOSE` times what is measured."""
    counts: dict[str, int] = {}
    for margin in margins(numbers):
        counts[margin.number.chapter] = counts.get(margin.number.chapter, 0) + (margin.bar > LOOSE)
    return counts
