r"""Fixed points of the flow of linear BYOL, and which of them are stable (Appendix F.1 of [tian2021iclr]).

With :math:`M = \Sigma_d \Sigma_s^{-1}`, left eigenvectors ``v_j`` and eigenvalues :math:`h_1 \ge h_2 \ge \dots \ge 0`, the
fixed points whose ``W1`` has full rank are, for ``n`` modes collected in ``V`` and an invertible S,

.. math::  W_1 = \Theta = S V, \qquad W_2 = S \Lambda S^{-1}.

Each lies on a manifold of dimension ``n^2``, so its Jacobian has ``n^2`` eigenvalues 0: *stable* means here that no eigenvalue
has a positive real part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sslbook.chapters.linear_byol.flow import (
    UNIT,
    Array,
    Moments,
    Times,
    Weights,
    distance,
    error,
    integrate,
    random_moments,
    random_weights,
    turned,
    velocity,
)
from sslbook.gaps import Gaps, over_instances, relative


@dataclass(frozen=True)
class Modes:
    r"""Left eigenvectors of :math:`M`, largest eigenvalue first, with :math:`V \Sigma_s V^T = I`, :math:`V \Sigma_d V^T = H`.

    values: ``(R, d)``.  rows: ``(R, d, d)``, one eigenvector a row.
    """

    values: Array
    rows: Array


def modes(moments: Moments) -> Modes:
    """The modes of each problem, from the symmetric matrix that M is similar to."""
    half = np.linalg.inv(np.linalg.cholesky(moments.same))
    values, vectors = np.linalg.eigh(half @ moments.cross @ half.swapaxes(1, 2))
    return Modes(values[:, ::-1].copy(), (vectors.swapaxes(1, 2) @ half)[:, ::-1].copy())


def fixed_point(found: Modes, kept: Array, basis: Array) -> Weights:
    r"""The fixed point made of the modes ``kept (R, n)``, 0 for the leading one, in the ``basis`` S ``(R, n, n)``.

    Raises ValueError for a mode that doesn't exist or is named twice, or a basis that isn't ``(R, n, n)``.
    """
    chosen = np.asarray(kept, dtype=int)
    size = found.values.shape[1]
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < size):
        raise ValueError(f"kept must hold modes from 0 to {size - 1}, got {chosen.min()} to {chosen.max()}")
    if (np.diff(np.sort(chosen, axis=1), axis=1) == 0).any():
        raise ValueError("kept must name each mode once, got a mode twice")
    if basis.shape != (len(chosen), chosen.shape[1], chosen.shape[1]):
        raise ValueError(f"basis must have shape {(*chosen.shape, chosen.shape[1])}, got {basis.shape}")
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
    (r, n, d), same, cross = w1.shape, moments.same, moments.cross
    e, eye, wide = error(weights, moments), np.eye(n), np.eye(d)
    down, flat = w1 @ same, w1 @ cross

    def block(*terms: tuple[str, Array, Array]) -> Array:
        """Sum of outer products of two matrices, laid out as a matrix from (c, e) to (a, b)."""
        total = sum(np.einsum(f"{indices}->rabce", left, right, optimize=False) for indices, left, right in terms)
        shape = np.shape(total)
        return np.reshape(total, (r, shape[1] * shape[2], shape[3] * shape[4]))

    online = np.concatenate(
        [
            block(("rac,reb", -w2.swapaxes(1, 2) @ w2, same)),
            block(("rca,reb", -w2, down), ("ae,rcb", eye, e)),
            block(("rca,reb", w2, cross)),
        ],
        axis=2,
    )
    predictor = np.concatenate(
        [
            block(("rac,rbe", -w2, down), ("bc,rae", eye, e)),
            block(("ac,rbe", eye, -down @ w1.swapaxes(1, 2))),
            block(("ac,rbe", eye, flat)),
        ],
        axis=2,
    )
    follow = np.broadcast_to(np.einsum("ac,be->abce", eye, wide).reshape(n * d, n * d), (r, n * d, n * d))
    target = np.concatenate([follow, np.zeros((r, n * d, n * n)), -follow], axis=2)
    return np.concatenate([1 / time * rows for time, rows in zip(times, (online, predictor, target))], axis=1)


def abscissa(matrix: Array) -> tuple[Array, Array]:
    """Largest real part of the eigenvalues ``(R,)``, and the largest modulus."""
    values = np.linalg.eigvals(matrix)
    return values.real.max(-1), np.abs(values).max(-1)


def share_left_out(point: Weights, moments: Moments, kept: Array, times: Times = UNIT) -> Array:
    """Of the eigenvector whose eigenvalue has the largest real part: how much of its W1 part lies in modes not in ``kept``.

    Relative, with modes as coordinates, ``(R,)``.  kept: ``(R, n)``.
    """
    values, vectors = np.linalg.eig(jacobian(point, moments, times))
    lead = np.take_along_axis(vectors, values.real.argmax(1)[:, None, None], axis=2)[..., 0]
    n, d = point.online.shape[1:]
    found = modes(moments)
    parts = lead[:, : n * d].reshape(-1, n, d) @ np.linalg.inv(found.rows)
    out = np.array(parts)
    np.put_along_axis(out, kept[:, None], 0, axis=2)
    return np.asarray(np.linalg.norm(out, axis=(1, 2)) / np.linalg.norm(parts, axis=(1, 2)))


def is_stable(matrix: Array) -> Array:
    """Whether no eigenvalue's real part exceeds 1e-8 times the largest modulus, ``(R,)`` of bool."""
    top, size = abscissa(matrix)
    return np.asarray(top <= 1e-8 * size)


