r"""The formulas of [tian2023]: what independent fields share, global modulation, who wins and how likely.

Lemma 5, Theorem 5 and Corollary 3 for conditionally independent fields; the dynamics of Lemma 4 and Theorem 4; Theorem 6 with its
blow-up times, and the probability that a favoured direction is learned (Eqs. 155 to 157).

With :math:`A(w) = \sum_l g_l(u_l^\top w)\, u_l u_l^\top` and :math:`g_l(x) = x + b_l` the components :math:`y_l = u_l^\top w`
follow :math:`\dot y_l = (y_l + b_l)\, y_l` (**free** flow, Eq. 146), or, with the filter's length held at 1 as in Theorem 5,
:math:`\dot y_l = (y_l + b_l - \nu)\, y_l` with :math:`\nu = \sum_l (y_l + b_l)\, y_l^2` (**unit** flow).  Modulation adds
``c`` to one :math:`b_l`.  (The chapter writes :math:`\gamma_l` for :math:`b_l`.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from sslchapters.modulation.instances import Population


def blow_up_time(start: Tensor, b: Tensor) -> Tensor:
    r"""Eq. 150, :math:`t^* = \frac1b \ln(1 + b/y(0))`, infinite where :math:`y(0) \le 0`."""
    positive = start > 0
    time = torch.log1p(b / torch.where(positive, start, 1.0)) / b
    return torch.where(positive, time, torch.inf)


def edge_of_two(c: float, b: float) -> tuple[float, float]:
    r"""With ``d = 2``, the angle of :math:`y = (\cos\theta, \sin\theta)` below which the favoured component wins: unit flow,
    blow-up time.

    The unit flow rests where :math:`\cos\theta + c = \sin\theta`, that is at :math:`\pi/4 + \arcsin(c/\sqrt2)`, and for good
    from :math:`c = 1` on; the other comes from equal times in Eq. 150.
    """

    def behind(angle: float) -> float:  # how much later the favoured one blows up
        return float(np.log1p((b + c) / np.cos(angle)) / (b + c) - np.log1p(b / np.sin(angle)) / b)

    unit = np.pi / 2 if c >= 1 else np.pi / 4 + np.arcsin(c / np.sqrt(2))
    return float(unit), float(brentq(behind, np.pi / 4, np.pi / 2))


def win_probability(advantage: float, d: int) -> float:
    r"""Eq. 155, :math:`P[Y_l > 0,\ Y_l + \epsilon \ge \max_{l' \ne l} Y_{l'}]` for ``d`` independent :math:`Y \sim U[-1, 1]`,
    at any :math:`\epsilon`.

    Below -1, which the paper leaves out, it is :math:`\frac1d (1 + \epsilon/2)^d`, and 0 from -2 on.
    """
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


def covariance(features: Tensor, chance: Tensor) -> Tensor:
    """Covariance matrix over cases: ``(R, cases, p)`` with chances ``(R, cases)``."""
    centred = features - torch.einsum("rs,rsp->rp", chance, features)[:, None]
    return torch.einsum("rs,rsp,rsq->rpq", chance, centred, centred)


@dataclass(frozen=True)
class Parts:
    """What the formulas are made of.

    within: :math:`L_k = E_z V[\\tilde x_k \\mid z]`, ``(R, K, p, p)``.  means: :math:`E[\\tilde x_k \\mid z = c]`, ``(R, C,
    K, p)``.
    """

    within: Tensor
    means: Tensor


def parts(population: Population) -> Parts:
    """From one field at a time; nothing is listed."""
    x, p = population.gated(), population.chances
    means = torch.einsum("rckn,rknp->rckp", p, x)
    centred = x[:, None] - means[..., None, :]
    spread = torch.einsum("rckn,rcknp,rcknq->rckpq", p, centred, centred)
    return Parts(torch.einsum("rc,rckpq->rkpq", population.prior, spread), means)


@dataclass(frozen=True)
class Modulation:
    r"""Theorem 5's quantities, ``(R, K)`` but for :math:`\lambda` and ``Z``, ``(R,)``, and the vectors
    :math:`\Delta_k (R, K, d)`.

    d: :math:`d_k = w_k^\top L_k w_k`.  b: :math:`b_k = w_k^\top \Delta_k`.  s: the leading eigenvector of
    :math:`V[f_1] = \operatorname{diag}(d) + p_0 p_1 b b^\top`, by Eq. 139.  factor: :math:`\delta_k`, by Eq. 143.
    """

    d: Tensor
    b: Tensor
    delta: Tensor
    pq: Tensor
    top: Tensor
    s: Tensor
    scale: Tensor
    factor: Tensor


def modulation(found: Parts, prior: Tensor, weights: Tensor) -> Modulation:
    r"""From the parts ``found`` of a population with two classes and filters ``(R, K, d)``.

    The largest eigenvalue solves :math:`1 + p_0 p_1 \sum_k b_k^2/(d_k - \lambda) = 0`, and above :math:`\max_k d_k` the left
    side grows in :math:`\lambda`; a bisection finds it, as the distance from there, so that nothing cancels where a :math:`b_k`
    is small.
    """
    pq = prior.prod(1)[:, None]
    d = torch.einsum("rkp,rkpq,rkq->rk", weights, found.within, weights)
    delta = found.means[:, 1] - found.means[:, 0]
    b = (weights * delta).sum(-1)
    most, weight = d.amax(1, keepdim=True), pq * b.square()
    below, low, high = most - d, torch.zeros_like(most), weight.sum(1, keepdim=True)
    for _ in range(120):
        middle = (low + high) / 2
        above = (weight / (middle + below)).sum(1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    top = (most + (low + high) / 2)[:, 0]
    apart = top[:, None] - d
    ratio = b / apart
    scale = ratio.square().sum(1, keepdim=True).sqrt()
    terms = b.square() / apart
    factor = pq / (scale.square() * apart) * (terms.sum(1, keepdim=True) - terms)
    return Modulation(d, b, delta, pq, top, ratio / scale, scale, factor)


def others_share(d: Tensor, b: Tensor, pq: float) -> Tensor:
    r"""Share of each field's class term that the other fields supply, by autograd, ``(K,)``.

    d, b: ``(K,)``, b without zeros.  pq: :math:`p_0 p_1`.  With :math:`\lambda(d, b)` the largest eigenvalue of
    :math:`V[f_1]` and ``s`` its eigenvector, :math:`\frac12 \partial\lambda/\partial b_k = p_0 p_1 s_k \sum_l s_l b_l` is the
    whole term and :math:`p_0 p_1 b_k\, \partial\lambda/\partial d_k = p_0 p_1 s_k^2 b_k` the field's own; one less their ratio.
    """
    leaves = (d.detach().clone().requires_grad_(), b.detach().clone().requires_grad_())
    top = torch.linalg.eigvalsh(torch.diag(leaves[0]) + pq * torch.outer(leaves[1], leaves[1]))[-1]
    by_d, by_b = torch.autograd.grad(top, leaves)
    return 1 - pq * b * by_d / (by_b / 2)


def balanced(population: Population) -> Population:
    """The same with points scaled so that each field's first unit has variance 1; else one field often drowns the others."""
    found, w = parts(population), population.weights[:, :, 0]
    m = modulation(found, population.prior, w)
    sigma = (m.d + m.pq * m.b.square()).sqrt()
    return replace(population, points=population.points / sigma[..., None, None])


def normalized(found: Parts, prior: Tensor, weights: Tensor) -> Parts:
    r"""The parts of :math:`\tilde x^{bn}_k = \tilde x_k/\sigma_k`, with :math:`\sigma_k^2 = V[f_k] = d_k + p_0 p_1 b_k^2`."""
    m = modulation(found, prior, weights)
    sigma = (m.d + m.pq * m.b.square()).sqrt()
    return Parts(found.within / sigma.square()[..., None, None], found.means / sigma[:, None, :, None])


def modulated(kernel: Tensor, covariance: Tensor, w: Tensor) -> Tensor:
    r""":math:`[(S \otimes 1_d 1_d^\top) \circ C]\, w`, ``(R, K M d)``; ``kernel``: :math:`S`, ``(R, KM, KM)``."""
    d = covariance.shape[1] // kernel.shape[1]
    ones = torch.ones(d, d, dtype=kernel.dtype)
    return torch.einsum("rpq,rq->rp", torch.kron(kernel, ones) * covariance, w)
