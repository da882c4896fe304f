r"""Formulas against autograd, enumeration and simulation, on many random instances.

Lemmas 4 and 6 and Theorem 4 of [tian2023], Lemma 5, Theorem 5 and Corollary 3, Theorem 6 and the chance to win.

A lower layer of ``K`` disjoint receptive fields with ``M`` filters :math:`w_{km} \in \mathbb R^d` each, homogeneous
activation :math:`h(u) = h'(u)\,u`, and a linear top layer ``V`` with :math:`S = V^\top V`.  Training ascends the energy
:math:`\mathcal E_\alpha = \frac12 \operatorname{tr} C_\alpha[f_2]`, with :math:`\alpha` held constant.  Replicas lie along
the first axis; ``x`` is ``(R, 2, N, K, d)``, two views of ``N`` samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslbook.networks.batchnorm import batch_normalize
from sslchapters.checks import Gaps, over_instances, relative
from sslchapters.energies import contrastive_covariance, energy, loss_value, project
from sslchapters.energies import weights as pair_weights
from sslchapters.modulation import theory
from sslchapters.modulation.instances import (
    DTYPE,
    Instances,
    Population,
    dominant_component,
    flow_ends,
    random_instances,
    random_population,
    sampled_probabilities,
    winners,
)

EPS = 1e-5
"""Under BatchNorm's root, so that a filter that no input opens divides by something."""

# ---------------------------------------------------------------------------------------------------------------------
# Lemma 4


