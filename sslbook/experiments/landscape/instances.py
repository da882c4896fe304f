r"""Populations whose :math:`A(w) = V[\tilde x^w]` is known exactly (Section 3.1 of [tian2023]; uniform weights, no views).

`Cloud`: finitely many points; the latent categorical and summation models are such.  `Blobs`: a mixture of isotropic Gaussians, for
which :math:`A(w)` is a smooth function, in closed form for every leaky rectifier.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.experiments.landscape.theory import Activation
from sslbook.stats.checks import over_instances, relative
from sslbook.stats.replicas import Streams

THRESHOLD = (3 - math.sqrt(5)) / 2
"""Largest probability of the rarer value at which a pattern of the summation model is a locally maximal eigenvector."""


@dataclass(frozen=True)
class Cloud:
    """Points ``x (R, n, d)`` with probabilities ``p (R, n)``."""

    x: Tensor
    p: Tensor

    def matrix(self, w: Tensor, act: Activation) -> Tensor:
        """``A(w)`` at ``w (R, S, d)``: ``(R, S, d, d)``."""
        return self.gated(act.gate(w @ self.x.mT))

    def gated(self, gate: Tensor) -> Tensor:
        """The covariance of the points times their gates ``(R, S, n)``: ``(R, S, d, d)``."""
        weight = self.p[:, None] * gate
        mean = weight @ self.x
        second = torch.einsum("rsn,rnd,rne->rsde", weight * gate, self.x, self.x)
        return second - mean[..., :, None] * mean[..., None, :]

    def velocity(self, w: Tensor, act: Activation) -> Tensor:
        """``A(w) w`` without the matrix: ``(R, S, d)``."""
        u = w @ self.x.mT
        gate = act.gate(u)
        h = gate * u
        h = h - (self.p[:, None] * h).sum(-1, keepdim=True)
        out: Tensor = (self.p[:, None] * gate * h) @ self.x
        return out

    def energy(self, w: Tensor, act: Activation) -> Tensor:
        """Half the variance of the filter's response: ``(R, S)``."""
        h = act(w @ self.x.mT)
        mean = (self.p[:, None] * h).sum(-1)
        return 0.5 * ((self.p[:, None] * h.square()).sum(-1) - mean.square())


def categorical(p: Tensor, patterns: Tensor) -> Cloud:
    """The latent categorical model: pattern m, a row of ``patterns (R, M, d)``, with probability ``p (R, M)``."""
    return Cloud(patterns, p)


def summation(q: Tensor, patterns: Tensor) -> Cloud:
    r"""The latent summation model :math:`x = \sum_m y_m u_m`: ``q (R, M)``, patterns ``(R, M, d)`` -> all :math:`2^M` points.

    :math:`y_m = \sqrt{(1 - q_m)/q_m}` with probability :math:`q_m`, else :math:`-\sqrt{q_m/(1 - q_m)}`, independently.
    """
    on = torch.tensor(list(itertools.product((False, True), repeat=q.shape[-1])))  # (2^M, M)
    odds = q[:, None] / (1 - q[:, None])
    y = torch.where(on, odds.rsqrt(), -odds.sqrt())  # of mean 0 and variance 1
    chance = torch.where(on, q[:, None], 1 - q[:, None]).prod(-1)
    return Cloud(y @ patterns, chance)


def orthonormal(replicas: int, count: int, size: int, seed: int = 0, *, tilt: float = 0.0) -> Tensor:
    """Random patterns ``(R, count, size)``, orthonormal, or tilted by Gaussian noise and of unit length."""
    draw = Streams(range(seed, seed + replicas), "patterns")
    u = torch.linalg.qr(draw.normal((size, size)))[0][:, :count]
    u = u + tilt * draw.normal((count, size)) / size**0.5
    out: Tensor = u / u.norm(dim=-1, keepdim=True)
    return out


def scattered(replicas: int, points: int, size: int, seed: int = 0, *, offset: float = 0.0) -> Cloud:
    """Gaussian points with unequal probabilities; their centre ``offset`` away from the origin along the first axis."""
    draw = Streams(range(seed, seed + replicas), "scattered")
    p = 0.3 + draw.uniform((points,), torch.float64)
    x = draw.normal((points, size))
    x[..., 0] += offset
    return Cloud(x, p / p.sum(-1, keepdim=True))


