r"""Objects on a ring and one neuron that sees two neighbouring pixels (Section 5.1 of [tian2020]; claims A-5.1b to A-5.1d).

An object, written as a word such as ``"101"``, stands with equal probability at any of ``d`` places of a ring; all its shifts are
its views.  A neuron of width 2 meets the four patterns 00, 01, 10, 11, always in this order here.  With
:math:`h_p = w^T x_p` (:math:`x_p` with a 1 appended if there is a bias), the set :math:`S` of patterns with :math:`h_p > 0`
and the signs :math:`\epsilon = (+, -, -, +)`,

.. math::  \bar K(1) - \bar K(2) = u_S / d, \qquad u_S = \sum_{p \in S} \epsilon_p x_p, \qquad OP = u_S u_S^T / (4 d^2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from sslbook.operator.covariance import covariance_operator
from sslchapters.checks import Comparison, over
from sslchapters.emergence.theory import enumerated_loss

PATTERNS = ("00", "01", "10", "11")
SIGNS = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
"""How often a window shows the pattern when the object is 11, minus how often when it is 101."""


def ring_scene(d: int, objects: tuple[str, ...] = ("11", "101")) -> Tensor:
    """Every object at every place, ``(objects, d, d)`` in float64: the first axis is what augmentation keeps.

    On fewer than 3 places the counts of patterns would be wrong: the object 101 covers one pixel twice.
    """
    rows = torch.zeros(len(objects), d, dtype=torch.float64)
    for row, word in zip(rows, objects, strict=True):
        row[: len(word)] = torch.tensor([float(letter) for letter in word], dtype=torch.float64)
    return torch.stack([rows.roll(shift, 1) for shift in range(d)], dim=1)


def pattern_counts(d: int) -> Tensor:
    """How often a fixed window shows each of the four patterns over the ``d`` places of each object, 11 and 101: ``(2, 4)``."""
    first = ring_scene(d, ("11", "101"))[..., :2]
    shown = (2 * first[..., 0] + first[..., 1]).long()
    return torch.nn.functional.one_hot(shown, 4).sum(1)


def pattern_inputs(bias: bool) -> Tensor:
    """The four patterns as inputs of the neuron, ``(4, 2)``, or ``(4, 3)`` with a 1 for the bias."""
    x = torch.tensor([[float(letter) for letter in p] for p in PATTERNS], dtype=torch.float64)
    return torch.cat([x, torch.ones(4, 1, dtype=torch.float64)], 1) if bias else x


def selected(weight: Tensor) -> Tensor:
    """Which patterns the neuron responds to, ``h_p > 0``: ``(..., 2 or 3)`` -> ``(..., 4)``."""
    return responses(weight) > 0


def responses(weight: Tensor) -> Tensor:
    """``h_p = w^T x_p`` of all four patterns, before the ReLU: ``(..., 4)``."""
    return weight @ pattern_inputs(weight.shape[-1] == 3).T


def direction(chosen: Tensor, bias: bool) -> Tensor:
    r""":math:`u_S` for sets ``chosen (..., 4)`` of patterns: ``(..., 2 or 3)``."""
    return (chosen * SIGNS) @ pattern_inputs(bias)


def contrast(weight: Tensor) -> Tensor:
    r""":math:`g(w) = \sum_p \epsilon_p \max(h_p, 0)`: d times the difference of the neuron's mean responses to the two objects."""
    return (SIGNS * responses(weight).clamp_min(0)).sum(-1)


def possible_sets(bias: bool) -> list[frozenset[str]]:
    """The sets S that some weight selects, by enumeration of whole weights from -3 to 3.

    Where a response is exactly zero, a slightly smaller bias (or smaller weights) selects the same set: nothing is added.
    """
    weights = torch.cartesian_prod(*[torch.arange(-3.0, 4.0, dtype=torch.float64)] * (3 if bias else 2))
    found = [frozenset(p for p, on in zip(PATTERNS, row) if on) for row in selected(weights).unique(dim=0)]
    return sorted(found, key=lambda s: (len(s), sorted(s)))


def mask(names: frozenset[str] | set[str] | tuple[str, ...]) -> Tensor:
    """A set of patterns by name as a mask ``(4,)``."""
    return torch.tensor([p in names for p in PATTERNS])


# -- the operator, three ways -------------------------------------------------------------------------------------------


def neuron(weight: Tensor, *, linear: bool = False) -> nn.Sequential:
    """One neuron as a network: a linear layer (a bias is a weight on a constant input), and a ReLU unless ``linear``."""
    layer = nn.Linear(len(weight), 1, bias=False, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight[None])
    return nn.Sequential(layer, nn.Identity() if linear else nn.ReLU())


def neuron_views(d: int, bias: bool, objects: tuple[str, ...] = ("11", "101")) -> Tensor:
    """What the neuron's window shows, for each object at each place: ``(objects, d, 2)``, or 3 with a constant 1."""
    first = ring_scene(d, objects)[..., :2]
    return torch.cat([first, torch.ones_like(first[..., :1])], -1) if bias else first