def lemma4_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 12 against autograd: of the energy with random :math:`\alpha`, and of InfoNCE itself, where it is
    :math:`-1/(2N^2)` of the loss's.

    Half of the instances have ReLU, half leaky ReLU.  ``square, halved``: with a square for the activation, whose
    :math:`h'(u)\,u = 2 h(u)`, half of the right side.
    """
    rows: dict[str, list[Tensor]] = {}
    for activation in ("relu", "leaky_relu"):
        drawn = random_instances(count // 2, seed)
        for name, gap in _lemma4(drawn, activation, 0.7, seed).items():
            rows.setdefault(name, []).append(gap)
        seed += 1
    return over_instances({name: torch.cat(parts) for name, parts in rows.items()})


def _lemma4(drawn: Instances, activation: str, tau: float, seed: int) -> dict[str, Tensor]:
    replicas, samples = drawn.x.shape[0], drawn.x.shape[2]
    draw = torch.Generator().manual_seed(seed + 77)
    alpha = torch.rand(replicas, samples, samples, generator=draw, dtype=DTYPE)
    w, v = drawn.weights.clone().requires_grad_(), drawn.top.clone().requires_grad_()
    f1 = drawn.hidden(w, activation)
    f2 = torch.einsum("rvnp,rop->rvno", f1, v.flatten(2))
    true = torch.autograd.grad(energy(f2[:, 0], f2[:, 1], alpha).sum(), (w, v), retain_graph=True)
    slopes = torch.autograd.grad(loss_value("info_nce", f2[:, 0], f2[:, 1], temperature=tau).sum(), (w, v))
    learned = [-slope / (2 * samples**2) for slope in slopes]
    f1, f2, rows = f1.detach(), f2.detach(), drawn.top.flatten(2)
    kernel, flat, gated = rows.mT @ rows, drawn.weights.flatten(1), drawn.gated(activation)

    def both(alpha: Tensor, kernel: Tensor = kernel, gated: Tensor = gated) -> tuple[Tensor, Tensor]:
        in_w = theory.modulated(kernel, contrastive_covariance(gated[:, 0], gated[:, 1], alpha), flat).view_as(
            drawn.weights
        )
        in_v = (rows @ contrastive_covariance(f1[:, 0], f1[:, 1], alpha)).view_as(drawn.top)
        return project(drawn.weights, in_w), in_v

    def gap(found: Tensor, reference: Tensor) -> Tensor:
        return relative(found, project(drawn.weights, reference))

    in_w, in_v = both(alpha)
    nce_w, nce_v = both(pair_weights("info_nce", f2[:, 0], f2[:, 1], temperature=tau))
    blocks = torch.kron(torch.eye(drawn.x.shape[3], dtype=DTYPE), torch.ones(2 * [drawn.weights.shape[2]], dtype=DTYPE))
    square = drawn.weights.clone().requires_grad_()
    outputs = torch.einsum("rvnp,rop->rvno", drawn.hidden(square, "quadratic"), rows)
    (misfit,) = torch.autograd.grad(energy(outputs[:, 0], outputs[:, 1], alpha).sum(), square)
    return {
        "filters": gap(in_w, true[0]),
        "top layer": relative(in_v, true[1]),
        "filters, InfoNCE": gap(nce_w, learned[0]),
        "top layer, InfoNCE": relative(nce_v, learned[1]),
        "broken: fields apart": gap(both(alpha, kernel * blocks)[0], true[0]),
        "broken: no gates": gap(both(alpha, gated=drawn.gated("linear"))[0], true[0]),
        "square, halved": gap(both(alpha, gated=drawn.gated("quadratic"))[0] / 2, misfit),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Theorem 4


def theorem4_gaps(count: int, seed: int) -> Gaps:
    r"""Theorem 4 on critical points with distinct filters: collinear gradients, and two paths from there.

    Inputs are fewer than ``K d``, so that their covariance has a kernel, and filters are chosen with
    :math:`b = C[x]\,\bar w = 0`, :math:`\bar w_k = \sum_m s_{km} w_{km} \ne 0`.  With ``s`` held fixed, ``b`` depends on the
    filters through :math:`\bar w` alone, so that the straight path to :math:`\bar w_k / \sum_m s_{km}` consists of critical
    points.  The paper's path first exchanges two filters without their :math:`s_{km}`; it does not.  Sizes of ``b`` are in
    units of its size where the filters are scaled one by one at random.

    ``sum of w b``: where ``s`` is the leading eigenvector of :math:`C[f_1]`, as after fast training of the top layer,
    :math:`\sum_k \bar w_k^\top b_k = \lambda_{\max}(C[f_1])`.  So all :math:`b_k` vanish only with the whole covariance, and
    the theorem's critical points are networks with constant outputs; :func:`linear_filters` has the others.
    """
    drawn = random_instances(count, seed, fields=3, filters=3, d=4, samples=8)
    replicas, k, m, d = drawn.weights.shape
    draw = torch.Generator().manual_seed(seed + 5)
    s = 0.3 + torch.rand(replicas, k, m, generator=draw, dtype=DTYPE)  # no sums that vanish
    alpha = torch.ones(replicas, 8, 8, dtype=DTYPE)
    x = drawn.x[:, :1].expand(-1, 2, -1, -1, -1).flatten(3)  # no augmentation: a covariance, of rank 7
    covariance = contrastive_covariance(x[:, 0], x[:, 1], alpha)

    def b(weights: Tensor, s: Tensor = s) -> Tensor:
        mean = (s[..., None] * weights).sum(2).flatten(1)
        return torch.einsum("rpq,rq->rp", covariance, mean).view(replicas, k, d)

    kernel = torch.linalg.eigh(covariance).eigenvectors[..., : k * d - 7]
    aim = torch.randn(replicas, k * d, 1, generator=torch.Generator().manual_seed(seed + 6), dtype=DTYPE)
    wanted = (kernel @ (kernel.mT @ aim)).view(replicas, k, d)  # whichever basis of the kernel LAPACK takes
    rest = (s[:, :, :-1, None] * drawn.weights[:, :, :-1]).sum(2)
    critical = torch.cat([drawn.weights[:, :, :-1], ((wanted - rest) / s[:, :, -1:])[:, :, None]], 2)
    scale = 0.5 + torch.rand(replicas, k, m, 1, generator=draw, dtype=DTYPE)
    unit = b(scale * critical).flatten(1).norm(dim=1)

    def largest(path: list[Tensor]) -> Tensor:
        sizes: list[Tensor] = [b(w).flatten(1).norm(dim=1) / unit for w in path]
        return torch.stack(sizes).amax(0)

    same = (wanted / s.sum(2, keepdim=True))[:, :, None].expand_as(critical)
    swapped = critical[:, :, [1, 0, *range(2, m)]]
    times = torch.linspace(0, 1, 9, dtype=DTYPE).tolist()
    f1 = drawn.hidden(drawn.weights, "linear")[:, :1].expand(-1, 2, -1, -1)
    values, vectors = torch.linalg.eigh(contrastive_covariance(f1[:, 0], f1[:, 1], alpha))
    leading = vectors[..., -1].view(replicas, k, m)
    mean = (leading[..., None] * drawn.weights).sum(2)
    other = s / s.flatten(1).norm(dim=1)[:, None, None]
    aside = (other[..., None] * drawn.weights).sum(2)
    blocks = covariance.view(-1, k, 1, d, k, 1, d).expand(-1, k, m, d, k, m, d)  # inputs repeated for each filter
    repeated, w, flat = blocks.reshape(-1, k * m * d, k * m * d), drawn.weights.flatten(1), s.flatten(1)
    lemma4 = theory.modulated(flat[:, :, None] * flat[:, None], repeated, w)
    rank_two = torch.randn(replicas, 2, k * m, generator=draw, dtype=DTYPE)
    slopes = s[..., None] * b(drawn.weights)[:, :, None]
    full = theory.modulated(rank_two.mT @ rank_two, repeated, w)
    return over_instances(
        {
            "collinear": _aside(slopes),
            "against Lemma 4": relative(slopes, lemma4.view_as(slopes)),
            "sum of w b": relative((mean * b(drawn.weights, leading)).sum((1, 2)), values[:, -1]),
            "critical": b(critical).flatten(1).norm(dim=1) / unit,
            "path to identical filters": largest([(1 - t) * critical + t * same for t in times]),
            "broken: printed path": largest([(1 - t / 2) * critical + t / 2 * swapped for t in times]),
            "broken: another unit vector": relative((aside * b(drawn.weights, other)).sum((1, 2)), values[:, -1]),
            "broken: S of rank two": _aside(full.view_as(slopes)),
            "broken: filters of unit length": _aside(project(drawn.weights, slopes)),
        }
    )


def _aside(vectors: Tensor) -> Tensor:
    """How far the vectors ``(R, K, M, d)`` of a field are from one line: second over first singular value, largest field."""
    values = torch.linalg.svdvals(vectors)
    share: Tensor = (values[..., 1] / values[..., 0]).amax(-1)
    return share


def linear_filters(count: int, seed: int, steps: int = 4000) -> Tensor:
    r"""Smallest :math:`|\cos|` between two filters of a field at the end of linear training, ``(R,)``.

    Filters keep unit length, and the top layer has converged at each step, :math:`S = ss^\top` with the leading eigenvector
    of :math:`C[f_1]`.  At a critical point each filter with :math:`s_{km} \ne 0` is :math:`\pm b_k/\|b_k\|`, so this tends to
    1.
    """
    drawn = random_instances(count, seed, filters=3, samples=40)
    x, w = drawn.x[:, 0] - drawn.x[:, 0].mean(1, keepdim=True), drawn.weights.clone()
    for _ in range(steps):
        f = torch.einsum("rnkd,rkmd->rnkm", x, w)
        flat = f.flatten(2)
        s = torch.linalg.eigh(flat.mT @ flat).eigenvectors[..., -1].view(f.shape[0], *f.shape[2:])
        b = torch.einsum("rnkd,rn->rkd", x, torch.einsum("rnkm,rkm->rn", f, s)) / x.shape[1]
        w = w + s[..., None] * b[:, :, None]
        w = w / w.norm(dim=-1, keepdim=True)
    cosines = torch.einsum("rkmd,rknd->rkmn", w, w).abs()
    return cosines.flatten(1).amin(1)


# ---------------------------------------------------------------------------------------------------------------------
# Lemma 6


def lemma6_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 166 against autograd through a BatchNorm whose deviation is held constant (Definition 5).

    ``mean detached`` holds too: the contrastive covariance is made of differences, in which a common mean cancels, so that it
    makes no difference whether the gradient flows through it.
    """
    drawn = random_instances(count, seed)
    replicas, samples = drawn.x.shape[0], drawn.x.shape[2]
    alpha = torch.rand(replicas, samples, samples, generator=torch.Generator().manual_seed(seed + 9), dtype=DTYPE)
    rows = drawn.top.flatten(2)

    def slopes(mean: str, std: str) -> tuple[Tensor, Tensor]:
        w, v = drawn.weights.clone().requires_grad_(), rows.clone().requires_grad_()
        f1 = batch_normalize(drawn.hidden(w, "relu"), mean=mean, std=std, dims=(1, 2), eps=EPS)
        f2 = torch.einsum("rvnp,rop->rvno", f1, v)
        in_w, in_v = torch.autograd.grad(energy(f2[:, 0], f2[:, 1], alpha).sum(), (w, v))
        return in_w, in_v

    true = slopes("normal", "detach")
    f1 = drawn.hidden(drawn.weights, "relu")
    sigma = (f1.flatten(1, 2).var(1, correction=0) + EPS).sqrt()
    scaled = f1 / sigma[:, None, None]
    gated = drawn.gated("relu").unflatten(3, (-1, drawn.x.shape[-1]))
    gated_bn = (gated / sigma[:, None, None, :, None]).flatten(3)
    kernel, flat = rows.mT @ rows, drawn.weights.flatten(1)

    def formula(gated: Tensor) -> Tensor:
        return theory.modulated(kernel, contrastive_covariance(gated[:, 0], gated[:, 1], alpha), flat).view_as(
            drawn.weights
        )

    found = formula(gated_bn)
    return over_instances(
        {
            "filters": relative(found, true[0]),
            "top layer": relative(rows @ contrastive_covariance(scaled[:, 0], scaled[:, 1], alpha), true[1]),
            "mean detached": relative(slopes("detach", "detach")[0], true[0]),
            "broken: deviation differentiated": relative(found, slopes("normal", "normal")[0]),
            "broken: not divided": relative(formula(gated.flatten(3)), true[0]),
        }
    )


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
    true = theory.covariance(cases, chance.sum(1))
    found, prior = theory.parts(drawn), drawn.prior[:, :, None]
    means = found.means.flatten(2)
    others = (torch.einsum("rc,rcp->rp", drawn.prior, means)[:, None] - prior * means) / (1 - prior)
    delta = means - others

    def between(shares: Tensor) -> Tensor:
        return torch.einsum("rc,rcp,rcq->rpq", shares, delta, delta)

    blocks = theory.block_diagonal(found.within)
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
            blocks + between(p * (1 - p) ** 2), theory.covariance(cases, coupled / coupled.sum(1, keepdim=True))
        ),
    }