def manifold_dimension(matrix: Array) -> Array:
    """Dimension of the Jacobian's kernel, ``(R,)``: how many directions a fixed point can move in and stay one."""
    values = np.linalg.svd(matrix, compute_uv=False)
    return np.asarray((values < 1e-9 * values[:, :1]).sum(-1))


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


def aligned_spectrum(
    values: Array, same: Array, kept: Array, lengths: Array, times: Times = UNIT, *, held: bool = True
) -> Array:
    r"""All ``2nd + n^2`` eigenvalues at :math:`W_1 = O\, \mathrm{diag}(c)\, U, W_2 = O \Lambda O^T`, for commuting data.

    values, same: :math:`h_j` and :math:`\sigma_j`, ``(R, d)``.  kept: ``(R, n)``.  lengths: c, ``(R, n)``.
    ``held=False`` leaves out that kept modes are held (q = 0), to break the formula.
    """
    r, n = kept.shape
    mine = np.take_along_axis(values, kept, axis=1)
    hold = np.zeros_like(values)
    if held:
        q = np.take_along_axis(same, kept, axis=1) * lengths**2 / np.reshape(times.predictor, (-1, 1))
        np.put_along_axis(hold, kept, q, axis=1)
    roots = pair_roots(mine[:, :, None], same[:, None], (values * same)[:, None], hold[:, None], times)
    zeros = np.zeros((r, n * n), dtype=complex)
    return np.concatenate([*(root.reshape(r, -1) for root in roots), zeros], axis=1)


def spectrum_gap(matrix: Array, spectrum: Array) -> Array:
    """How far ``spectrum (R, N)`` is from that of ``matrix (R, N, N)``, relative to its norm, ``(R,)``.

    The worst of: the least singular value of ``matrix - mu``, for every mu; and the sums of the eigenvalues and of their squares,
    which count how often each occurs.
    """
    size = np.linalg.norm(matrix, axis=(1, 2))
    shifted = matrix[:, None] - spectrum[..., None, None] * np.eye(matrix.shape[1])
    off = np.linalg.svd(shifted, compute_uv=False)[..., -1].max(1) / size
    one = np.abs(np.trace(matrix, axis1=1, axis2=2) - spectrum.sum(1)) / size
    two = np.abs(np.trace(matrix @ matrix, axis1=1, axis2=2) - np.square(spectrum).sum(1)) / size**2
    return np.asarray(np.max([off, one, two], axis=0))


