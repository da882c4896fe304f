r"""Conditionally independent fields: Lemma 5, Theorem 5 and Corollary 3 of [tian2023], against enumeration and autograd.

A class ``z`` of ``C`` is drawn with probability :math:`p_c`, and given ``z`` each field sees one of ``n`` inputs on its own,
with probabilities that depend on ``z`` (Assumption 2).  All :math:`C n^K` cases are listed, so that every expectation is
exact.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.contrast import project
from sslbook.gaps import Gaps, over_instances, relative

DTYPE = torch.float64


@dataclass(frozen=True)
class Population:
    """Random classes and fields, ``R`` of them.

    prior: ``(R, C)``.  points: ``(R, K, n, d)``.  chances: ``(R, C, K, n)``, of each point given the class.
    weights: ``(R, K, M, d)``.
    """

    prior: Tensor
    points: Tensor
    chances: Tensor
    weights: Tensor

    def gated(self) -> Tensor:
        r""":math:`\tilde x_{km} = x_k\,[w_{km}^\top x_k > 0]` of each point, ``(R, K, n, M d)``."""
        opened = torch.einsum("rknd,rkmd->rknm", self.points, self.weights) > 0
        return (opened[..., None] * self.points[:, :, :, None]).flatten(3)

    def listed(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """All cases: the fields' features ``(R, K, n, p)`` side by side, ``(R, n^K, K p)``, and their chances ``(R, C, n^K)``."""
        k, n = features.shape[1:3]
        index = torch.tensor(list(itertools.product(range(n), repeat=k)))  # (n^K, K)
        fields = torch.arange(k)
        found = features[:, fields, index]  # (R, n^K, K, p)
        given = self.chances[:, :, fields, index].prod(-1)
        return found.flatten(2), self.prior[..., None] * given


def random_population(count: int, seed: int, *, classes: int = 2, fields: int = 3, filters: int = 1) -> Population:
    """``count`` of them, from normal points and filters of length 1, and chances that are squares of uniform ones."""
    d, points = 3, 3
    draw = torch.Generator().manual_seed(seed)

    def chances(*shape: int) -> Tensor:
        p = torch.rand(count, *shape, generator=draw, dtype=DTYPE).square() + 0.05
        return p / p.sum(-1, keepdim=True)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=draw, dtype=DTYPE)

    x, w = normal(fields, points, d), normal(fields, filters, d)
    w = w / w.norm(dim=-1, keepdim=True)
    first, second = w[:, :, 0], -w[:, :, 0]  # one point opens the first gate wide, one leaves it shut: units that vary
    for index, towards in enumerate((first, second)):
        part = (x[:, :, index] * towards).sum(-1, keepdim=True)
        x[:, :, index] += (part.abs() + 0.5 - part) * towards
    return Population(chances(classes), x, chances(classes, fields, points), w)


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


def _block_diagonal(blocks: Tensor) -> Tensor:
    """``(R, K, p, p)`` on the diagonal of ``(R, K p, K p)``."""
    r, k, p, _ = blocks.shape
    return torch.einsum("rkpq,kl->rkplq", blocks, torch.eye(k, dtype=blocks.dtype)).reshape(r, k * p, k * p)


