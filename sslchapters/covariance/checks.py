r"""Theorem 3, Eq. 56, Theorem 4, Eq. 7, Eq. 80 and Corollary 1 on random finite populations, against enumeration and autograd.

Each ``*_gaps`` function returns relative errors by name, worst over many random networks and all their layers; names that
start with ``broken:`` belong to variants that must not agree, and hold the *smallest* error over the instances.

The independent answer is an expectation over a finite population, by enumeration: ``N`` samples have ``V`` equally likely views
each.  A *tuple* is an anchor view, a positive view of the same sample and ``H`` negative views; :func:`all_tuples` lists every one
of them.  The gradient of the mean loss over tuples is then plain autograd on the network's outputs: no connection, no covariance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import linregress
from torch import Tensor, nn

from sslbook.losses import pairs
from sslbook.networks.small import mlp
from sslbook.operator.covariance import (
    CovarianceOperator,
    covariance_operator,
    intra_operator,
    pair_weights,
    relative_gap,
)
from sslbook.operator.layer import Layer, connection, open_layer, vec
from sslbook.operator.view_weights import Mixing
from sslchapters.checks import Comparison, Gaps, gap, over
from sslchapters.instances import DEGREE_ONE, all_tuples, in_weight, instance_seeds, random_network

TupleLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``loss(r_pos (T,), r_neg (T, H), r_clean (T, H)) -> (T,)``; ``r_clean`` are distances between un-augmented samples."""