def theorem5_gaps(count: int, seed: int) -> Gaps:
    r"""Theorem 5 against autograd of :math:`\frac12\lambda_{\max}(V[f_1])`, the energy once the top layer has converged.

    ``printed factor`` is the second form that the proof gives for :math:`\delta_k`,
    :math:`1 - p_0 p_1 b_k^2/(\lambda - d_k)`; it lacks :math:`1/(Z^2(\lambda - d_k))`, with which it is ``second form``.
    As printed it is the ``share`` of the other fields in the class term, :math:`\delta_k/(p_0 p_1 s_k^2 + \delta_k)`.
    ``as if alone``: :math:`s_k^2 P^\perp (L_k + \frac{p_0 p_1}{\pi_k} \Delta_k \Delta_k^\top) w_k` with
    :math:`\pi_k = p_0 p_1 b_k^2/(\lambda - d_k)`.
    """
    drawn = theory.balanced(random_population(count, seed, fields=4))
    w = drawn.weights[:, :, 0].clone().requires_grad_()
    outputs = torch.einsum("rknd,rkd->rkn", drawn.points, w).relu()
    cases, chance = drawn.listed(outputs[..., None])
    values, vectors = torch.linalg.eigh(theory.covariance(cases, chance.sum(1)))
    (slope,) = torch.autograd.grad(0.5 * values[:, -1].sum(), w)
    w = w.detach()
    found = theory.parts(drawn)
    m = theory.modulation(found, drawn.prior, w)
    leading = vectors[:, :, -1].detach()
    leading = leading * (leading * m.s).sum(1, keepdim=True).sign()
    a = found.within + m.pq[..., None, None] * m.delta[..., :, None] * m.delta[..., None, :]

    straight = m.s.square()[..., None] * torch.einsum("rkpq,rkq->rkp", a, w)

    def flow(factor: Tensor) -> Tensor:
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


