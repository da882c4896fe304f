r"""Homogeneous activations, the gradient of one filter, and what holding the weights fixed hides (Section 2 of [tian2023]).

Kernel structure of pairwise weights, and the limit of a large batch (Lemmas 1 and 2 of [tian2023]).

A `Population` is finite: sample s has probability :math:`p_s` and V equally likely views, so that every expectation is a sum.
With weights :math:`\alpha_{ij} = K(x_0[i], x_0[j])`, :math:`b_s` the mean and :math:`V_s` the covariance of g over the
views of s,

.. math::  C_\alpha[g] \to C_\infty = \tfrac12 \sum_{st} p_s p_t K_{st} (b_s - b_t)(b_s - b_t)^T
           + \tfrac12 \sum_s p_s [(K^T p)_s - (K p)_s] V_s,

whose second term is zero for symmetric weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sslbook._random import Streams
from sslchapters.checks import Gaps, over_instances, relative
from sslchapters.energies import contrastive_covariance, energy, loss_value, project, square_distances, weights


@dataclass(frozen=True)
class Activation:
    """``h(u) = gate(u) u``: ``u`` above zero and ``slope * u`` below for ``degree = 1``, else ``u ** degree``.

    ``slope`` 1 is linear, 0 the ReLU, -1 the absolute value.  As ``h'(u) = degree * gate(u)``, Assumption 1 of [tian2023] holds
    as printed for ``degree = 1`` and up to the constant ``degree`` else.
    """

    slope: float = 0.0
    degree: int = 1

    def gate(self, u: Tensor) -> Tensor:
        """What multiplies the input: the slope at ``u``, with the lower one at zero; or ``u ** (degree - 1)``."""
        if self.degree > 1:
            return u ** (self.degree - 1)
        return torch.where(u > 0, torch.ones_like(u), torch.full_like(u, self.slope))

    def __call__(self, u: Tensor) -> Tensor:
        """``h(u)``."""
        return self.gate(u) * u


LINEAR, RELU = Activation(1.0), Activation(0.0)


def monomial(degree: int) -> Activation:
    """``h(u) = u ** degree``."""
    return Activation(1.0, degree)


# -- checks -------------------------------------------------------------------------------------------------------------


def energy_gaps(loss: str, count: int = 128, seed: int = 0, *, epsilon: float = 0.0) -> Gaps:
    r"""Eq. 2: :math:`\nabla_\theta` of the energy with :math:`\alpha` held fixed against :math:`-\nabla_\theta L / (2 N^2)`.

    ``count`` random networks with one hidden layer of ReLUs, batches of 7 pairs of views, random temperatures; the worst relative
    error in all weights.  Broken: the diagonal of InfoNCE's weights as the formula gives it for i = j; its weights without
    epsilon; a gradient that runs through the weights too.
    """
    draw = Streams(range(seed, seed + count), "energy")
    x = draw.normal((7, 5))
    x2 = x + 0.5 * draw.normal((7, 5))
    # The replica axis leads everywhere, so one temperature has to serve all; three runs use three.
    first, second = draw.normal((5, 8)), draw.normal((8, 3)) / 3
    parts = []
    for tau in (0.3, 1.0, 3.0):
        theta = [first.clone().requires_grad_(), second.clone().requires_grad_()]
        f, f2 = ((v @ theta[0]).relu() @ theta[1] for v in (x, x2))
        setting = {"temperature": tau, "epsilon": epsilon, "margin": 0.2}
        wanted = _flat_grad(-loss_value(loss, f, f2, **setting) / (2 * 7**2), theta)
        alpha = weights(loss, f, f2, **setting)
        variants = {"energy": alpha}
        if loss == "info_nce":
            own = torch.diagonal(square_distances(f), dim1=-2, dim2=-1)
            total = torch.where(torch.eye(7, dtype=torch.bool), torch.inf, square_distances(f)) / tau
            diagonal = (-own / tau).exp() / (-total).exp().sum(-1)
            variants["broken: diagonal as printed"] = alpha + torch.diag_embed(diagonal).detach()
            if epsilon:
                variants["broken: epsilon left out"] = weights(loss, f, f2, temperature=tau)
        else:
            variants["broken: diagonal"] = alpha + (torch.eye(7) if loss != "quadratic" else -torch.eye(7))
        alive = wanted.norm(dim=1) > 0  # all hinges of a triplet loss may be closed, all units silent
        found = {name: _flat_grad(energy(f, f2, weight), theta) for name, weight in variants.items()}
        parts.append({name: relative(gradient[alive], wanted[alive]) for name, gradient in found.items()})
    return over_instances(*parts)


def _flat_grad(value: Tensor, theta: list[Tensor]) -> Tensor:
    parts = torch.autograd.grad(value.sum(), theta, retain_graph=True)
    return torch.cat([part.flatten(1) for part in parts], 1)


def filter_gaps(act: Activation, count: int = 128, seed: int = 0) -> Gaps:
    r"""Lemma 3 of [tian2023]: the energy's gradient at :math:`w / \|w\|` by autograd against :math:`p\, P^\perp_w A(w) w`.

    :math:`A(w) = C_\alpha[\mathrm{gate}(w^T x)\, x]`, p is the degree; random filters of unit length, batches of 9 pairs of views,
    weights of InfoNCE.  Broken: not projected; the activation in place of the gate; and for a monomial the constant p left out.
    """
    draw = Streams(range(seed, seed + count), "filter")
    x, w = draw.normal((9, 4)), draw.normal((4,))
    x2, w = x + 0.4 * draw.normal((9, 4)), w / w.norm(dim=-1, keepdim=True)

    def response(v: Tensor, unit: Tensor) -> Tensor:
        return act((v @ unit[..., None])[..., 0])[..., None]

    alpha = weights("info_nce", response(x, w), response(x2, w), temperature=0.5, epsilon=1.0)
    free = w.clone().requires_grad_()
    unit = free / free.norm(dim=-1, keepdim=True)
    (wanted,) = torch.autograd.grad(energy(response(x, unit), response(x2, unit), alpha).sum(), free)
    gated, gated2 = (act.gate((v @ w[..., None])[..., 0])[..., None] * v for v in (x, x2))
    raw = act.degree * (contrastive_covariance(gated, gated2, alpha) @ w[..., None])[..., 0]
    flat = contrastive_covariance(response(x, w) * x, response(x2, w) * x2, alpha)
    found = {
        "filter": project(w, raw),
        "broken: not projected": raw,
        "broken: activation for gate": project(w, (flat @ w[..., None])[..., 0]),
    }
    if act.degree > 1:
        found["broken: degree left out"] = project(w, raw / act.degree)
    alive = wanted.norm(dim=1) > 0  # a silent filter has no gradient to compare with
    return over_instances({name: relative(gradient[alive], wanted[alive]) for name, gradient in found.items()})


def stop_gradient_gaps(loss: str, count: int = 128, seed: int = 0) -> Gaps:
    r"""What holding the weights fixed hides: the Hessian of :math:`-L / (2 N^2)` less that of the energy, for one filter.

    Minus the loss is a concave function of the gaps :math:`d_{ij}^2 - d_i^2` (InfoNCE, triplet), so the difference has no positive
    eigenvalue: ``positive`` is the largest one over the norm of the loss's Hessian.  Broken: minus the difference.
    """
    draw = Streams(range(seed, seed + count), "hessian")
    x, w = draw.normal((7, 3)), draw.normal((3,))
    x2 = x + 0.4 * draw.normal((7, 3))
    setting: dict[str, Any] = {"temperature": 0.5, "epsilon": 1.0, "margin": 0.1}

    def outputs(v: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ v[..., None]).relu(), (x2 @ v[..., None]).relu()

    alpha = weights(loss, *outputs(w), **setting)
    true = _hessian(lambda v: -loss_value(loss, *outputs(v), **setting) / (2 * 7**2), w)
    fixed = _hessian(lambda v: energy(*outputs(v), alpha), w)
    alive = true.flatten(1).norm(dim=1) > 1e-9  # a silent filter has no curvature
    true, fixed = true[alive], fixed[alive]
    values = torch.linalg.eigvalsh(true - fixed) / true.flatten(1).norm(dim=1)[:, None]
    return over_instances({"positive": values[:, -1], "broken: sign": -values[:, 0]})


def _hessian(value: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Second derivatives of ``value (R,)`` by ``w (R, d)``: ``(R, d, d)``."""
    whole = torch.autograd.functional.hessian(lambda v: value(v).sum(), w)  # of all replicas, which don't meet
    return whole.diagonal(dim1=0, dim2=2).movedim(-1, 0)


