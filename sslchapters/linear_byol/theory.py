r"""Linear BYOL, Appendix F of [tian2021iclr]: the flow, what it conserves, its fixed points, one unit and one mode.

The online network is one linear layer ``W1 (n, d)``, the predictor ``W2 (n, n)``, the target ``Theta (n, d)``.  For two views of a
sample the loss is :math:`L = \frac12 \|W_2 W_1 x_1 - \Theta x_2\|^2`, with no gradient to :math:`\Theta`, which follows
:math:`W_1`.  (The paper writes L without its half; that only doubles the rates.)  In the mean the data enter through two matrices,

.. math::  \Sigma_s = E[x_1 x_1^T], \qquad \Sigma_d = E[x_1 x_2^T] = E[\bar x \bar x^T],

and with :math:`E = \Theta \Sigma_d - W_2 W_1 \Sigma_s` the flow (Eqs. 179 to 181) is

.. math::  \tau_o \dot W_1 = W_2^T E, \qquad \tau_p \dot W_2 = E W_1^T, \qquad \tau_t \dot\Theta = W_1 - \Theta.

With :math:`M = \Sigma_d \Sigma_s^{-1}`, left eigenvectors ``v_j`` and eigenvalues :math:`h_1 \ge h_2 \ge \dots \ge 0`, the
fixed points whose ``W1`` has full rank are, for ``n`` modes collected in ``V`` and an invertible S,

.. math::  W_1 = \Theta = S V, \qquad W_2 = S \Lambda S^{-1}.

Each lies on a manifold of dimension ``n^2``, so its Jacobian has ``n^2`` eigenvalues 0: *stable* means here that no eigenvalue
has a positive real part.

One unit (`survives`, `scalar_ends`) conserves :math:`Q = \tau_o w_1^2 - \tau_p w_2^2`; with :math:`r = \lambda_d / \lambda_s` it
ends at :math:`w_2 = r`, or at :math:`w_1 = \theta = 0`.  Augmentations are `additive` noise and `multiplicative` scrambling
(Appendix F.2), which sends ``x`` to :math:`(P_c + U B U^T) x` with a fresh ``B`` of independent entries, mean 0 and variance 1.

Arrays are NumPy's, float64, with a leading replica axis ``R``: many problems are one system of equations for SciPy's solver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Weights(NamedTuple):
    """``online (R, n, d)``, ``predictor (R, n, n)``, ``target (R, n, d)``; or the velocity of each."""

    online: Array
    predictor: Array
    target: Array


class Moments(NamedTuple):
    r"""What the flow knows of data and augmentation.

    same: :math:`\Sigma_s` ``(R, d, d)``, a view with itself.  cross: :math:`\Sigma_d` ``(R, d, d)``, two views of one sample.
    """

    same: Array
    cross: Array


class Times(NamedTuple):
    r"""Time constants :math:`\tau_o, \tau_p, \tau_t` of online network, predictor and target; numbers, or ``(R, 1, 1)``."""

    online: float | Array = 1.0
    predictor: float | Array = 1.0
    target: float | Array = 1.0


UNIT = Times()


def error(weights: Weights, moments: Moments) -> Array:
    r""":math:`E = \Theta \Sigma_d - W_2 W_1 \Sigma_s`, ``(R, n, d)``: minus the loss's gradient in the product :math:`W_2 W_1`."""
    w1, w2, theta = weights
    return np.asarray(theta @ moments.cross - w2 @ (w1 @ moments.same))


def velocity(weights: Weights, moments: Moments, times: Times = UNIT, *, predictor: bool = True) -> Weights:
    """Eqs. 179 to 181; with ``predictor=False`` the predictor stays as it is (the identity, in Appendix F.3)."""
    w1, w2, theta = weights
    e = error(weights, moments)
    turn = e @ w1.swapaxes(1, 2) / times.predictor if predictor else np.zeros_like(w2)
    return Weights(w2.swapaxes(1, 2) @ e / times.online, turn, (w1 - theta) / times.target)


def balance(weights: Weights, times: Times = UNIT) -> Array:
    r""":math:`Q = \tau_o W_1 W_1^T - \tau_p W_2^T W_2`, ``(R, n, n)``, which the flow conserves, whatever the target does."""
    w1, w2, _ = weights
    return np.asarray(times.online * (w1 @ w1.swapaxes(1, 2)) - times.predictor * (w2.swapaxes(1, 2) @ w2))


def turned(weights: Weights, basis: Array) -> Weights:
    r""":math:`(S W_1, S W_2 S^{-1}, S \Theta)` for ``basis`` S ``(R, n, n)``: another basis of the hidden layer."""
    w1, w2, theta = weights
    return Weights(basis @ w1, basis @ w2 @ np.linalg.inv(basis), basis @ theta)


