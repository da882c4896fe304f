r"""Filters on a circle of points: the energy along :math:`w = (\cos\theta, \sin\theta)` and its maxima (Fig. 8 of [tian2023]).

Without augmentation the dynamics of Eq. 2, with weights that are computed anew at every step, climbs (up to a constant)

- uniform weights: :math:`\frac{1}{2 N^2} \sum_{ij} d_{ij}^2`, half the variance;
- Gaussian weights: :math:`\frac{\tau}{2 N^2} \sum_{ij} (1 - e^{-d_{ij}^2/\tau})`;
- InfoNCE with :math:`\epsilon = 0`: :math:`-\frac{\tau}{2 N^2} \sum_i \log \frac{1}{N - 1} \sum_{j \ne i} e^{-d_{ij}^2/\tau}`,

with :math:`d_{ij}^2 = (h_i - h_j)^2 / 2`.  Between the kinks, where :math:`w \perp x_i`, it is analytic.

Augmentation by rotations of the first two coordinates: the energy along an orbit (Appendix B.5 of [tian2023]).

Lemma 2's limit is :math:`E = \frac14 \sum_{st} p_s p_t K_{st} (b_s - b_t)^2`, :math:`b_s(w)` the mean response over the views of s.
If the rotations form a group and are drawn uniformly from it, every :math:`b_s` is the same at w and at Rw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.experiments.landscape.theory import RELU, Activation, gaussian
from sslbook.stats.checks import over_instances, worst
from sslbook.stats.replica_rng import Streams

NINE = tuple(math.pi * f for f in (-4 / 5, -1 / 2, -2 / 5, -1 / 6, 0, 1 / 5, 2 / 5, 3 / 5, 4 / 5))
"""The points of Appendix E.1 of [tian2023], as angles."""
WEIGHTS = ("uniform", "gaussian", "info_nce")


@dataclass(frozen=True)
class Maxima:
    """Angles of the maxima inside an arc, ``smooth``, and at a kink, ``kinks``; which smooth ones stay with fixed weights."""

    smooth: tuple[float, ...]
    kinks: tuple[float, ...]
    frozen: tuple[bool, ...]

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.smooth) + len(self.kinks)


def _parts(
    theta: Tensor, points: Tensor, act: Activation, alpha: str, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Differences of responses, their derivatives by theta (first and second), and the weights: all ``(T, N, N)``."""
    angle = theta[:, None] - points
    u = angle.cos()
    gate = act.gate(u)
    h = gate * u
    slope = -act.degree * gate * angle.sin()
    bend = -act.degree * h + (
        act.degree * (act.degree - 1) * u ** (act.degree - 2) * angle.sin().square() if act.degree > 1 else 0
    )
    gap, first, second = (v[:, :, None] - v[:, None, :] for v in (h, slope, bend))
    n = len(points)
    if alpha == "uniform":
        weight = torch.ones_like(gap)
    else:
        far = -gap.square() / (2 * tau)
        if alpha == "gaussian":
            weight = far.exp()
        else:
            far = far.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
            weight = torch.softmax(far, -1)
    return gap, first, second, weight


def energy(theta: Tensor, points: Sequence[float], act: Activation, alpha: str = "uniform", tau: float = 1.0) -> Tensor:
    """What the dynamics climbs, at the angles ``theta (T,)`` for points at the angles ``points``: ``(T,)``."""
    at = torch.as_tensor(points, dtype=torch.float64)
    gap = _parts(theta, at, act, "uniform", 1.0)[0]
    n, far = len(at), gap.square() / 2
    if alpha == "uniform":
        return far.sum((1, 2)) / (2 * n**2)
    if alpha == "gaussian":
        return -tau * torch.expm1(-far / tau).sum((1, 2)) / (2 * n**2)
    far = far.masked_fill(torch.eye(n, dtype=torch.bool), torch.inf)
    return -tau * (torch.logsumexp(-far / tau, -1) - math.log(n - 1)).sum(1) / (2 * n**2)