def lemma5_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 120, :math:`V[\tilde x] = \operatorname{diag}_k[L_k] + \sum_c p_c (1 - p_c)^2 \Delta(c) \Delta(c)^\top`, for 2, 3
    and 4 classes.

    ``rank``: the second part's ``C``-th singular value over its first; it has rank ``C - 1`` at most, the paper says ``C``.
    """
    rows: dict[str, list[Tensor]] = {}
    for classes in (2, 3, 4):
        drawn = random_population(-(-count // 3), seed + classes, classes=classes, filters=2)
        for name, gap in _lemma5(drawn).items():
            rows.setdefault(name, []).append(gap)
    return over_instances({name: torch.cat(found) for name, found in rows.items()})


def _lemma5(drawn: Population) -> dict[str, Tensor]:
    cases, chance = drawn.listed(drawn.gated())
    true = covariance(cases, chance.sum(1))
    found, prior = parts(drawn), drawn.prior[:, :, None]
    means = found.means.flatten(2)
    others = (torch.einsum("rc,rcp->rp", drawn.prior, means)[:, None] - prior * means) / (1 - prior)
    delta = means - others

    def between(shares: Tensor) -> Tensor:
        return torch.einsum("rc,rcp,rcq->rpq", shares, delta, delta)

    blocks = _block_diagonal(found.within)
    p = drawn.prior
    classes = p.shape[1]
    values = torch.linalg.svdvals(between(p * (1 - p) ** 2))
    coupled = chance.sum(1) * (
        1 + 0.5 * torch.cos(torch.arange(chance.shape[2], dtype=DTYPE))
    )  # ties the fields together
    return {
        "Lemma 5": relative(blocks + between(p * (1 - p) ** 2), true),
        "rank": values[:, classes - 1] / values[:, 0],
        "broken: one power of 1 - p": relative(blocks + between(p * (1 - p)), true),
        "broken: no classes": relative(blocks, true),
        "broken: fields not independent": relative(
            blocks + between(p * (1 - p) ** 2), covariance(cases, coupled / coupled.sum(1, keepdim=True))
        ),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Theorem 5 and Corollary 3: two classes, one filter a field


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
    side grows in :math:`\lambda`; a bisection finds it.  Raises ValueError unless there are two classes.
    """
    if prior.shape[1] != 2:
        raise ValueError(f"prior must have two classes, got {prior.shape[1]}")
    pq = prior.prod(1)[:, None]
    d = torch.einsum("rkp,rkpq,rkq->rk", weights, found.within, weights)
    delta = found.means[:, 1] - found.means[:, 0]
    b = (weights * delta).sum(-1)
    top = _secular_root(d, pq * b.square())
    apart = top[:, None] - d
    ratio = b / apart
    scale = ratio.square().sum(1, keepdim=True).sqrt()
    terms = b.square() / apart
    factor = pq / (scale.square() * apart) * (terms.sum(1, keepdim=True) - terms)
    return Modulation(d, b, delta, pq, top, ratio / scale, scale, factor)


