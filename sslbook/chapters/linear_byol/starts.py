r"""Where the flow goes from a random start, and whether Jacobian and flow give one verdict (Appendix F.1 of [tian2021iclr])."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sslbook.arguments import require_one_of
from sslbook.chapters.linear_byol.flow import (
    UNIT,
    Array,
    Moments,
    Times,
    Weights,
    integrate,
    random_moments,
    random_weights,
)
from sslbook.chapters.linear_byol.scrambling import balanced_start
from sslbook.chapters.linear_byol.stability import (
    Modes,
    alignment,
    fixed_point,
    is_stable,
    jacobian,
    modes,
    pick,
    random_kept,
    random_times,
    rests,
)

EXAMPLES: dict[str, tuple[list[float], list[int], list[list[float]]]] = {
    "sheared": ([0.8, 0.6, 0.2], [1, 2], [[1, 3], [0, 1]]),
    "small": ([0.8, 0.4, 0.1], [0, 1], [[0.2, 0], [0, 0.2]]),
    "skewed": ([0.95, 0.3, 0.25, 0.2], [0, 1, 2], [[4, 6, -6], [4, 8, -8], [-6, -6, 4]]),
}
"""Three fixed points that the paper's rule about stability gets wrong, as values, modes and basis; see `example`."""

STARTS = ("balanced", "reflected", "gaussian", "identity")


@dataclass(frozen=True)
class Verdicts:
    """One line a fixed point, all ``(R,)`` of bool: made of the leading modes; stable by the Jacobian; by the flow; and,
    to go wrong, by the Jacobian of a flow whose predictor is held."""

    leading: Array
    jacobian: Array
    flow: Array
    held: Array

    @property
    def agree(self) -> float:
        """Share of the problems on which Jacobian and flow agree."""
        return float((self.jacobian == self.flow).mean())

    @property
    def agree_held(self) -> float:
        """The same for the Jacobian of a flow whose predictor is held."""
        return float((self.held == self.flow).mean())


def verdicts(
    problems: int,
    outputs: int,
    size: int,
    seed: int = 0,
    *,
    slowest: float = 0.003,
    balanced: bool = False,
    commuting: bool = False,
) -> Verdicts:
    """Fixed points of random problems, half of them leading ones, in random bases (`_random_basis`), by Jacobian and by flow.

    ``balanced``: the bases for which Q = 0.  ``commuting``: moments that share their eigenvectors.  Left out are problems whose
    deciding eigenvalue (the largest real part of those that aren't zero) is smaller than ``slowest`` times the largest modulus,
    for they would take the solver long.
    Raises ValueError if fewer than ``problems`` are left of twenty times as many.
    """
    rng = np.random.default_rng([seed, 7, outputs])
    many = 20 * problems
    drawn = random_moments(many, size, rng, commuting=commuting)
    tau = random_times(many, rng)
    top = random_kept(many, outputs, size, rng, leading=True)
    low = random_kept(many, outputs, size, rng, leading=False)
    leads = np.arange(many) % 2 == 0
    kept = np.where(leads[:, None], top, low)
    found = modes(drawn)
    point = _random_point(found, kept, tau, rng, balanced)
    matrix = jacobian(point, drawn, tau)
    values = np.linalg.eigvals(matrix)
    largest = np.abs(values).max(-1, keepdims=True)
    rate = np.where(np.abs(values) > 1e-8 * largest, values.real, -np.inf).max(-1)
    clear = np.flatnonzero(np.abs(rate) > slowest * largest[:, 0])[:problems]
    if len(clear) < problems:
        raise ValueError(f"problems={problems} asks for more than the {len(clear)} clear ones among {many}")
    choice = pick(clear, point, drawn, tau)
    rest = np.r_[: outputs * size, outputs * (size + outputs) : matrix.shape[1]]  # without the predictor's
    held = is_stable(matrix[clear][:, rest][:, :, rest])
    return Verdicts(leads[clear], is_stable(matrix[clear]), rests(*choice, seed=seed), held)


