"""What is drawn, and what becomes of it: moments, weights, worlds of features under two augmentations, the flow integrated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp

from sslchapters.linear_byol import theory
from sslchapters.linear_byol.theory import UNIT, Array, Modes, Moments, Times, Weights


def random_moments(
    replicas: int, size: int, rng: np.random.Generator, *, commuting: bool = False, least: float = 0.0
) -> Moments:
    r"""Random :math:`\Sigma_s, \Sigma_d` whose pencil has distinct eigenvalues between ``least`` and 1, some way apart.

    commuting: whether the two matrices share their eigenvectors.
    """
    basis = np.linalg.qr(rng.standard_normal((replicas, size, size)))[0]
    share = 0.7 * rng.dirichlet(np.ones(size + 1), replicas) + 0.3 / (size + 1)
    values = least + (1 - least) * np.cumsum(share[:, :size], axis=1)
    scale = np.exp(0.5 * rng.standard_normal((replicas, 1, size)))
    root = basis * scale
    if not commuting:
        root = root @ np.linalg.qr(rng.standard_normal((replicas, size, size)))[0]
    same, cross = root @ root.swapaxes(1, 2), (root * values[:, None]) @ root.swapaxes(1, 2)
    return Moments(*(0.5 * (m + m.swapaxes(1, 2)) for m in (same, cross)))


def random_weights(replicas: int, outputs: int, size: int, rng: np.random.Generator, scale: float = 1.0) -> Weights:
    """Gaussian weights, ``scale / sqrt(columns)`` each, the target drawn on its own."""
    w1, theta = (scale / np.sqrt(size) * rng.standard_normal((replicas, outputs, size)) for _ in range(2))
    return Weights(w1, scale / np.sqrt(outputs) * rng.standard_normal((replicas, outputs, outputs)), theta)


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


Pairs = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""Draws a batch: two views ``(R, batch, d)`` of the same samples."""


def scramble(x: Array, directions: Array, matrices: Array) -> Array:
    """Views ``(R, B, d)`` of samples ``x (R, B, d)`` with one ``matrices (R, B, k, k)`` for each."""
    inside = x @ directions
    turned = np.einsum("rbij,rbj->rbi", matrices, inside)
    return np.asarray(x + (turned - inside) @ directions.swapaxes(1, 2))


@dataclass(frozen=True)
class World:
    """Features of two kinds that survive augmentation, and others that do not, mixed by a random rotation.

    moments: exact.  data: Sigma_x ``(R, d, d)``.  draw: batches of pairs of views.  strong, faint: ``(R, d, 2)``, the
    readouts of the features of large and of small variance, each scaled to variance 1.
    """

    moments: Moments
    data: Array
    draw: Pairs
    strong: Array
    faint: Array


def world(kind: str, replicas: int, seed: int = 0) -> World:
    """Two strong features, two faint ones and two of nuisance, under ``kind`` "multiplicative", "additive" or "proportional".

    Multiplicative scrambling destroys the nuisance and nothing else.  Additive noise is large on nuisance, in
    proportion to variance on the strong features (a quarter of it), and small on the faint ones.  "proportional" is
    additive noise of a quarter of the variance on every feature, so that all shares are equal.
    """
    rng = np.random.default_rng([seed, 1])
    turn = np.linalg.qr(rng.standard_normal((replicas, 6, 6)))[0]
    spread = np.array([1.4, 1.2, 0.5, 0.4, 0.6, 0.6])
    data = (turn * spread) @ turn.swapaxes(1, 2)
    root = turn * np.sqrt(spread)
    readouts = turn / np.sqrt(spread)
    if kind == "multiplicative":
        directions = np.ascontiguousarray(turn[:, :, 4:])
        moments = theory.multiplicative(data, directions)
    else:
        level = np.array([0.35, 0.3, 0.01, 0.01, 1.2, 1.2]) if kind == "additive" else spread / 4
        moments = theory.additive(data, (turn * level) @ turn.swapaxes(1, 2))
        grain = turn * np.sqrt(level)

    def draw(rng: np.random.Generator, batch: int) -> tuple[Array, Array]:
        x = rng.standard_normal((replicas, batch, 6)) @ root.swapaxes(1, 2)
        if kind == "multiplicative":
            one, two = (scramble(x, directions, rng.standard_normal((replicas, batch, 2, 2))) for _ in range(2))
        else:
            one, two = (x + rng.standard_normal(x.shape) @ grain.swapaxes(1, 2) for _ in range(2))
        return one, two

    return World(moments, data, draw, readouts[:, :, :2], readouts[:, :, 2:4])


