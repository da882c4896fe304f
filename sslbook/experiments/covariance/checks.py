r"""Theorem 3, Eq. 56, Theorem 4, Eq. 7, Eq. 80 and Corollary 1 on random finite populations, against enumeration and autograd.

Each ``*_gaps`` function returns relative errors by name, worst over many random networks and all their layers; names that
start with ``broken:`` belong to variants that must not agree, and hold the *smallest* error over the instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import linregress
from torch import Tensor, nn

from sslbook.experiments.covariance.reference import (
    TupleLoss,
    all_tuples,
    exact_loss,
    expected_gradient,
    nce_loss,
    random_tuples,
    simple_loss,
    triplet_loss,
)
from sslbook.losses import pairs
from sslbook.networks.small import instance_seeds, mlp, random_network
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator, pair_weights
from sslbook.operator.layer import Layer, connection, open_layer, vec
from sslbook.operator.view_weights import Mixing
from sslbook.stats.checks import Gaps, relative_gap, worst

DEGREE_ONE = ("linear", "relu", "leaky_relu", "conv", "residual")


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


def theorem3_gaps(networks: int = 20, seed: int = 0) -> Gaps:
    r"""Minus the enumerated gradient of :math:`L_{simp}` against :math:`V_x[\bar K] vec(W)`."""
    rows: list[Gaps] = []
    for p in populations(networks, seed):
        op = p.operator()
        update, n = op.update(), len(p.views)
        one, both = p.step(simple_loss()), p.step(simple_loss(), both=True)
        distinct = p.step(simple_loss(), distinct=True)
        k = op.opened.connections().unflatten(0, (n, -1)).mean(1)
        raw = torch.einsum("ino,imo,m->n", k, k, vec(op.opened.weight)) / n
        unaveraged = covariance_operator(p.net, p.layer, p.views.flatten(0, 1)[:, None]).update()
        rows.append(
            {
                "one tower": _gap(update, one),
                "both towers, doubled": _gap(2 * update, both),
                "distinct negatives, N/(N-1)": _gap(n / (n - 1) * update, distinct),
                "dense": relative_gap(op.dense() @ vec(op.opened.weight), vec(one)),
                "broken: not centred": relative_gap(raw, vec(one)),
                "broken: views not averaged": _gap(unaveraged, one),
                "broken: both towers, not doubled": _gap(update, both),
                "broken: distinct negatives, not corrected": _gap(update, distinct),
            }
        )
    return worst(rows)


def affine_gaps(networks: int = 10, seed: int = 0) -> Gaps:
    r"""A ReLU network with biases: ``OP vec(W)`` fails, :math:`Cov_x[\bar K_l, \bar f_L]` (:meth:`exact_update`) holds."""
    rows: list[Gaps] = []
    for s in instance_seeds(networks, seed):
        net = mlp((5, 7, 6, 3), bias=True, seed=s)
        draw = torch.Generator().manual_seed(s)
        views = torch.randn(4, 3, 5, generator=draw, dtype=torch.float64)
        for layer in ("0", "2"):
            op = covariance_operator(net, layer, views)
            truth = -expected_gradient(net, layer, views, simple_loss(), all_tuples(4, 3))
            rows.append(
                {
                    "exact update": _gap(op.exact_update(), truth),
                    "broken: operator": _gap(op.apply(op.opened.weight), truth),
                }
            )
    return worst(rows)


def eigenvalue_margin(networks: int = 20, seed: int = 0, beta: float = 0.0) -> float:
    r"""The smallest eigenvalue of :math:`-\beta EV + VE` over the largest in modulus, smallest over random instances."""
    margins = []
    for p in populations(networks, seed):
        values = torch.linalg.eigvalsh(p.operator(beta=beta).dense())
        margins.append(float(values[0] / values.abs().max()))
    return min(margins)


@dataclass(frozen=True)
class Curve:
    """A convergence curve: ``error`` against ``size``, and the slope of its logarithms."""

    size: tuple[int, ...]
    error: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Least-squares slope of log error against log size."""
        return float(linregress(np.log(self.size), np.log(self.error)).slope)


