r"""One unit and one mode: the scalar system of Appendix F.4 of [tian2021iclr] (Eqs. 186 to 188), its fate, and Figure 5.

With one mode of variances :math:`\lambda_s, \lambda_d` and :math:`e = \theta \lambda_d - w_2 w_1 \lambda_s`

.. math::  \tau_o \dot w_1 = w_2 e, \qquad \tau_p \dot w_2 = e w_1, \qquad \tau_t \dot\theta = w_1 - \theta,

and :math:`Q = \tau_o w_1^2 - \tau_p w_2^2` is conserved.  With :math:`r = \lambda_d / \lambda_s` the end is at :math:`w_2 = r`,
:math:`w_1^2 = \theta^2 = (Q + \tau_p r^2) / \tau_o`, or, if
:math:`Q \le -\tau_p r^2` or both :math:`Q \le 0` and :math:`w_2(0) < 0`, at :math:`w_1 = \theta = 0`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp

from sslbook.arguments import require_one_of
from sslbook.chapters.linear_byol.flow import UNIT, Array, Moments, Times, Weights, distance, integrate, random_moments
from sslbook.chapters.linear_byol.stability import modes, pair_roots, random_times
from sslbook.gaps import Gaps, over_instances

PORTRAITS = ("fixed target", "tied predictor", "no predictor")
"""The three panels of Figure 5, by their titles there."""


def quantity(w1: Array, w2: Array, times: Times = UNIT) -> Array:
    r""":math:`Q = \tau_o w_1^2 - \tau_p w_2^2`, in the shape of its arguments."""
    return np.asarray(_plain(times.online) * w1**2 - _plain(times.predictor) * w2**2)


def survives(w1: Array, w2: Array, ratio: Array | float, times: Times = UNIT) -> Array:
    r"""Whether the flow from these weights ends at a solution that isn't collapsed: bool, in their shape; theta doesn't matter.

    It does iff Q > 0, or :math:`w_2 > 0` and :math:`Q > -\tau_p r^2`.  (The exception are starts that run into
    the saddle at w1 = theta = 0, a curve in (w1, theta) for each Q.)  Raises ValueError for a ratio outside (0, 1].
    """
    ratios = np.asarray(ratio, dtype=float)
    if not ((ratios > 0) & (ratios <= 1)).all():
        raise ValueError(f"ratio must lie in (0, 1], got {ratios.min():g} to {ratios.max():g}")
    q = quantity(w1, w2, times)
    return np.asarray((q > 0) | ((w2 > 0) & (q > -_plain(times.predictor) * ratios**2)))


def ends(w1: Array, w2: Array, ratio: Array | float, times: Times = UNIT) -> tuple[Array, Array]:
    r"""Where the flow ends: :math:`|w_1|` and :math:`w_2`, in the shape of the weights at the start."""
    q, alive = quantity(w1, w2, times), survives(w1, w2, ratio, times)
    to, tp = _plain(times.online), _plain(times.predictor)
    r = np.broadcast_to(np.asarray(ratio, dtype=float), np.shape(q))
    size = np.sqrt(np.where(alive, q + tp * r**2, 0).clip(0) / to)
    return size, np.where(alive, r, np.sign(w2) * np.sqrt((-q).clip(0) / tp))


def _plain(value: float | Array) -> Array:
    """A time constant, as many in a row as there are."""
    return np.asarray(value, dtype=float).reshape(-1) if np.ndim(value) else np.asarray(value, dtype=float)


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


@dataclass(frozen=True)
class Fates:
    """How often a rule foretells the fate of a random start, and how far the end is from where the theory puts it.

    rules: share of starts that each rule gets right.  off: largest error of the end's w1 and w2, and ``off_without``: of w1, if Q
    were zero for all.  collapsed: share that collapsed, and ``collapsed_safe``: of those with Q > 0.
    turned: share of those that survive with Q < 0 whose w1 ends with another sign than it began with, and ``turned_safe``:
    of those with Q > 0.
    """

    rules: dict[str, float]
    off: float
    off_without: float
    collapsed: float
    collapsed_safe: float
    turned: float
    turned_safe: float
    starts: int


def slowest(w1: Array, w2: Array, ratio: Array, times: Times = UNIT) -> Array:
    r"""Rate of the slowest decay towards the end that `ends` foretells, ``(R,)``, with lambda_s = 1.

    There :math:`(w_1, \theta)` decay with the roots of

    .. math::
        \tau_o \tau_t \mu^2 + (\tau_o + \tau_t (\tau_o q + w_2^2)) \mu + \tau_o q + w_2 (w_2 - r) = 0,
        \qquad q = w_1^2 / \tau_p.
    """
    size, level = ends(w1, w2, ratio, times)
    flat = Times(*map(_plain, times))
    roots = pair_roots(level, np.ones_like(level), ratio, size**2 / flat.predictor, flat)
    return np.asarray(np.min([-root.real for root in roots], axis=0))


def fates(starts: int, seed: int = 0) -> Fates:
    """Random weights, ratios and time constants, integrated; `survives` against simpler rules.

    Weights and target are normal, ratios uniform in [0.2, 0.95], the logarithms of the time constants in [-0.7, 0.7].
    Starts whose Q is within 0.1 of a threshold are left out, for they take too long to decide.  Each
    start runs for a time of 100 and then 20 e-folds of the slowest decay at its predicted end.
    """
    margin = 0.1
    rng = np.random.default_rng([seed, 5])
    times = random_times(4 * starts, rng, spread=0.7)
    w1, w2, theta = rng.standard_normal((3, 4 * starts))
    r = rng.uniform(0.2, 0.95, 4 * starts)
    q, tp = quantity(w1, w2, times), _plain(times.predictor)
    clear = np.flatnonzero((np.abs(q) > margin) & (np.abs(q + tp * r**2) > margin))[:starts]
    w1, w2, theta, r = (part[clear] for part in (w1, w2, theta, r))
    times = Times(*(np.asarray(part)[clear] for part in times))
    end = follow(w1, w2, theta, r, 100.0 + 20.0 / slowest(w1, w2, r, times), times)[-1]
    size, last = ends(w1, w2, r, times)
    alive = np.abs(end[0]) > 0.02
    rules = {
        "ours": survives(w1, w2, r, times),
        "always": np.ones(len(w1), dtype=bool),
        "w2 > 0": w2 > 0,
        "Q > 0": quantity(w1, w2, times) > 0,
        "Q > -tau_p r^2": quantity(w1, w2, times) > -_plain(times.predictor) * r**2,
        "theta with w1": (theta * w1 > 0) & (w2 > 0),
    }
    turned, safe = end[0] * w1 < 0, quantity(w1, w2, times) > 0
    off = np.abs([np.abs(end[0]) - size, end[1] - last]).max()
    free = np.broadcast_to(np.sqrt(_plain(times.predictor) / _plain(times.online)) * r, w1.shape)
    return Fates(
        rules={k: float((v == alive).mean()) for k, v in rules.items()},
        off=float(off),
        off_without=float(np.abs(np.abs(end[0]) - free)[alive].max()),
        collapsed=float(1 - alive.mean()),
        collapsed_safe=float(1 - alive[safe].mean()),
        turned=float(turned[alive & ~safe].mean()),
        turned_safe=float(turned[safe].mean()),
        starts=len(w1),
    )


def reduction_gaps(replicas: int, seed: int = 0) -> Gaps:
    r"""The whole flow from a decoupled start against the scalar flows of its units: relative distance of all weights.

    Decoupled: each row of W1 and Theta is a multiple of a common eigenvector of both moments, a different one for each
    unit, and W2 is diagonal.  The scalar flows here run on their own equations, not through the matrices.  Worst of
    ``replicas``, and for what is broken the best: moments that don't commute, with rows along the modes; two units on one
    eigenvector; the two time constants of Eqs. 186 and 187 exchanged (their ratio is drawn away from 1).
    """
    outputs, size, time = 3, 5, 5.0
    rng = np.random.default_rng([seed, 6])
    drawn = random_times(replicas, rng)
    apart = np.exp(rng.uniform(0.5, 1.5, (replicas, 1, 1)) * rng.choice([-1, 1], (replicas, 1, 1)))
    times = Times(drawn.online, drawn.online * apart, drawn.target)
    a, b, c = rng.uniform(0.3, 1.2, (3, replicas, outputs))
    to, tp, tt = (np.reshape(part, (-1, 1)) for part in times)

    def alone(lam: Array, to: Array, tp: Array) -> Array:
        def move(_: float, flat: Array) -> Array:
            w1, w2, theta = flat.reshape(3, replicas, outputs)
            e = theta * lam[1] - w2 * w1 * lam[0]
            return np.concatenate([(w2 * e / to).ravel(), (e * w1 / tp).ravel(), ((w1 - theta) / tt).ravel()])

        begin = np.concatenate([part.ravel() for part in (a, b, c)])
        path = solve_ivp(move, (0, time), begin, method="DOP853", rtol=1e-12, atol=1e-14)
        return np.asarray(path.y[:, -1].reshape(3, replicas, outputs))

    def gap(moments: Moments, units: list[int]) -> tuple[Array, Array]:
        rows = modes(moments).rows[:, units]
        unit = rows / np.linalg.norm(rows, axis=2, keepdims=True)
        lam = np.stack([np.einsum("rnd,rde,rne->rn", unit, part, unit) for part in (moments.same, moments.cross)])
        path = integrate(_lay(unit, a, b, c), moments, time, times, rtol=1e-12)
        end = Weights(*(part[-1] for part in path))
        one, two = (distance(end, _lay(unit, *alone(lam, *tau))) for tau in ((to, tp), (tp, to)))
        return one, two

    own, shared = list(range(outputs)), [0, 0, *range(1, outputs - 1)]
    common, general = random_moments(replicas, size, rng, commuting=True), random_moments(replicas, size, rng)
    right, exchanged = gap(common, own)
    return over_instances(
        {
            "scalars": right,
            "broken: moments that do not commute": gap(general, own)[0],
            "broken: two units on one eigenvector": gap(common, shared)[0],
            "broken: time constants exchanged": exchanged,
        }
    )


def _lay(unit: Array, w1: Array, w2: Array, theta: Array) -> Weights:
    """Scalars ``(R, n)`` as matrices: rows along ``unit (R, n, d)``, a diagonal predictor."""
    return Weights(w1[..., None] * unit, w2[..., None] * np.eye(w2.shape[1]), theta[..., None] * unit)


# --- Figure 5 ----------------------------------------------------------------------------------------------------------------


def portrait(kind: str, ratio: float, *, theta: float = 1.0) -> Callable[[Array, Array], tuple[Array, Array]]:
    r"""The planar velocity of a panel of Figure 5, with lambda_s = 1 and :math:`\tau_o = \tau_p = 1`.

    "fixed target": (w1, w2) at a given ``theta``.  "tied predictor": (w, theta) with w1 = w2 = w.  "no predictor": (w, theta)
    with w2 = 1.  Raises ValueError for another kind.
    """
    require_one_of("kind", kind, PORTRAITS)
    if kind == "fixed target":
        return lambda x, y: (y * (theta * ratio - x * y), x * (theta * ratio - x * y))
    if kind == "tied predictor":
        return lambda x, y: (x * (y * ratio - x * x), x - y)
    return lambda x, y: (y * ratio - x, x - y)


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


def planar_spectrum(field: Callable[[Array, Array], tuple[Array, Array]], x: float, y: float) -> Array:
    """Eigenvalues of a planar field's Jacobian, by complex steps: exact but for rounding; ``(2,)`` complex."""
    step = 1e-30
    columns = [
        np.imag(np.array(field(np.asarray(x + dx), np.asarray(y + dy)))) / step
        for dx, dy in ((1j * step, 0), (0, 1j * step))
    ]
    return np.sort_complex(np.linalg.eigvals(np.stack(columns, 1)))