def expected_gradient(
    net: nn.Module,
    layer: str,
    views: Tensor,
    loss: TupleLoss,
    tuples: Tensor,
    *,
    clean: Tensor | None = None,
    both: bool = False,
    normalize: bool = False,
) -> Tensor:
    r"""Autograd gradient, in the layer's weight, of the mean loss over ``tuples``; the weight's shape.

    both: back-propagate into the anchor *and* its partners (what SimCLR does); otherwise into the anchor's tower only (the paper's
    Lemma 2).  clean: un-augmented samples ``(N, ...)`` for ``r_clean``, always without gradient; the first views unless given.
    """
    of_weight, weight = in_weight(net, layer)
    weight.requires_grad_()

    def outputs(x: Tensor) -> Tensor:
        f = of_weight(weight, x)
        return f / f.norm(dim=1, keepdim=True) if normalize else f

    f, fixed = outputs(views.flatten(0, 1)), outputs(views[:, 0] if clean is None else clean).detach()
    partner = f if both else f.detach()
    anchor, positive, negative = f[tuples[:, :1]], partner[tuples[:, 1:2]], partner[tuples[:, 2:]]
    r_pos = pairs.half_squared_distance(anchor, positive)[:, 0]
    r_neg = pairs.half_squared_distance(anchor, negative)
    sample = fixed[tuples // views.shape[1]]
    r_clean = pairs.half_squared_distance(sample[:, :1], sample[:, 2:])
    (gradient,) = torch.autograd.grad(loss(r_pos, r_neg, r_clean).mean(), weight)
    return gradient


def mean_estimate(k: Tensor, views: int) -> Tensor:
    r"""The operator that is estimated from two images with ``views`` views each, its mean over all draws, ``(n, n)``.

    ``k (N, V, n, n_L)`` are the connections.  Images and views are drawn with replacement, :math:`m_i` is the mean of the
    connections of image i's drawn views, and the estimate is the covariance of the two with Bessel's correction,
    :math:`\frac12 (m_1 - m_2)(m_1 - m_2)^T`.
    """
    picks = torch.cartesian_prod(*[torch.arange(k.shape[1])] * views).reshape(-1, views)
    means = k[:, picks].mean(2).flatten(0, 1)  # (N V^views, n, n_L)
    total = k.new_zeros(k.shape[2], k.shape[2])
    for mean in means:  # one at a time: a table of all pairs would take N^2 V^(2 views) matrices
        gaps = (mean - means).movedim(1, 0).flatten(1)
        total += gaps @ gaps.T
    return total / (2 * len(means) ** 2)


def simple_loss(beta: float = 0.0) -> TupleLoss:
    r""":math:`L^\beta_{simp} = (1 + \beta) r_+ - r_-`."""
    return lambda p, n, _: pairs.simple(p, n, beta=beta)


def triplet_loss(tau: float, margin: float = 0.0) -> TupleLoss:
    r""":math:`L^\tau_{tri}`."""
    return lambda p, n, _: pairs.soft_triplet(p, n, temperature=tau, margin=margin)


def nce_loss(tau: float) -> TupleLoss:
    r""":math:`L^\tau_{nce}`."""
    return lambda p, n, _: pairs.info_nce(p, n, temperature=tau)


@dataclass(frozen=True)
class Population:
    """A random network, one of its layers, and ``(N, V, ...)`` views; ``clean (N, ...)`` are the un-augmented samples."""

    net: nn.Sequential
    layer: str
    clean: Tensor
    views: Tensor

    def operator(self, **options: Any) -> CovarianceOperator:
        """The layer's operator; options as for :func:`sslbook.operator.covariance.covariance_operator`."""
        return covariance_operator(self.net, self.layer, self.views, **options)

    def step(self, loss: TupleLoss, negatives: int = 1, *, distinct: bool = False, **options: bool) -> Tensor:
        """Minus the enumerated gradient of the mean loss over all tuples; options as for :func:`expected_gradient`."""
        samples, views = self.views.shape[:2]
        tuples = all_tuples(samples, views, negatives, distinct=distinct)
        return -expected_gradient(self.net, self.layer, self.views, loss, tuples, clean=self.clean, **options)


def populations(
    networks: int, seed: int, *, samples: int = 4, views: int = 3, strength: float = 0.5
) -> Iterator[Population]:
    """Every top-level layer of ``networks`` random networks whose outputs don't all vanish, each with its own random population."""
    for s in instance_seeds(networks, seed):
        net, shape = random_network(s, DEGREE_ONE)
        draw = torch.Generator().manual_seed(s)
        clean = torch.randn(samples, *shape, generator=draw, dtype=torch.float64)
        noise = torch.randn(samples, views, *shape, generator=draw, dtype=torch.float64)
        population = clean[:, None] + strength * noise
        if bool((net(population.flatten(0, 1)).norm(dim=1) == 0).any()) or bool((net(clean).norm(dim=1) == 0).any()):
            continue  # a dead output has no direction to normalise
        for name, module in net.named_children():
            if isinstance(module, Layer):
                yield Population(net, name, clean, population)


@over(populations, error=gap)
def theorem3_gaps(p: Population) -> Iterator[Comparison]:
    r"""Minus the enumerated gradient of :math:`L_{simp}` against :math:`V_x[\bar K] vec(W)`."""
    op = p.operator()
    update, weight, n = op.update(), vec(op.opened.weight), len(p.views)
    one, both = p.step(simple_loss()), p.step(simple_loss(), both=True)
    distinct = p.step(simple_loss(), distinct=True)
    k = op.opened.connections().unflatten(0, (n, -1)).mean(1)
    unaveraged = covariance_operator(p.net, p.layer, p.views.flatten(0, 1)[:, None])
    yield "one tower", update, one
    yield "both towers, doubled", 2 * update, both
    yield "distinct negatives, N/(N-1)", n / (n - 1) * update, distinct
    yield "broken: not centred", torch.einsum("ino,imo,m->n", k, k, weight) / n, vec(one)
    yield "broken: views not averaged", unaveraged.update(), one
    yield "broken: both towers, not doubled", update, both
    yield "broken: distinct negatives, not corrected", update, distinct


def _affine(networks: int, seed: int) -> Iterator[tuple[nn.Sequential, str, Tensor]]:
    """ReLU networks with biases, the two layers of each that lie below an activation, and views."""
    for s in instance_seeds(networks, seed):
        net = mlp((5, 7, 6, 3), bias=True, seed=s)
        views = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(s), dtype=torch.float64)
        yield from ((net, layer, views) for layer in ("0", "2"))


@over(_affine, error=gap)
def affine_gaps(instance: tuple[nn.Sequential, str, Tensor]) -> Iterator[Comparison]:
    r"""A ReLU network with biases: ``OP vec(W)`` fails, :math:`Cov_x[\bar K_l, \bar f_L]` (:meth:`exact_update`) holds."""
    op = covariance_operator(*instance)
    truth = -expected_gradient(*instance, simple_loss(), all_tuples(4, 3))
    yield "exact update", op.exact_update(), truth
    yield "broken: operator", op.apply(op.opened.weight), truth