def _random_point(found: Modes, kept: Array, times: Times, rng: np.random.Generator, balanced: bool) -> Weights:
    """The fixed point of the modes ``kept`` in a random basis, or in one for which Q = 0."""
    basis = balanced_basis(found, kept, times, rng) if balanced else _random_basis(len(kept), kept.shape[1], rng)
    return fixed_point(found, kept, basis)


def _random_basis(replicas: int, outputs: int, rng: np.random.Generator) -> Array:
    """Gaussian bases of the hidden layer, each of a random overall size, ``(R, n, n)``."""
    size = np.exp(rng.standard_normal((replicas, 1, 1)))
    return np.asarray(size * rng.standard_normal((replicas, outputs, outputs)))


def balanced_basis(found: Modes, kept: Array, times: Times, rng: np.random.Generator) -> Array:
    r"""Bases S with :math:`\tau_o W_1 W_1^T = \tau_p W_2^T W_2`, ``(R, n, n)``: a random rotation O times a root of the one
    :math:`G = S^T S` there is.

    With :math:`D = V V^T` and :math:`\kappa = \tau_p / \tau_o` it solves :math:`G D G = \kappa \Lambda G \Lambda`: G is the
    geometric mean of :math:`D^{-1}` and :math:`\kappa \Lambda G \Lambda`, a map that halves distances (Thompson's), so that
    iterating it converges.
    """
    r, n = kept.shape
    rows = np.take_along_axis(found.rows, kept[..., None], axis=1)
    values = np.take_along_axis(found.values, kept, axis=1)
    share = np.broadcast_to(np.asarray(times.predictor) / np.asarray(times.online), (r, 1, 1))
    half = _square_root(rows @ rows.swapaxes(1, 2))
    back, gram = np.linalg.inv(half), np.tile(np.eye(n), (r, 1, 1))
    for _ in range(60):  # each halves what is left
        inner = half @ (share * values[:, :, None] * gram * values[:, None]) @ half
        gram = back @ _square_root(inner) @ back
        gram = 0.5 * (gram + gram.swapaxes(1, 2))
    turn = np.linalg.qr(rng.standard_normal((r, n, n)))[0]
    return np.asarray(turn @ _square_root(gram))


