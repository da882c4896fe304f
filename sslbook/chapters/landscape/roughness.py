r"""How rough A(w) is for a ReLU, exactly and by its bounds (Theorem 2 and Corollary 2 of [tian2023]), on a disc.

For weights :math:`\alpha = K(x, y)` that are held fixed, no augmentation and a large batch, the roughness is the norm of

.. math::  J = - \int_{w^T x = 0} x x^T \kappa_h(x)\, p(x)\, dS, \qquad \kappa_h(x) = E_y[K(x, y)\, h(w^T y)].

A `Disc` holds random smooth densities :math:`p \propto \exp(b^T x / C + x^T M x / C^2)` on discs of radius C.  All integrals are
Gauss-Legendre in the radius and in the angle on each side of the plane, where everything is smooth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sslbook.arguments import require_number, require_whole
from sslbook.streams import Streams

NODES = 32


@dataclass(frozen=True)
class Disc:
    """Densities of the plane: radius ``radius (R,)``, ``linear (R, 2)`` and symmetric ``quadratic (R, 2, 2)`` in the exponent."""

    radius: Tensor
    linear: Tensor
    quadratic: Tensor

    def unnormalised(self, x: Tensor) -> Tensor:
        """The density up to its constant at ``x (R, n, 2)``: ``(R, n)``."""
        y = x / self.radius[:, None, None]
        return torch.exp((y * self.linear[:, None]).sum(-1) + ((y @ self.quadratic) * y).sum(-1))

    def sector(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes ``(R, n, 2)`` between the angles ``low`` and ``high (R,)`` and their weights times the density, ``(R, n)``."""
        t, weight = (torch.as_tensor(v) for v in np.polynomial.legendre.leggauss(NODES))
        r = 0.5 * (t + 1) * self.radius[:, None]
        angle = low[:, None] + 0.5 * (t + 1) * (high - low)[:, None]
        ray = torch.stack([angle.cos(), angle.sin()], -1)  # (R, a, 2)
        x = (r[:, :, None, None] * ray[:, None]).flatten(1, 2)
        area = (
            0.5
            * self.radius[:, None, None]
            * (weight * r)[:, :, None]
            * (0.5 * (high - low)[:, None] * weight)[:, None]
        )
        return x, area.flatten(1) * self.unnormalised(x)


def discs(replicas: int, seed: int = 0, *, least: float = 0.05, most: float = 3.0) -> Disc:
    """Random densities on discs whose radii are spread evenly over a logarithmic range."""
    draw = Streams(range(seed, seed + replicas), "disc")
    radius = least * (most / least) ** draw.uniform((1,), torch.float64)[:, 0]
    quadratic = draw.normal((2, 2))
    return Disc(radius, draw.normal((2,)), 0.5 * (quadratic + quadratic.mT))


@dataclass(frozen=True)
class Roughness:
    r"""Of each density, ``(R,)``: the roughness, exactly (``plane``) and by differences of A (``measured``), and what bounds it.

    ``r`` is :math:`\sum_l z_l^2 \max \tilde p_l` on the plane; ``printed`` is :math:`C^3 \mathrm{vol}(C)\, r / \pi`, ``corrected``
    has :math:`C^2`; ``sharp`` is :math:`\frac23 C^3 \max_{w^T x = 0} \kappa_h p`; ``z0`` the factor of Corollary 2.
    """

    plane: Tensor
    measured: Tensor
    r: Tensor
    printed: Tensor
    corrected: Tensor
    sharp: Tensor
    z0: Tensor


def features(h: Tensor, tau: float | None, degree: int = 45) -> Tensor:
    """Features of one-dimensional Gaussian weights at responses ``h >= 0 (...)``: ``(..., degree + 1)``; one if tau is None."""
    if tau is None:
        return torch.ones_like(h)[..., None]
    require_number("tau", tau, above=0)
    n = torch.arange(degree + 1, dtype=h.dtype)
    return (
        torch.xlogy(n, h[..., None] / tau**0.5) - 0.5 * torch.lgamma(n + 1) - h[..., None].square() / (2 * tau)
    ).exp()


