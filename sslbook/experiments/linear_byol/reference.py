"""What the formulas must agree with: the flow integrated, steps in the mean, and BYOL and SimCLR trained on batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

from sslbook.experiments.linear_byol.instances import Pairs
from sslbook.experiments.linear_byol.theory import UNIT, Array, Moments, Times, Weights, distance, speed, velocity


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
        parts = velocity(unpack(flat), moments, times, predictor=predictor)
        return np.concatenate([(horizon[:, None, None] * part).ravel() for part in parts])

    flat = np.concatenate([part.ravel() for part in start])
    with np.errstate(over="ignore", invalid="ignore"):  # a trial step may be far too long; the solver then shortens it
        found = solve_ivp(move, (0, 1), flat, method=method, t_eval=grid, rtol=rtol, atol=atol)
    if found.status != 0:
        reached = max(found.t, default=0.0)
        raise ValueError(f"the solver stopped at the fraction {reached:.3g} of time: {found.message}")
    return Weights(*(np.stack(parts) for parts in zip(*(unpack(column) for column in found.y.T))))


def descend(start: Weights, moments: Moments, time: float, rate: float, *, slow: float = 1.0) -> Weights:
    """BYOL's steps in the mean: gradient steps of size ``rate``, the target an average with momentum ``1 - rate``.

    ``slow`` multiplies the target's rate and nothing else, to break the correspondence with the flow.
    """
    ema = slow * rate
    w = start
    for _ in range(round(time / rate)):
        step = velocity(w, moments)
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
    """The scalar flow with lambda_s = 1 at ``points`` times, all starts at once: ``(points, 3, R)`` with w1, w2, theta.

    ``time`` is one number or one for each start, ``(R,)``.
    """
    r = np.broadcast_to(np.asarray(ratio, dtype=float), w1.shape)[:, None, None]
    start = Weights(*(np.asarray(part, dtype=float)[:, None, None] for part in (w1, w2, theta)))
    path = integrate(start, Moments(np.ones_like(r), r.copy()), time, times, points=points, rtol=1e-8, atol=1e-10)
    return np.stack([part[:, :, 0, 0] for part in path], 1)


def planar_path(
    field: Callable[[Array, Array], tuple[Array, Array]], x: Array, y: Array, time: float, points: int = 2
) -> Array:
    """Trajectories of a planar field from many starts at once, ``(points, 2, R)``, by SciPy."""

    def move(_: float, flat: Array) -> Array:
        return np.concatenate(field(*flat.reshape(2, -1)))

    begin = np.concatenate([x, y])
    found = solve_ivp(
        move, (0, time), begin, t_eval=np.linspace(0, time, points), method="DOP853", rtol=1e-9, atol=1e-11
    )
    return np.asarray(found.y.T.reshape(points, 2, -1))


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