def rests(
    point: Weights,
    moments: Moments,
    times: Times = UNIT,
    *,
    push: float = 1e-6,
    seed: int = 0,
    rest: float = 1e-5,
    rounds: int = 12,
    method: str = "DOP853",
) -> Array:
    """Whether the flow comes to rest again beside ``point`` after a random push of relative size ``push``, ``(R,)`` of bool.

    No Jacobian is used: the clock of each problem is how long its push takes to move by its own length at the speed at the
    start.  After 16 such units, and then twice as many each time, up to ``rounds`` times, a problem is decided if its
    speed has fallen to ``rest`` of that at the start (it rests; motion along the manifold of fixed points costs no speed)
    or if it is farther from the point than a thousandth of the point's norm (it doesn't).
    Raises ValueError if a problem is still undecided at the end.
    """
    rng = np.random.default_rng(seed)
    scale = push * np.sqrt(sum(np.square(part).sum((1, 2)) for part in point))[:, None, None]
    now = Weights(*(part + scale * rng.standard_normal(part.shape) / part[0].size ** 0.5 for part in point))
    begin = speed(now, moments, times)
    unit = 16.0 * np.sqrt(sum(np.square(a - b).sum((1, 2)) for a, b in zip(now, point))) / begin
    verdict, open_ = np.zeros(len(begin), dtype=bool), np.arange(len(begin))
    for k in range(rounds):
        here, data, tau = pick(open_, now, moments, times)
        path = integrate(here, data, 2**k * unit[open_], tau, rtol=1e-13, atol=1e-7 * push, method=method)
        here = Weights(*(part[-1] for part in path))
        for whole, part in zip(now, here):
            whole[open_] = part
        settled = speed(here, data, tau) < rest * begin[open_]
        gone = distance(here, pick(open_, point, moments, times)[0]) > 0.001
        verdict[open_[settled & ~gone]] = True
        open_ = open_[~(settled | gone)]
        if not len(open_):
            return verdict
    raise ValueError(f"rounds={rounds} leaves {len(open_)} of {len(begin)} problems undecided")


def pick(choice: Array, weights: Weights, moments: Moments, times: Times) -> tuple[Weights, Moments, Times]:
    """The replicas ``choice`` of a batch of problems; a time constant that is one number stays one."""
    return (
        Weights(*(part[choice] for part in weights)),
        Moments(moments.same[choice], moments.cross[choice]),
        Times(*(part[choice] if isinstance(part, np.ndarray) and part.ndim else part for part in times)),
    )


def speed(weights: Weights, moments: Moments, times: Times = UNIT) -> Array:
    """Length of the flow's velocity, ``(R,)``."""
    return np.asarray(np.sqrt(sum(np.square(part).sum((1, 2)) for part in velocity(weights, moments, times))))


def alignment(online: Array, rows: Array) -> Array:
    """Least cosine between the row spaces of ``online (R, n, d)`` and ``rows (R, n, d)``, ``(R,)``; 1 if they are the same."""
    one, two = (np.linalg.qr(part.swapaxes(1, 2))[0] for part in (online, rows))
    return np.asarray(np.linalg.svd(one.swapaxes(1, 2) @ two, compute_uv=False).min(-1))


# --- random problems and their checks ------------------------------------------------------------------------------------


def random_times(replicas: int, rng: np.random.Generator, spread: float = 1.0) -> Times:
    """Time constants from 1/e to e (with ``spread`` 1), uniform in their logarithm."""
    return Times(*(np.exp(spread * rng.uniform(-1, 1, (replicas, 1, 1))) for _ in range(3)))


def random_kept(replicas: int, outputs: int, size: int, rng: np.random.Generator, *, leading: bool) -> Array:
    """The leading modes, or another random set of as many, ``(R, n)``."""
    top = np.tile(np.arange(outputs), (replicas, 1))
    if leading:
        return top
    drawn = np.sort(np.argsort(rng.random((replicas, size)), axis=1)[:, :outputs], axis=1)
    same = (drawn == top).all(1)
    drawn[same, -1] = outputs  # the leading set with its last mode exchanged for the next
    return drawn