def balanced_start(replicas: int, outputs: int, size: int, rng: np.random.Generator, scale: float = 0.3) -> Weights:
    r"""Random ``W1``, the predictor :math:`(W_1 W_1^T)^{1/2}`, the target ``W1``: Q = 0, no unit on the wrong side."""
    w1 = random_weights(replicas, outputs, size, rng, scale).online
    return Weights(w1, _square_root(w1 @ w1.swapaxes(1, 2)), w1)


EXAMPLES: dict[str, tuple[list[float], list[int], list[list[float]]]] = {
    "sheared": ([0.8, 0.6, 0.2], [1, 2], [[1, 3], [0, 1]]),
    "small": ([0.8, 0.4, 0.1], [0, 1], [[0.2, 0], [0, 0.2]]),
    "skewed": ([0.95, 0.3, 0.25, 0.2], [0, 1, 2], [[4, 6, -6], [4, 8, -8], [-6, -6, 4]]),
}
"""Three fixed points that the paper's rule about stability gets wrong, as values, modes and basis; see `example`."""


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


def example(name: str) -> tuple[Weights, Moments]:
    r"""One problem (R = 1) with :math:`\Sigma_s = I`, diagonal :math:`\Sigma_d` and time constants 1.

    "sheared": the modes 0.6 and 0.2 in the basis [[1, 3], [0, 1]], beside a mode 0.8 that is left out; stable all the same.
    "small": the two leading modes 0.8 and 0.4 with rows of length 0.2; unstable.  "skewed": the three leading modes 0.95,
    0.3, 0.25 of four in a basis of small whole numbers; unstable, and pulled out of their row space.
    """
    values, kept, basis = EXAMPLES[name]
    moments = Moments(np.eye(len(values))[None], np.diag(values)[None])
    return theory.fixed_point(theory.modes(moments), np.array([kept]), np.array([basis], dtype=float)), moments


# --- What the formulas must agree with: the flow integrated, steps in the mean, and BYOL and SimCLR trained on batches ---


def integrate(
    start: Weights,
    moments: Moments,
    time: float | Array,
    times: Times = UNIT,
    *,
    points: int | Array = 2,
    predictor: bool = True,
    rtol: float = 1e-9,
    atol: float = 1e-12,
    method: str = "DOP853",
) -> Weights:
    """The flow by one of SciPy's solvers: weights ``(points, R, …)`` at as many equidistant times, the first 0.

    ``time`` is one number or one for each replica, ``(R,)``; all replicas run as one system, each in its own unit of time.
    ``points`` may also be an increasing array of fractions of that time.
    Raises ValueError if the solver fails.
    """
    horizon = np.broadcast_to(np.asarray(time, dtype=float), (len(start.online),))
    grid = np.linspace(0, 1, points) if isinstance(points, int) else np.asarray(points, dtype=float)
    shapes = [part.shape for part in start]
    cuts = np.cumsum([part.size for part in start])[:-1]

    def unpack(flat: Array) -> Weights:
        return Weights(*(part.reshape(shape) for part, shape in zip(np.split(flat, cuts), shapes)))

    def move(_: float, flat: Array) -> Array:
        parts = theory.velocity(unpack(flat), moments, times, predictor=predictor)
        return np.concatenate([(horizon[:, None, None] * part).ravel() for part in parts])

    flat = np.concatenate([part.ravel() for part in start])
    with np.errstate(over="ignore", invalid="ignore"):  # a trial step may be far too long; the solver then shortens it
        found = solve_ivp(move, (0, 1), flat, method=method, t_eval=grid, rtol=rtol, atol=atol)
    if found.status != 0:
        reached = max(found.t, default=0.0)
        raise ValueError(f"the solver stopped at the fraction {reached:.3g} of time: {found.message}")
    return Weights(*(np.stack(parts) for parts in zip(*(unpack(column) for column in found.y.T))))


