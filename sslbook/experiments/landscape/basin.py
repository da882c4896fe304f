r"""Power iteration with a matrix that moves: where it must converge (Theorem 3 of [tian2023], and Fig. 1, right).

.. math::  w \leftarrow A(w) w / \|A(w) w\|, \qquad c(w) = w^T \phi_1(w).

Theorem 3 asks for a number :math:`\gamma < 1` that bounds the irregularity (Definition 4) on a cap around the start whose radius is
:math:`\sqrt{2 (1 + \gamma)(1 - c_0)} / (1 - \sqrt\gamma)`.  Its constants are the Lipschitz constant L of A *on the cap*, and
:math:`\kappa` of Lemma 9, for which `KAPPA` over the squared gap always serves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.experiments.landscape.instances import Blobs, Cloud, orthonormal, summation
from sslbook.experiments.landscape.theory import Activation
from sslbook.stats.replica_rng import Streams

KAPPA = 2 * math.sqrt(4 + (1 + math.sqrt(2)) ** 2)
r"""Lemma 9 holds with :math:`\kappa = \mathrm{KAPPA} / \lambda_{\mathrm{gap}}^2`, for every symmetric perturbation."""


def irregularity(c: Tensor, gap: Tensor, top: Tensor, lipschitz: Tensor) -> Tensor:
    r""":math:`\omega` of Definition 4 with :math:`\kappa` = `KAPPA` / gap^2; all arguments broadcast."""
    mu = 0.5 * (1 + c) / c.square() * (1 - gap / top).square()
    kappa = KAPPA / gap.square()
    spread = 1 + mu * c
    return mu + 2 * kappa * lipschitz.square() * spread + 2 * lipschitz / gap * (mu * spread).sqrt()


def radius(c0: Tensor, gamma: Tensor) -> Tensor:
    r"""Radius of the cap :math:`B_\gamma` around the start (Lemma 11)."""
    return (2 * (1 + gamma) * (1 - c0).clamp_min(0)).sqrt() / (1 - gamma.sqrt())


def perturbation_gaps(count: int = 2000, seed: int = 0) -> dict[str, float]:
    r"""Lemma 9: the largest :math:`\|\phi_1' - \phi_1 - \Delta\phi_1\|\, \lambda_{\mathrm{gap}}^2 / \|\delta A\|^2` that is
    found.

    ``random``: symmetric matrices of 2 to 5 rows, perturbations of any size up to the gap, ``count`` each.
    ``exchange``: :func:`exchanging` perturbations, of little more than half the gap, which tend to :math:`4\sqrt2`.  Broken:
    :math:`\Delta\phi_1` left out, the least over the sizes of matrices.
    """
    kept, dropped = [], []
    for rows in range(2, 6):
        draw = Streams(range(seed, seed + count), f"perturbation {rows}")
        a, d = (v + v.mT for v in (draw.normal((rows, rows)), draw.normal((rows, rows))))
        values = torch.linalg.eigvalsh(a)
        length = draw.uniform((1, 1), torch.float64) * (values[:, -1] - values[:, -2])[:, None, None]
        found = _second_order(a, d * length / torch.linalg.matrix_norm(d, ord=2)[:, None, None])
        kept.append(found[0].max())
        dropped.append(found[1].max())
    apart = torch.logspace(-6, -1, 50, dtype=torch.float64)
    return {
        "random": float(torch.stack(kept).max()),
        "exchange": float(_second_order(*exchanging(apart))[0].max()),
        "broken: first order left out": float(torch.stack(dropped).min()),
    }


def exchanging(apart: Tensor) -> tuple[Tensor, Tensor]:
    r"""Matrices and perturbations that exchange the two first eigenvectors, ``(R, 3, 3)`` each, nearly as hard as can be.

    With the eigenvalues 1, 0 and -1 the perturbation takes :math:`\frac12 (1 + e)` from the first and gives it to the
    second, ``e`` = ``apart``, and couples them by :math:`e^2`: the leading eigenvector turns by nearly a right angle, which
    first order, small as the coupling, does not see.
    """
    half = 0.5 * (1 + apart)
    change = torch.zeros(len(apart), 3, 3, dtype=apart.dtype)
    change[:, 0, 0], change[:, 1, 1] = -half, half
    change[:, 0, 1] = change[:, 1, 0] = apart.square()
    return torch.diag(torch.tensor([1.0, 0.0, -1.0], dtype=apart.dtype)).expand_as(change), change


def _second_order(a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    r"""The change of the leading eigenvector beyond first order, and all of it, by the perturbation's square in gaps: ``(R,)``."""
    values, vectors = torch.linalg.eigh(a)
    old, new = vectors[..., -1], torch.linalg.eigh(a + d)[1][..., -1]
    new = new * (new * old).sum(-1, keepdim=True).sign()  # eigenvectors come with any sign
    # first-order perturbation: sum over the other eigenvectors v of v (v^T dA phi_1) / (lambda_1 - lambda_v)
    inside = (vectors.mT @ d @ old[..., None])[..., :-1, 0] / (values[:, -1:] - values[:, :-1])
    first = (vectors[..., :-1] @ inside[..., None])[..., 0]
    unit = (values[:, -1] - values[:, -2]).square() / torch.linalg.matrix_norm(d, ord=2).square()
    return (new - old - first).norm(dim=-1) * unit, (new - old).norm(dim=-1) * unit


