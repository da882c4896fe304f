r"""Who wins: Theorem 6 of [tian2023], its blow-up times, and the probability that a favoured direction is learned (Eqs. 155
to 157).

With :math:`A(w) = \sum_l g_l(u_l^\top w)\, u_l u_l^\top` and :math:`g_l(x) = x + b_l` the components :math:`y_l = u_l^\top w`
follow :math:`\dot y_l = (y_l + b_l)\, y_l` (**free** flow, Eq. 146), or, with the filter's length held at 1 as in Theorem 5,
:math:`\dot y_l = (y_l + b_l - \nu)\, y_l` with :math:`\nu = \sum_l (y_l + b_l)\, y_l^2` (**unit** flow).  Modulation adds
``c`` to one :math:`b_l`.  (The chapter writes :math:`\gamma_l` for :math:`b_l`.)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sslbook.arguments import require_whole
from sslbook.gaps import Gaps, over_instances

DTYPE = torch.float64


def blow_up_time(start: Tensor, b: Tensor) -> Tensor:
    r"""Eq. 150, :math:`t^* = \frac1b \ln(1 + b/y(0))`, infinite where :math:`y(0) \le 0`."""
    positive = start > 0
    time = torch.log1p(b / torch.where(positive, start, 1.0)) / b
    return torch.where(positive, time, torch.inf)


def _free_flow(start: Tensor, b: Tensor, time: Tensor) -> Tensor:
    r"""Eq. 147 solved for ``y``: :math:`y(t) = b\,q/(1 - q)` with :math:`q = \frac{y(0)}{y(0) + b}\, e^{bt}`, before the
    blow-up."""
    q = start / (start + b) * torch.exp(b * time)
    return b * q / (1 - q)


def closed_form_gaps(count: int, seed: int) -> Gaps:
    r"""Eqs. 146, 147, 150 and 151 at random :math:`y(0), b > 0`: the solution's derivative by autograd, its end, and the sign
    of the slope.

    ``at the blow-up``: :math:`\frac{b}{y(t)} \to 0` linearly, so :math:`1/y` at :math:`t^* (1 - 10^{-6})` over
    :math:`10^{-6} t^*`, against 1.
    """
    draw = torch.Generator().manual_seed(seed)
    start = torch.rand(count, generator=draw, dtype=DTYPE) + 0.05
    b = (3 * torch.rand(count, generator=draw, dtype=DTYPE) + 0.1).requires_grad_()
    end = blow_up_time(start, b)
    (slope,) = torch.autograd.grad(end.sum(), b)
    b, end = b.detach(), end.detach()
    time = (end * torch.rand(count, generator=draw, dtype=DTYPE) * 0.9).requires_grad_()
    y = _free_flow(start, b, time)
    (speed,) = torch.autograd.grad(y.sum(), time)
    y, ratio = y.detach(), b / start
    printed = (ratio / (1 + ratio) - ratio.log1p()) / b.square()
    short = 1e-6 * end
    return over_instances(
        {
            "Eq. 146": ((speed - (y + b) * y) / speed).abs(),
            "at time 0": (_free_flow(start, b, torch.zeros_like(start)) / start - 1).abs(),
            "at the blow-up": (1 / (_free_flow(start, b, end - short) * short) - 1).abs()
            * 1e-4,  # 1/y = s - b s^2/2 + …
            "Eq. 151": ((slope - printed) / slope).abs(),
            "a slope not negative": slope.clamp_min(0),
            "broken: b forgotten": ((speed - y.square()) / speed).abs(),
            "broken: time 1/y(0)": (1 / start / end - 1).abs(),
        }
    )


# ---------------------------------------------------------------------------------------------------------------------
# Basins


def winners(start: Tensor, b: Tensor, *, unit: bool) -> Tensor:
    r"""Which component a flow ends in, ``(...,)``, from ``start (..., d)``; -1 where no positive one dominates.

    On the unit sphere that is so at :math:`-u_l`, and, with an advantage ``c`` between 1 and :math:`\sqrt2` for one
    component, at the mixtures :math:`y_l = y_1 + c` where most starts with :math:`y_1 < 0` come to rest.
    Simulated with exact exponential steps for a frozen rate, :math:`y_l \leftarrow y_l\, e^{h (y_l + b_l)}`.  For the
    ``unit`` flow the result is divided by its length, which is the common rate :math:`\nu`; for the free one ``h`` shrinks
    with the largest component, and lengths are only divided out at the end.
    """
    return _dominant(_ends(start, b, unit))


def _dominant(direction: Tensor) -> Tensor:
    """The component that makes nearly all of a unit vector, -1 for none."""
    value, index = direction.max(-1)
    return torch.where(value > 0.99, index, -1)


def _ends(start: Tensor, b: Tensor, unit: bool) -> Tensor:
    """Where a flow ends, of length 1."""
    rate, steps = 0.05, 4000
    y = start / start.norm(dim=-1, keepdim=True) if unit else start.clone()
    for step in range(steps):
        if unit and step % 100 == 0 and bool((y.abs().amax(-1) > 1 - 1e-9).all()):
            break  # every filter is at rest
        h = rate if unit else rate / (1 + y.abs().amax(-1, keepdim=True))  # a free flow explodes in finite time
        y = y * torch.exp(h * (y + b))
        if unit:
            y = y / y.norm(dim=-1, keepdim=True)
        elif bool((y.amax(-1) > 1e12).all()):
            break
        else:
            y = y.clamp_max(1e15)
    direction: Tensor = y / y.norm(dim=-1, keepdim=True)
    return direction


def basin_shares(d: int, c: float, b: float, count: int, seed: int) -> dict[str, Tensor]:
    r"""Which starts the component with the larger :math:`b_0 = b + c` wins, from :math:`y(0)` uniform on the unit sphere: ones and
    zeros, whose means are shares.

    ``unit`` and ``free``: by simulating the flows.  ``blow-up``: by the shortest time of Eq. 150.  ``agreement``: of that
    time with the unit flow, among the starts with a positive component.  ``lost``: starts that the component wins without
    ``c`` and loses with it.  ``opposite``: of the starts with :math:`y_0(0) < 0`, those that the unit flow leads to
    :math:`-u_0`.  ``side`` and ``free side``: whether it wins just if :math:`y_0(0) > 0`, in the unit and the free flow.
    """
    draw = torch.Generator().manual_seed(seed)
    start = torch.randn(count, d, generator=draw, dtype=DTYPE)
    start = start / start.norm(dim=1, keepdim=True)
    shifts = torch.full((d,), b, dtype=DTYPE)
    plain = winners(start, shifts, unit=True)
    shifts[0] += c
    end = _ends(start, shifts, unit=True)
    unit = _dominant(end)
    free = winners(start, shifts, unit=False)
    first = blow_up_time(start, shifts).argmin(1)
    positive = (start > 0).any(1)
    first = torch.where(positive, first, -1)

    found = {
        "unit": unit == 0,
        "free": free == 0,
        "blow-up": first == 0,
        "agreement": (first == unit)[positive],
        "free agreement": (first == free)[positive],
        "opposite": end[start[:, 0] < 0, 0] < -0.99,
        "lost": (plain == 0) & (unit != 0),
        "side": (unit == 0) == (start[:, 0] > 0),
        "free side": (free == 0) == (start[:, 0] > 0),
    }
    return {name: condition.double() for name, condition in found.items()}


def on_circle(c: float, b: float) -> tuple[Tensor, Tensor]:
    """With ``d = 2``: angles of 44 starts all around, and the component that each unit flow ends in, -1 for none."""
    count = 44
    angles = (torch.arange(count, dtype=DTYPE) + 0.37) * (2 * torch.pi / count)  # none on an axis or on an edge
    start = torch.stack([angles.cos(), angles.sin()], 1)
    return angles, winners(start, torch.tensor([b + c, b], dtype=DTYPE), unit=True)


def edge_of_two(c: float, b: float) -> tuple[float, float]:
    r"""With ``d = 2``, the angle of :math:`y = (\cos\theta, \sin\theta)` below which the favoured component wins: unit flow,
    blow-up time.

    The unit flow rests where :math:`\cos\theta + c = \sin\theta`, that is at :math:`\pi/4 + \arcsin(c/\sqrt2)`, and for good
    from :math:`c = 1` on; the other comes from equal times in Eq. 150, by bisection.
    """
    if c < 0 or not b > 0:
        raise ValueError(f"c must be at least 0 and b above 0, got {c} and {b}")
    unit = np.pi / 2 if c >= 1 else np.pi / 4 + np.arcsin(c / np.sqrt(2))
    low, high = np.pi / 4, np.pi / 2
    for _ in range(80):
        angle = (low + high) / 2
        favoured = np.log1p((b + c) / np.cos(angle)) / (b + c)
        low, high = (angle, high) if favoured < np.log1p(b / np.sin(angle)) / b else (low, angle)
    return float(unit), float((low + high) / 2)


# ---------------------------------------------------------------------------------------------------------------------
# Eqs. 155 to 157


def win_probability(advantage: float, d: int) -> float:
    r"""Eq. 155, :math:`P[Y_l > 0,\ Y_l + \epsilon \ge \max_{l' \ne l} Y_{l'}]` for ``d`` independent :math:`Y \sim U[-1, 1]`,
    at any :math:`\epsilon`.

    Below -1, which the paper leaves out, it is :math:`\frac1d (1 + \epsilon/2)^d`, and 0 from -2 on.
    """
    require_whole("d", d, least=2)
    e = advantage
    if e > 1:
        return 0.5
    if e >= 0:
        return (1 - ((1 + e) / 2) ** d) / d + e / 2
    return (max(0.0, 1 + e / 2) ** d - max(0.0, (1 + e) / 2) ** d) / d


def win_probabilities(factors: Tensor, points: int = 24) -> Tensor:
    r"""The same where every component has a factor of its own, ``(R, d)``:
    :math:`\frac12 \int_0^1 \prod_{l' \ne l} F(y + \epsilon_l - \epsilon_{l'})\, dy`.

    The integrand is a polynomial between the points where one of the ``F`` starts or ends to grow, so that Gauss' rule with
    ``points`` on each piece is exact for :math:`d \le 2\,\text{points}`.
    """
    replicas, d = factors.shape
    gaps = factors[:, :, None] - factors[:, None]  # of l over l'
    edges = torch.cat([-1 - gaps, 1 - gaps], -1).clamp(0, 1)
    ends = torch.zeros(replicas, d, 1, dtype=factors.dtype)
    edges = torch.cat([ends, edges, ends + 1], -1).sort(-1).values
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(points))
    width = edges.diff(dim=-1)[..., None]
    y = edges[..., :-1, None] + width * (nodes + 1) / 2
    f = ((y[..., None] + gaps[:, :, None, None] + 1) / 2).clamp(0, 1)
    own = torch.eye(d, dtype=torch.bool)[:, None, None]
    product = torch.where(own, 1.0, f).prod(-1)
    return 0.5 * (width * weights / 2 * product).sum((-1, -2))


def sampled_probabilities(factors: Tensor, samples: int, seed: int) -> Tensor:
    """Share of ``samples`` draws in which each component wins, ``(R, d)``."""
    draw = torch.Generator().manual_seed(seed)
    replicas, d = factors.shape
    wins, done = torch.zeros(replicas, d, dtype=DTYPE), 0
    while done < samples:
        size = min(samples - done, 20_000)
        y = 2 * torch.rand(replicas, size, d, generator=draw, dtype=DTYPE) - 1
        best = (y + factors[:, None]).argmax(-1, keepdim=True)
        wins += torch.zeros_like(y).scatter(2, best, (y.gather(2, best) > 0).to(DTYPE)).sum(1)
        done += size
    return wins / samples


CASES = (1.6, 1.0, 0.5, 0.1, 0.0, -0.1, -0.5, -0.9, -1.0, -1.4, -2.5)
"""Advantages that reach every case of Eq. 155, and those it leaves out."""


def probability_scores(samples: int, seed: int, dimensions: tuple[int, ...] = (2, 3, 5, 10)) -> dict[str, float]:
    """Eq. 155 in all cases against Monte Carlo, the largest distance in standard errors; and against quadrature, the largest gap.

    ``broken``: the probability of the case next to it, ``1/d`` throughout, and the factor of a half forgotten.
    """
    scores, gaps, same, whole = [], [], [], []
    for i, d in enumerate(dimensions):
        factors = torch.zeros(len(CASES), d, dtype=DTYPE)
        factors[:, 0] = torch.tensor(CASES, dtype=DTYPE)
        exact = torch.tensor([win_probability(case, d) for case in CASES], dtype=DTYPE)
        error = (exact * (1 - exact) / samples).sqrt().clamp_min(1 / samples)
        found = sampled_probabilities(factors, samples, seed + i)[:, 0]
        scores.append((found - exact).abs() / error)
        gaps.append((win_probabilities(factors)[:, 0] - exact).abs())
        same.append(((found - 1 / d).abs() / error).amax())
        whole.append(((found - 2 * exact).abs() / error).amax())
    return {
        "standard errors": float(torch.cat(scores).max()),
        "quadrature": float(torch.cat(gaps).max()),
        "broken: 1/d": float(torch.stack(same).min()),
        "broken: half forgotten": float(torch.stack(whole).min()),
    }


def _lower_bound(factors: Tensor) -> Tensor:
    r"""Eq. 156 for the largest factor, :math:`\frac12(\epsilon_{c(1)} - \epsilon_{c(2)})`, ``(R,)``; it holds up to a gap of
    1."""
    top = factors.topk(2, dim=1).values
    return (top[:, 0] - top[:, 1]) / 2


def _upper_bounds(factors: Tensor) -> Tensor:
    r"""Eq. 157 for ranks 2 to ``d``, ``(R, d - 1)``:
    :math:`\min_{r' < r} \frac1{r'+1}\left(1 - \frac{\epsilon_{c(r')} - \epsilon_{c(r)}}2\right)^{r'+1}`.

    As printed: where a gap passes 2 an odd power turns negative, and no probability lies below it.
    """
    ordered = factors.sort(1, descending=True).values
    d = factors.shape[1]
    rank = torch.arange(1, d, dtype=factors.dtype) + 1  # r' + 1
    gap = ordered[:, None, :-1] - ordered[:, 1:, None]  # (R, r, r')
    bound = (1 - gap / 2) ** rank / rank
    before = torch.ones(d - 1, d - 1, dtype=torch.bool).tril()
    return bound.masked_fill(~before, torch.inf).amin(-1)


def bound_slack(count: int, d: int, spread: float, seed: int) -> dict[str, float]:
    """Eqs. 156 and 157 at random factors on ``[0, spread]``: the least slack, how tight they get, and how often each is violated.

    With ``mended`` the former is cut at a gap of 1 and the latter's bracket at 0; these hold for any factors.
    """
    draw = torch.Generator().manual_seed(seed)
    factors = spread * torch.rand(count, d, generator=draw, dtype=DTYPE)
    exact = win_probabilities(factors)
    ordered = exact.gather(1, factors.argsort(1, descending=True))
    low, high = _lower_bound(factors), _upper_bounds(factors)
    below, above = ordered[:, 0] - low, high - ordered[:, 1:]
    mended_low, mended_high = low.clamp_max(0.5), high.clamp_min(0)
    return {
        "lower": below.min().item(),
        "upper": above.min().item(),
        "lower violated": (below < -1e-12).double().mean().item(),
        "upper violated": (above < -1e-12).any(1).double().mean().item(),
        "lower mended": (ordered[:, 0] - mended_low).min().item(),
        "upper mended": (mended_high - ordered[:, 1:]).min().item(),
        "lower tightest": (mended_low / ordered[:, 0]).max().item(),
        "upper tightest": (ordered[:, 1:] / mended_high.clamp_min(1e-300)).where(mended_high > 0, 0).max().item(),
    }
