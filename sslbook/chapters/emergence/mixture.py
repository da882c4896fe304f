r"""What single nodes learn from a mixture of Gaussians (Section 4.2 of [tian2021iclr]; claim B-MoG).

A sample's identity :math:`z_0` is its component, :math:`x | z_0 = k \sim N(\mu_k, \sigma^2 I)` with equal weights, and its
views are fresh draws from the component.  For a node with incoming weights ``w`` the means that the theory needs are those of a
truncated Gaussian: with :math:`m = w^T \mu`, :math:`s = \sigma \|w\|`, and :math:`\Phi, \varphi` of the standard normal,

.. math::  u_k = E[x\, 1(w^T x \ge 0)] = \mu \Phi(m / s) + \sigma^2 w / s\, \varphi(m / s), \qquad w^T u_k = E[\max(w^T x, 0)].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sslbook.arguments import require_number


@dataclass(frozen=True)
class Mixture:
    """Centres ``(R, K, d)`` of one mixture a replica, and the standard deviation ``sigma`` of every component."""

    centres: Tensor
    sigma: float

    def __post_init__(self) -> None:
        """Raises ValueError for centres that aren't ``(R, K, d)`` with K >= 2, and for sigma < 0."""
        if self.centres.ndim != 3 or self.centres.shape[1] < 2:
            raise ValueError(f"centres must have shape (R, K, d) with K >= 2, got {tuple(self.centres.shape)}")
        require_number("sigma", self.sigma, least=0)

    def gated_means(self, w: Tensor, *, linear: bool = False) -> Tensor:
        r""":math:`u_{jk}` for nodes ``w (R, n, d)``: ``(R, K, n, d)``; for ``linear`` nodes the centres themselves."""
        centres = self.centres[:, :, None]
        if linear:
            return centres.expand(-1, -1, w.shape[1], -1)
        gate, bump = self._gates(w)
        unit = w / w.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
        u: Tensor = gate[..., None] * centres + self.sigma * bump[..., None] * unit[:, None]
        return u

    def _gates(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """``Phi(m / s)`` and ``phi(m / s)``, ``(R, K, n)``; for sigma = 0 the step at zero, open at zero, and no bump."""
        m = torch.einsum("rkd,rnd->rkn", self.centres, w)
        if self.sigma == 0:
            return (m >= 0).to(w.dtype), torch.zeros_like(m)
        z = m / (self.sigma * w.norm(dim=-1)[:, None]).clamp_min(torch.finfo(w.dtype).tiny)
        return torch.special.ndtr(z), torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)

    def closest(self) -> Tensor:
        """The largest cosine between two centres other than the first, ``(R,)``."""
        unit = torch.nn.functional.normalize(self.centres[:, 1:], dim=-1)
        return (unit @ unit.mT - 2 * torch.eye(unit.shape[1], dtype=unit.dtype)).amax((1, 2))

    def sample(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """``count`` draws ``(R, count, d)`` from random components, with the components' numbers ``(R, count)``."""
        r, k, d = self.centres.shape
        kind = torch.randint(k, (r, count), generator=draw)
        noise = torch.randn(r, count, d, generator=draw, dtype=self.centres.dtype)
        return self.centres[torch.arange(r)[:, None], kind] + self.sigma * noise, kind


def random_mixture(replicas: int, components: int, size: int, sigma: float, seed: int = 0) -> Mixture:
    """Centres from N(0, I) in ``size`` dimensions, the first one at the origin."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(replicas, components, size, generator=draw, dtype=torch.float64)
    centres[:, 0] = 0
    return Mixture(centres, sigma)


def equiangular_mixture(
    replicas: int, components: int, size: int, sigma: float, *, cosine: float = 0.0, seed: int = 0
) -> Mixture:
    r"""The origin and ``components - 1`` centres of length 1, any two of them at one ``cosine``, turned at random.

    Raises ValueError unless :math:`-1 / (m - 1) \le` cosine < 1 for the m centres, and where ``size`` has no room for them.
    """
    count = components - 1
    if count > size:
        raise ValueError(f"{count} centres besides the origin need size >= {count}, got {size}")
    if not -1 / max(count - 1, 1) <= cosine < 1:
        raise ValueError(f"cosine must lie in [{-1 / max(count - 1, 1):.3g}, 1) for {count} centres, got {cosine}")
    draw = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(replicas, size, count, generator=draw, dtype=torch.float64))[0]
    gram = (1 - cosine) * torch.eye(count, dtype=torch.float64) + cosine
    values, vectors = torch.linalg.eigh(gram)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    return Mixture(torch.cat([torch.zeros(replicas, 1, size, dtype=torch.float64), root @ basis.mT], 1), sigma)


def node_step(w: Tensor, mixture: Mixture, *, linear: bool = False) -> Tensor:
    r""":math:`A_j w_j` for each node, :math:`A_j = V_{z_0}[u_j]`: the direction in which Eq. 8 moves it, ``(R, n, d)``."""
    u = mixture.gated_means(w, linear=linear)
    u = u - u.mean(1, keepdim=True)
    return torch.einsum("rknd,rkn->rnd", u, torch.einsum("rknd,rnd->rkn", u, w)) / u.shape[1]


def grow(w: Tensor, mixture: Mixture, *, steps: int = 600, rate: float = 0.05, linear: bool = False) -> Tensor:
    r"""Unit directions of the nodes after ``steps`` steps, each of which changes a node by ``rate`` of its length.

    In Eq. 8 the second layer sets only the pace, so a node's *path* is that of :math:`\dot w = A(w) w`, and A depends on
    the direction alone.  Nodes with :math:`A w = 0` stay.
    """
    w = w / w.norm(dim=-1, keepdim=True)
    for t in range(steps):
        move = node_step(w, mixture, linear=linear)
        length = move.norm(dim=-1, keepdim=True)
        pace = rate / (1 + 4 * t / steps)
        w = w + torch.where(length > 1e-14, pace * move / length.clamp_min(1e-14), torch.zeros_like(move))
        w = w / w.norm(dim=-1, keepdim=True)
    return w


@dataclass(frozen=True)
class Ends:
    r"""Where nodes end: directions ``(R, n, d)``, and which centres they respond to.

    active: ``(R, n)`` counts of centres with :math:`w^T \mu_k` above ``tol`` times the strongest.
    cosine: ``(R, n)`` with that strongest centre.  first: whether it is the centre that was the strongest at the start.
    """

    directions: Tensor
    active: Tensor
    cosine: Tensor
    first: Tensor

    @property
    def single(self) -> Tensor:
        """Nodes that respond to one centre alone, ``(R, n)``."""
        return self.active == 1


def specialise(mixture: Mixture, nodes: int = 20, *, steps: int = 1000, rate: float = 0.5, seed: int = 0) -> Ends:
    """Grow ``nodes`` random ReLU nodes a replica and see which centres they respond to at the end.

    The steps are as long as they can be here: with half the rate and twice the steps the same nodes end at the same centres.
    """
    draw = torch.Generator().manual_seed(seed + 77)
    r, _, d = mixture.centres.shape
    start = torch.randn(r, nodes, d, generator=draw, dtype=torch.float64)
    end = grow(start, mixture, steps=steps, rate=rate)
    before, after = (torch.einsum("rkd,rnd->rnk", mixture.centres, w) for w in (start, end))
    top, which = after.max(-1)
    norms = mixture.centres.norm(dim=-1)[:, None].expand_as(after)
    cosine = top / norms.gather(-1, which[..., None])[..., 0].clamp_min(1e-12)
    return Ends(end, (after > 0.1 * top.clamp_min(1e-9)[..., None]).sum(-1), cosine, which == before.argmax(-1))


def gated_mean_gap(seed: int = 0) -> tuple[float, float]:
    r"""Relative error of :math:`u_k` against Gauss's quadrature along ``w``, and the same without the term in :math:`\varphi`.

    :math:`x = t\, w / \|w\| + x_\perp` with :math:`t \sim N(w^T \mu / \|w\|, \sigma^2)`; :math:`x_\perp` averages to its mean.
    """
    mixture = random_mixture(1, 4, 5, 0.7, seed)
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(1, 20, 5, generator=draw, dtype=torch.float64)
    unit = w / w.norm(dim=-1, keepdim=True)
    m = torch.einsum("rkd,rnd->rkn", mixture.centres, unit)[..., None]
    grid, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(200))
    high = m.clamp_min(0) + 12 * mixture.sigma  # from the threshold at 0 to where nothing is left
    t = 0.5 * high * (grid + 1)
    density = 0.5 * high * weights * torch.exp(-0.5 * ((t - m) / mixture.sigma).square())
    density = density / (mixture.sigma * math.sqrt(2 * math.pi))
    flat = mixture.centres[:, :, None] - m * unit[:, None]
    truth = density.sum(-1, keepdim=True) * flat + (t * density).sum(-1, keepdim=True) * unit[:, None]
    short = torch.special.ndtr(m / mixture.sigma) * mixture.centres[:, :, None]
    scale = truth.norm(dim=-1).max()
    errors = [float((value - truth).norm(dim=-1).max() / scale) for value in (mixture.gated_means(w), short)]
    return errors[0], errors[1]