def eigenvalue_margin(networks: int = 20, seed: int = 0, beta: float = 0.0) -> float:
    r"""The smallest eigenvalue of :math:`-\beta EV + VE` over the largest in modulus, smallest over random instances."""
    margins = []
    for p in populations(networks, seed):
        values = torch.linalg.eigvalsh(p.operator(beta=beta).dense())
        margins.append(float(values[0] / values.abs().max()))
    return min(margins)


def power(size: Sequence[float], error: Sequence[float]) -> float:
    """The power of ``size`` with which ``error`` grows: the least-squares slope of their logarithms."""
    return float(linregress(np.log(size), np.log(error)).slope)


def monte_carlo(counts: Sequence[int], replicates: int, seed: int, *, averaged: bool = True) -> list[float]:
    r"""Root-mean-square relative error of the batch gradient of :math:`L_{simp}` (one tower) on ``count`` random tuples, per count.

    averaged: against the operator's step; else against that of the covariance of all views.  All replicates of a count go
    through one batched VJP.
    """
    net = mlp((6, 10, 8, 4), seed=seed)
    draw = torch.Generator().manual_seed(seed)
    views = torch.randn(8, 1, 6, generator=draw, dtype=torch.float64)
    views = views + 0.5 * torch.randn(8, 4, 6, generator=draw, dtype=torch.float64)
    op = covariance_operator(net, "2", views)
    y = op.opened.output
    truth = (op if averaged else covariance_operator(net, "2", views.flatten(0, 1)[:, None])).update()
    errors = []
    for count in counts:
        tuples, draw = (replicates * count,), torch.Generator().manual_seed(seed + count)
        image = 4 * torch.randint(8, tuples, generator=draw)
        anchor, positive = (image + torch.randint(4, tuples, generator=draw) for _ in range(2))
        # minus the gradient of r+ - r- in the anchor's output
        pull = (y[positive] - y[torch.randint(32, tuples, generator=draw)]) / count
        where = anchor + len(y) * torch.arange(replicates).repeat_interleave(count)
        cotangent = torch.zeros(replicates * len(y), y.shape[1], dtype=y.dtype).index_add_(0, where, pull)
        steps = op.opened.vjp(cotangent.unflatten(0, (replicates, -1)))
        errors.append(float(((steps - truth).flatten(1).square().sum(1).mean()).sqrt() / truth.norm()))
    return errors


@over(populations, error=gap)
def normalized_gaps(p: Population) -> Iterator[Comparison]:
    r"""Eq. 56: minus the enumerated gradient of :math:`L_{simp}` on l2-normalised outputs against the cross-covariance."""
    op = p.operator(normalize=True)
    one, both = (p.step(simple_loss(), normalize=True, both=both) for both in (False, True))
    update, dense, weight = op.update(), op.dense(), vec(op.opened.weight)
    k = op.opened.connections() / op.opened.output.norm(dim=1)[:, None, None]
    k = k.unflatten(0, op.population).mean(1)
    centred = k - k.mean(0)
    unprojected = torch.einsum("ino,imo,m->n", centred, centred, weight) / len(k)
    if one.norm() < 1e-6 * unprojected.norm():
        return  # all outputs are parallel: the projection leaves nothing but rounding
    yield "one tower", update, one
    yield "both towers, doubled", 2 * update, both
    yield "transpose on the weights", (dense.T @ weight).norm() / one.norm(), None
    yield "broken: operator on the weights", (dense @ weight).norm() / one.norm(), None
    yield "broken: projection left out", unprojected, vec(one)
    yield "broken: output not normalised", p.operator().update(), one
    yield "broken: transpose", dense.T @ weight, vec(one)