# --- Lemmas 1 and 2: kernels, their features, and the limit of a large batch -----------------------------------------


@dataclass(frozen=True)
class Population:
    """Probabilities ``p (R, S)``, what weights see of a sample, ``clean (R, S, C)``, and g of its views, ``(R, S, V, D)``."""

    p: Tensor
    clean: Tensor
    views: Tensor

    @property
    def mean(self) -> Tensor:
        """``b (R, S, D)``: the mean of g over the views of a sample."""
        return self.views.mean(2)

    @property
    def spread(self) -> Tensor:
        """``(R, S, D, D)``: the covariance of g over the views of a sample."""
        off = self.views - self.mean[:, :, None]
        return off.mT @ off / self.views.shape[2]


def population(replicas: int, seed: int = 0, *, samples: int = 6, views: int = 3, noise: float = 0.7) -> Population:
    """Random populations: Gaussian samples with unequal probabilities, views around them; ``noise = 0`` for no augmentation."""
    draw = Streams(range(seed, seed + replicas), "population")
    p = 0.2 + draw.uniform((samples,), torch.float64)
    clean = draw.normal((samples, 2))
    seen = clean[:, :, None] + noise * draw.normal((samples, views, 2))
    return Population(p / p.sum(-1, keepdim=True), clean, seen)


