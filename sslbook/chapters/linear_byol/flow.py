r"""The flow of linear BYOL, Eqs. 179 to 181 of Appendix F of [tian2021iclr], what it conserves, and the
steps that it is the limit of.

The online network is one linear layer ``W1 (n, d)``, the predictor ``W2 (n, n)``, the target ``Theta (n, d)``.  For two views of a
sample the loss is :math:`L = \frac12 \|W_2 W_1 x_1 - \Theta x_2\|^2`, with no gradient to :math:`\Theta`, which follows
:math:`W_1`.  (The paper writes L without its half; that only doubles the rates.)  In the mean the data enter through two matrices,

.. math::  \Sigma_s = E[x_1 x_1^T], \qquad \Sigma_d = E[x_1 x_2^T] = E[\bar x \bar x^T],

and with :math:`E = \Theta \Sigma_d - W_2 W_1 \Sigma_s` the flow is

.. math::  \tau_o \dot W_1 = W_2^T E, \qquad \tau_p \dot W_2 = E W_1^T, \qquad \tau_t \dot\Theta = W_1 - \Theta.

Arrays are NumPy's, float64, with a leading replica axis ``R``: many problems are one system of equations for SciPy's solver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from sslbook.gaps import Gaps, over_instances

Array = NDArray[Any]


class Weights(NamedTuple):
    """``online (R, n, d)``, ``predictor (R, n, n)``, ``target (R, n, d)``; or the velocity of each."""

    online: Array
    predictor: Array
    target: Array


@dataclass(frozen=True)
class Moments:
    r"""What the flow knows of data and augmentation.

    same: :math:`\Sigma_s` ``(R, d, d)``, a view with itself.  cross: :math:`\Sigma_d` ``(R, d, d)``, two views of one sample.
    """

    same: Array
    cross: Array

    def __post_init__(self) -> None:
        """Raises ValueError for wrong shapes, matrices that aren't symmetric, a ``same`` that isn't positive definite."""
        for name, matrix in (("same", self.same), ("cross", self.cross)):
            if matrix.ndim != 3 or matrix.shape[1] != matrix.shape[2]:
                raise ValueError(f"{name} must have shape (R, d, d), got {matrix.shape}")
            scale = max(float(np.abs(matrix).max()), 1e-300)
            if not np.abs(matrix - matrix.swapaxes(1, 2)).max() <= 1e-9 * scale:
                raise ValueError(f"{name} must be symmetric, got an asymmetry of {_asymmetry(matrix):.2g}")
        if self.same.shape != self.cross.shape:
            raise ValueError(f"same and cross must have one shape, got {self.same.shape} and {self.cross.shape}")
        least = float(np.linalg.eigvalsh(self.same).min())
        if not least > 0:
            raise ValueError(f"same must be positive definite, got an eigenvalue of {least:.2g}")

    @property
    def operator(self) -> Array:
        r""":math:`M = \Sigma_d \Sigma_s^{-1}`, ``(R, d, d)``: its left eigenvectors are what BYOL can learn."""
        return np.linalg.solve(self.same, self.cross).swapaxes(1, 2)


def _asymmetry(matrix: Array) -> float:
    return float(np.abs(matrix - matrix.swapaxes(1, 2)).max())


@dataclass(frozen=True)
class Times:
    r"""Time constants :math:`\tau_o, \tau_p, \tau_t` of online network, predictor and target; numbers, or ``(R, 1, 1)``."""

    online: float | Array = 1.0
    predictor: float | Array = 1.0
    target: float | Array = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for a time constant that isn't positive."""
        for name in ("online", "predictor", "target"):
            least = float(np.min(getattr(self, name)))
            if not least > 0:
                raise ValueError(f"{name} must be a positive time constant, got {least:g}")

    def __iter__(self) -> Iterator[float | Array]:
        return iter((self.online, self.predictor, self.target))


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
    Raises ValueError for a time that isn't positive, fewer than two points, or if the solver fails.
    """
    horizon = np.broadcast_to(np.asarray(time, dtype=float), (len(start.online),))
    if not (horizon > 0).all():
        raise ValueError(f"time must be positive, got {horizon.min():g}")
    grid = np.linspace(0, 1, points) if isinstance(points, int) else np.asarray(points, dtype=float)
    if len(grid) < 2:
        raise ValueError(f"points must be at least 2, got {len(grid)}")
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


def descend(
    start: Weights, moments: Moments, time: float, rate: float, times: Times = UNIT, *, slow: float = 1.0
) -> Weights:
    r"""BYOL's steps in the mean: gradient steps of size ``rate / tau``, the target an average with momentum ``1 - rate / tau_t``.

    ``slow`` multiplies the target's rate and nothing else, to break the correspondence with the flow.  Raises ValueError
    where the target's rate exceeds 1.
    """
    ema = slow * rate / np.asarray(times.target)
    if not (ema <= 1).all():
        raise ValueError(f"rate / tau_t must be at most 1, got {float(np.max(ema)):g}")
    w = start
    for _ in range(round(time / rate)):
        step = velocity(w, moments, times)
        online = w.online + rate * step.online
        w = Weights(online, w.predictor + rate * step.predictor, (1 - ema) * w.target + ema * online)
    return w


def distance(found: Weights, goal: Weights) -> Array:
    """Relative distance of all weights together, ``(R,)``."""
    gap = sum(np.square(a - b).sum((-2, -1)) for a, b in zip(found, goal))
    return np.asarray(np.sqrt(gap / sum(np.square(b).sum((-2, -1)) for b in goal)))


def step_gap(start: Weights, moments: Moments, times: Times = UNIT) -> tuple[float, float]:
    r"""How a gradient step changes Q, against :math:`\eta^2 (\tau_o \dot W_1 \dot W_1^T - \tau_p \dot W_2^T \dot W_2)`.

    Relative to the change; and the same with the sum of the two in place of their difference.
    """
    rate = 0.1
    step = velocity(start, moments, times)
    after = Weights(*(part + rate * move for part, move in zip(start, step)))
    change = balance(after, times) - balance(start, times)
    two = times.online * step.online @ step.online.swapaxes(1, 2)
    one = times.predictor * step.predictor.swapaxes(1, 2) @ step.predictor
    scale = np.abs(change).max()
    return float(np.abs(change - rate**2 * (two - one)).max() / scale), float(
        np.abs(change - rate**2 * (two + one)).max() / scale
    )


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


def flow_gaps(replicas: int, seed: int = 0) -> Gaps:
    """The flow's velocity against autograd on the loss of every pair of views, relative, the worst of ``replicas``."""
    samples, views = 6, 3
    rng = np.random.default_rng(seed)
    outputs, size = 3, 5
    x = rng.standard_normal((replicas, samples, views, size)) + 2 * rng.standard_normal((replicas, samples, 1, size))
    mean = x.mean(2)
    same = np.einsum("rivd,rive->rde", x, x) / (samples * views)
    cross = np.einsum("rid,rie->rde", mean, mean) / samples
    w = random_weights(replicas, outputs, size, rng)
    times = Times(*(rng.uniform(0.3, 3, (replicas, 1, 1)) for _ in range(3)))
    ours = velocity(w, Moments(same, cross), times)
    w1, w2, theta = (torch.from_numpy(part).requires_grad_(True) for part in w)
    data = torch.from_numpy(x)
    predicted = torch.einsum("rnm,rmd,rivd->rivn", w2, w1, data)
    goal = torch.einsum("rnd,rivd->rivn", theta.detach(), data)
    loss = 0.5 * (predicted[:, :, :, None] - goal[:, :, None]).square().sum(-1).mean((1, 2, 3))
    g1, g2 = torch.autograd.grad(loss.sum(), (w1, w2))
    truth = Weights(-g1.numpy() / times.online, -g2.numpy() / times.predictor, ours.target)
    swapped = velocity(w, Moments(same, cross), Times(times.predictor, times.online, times.target))
    blind = velocity(w, Moments(same, same), times)
    return over_instances(
        {
            "autograd": distance(ours, truth),
            "broken: one matrix for both": distance(blind, truth),
            "broken: time constants exchanged": distance(swapped, truth),
        }
    )