@over(partial(populations, views=1, strength=0.0, samples=5), error=gap)
def weighted_gaps(p: Population) -> Iterator[Comparison]:
    r"""Theorem 4 without augmentation (V = 1, :math:`\theta = 0`): triplet and InfoNCE, one tower and both."""
    tau = 2.0
    for name, loss, margin in (("soft_triplet", triplet_loss(tau, 0.5), 0.5), ("info_nce", nce_loss(tau), 0.0)):
        op = p.operator(loss=name, temperature=tau, margin=margin, clean=p.clean)
        one, both = p.step(loss), p.step(loss, both=True)
        mean = pair_weights(p.net, p.clean, loss=name, temperature=tau, margin=margin).mean()
        yield f"{name}, one tower", op.update(), one
        yield f"{name}, both towers, doubled", 2 * op.update(), both
        yield "broken: constant weight", mean * p.operator().update(), one
        yield "broken: half forgotten", 2 * op.update(), one


@over(partial(populations, samples=3, views=2), error=gap)
def exact_loss_gaps(p: Population) -> Iterator[Comparison]:
    r"""Eq. 7: :math:`L^{\tau,exact}` with H negatives has the operator :math:`H \cdot \frac12 V^\xi`, and no residue.

    Broken: weights from augmented distances (as the released code does), and weights that are differentiated.
    """
    tau = 2.0
    exact: TupleLoss = partial(pairs.exact, temperature=tau)
    weight = partial(pairs.pair_weight, loss="info_nce", temperature=tau)
    update = p.operator(loss="info_nce", temperature=tau, clean=p.clean).update()
    if update.norm() < 1e-6 * p.operator().update().norm():
        return  # all samples are far apart and the force vanishes: nothing but rounding is left
    for h in (1, 2, 3):
        yield f"H = {h}, one tower", h * update, p.step(exact, h)
    yield "both towers, doubled", 2 * update, p.step(exact, both=True)
    yield "broken: weights from augmented distances", update, p.step(lambda p, n, _: exact(p, n, n))
    differentiated = p.step(lambda p, n, _: (weight(n) * (p[:, None] - n)).sum(-1))
    yield "broken: gradient through the weights", update, differentiated


@over(populations, error=gap)
def extended_gaps(p: Population) -> Iterator[Comparison]:
    r"""Corollary 1: :math:`L^\beta_{simp}` against :math:`-\beta EV + VE`, for several ``beta``."""
    inter, intra = p.operator().update(), intra_operator(p.net, p.layer, p.views).update()
    for beta in (-1.5, -0.5, 0.2, 1.0):
        op, truth = p.operator(beta=beta), p.step(simple_loss(beta))
        yield "corollary", op.update(), truth
        yield "broken: sign of beta", inter + beta * intra, truth
        yield "broken: EV left out", inter, truth


# --- Many negatives: where the symmetry of Theorem 4 breaks through one tower, and holds through both (Eq. 80) -------


def joint_weights(distances: Tensor, negatives: int, tau: float) -> Tensor:
    r"""Mean weight :math:`\Xi_{ij} = N\, E[\sum_k \xi_k 1(x_k = x_j) \mid x = x_i]` of a pair under H negatives, ``(N, N)``.

    ``distances`` are :math:`r(x_i, x_j)`, ``(N, N)``; all :math:`N^H` draws of negatives are listed.  Symmetric for H = 1 only:
    each weight :math:`\xi_k = \frac1\tau e^{-r_k/\tau} / (1 + \sum_j e^{-r_j/\tau})`, that is :math:`-\partial L/\partial r_{k-}`
    of `info_nce` at :math:`r_+ = 0`, depends on all ``H`` distances, which is what stops Theorem 4 at ``H = 1``.
    (Eq. 80 of [tian2020] as printed lacks the minus sign of the derivative and the factor :math:`1/\tau`, and has
    :math:`\|x - x'_k\|^2` for :math:`r_k`.)
    """
    n = len(distances)
    draws = torch.cartesian_prod(*[torch.arange(n)] * negatives).reshape(-1, negatives)
    loss, near = partial(pairs.info_nce, temperature=tau), torch.zeros(n, len(draws), dtype=distances.dtype)
    xi = -pairs.partials(loss, near, distances[:, draws]).neg  # (N, N^H, H)
    total = torch.zeros(n, n, dtype=distances.dtype)
    return total.index_add_(1, draws.flatten(), xi.flatten(1)) * (n / len(draws))


