"""Many instances, one verdict: the worst of what must agree, the best of what must not.

The chapters' checks return relative errors by name.  A name that starts with ``broken:`` belongs to a variant that was broken
on purpose, and must stay large on *every* instance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

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


def relative(value: Tensor, reference: Tensor) -> Tensor:
    r""":math:`\|v - r\| / \|r\|` of each instance, ``(R,)``; the instances lie along the first axis.

    Raises ValueError where a reference is zero or the shapes differ: neither leaves anything to compare.
    """
    if value.shape != reference.shape:
        raise ValueError(
            f"value and reference must have one shape, got {tuple(value.shape)} and {tuple(reference.shape)}"
        )
    count = len(reference)
    size = reference.reshape(count, -1).norm(dim=1)
    if not bool((size > 0).all()):
        raise ValueError("reference must not be zero in any instance")
    gap: Tensor = (value - reference).reshape(count, -1).norm(dim=1) / size
    return gap


def over_instances(named: Mapping[str, Tensor]) -> Gaps:
    """:func:`worst` for gaps that lie along one axis, ``(R,)`` each."""
    columns = {key: values.tolist() for key, values in named.items()}
    return worst([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