def any_layer_gaps(count: int, seed: int) -> Gaps:
    r"""For any top layer, :math:`S_{kk} P^\perp (L_k + \frac{p_0 p_1}{\pi_k} \Delta_k \Delta_k^\top) w_k` with
    :math:`\pi_k = S_{kk} b_k / (S b)_k` against autograd of :math:`\frac12 \operatorname{tr} V[f_2]`, three outputs.

    Shares of less than a fiftieth in size are left out: they divide.  Broken: the share of a converged top layer, and none.
    """
    drawn = theory.balanced(random_population(count, seed, fields=4))
    draw = torch.Generator().manual_seed(seed + 1)
    top = torch.randn(count, 3, 4, generator=draw, dtype=DTYPE)
    w = drawn.weights[:, :, 0].clone().requires_grad_()
    outputs = torch.einsum("rknd,rkd->rkn", drawn.points, w).relu()
    cases, chance = drawn.listed(outputs[..., None])
    s = top.mT @ top
    (slope,) = torch.autograd.grad(0.5 * (s * theory.covariance(cases, chance.sum(1))).sum(), w)
    w, found = w.detach(), theory.parts(drawn)
    m = theory.modulation(found, drawn.prior, w)
    own = s.diagonal(dim1=1, dim2=2)
    share = own * m.b / (s @ m.b[..., None])[..., 0]

    def flow(share: Tensor) -> Tensor:
        within = torch.einsum("rkpq,rkq->rkp", found.within, w)
        return project(w, own[..., None] * (within + (m.pq / share * m.b)[..., None] * m.delta))

    kept = (share.abs() > 0.02).all(1)
    converged = m.pq * m.b.square() / (m.top[:, None] - m.d)
    true = project(w, slope)
    formulas = {"flow": share, "broken: converged": converged, "broken: alone": torch.ones_like(share)}
    gaps = {name: relative(flow(each), true)[kept] for name, each in formulas.items()}
    pushed = ((share < 0) | (share > 1)).any(1).double()
    return over_instances(gaps) | {"pushed": float(pushed.mean())}