def slope(theta: Tensor, points: Sequence[float], act: Activation, alpha: str = "uniform", tau: float = 1.0) -> Tensor:
    """Its derivative by theta, ``(T,)``, with the lower gate at a kink: the projected velocity of Lemma 3, times the degree."""
    gap, first, _, weight = _parts(theta, torch.as_tensor(points, dtype=torch.float64), act, alpha, tau)
    return (weight * gap * first).sum((1, 2)) / (2 * gap.shape[-1] ** 2)


def opening(points: Sequence[float], index: int) -> float:
    r"""How far a ReLU's gate for one point is open, at the crease where it opens as the angle grows, if the filter is to rest.

    With ``w`` at the point's angle less a right angle, and the gate closed, the certificate :math:`A w = E[h]\, t\, p\, x` along
    the point ``x`` itself, orthogonal to ``w``, solved for ``t``; between 0 and 1 at a maximum.  Uniform weights.  Raises
    ValueError if another point is on the same crease.
    """
    at = torch.as_tensor(points, dtype=torch.float64)
    theta = at[index] - math.pi / 2
    w, x = torch.stack([theta.cos(), theta.sin()]), torch.stack([at.cos(), at.sin()], -1)
    u = x @ w
    others = torch.arange(len(at)) != index
    if bool((u[others].abs() < 1e-9).any()):
        raise ValueError(f"points must have one on the crease of point {index}, got another on it too")
    passed = (others & (u > 0)).to(u.dtype)[:, None] * x
    centred = passed - passed.mean(0)
    a = centred.T @ centred / len(at)
    return float(x[index] @ a @ w / ((passed @ w).mean() / len(at)))


def _frozen_curvature(theta: Tensor, points: Sequence[float], act: Activation, alpha: str, tau: float) -> Tensor:
    """The second derivative of the energy whose weights are held at their value, ``(T,)``."""
    gap, first, second, weight = _parts(theta, torch.as_tensor(points, dtype=torch.float64), act, alpha, tau)
    return (weight * (first.square() + gap * second)).sum((1, 2)) / (2 * gap.shape[-1] ** 2)


def hardening_gaps(sets: int = 128, seed: int = 0) -> dict[str, float]:
    r"""Holding the weights fixed hides a negative curvature: the energy's second derivative by autograd, against the formula.

    True less fixed is :math:`-\frac{1}{2 N^2 \tau} \sum_{ij} \alpha_{ij} s_{ij}^2` for Gaussian weights and
    :math:`-\frac{1}{2 N^2 \tau} \sum_i V_{j \sim \alpha_i}[s_{ij}]` for InfoNCE, :math:`s_{ij}` the derivative of :math:`d_{ij}^2`.
    Random points and angles; worst relative error.  Broken: the weights held fixed.
    """
    points = 7
    draw = Streams(range(seed, seed + sets), "hardening")
    at, tau = 2 * math.pi * draw.uniform((points,), torch.float64), 0.4
    rows = []
    for alpha in WEIGHTS[1:]:
        for row, theta in zip(at, 2 * math.pi * draw.uniform((3,), torch.float64), strict=True):
            free = theta.clone().requires_grad_()
            (first,) = torch.autograd.grad(energy(free, row.tolist(), RELU, alpha, tau).sum(), free, create_graph=True)
            (true,) = torch.autograd.grad(first.sum(), free)
            gap, turn, _, weight = _parts(theta, row, RELU, alpha, tau)
            s = gap * turn
            drop = weight * s.square()
            if alpha == "info_nce":
                drop = weight * (s - (weight * s).sum(-1, keepdim=True)).square()
            fixed = _frozen_curvature(theta, row.tolist(), RELU, alpha, tau)
            wanted = fixed - drop.sum((1, 2)) / (2 * points**2 * tau)
            scale = fixed.abs().max()
            if scale > 1e-6:
                gaps = {"hardening": true - wanted, "broken: held fixed": true - fixed}
                rows.append({name: float(gap.abs().max() / scale) for name, gap in gaps.items()})
    return worst(rows)