def many_negatives(negatives: int, *, seed: int = 0) -> Gaps:
    r"""InfoNCE's operator with H negatives, as relative numbers, on one leaky-ReLU network without augmentation.

    one_tower: enumerated one-tower gradient against :math:`OP\, vec(W)` with the non-symmetric weights (an identity).
    symmetrised: the same against the symmetric operator (what Eq. 67 would give): the break of the symmetry trick.
    both_towers: enumerated two-tower gradient against twice the symmetric operator (an identity for every H).
    without_tau, without_half: the last with Eq. 80's weights as printed, lacking 1/tau, or the half of :math:`r`.
    """
    samples, tau = 5, 2.0
    net = mlp((4, 8, 6, 3), "leaky_relu", seed=seed)
    clean = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    views, layer = clean[:, None], "2"
    opened = open_layer(net, layer, clean)
    distances = pairs.half_squared_distance(opened.output[:, None], opened.output[None])

    def operator(r: Tensor, *, symmetric: bool) -> CovarianceOperator:
        xi = joint_weights(r, negatives, tau)
        return CovarianceOperator(opened, (samples, 1), Mixing(weights=0.5 * (xi + xi.T) if symmetric else xi))

    skew, even = operator(distances, symmetric=False), operator(distances, symmetric=True)
    tuples = all_tuples(samples, 1, negatives)
    one = -expected_gradient(net, layer, views, nce_loss(tau), tuples)
    both = -expected_gradient(net, layer, views, nce_loss(tau), tuples, both=True)
    return {
        "one_tower": relative_gap(vec(skew.update()), vec(one)),
        "symmetrised": relative_gap(vec(even.update()), vec(one)),
        "both_towers": relative_gap(vec(2 * even.update()), vec(both)),
        "without_tau": relative_gap(vec(2 * tau * even.update()), vec(both)),
        "without_half": relative_gap(vec(2 * operator(2 * distances, symmetric=True).update()), vec(both)),
    }


# --- The operator beside the neural tangent kernel: two Gram matrices of the same connections (A-NTK) ----------------


def kernel_comparison(samples: int, *, widths: tuple[int, ...] = (5, 6, 4, 2), seed: int = 0) -> Gaps:
    r"""Compare :math:`V_x[\bar K_l]` (``n x n``) with kernels :math:`K_l(x)^T K_l(x')` (``N n_L x N n_L``) of a ReLU network.

    operator_*, kernel_*: of a layer, on the samples' first views.  network_*: of the whole network's kernel.  Ranks at a relative
    cut of 1e-10.  spectrum_gap: relative gap between the eigenvalues of the operator and of the layer's kernel, averaged over views
    and centred over samples, over N.
    uncentred_gap, unaveraged_gap: the same without centring, and with first views in place of averages.
    """
    layer, views = "2", 3
    net = mlp(widths, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, widths[0], generator=draw, dtype=torch.float64)
    x = x + 0.3 * torch.randn(samples, views, widths[0], generator=draw, dtype=torch.float64)
    k = {
        name: connection(net, name, x.flatten(0, 1)).unflatten(0, (samples, views))
        for name, module in net.named_children()
        if isinstance(module, Layer)
    }
    first, mean = k[layer][:, 0], k[layer].mean(1)
    operator = torch.linalg.eigvalsh(covariance_operator(net, layer, x).dense())
    kernel, centred = _kernel(first), _kernel(mean - mean.mean(0))
    network = _kernel(torch.cat([each[:, 0] for each in k.values()], 1))

    def gap(values: Tensor) -> float:
        count = min(len(operator), len(values))
        return relative_gap(operator.flip(0)[:count], values.flip(0)[:count] / samples)

    sizes: Gaps = {"spectrum_gap": gap(centred), "uncentred_gap": gap(_kernel(mean))}
    for name, values in {"operator": operator, "kernel": kernel, "network": network}.items():
        sizes |= {f"{name}_size": len(values), f"{name}_rank": int((values > 1e-10 * values.max()).sum())}
    return sizes | {"unaveraged_gap": gap(_kernel(first - first.mean(0)))}


def _kernel(k: Tensor) -> Tensor:
    """Eigenvalues of the kernel of connections ``(N, n, n_L)``, ascending."""
    rows = k.movedim(2, 1).flatten(0, 1)
    return torch.linalg.eigvalsh(rows @ rows.T)