def _square_root(matrix: Array) -> Array:
    """The positive root of symmetric positive matrices, ``(R, n, n)``."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(values.clip(0))[:, None]) @ vectors.swapaxes(1, 2))


def stable_shares(
    replicas: int, outputs: int, size: int, seed: int = 0, *, balanced: bool = False, commuting: bool = False
) -> tuple[float, float]:
    """Shares of stable fixed points by the Jacobian, made of the leading modes and of others, in random or balanced bases."""
    rng = np.random.default_rng([seed, 9, outputs])
    moments, tau = random_moments(replicas, size, rng, commuting=commuting), random_times(replicas, rng)
    found, shares = modes(moments), []
    for leading in (True, False):
        kept = random_kept(replicas, outputs, size, rng, leading=leading)
        point = _random_point(found, kept, tau, rng, balanced)
        shares.append(float(is_stable(jacobian(point, moments, tau)).mean()))
    return shares[0], shares[1]


def example(name: str) -> tuple[Weights, Moments]:
    r"""One problem (R = 1) with :math:`\Sigma_s = I`, diagonal :math:`\Sigma_d` and time constants 1.

    "sheared": the modes 0.6 and 0.2 in the basis [[1, 3], [0, 1]], beside a mode 0.8 that is left out; stable all the same.
    "small": the two leading modes 0.8 and 0.4 with rows of length 0.2; unstable.  "skewed": the three leading modes 0.95,
    0.3, 0.25 of four in a basis of small whole numbers; unstable, and pulled out of their row space.
    Raises ValueError for another name.
    """
    require_one_of("name", name, EXAMPLES)
    values, kept, basis = EXAMPLES[name]
    moments = Moments(np.eye(len(values))[None], np.diag(values)[None])
    return fixed_point(modes(moments), np.array([kept]), np.array([basis], dtype=float)), moments


CIRCLING = ([0.6, 0.2, 0.1], [[0, 1, 0], [2, -1, 1], [3, 0, 1]])
"""Shares h and a matrix B of a problem on which balanced weights never rest; see `circling`."""


def circling(*, commuting: bool = False) -> tuple[Weights, Moments]:
    r"""A problem (R = 1) of moments that don't commute, and its balanced fixed point of the two leading modes: unstable.

    :math:`\Sigma_s = B B^T` and :math:`\Sigma_d = B\, \mathrm{diag}(h)\, B^T` for the matrix B and the shares h of
    :data:`CIRCLING`.
    commuting: with the lengths of B's columns, made orthogonal, and nothing else changed.
    """
    shares, matrix = (np.array(part, dtype=float) for part in CIRCLING)
    if commuting:
        matrix = np.diag(np.linalg.norm(matrix, axis=0))
    cross = (matrix * shares) @ matrix.T
    moments = Moments((matrix @ matrix.T)[None], 0.5 * (cross + cross.T)[None])
    found, kept = modes(moments), np.array([[0, 1]])
    basis = balanced_basis(found, kept, UNIT, np.random.default_rng(0))
    return fixed_point(found, kept, basis), moments


@dataclass(frozen=True)
class Ends:
    """Where flows end.  rank: of W1, ``(R,)``.  leading: the row space is that of the leading modes, ``(R,)`` of bool.

    asymmetry: of W2, relative, ``(R,)``.
    """

    rank: Array
    leading: Array
    asymmetry: Array
    outputs: int

    @property
    def full(self) -> Array:
        """No unit is lost, ``(R,)`` of bool."""
        return np.asarray(self.rank == self.outputs)


def random_start(kind: str, replicas: int, outputs: int, size: int, rng: np.random.Generator) -> Weights:
    """Small random weights: "balanced" with the positive root as predictor, "reflected" with a random orthogonal matrix of
    determinant -1 before that root (still Q = 0), "gaussian" without any order, "identity" with the predictor I.

    Raises ValueError for another kind.
    """
    scale = 0.1
    require_one_of("kind", kind, STARTS)
    if kind == "gaussian":
        return random_weights(replicas, outputs, size, rng, scale)
    start = balanced_start(replicas, outputs, size, rng, scale)
    if kind == "identity":
        return start._replace(predictor=np.tile(np.eye(outputs), (replicas, 1, 1)))
    if kind == "reflected":
        turn = np.linalg.qr(rng.standard_normal((replicas, outputs, outputs)))[0]
        turn[np.linalg.det(turn) > 0, :, 0] *= -1
        return start._replace(predictor=turn @ start.predictor)
    return start


def ends(kind: str, replicas: int, outputs: int = 2, size: int = 4, seed: int = 0, *, commuting: bool = False) -> Ends:
    """The flow from small random starts on random problems until it (nearly) rests, all time constants 1."""
    rng = np.random.default_rng([seed, 8, *kind.encode()])
    moments = random_moments(replicas, size, rng, commuting=commuting, least=0.3)
    start = random_start(kind, replicas, outputs, size, rng)
    path = integrate(start, moments, 600.0, rtol=1e-7)
    last = Weights(*(part[-1] for part in path))
    rank = (np.linalg.svd(last.online, compute_uv=False) > 0.05).sum(-1)
    near = alignment(last.online, modes(moments).rows[:, :outputs]) > 0.99
    skew = np.linalg.norm(last.predictor - last.predictor.swapaxes(1, 2), axis=(1, 2))
    return Ends(rank, near & (rank == outputs), skew / np.linalg.norm(last.predictor, axis=(1, 2)), outputs)
