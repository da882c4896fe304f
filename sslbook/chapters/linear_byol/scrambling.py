r"""Two augmentations whose second moments are known exactly, and what BYOL and SimCLR keep (Appendix F.2 of [tian2021iclr]).

*Multiplicative scrambling* sends ``x`` to ``A x`` with :math:`A = P_c + U B U^T`, orthonormal columns U that span the scrambled
subspace, :math:`P_c = I - U U^T`, and a fresh ``B (k, k)`` of independent entries with mean 0 and variance 1.  For any C,
:math:`E[B C B^T] = \mathrm{tr}(C)\, I`, so that

.. math::  \Sigma_d = P_c \Sigma_x P_c, \qquad \Sigma_s = P_c \Sigma_x P_c + \mathrm{tr}(U^T \Sigma_x U)\, U U^T,

and :math:`\Sigma_d \Sigma_s^{-1} = P_c` for every :math:`\Sigma_x`.  *Additive scrambling* adds noise: :math:`\Sigma_d = \Sigma_x`,
:math:`\Sigma_s = \Sigma_x + \Sigma_n`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sslbook.arguments import require_one_of
from sslbook.chapters.linear_byol.flow import Array, Moments, Weights, random_weights
from sslbook.gaps import Gaps, over_instances, relative

Pairs = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""Draws a batch: two views ``(R, batch, d)`` of the same samples."""


def conserved(directions: Array) -> Array:
    """The projector P_c on what multiplicative scrambling leaves alone, ``(R, d, d)``, from U ``(R, d, k)``.

    Raises ValueError if the columns aren't orthonormal.
    """
    gram = directions.swapaxes(1, 2) @ directions
    if not np.abs(gram - np.eye(gram.shape[1])).max() < 1e-9:
        raise ValueError(f"directions must have orthonormal columns, got a product of {np.abs(gram).max():.3g}")
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


def scramble(x: Array, directions: Array, matrices: Array) -> Array:
    """Views ``(R, B, d)`` of samples ``x (R, B, d)`` with one ``matrices (R, B, k, k)`` for each."""
    inside = x @ directions
    turned = np.einsum("rbij,rbj->rbi", matrices, inside)
    return np.asarray(x + (turned - inside) @ directions.swapaxes(1, 2))


def moment_gaps(replicas: int, seed: int = 0, *, scrambled: int = 2) -> Gaps:
    """Multiplicative scrambling on random populations, against the sum over samples and over all sign matrices B.

    Signs have the mean, the variance and the independence that the formulas need, and there are 2^(k^2) of them; so the
    sum is exact.  The samples are correlated, so that P_c does not commute with their second moments.
    """
    samples, size = 8, 5
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((replicas, samples, size)) @ rng.standard_normal((replicas, size, size))
    basis = np.linalg.qr(rng.standard_normal((replicas, size, scrambled)))[0]
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=scrambled**2))).reshape(-1, scrambled, scrambled)
    many = np.repeat(x, len(signs), axis=1)
    views = scramble(
        many, basis, np.broadcast_to(np.tile(signs, (samples, 1, 1)), (replicas, many.shape[1], *signs[0].shape))
    )
    mean = views.reshape(replicas, samples, len(signs), size).mean(2)
    same = views.swapaxes(1, 2) @ views / views.shape[1]
    cross = mean.swapaxes(1, 2) @ mean / samples
    data = x.swapaxes(1, 2) @ x / samples
    found, kept = multiplicative(data, basis), conserved(basis)
    operator = cross @ np.linalg.inv(same)
    printed = kept @ data @ kept @ np.linalg.inv(data)

    return over_instances(
        {
            "same": relative(found.same, same),
            "cross": relative(found.cross, cross),
            "operator": relative(kept, operator),
            "broken: same is the data's": relative(data, same),
            "broken: cross is the data's": relative(data, cross),
            "broken: the printed operator": relative(printed, operator),
        }
    )