def iterate(pop: Blobs | Cloud, w: Tensor, steps: int) -> Tensor:
    """Power iteration from ``w (R, S, d)``, for a ReLU: all iterates, ``(steps + 1, R, S, d)``."""
    path = [w]
    for _ in range(steps):
        w = (pop.matrix(w, Activation()) @ w[..., None])[..., 0]
        w = w / w.norm(dim=-1, keepdim=True)
        path.append(w)
    return torch.stack(path)


def correlation(pop: Blobs | Cloud, w: Tensor) -> Tensor:
    """``|c(w)|`` for a ReLU at ``w (R, S, d)``: ``(R, S)``."""
    top = torch.linalg.eigh(pop.matrix(w, Activation()))[1][..., -1]
    out: Tensor = (top * w).sum(-1).abs()
    return out


@dataclass(frozen=True)
class Certificate:
    r"""Theorem 3 at one start for each population, ``(R,)``: whether it applies, with which :math:`\gamma`, and what happened.

    ``bound`` is the cap's radius; ``moved`` the distance from the start to where power iteration ended, ``excess`` the largest
    :math:`(1 - c_t) / (\gamma^t (1 - c_0))` while that is above rounding, ``hasty`` the same with :math:`\mu` at the start in place
    of :math:`\gamma`, as if the matrix stayed what it is there, and ``residual`` the last step's length.
    """

    applies: Tensor
    gamma: Tensor
    bound: Tensor
    moved: Tensor
    excess: Tensor
    hasty: Tensor
    residual: Tensor


def _outcome(pop: Blobs | Cloud, start: Tensor, applies: Tensor, gamma: Tensor, bound: Tensor) -> Certificate:
    path = iterate(pop, start, steps=80)
    c = torch.stack([correlation(pop, w) for w in path])[..., 0]
    values = torch.linalg.eigvalsh(pop.matrix(start, Activation())[:, 0])
    fixed = irregularity(c[0], values[:, -1] - values[:, -2], values[:, -1], torch.zeros_like(c[0]))
    moved, residual = ((path[-1] - path[i]).norm(dim=-1)[:, 0] for i in (0, -2))
    return Certificate(applies, gamma, bound, moved, _excess(c, gamma), _excess(c, fixed), residual)


def _excess(c: Tensor, rate: Tensor) -> Tensor:
    promised = rate ** torch.arange(len(c), dtype=c.dtype)[:, None] * (1 - c[0])
    return torch.where(promised > 1e-13, (1 - c) / promised, torch.zeros_like(c))[1:].amax(0)