def _enumerated_gradient(weight: Tensor, views: Tensor, *, both: bool = True) -> Tensor:
    """Autograd gradient of `enumerated_loss` in a ReLU neuron's weight, of ``views (O, d, n)``."""
    return torch.func.grad(lambda w: enumerated_loss((views @ w).relu()[None, ..., None], both=both).sum())(weight)


def _neurons(count: int, seed: int) -> Iterator[tuple[Tensor, int]]:
    """Random weights, every other with a bias, and rings of 4 to 12 places."""
    draw = torch.Generator().manual_seed(seed)
    return ((torch.randn(2 + i % 2, generator=draw, dtype=torch.float64), 4 + i % 9) for i in range(count))


@over(_neurons)
def operator_gaps(instance: tuple[Tensor, int]) -> Iterator[Comparison]:
    r"""Eq. 12 for ReLU neurons, :math:`u_S u_S^T / (4 d^2)`, against the library's operator and autograd.

    Neurons with :math:`u_S = 0` are checked for a zero gradient and don't enter the broken variants.
    """
    weight, d = instance
    bias = len(weight) == 3
    net, views, chosen = neuron(weight), neuron_views(d, bias), selected(weight)
    u = direction(chosen, bias)
    op = torch.outer(u, u) / (4 * d**2)
    one, two = (-_enumerated_gradient(weight, views, both=b) for b in (False, True))
    found = covariance_operator(net, "0", views).dense()
    if not u.any():
        yield "stuck", max(float(one.abs().max()), float(found.abs().max())), None
        return
    yield "library's operator", found.flatten(), op.flatten()
    yield "one tower", op @ weight, one
    yield "both towers, doubled", 2 * op @ weight, two
    yield "broken: d for d squared", torch.outer(u, u) / (4 * d) @ weight, one
    yield "broken: not doubled", op @ weight, two
    if chosen[[0, 3]].any() and chosen[[1, 2]].any():
        unsigned = chosen.double() @ pattern_inputs(bias)
        yield "broken: signs left out", torch.outer(unsigned, unsigned) / (4 * d**2) @ weight, one


# -- what becomes of it -------------------------------------------------------------------------------------------------


def step(weight: Tensor, rate: float) -> Tensor:
    r"""One exact expected step, :math:`w + \eta\, u_S u_S^T w`; :math:`\eta = \alpha c`, or twice that for both towers."""
    u = direction(selected(weight), weight.shape[-1] == 3)
    return weight + rate * (u * weight).sum(-1, keepdim=True) * u


def follow(weight: Tensor, steps: int, rate: float, every: int = 1) -> Tensor:
    """Weights before the first and after each ``every``-th step, ``(steps // every + 1, ..., 2 or 3)``."""
    path = [weight]
    for t in range(1, steps + 1):
        weight = step(weight, rate)
        if t % every == 0:
            path.append(weight)
    return torch.stack(path)


ENDINGS: dict[bool, dict[str, tuple[float, ...]]] = {
    False: {"01": (-1, 1), "10": (1, -1)},
    True: {"00": (-1, -1, 1), "01": (-1, 1, 0), "10": (1, -1, 0), "11": (1, 1, -1)},
}
"""With a bias or without, along which weight a neuron responds to one pattern most, and to no other."""
APART: dict[bool, dict[str, tuple[float, ...]]] = {
    False: {"01": (-1, 0), "10": (0, -1)},
    True: {"00": (-1, -1, 0), "01": (-1, 1, -1), "10": (1, -1, -1), "11": (1, 1, -2)},
}
"""Weights that respond to one pattern by exactly zero, and to all others by less."""


@over(lambda count, seed: ((bias, p, both) for bias, alone in APART.items() for p in alone for both in (False, True)))
def growth_gaps(instance: tuple[bool, str, bool]) -> Iterator[Comparison]:
    r"""Eq. 13: :math:`x_p^T w` after t steps over :math:`(1 + \alpha c_p \|x_p\|^2)^t` times its start, steps by autograd.

    For 01 and 10 without a bias, for all four patterns with one, through one copy and both, whatever the count; the starts select
    p alone throughout.
    """
    d, alpha, steps = 8, 0.5, 10
    bias, p, both = instance
    x = pattern_inputs(bias)[PATTERNS.index(p)]
    square, pace = x.square().sum(), (1 + both) * alpha / (4 * d**2)
    start = 0.01 * x / square + torch.tensor(APART[bias][p], dtype=torch.float64)
    w = start
    for _ in range(steps):
        w = w - alpha * _enumerated_gradient(w, neuron_views(d, bias), both=both)
    ratio = (x @ w) / (x @ start)
    yield "growth", ratio, (1 + pace * square) ** steps
    if square > 1:
        yield "broken: norm left out", ratio, (1 + pace * torch.ones_like(square)) ** steps
    if both:
        yield "broken: not doubled", ratio, (1 + pace * square / 2) ** steps


