r"""Formulas against autograd, enumeration and simulation, on many random instances.

Lemmas 4 and 6 and Theorem 4 of [tian2023], Lemma 5, Theorem 5 and Corollary 3, and Theorem 6.

A lower layer of ``K`` disjoint receptive fields with ``M`` filters :math:`w_{km} \in \mathbb R^d` each, homogeneous
activation :math:`h(u) = h'(u)\,u`, and a linear top layer ``V`` with :math:`S = V^\top V`.  Training ascends the energy
:math:`\mathcal E_\alpha = \frac12 \operatorname{tr} C_\alpha[f_2]`, with :math:`\alpha` held constant.  Replicas lie along
the first axis; ``x`` is ``(R, 2, N, K, d)``, two views of ``N`` samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslbook.networks.batchnorm import batch_normalize
from sslchapters.checks import Gaps, over_instances, relative
from sslchapters.energies import contrastive_covariance, energy, loss_value, project
from sslchapters.energies import weights as pair_weights
from sslchapters.modulation import instances, theory
from sslchapters.modulation.theory import Modulation, Parts

EPS = 1e-5
"""Under BatchNorm's root, so that a filter that no input opens divides by something."""


def _ascent(
    drawn: instances.Instances, gated: Tensor, f1: Tensor, alpha: Tensor, kernel: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Right sides of Eqs. 12 and 166: velocities of the filters (before the projection) and of the top layer.

    gated, f1: of the inputs and of the units, both divided by the units' deviations behind BatchNorm.  kernel: in place of S.
    """
    rows = drawn.top.flatten(2)
    covariance = contrastive_covariance(gated[:, 0], gated[:, 1], alpha)
    in_w = theory.modulated(rows.mT @ rows if kernel is None else kernel, covariance, drawn.weights.flatten(1))
    in_v = rows @ contrastive_covariance(f1[:, 0], f1[:, 1], alpha)
    return in_w.view_as(drawn.weights), in_v


def _by_autograd(
    drawn: instances.Instances, activation: str, objective: Callable[[Tensor, Tensor], Tensor], **norm: Any
) -> tuple[Tensor, Tensor]:
    """Gradients of ``objective`` of two views' outputs in filters and top layer; ``norm``: BatchNorm's modes, if there is one."""
    w, v = drawn.weights.clone().requires_grad_(), drawn.top.flatten(2).requires_grad_()
    f1 = drawn.hidden(w, activation)
    f1 = batch_normalize(f1, **norm, dims=(1, 2), eps=EPS) if norm else f1
    f2 = torch.einsum("rvnp,rop->rvno", f1, v)
    in_w, in_v = torch.autograd.grad(objective(f2[:, 0], f2[:, 1]).sum(), (w, v))
    return in_w, in_v


def _random_weights(drawn: instances.Instances, seed: int) -> Tensor:
    """Random pair weights, ``(R, N, N)``."""
    replicas, samples = drawn.x.shape[0], drawn.x.shape[2]
    return torch.rand(replicas, samples, samples, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lemma4_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 12 against autograd: of the energy with random :math:`\alpha`, and of InfoNCE itself, where it is
    :math:`-1/(2N^2)` of the loss's.

    Half of the instances have ReLU, half leaky ReLU.  ``square, halved``: with a square for the activation, whose
    :math:`h'(u)\,u = 2 h(u)`, half of the right side.
    """
    nce: dict[str, Any] = {"loss": "info_nce", "temperature": 0.7}

    def nce_objective(one: Tensor, two: Tensor) -> Tensor:
        return -loss_value(f=one, f2=two, **nce) / (2 * one.shape[1] ** 2)

    def gap(w: Tensor, found: Tensor, reference: Tensor) -> Tensor:
        return relative(project(w, found), project(w, reference))

    parts = []
    for activation, s in (("relu", seed), ("leaky_relu", seed + 1)):
        drawn = instances.random_instances(count // 2, s)
        w, alpha = drawn.weights, _random_weights(drawn, s + 77)
        objective = partial(energy, alpha=alpha)
        true_w, true_v = _by_autograd(drawn, activation, objective)
        learned_w, learned_v = _by_autograd(drawn, activation, nce_objective)
        (misfit, _), gated = _by_autograd(drawn, "quadratic", objective), drawn.gated(activation)
        f1, rows = drawn.hidden(w, activation), drawn.top.flatten(2)
        f2 = torch.einsum("rvnp,rop->rvno", f1, rows)
        in_w, in_v = _ascent(drawn, gated, f1, alpha)
        nce_w, nce_v = _ascent(drawn, gated, f1, pair_weights(f=f2[:, 0], f2=f2[:, 1], **nce))
        blocks = torch.kron(torch.eye(w.shape[1]), torch.ones(2 * [w.shape[2]])).double()
        found = {
            "filters": gap(w, in_w, true_w),
            "top layer": relative(in_v, true_v),
            "filters, InfoNCE": gap(w, nce_w, learned_w),
            "top layer, InfoNCE": relative(nce_v, learned_v),
            "broken: fields apart": gap(w, _ascent(drawn, gated, f1, alpha, rows.mT @ rows * blocks)[0], true_w),
            "broken: no gates": gap(w, _ascent(drawn, drawn.gated("linear"), f1, alpha)[0], true_w),
            "square, halved": gap(w, _ascent(drawn, drawn.gated("quadratic"), f1, alpha)[0] / 2, misfit),
        }
        parts.append(found)
    return over_instances(*parts)


def lemma6_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 166 against autograd through a BatchNorm whose deviation is held constant (Definition 5).

    ``mean detached`` holds too: the contrastive covariance is made of differences, in which a common mean cancels, so that it
    makes no difference whether the gradient flows through it.
    """
    drawn = instances.random_instances(count, seed)
    alpha, gated = _random_weights(drawn, seed + 9), drawn.gated("relu")
    modes = {"held": ("normal", "detach"), "detached": ("detach", "detach"), "through": ("normal", "normal")}
    true = {
        name: _by_autograd(drawn, "relu", partial(energy, alpha=alpha), mean=mean, std=std)
        for name, (mean, std) in modes.items()
    }
    f1 = drawn.hidden(drawn.weights, "relu")
    sigma = (f1.flatten(1, 2).var(1, correction=0) + EPS).sqrt()[:, None, None]
    found = _ascent(drawn, gated / sigma.repeat_interleave(drawn.x.shape[-1], -1), f1 / sigma, alpha)
    return over_instances(
        {
            "filters": relative(found[0], true["held"][0]),
            "top layer": relative(found[1], true["held"][1]),
            "mean detached": relative(true["detached"][0], true["held"][0]),
            "broken: deviation differentiated": relative(found[0], true["through"][0]),
            "broken: not divided": relative(_ascent(drawn, gated, f1, alpha)[0], true["held"][0]),
        }
    )


def theorem4_gaps(count: int, seed: int) -> Gaps:
    r"""Theorem 4 on critical points with distinct filters: collinear gradients, and two paths from there.

    Inputs are fewer than ``K d``, so that their covariance has a kernel, and filters are chosen with
    :math:`b = C[x]\,\bar w = 0`, :math:`\bar w_k = \sum_m s_{km} w_{km} \ne 0`.  With ``s`` held fixed, ``b`` depends on the
    filters through :math:`\bar w` alone, so that the straight path to :math:`\bar w_k / \sum_m s_{km}` consists of critical
    points.  The paper's path first exchanges two filters without their :math:`s_{km}`; it does not.  Sizes of ``b`` are in
    units of its size where the filters are scaled one by one at random.

    ``sum of w b``: where ``s`` is the leading eigenvector of :math:`C[f_1]`, as after fast training of the top layer,
    :math:`\sum_k \bar w_k^\top b_k = \lambda_{\max}(C[f_1])`.  So all :math:`b_k` vanish only with the whole covariance, and
    the theorem's critical points are networks with constant outputs; training, on the page, ends at
    others.
    """
    drawn = instances.random_instances(count, seed, fields=3, filters=3, d=4, samples=8)
    replicas, k, m, d = drawn.weights.shape
    draw = torch.Generator().manual_seed(seed + 5)
    s = 0.3 + torch.rand(replicas, k, m, generator=draw, dtype=torch.float64)  # no sums that vanish

    everything = (drawn.x.flatten(3), drawn.gated("linear"), drawn.hidden(drawn.weights, "linear"))
    centred = [views[:, 0] - views[:, 0].mean(1, keepdim=True) for views in everything]
    # no augmentation: covariances, of rank 7; repeated: the inputs, once for each filter
    covariance, repeated, of_units = (each.mT @ each / 8 for each in centred)

    def mean(weights: Tensor, s: Tensor) -> Tensor:
        return (s[..., None] * weights).sum(2)

    def b(weights: Tensor, s: Tensor = s) -> Tensor:
        return torch.einsum("rpq,rq->rp", covariance, mean(weights, s).flatten(1)).view(replicas, k, d)

    kernel = torch.linalg.eigh(covariance).eigenvectors[..., : k * d - 7]
    aim = torch.randn(replicas, k * d, 1, generator=torch.Generator().manual_seed(seed + 6), dtype=torch.float64)
    wanted = (kernel @ (kernel.mT @ aim)).view(replicas, k, d)  # whichever basis of the kernel LAPACK takes
    rest = mean(drawn.weights[:, :, :-1], s[:, :, :-1])
    critical = torch.cat([drawn.weights[:, :, :-1], ((wanted - rest) / s[:, :, -1:])[:, :, None]], 2)
    scale = 0.5 + torch.rand(replicas, k, m, 1, generator=draw, dtype=torch.float64)
    unit = b(scale * critical).flatten(1).norm(dim=1)

    def largest(end: Tensor, until: float) -> Tensor:  # on the straight path from the critical point
        path = ((1 - t) * critical + t * end for t in torch.linspace(0, until, 9, dtype=torch.float64).tolist())
        return torch.stack([b(w).flatten(1).norm(dim=1) / unit for w in path]).amax(0)

    values, vectors = torch.linalg.eigh(of_units)

    def trace(s: Tensor) -> Tensor:
        return relative((mean(drawn.weights, s) * b(drawn.weights, s)).sum((1, 2)), values[:, -1])

    same = (wanted / s.sum(2, keepdim=True))[:, :, None].expand_as(critical)
    w, flat = drawn.weights.flatten(1), s.flatten(1)
    lemma4 = theory.modulated(flat[:, :, None] * flat[:, None], repeated, w)
    rank_two = torch.randn(replicas, 2, k * m, generator=draw, dtype=torch.float64)
    slopes = s[..., None] * b(drawn.weights)[:, :, None]
    full = theory.modulated(rank_two.mT @ rank_two, repeated, w)
    return over_instances(
        {
            "collinear": _aside(slopes),
            "against Lemma 4": relative(slopes, lemma4.view_as(slopes)),
            "sum of w b": trace(vectors[..., -1].view(replicas, k, m)),
            "critical": b(critical).flatten(1).norm(dim=1) / unit,
            "path to identical filters": largest(same, 1.0),
            "broken: printed path": largest(critical[:, :, [1, 0, *range(2, m)]], 0.5),
            "broken: another unit vector": trace(s / flat.norm(dim=1)[:, None, None]),
            "broken: S of rank two": _aside(full.view_as(slopes)),
            "broken: filters of unit length": _aside(project(drawn.weights, slopes)),
        }
    )


def _aside(vectors: Tensor) -> Tensor:
    """How far the vectors ``(R, K, M, d)`` of a field are from one line: second over first singular value, largest field."""
    values = torch.linalg.svdvals(vectors)
    return (values[..., 1] / values[..., 0]).amax(-1)


def lemma5_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 120, :math:`V[\tilde x] = \operatorname{diag}_k[L_k] + \sum_c p_c (1 - p_c)^2 \Delta(c) \Delta(c)^\top`, for 2, 3
    and 4 classes.

    ``rank``: the second part's ``C``-th singular value over its first; it has rank ``C - 1`` at most, the paper says ``C``.
    """
    parts = []
    for classes in (2, 3, 4):
        drawn = instances.random_population(-(-count // 3), seed + classes, classes=classes, filters=2)
        cases, chance = drawn.listed(drawn.gated())
        true = theory.covariance(cases, chance.sum(1))
        found, p = theory.parts(drawn), drawn.prior
        means, prior = found.means.flatten(2), p[:, :, None]
        others = (torch.einsum("rc,rcp->rp", p, means)[:, None] - prior * means) / (1 - prior)
        delta, eye = means - others, torch.eye(found.within.shape[1], dtype=torch.float64)
        blocks = torch.einsum("rkpq,kl->rkplq", found.within, eye).flatten(3).flatten(1, 2)
        shares = (p * (1 - p) ** 2, p * (1 - p))
        second, one_power = (torch.einsum("rc,rcp,rcq->rpq", each, delta, delta) for each in shares)
        values = torch.linalg.svdvals(second)
        # ties the fields together
        coupled = chance.sum(1) * (1 + 0.5 * torch.cos(torch.arange(chance.shape[2], dtype=torch.float64)))
        tied = theory.covariance(cases, coupled / coupled.sum(1, keepdim=True))
        gaps = {
            "Lemma 5": relative(blocks + second, true),
            "rank": values[:, classes - 1] / values[:, 0],
            "broken: one power of 1 - p": relative(blocks + one_power, true),
            "broken: no classes": relative(blocks, true),
            "broken: fields not independent": relative(blocks + second, tied),
        }
        parts.append(gaps)
    return over_instances(*parts)


def _unit_covariance(drawn: instances.Population, w: Tensor) -> Tensor:
    """:math:`V[f_1]` of ReLU filters ``w (R, K, d)``, from all cases, for autograd."""
    outputs = torch.einsum("rknd,rkd->rkn", drawn.points, w).relu()
    cases, chance = drawn.listed(outputs[..., None])
    return theory.covariance(cases, chance.sum(1))


def _flow(found: Parts, w: Tensor, m: Modulation, own: Tensor, of_class: Tensor) -> Tensor:
    r""":math:`\text{own}_k L_k w_k + \text{of_class}_k b_k \Delta_k`, before the projection: what all forms of the flow are made
    of."""
    within = torch.einsum("rkpq,rkq->rkp", found.within, w)
    return own[..., None] * within + (of_class * m.b)[..., None] * m.delta


def theorem5_gaps(count: int, seed: int) -> Gaps:
    r"""Theorem 5 against autograd of :math:`\frac12\lambda_{\max}(V[f_1])`, the energy once the top layer has converged.

    ``printed factor`` is the second form that the proof gives for :math:`\delta_k`,
    :math:`1 - p_0 p_1 b_k^2/(\lambda - d_k)`; it lacks :math:`1/(Z^2(\lambda - d_k))`, with which it is ``second form``.
    As printed it is the ``share`` of the other fields in the class term, :math:`\delta_k/(p_0 p_1 s_k^2 + \delta_k)`.
    ``as if alone``: :math:`s_k^2 P^\perp (L_k + \frac{p_0 p_1}{\pi_k} \Delta_k \Delta_k^\top) w_k` with
    :math:`\pi_k = p_0 p_1 b_k^2/(\lambda - d_k)`.
    """
    drawn = theory.balanced(instances.random_population(count, seed, fields=4))
    w = drawn.weights[:, :, 0].clone().requires_grad_()
    values, vectors = torch.linalg.eigh(_unit_covariance(drawn, w))
    (slope,) = torch.autograd.grad(0.5 * values[:, -1].sum(), w)
    w, values, leading = w.detach(), values.detach(), vectors[:, :, -1].detach()
    found = theory.parts(drawn)
    m = theory.modulation(found, drawn.prior, w)
    leading = leading * (leading * m.s).sum(1, keepdim=True).sign()
    true, alone, apart = project(w, slope), m.pq * m.s.square(), m.top[:, None] - m.d
    own = m.pq * m.b.square() / apart
    printed = 1 - own

    def gap(of_class: Tensor) -> Tensor:
        return relative(project(w, _flow(found, w, m, m.s.square(), of_class)), true)

    return over_instances(
        {
            "dynamics": gap(alone + m.factor),
            "as if alone": gap(alone / own),
            "eigenvalue": relative(m.top, values[:, -1]),
            "eigenvector": relative(m.s, leading),
            "second form": relative(printed, m.factor * m.scale.square() * apart),
            "share": relative(printed, m.factor / (alone + m.factor)),
            "negative factor": (-m.factor).amax(1).clamp_min(0),
            "broken: printed factor": relative(printed, m.factor),
            "broken: no modulation": gap(alone),
            "broken: own field counted twice": gap(2 * alone + m.factor),
        }
    )


def any_layer_gaps(count: int, seed: int) -> Gaps:
    r"""For any top layer, :math:`S_{kk} P^\perp (L_k + \frac{p_0 p_1}{\pi_k} \Delta_k \Delta_k^\top) w_k` with
    :math:`\pi_k = S_{kk} b_k / (S b)_k` against autograd of :math:`\frac12 \operatorname{tr} V[f_2]`, three outputs.

    Shares of less than a fiftieth in size are left out: they divide.  Broken: the share of a converged top layer, and none.
    """
    drawn = theory.balanced(instances.random_population(count, seed, fields=4))
    draw = torch.Generator().manual_seed(seed + 1)
    top = torch.randn(count, 3, 4, generator=draw, dtype=torch.float64)
    w, s = drawn.weights[:, :, 0].clone().requires_grad_(), top.mT @ top
    (slope,) = torch.autograd.grad(0.5 * (s * _unit_covariance(drawn, w)).sum(), w)
    w, found = w.detach(), theory.parts(drawn)
    m = theory.modulation(found, drawn.prior, w)
    own = s.diagonal(dim1=1, dim2=2)
    share = own * m.b / (s @ m.b[..., None])[..., 0]
    kept, true = (share.abs() > 0.02).all(1), project(w, slope)
    converged = m.pq * m.b.square() / (m.top[:, None] - m.d)
    shares = {"flow": share, "broken: converged": converged, "broken: alone": torch.ones_like(share)}
    flows = {name: project(w, _flow(found, w, m, own, own * m.pq / each)) for name, each in shares.items()}
    pushed = ((share < 0) | (share > 1)).any(1).double()
    gaps = over_instances({name: relative(flow, true)[kept] for name, flow in flows.items()})
    return gaps | {"pushed": float(pushed.mean())}


def corollary3_gaps(count: int, seed: int) -> Gaps:
    r"""Corollary 3 against autograd of :math:`\frac12\operatorname{tr}V[f_2]`, with the deviations :math:`\sigma_k` and the
    top layer held constant.

    ``d formula``: :math:`d_k^{bn} = 1/(1 + p_0 p_1 b_k^2/d_k)`.  ``scale of a field``: :math:`d^{bn}` before and after every
    field's input is multiplied by a factor of its own, which multiplies :math:`d_k` by its square.
    """
    drawn = instances.random_population(count, seed, fields=4)
    w = drawn.weights[:, :, 0]
    found = theory.parts(drawn)
    scaled = theory.normalized(found, drawn.prior, w)
    draw = torch.Generator().manual_seed(seed + 3)
    factors = torch.rand(count, 4, 1, 1, generator=draw, dtype=torch.float64) * 4 + 0.2
    louder = theory.parts(replace(drawn, points=drawn.points * factors))
    every = (found, scaled, louder, theory.normalized(louder, drawn.prior, w))
    plain, m, loud, both = (theory.modulation(each, drawn.prior, w) for each in every)

    def gradient(deviation_constant: bool) -> Tensor:
        v = w.clone().requires_grad_()
        spread = _unit_covariance(drawn, v)
        size = spread.diagonal(dim1=1, dim2=2).sqrt()
        top = m.s / (size.detach() if deviation_constant else size)
        (slope,) = torch.autograd.grad(0.5 * torch.einsum("rk,rkl,rl->", top, spread, top), v)
        return slope

    flow = _flow(scaled, w, m, m.s.square(), m.pq * m.s.square() + m.factor)
    undivided = _flow(found, w, plain, plain.s.square(), torch.zeros_like(plain.factor))
    return over_instances(
        {
            "dynamics": relative(flow, gradient(True)),
            "lambda below d": (m.d.amax(1) - m.top).clamp_min(0),
            "negative factor": (-m.factor).amax(1).clamp_min(0),
            "variance one": (m.d + m.pq * m.b.square() - 1).abs().amax(1),
            "d formula": relative(1 / (1 + plain.pq * plain.b.square() / plain.d), m.d),
            "scale of a field": relative(both.d, m.d),
            "broken: scale without BatchNorm": relative(loud.d, plain.d),
            "broken: deviation differentiated": relative(flow, gradient(False)),
            "broken: not divided": relative(undivided, flow),
        }
    )


def basin_shares(
    d: int, advantages: Sequence[float], b: float, count: int, seed: int
) -> dict[float, dict[str, Tensor]]:
    r"""Which starts the component with the larger :math:`b_0 = b + c` wins, for each of ``advantages`` ``c``: ones and zeros,
    whose means are shares; :math:`y(0)` is uniform on the unit sphere.

    ``unit`` and ``free``: by simulating the flows.  ``agreement``: of the unit flow with the shortest time of Eq. 150, among
    the starts with a positive component.  ``lost``: starts that the component wins without
    ``c`` and loses with it.  ``opposite``: of the starts with :math:`y_0(0) < 0`, those that the unit flow leads to
    :math:`-u_0`.  ``side`` and ``free side``: whether it wins just if :math:`y_0(0) > 0`, in the unit and the free flow.
    """
    draw = torch.Generator().manual_seed(seed)
    start = torch.nn.functional.normalize(torch.randn(count, d, generator=draw, dtype=torch.float64), dim=-1)
    even = torch.full((d,), b, dtype=torch.float64)
    plain = instances.winners(start, even, unit=True)
    positive = (start > 0).any(1)
    shares: dict[float, dict[str, Tensor]] = {}
    for c in advantages:
        shifts = even.clone()
        shifts[0] += c
        end = instances.flow_ends(start, shifts, unit=True)
        unit, free = instances.dominant_component(end), instances.winners(start, shifts, unit=False)
        first = torch.where(positive, theory.blow_up_time(start, shifts).argmin(1), -1)
        found = {
            "unit": unit == 0,
            "free": free == 0,
            "agreement": (first == unit)[positive],
            "free agreement": (first == free)[positive],
            "opposite": end[start[:, 0] < 0, 0] < -0.99,
            "lost": (plain == 0) & (unit != 0),
            "side": (unit == 0) == (start[:, 0] > 0),
            "free side": (free == 0) == (start[:, 0] > 0),
        }
        shares[c] = {name: condition.double() for name, condition in found.items()}
    return shares