def printed_gap(replicas: int, seed: int = 0, *, scrambled: int = 1, isotropic: bool = False) -> tuple[float, float]:
    r"""Where data and P_c commute: worst relative error of :math:`\Sigma_s = \Sigma_x`, and of the printed operator against P_c.

    isotropic: whether the data's variance is the same in all scrambled directions, and B has variance 1/k, so that B keeps lengths.
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((replicas, 5, 5)))[0]
    spread = np.exp(rng.standard_normal((replicas, 1, 5)))
    if isotropic:
        spread[:, :, :scrambled] = spread[:, :, :1]
    data = (basis * spread) @ basis.swapaxes(1, 2)
    directions = basis[:, :, :scrambled]
    kept, found = conserved(directions), multiplicative(data, directions)
    same = found.cross + (found.same - found.cross) / (scrambled if isotropic else 1)
    printed = kept @ data @ kept @ np.linalg.inv(data)
    return float(relative(data, same).max()), float(relative(printed, kept).max())


def sampled_gap(moments: Moments, draw: Pairs, count: int, seed: int = 0) -> float:
    """Root mean square of (sampled - exact) over its standard error, over all entries of both matrices: 1 if they agree."""
    x1, x2 = draw(np.random.default_rng(seed), count)
    terms = []
    for left, right, exact in ((x1, x1, moments.same), (x1, x2, moments.cross)):
        products = left[..., :, None] * right[..., None, :]
        terms.append((products.mean(1) - exact) / (products.std(1) / np.sqrt(count)))
    return float(np.sqrt(np.mean(np.square(terms))))


# --- what is left for a task --------------------------------------------------------------------------------------------------


KINDS = ("multiplicative", "additive", "proportional")


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
    Raises ValueError for another kind.
    """
    require_one_of("kind", kind, KINDS)
    rng = np.random.default_rng([seed, 1])
    turn = np.linalg.qr(rng.standard_normal((replicas, 6, 6)))[0]
    spread = np.array([1.4, 1.2, 0.5, 0.4, 0.6, 0.6])
    data = (turn * spread) @ turn.swapaxes(1, 2)
    root = turn * np.sqrt(spread)
    readouts = turn / np.sqrt(spread)
    if kind == "multiplicative":
        directions = np.ascontiguousarray(turn[:, :, 4:])
        moments = multiplicative(data, directions)
    else:
        level = np.array([0.35, 0.3, 0.01, 0.01, 1.2, 1.2]) if kind == "additive" else spread / 4
        moments = additive(data, (turn * level) @ turn.swapaxes(1, 2))
        grain = turn * np.sqrt(level)

    def draw(rng: np.random.Generator, batch: int) -> tuple[Array, Array]:
        x = rng.standard_normal((replicas, batch, 6)) @ root.swapaxes(1, 2)
        if kind == "multiplicative":
            one, two = (scramble(x, directions, rng.standard_normal((replicas, batch, 2, 2))) for _ in range(2))
        else:
            one, two = (x + rng.standard_normal(x.shape) @ grain.swapaxes(1, 2) for _ in range(2))
        return one, two

    return World(moments, data, draw, readouts[:, :, :2], readouts[:, :, 2:4])


def byol(start: Weights, draw: Pairs, steps: int, rate: float, *, ema: float = 0.01, seed: int = 0) -> Weights:
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


def simclr(online: Array, draw: Pairs, steps: int, rate: float, *, seed: int = 0) -> Array:
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


def readout_error(online: Array, data: Array, task: Array) -> Array:
    r"""Share of the variance of :math:`y = \beta^T x` that no linear readout of ``W1 x`` explains, exact; ``(R,)``.

    data: Sigma_x ``(R, d, d)``.  task: beta ``(R, d)``.
    """
    seen = np.einsum("rnd,rde,re->rn", online, data, task)
    gram = online @ data @ online.swapaxes(1, 2)
    explained = np.einsum("rn,rn->r", seen, np.linalg.solve(gram, seen[..., None])[..., 0])
    return np.asarray(1 - explained / np.einsum("rd,rde,re->r", task, data, task))


def balanced_start(replicas: int, outputs: int, size: int, rng: np.random.Generator, scale: float = 0.3) -> Weights:
    r"""Random ``W1``, the predictor :math:`(W_1 W_1^T)^{1/2}`, the target ``W1``: Q = 0, no unit on the wrong side."""
    w1 = random_weights(replicas, outputs, size, rng, scale).online
    values, vectors = np.linalg.eigh(w1 @ w1.swapaxes(1, 2))
    root = (vectors * np.sqrt(values.clip(0))[:, None]) @ vectors.swapaxes(1, 2)
    return Weights(w1, root, w1)


def crossing(trained: dict[str, Array], scene: World, shares: Array, seed: int = 0) -> dict[str, Array]:
    """`readout_error` of each representation, ``(len(shares), R)``, as the label moves from the strong to the faint features.

    shares: of the label's variance that faint features carry, in [0, 1].  Labels are random combinations within each kind.
    """
    if not (np.min(shares) >= 0 and np.max(shares) <= 1):
        raise ValueError(f"shares must lie in [0, 1], got {np.min(shares):g} to {np.max(shares):g}")
    rng = np.random.default_rng([seed, 4])
    pick = rng.standard_normal((2, len(scene.data), 2))
    pick /= np.linalg.norm(pick, axis=-1, keepdims=True)
    strong, faint = (np.einsum("rdk,rk->rd", part, p) for part, p in zip((scene.strong, scene.faint), pick))
    tasks = np.sqrt(1 - shares)[:, None, None] * strong + np.sqrt(shares)[:, None, None] * faint
    return {
        name: np.stack([readout_error(online, scene.data, task) for task in tasks]) for name, online in trained.items()
    }