def distance(found: Weights, goal: Weights) -> Array:
    """Relative distance of all weights together, ``(R,)``."""
    gap = sum(np.square(a - b).sum((-2, -1)) for a, b in zip(found, goal))
    return np.asarray(np.sqrt(gap / sum(np.square(b).sum((-2, -1)) for b in goal)))


@dataclass(frozen=True)
class Modes:
    r"""Left eigenvectors of :math:`M`, largest eigenvalue first, with :math:`V \Sigma_s V^T = I`, :math:`V \Sigma_d V^T = H`.

    values: ``(R, d)``.  rows: ``(R, d, d)``, one eigenvector a row.
    """

    values: Array
    rows: Array


def modes(moments: Moments) -> Modes:
    """The modes of each problem, from the symmetric matrix that M is similar to; LAPACK's signs don't matter."""
    half = np.linalg.inv(np.linalg.cholesky(moments.same))
    values, vectors = np.linalg.eigh(half @ moments.cross @ half.swapaxes(1, 2))
    rows = (vectors.swapaxes(1, 2) @ half)[:, ::-1]
    lean = rows @ np.sqrt(np.arange(1, rows.shape[2] + 1))  # roots: no mode of whole numbers leans to neither side
    return Modes(values[:, ::-1].copy(), rows * np.where(lean < 0, -1, 1)[..., None])


def fixed_point(found: Modes, kept: Array, basis: Array) -> Weights:
    r"""The fixed point made of the modes ``kept (R, n)``, 0 for the leading one, in the ``basis`` S ``(R, n, n)``."""
    chosen = np.asarray(kept, dtype=int)
    rows = np.take_along_axis(found.rows, chosen[..., None], axis=1)
    values = np.take_along_axis(found.values, chosen, axis=1)
    w1 = basis @ rows
    return Weights(w1, (basis * values[:, None]) @ np.linalg.inv(basis), w1)


def collapsed(predictor: Array, size: int) -> Weights:
    """The collapsed fixed point W1 = Theta = 0 with any ``predictor (R, n, n)``."""
    zero = np.zeros((*predictor.shape[:2], size))
    return Weights(zero, predictor, zero)


def jacobian(weights: Weights, moments: Moments, times: Times = UNIT) -> Array:
    """Derivative of Eqs. 179 to 181 in (W1, W2, Theta), each flattened by rows: ``(R, N, N)`` with ``N = 2nd + n^2``."""
    w1, w2, _ = weights
    n, d = w1.shape[1:]
    e, eye, wide = error(weights, moments), np.eye(n)[None], np.eye(d)[None]

    def kron(a: Array, b: Array) -> Array:  # the matrix of X -> a X b^T
        return np.asarray(a[:, :, None, :, None] * b[:, None, :, None]).reshape(len(e), a.shape[1] * b.shape[1], -1)

    down = (w1 @ moments.same).swapaxes(1, 2)
    of_error = np.concatenate([kron(-w2, moments.same), kron(-eye, down), kron(eye, moments.cross)], 2)
    online, predictor = kron(w2.swapaxes(1, 2), wide) @ of_error, kron(eye, w1) @ of_error
    target = np.zeros_like(online)
    first, last = slice(n * d), slice(n * (d + n), None)
    online[..., n * d : n * (d + n)] += np.einsum("ae,rcb->rabce", eye[0], e).reshape(-1, n * d, n * n)
    predictor[..., first] += np.einsum("bc,rae->rabce", eye[0], e).reshape(-1, n * n, n * d)
    target[..., first], target[..., last] = np.eye(n * d), -np.eye(n * d)
    return np.concatenate([1 / time * rows for time, rows in zip(times, (online, predictor, target))], axis=1)


def is_stable(matrix: Array) -> Array:
    """Whether no eigenvalue's real part exceeds 1e-8 times the largest modulus, ``(R,)`` of bool."""
    values = np.linalg.eigvals(matrix)
    return np.asarray(values.real.max(-1) <= 1e-8 * np.abs(values).max(-1))


def pair_roots(
    predictor: Array, same: Array, cross: Array, hold: Array | float = 0.0, times: Times = UNIT
) -> tuple[Array, Array]:
    r"""The two eigenvalues with which unit i, whose predictor eigenvalue is :math:`\lambda`, takes up a mode j: the roots of

    .. math::
        \tau_o \tau_t \mu^2 + (\tau_o + \tau_t (\tau_o q + \lambda^2 \sigma)) \mu
        + \tau_o q + \lambda (\lambda \sigma - \delta) = 0,

    for the mode's variances :math:`\sigma` (``same``) and :math:`\delta` (``cross``); q, ``hold``, is zero if no unit keeps the
    mode, and :math:`\sigma |w|^2 / \tau_p` if one keeps it with weights of length ``|w|``.  Complex arrays.
    """
    to, tt = times.online, times.target
    b = to + tt * (to * hold + predictor**2 * same)
    c = to * hold + predictor * (predictor * same - cross)
    root = np.sqrt((b**2 - 4 * to * tt * c).astype(complex))
    large = -(b + root) / (2 * to * tt)  # b > 0: nothing cancels here
    return large, c / (to * tt) / large