def _secular_root(d: Tensor, weight: Tensor) -> Tensor:
    r"""Root :math:`\lambda > \max_k d_k` of :math:`\sum_k \text{weight}_k/(\lambda - d_k) = 1`, ``(R,)``, for positive weights.

    Searched as the distance from :math:`\max_k d_k`, so that nothing cancels where a weight is small.
    """
    most = d.amax(1, keepdim=True)
    below, low, high = most - d, torch.zeros_like(most), weight.sum(1, keepdim=True)
    for _ in range(120):
        middle = (low + high) / 2
        above = (weight / (middle + below)).sum(1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (most + (low + high) / 2)[:, 0]


def others_share(d: Tensor, b: Tensor, pq: float) -> Tensor:
    r"""Share of each field's class term that the other fields supply, by autograd, ``(K,)``.

    d, b: ``(K,)``, b without zeros.  pq: :math:`p_0 p_1`.  With :math:`\lambda(d, b)` the largest eigenvalue of
    :math:`V[f_1]` and ``s`` its eigenvector, :math:`\frac12 \partial\lambda/\partial b_k = p_0 p_1 s_k \sum_l s_l b_l` is the
    whole term and :math:`p_0 p_1 b_k\, \partial\lambda/\partial d_k = p_0 p_1 s_k^2 b_k` the field's own; one less their ratio.
    """
    leaves = (d.detach().clone().requires_grad_(), b.detach().clone().requires_grad_())
    top = torch.linalg.eigvalsh(torch.diag(leaves[0]) + pq * torch.outer(leaves[1], leaves[1]))[-1]
    by_d, by_b = torch.autograd.grad(top, leaves)
    out: Tensor = 1 - pq * b * by_d / (by_b / 2)
    return out


def balanced(population: Population) -> Population:
    """The same with points scaled so that each field's first unit has variance 1; else one field often drowns the others."""
    found, w = parts(population), population.weights[:, :, 0]
    m = modulation(found, population.prior, w)
    sigma = (m.d + m.pq * m.b.square()).sqrt()
    return Population(
        population.prior, population.points / sigma[..., None, None], population.chances, population.weights
    )


def theorem5_gaps(count: int, seed: int) -> Gaps:
    r"""Theorem 5 against autograd of :math:`\frac12\lambda_{\max}(V[f_1])`, the energy once the top layer has converged.

    ``printed factor`` is the second form that the proof gives for :math:`\delta_k`,
    :math:`1 - p_0 p_1 b_k^2/(\lambda - d_k)`; it lacks :math:`1/(Z^2(\lambda - d_k))`, with which it is ``second form``.
    As printed it is the ``share`` of the other fields in the class term, :math:`\delta_k/(p_0 p_1 s_k^2 + \delta_k)`.
    ``as if alone``: :math:`s_k^2 P^\perp (L_k + \frac{p_0 p_1}{\pi_k} \Delta_k \Delta_k^\top) w_k` with
    :math:`\pi_k = p_0 p_1 b_k^2/(\lambda - d_k)`.
    """
    drawn = balanced(random_population(count, seed, fields=4))
    w = drawn.weights[:, :, 0].clone().requires_grad_()
    outputs = torch.einsum("rknd,rkd->rkn", drawn.points, w).relu()
    cases, chance = drawn.listed(outputs[..., None])
    values, vectors = torch.linalg.eigh(covariance(cases, chance.sum(1)))
    (slope,) = torch.autograd.grad(0.5 * values[:, -1].sum(), w)
    w = w.detach()
    found = parts(drawn)
    m = modulation(found, drawn.prior, w)
    leading = vectors[:, :, -1].detach()
    leading = leading * (leading * m.s).sum(1, keepdim=True).sign()
    a = found.within + m.pq[..., None, None] * m.delta[..., :, None] * m.delta[..., None, :]

    def flow(factor: Tensor, own: Tensor = a) -> Tensor:
        straight = m.s.square()[..., None] * torch.einsum("rkpq,rkq->rkp", own, w)
        return project(w, straight + (factor * m.b)[..., None] * m.delta)

    true = project(w, slope)
    apart = m.top[:, None] - m.d
    own = m.pq * m.b.square() / apart
    printed = 1 - own
    louder = torch.einsum("rkpq,rkq->rkp", found.within, w) + (m.pq / own * m.b)[..., None] * m.delta
    return over_instances(
        {
            "dynamics": relative(flow(m.factor), true),
            "as if alone": relative(project(w, m.s.square()[..., None] * louder), true),
            "eigenvalue": relative(m.top, values[:, -1].detach()),
            "eigenvector": relative(m.s, leading),
            "second form": relative(printed, m.factor * m.scale.square() * apart),
            "share": relative(printed, m.factor / (m.pq * m.s.square() + m.factor)),
            "negative factor": (-m.factor).amax(1).clamp_min(0),
            "broken: printed factor": relative(printed, m.factor),
            "broken: no modulation": relative(flow(torch.zeros_like(m.factor)), true),
            "broken: own field counted twice": relative(flow(m.pq * m.s.square() + m.factor), true),
        }
    )


def normalized(found: Parts, prior: Tensor, weights: Tensor) -> Parts:
    r"""The parts of :math:`\tilde x^{bn}_k = \tilde x_k/\sigma_k`, with :math:`\sigma_k^2 = V[f_k] = d_k + p_0 p_1 b_k^2`."""
    m = modulation(found, prior, weights)
    sigma = (m.d + m.pq * m.b.square()).sqrt()
    return Parts(found.within / sigma.square()[..., None, None], found.means / sigma[:, None, :, None])


def corollary3_gaps(count: int, seed: int) -> Gaps:
    r"""Corollary 3 against autograd of :math:`\frac12\operatorname{tr}V[f_2]`, with the deviations :math:`\sigma_k` and the
    top layer held constant.

    ``d formula``: :math:`d_k^{bn} = 1/(1 + p_0 p_1 b_k^2/d_k)`.  ``scale of a field``: :math:`d^{bn}` before and after every
    field's input is multiplied by a factor of its own, which multiplies :math:`d_k` by its square.
    """
    drawn = random_population(count, seed, fields=4)
    w = drawn.weights[:, :, 0]
    found = parts(drawn)
    plain, scaled = modulation(found, drawn.prior, w), normalized(found, drawn.prior, w)
    m = modulation(scaled, drawn.prior, w)
    sigma = (plain.d + plain.pq * plain.b.square()).sqrt()

    def gradient(deviation_constant: bool) -> Tensor:
        v = w.clone().requires_grad_()
        f = torch.einsum("rknd,rkd->rkn", drawn.points, v).relu()
        cases, chance = drawn.listed(f[..., None])
        spread = covariance(cases, chance.sum(1))
        size = sigma if deviation_constant else spread.diagonal(dim1=1, dim2=2).sqrt()
        top = m.s / size
        (slope,) = torch.autograd.grad(0.5 * torch.einsum("rk,rkl,rl->", top, spread, top), v)
        return slope

    a = scaled.within + m.pq[..., None, None] * m.delta[..., :, None] * m.delta[..., None, :]
    straight = m.s.square()[..., None] * torch.einsum("rkpq,rkq->rkp", a, w)
    flow = straight + (m.factor * m.b)[..., None] * m.delta
    factors = torch.rand(count, 4, 1, 1, generator=torch.Generator().manual_seed(seed + 3), dtype=DTYPE) * 4 + 0.2
    louder = parts(Population(drawn.prior, drawn.points * factors, drawn.chances, drawn.weights))
    unit = (m.d + m.pq * m.b.square() - 1).abs().amax(1)
    return over_instances(
        {
            "dynamics": relative(flow, gradient(True)),
            "lambda below d": (m.d.amax(1) - m.top).clamp_min(0),
            "negative factor": (-m.factor).amax(1).clamp_min(0),
            "variance one": unit,
            "d formula": relative(1 / (1 + plain.pq * plain.b.square() / plain.d), m.d),
            "scale of a field": relative(modulation(normalized(louder, drawn.prior, w), drawn.prior, w).d, m.d),
            "broken: scale without BatchNorm": relative(modulation(louder, drawn.prior, w).d, plain.d),
            "broken: deviation differentiated": relative(flow, gradient(False)),
            "broken: not divided": relative(
                plain.s.square()[..., None] * torch.einsum("rkpq,rkq->rkp", found.within, w), flow
            ),
        }
    )


def uniformity(count: int, seed: int, spread: float) -> dict[str, tuple[Tensor, Tensor]]:
    r"""How unequal the fields are without and with BatchNorm: standard deviation over mean of four quantities, ``(R,)`` each.

    ``d``: :math:`d_k`.  ``room``: :math:`\lambda - d_k`.  ``s``: :math:`s_k^2`.  ``factor``: :math:`\delta_k`.
    spread: of the fields' scales, whose logarithms are normal with this deviation.  BatchNorm takes the scales away exactly;
    what is left is how much of a field's variance lies within the classes, which can differ more than the :math:`d_k` did.
    """
    drawn = random_population(count, seed, fields=4)
    draw = torch.Generator().manual_seed(seed + 1)
    scales = (spread * torch.randn(count, 4, 1, 1, generator=draw, dtype=DTYPE)).exp()
    drawn = Population(drawn.prior, drawn.points * scales, drawn.chances, drawn.weights)
    found, w = parts(drawn), drawn.weights[:, :, 0]
    pair = [modulation(part, drawn.prior, w) for part in (found, normalized(found, drawn.prior, w))]

    def unequal(values: Tensor) -> Tensor:
        return values.std(1) / values.mean(1)

    rows = [{"d": m.d, "room": m.top[:, None] - m.d, "s": m.s.square(), "factor": m.factor} for m in pair]
    return {name: (unequal(rows[0][name]), unequal(rows[1][name])) for name in rows[0]}
