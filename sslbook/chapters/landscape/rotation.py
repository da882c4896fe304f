r"""Augmentation by rotations of the first two coordinates: the energy along an orbit (Appendix B.5 of [tian2023]).

Lemma 2's limit is :math:`E = \frac14 \sum_{st} p_s p_t K_{st} (b_s - b_t)^2`, :math:`b_s(w)` the mean response over the views of s.
If the rotations form a group and are drawn uniformly from it, every :math:`b_s` is the same at w and at Rw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sslbook.arguments import require_number, require_whole
from sslbook.chapters.landscape.filters import Activation
from sslbook.chapters.landscape.kernel import gaussian
from sslbook.gaps import over_instances
from sslbook.streams import Streams


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    """``x (..., d)`` with its first two coordinates turned by ``angle (...)``, which broadcasts."""
    c, s = angle.cos(), angle.sin()
    turned = torch.stack([c * x[..., 0] - s * x[..., 1], s * x[..., 0] + c * x[..., 1]], -1)
    rest = x[..., 2:].expand(*turned.shape[:-1], x.shape[-1] - 2)
    return torch.cat([turned, rest], -1)


def views(x: Tensor, count: int, *, share: float = 1.0) -> Tensor:
    """The ``count`` rotations of a cyclic group, applied to ``x (R, S, d)``: ``(R, S, count, d)``; the first ``share`` of them."""
    require_whole("count", count, least=1)
    kept = max(1, round(share * count))
    angle = 2 * math.pi * torch.arange(kept, dtype=x.dtype) / count
    return _rotate(x[:, :, None], angle)


def energy(w: Tensor, seen: Tensor, p: Tensor, kernel: Tensor, act: Activation) -> Tensor:
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
        along = energy(_rotate(w, angle), seen, p, kernel, act)
        base = energy(w, seen, p, kernel, act)
        return ((along - base).abs() / base).amax(1)[alive]

    full = views(x, group)
    alive = (act(x @ w.mT).abs().amax(1) > 0)[:, 0]  # a silent ReLU has no energy to compare with
    gaps = {
        "group": change(full, steps),
        "broken: no augmentation": change(views(x, 1), steps),
        "broken: no group": change(views(x, group, share=2 / 3), steps),
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
        value = energy(_rotate(w, angle), views(x, count, share=share), p, kernel, act)
        found.append(((value.amax(1) - value.amin(1)) / value.mean(1)).mean())
    return torch.stack(found)


def blurred(theta: Tensor, points: Sequence[float], reach: float) -> Tensor:
    """Half the variance of a ReLU filter's mean response on a circle of points, turned at random by at most ``reach``: ``(T,)``.

    The mean of ``max(cos, 0)`` over an interval in closed form; ``reach = pi`` is the whole group, 0 no augmentation.
    """
    require_number("reach", reach, least=0, most=math.pi)
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