# --- The residue theta of Theorem 4: what augmentation adds to the weighted covariance, exactly, and the bounds on it ---
#
# With one negative, the expected one-tower step is OP vec(W) with
#
#     OP = E[F K(x1) (K(x+) - K(x-))^T] = 1/2 V^xi[Kbar(x) - Kbar(x')] + theta,      F = -dL/dr_- at the augmented distances.
#
# Both terms are matrices over a finite population, so that theta is a difference of two known matrices.  The paper's bound (Eq. 79)
# is computed beside a corrected one: its proof bounds E||f(x_1) - f(x)||^2 by the variance tr V_aug[f|x] and forgets the squared
# bias c_0(x)^2.


@dataclass(frozen=True)
class Residue:
    r"""Theorem 4's two terms and the bounds on the second; operators by their spectral norm.

    main: :math:`\|\frac12 V^\xi\|`.  theta: :math:`\|\theta\|`.
    step_rest: what the main term leaves unexplained of the expected step through both towers,
    :math:`\|\Delta W - 2\,main\,vec(W)\| / \|2\,main\,vec(W)\|`.
    printed, corrected: Eq. 79 as printed, and as it should be (with the sharper :math:`|\partial F| \le 1/(4\tau^2)`, and
    :math:`1/(4\tau)` for the triplet loss).  unbiased: the same with :math:`c_0 = 0`, a proof that forgets the bias altogether.
    """

    main: float
    theta: float
    step_rest: float
    printed: float
    corrected: float
    unbiased: float

    @property
    def relative(self) -> float:
        r""":math:`\|\theta\| / \|\frac12 V^\xi\|`."""
        return self.theta / self.main


def residue(
    net: nn.Module,
    layer: str,
    views: Tensor,
    clean: Tensor,
    *,
    tau: float,
    loss: str = "info_nce",
    margin: float = 0.0,
) -> Residue:
    """Measure theta and its bounds on the population ``views (N, V, ...)`` of ``clean (N, ...)``, by enumeration."""
    n, v = views.shape[:2]
    op = covariance_operator(net, layer, views, loss=loss, temperature=tau, margin=margin, clean=clean)
    k, y = op.opened.connections(), op.opened.output
    full, both = (torch.einsum("ano,ab,bmo->nm", k, c, k) for c in coefficients(y, n, v, loss, tau, margin))
    main, weight = op.dense(), vec(op.opened.weight)
    step = main @ weight
    with torch.no_grad():
        y0 = net(clean).flatten(1)
    norm = float(torch.linalg.matrix_norm(k, 2).max())
    slope = 1 / tau**2 if loss == "info_nce" else 1 / tau
    grouped = y.unflatten(0, (n, v))
    variance = (grouped - grouped.mean(1, keepdim=True)).square().sum(2).mean(1)  # tr V_aug[f | x]
    bias = (grouped.mean(1) - y0).norm(dim=1)  # c_0(x)
    apart = (y0[:, None] - y0[None]).norm(dim=2).mean(1)  # E_x' || f(x) - f(x') ||
    first = float((apart * (variance.sqrt() + bias)).mean())
    second = float((apart * (variance + bias**2).sqrt()).mean())
    centred = float((apart * variance.sqrt()).mean())
    spread, squared = float(variance.mean()), float((bias**2).mean())
    return Residue(
        main=float(torch.linalg.matrix_norm(main, 2)),
        theta=float(torch.linalg.matrix_norm(full - main, 2)),
        step_rest=float((both @ weight - 2 * step).norm() / (2 * step).norm()),
        printed=2 * norm**2 * slope * (2 * first + 3 * spread),
        corrected=2 * norm**2 * (slope / 4) * (2 * second + 3 * spread + 2 * squared),
        unbiased=2 * norm**2 * (slope / 4) * (2 * centred + 3 * spread),
    )