def corollary3_gaps(count: int, seed: int) -> Gaps:
    r"""Corollary 3 against autograd of :math:`\frac12\operatorname{tr}V[f_2]`, with the deviations :math:`\sigma_k` and the
    top layer held constant.

    ``d formula``: :math:`d_k^{bn} = 1/(1 + p_0 p_1 b_k^2/d_k)`.  ``scale of a field``: :math:`d^{bn}` before and after every
    field's input is multiplied by a factor of its own, which multiplies :math:`d_k` by its square.
    """
    drawn = random_population(count, seed, fields=4)
    w = drawn.weights[:, :, 0]
    found = theory.parts(drawn)
    plain, scaled = theory.modulation(found, drawn.prior, w), theory.normalized(found, drawn.prior, w)
    m = theory.modulation(scaled, drawn.prior, w)
    sigma = (plain.d + plain.pq * plain.b.square()).sqrt()

    def gradient(deviation_constant: bool) -> Tensor:
        v = w.clone().requires_grad_()
        f = torch.einsum("rknd,rkd->rkn", drawn.points, v).relu()
        cases, chance = drawn.listed(f[..., None])
        spread = theory.covariance(cases, chance.sum(1))
        size = sigma if deviation_constant else spread.diagonal(dim1=1, dim2=2).sqrt()
        top = m.s / size
        (slope,) = torch.autograd.grad(0.5 * torch.einsum("rk,rkl,rl->", top, spread, top), v)
        return slope

    a = scaled.within + m.pq[..., None, None] * m.delta[..., :, None] * m.delta[..., None, :]
    straight = m.s.square()[..., None] * torch.einsum("rkpq,rkq->rkp", a, w)
    flow = straight + (m.factor * m.b)[..., None] * m.delta
    factors = torch.rand(count, 4, 1, 1, generator=torch.Generator().manual_seed(seed + 3), dtype=DTYPE) * 4 + 0.2
    louder = theory.parts(Population(drawn.prior, drawn.points * factors, drawn.chances, drawn.weights))
    unit = (m.d + m.pq * m.b.square() - 1).abs().amax(1)
    return over_instances(
        {
            "dynamics": relative(flow, gradient(True)),
            "lambda below d": (m.d.amax(1) - m.top).clamp_min(0),
            "negative factor": (-m.factor).amax(1).clamp_min(0),
            "variance one": unit,
            "d formula": relative(1 / (1 + plain.pq * plain.b.square() / plain.d), m.d),
            "scale of a field": relative(
                theory.modulation(theory.normalized(louder, drawn.prior, w), drawn.prior, w).d, m.d
            ),
            "broken: scale without BatchNorm": relative(theory.modulation(louder, drawn.prior, w).d, plain.d),
            "broken: deviation differentiated": relative(flow, gradient(False)),
            "broken: not divided": relative(
                plain.s.square()[..., None] * torch.einsum("rkpq,rkq->rkp", found.within, w), flow
            ),
        }
    )


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
    end = theory.blow_up_time(start, b)
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
    start = torch.randn(count, d, generator=draw, dtype=DTYPE)
    start = start / start.norm(dim=1, keepdim=True)
    even = torch.full((d,), b, dtype=DTYPE)
    plain = winners(start, even, unit=True)
    positive = (start > 0).any(1)
    shares: dict[float, dict[str, Tensor]] = {}
    for c in advantages:
        shifts = even.clone()
        shifts[0] += c
        end = flow_ends(start, shifts, unit=True)
        unit, free = dominant_component(end), winners(start, shifts, unit=False)
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