def monte_carlo(counts: tuple[int, ...], replicates: int = 32, seed: int = 0, *, averaged: bool = True) -> Curve:
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
        t = random_tuples(8, 4, replicates * count, seed=seed + count)
        pull = (y[t.positive] - y[t.negative[:, 0]]) / count  # minus the gradient of r+ - r- in the anchor's output
        where = t.anchor + len(y) * torch.arange(replicates).repeat_interleave(count)
        cotangent = torch.zeros(replicates * len(y), y.shape[1], dtype=y.dtype).index_add_(0, where, pull)
        steps = op.opened.vjp(cotangent.unflatten(0, (replicates, -1)))
        errors.append(float(((steps - truth).flatten(1).square().sum(1).mean()).sqrt() / truth.norm()))
    return Curve(counts, tuple(errors))


def normalized_gaps(networks: int = 20, seed: int = 0) -> Gaps:
    r"""Eq. 56: minus the enumerated gradient of :math:`L_{simp}` on l2-normalised outputs against the cross-covariance."""
    rows: list[Gaps] = []
    for p in populations(networks, seed):
        op = p.operator(normalize=True)
        one = p.step(simple_loss(), normalize=True)
        both = p.step(simple_loss(), normalize=True, both=True)
        plain = p.operator().update()
        dense = op.dense()
        k = op.opened.connections() / op.opened.output.norm(dim=1)[:, None, None]
        k = k.unflatten(0, op.population).mean(1)
        centred = k - k.mean(0)
        unprojected = torch.einsum("ino,imo,m->n", centred, centred, vec(op.opened.weight)) / len(k)
        if one.norm() < 1e-6 * unprojected.norm():
            continue  # all outputs are parallel: the projection leaves nothing but rounding
        rows.append(
            {
                "one tower": _gap(op.update(), one),
                "both towers, doubled": _gap(2 * op.update(), both),
                "step along the weights": _cosine(op.update(), op.opened.weight),
                "transpose on the weights": float((dense.T @ vec(op.opened.weight)).norm() / one.norm()),
                "broken: operator on the weights": float((dense @ vec(op.opened.weight)).norm() / one.norm()),
                "broken: projection left out": relative_gap(unprojected, vec(one)),
                "broken: output not normalised": _gap(plain, one),
                "broken: transpose": relative_gap(dense.T @ vec(op.opened.weight), vec(one)),
            }
        )
    return worst(rows)


def asymmetry(networks: int = 20, seed: int = 0, *, normalize: bool = True) -> float:
    r"""Of Eq. 56's operator (or Theorem 3's): the median of :math:`\|A - A^T\| / \|A\|` (Frobenius) over random instances."""
    found = []
    for p in populations(networks, seed):
        a = p.operator(normalize=normalize).dense()
        found.append(float((a - a.T).norm() / a.norm()))
    return float(torch.tensor(found).median())


def weighted_gaps(networks: int = 12, seed: int = 0) -> Gaps:
    r"""Theorem 4 without augmentation (V = 1, :math:`\theta = 0`): triplet and InfoNCE, one tower and both."""
    margin, tau = 0.5, 2.0
    rows: list[Gaps] = []
    for p in populations(networks, seed, views=1, strength=0.0, samples=5):
        for name, loss, shift in (
            ("soft_triplet", triplet_loss(tau, margin), margin),
            ("info_nce", nce_loss(tau), 0.0),
        ):
            op = p.operator(loss=name, tau=tau, margin=shift, clean=p.clean)
            one = p.step(loss)
            both = p.step(loss, both=True)
            flat = p.operator()
            mean = pair_weights(p.net, p.clean, loss=name, tau=tau, margin=shift).mean()
            rows.append(
                {
                    f"{name}, one tower": _gap(op.update(), one),
                    f"{name}, both towers, doubled": _gap(2 * op.update(), both),
                    "dense": relative_gap(op.dense() @ vec(op.opened.weight), vec(one)),
                    "broken: constant weight": _gap(mean * flat.update(), one),
                    "broken: half forgotten": _gap(2 * op.update(), one),
                }
            )
    return worst(rows)