def coefficients(y: Tensor, n: int, v: int, loss: str, tau: float, margin: float) -> tuple[Tensor, Tensor]:
    r"""The expected step as ``sum_ab C_ab K_a K_b^T vec(W)``: ``C`` through one tower and through both, ``(N V, N V)`` each.

    One tower: :math:`E[F K(x_1)(K(x_+) - K(x_-))^T]`.  Both: :math:`E[F \{(K_1 - K_-)(K_1 - K_-)^T - (K_1 - K_+)(K_1 - K_+)^T\}]`.
    """
    r = 0.5 * (y[:, None] - y[None]).square().sum(2).unflatten(0, (n, v))
    same = r.unflatten(2, (n, v)).diagonal(dim1=0, dim2=2).movedim(2, 0)  # (N, V, V): r+ of the views of one sample
    exponent = (same[:, :, :, None] - r[:, :, None, :]) / tau  # (N, V anchors, V positives, N V negatives)
    force = torch.sigmoid(exponent + margin / tau) * (1.0 if loss == "soft_triplet" else 1 / tau)
    force = force / force.numel()
    attract = torch.zeros(n, v, n, v, dtype=y.dtype, device=y.device)
    index = torch.arange(n, device=y.device)
    attract[index, :, index, :] = force.sum(3)
    attract, repel = attract.reshape(n * v, n * v), force.sum(2).reshape(n * v, n * v)
    one = attract - repel
    return one, one + one.T + torch.diag(repel.sum(0) - attract.sum(0))


def population_with_strength(
    strength: float, *, symmetric: bool = False, alike: bool = False, seed: int = 0
) -> tuple[nn.Sequential, Tensor, Tensor]:
    r"""A network, five clean samples and their views ``x + s noise``: four directions, and their opposites if ``symmetric``.

    alike: the samples differ by a thousandth, and each has one view: nothing varies within an augmentation, which yet moves every
    sample, so that all there is is bias.
    """
    draw = torch.Generator().manual_seed(seed)
    clean = torch.randn(1 if alike else 5, 4, generator=draw, dtype=torch.float64)
    if alike:
        clean = clean + 1e-3 * torch.randn(5, 4, generator=draw, dtype=torch.float64)
    noise = torch.randn(5, 1 if alike else 4, 4, generator=draw, dtype=torch.float64)
    noise = torch.cat([noise, -noise], 1) if symmetric else noise
    return mlp((4, 8, 3), "leaky_relu", seed=seed), clean, clean[:, None] + strength * noise


BOUNDS = ("corrected", "printed", "unbiased")


def bound_margins(instances: int, *, tau: float, loss: str, margin: float, seed: int, alike: bool) -> dict[str, Tensor]:
    r"""Each of :data:`BOUNDS` over theta on random networks, populations and augmentation strengths, ``(instances,)`` each.

    1 would be tight, and less is no bound.  alike: as in :func:`population_with_strength`.
    """
    rows = []
    for s in range(seed, seed + instances):
        strength = 10 ** float(torch.empty(1).uniform_(-2, 0.3, generator=torch.Generator().manual_seed(s)))
        net, clean, views = population_with_strength(strength, symmetric=bool(s % 2) and not alike, alike=alike, seed=s)
        found = residue(net, "0", views, clean, tau=tau, loss=loss, margin=margin)
        rows.append([getattr(found, name) / found.theta for name in BOUNDS])
    return dict(zip(BOUNDS, torch.tensor(rows, dtype=torch.float64).T, strict=True))


@over(lambda count, seed: (population_with_strength(0.5, seed=s) for s in range(seed, seed + count)))
def step_gaps(instance: tuple[nn.Sequential, Tensor, Tensor]) -> Iterator[Comparison]:
    """The coefficients of the two terms against autograd on the enumerated loss, for both losses, one tower and both."""
    net, clean, views = instance
    tau = 0.7
    opened = covariance_operator(net, "0", views).opened
    k, weight, (n, v) = opened.connections(), vec(opened.weight), views.shape[:2]
    for name, loss, margin in (("info_nce", nce_loss(tau), 0.0), ("soft_triplet", triplet_loss(tau, 0.2), 0.2)):
        found = coefficients(opened.output, n, v, name, tau, margin)
        main = covariance_operator(net, "0", views, loss=name, temperature=tau, margin=margin, clean=clean)
        for c, both in zip(found, (False, True), strict=True):
            truth = -vec(expected_gradient(net, "0", views, loss, all_tuples(n, v), clean=clean, both=both))
            yield "step", torch.einsum("ano,ab,bmo,m->n", k, c, k, weight), truth
            yield "broken: main term alone", (1 + both) * main.matvec(weight), truth