CASES = (1.6, 1.0, 0.5, 0.1, 0.0, -0.1, -0.5, -0.9, -1.0, -1.4, -2.5)
"""Advantages that reach every case of Eq. 155, and those it leaves out."""


def probability_scores(samples: int, seed: int) -> dict[str, float]:
    """Eq. 155 in all cases against Monte Carlo, the largest distance in standard errors; and against quadrature, the largest gap.

    ``broken``: the probability of the case next to it, ``1/d`` throughout, and the factor of a half forgotten.
    """
    scores, gaps, same, whole = [], [], [], []
    for i, d in enumerate((2, 3, 5, 10)):
        factors = torch.zeros(len(CASES), d, dtype=DTYPE)
        factors[:, 0] = torch.tensor(CASES, dtype=DTYPE)
        exact = torch.tensor([theory.win_probability(case, d) for case in CASES], dtype=DTYPE)
        error = (exact * (1 - exact) / samples).sqrt().clamp_min(1 / samples)
        found = sampled_probabilities(factors, samples, seed + i)[:, 0]
        scores.append((found - exact).abs() / error)
        gaps.append((theory.win_probabilities(factors)[:, 0] - exact).abs())
        same.append(((found - 1 / d).abs() / error).amax())
        whole.append(((found - 2 * exact).abs() / error).amax())
    return {
        "standard errors": float(torch.cat(scores).max()),
        "quadrature": float(torch.cat(gaps).max()),
        "broken: 1/d": float(torch.stack(same).min()),
        "broken: half forgotten": float(torch.stack(whole).min()),
    }


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
    r"""Eq. 156, :math:`\frac12(\epsilon_{c(1)} - \epsilon_{c(2)})`, and Eq. 157 at random factors on ``[0, spread]``.

    The least slack, how tight they get, and how often each is violated.  With ``mended`` the former is cut at a gap of 1 and the
    latter's bracket at 0; these hold for any factors.
    """
    draw = torch.Generator().manual_seed(seed)
    factors = spread * torch.rand(count, d, generator=draw, dtype=DTYPE)
    exact = theory.win_probabilities(factors)
    ordered = exact.gather(1, factors.argsort(1, descending=True))
    top, high = factors.topk(2, dim=1).values, _upper_bounds(factors)
    low = (top[:, 0] - top[:, 1]) / 2
    below, above = ordered[:, 0] - low, high - ordered[:, 1:]
    mended_low, mended_high = low.clamp_max(0.5), high.clamp_min(0)
    return {
        "lower": below.min().item(),
        "upper": above.min().item(),
        "lower violated": (below < -1e-12).double().mean().item(),
        "upper violated": (above < -1e-12).any(1).double().mean().item(),
        "lower mended": (ordered[:, 0] - mended_low).min().item(),
        "upper mended": (mended_high - ordered[:, 1:]).min().item(),
        "upper tightest": (ordered[:, 1:] / mended_high.clamp_min(1e-300)).where(mended_high > 0, 0).max().item(),
    }