def maxima(
    points: Sequence[float], act: Activation, alpha: str = "uniform", tau: float = 1.0, *, resolution: int = 200
) -> Maxima:
    """All maxima on the circle: falls of the slope's sign inside the arcs, on ``resolution`` angles each, and at the kinks.

    A kink is a maximum where the slope is positive before and negative after it; arcs on which the energy is constant have none.
    Angles inside arcs are refined by bisection.
    """
    ends = _arcs(torch.as_tensor(points, dtype=torch.float64))
    inner = torch.linspace(0, 1, resolution, dtype=torch.float64)
    eps = 1e-9
    theta = (ends[:-1, None] + eps) + (ends[1:, None] - ends[:-1, None] - 2 * eps) * inner  # (arcs, resolution)
    g = slope(theta.flatten(), points, act, alpha, tau).view_as(theta)
    g = torch.where(g.abs() < 1e-12, torch.zeros_like(g), g)
    # at a smooth corner (every activation but a rectifier) the arcs join up, and a fall of sign can lie between two of them
    top = torch.cat([g.flatten(), g.flatten()[:1]])
    where = torch.cat([theta.flatten(), theta.flatten()[:1] + 2 * math.pi])
    falls = ((top[:-1] > 0) & (top[1:] < 0)).nonzero()[:, 0]
    joint = (falls + 1) % resolution == 0
    bent = act.degree == 1 and act.slope != 1
    at_kink = falls[joint] if bent else falls[:0]
    low, high = (where[falls[~joint] + k] if bent else where[falls + k] for k in (0, 1))
    for _ in range(60):
        middle = (low + high) / 2
        up = slope(middle, points, act, alpha, tau) > 0
        low, high = torch.where(up, middle, low), torch.where(up, high, middle)
    stay = _frozen_curvature(low, points, act, alpha, tau) < 0
    kinks = ends[1:][torch.div(at_kink, resolution, rounding_mode="floor")]
    return Maxima(tuple(_wrap(low)), tuple(_wrap(kinks)), tuple(stay.tolist()))


def _arcs(at: Tensor) -> Tensor:
    """Where the gates of points at these angles change, once around the circle: the ends of the arcs, ``(arcs + 1,)``."""
    corner = torch.cat([at + math.pi / 2, at - math.pi / 2]).remainder(2 * math.pi).sort().values
    corner = corner[torch.cat([torch.tensor([True]), corner.diff() > 1e-9])]
    return torch.cat([corner, corner[:1] + 2 * math.pi])


def closed_form(points: Sequence[float], act: Activation) -> int:
    r"""The number of maxima of a leaky rectifier, uniform weights, from the sinusoid :math:`b + r \cos(2\theta - c)` of each arc.

    Nothing is scanned: the sinusoid's only crest is inside the arc or not, and its slope at the ends decides the kinks.
    """
    at = torch.as_tensor(points, dtype=torch.float64)
    ends = _arcs(at)
    x = torch.stack([at.cos(), at.sin()], -1)
    gate = act.gate((((ends[1:] + ends[:-1]) / 2)[:, None] - at).cos())[..., None] * x  # (arcs, N, 2)
    centred = gate - gate.mean(1, keepdim=True)
    a = centred.mT @ centred / len(at)
    cosine, sine = (a[:, 0, 0] - a[:, 1, 1]) / 4, a[:, 0, 1] / 2

    def rate(theta: Tensor) -> Tensor:
        value = 2 * (sine * (2 * theta).cos() - cosine * (2 * theta).sin())
        return torch.where(value.abs() < 1e-12, torch.zeros_like(value), value)

    crest = torch.atan2(sine, cosine) / 2
    turns = ((ends[:-1] - crest) / math.pi).ceil() * math.pi + crest
    flat = torch.hypot(sine, cosine) < 1e-14
    inside = ((turns > ends[:-1] + 1e-9) & (turns < ends[1:] - 1e-9) & ~flat).sum()
    before, after = rate(ends[1:]), rate(ends[:-1]).roll(-1)
    return int(inside + ((before > 0) & (after < 0)).sum())


