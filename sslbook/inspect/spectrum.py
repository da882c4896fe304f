r"""One layer's covariance between images, with all views and within views, seen through one set of directions.

The three operators differ in how views are mixed alone, :math:`\mathrm{OP} = K C K^\top`, so that the fields :math:`K^\top s` of a
direction s serve them all, and every resampling of the images too: Lanczos' method (ARPACK) asks for products with two of them,
each direction that it asks about is kept with its field, and everything else is linear algebra in the span of these directions.

**Few views.**  With V views an image, :math:`\mathbb V_x` of the mean over views holds :math:`1/V` of the covariance within views.
Leaving out the pairs of a view with itself takes it away, without bias over the draws of the views:

.. math::  \widehat{\mathbb V}_x = \mathbb V_i[\bar K_i] - \frac{1 - 1/N}{V - 1} \, E_i \mathbb V_v[K_{iv}] ,

which is also what the simple loss over all pairs of *different* views moves along: its step is :math:`2N/(N-1)` times
:math:`\widehat{\mathbb V}_x \operatorname{vec}(W)`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from sslbook.losses.pairs import octave
from sslbook.operator.layer import OpenedLayer, unvec, vec
from sslbook.operator.view_weights import Mixing

BETWEEN, ALL, WITHIN = KINDS = ("between images", "all views", "within views")
"""The operator, and two that it is easily mistaken for: views not averaged, and what varies among the views of one image."""
UNTRAINED, RANDOM, NOISE = "untrained network", "random direction", "random targets"
CONTROLS = (BETWEEN, ALL, WITHIN, UNTRAINED, NOISE, RANDOM)
"""In the order of tables: the modes between images, the same share in other operators' modes, other directions' share in these."""
TOLERANCE, RESTARTS = 1e-2, 4
"""Of ARPACK's eigenvalues, relative: where images are drawn, a hundredth is far below what other images would change."""
SMALL = 48
"""A layer of so few weights is seen through all its directions."""


