"""The theory against the flow integrated: fates of random starts, decoupled units, and which fixed points are stable."""

from __future__ import annotations

import numpy as np

from sslchapters.checks import Gaps, over_instances
from sslchapters.linear_byol import instances, theory
from sslchapters.linear_byol.theory import Array, Modes, Moments, Times, Weights


def fates(starts: int, seed: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """How often each rule foretells the fate of a random start, and how far the end is from where the theory puts it.

    off: largest error of the end's w1 and w2, and ``off_without``: of w1, if Q were zero for all.
    collapsed: share that collapsed, and ``collapsed_safe``: of those with Q > 0.
    turned: share of those that survive with Q < 0 whose w1 ends with another sign than it began with, and ``turned_safe``:
    of those with Q > 0.

    Random weights, ratios and time constants, integrated; `survives` against simpler rules.

    Weights and target are normal, ratios uniform in [0.2, 0.95], the logarithms of the time constants in [-0.7, 0.7].
    Starts whose Q is within 0.1 of a threshold are left out, for they take too long to decide.  Each
    start runs for a time of 100 and then 20 e-folds of the slowest decay at its predicted end.
    """
    margin = 0.1
    rng = np.random.default_rng([seed, 5])
    times = instances.random_times(4 * starts, rng, spread=0.7)
    w1, w2, theta = rng.standard_normal((3, 4 * starts))
    r = rng.uniform(0.2, 0.95, 4 * starts)
    q, tp = theory.quantity(w1, w2, times), np.ravel(times.predictor)
    clear = np.flatnonzero((np.abs(q) > margin) & (np.abs(q + tp * r**2) > margin))[:starts]
    w1, w2, theta, r = (part[clear] for part in (w1, w2, theta, r))
    times = Times(*(np.asarray(part)[clear] for part in times))
    size, last = theory.scalar_ends(w1, w2, r, times)
    flat = Times(*map(np.ravel, times))  # at the end w1 and theta decay as a mode does that one unit keeps
    roots = theory.pair_roots(last, np.ones_like(last), r, size**2 / flat.predictor, flat)
    slowest = np.min([-root.real for root in roots], axis=0)
    end = instances.follow(w1, w2, theta, r, 100.0 + 20.0 / slowest, times)[-1]
    alive = np.abs(end[0]) > 0.02
    rules = {
        "ours": theory.survives(w1, w2, r, times),
        "always": np.ones(len(w1), dtype=bool),
        "w2 > 0": w2 > 0,
        "Q > 0": theory.quantity(w1, w2, times) > 0,
        "Q > -tau_p r^2": theory.quantity(w1, w2, times) > -np.ravel(times.predictor) * r**2,
    }
    turned, safe = end[0] * w1 < 0, theory.quantity(w1, w2, times) > 0
    off = np.abs([np.abs(end[0]) - size, end[1] - last]).max()
    free = np.broadcast_to(np.sqrt(np.ravel(times.predictor) / np.ravel(times.online)) * r, w1.shape)
    return {k: float((v == alive).mean()) for k, v in rules.items()}, {
        "off": float(off),
        "off_without": float(np.abs(np.abs(end[0]) - free)[alive].max()),
        "collapsed": float(1 - alive.mean()),
        "collapsed_safe": float(1 - alive[safe].mean()),
        "turned": float(turned[alive & ~safe].mean()),
        "turned_safe": float(turned[safe].mean()),
        "starts": len(w1),
    }


def reduction_gaps(replicas: int, seed: int = 0) -> Gaps:
    r"""The whole flow from a decoupled start against the scalar flows of its units: relative distance of all weights.

    Decoupled: each row of W1 and Theta is a multiple of a common eigenvector of both moments, a different one for each
    unit, and W2 is diagonal.  The scalar flows here run on their own equations, not through the matrices.  Worst of
    ``replicas``, and for what is broken the best: moments that don't commute, with rows along the modes; two units on one
    eigenvector; the two time constants of Eqs. 186 and 187 exchanged (their ratio is drawn away from 1).
    """
    outputs, size, time = 3, 5, 5.0
    rng = np.random.default_rng([seed, 6])
    drawn = instances.random_times(replicas, rng)
    apart = np.exp(rng.uniform(0.5, 1.5, (replicas, 1, 1)) * rng.choice([-1, 1], (replicas, 1, 1)))
    times = Times(drawn.online, drawn.online * apart, drawn.target)
    a, b, c = rng.uniform(0.3, 1.2, (3, replicas, outputs))
    to, tp, tt = (np.reshape(part, (-1, 1)) for part in times)

    def alone(lam: Array, to: Array, tp: Array) -> Array:
        def field(w1: Array, w2: Array, theta: Array) -> tuple[Array, ...]:
            e = theta * lam[1] - w2 * w1 * lam[0]
            return w2 * e / to, e * w1 / tp, (w1 - theta) / tt

        end: Array = instances.paths(field, (a, b, c), time, rtol=1e-12)[-1]
        return end

    def gap(moments: Moments, units: list[int]) -> tuple[Array, Array]:
        rows = theory.modes(moments).rows[:, units]
        unit = rows / np.linalg.norm(rows, axis=2, keepdims=True)
        lam = np.stack([np.einsum("rnd,rde,rne->rn", unit, part, unit) for part in (moments.same, moments.cross)])
        path = instances.integrate(_lay(unit, a, b, c), moments, time, times, rtol=1e-12)
        end = Weights(*(part[-1] for part in path))
        one, two = (theory.distance(end, _lay(unit, *alone(lam, *tau))) for tau in ((to, tp), (tp, to)))
        return one, two

    own, shared = list(range(outputs)), [0, 0, *range(1, outputs - 1)]
    common, general = (instances.random_moments(replicas, size, rng, commuting=same) for same in (True, False))
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


def verdicts(
    problems: int,
    outputs: int,
    size: int,
    seed: int = 0,
    *,
    balanced: bool = False,
    commuting: bool = False,
) -> dict[str, Array]:
    """Fixed points of random problems, half of them leading ones, in random bases (`_random_point`), by Jacobian and by flow.

    Of each problem, of bool: ``leading``, whether the point is made of the leading modes; ``flow``, whether it is stable by the
    flow; whether the Jacobian says the same, ``agree``, and, to go wrong, that of a flow whose predictor is held, ``agree_held``.

    ``balanced``: the bases for which Q = 0.  ``commuting``: moments that share their eigenvectors.  Left out are problems whose
    deciding eigenvalue (the largest real part of those that aren't zero) is smaller than 0.003 times the largest modulus,
    for they would take the solver long.
    """
    rng = np.random.default_rng([seed, 7, outputs])
    many = 20 * problems
    drawn = instances.random_moments(many, size, rng, commuting=commuting)
    tau = instances.random_times(many, rng)
    top = instances.random_kept(many, outputs, size, rng, leading=True)
    low = instances.random_kept(many, outputs, size, rng, leading=False)
    leads = np.arange(many) % 2 == 0
    kept = np.where(leads[:, None], top, low)
    found = theory.modes(drawn)
    point = _random_point(found, kept, tau, rng, balanced)
    matrix = theory.jacobian(point, drawn, tau)
    values = np.linalg.eigvals(matrix)
    largest = np.abs(values).max(-1, keepdims=True)
    rate = np.where(np.abs(values) > 1e-8 * largest, values.real, -np.inf).max(-1)
    clear = np.flatnonzero(np.abs(rate) > 0.003 * largest[:, 0])[:problems]
    choice = instances.pick(clear, point, drawn, tau)
    rest = np.r_[: outputs * size, outputs * (size + outputs) : matrix.shape[1]]  # without the predictor's
    held = theory.is_stable(matrix[clear][:, rest][:, :, rest])
    flow = instances.rests(*choice, seed=seed)
    agree = theory.is_stable(matrix[clear]) == flow
    return {"leading": leads[clear], "flow": flow, "agree": agree, "agree_held": held == flow}


def _random_point(found: Modes, kept: Array, times: Times, rng: np.random.Generator, balanced: bool) -> Weights:
    """The fixed point of the modes ``kept`` in a Gaussian basis of a random overall size, or in one for which Q = 0."""
    if balanced:
        return theory.fixed_point(found, kept, instances.balanced_basis(found, kept, times, rng))
    r, n = kept.shape
    size = np.exp(rng.standard_normal((r, 1, 1)))
    return theory.fixed_point(found, kept, size * rng.standard_normal((r, n, n)))


def stable_shares(
    replicas: int, outputs: int, size: int, seed: int = 0, *, balanced: bool = False, commuting: bool = False
) -> tuple[float, float]:
    """Shares of stable fixed points by the Jacobian, made of the leading modes and of others, in random or balanced bases."""
    rng = np.random.default_rng([seed, 9, outputs])
    moments = instances.random_moments(replicas, size, rng, commuting=commuting)
    tau, found, shares = instances.random_times(replicas, rng), theory.modes(moments), []
    for leading in (True, False):
        kept = instances.random_kept(replicas, outputs, size, rng, leading=leading)
        point = _random_point(found, kept, tau, rng, balanced)
        shares.append(float(theory.is_stable(theory.jacobian(point, moments, tau)).mean()))
    return shares[0], shares[1]