def census(
    sets: int, points: int, act: Activation, alpha: str = "uniform", tau: float = 1.0, seed: int = 0
) -> dict[str, Tensor]:
    """Numbers of maxima on random sets of uniformly drawn points, ``(sets,)`` each: ``smooth``, ``kinks``, ``total``."""
    angles = 2 * math.pi * Streams(range(seed, seed + sets), "circle").uniform((points,), torch.float64)
    found = [
        maxima(row.tolist(), act, alpha, tau, resolution=100) for row in angles
    ]  # maxima differ in number: no batch
    smooth, kinks = (
        torch.tensor([len(getattr(m, name)) for m in found], dtype=torch.float64) for name in ("smooth", "kinks")
    )
    return {"smooth": smooth, "kinks": kinks, "total": smooth + kinks}


def _wrap(theta: Tensor) -> list[float]:
    wrapped: list[float] = ((theta + math.pi).remainder(2 * math.pi) - math.pi).sort().values.tolist()
    return wrapped


def missed(sets: int, seed: int = 0) -> dict[str, float]:
    """Maxima on random circles by the scan against `closed_form`: how many sets differ, and how many would without the kinks."""
    angles = 2 * math.pi * Streams(range(seed, seed + sets), "circle").uniform((9,), torch.float64)
    found = [(maxima(row.tolist(), RELU), closed_form(row.tolist(), RELU)) for row in angles]
    return {
        "differ": float(sum(m.total != exact for m, exact in found)),
        "without kinks": float(sum(len(m.smooth) != exact for m, exact in found)),
        "maxima": float(sum(exact for _, exact in found)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Turning the points


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    """``x (..., d)`` with its first two coordinates turned by ``angle (...)``, which broadcasts."""
    c, s = angle.cos(), angle.sin()
    turned = torch.stack([c * x[..., 0] - s * x[..., 1], s * x[..., 0] + c * x[..., 1]], -1)
    rest = x[..., 2:].expand(*turned.shape[:-1], x.shape[-1] - 2)
    return torch.cat([turned, rest], -1)


def _rotated_views(x: Tensor, count: int, *, share: float = 1.0) -> Tensor:
    """The ``count`` rotations of a cyclic group, applied to ``x (R, S, d)``: ``(R, S, count, d)``; the first ``share`` of them."""
    kept = max(1, round(share * count))
    angle = 2 * math.pi * torch.arange(kept, dtype=x.dtype) / count
    return _rotate(x[:, :, None], angle)


def _orbit_energy(w: Tensor, seen: Tensor, p: Tensor, kernel: Tensor, act: Activation) -> Tensor:
    """The limit of the energy at ``w (R, W, d)`` for views ``seen (R, S, V, d)``, weights ``kernel (R, S, S)``: ``(R, W)``."""
    b = act(torch.einsum("rwd,rsvd->rwsv", w, seen)).mean(-1)
    apart = (b[..., :, None] - b[..., None, :]).square()
    return 0.25 * torch.einsum("rs,rt,rst,rwst->rw", p, p, kernel, apart)


def orbit_gaps(act: Activation, replicas: int = 128, seed: int = 0) -> dict[str, float]:
    """The relative change of the energy along orbits, random populations and filters in three dimensions, Gaussian weights.

    - group: under the members of a cyclic group whose rotations are the views, for any activation;
    - circle: under every rotation, for monomials, whose mean over the circle is that over the group.

    Broken: no augmentation; two thirds of the group, which are no group.
    """
    group = 12
    draw = Streams(range(seed, seed + replicas), "orbit")
    x, w = draw.normal((6, 3)), draw.normal((1, 3))
    w = w / w.norm(dim=-1, keepdim=True)
    p = torch.full(x.shape[:2], 1 / 6, dtype=x.dtype)
    kernel = gaussian(act(x @ w.mT), 1.0)  # at the filter itself, and held fixed
    steps = 2 * math.pi * torch.arange(group, dtype=x.dtype) / group
    every = 2 * math.pi * draw.uniform((8,), torch.float64)

    def change(seen: Tensor, angle: Tensor) -> Tensor:
        along = _orbit_energy(_rotate(w, angle), seen, p, kernel, act)
        base = _orbit_energy(w, seen, p, kernel, act)
        return ((along - base).abs() / base).amax(1)[alive]

    full = _rotated_views(x, group)
    alive = (act(x @ w.mT).abs().amax(1) > 0)[:, 0]  # a silent ReLU has no energy to compare with
    gaps = {
        "group": change(full, steps),
        "broken: no augmentation": change(_rotated_views(x, 1), steps),
        "broken: no group": change(_rotated_views(x, group, share=2 / 3), steps),
    }
    if act.degree > 1:
        gaps["circle"] = change(full, every)
    return over_instances(gaps)


def ripple(counts: Sequence[int], replicas: int = 64, seed: int = 0, *, share: float = 1.0) -> Tensor:
    """Largest relative change of a ReLU's energy along an orbit for cyclic groups of each order: the mean over populations.

    ``share`` keeps the first rotations of each group only; the change is then looked for over a whole turn.
    """
    draw = Streams(range(seed, seed + replicas), "orbit")
    x, w = draw.normal((6, 3)), draw.normal((1, 3))
    p = torch.full(x.shape[:2], 1 / 6, dtype=x.dtype)
    kernel = torch.ones(replicas, 6, 6, dtype=x.dtype)
    act = Activation()
    found = []
    for count in counts:
        turn = 2 * math.pi / (count if share == 1 else 1)  # with the whole group it repeats after one member
        angle = turn * torch.linspace(0, 1, 25, dtype=x.dtype).expand(replicas, -1)
        value = _orbit_energy(_rotate(w, angle), _rotated_views(x, count, share=share), p, kernel, act)
        found.append(((value.amax(1) - value.amin(1)) / value.mean(1)).mean())
    return torch.stack(found)


def blurred(theta: Tensor, points: Sequence[float], reach: float) -> Tensor:
    """Half the variance of a ReLU filter's mean response on a circle of points, turned at random by at most ``reach``: ``(T,)``.

    The mean of ``max(cos, 0)`` over an interval in closed form; ``reach = pi`` is the whole group, 0 no augmentation.
    """
    u = theta[:, None] - torch.as_tensor(points, dtype=theta.dtype)
    b = u.cos().clamp_min(0) if reach == 0 else (_primitive(u + reach) - _primitive(u - reach)) / (2 * reach)
    return 0.5 * b.var(-1, correction=0)


def _primitive(v: Tensor) -> Tensor:
    """An integral of ``max(cos v, 0)``: two for every turn, and the sine where the cosine is positive."""
    turns = ((v + math.pi) / (2 * math.pi)).floor()
    rest = v - 2 * math.pi * turns
    half = math.pi / 2
    return 2 * turns + rest.clamp(-half, half).sin()


def blurred_maxima(points: Sequence[float], reach: float) -> int:
    """The number of maxima of `blurred` on the circle; differences below 1e-12 of the largest energy are no maxima."""
    resolution = 20000
    theta = 2 * math.pi * (torch.arange(resolution, dtype=torch.float64) + 0.5) / resolution
    value = blurred(theta, points, reach)
    rise = value - value.roll(1)
    rise = torch.where(rise.abs() < 1e-14, torch.zeros_like(rise), rise)
    if not bool(rise.any()):
        return 0
    kept = rise[rise != 0].sign()
    return int(((kept > 0) & (kept.roll(-1) < 0)).sum())