def roughness(disc: Disc, angle: Tensor, tau: float | None = None) -> Roughness:
    """Roughness of ReLU filters at the angles ``angle (R,)``; weights uniform for ``tau = None``, else Gaussian in the response.

    ``tau`` is in units of the squared radius, so that discs of every size are alike.
    """
    step = 1e-6
    c = disc.radius
    w = torch.stack([angle.cos(), angle.sin()], -1)
    half = math.pi / 2
    on, on_mass = disc.sector(angle - half, angle + half)
    off, off_mass = disc.sector(angle + half, angle + 3 * half)
    total = on_mass.sum(1) + off_mass.sum(1)

    def phi(x: Tensor) -> Tensor:
        h = (x @ w[..., None])[..., 0].clamp_min(0) / c[:, None]
        return features(h, tau)

    z = torch.einsum("rn,rnl->rl", on_mass, phi(on)) + torch.einsum("rn,rnl->rl", off_mass, phi(off))
    z = z / total[:, None]
    shifted = {s: _matrix(disc, angle, s * step, phi, z, total) for s in (-1, 1)}
    moved = ((shifted[1] - shifted[-1]) @ w[..., None])[..., 0] / (2 * step)
    fine, weight = (torch.as_tensor(v) for v in np.polynomial.legendre.leggauss(400))
    along = torch.stack([-angle.sin(), angle.cos()], -1)
    s = fine * c[:, None]
    p = disc.unnormalised(s[..., None] * along[:, None]) / total[:, None]
    start = phi(torch.zeros(len(c), 1, 2, dtype=c.dtype))[:, 0]  # the features on the plane, where the response is zero
    h = (on @ w[..., None])[..., 0]
    pull = torch.einsum("rn,rn,rnl,rl->r", on_mass, h, phi(on), start) / total
    exact = pull * (weight * s.square() * p).sum(1) * c
    r = (z * start).sum(1) * p.amax(1)
    disc_area = math.pi * c.square()
    corrected = c.square() * disc_area / math.pi * r
    sharp = 2 / 3 * c**3 * pull * p.amax(1)
    return Roughness(exact, moved.norm(dim=-1), r, c * corrected, corrected, sharp, (z * start).sum(1))


def _matrix(
    disc: Disc, angle: Tensor, turn: float, phi: Callable[[Tensor], Tensor], z: Tensor, total: Tensor
) -> Tensor:
    """``A`` at a filter turned by ``turn``, weights held where they were; each sector is on one side of the old plane."""
    half = math.pi / 2
    # the half disc of the turned filter: what both share, and the sliver that is new
    if turn > 0:
        pieces = (disc.sector(angle + turn - half, angle + half), disc.sector(angle + half, angle + turn + half))
    else:
        pieces = (disc.sector(angle - half, angle + turn + half), disc.sector(angle + turn - half, angle - half))
    mean, square = torch.zeros_like(z)[..., None], torch.zeros_like(disc.quadratic)
    for x, mass in pieces:
        feature = phi(x)
        heavy = mass * (feature @ z[..., None])[..., 0]
        mean = mean + feature.mT @ (mass[..., None] * x)
        square = square + x.mT @ (heavy[..., None] * x)
    out: Tensor = square / total[:, None, None] - mean.mT @ mean / total[:, None, None].square()
    return out


def uniform_ball(size: int, radius: float) -> dict[str, float]:
    r"""The uniform density on a ball of any dimension, in closed form: its roughness, the printed and the corrected bound.

    :math:`\rho = C^2 [v_{d-1} / ((d + 1) v_d)]^2` with the volume :math:`v_d` of the unit ball; the bounds are
    :math:`C^3 / \pi` and :math:`C^2 / \pi`.
    """
    require_whole("size", size, least=2)
    require_number("radius", radius, above=0)
    v = [math.pi ** (d / 2) / math.gamma(d / 2 + 1) for d in (size - 1, size)]
    rho = radius**2 * (v[0] / ((size + 1) * v[1])) ** 2
    return {"roughness": rho, "printed": radius**3 / math.pi, "corrected": radius**2 / math.pi}