def certify_plane(pop: Blobs, start: Tensor) -> Certificate:
    """Theorem 3 for ReLU filters on mixtures of Gaussians in the plane, from the angles ``start (R,)``.

    The smallest of twenty values of gamma for which the supremum over a grid on the cap stays below it; L by all pairs of the grid.
    """
    points = 61
    act = Activation()
    w0 = torch.stack([start.cos(), start.sin()], -1)[:, None]
    values, vectors = torch.linalg.eigh(pop.matrix(w0, act))
    lead = vectors[..., -1]
    lead = lead * (lead * w0).sum(-1, keepdim=True).sign()
    c0 = (lead * w0).sum(-1)[:, 0]
    best = torch.full_like(c0, math.nan)
    grid = torch.linspace(-1, 1, points, dtype=c0.dtype)
    i, j = torch.triu_indices(points, points, 1)
    for gamma in torch.linspace(0.95, 0.05, 20, dtype=c0.dtype):
        cap = radius(c0, gamma)
        angle = start[:, None] + 2 * torch.asin((cap / 2).clamp_max(1))[:, None] * grid
        w = torch.stack([angle.cos(), angle.sin()], -1)
        a = pop.matrix(w, act)
        values, vectors = torch.linalg.eigh(a)
        top = vectors[..., -1]
        top = top * (top * lead).sum(-1, keepdim=True).sign()
        c = (top * w).sum(-1)
        steep = _norm(a[:, i] - a[:, j]) / (w[:, i] - w[:, j]).norm(dim=-1).clamp_min(1e-300)
        omega = irregularity(
            c.clamp_min(1e-9), values[..., -1] - values[..., 0], values[..., -1], steep.amax(1, keepdim=True)
        )
        good = (omega.amax(1) <= gamma) & (cap < 1) & (c > 0).all(1)
        best = torch.where(good, gamma, best)
    applies = ~best.isnan()
    gamma = torch.where(applies, best, torch.full_like(best, 0.95))
    return _outcome(pop, w0, applies, gamma, radius(c0, gamma))


def _norm(a: Tensor) -> Tensor:
    """Spectral norm of symmetric 2 x 2 matrices ``(..., 2, 2)``."""
    middle, half = 0.5 * (a[..., 0, 0] + a[..., 1, 1]), 0.5 * (a[..., 0, 0] - a[..., 1, 1])
    return middle.abs() + torch.hypot(half, a[..., 0, 1])


def certify_points(cloud: Cloud, start: Tensor) -> Certificate:
    """Theorem 3 for ReLU filters on finitely many points, from ``start (R, 1, d)``: A is constant on the cap, so L = 0 there.

    It applies with the smallest gamma of a grid for which the gates are the same all over the cap and :math:`\\mu \\le \\gamma`.
    """
    act = Activation()
    values, vectors = torch.linalg.eigh(cloud.matrix(start, act)[:, 0])
    top = vectors[..., -1]
    c0 = (top * start[:, 0]).sum(-1).abs()
    margin = ((start @ cloud.x.mT)[:, 0].abs() / cloud.x.norm(dim=-1)).amin(1)
    best = torch.full_like(c0, math.nan)
    for gamma in torch.linspace(0.98, 0.02, 97, dtype=c0.dtype):
        cap = radius(c0, gamma)
        turn = torch.acos(c0.clamp_max(1)) + 2 * torch.asin((cap / 2).clamp_max(1))
        c = torch.cos(turn.clamp_max(math.pi / 2))
        mu = 0.5 * (1 + c) / c.square().clamp_min(1e-12) * (values[:, -2] / values[:, -1]).square()
        best = torch.where((cap < margin) & (mu <= gamma), gamma, best)
    applies = ~best.isnan()
    gamma = torch.where(applies, best, torch.full_like(best, 0.98))
    return _outcome(cloud, start, applies, gamma, radius(c0, gamma))


def nearly_orthogonal(
    replicas: int, tilt: float, *, patterns: int = 6, size: int = 8, seed: int = 0
) -> tuple[Cloud, Tensor, Tensor]:
    r"""Summation models with tilted patterns: the points, the patterns ``(R, M, d)``, and :math:`\|U^T U - I\|_2` ``(R,)``."""
    u = orthonormal(replicas, patterns, size, seed, tilt=tilt)
    q = 0.1 + (0.3 - 0.1) * Streams(range(seed, seed + replicas), "rarity").uniform((patterns,), torch.float64)
    off = torch.linalg.matrix_norm(u @ u.mT - torch.eye(patterns, dtype=u.dtype), ord=2)
    return summation(q, u), u, off


def tight_triples(replicas: int, seed: int = 0) -> tuple[Blobs, Tensor]:
    """Mixtures of three tight clusters around the circle, and a start beside the first one: an angle for each, ``(R,)``."""
    draw = Streams(range(seed, seed + replicas), "triples")
    angle = 2 * math.pi * (torch.arange(3) / 3 + 0.15 * (draw.uniform((3,), torch.float64) - 0.5))
    length = 0.7 + 0.6 * draw.uniform((3, 1), torch.float64)
    p = 0.5 + draw.uniform((3,), torch.float64)
    centres = length * torch.stack([angle.cos(), angle.sin()], -1)
    start = angle[:, 0] + 0.1 * (draw.uniform((1,), torch.float64)[:, 0] - 0.5)
    return Blobs(centres, p / p.sum(-1, keepdim=True), 0.08), start