def gaussian(clean: Tensor, tau: float) -> Tensor:
    r"""Gaussian weights :math:`\exp(-\|g_i - g_j\|^2 / 2\tau)` of Lemma 1: ``(..., S, C)`` -> ``(..., S, S)``."""
    return (-square_distances(clean) / tau).exp()


def features(y: Tensor, tau: float, degree: int) -> Tensor:
    r"""The non-negative features of Lemma 1's proof up to total ``degree``: ``y (..., S, C) >= 0`` -> ``(..., S, F)``.

    The paper's feature vector lists all :math:`C^k` products of k coordinates; products that differ in order alone are one feature
    here, :math:`\phi_n(y) = e^{-\|y\|^2/2\tau} \prod_c y_c^{n_c} / \sqrt{n_c!\, \tau^{n_c}}`.
    """
    n = torch.arange(degree + 1, dtype=y.dtype)
    # through logarithms: y^n and n! overflow long before their quotient does
    log = torch.xlogy(n, y[..., None] / tau**0.5) - 0.5 * torch.lgamma(n + 1) - y[..., None].square() / (2 * tau)
    each = log.exp()  # (..., S, C, degree + 1)
    dimension = y.shape[-1]
    chosen = [k for k in itertools.product(range(degree + 1), repeat=dimension) if sum(k) <= degree]
    picked = [each[..., c, [k[c] for k in chosen]] for c in range(dimension)]
    return torch.stack(picked).prod(0)


def limit(pop: Population, kernel: Tensor) -> Tensor:
    """The limit of the batch, without features, for any weights ``kernel (R, S, S)``: ``(R, D, D)`` (the module's formula)."""
    b, p = pop.mean, pop.p
    weight = p[:, :, None] * kernel * p[:, None, :]
    laplacian = torch.diag_embed(weight.sum(1) + weight.sum(2)) - weight - weight.mT
    excess = 0.5 * (weight.sum(1) - weight.sum(2))
    return 0.5 * b.mT @ laplacian @ b + (excess[..., None, None] * pop.spread).sum(1)


def limit_of_features(pop: Population, phi: Tensor) -> Tensor:
    r"""Eq. 4 of [tian2023]: :math:`\sum_l z_l^2 V_{\tilde p_l}[b]`, with ``phi (R, S, F)``: ``(R, D, D)``."""
    ratio = pop.p[..., None] * phi
    z = ratio.sum(1)
    density = ratio / z.clamp_min(torch.finfo(z.dtype).tiny)[:, None]  # a feature that is zero everywhere adds nothing
    off = pop.mean[:, :, None] - (density.mT @ pop.mean)[:, None]
    return torch.einsum("rf,rsf,rsfd,rsfe->rde", z.square(), density, off, off)