@dataclass(frozen=True)
class Blobs:
    """A mixture of Gaussians ``N(x_k, sigma^2 I)``: centres ``x (R, K, d)``, probabilities ``p (R, K)``."""

    x: Tensor
    p: Tensor
    sigma: float

    def _half(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and second moment of ``x 1(w^T x > 0)`` for unit ``w (R, S, d)``: ``(R, S, d)`` and ``(R, S, d, d)``."""
        s = self.sigma
        m = w @ self.x.mT  # (R, S, K), mean of w^T x
        inside = torch.special.ndtr(m / s)
        edge = s * torch.exp(-0.5 * (m / s).square()) / math.sqrt(2 * math.pi)  # sigma phi(m / sigma)
        first, second = m * inside + edge, (m.square() + s**2) * inside + m * edge
        across = self.x[:, None] - m[..., None] * w[:, :, None]  # (R, S, K, d)
        p = self.p[:, None]
        mean = (p * first).sum(-1, keepdim=True) * w + torch.einsum("rsk,rskd->rsd", p * inside, across)
        ww = w[..., :, None] * w[..., None, :]
        mixed = torch.einsum("rsk,rskd,rse->rsde", p * first, across, w)
        share = (p * inside).sum(-1)[..., None, None]
        square = (
            (p * second).sum(-1)[..., None, None] * ww
            + mixed
            + mixed.mT
            + torch.einsum("rsk,rskd,rske->rsde", p * inside, across, across)
            + s**2 * share * (torch.eye(w.shape[-1], dtype=w.dtype) - ww)
        )
        return mean, square

    def matrix(self, w: Tensor, act: Activation) -> Tensor:
        """``A(w)`` at unit ``w (R, S, d)`` for a leaky rectifier: ``(R, S, d, d)``."""
        mean, square = self._half(w)
        p = self.p
        whole = (p[..., None] * self.x).sum(1)[:, None]
        total = torch.einsum("rk,rkd,rke->rde", p, self.x, self.x)
        total = (total + self.sigma**2 * torch.eye(w.shape[-1], dtype=w.dtype))[:, None]
        a = act.slope
        mean = (1 - a) * mean + a * whole  # the slope is a on the other side: x = x 1(u > 0) + x 1(u <= 0)
        square = (1 - a**2) * square + a**2 * total
        return square - mean[..., :, None] * mean[..., None, :]


def blobs(replicas: int, count: int, size: int, seed: int = 0, *, sigma: float = 0.3, offset: float = 0.0) -> Blobs:
    """Random mixtures: Gaussian centres and unequal probabilities; the first axis shifted by ``offset``."""
    cloud = scattered(replicas, count, size, seed, offset=offset)
    return Blobs(cloud.x, cloud.p, sigma)


def directions(replicas: int, starts: int, size: int, seed: int = 0) -> Tensor:
    """Random unit vectors ``(R, starts, size)``."""
    w = Streams(range(seed, seed + replicas), "directions").normal((starts, size))
    out: Tensor = w / w.norm(dim=-1, keepdim=True)
    return out


def pattern_gaps(replicas: int = 128, patterns: int = 4, seed: int = 0) -> dict[str, float]:
    r"""Eqs. 8 and 9 of [tian2023] at every pattern of random models, against :math:`A(u_m)` summed over all points.

    Also the two sides of the threshold: the largest :math:`q_m` at which a pattern is the leading eigenvector, the least at which
    it is not.
    """
    draw = Streams(range(seed, seed + replicas), "models")
    u = orthonormal(replicas, patterns, patterns + 1, seed)
    p = 0.1 + draw.uniform((patterns,), torch.float64)
    p = p / p.sum(-1, keepdim=True)
    q = 0.05 + 0.9 * draw.uniform((patterns,), torch.float64)
    act = Activation()
    outer = u[..., :, None] * u[..., None, :]
    span = (u.mT @ u)[:, None]
    rest = span - outer

    def gap(found: Tensor, wanted: Tensor) -> Tensor:
        return relative(found.flatten(0, 1), wanted.flatten(0, 1))

    def times(a: Tensor, matrix: Tensor) -> Tensor:
        return a[..., None, None] * matrix

    # u_m^T u_k is zero but for rounding, which must not decide whether a pattern is active
    inner = u @ u.mT
    first = categorical(p, u).gated(act.gate(torch.where(inner.abs() < 1e-12, 0.0, inner)))
    second = summation(q, u).matrix(u, act)
    eight, nine = times(p * (1 - p), outer), times((1 - q).square(), outer) + times(q, rest)
    leads = ((torch.linalg.eigh(second)[1][..., -1] * u).sum(-1).abs() > 0.5).flatten()
    gaps = {
        "categorical": gap(first, eight),
        "broken: not centred": gap(first, times(p, outer)),
        "summation": gap(second, nine),
        "broken: power of one": gap(second, times(1 - q, outer) + times(q, rest)),
    }
    edges = {
        "largest q that leads": float(q.flatten()[leads].max()),
        "least q that does not": float(q.flatten()[~leads].min()),
    }
    return over_instances(gaps) | edges


def grid(sizes: Sequence[float]) -> Tensor:
    """Unit vectors of the plane at the angles ``sizes``: ``(1, n, 2)``."""
    t = torch.as_tensor(sizes, dtype=torch.float64)
    return torch.stack([t.cos(), t.sin()], -1)[None]