def exact_loss_gaps(networks: int = 8, seed: int = 0) -> Gaps:
    r"""Eq. 7: :math:`L^{\tau,exact}` with H negatives has the operator :math:`H \cdot \frac12 V^\xi`, and no residue.

    Broken: weights from augmented distances (as the released code does), and weights that are differentiated.
    """
    tau = 2.0
    rows: list[Gaps] = []

    def augmented(p: Tensor, n: Tensor, _: Tensor) -> Tensor:
        return pairs.exact(p, n, n, tau=tau)

    def differentiated(p: Tensor, n: Tensor, _: Tensor) -> Tensor:
        return (pairs.pair_weight(n, "info_nce", tau=tau) * (p[:, None] - n)).sum(-1)

    for p in populations(networks, seed, samples=3, views=2):
        op = p.operator(loss="info_nce", tau=tau, clean=p.clean)
        if op.update().norm() < 1e-6 * p.operator().update().norm():
            continue  # all samples are far apart and the force vanishes: nothing but rounding is left
        for h in (1, 2, 3):
            one = p.step(exact_loss(tau), h)
            rows.append({f"H = {h}, one tower": _gap(h * op.update(), one)})
        both = p.step(exact_loss(tau), both=True)
        released = p.step(augmented)
        through = p.step(differentiated)
        rows[-1] |= {
            "both towers, doubled": _gap(2 * op.update(), both),
            "broken: weights from augmented distances": _gap(op.update(), released),
            "broken: gradient through the weights": _gap(op.update(), through),
        }
    return worst(rows)


def extended_gaps(networks: int = 20, seed: int = 0) -> Gaps:
    r"""Corollary 1: :math:`L^\beta_{simp}` against :math:`-\beta EV + VE`, for several ``beta``."""
    rows: list[Gaps] = []
    for p in populations(networks, seed):
        inter, intra = p.operator().update(), intra_operator(p.net, p.layer, p.views).update()
        for beta in (-1.5, -0.5, 0.2, 1.0):
            op = p.operator(beta=beta)
            truth = p.step(simple_loss(beta))
            rows.append(
                {
                    "corollary": _gap(op.update(), truth),
                    "sum of its parts": _gap(inter - beta * intra, truth),
                    "dense": relative_gap(op.dense() @ vec(op.opened.weight), vec(truth)),
                    "broken: sign of beta": _gap(inter + beta * intra, truth),
                    "broken: EV left out": _gap(inter, truth),
                }
            )
    return worst(rows)


def _gap(value: Tensor, reference: Tensor) -> float:
    return relative_gap(vec(value), vec(reference))


def _cosine(a: Tensor, b: Tensor) -> float:
    return abs(float((a * b).sum() / (a.norm() * b.norm())))


# ---------------------------------------------------------------------------------------------------------------------
# Many negatives: where the symmetry of Theorem 4 breaks through one tower, and holds through both (Eq. 80)


def joint_weights(distances: Tensor, negatives: int, tau: float) -> Tensor:
    r"""Mean weight :math:`\Xi_{ij} = N\, E[\sum_k \xi_k 1(x_k = x_j) \mid x = x_i]` of a pair under H negatives, ``(N, N)``.

    ``distances`` are :math:`r(x_i, x_j)`, ``(N, N)``; all :math:`N^H` draws of negatives are listed.  Symmetric for H = 1 only.
    """
    n = len(distances)
    draws = torch.cartesian_prod(*[torch.arange(n)] * negatives).reshape(-1, negatives)
    xi = pairs.joint_pair_weight(distances[:, draws], tau)  # (N, N^H, H)
    total = torch.zeros(n, n, dtype=distances.dtype)
    return total.index_add_(1, draws.flatten(), xi.flatten(1)) * (n / len(draws))