def _towards(p: str, bias: bool) -> Tensor:
    """The unit weight of `ENDINGS`."""
    return torch.nn.functional.normalize(torch.tensor(ENDINGS[bias][p], dtype=torch.float64), dim=0)


@dataclass(frozen=True)
class Fate:
    """What becomes of the neurons that begin in one set: their share of all, and the shares of them that end at each end."""

    start: frozenset[str]
    share: float
    ends: dict[str, float]


ENDS = ("00", "01", "10", "11", "dead", "stuck")


STEPS = 2500
"""Steps after which nothing turns any more."""


@cache
def _simulate(bias: bool, count: int = 20000, steps: int = STEPS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gaussian start weights (and biases) ``(count, 2 or 3)``, and where their exact expected dynamics end, ``(count,)``.

    An index into ``ENDS``: the lone pattern whose direction is within 0.05 (a sine), dead, stuck, or -1.
    """
    draw = torch.Generator().manual_seed(seed)
    start = torch.randn(count, 3 if bias else 2, generator=draw, dtype=torch.float64)
    weight = start
    for _ in range(steps):
        weight = step(weight, 0.01)
        weight = weight / weight.norm(dim=-1, keepdim=True)  # homogeneous: only the direction matters
    ends, chosen = torch.full((count,), -1), selected(weight)
    ends[~chosen.any(-1)] = ENDS.index("dead")
    ends[chosen.any(-1) & (direction(chosen, bias) == 0).all(-1)] = ENDS.index("stuck")
    for p in ENDINGS[bias]:
        along = weight @ _towards(p, bias)
        ends[(along > 0) & (1 - along.square() < 0.05**2)] = ENDS.index(p)
    return start, ends


def fates(bias: bool, count: int = 20000, seed: int = 0, steps: int = STEPS) -> tuple[Fate, ...]:
    """What becomes of Gaussian neurons, by the set in which they begin (`_simulate`); sets that none begins in are left out."""
    start, ends = _simulate(bias, count, steps, seed=seed)
    began, found = selected(start), []
    for names in possible_sets(bias):
        mine = (began == mask(names)).all(-1)
        if mine.any():
            shares = {end: float((ends[mine] == k).double().mean()) for k, end in enumerate(ENDS)}
            found.append(Fate(names, float(mine.double().mean()), shares))
    return tuple(found)


def foretold(bias: bool, count: int = 20000, seed: int = 0) -> dict[str, float]:
    r"""Shares of neurons whose end is foretold at the start: by the *sign* of the contrast g(w), by responses.

    sign, of all neurons: g > 0 foretells 00 or 11, g < 0 foretells 01 or 10, g = 0 dead or stuck.  strongest and last, of those
    that move: they end at the pattern to which they respond most strongly, or at the last one, 11, if they respond to it at all.
    """
    start, ends = _simulate(bias, count, STEPS, seed=seed)
    g, h = contrast(start), responses(start)
    g = torch.where(g.abs() > 1e-12 * start.norm(dim=-1), g, 0.0)  # where terms cancel, rounding is left
    kind = torch.tensor([1, -1, -1, 1, 0, 0, 9])[ends]  # the last is of -1: no end at all
    moves = direction(h > 0, bias).ne(0).any(-1)
    right = {
        "sign": g.sign() == kind,
        "strongest": (h.argmax(-1) == ends)[moves],
        "last": ((h[:, 3] > 0) == (ends == ENDS.index("11")))[moves],
    }
    return {name: float(which.double().mean()) for name, which in right.items()}


def end_rate(p: str, bias: bool) -> float:
    r"""Growth of the response to ``p`` at its end, :math:`\log(h(t) / h(t/2)) / (\eta t / 2)`, by the exact steps."""
    rate, steps = 0.002, 4000
    # roots have no common measure: else two responses meet zero in one step, and rounding opens their gates or doesn't
    start = _towards(p, bias) + 1e-3 * torch.tensor([1.0, 2.0, 3.0][: 2 + bias]).double().sqrt()
    path = follow(start, steps, rate, every=steps // 2)
    h = responses(path)[:, PATTERNS.index(p)]
    return float((h[-1] / h[-2]).log() / (rate * steps / 2))


def squared_distance(x: Tensor, others: Tensor) -> Tensor:
    r"""The squared distance of ``x (n,)`` from the span of the rows :math:`b` of ``others (m, n)``, by determinants.

    :math:`\rho^2 = \det G(x, b_1, ..., b_m) / \det G(b_1, ..., b_m)` with the Gram matrix G: the squared volume of a
    parallelepiped is that of its base times its squared height.  Nothing is projected, so it can check who does.
    """

    def volume(rows: Tensor) -> Tensor:
        return torch.linalg.det(rows @ rows.T)

    return volume(torch.cat([x[None], others])) / volume(others)