def expected(pop: Population, kernel: Tensor, batch: int) -> Tensor:
    r"""The mean of :math:`C_\alpha[g]` over batches of N: :math:`\frac{N-1}{N} C_\infty - \frac1N E[K(x_0, x_0) V[g | x_0]]`."""
    own = pop.p * kernel.diagonal(dim1=-2, dim2=-1)
    return (1 - 1 / batch) * limit(pop, kernel) - (own[..., None, None] * pop.spread).sum(1) / batch


def enumerated(pop: Population, kernel: Tensor, batch: int) -> Tensor:
    """The same by listing every batch: all samples for all rows and all pairs of views, by the definition of Eq. 3."""
    _, samples, views, _ = pop.views.shape
    one = list(itertools.product(range(samples), range(views), range(views)))
    rows = torch.tensor(list(itertools.product(one, repeat=batch)))  # (batches, N, 3)
    s, v, v2 = rows.unbind(-1)
    chance = pop.p[:, s].prod(-1) / views ** (2 * batch)
    alpha = kernel[:, s[:, :, None], s[:, None, :]]
    g, g2 = pop.views[:, s, v], pop.views[:, s, v2]
    return (chance[..., None, None] * contrastive_covariance(g, g2, alpha)).sum(1)


def sampled(pop: Population, kernel: Tensor, batch: int, seed: int = 0) -> Tensor:
    """Eq. 3 for one random batch of ``batch`` for each replica, ``(R, D, D)``, by how often it shows a sample in a pair of views.

    Rows that are alike count as one with their number as its weight, so that the N x N weights are never written down.
    """
    replicas, samples, views, _ = pop.views.shape
    u = Streams(range(seed, seed + replicas), f"batch {batch}").uniform((batch, 3), torch.float64)
    s = torch.searchsorted(pop.p.cumsum(1).clamp_max(1 - 1e-15), u[..., 0].contiguous()).clamp_max(samples - 1)
    one, two = (u[..., 1:] * views).long().clamp_max(views - 1).unbind(-1)
    which = (s * views + one) * views + two
    counts = torch.zeros(replicas, samples * views**2, dtype=u.dtype).scatter_add_(1, which, torch.ones_like(u[..., 0]))
    s, v, v2 = torch.cartesian_prod(*map(torch.arange, (samples, views, views))).T
    alpha = counts[:, :, None] * kernel[:, s[:, None], s] * counts[:, None]
    g, g2 = pop.views[:, s, v], pop.views[:, s, v2]
    return contrastive_covariance(g, g2, alpha) * (len(s) / batch) ** 2


def convergence(counts: Sequence[int], replicas: int = 64, seed: int = 0, *, noise: float = 0.7) -> dict[str, Tensor]:
    """One random batch of each size in ``counts`` for each of many populations, with Gaussian weights.

    For each size ``error``, the root mean square distance from the limit, relative to it; ``negative``, the share of indefinite
    batches; and ``unadjusted``, the distance from the limit for uniform weights instead, which does not vanish.
    """
    pop = population(replicas, seed, noise=noise)
    kernel = gaussian(pop.clean, 1.0)
    batches = [sampled(pop, kernel, n, seed) for n in counts]

    def distance(end: Tensor) -> Tensor:
        return torch.stack([relative(b, end) for b in batches]).square().mean(1).sqrt()

    floor = -1e-12  # rounding: without augmentation the least eigenvalue can be zero
    negative = torch.stack([(torch.linalg.eigvalsh(b)[:, 0] < floor).double().mean() for b in batches])
    unadjusted = distance(limit(pop, torch.ones_like(kernel)))
    return {"error": distance(limit(pop, kernel)), "unadjusted": unadjusted, "negative": negative}