@dataclass(frozen=True)
class ManyNegatives:
    r"""What happens to the operator of InfoNCE without augmentation when there are H negatives, as relative numbers.

    one_tower: enumerated one-tower gradient against :math:`OP\, vec(W)` with the non-symmetric weights (an identity).
    symmetrised: the same against the symmetric operator (what Eq. 67 would give): the break of the symmetry trick.
    both_towers: enumerated two-tower gradient against twice the symmetric operator (an identity for every H).
    without_tau, without_half: the last with Eq. 80's weights as printed, lacking 1/tau, or the half of :math:`r`.
    asymmetry: :math:`\|A - A^T\| / \|A\|` of the one-tower operator.
    """

    negatives: int
    one_tower: float
    symmetrised: float
    both_towers: float
    without_tau: float
    without_half: float
    asymmetry: float


def many_negatives(negatives: int, *, seed: int = 0) -> ManyNegatives:
    """Measure :class:`ManyNegatives` on one leaky-ReLU network without augmentation."""
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
    a = skew.dense()
    return ManyNegatives(
        negatives,
        one_tower=relative_gap(vec(skew.update()), vec(one)),
        symmetrised=relative_gap(vec(even.update()), vec(one)),
        both_towers=relative_gap(vec(2 * even.update()), vec(both)),
        without_tau=relative_gap(vec(2 * tau * even.update()), vec(both)),
        without_half=relative_gap(vec(2 * operator(2 * distances, symmetric=True).update()), vec(both)),
        asymmetry=float((a - a.T).norm() / a.norm()),
    )


# ---------------------------------------------------------------------------------------------------------------------
# The operator beside the neural tangent kernel: two Gram matrices of the same connections (A-NTK)


@dataclass(frozen=True)
class KernelComparison:
    """One layer's covariance operator beside neural tangent kernels, on ``samples`` points with ``views`` views each.

    operator_*, kernel_*: of the layer, on the samples' first views; centred_rank: of the layer's kernel, averaged over views and
    centred over samples.  network_*: of the whole network's kernel.  Ranks at a relative cut of 1e-10.
    spectrum_gap: relative gap between the eigenvalues of the operator and of that averaged and centred kernel over N.
    uncentred_gap, unaveraged_gap: the same without centring, and with first views in place of averages.
    """

    operator_size: int
    operator_rank: int
    kernel_size: int
    kernel_rank: int
    centred_rank: int
    network_size: int
    network_rank: int
    spectrum_gap: float
    uncentred_gap: float
    unaveraged_gap: float


def kernel_comparison(samples: int, *, widths: tuple[int, ...] = (5, 6, 4, 2), seed: int = 0) -> KernelComparison:
    r"""Compare :math:`V_x[\bar K_l]` (``n x n``) with kernels :math:`K_l(x)^T K_l(x')` (``N n_L x N n_L``) of a ReLU network."""
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
        return relative_gap(_leading(operator, count), _leading(values / samples, count))

    return KernelComparison(
        operator_size=len(operator),
        operator_rank=_rank(operator),
        kernel_size=len(kernel),
        kernel_rank=_rank(kernel),
        centred_rank=_rank(centred),
        network_size=len(network),
        network_rank=_rank(network),
        spectrum_gap=gap(centred),
        uncentred_gap=gap(_kernel(mean)),
        unaveraged_gap=gap(_kernel(first - first.mean(0))),
    )


def _kernel(k: Tensor) -> Tensor:
    """Eigenvalues of the kernel of connections ``(N, n, n_L)``, ascending."""
    rows = k.movedim(2, 1).flatten(0, 1)
    values: Tensor = torch.linalg.eigvalsh(rows @ rows.T)
    return values


def _leading(values: Tensor, count: int) -> Tensor:
    return values.flip(0)[:count]


def _rank(values: Tensor) -> int:
    return int((values > 1e-10 * values.max()).sum())
