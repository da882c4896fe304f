"""What every function that returns gaps must satisfy: identities hold, broken variants don't."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from held import hold

HOLDS = 1e-9
"""An identity. Both sides are float64 sums (epsilon 2e-16) of up to 1e5 terms. Most gaps are 1e-14; where samples lie far apart,
tuples whose negative is the anchor's own sample weigh 1e4 times more than all others and cancel, which leaves 1e-10."""

BROKEN = 1e-3
"""A broken variant, the smallest over all instances: six orders above what holds. How large it is is held as well (`held.py`)."""


def assert_gaps(
    gaps: Mapping[str, float], holds: Iterable[str], broken: Iterable[str], free: Iterable[str] = ()
) -> None:
    """``holds`` and ``broken`` are all there (the latter without their prefix), and every entry is as its name says.

    free: broken variants that amplify rounding, so that their values differ from processor to processor.
    """
    wanted = {*holds, *(f"broken: {name}" for name in broken)}
    assert wanted <= set(gaps), f"missing: {sorted(wanted - set(gaps))}"
    assert gaps["instances"] >= 4
    for name, gap in gaps.items():
        if name == "instances":
            continue
        if name.startswith("broken:"):
            assert gap > BROKEN, (name, gap)
        else:
            assert gap < HOLDS, (name, gap)
    hold({name: gap for name, gap in gaps.items() if name.removeprefix("broken: ") not in free})