def kernel_gaps(count: int = 128, seed: int = 0) -> Gaps:
    r"""Lemmas 1 and 2 on random populations, relative errors.

    - features: the truncated sum of products against :math:`\alpha_{ij}\, Q(k + 1, y_i^T y_j / \tau)`, Q the regularised upper
      incomplete gamma function: of the exponential series of a number, the share of its first k + 1 terms is a Poisson probability.
    - limit: Eq. 4 with 60 degrees against the formula without features.
    - finite: the exact mean for batches of 2 against listing all of them.
    """
    pop = population(count, seed)
    tau = 1.5
    y = pop.clean - pop.clean.amin(1, keepdim=True)
    kernel = gaussian(pop.clean, tau)
    phi = features(y, tau, 5)
    series = kernel * torch.special.gammaincc(torch.tensor(6.0, dtype=y.dtype), y @ y.mT / tau)
    end = limit(pop, kernel)
    full = limit_of_features(pop, features(y, tau, 60))
    small = population(count, seed, samples=3, views=2)
    near = gaussian(small.clean, tau)
    listed = enumerated(small, near, 2)
    flat = limit(pop, torch.ones_like(kernel))
    views = pop.spread * (pop.p * (kernel @ pop.p[..., None])[..., 0])[..., None, None]
    return over_instances(
        {
            "features": relative(phi @ phi.mT, series),
            "broken: whole series": relative(phi @ phi.mT, kernel),
            "limit": relative(full, end),
            "broken: adjusted densities left out": relative(flat, end),
            "broken: views not averaged": relative(full + views.sum(1), end),
            "finite": relative(expected(small, near, 2), listed),
            "broken: limit for a batch of 2": relative(limit(small, near), listed),
        }
    )


def lopsided() -> tuple[Population, Tensor]:
    """A population on which normalised weights, ``K / (K p)`` row by row, have an indefinite *limit*.

    A crowd of samples whose views agree, and two loners whose views differ: the columns of the loners sum to less than their rows.
    """
    clean = torch.tensor([[[0.0], [0.05], [0.1], [2.0], [2.6]]], dtype=torch.float64)
    p = torch.tensor([[0.3, 0.3, 0.3, 0.05, 0.05]], dtype=torch.float64)
    wide = torch.tensor([0.0, 0.0, 0.0, 1.5, 1.5], dtype=torch.float64)
    across = torch.stack([-wide, wide], -1)[None, :, :, None]
    along = clean[:, :, None].expand(-1, -1, 2, -1)
    pop = Population(p, clean, torch.cat([along, across], -1))
    kernel = gaussian(clean, 0.8)
    return pop, kernel / (kernel @ p[..., None])


# --- Populations whose A(w) = V[x^w] is known exactly (Section 3.1 of [tian2023]; uniform weights, no views) ---------
#
# `Cloud`: finitely many points; the latent categorical model, whose points are the patterns, and the summation model are such.
# `Blobs`: a mixture of isotropic Gaussians,
# for which A(w) is a smooth function, in closed form for every leaky rectifier.


THRESHOLD = (3 - math.sqrt(5)) / 2
"""Largest probability of the rarer value at which a pattern of the summation model is a locally maximal eigenvector."""


@dataclass(frozen=True)
class Cloud:
    """Points ``x (R, n, d)`` with probabilities ``p (R, n)``; each ``views`` neighbours are equally likely views of one image."""

    x: Tensor
    p: Tensor
    views: int = 1

    def matrix(self, w: Tensor, act: Activation) -> Tensor:
        """``A(w)`` at ``w (R, S, d)``: ``(R, S, d, d)``."""
        return self.gated(act.gate(w @ self.x.mT))

    def gated(self, gate: Tensor) -> Tensor:
        """The covariance over images of their mean gated view, with the gates ``(R, S, n)``: ``(R, S, d, d)``."""
        each = (-1, self.views)
        mean = torch.einsum("rsiv,rivd->rsid", gate.unflatten(-1, each), self.x.unflatten(1, each)) / self.views
        p = self.p.unflatten(1, each).sum(-1)
        first = torch.einsum("ri,rsid->rsd", p, mean)
        return torch.einsum("ri,rsid,rsie->rsde", p, mean, mean) - first[..., :, None] * first[..., None, :]

    def centred(self, f: Tensor) -> Tensor:
        """Of responses ``(R, S, n)`` the mean over the views of each point's image, less that over all: ``(R, S, n)``."""
        mean = f.unflatten(-1, (-1, self.views)).mean(-1).repeat_interleave(self.views, -1)
        return mean - (self.p[:, None] * mean).sum(-1, keepdim=True)

    def velocity(self, w: Tensor, act: Activation) -> Tensor:
        """``A(w) w`` without the matrix: ``(R, S, d)``."""
        u = w @ self.x.mT
        gate = act.gate(u)
        return (self.p[:, None] * gate * self.centred(gate * u)) @ self.x

    def energy(self, w: Tensor, act: Activation) -> Tensor:
        """Half the variance over images of the filter's mean response: ``(R, S)``."""
        return 0.5 * (self.p[:, None] * self.centred(act(w @ self.x.mT)).square()).sum(-1)


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
    return torch.nn.functional.normalize(u + tilt * draw.normal((count, size)) / size**0.5, dim=-1)


