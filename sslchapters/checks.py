"""Relative errors; and many instances, one verdict: the worst of what must agree, the best of what must not.

The chapters' checks return relative errors by name.  A name that starts with ``broken:`` belongs to a variant that was broken
on purpose, and must stay large on *every* instance.  A check on one instance after the other is written by :func:`over`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslbook.operator.covariance import relative_gap

Gaps = dict[str, float]
Numbers = Tensor | np.ndarray
Comparison = tuple[str, Any, Any]
"""A name, our value and the one that it must equal; None in the place of the latter says that ours is an error already."""


def relative(value: Numbers, reference: Numbers) -> Tensor:
    r""":math:`\|v - r\| / \|r\|` of each instance, ``(R,)``; the instances lie along the first axis.

    Raises ValueError where a reference is zero or the shapes differ: neither leaves anything to compare.
    """
    a, b = torch.as_tensor(value), torch.as_tensor(reference)
    if a.shape != b.shape:
        raise ValueError(f"value and reference must have one shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    gaps, sizes = (each.reshape(len(b), -1).norm(dim=1) for each in (a - b, b))
    if not bool((sizes > 0).all()):
        raise ValueError("reference must not be zero in any instance")
    return torch.div(gaps, sizes)


def rounding(terms: float, size: float = 1.0, dtype: torch.dtype = torch.float64) -> float:
    r"""The bar of an identity, :math:`n \epsilon s`: sums of n terms, in all of size s, differ by less between processors."""
    return terms * size * torch.finfo(dtype).eps


def gap(found: Tensor, wanted: Tensor) -> float:
    r""":math:`\|found - wanted\| / \|wanted\|` of all numbers together."""
    return float((found - wanted).detach().norm() / wanted.detach().norm())


def verdict(name: str, gaps: Numbers) -> float:
    """The largest of ``gaps``, or the smallest if ``name`` is that of a broken variant.

    Raises ValueError for no gaps, and for one that is not a number: a maximum would hide it.
    """
    gaps = torch.as_tensor(gaps)
    if not gaps.numel():
        raise ValueError("no instance is left to compare")
    if bool(gaps.isnan().any()):
        raise ValueError(f"the gap {name!r} of an instance is not a number")
    return float(gaps.min() if name.startswith("broken:") else gaps.max())


def over(
    draw: Callable[..., Iterable[Any]], *, error: Callable[[Any, Any], float] = relative_gap
) -> Callable[[Callable[..., Iterator[Comparison]]], Callable[..., Gaps]]:
    """Make a check of a function that yields comparisons about one instance: ``check(count, seed)`` is the verdict on many.

    draw: what gives the instances, ``draw(count, seed)``; one of which nothing is yielded is not counted.  error: what two values
    that are compared are apart.  Further arguments of the function are given by keyword.
    """

    def wrap(compare: Callable[..., Iterator[Comparison]]) -> Callable[..., Gaps]:
        @functools.wraps(compare)
        def check(count: int, seed: int = 0, **chosen: Any) -> Gaps:
            found: dict[str, list[float]] = {}
            instances = 0
            for one in draw(count, seed):
                told = list(compare(one, **chosen))
                instances += bool(told)
                for name, value, wanted in told:
                    found.setdefault(name, []).append(float(value if wanted is None else error(value, wanted)))
            if not found:
                raise ValueError("no instance is left to compare")
            worst = {name: verdict(name, torch.tensor(gaps, dtype=torch.float64)) for name, gaps in found.items()}
            return {**worst, "instances": float(instances)}

        return check

    return wrap


def worst(rows: Sequence[Gaps]) -> Gaps:
    """The :func:`verdict` on each name over instances, a row each, and the number of ``instances``."""
    return over_instances(*({name: np.array([gap]) for name, gap in row.items()} for row in rows))


def over_instances(*parts: Mapping[str, Numbers]) -> Gaps:
    """The :func:`verdict` on each name for gaps that lie along one axis, ``(R,)`` each; parts are instances after instances."""
    names = dict.fromkeys(name for part in parts for name in part)
    joined = {name: torch.cat([torch.as_tensor(part[name]) for part in parts if name in part]) for name in names}
    found = {name: verdict(name, gaps) for name, gaps in joined.items()}
    return {**found, "instances": float(sum(len(next(iter(part.values()))) for part in parts))}