@dataclass(frozen=True, eq=False)
class Seen:
    """A layer through ``m`` orthonormal directions.

    opened: the network opened at the layer on ``N V`` views.  population: ``(N, V)``.  basis: ``(size, m)``, float64.
    fields: what the outputs do along each, ``(N, V, n_L, m)``, float64.
    """

    opened: OpenedLayer
    population: tuple[int, int]
    basis: Tensor
    fields: Tensor

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Each image's mean field ``(N, n_L, m)``, and the second moments of it and within its views, ``(N, m, m)``."""
        mean = self.fields.mean(1)
        off = (self.fields - mean[:, None]).flatten(1, 2)
        return mean, mean.mT @ mean, off.mT @ off / self.population[1]

    def matrices(self, kind: str, shares: Tensor | None = None) -> Tensor:
        """The operator of one of :data:`KINDS` between the directions, ``(m, m)``.

        shares: of each image in the population, ``(B, N)``, which add up to 1, for ``(B, m, m)``; all equal if not given.
        """
        (count, views), (mean, moments, within) = self.population, self._parts
        p = mean.new_full((1, count), 1 / count) if shares is None else shares.to(mean)
        middle = torch.tensordot(p, mean, 1)
        inside = torch.tensordot(p, within, 1) * views / (views - 1)
        outside = torch.tensordot(p, moments, 1) - middle.mT @ middle
        noise = torch.tensordot(p - p.square(), within, 1) / (views - 1)
        whole = {BETWEEN: outside - noise, ALL: outside + inside - inside / views, WITHIN: inside}[kind]
        matrix: Tensor = whole[0] if shares is None else whole
        return matrix

    def modes(self, kind: str, k: int, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Eigenvalues ``(..., k)``, largest first, and vectors in the directions' coordinates, ``(..., m, k)``."""
        values, vectors = torch.linalg.eigh(self.matrices(kind, shares))
        return values.flip(-1)[..., :k], vectors.flip(-1)[..., :k]

    def residual(self, kind: str, k: int) -> float:
        r"""The largest :math:`\|\mathrm{OP} v - \lambda v\| / \lambda_1` of the leading ``k`` modes."""
        values, turn = self.modes(kind, k)
        mixing, gaps = mixing_of(kind, *self.population), []
        for value, column in zip(values, turn.T, strict=True):
            image = pushed(self.opened, mixing((self.fields @ column).to(self.opened.weight)))
            gaps.append((image - value * (self.basis @ column)).norm())
        return float(torch.stack(gaps).max() / values[0])

    def share(self, kind: str, k: int, directions: Tensor, shares: Tensor | None = None) -> Tensor:
        r""":math:`\|P x\|^2 / \|x\|^2` of directions ``(size, n)`` in the leading ``k`` modes: ``(n,)``, or ``(B, n)``."""
        x = directions.to(self.basis)
        turn = self.modes(kind, k, shares)[1]
        return (turn.mT @ (self.basis.T @ x)).square().sum(-2) / x.square().sum(0)


def mixing_of(kind: str, count: int, views: int) -> Mixing:
    """The matrix C of one of :data:`KINDS` on ``(count, views)``."""
    return {
        BETWEEN: Mixing(intra=-(1 - 1 / count) / (views - 1)),
        ALL: Mixing(intra=1.0),
        WITHIN: Mixing(inter=0.0, intra=views / (views - 1)),
    }[kind]


def pushed(opened: OpenedLayer, field: Tensor) -> Tensor:
    """``K u`` of a field ``(N, V, n_L)``: as a vector ``(size,)``, float64, which has digits where float32 has none."""
    scale = octave(field.flatten(), 0)
    return vec(opened.vjp((field / scale).flatten(0, 1).contiguous())).double() * scale.double().clamp(max=1e300)


def look(
    opened: OpenedLayer, population: tuple[int, int], k: int, kinds: tuple[str, ...] = (BETWEEN, WITHIN), seed: int = 0
) -> Seen:
    """The layer through all directions that the search for the leading ``k`` modes of the ``kinds`` has asked about.

    Raises ValueError where one of the ``kinds`` is zero, so that it has no modes.
    """
    asked: list[tuple[Tensor, Tensor]] = []

    def field(vector: Tensor) -> Tensor:
        found: Tensor = opened.jvp(unvec(vector, opened.weight.shape)).unflatten(0, population)
        asked.append((vector, found))
        return found

    if opened.size <= SMALL:
        for unit in torch.eye(opened.size).to(opened.weight):
            field(unit)
    else:
        for kind in kinds:
            mixing = mixing_of(kind, *population)
            _search(lambda v, c=mixing: pushed(opened, c(field(v))), opened.weight, k, seed)
    vectors = torch.stack([vector for vector, _ in asked], dim=1).double()
    fields = torch.stack([found for _, found in asked], dim=-1).to(vectors)
    length = vectors.norm(dim=0)
    vectors, fields = vectors / length, fields / length
    values, turn = torch.linalg.eigh(vectors.T @ vectors)
    kept = values > 1e-4 * values.max()  # a direction that is nearly in the span of the others would bring rounding
    turn = turn[:, kept] / values[kept].sqrt()
    seen = Seen(opened, population, vectors @ turn, fields @ turn)
    for kind in kinds:
        if not bool(seen.matrices(kind).any()):
            raise ValueError(f"what the outputs do as this layer's weights move must vary {kind}, and it does not")
    return seen


def _search(product: object, weight: Tensor, k: int, seed: int) -> None:
    """Let ARPACK look for the leading eigenvectors of a symmetric operator; what it asks about is what is wanted.

    :func:`sslbook.operator.covariance._lanczos` wants the vectors to a tolerance, and fails without them.
    """
    assert callable(product)
    size = weight.numel()
    start = np.random.default_rng(seed).standard_normal(size) / size**0.5

    def apply(vector: np.ndarray) -> np.ndarray:
        answer: np.ndarray = product(torch.from_numpy(vector.reshape(-1).copy()).to(weight)).cpu().numpy()
        return answer

    if not apply(start).any():  # a zero operator, on which ARPACK can't start
        return
    with contextlib.suppress(ArpackNoConvergence):  # the residuals say how far it came
        eigsh(
            LinearOperator((size, size), matvec=apply, dtype=np.float64),
            k=k,
            which="LA",
            v0=start,
            ncv=min(size, max(2 * k + 1, 16)),
            tol=TOLERANCE,
            maxiter=RESTARTS,
            return_eigenvectors=False,
        )


@dataclass(frozen=True)
class Size:
    r"""Trace, and participation ratio :math:`(\operatorname{tr})^2 / \|\mathrm{OP}\|_F^2`, each with its standard error."""

    trace: float
    trace_error: float
    rank: float
    rank_error: float


def sizes(seen: Seen, probes: int, seed: int) -> dict[str, Size]:
    """The size of each of :data:`KINDS`: exact along the directions, and by random signs beside them, of which each costs a JVP.

    One field of a sign serves all three and their squares.
    Errors are the jackknife's, over the probes: 0 where the directions are all there are.
    """
    m = seen.basis.shape[1]
    if m == seen.opened.size:
        exact = {kind: seen.matrices(kind) for kind in KINDS}
        parts = {kind: (float(matrix.trace()), float(matrix.square().sum())) for kind, matrix in exact.items()}
        return {k: Size(trace, 0.0, trace**2 / square if square else 0.0, 0.0) for k, (trace, square) in parts.items()}
    opened, (count, views) = seen.opened, seen.population
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (opened.size, probes), generator=draw).to(seen.basis) * 2 - 1
    beside = signs - seen.basis @ (seen.basis.T @ signs)
    rows = [opened.jvp(unvec(z, opened.weight.shape)).unflatten(0, (count, views)) for z in beside.T.to(opened.weight)]
    both = Seen(
        opened,
        seen.population,
        torch.cat([seen.basis, beside], dim=1),
        torch.cat([seen.fields, torch.stack(rows, dim=-1).to(seen.fields)], dim=-1),
    )
    return {kind: _size(both.matrices(kind), m) for kind in KINDS}


def _size(matrix: Tensor, m: int) -> Size:
    """From the operator between ``m`` orthonormal directions and probes beside them."""
    probes = len(matrix) - m

    def estimate(keep: list[int]) -> tuple[float, float]:
        own, cross = matrix[keep][:, keep], matrix[:m][:, keep]
        n = len(keep)
        trace = matrix[:m, :m].trace() + own.trace() / n
        beside = (own.square().sum() - own.diagonal().square().sum()) / (n * (n - 1))
        square = matrix[:m, :m].square().sum() + 2 * cross.square().sum() / n + beside
        return float(trace), float(trace**2 / square)

    every = list(range(m, m + probes))
    left_out = np.array([estimate([i for i in every if i != j]) for j in every])
    errors = np.sqrt((probes - 1) * left_out.var(axis=0))
    trace, rank = estimate(every)
    return Size(trace, float(errors[0]), rank, float(errors[1]))