def scattered(replicas: int, points: int, size: int, seed: int = 0, *, offset: float = 0.0) -> Cloud:
    """Gaussian points with unequal probabilities; their centre ``offset`` away from the origin along the first axis."""
    draw = Streams(range(seed, seed + replicas), "scattered")
    p = 0.3 + draw.uniform((points,), torch.float64)
    x = draw.normal((points, size))
    x[..., 0] += offset
    return Cloud(x, p / p.sum(-1, keepdim=True))


@dataclass(frozen=True)
class Blobs:
    """A mixture of Gaussians ``N(x_k, sigma^2 I)``: centres ``x (R, K, d)``, probabilities ``p (R, K)``.

    images: its parts are images, and their draws the views.
    """

    x: Tensor
    p: Tensor
    sigma: float
    images: bool = False

    def _sides(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Of unit ``w (R, S, d)`` and each part: :math:`m = w^T x_k`, :math:`\Phi(m/\sigma)`, :math:`\sigma \phi(m/\sigma)`."""
        m, s = w @ self.x.mT, self.sigma
        return m, torch.special.ndtr(m / s), s * torch.exp(-0.5 * (m / s).square()) / math.sqrt(2 * math.pi)

    def gated_means(self, w: Tensor, act: Activation) -> Tensor:
        r"""Each part's mean of ``gate(w^T x) x``: :math:`(a + (1 - a) \Phi) x_k + (1 - a) \sigma \phi w`, ``(R, S, K, d)``."""
        _, inside, edge = self._sides(w)
        share = act.slope + (1 - act.slope) * inside
        return share[..., None] * self.x[:, None] + (1 - act.slope) * edge[..., None] * w[:, :, None]

    def matrix(self, w: Tensor, act: Activation) -> Tensor:
        r"""``A(w)`` at unit ``w (R, S, d)`` for a leaky rectifier: ``(R, S, d, d)``.

        :math:`E[x x^T 1(w^T x > 0)] = \Phi (x_k x_k^T + \sigma^2 I) + \sigma \phi (x_k w^T + w x_k^T - m w w^T)` in each part.
        """
        p, square, gated = self.p[:, None], act.slope**2, self.gated_means(w, act)
        mean = (p[..., None] * gated).sum(2)
        if self.images:
            return torch.einsum("rsk,rskd,rske->rsde", p, gated - mean[:, :, None], gated - mean[:, :, None])
        m, inside, edge = self._sides(w)
        share, edge = p * (square + (1 - square) * inside), p * (1 - square) * edge
        mixed = torch.einsum("rsk,rkd,rse->rsde", edge, self.x, w)
        along = (edge * m).sum(-1)[..., None, None] * w[..., :, None] * w[..., None, :]
        second = torch.einsum("rsk,rkd,rke->rsde", share, self.x, self.x) + mixed + mixed.mT - along
        second = second + self.sigma**2 * share.sum(-1)[..., None, None] * torch.eye(w.shape[-1], dtype=w.dtype)
        return second - mean[..., :, None] * mean[..., None, :]


def blobs(replicas: int, count: int, size: int, seed: int = 0, *, sigma: float = 0.3, offset: float = 0.0) -> Blobs:
    """Random mixtures: Gaussian centres and unequal probabilities; the first axis shifted by ``offset``."""
    cloud = scattered(replicas, count, size, seed, offset=offset)
    return Blobs(cloud.x, cloud.p, sigma)


def directions(replicas: int, starts: int, size: int, seed: int = 0) -> Tensor:
    """Random unit vectors ``(R, starts, size)``."""
    w = Streams(range(seed, seed + replicas), "directions").normal((starts, size))
    return w / w.norm(dim=-1, keepdim=True)


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
    first = Cloud(u, p).gated(act.gate(torch.where(inner.abs() < 1e-12, 0.0, inner)))
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