def descend(start: Weights, moments: Moments, time: float, rate: float, *, slow: float = 1.0) -> Weights:
    """BYOL's steps in the mean; ``slow`` multiplies the target's rate alone, to break the correspondence with the flow."""
    ema = slow * rate
    w = start
    for _ in range(round(time / rate)):
        step = theory.velocity(w, moments)
        online = w.online + rate * step.online
        w = Weights(online, w.predictor + rate * step.predictor, (1 - ema) * w.target + ema * online)
    return w


def follow(
    w1: Array,
    w2: Array,
    theta: Array,
    ratio: Array | float,
    time: float | Array,
    times: Times = UNIT,
    *,
    points: int | Array = 2,
) -> Array:
    """The scalar flow with lambda_s = 1 at ``points`` times, all starts at once: ``(points, 3, R)`` with w1, w2, theta."""
    r = np.broadcast_to(np.asarray(ratio, dtype=float), w1.shape)[:, None, None]
    start = Weights(*(np.asarray(part, dtype=float)[:, None, None] for part in (w1, w2, theta)))
    path = integrate(start, Moments(np.ones_like(r), r.copy()), time, times, points=points, rtol=1e-8, atol=1e-10)
    return np.stack([part[:, :, 0, 0] for part in path], 1)


def paths(
    field: Callable[..., tuple[Array, ...]], begin: Sequence[Array], time: float, points: int = 2, rtol: float = 1e-9
) -> Array:
    """Trajectories of a field of few variables from many starts at once, ``(points, variables, …)``, by SciPy."""
    start, grid = np.stack(begin), np.linspace(0, time, points)

    def move(_: float, flat: Array) -> Array:
        return np.stack(field(*flat.reshape(start.shape))).ravel()

    found = solve_ivp(move, (0, time), start.ravel(), t_eval=grid, method="DOP853", rtol=rtol, atol=rtol / 100)
    return np.asarray(found.y.T.reshape(points, *start.shape))


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
    begin = theory.speed(now, moments, times)
    unit = 16.0 * np.sqrt(sum(np.square(a - b).sum((1, 2)) for a, b in zip(now, point))) / begin
    verdict, open_ = np.zeros(len(begin), dtype=bool), np.arange(len(begin))
    for k in range(rounds):
        here, data, tau = pick(open_, now, moments, times)
        path = integrate(here, data, 2**k * unit[open_], tau, rtol=1e-13, atol=1e-7 * push, method=method)
        here = Weights(*(part[-1] for part in path))
        for whole, part in zip(now, here):
            whole[open_] = part
        settled = theory.speed(here, data, tau) < rest * begin[open_]
        gone = theory.distance(here, pick(open_, point, moments, times)[0]) > 0.001
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


def train_byol(start: Weights, draw: Pairs, steps: int, rate: float, *, ema: float = 0.01, seed: int = 0) -> Weights:
    """BYOL by stochastic gradient on batches of pairs of views; the target an exponential average with momentum ``1 - ema``."""
    batch = 64
    rng = np.random.default_rng([seed, 2])
    w1, w2, theta = start
    for _ in range(steps):
        x1, x2 = draw(rng, batch)
        code = x1 @ w1.swapaxes(1, 2)
        e = (x2 @ theta.swapaxes(1, 2) - code @ w2.swapaxes(1, 2)) / batch
        one, two = (e @ w2).swapaxes(1, 2) @ x1, e.swapaxes(1, 2) @ code
        w1, w2 = w1 + rate * one, w2 + rate * two
        theta = theta + ema * (w1 - theta)
    return Weights(w1, w2, theta)


def train_simclr(online: Array, draw: Pairs, steps: int, rate: float, *, seed: int = 0) -> Array:
    r"""SGD on :math:`L_{simp}` through both towers, negatives from another sample of the batch, ``(R, n, d)``.

    The rows are made orthonormal after each step, as one neuron's weights are scaled to unit length: else all would turn
    to one direction.
    """
    batch = 64
    rng = np.random.default_rng([seed, 3])
    w = online
    for _ in range(steps):
        x1, x2 = draw(rng, batch)
        near, far = x1 - x2, x1 - np.roll(x1, 1, axis=1)
        w = w + rate / batch * ((w @ far.swapaxes(1, 2)) @ far - (w @ near.swapaxes(1, 2)) @ near)
        w = np.linalg.qr(w.swapaxes(1, 2))[0].swapaxes(1, 2)
    return np.asarray(w)