def speed(weights: Weights, moments: Moments, times: Times = UNIT) -> Array:
    """Length of the flow's velocity, ``(R,)``."""
    return np.asarray(np.sqrt(sum(np.square(part).sum((1, 2)) for part in velocity(weights, moments, times))))


PORTRAITS = ("fixed target", "tied predictor", "no predictor")
"""The three panels of Figure 5, by their titles there."""


def quantity(w1: Array, w2: Array, times: Times = UNIT) -> Array:
    r""":math:`Q = \tau_o w_1^2 - \tau_p w_2^2`, in the shape of its arguments, with one axis at least."""
    return np.asarray(np.ravel(times.online) * w1**2 - np.ravel(times.predictor) * w2**2)


def survives(w1: Array, w2: Array, ratio: Array | float, times: Times = UNIT) -> Array:
    r"""Whether the flow from these weights ends at a solution that isn't collapsed: bool, in their shape; theta doesn't matter.

    It does iff Q > 0, or :math:`w_2 > 0` and :math:`Q > -\tau_p r^2`.  (The exception are starts that run into
    the saddle at w1 = theta = 0, a curve in (w1, theta) for each Q.)
    """
    ratios = np.asarray(ratio, dtype=float)
    q = quantity(w1, w2, times)
    return np.asarray((q > 0) | ((w2 > 0) & (q > -np.ravel(times.predictor) * ratios**2)))


def scalar_ends(w1: Array, w2: Array, ratio: Array | float, times: Times = UNIT) -> tuple[Array, Array]:
    r"""Where the flow ends: :math:`|w_1|` and :math:`w_2`, in the shape of the weights at the start."""
    q, alive = quantity(w1, w2, times), survives(w1, w2, ratio, times)
    to, tp = np.ravel(times.online), np.ravel(times.predictor)
    r = np.broadcast_to(np.asarray(ratio, dtype=float), np.shape(q))
    size = np.sqrt(np.where(alive, q + tp * r**2, 0).clip(0) / to)
    return size, np.where(alive, r, np.sign(w2) * np.sqrt((-q).clip(0) / tp))


# --- Figure 5 ----------------------------------------------------------------------------------------------------------------


def planar_field(kind: str, ratio: float) -> Callable[[Array, Array], tuple[Array, Array]]:
    r"""The planar velocity of a panel of Figure 5, with lambda_s = 1 and :math:`\tau_o = \tau_p = 1`.

    "fixed target": (w1, w2) with theta = 1.  "tied predictor": (w, theta) with w1 = w2 = w.  "no predictor": (w, theta)
    with w2 = 1.
    """
    if kind == "fixed target":
        return lambda x, y: (y * (ratio - x * y), x * (ratio - x * y))
    if kind == "tied predictor":
        return lambda x, y: (x * (y * ratio - x * x), x - y)
    return lambda x, y: (y * ratio - x, x - y)


def conserved(directions: Array) -> Array:
    """The projector P_c on what multiplicative scrambling leaves alone, ``(R, d, d)``, from U ``(R, d, k)``."""
    return np.asarray(np.eye(directions.shape[1]) - directions @ directions.swapaxes(1, 2))


def multiplicative(data: Array, directions: Array) -> Moments:
    r"""Exact moments under multiplicative scrambling: ``data`` is :math:`\Sigma_x (R, d, d)`, ``directions`` U ``(R, d, k)``."""
    kept = conserved(directions)
    inside = np.trace(directions.swapaxes(1, 2) @ data @ directions, axis1=1, axis2=2)
    cross = kept @ data @ kept
    cross = 0.5 * (cross + cross.swapaxes(1, 2))
    return Moments(cross + inside[:, None, None] * (directions @ directions.swapaxes(1, 2)), cross)


def additive(data: Array, noise: Array) -> Moments:
    r"""Exact moments under additive scrambling: :math:`\Sigma_x, \Sigma_n`, ``(R, d, d)`` both."""
    return Moments(data + noise, data)


def readout_error(online: Array, data: Array, task: Array) -> Array:
    r"""Share of the variance of :math:`y = \beta^T x` that no linear readout of ``W1 x`` explains, exact; ``(R,)``.

    data: Sigma_x ``(R, d, d)``.  task: beta ``(R, d)``.
    """
    seen = np.einsum("rnd,rde,re->rn", online, data, task)
    gram = online @ data @ online.swapaxes(1, 2)
    explained = np.einsum("rn,rn->r", seen, np.linalg.solve(gram, seen[..., None])[..., 0])
    return np.asarray(1 - explained / np.einsum("rd,rde,re->r", task, data, task))
