"""Many instances, one verdict: the worst of what must agree, the best of what must not.

The chapters' checks return relative errors by name.  A name that starts with ``broken:`` belongs to a variant that was broken
on purpose, and must stay large on *every* instance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Gaps = dict[str, float]


def worst(rows: Sequence[Gaps]) -> Gaps:
    """The largest gap of what must agree, the smallest of what must not, and the number of ``instances``.

    Raises ValueError for no rows, and for a gap that is not a number: a maximum would hide it.
    """
    if not rows:
        raise ValueError("no instance is left to compare")
    for row in rows:
        for key, gap in row.items():
            if math.isnan(gap):
                raise ValueError(f"the gap {key!r} of an instance is not a number")
    keys = dict.fromkeys(key for row in rows for key in row)
    found = {key: (min if key.startswith("broken:") else max)(row[key] for row in rows if key in row) for key in keys}
    return {**found, "instances": float(len(rows))}