def fixed_point_gaps(replicas: int, seed: int = 0) -> Gaps:
    """Velocity at the fixed points in random bases, relative to the size of its terms; and three ways to go wrong."""
    outputs, size = 3, 6
    rng = np.random.default_rng(seed)
    moments = random_moments(replicas, size, rng)
    found = modes(moments)
    kept = random_kept(replicas, outputs, size, rng, leading=False)
    turn, back = np.linalg.qr(rng.standard_normal((2, replicas, outputs, outputs)))[0]
    basis = (turn * rng.uniform(0.1, 1, (replicas, 1, outputs))) @ back  # of condition 10 at most
    point = fixed_point(found, kept, basis)
    wrong = Modes(found.values, np.linalg.inv(found.rows).swapaxes(1, 2))  # the right eigenvectors
    other = fixed_point(wrong, kept, basis)
    diagonal = point.predictor * np.eye(outputs)

    def gap(w: Weights) -> Array:
        terms = [
            np.abs(w.target @ moments.cross).max((1, 2)),
            np.abs(w.predictor @ w.online @ moments.same).max((1, 2)),
        ]
        return np.asarray(np.abs(error(w, moments)).max((1, 2)) / np.max(terms, axis=0))

    return over_instances(
        {
            "fixed": gap(point),
            "broken: right eigenvectors": gap(other),
            "broken: predictor cut to its diagonal": gap(point._replace(predictor=diagonal)),
        }
    )


def symmetry_gaps(replicas: int, seed: int = 0) -> Gaps:
    """Velocity of turned weights against the turned velocity, relative: for an orthogonal S, for twice that, for a general one."""
    outputs, size = 3, 5
    rng = np.random.default_rng(seed)
    moments, weights = random_moments(replicas, size, rng), random_weights(replicas, outputs, size, rng)
    general = rng.standard_normal((replicas, outputs, outputs))
    orthogonal = np.linalg.qr(general)[0]
    moved = velocity(weights, moments)

    def gap(basis: Array) -> Array:
        return distance(velocity(turned(weights, basis), moments), turned(moved, basis))

    return over_instances(
        {
            "orthogonal": gap(orthogonal),
            "broken: twice an orthogonal one": gap(2 * orthogonal),
            "broken: any invertible basis": gap(general),
        }
    )


def jacobian_gap(replicas: int, seed: int = 0) -> tuple[float, float]:
    """Worst relative error of `jacobian` against autograd's at random weights, and the least one without the terms in E."""
    rng = np.random.default_rng(seed)
    moments, w = random_moments(replicas, 4, rng), random_weights(replicas, 2, 4, rng)
    times = random_times(replicas, rng)
    ours = jacobian(w, moments, times)
    parts = [torch.from_numpy(np.array(a)) for a in (moments.same, moments.cross, *times)]

    def field(flat: torch.Tensor, same: torch.Tensor, cross: torch.Tensor, *tau: torch.Tensor) -> torch.Tensor:
        w1, w2, theta = (p.reshape(s) for p, s in zip(flat.split((8, 4, 8)), ((2, 4), (2, 2), (2, 4))))
        e = theta @ cross - w2 @ w1 @ same
        moved = (w2.T @ e, e @ w1.T, w1 - theta)
        return torch.cat([(part / t).flatten() for part, t in zip(moved, tau)])

    flat = torch.cat([torch.from_numpy(part).flatten(1) for part in w], 1)
    truth = torch.func.vmap(torch.func.jacrev(field))(flat, *parts).numpy()
    still = jacobian(
        w._replace(target=w.predictor @ w.online @ moments.same @ np.linalg.inv(moments.cross)), moments, times
    )
    return float(relative(ours, truth).max()), float(relative(still, truth).min())
