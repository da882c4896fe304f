r"""Two layers as one flow: Eq. 65 and Eq. 8 of [tian2021iclr], and what they conserve (claim B-Thm5).

A node ``j`` has incoming weights :math:`w_{1j} \in R^d`, outgoing weights :math:`w_{2j} \in R^{n_2}`, and
the mean of the inputs that activate it, :math:`u_j(z_0) = E[x\, 1(w_{1j}^T x \ge 0) | z_0]`.
With :math:`A_{jk} = Cov_{z_0}[u_j, u_k]` and :math:`C_j = \sum_k A_{jk} w_{1k} w_{2k}^T`
the expected step of L_simp through one tower is

.. math::  \dot w_{1j} = C_j w_{2j}, \qquad \dot w_{2j} = C_j^T w_{1j},

and twice that through both.  Shapes: ``w1 (R, n, d)``, ``w2 (R, n, n_2)`` (rows are nodes), ``u (R, K, n, d)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from sslbook.chapters.emergence.mixture import Mixture
from sslbook.gaps import Gaps, over_instances, relative

Velocity = tuple[Tensor, Tensor]


def gated_means(x: Tensor, w1: Tensor, *, linear: bool = False) -> Tensor:
    """``u (R, K, n, d)`` of a finite population ``x (R, K, V, d)``: K identities with V equally likely views each."""
    gate = torch.einsum("rkvd,rnd->rkvn", x, w1) > 0
    gate = torch.ones_like(gate) if linear else gate
    return torch.einsum("rkvn,rkvd->rknd", gate.to(x.dtype), x) / x.shape[2]


def velocity(w1: Tensor, w2: Tensor, u: Tensor, *, centred: bool = True) -> Velocity:
    r"""Eq. 65: :math:`(C_j w_{2j}, C_j^T w_{1j})`, without forming any :math:`A_{jk}`: :math:`C_j = Cov[u_j, \bar f]`.

    Not ``centred`` it is wrong, with second moments over identities in place of covariances.
    """
    u = u - u.mean(1, keepdim=True) if centred else u
    output = torch.einsum("rknd,rnd,rno->rko", u, w1, w2)
    q = torch.einsum("rknd,rko->rndo", u, output) / u.shape[1]
    return torch.einsum("rndo,rno->rnd", q, w2), torch.einsum("rndo,rnd->rno", q, w1)


def diagonal_velocity(w1: Tensor, w2: Tensor, u: Tensor) -> Velocity:
    r"""Eq. 8, for ``w2 (R, n)``, the diagonal: :math:`(w_{2j}^2 A_j w_{1j}, (w_{1j}^T A_j w_{1j}) w_{2j})`."""
    u = u - u.mean(1, keepdim=True)
    response = torch.einsum("rknd,rnd->rkn", u, w1)
    pull = torch.einsum("rknd,rkn->rnd", u, response) / u.shape[1]
    return w2[..., None].square() * pull, response.square().mean(1) * w2


def _enumerated_velocity(x: Tensor, w1: Tensor, w2: Tensor, *, linear: bool = False, both: bool = True) -> Velocity:
    """Minus the autograd gradient of L_simp, its mean over all anchors, positives and negatives of ``x (R, K, V, d)``.

    ``w2 (R, n, n_2)``, or ``(R, n)`` for a diagonal second layer whose other entries are fixed at zero.
    """
    leaves = [w.clone().requires_grad_(True) for w in (w1, w2)]
    h = torch.einsum("rkvd,rnd->rkvn", x, leaves[0])
    h = h if linear else h.relu()
    y = h * leaves[1][:, None, None] if w2.ndim == 2 else torch.einsum("rkvn,rno->rkvo", h, leaves[1])
    partner = y if both else y.detach()

    def half(a: Tensor, b: Tensor) -> Tensor:
        return 0.5 * (a - b).square().sum(-1).flatten(1).mean(1)

    positive = half(y[:, :, :, None], partner[:, :, None])
    negative = half(y.flatten(1, 2)[:, :, None], partner.flatten(1, 2)[:, None])
    one, two = torch.autograd.grad((negative - positive).sum(), leaves)
    return one, two


def flow_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """Eq. 65 and Eq. 8 against the enumerated gradient on ``count`` random instances, ReLU and linear: relative errors."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    r, n, d, out = count, 4, 5, 3
    x, w1, w2, diagonal = normal(r, 4, 6, d) + normal(r, 4, 1, d), normal(r, n, d), normal(r, n, out), normal(r, n)
    parts = []
    for linear in (False, True):
        kind = "linear" if linear else "ReLU"
        u = gated_means(x, w1, linear=linear)
        one = _enumerated_velocity(x, w1, w2, linear=linear, both=False)
        two = _enumerated_velocity(x, w1, w2, linear=linear)
        flow = velocity(w1, w2, u)
        masked = _enumerated_velocity(x, w1, diagonal, linear=linear, both=False)
        eq8 = diagonal_velocity(w1, diagonal, u)
        own = velocity(w1.flatten(0, 1)[:, None], w2.flatten(0, 1)[:, None], u.movedim(2, 1).flatten(0, 1)[:, :, None])
        alone = (own[0].reshape(r, n, d), own[1].reshape(r, n, out))
        raw = velocity(w1, w2, u, centred=False)
        printed = (eq8[0] / diagonal[..., None], eq8[1])  # w_2j for its square, as our copy has it
        parts.append(
            {
                f"Eq. 65, {kind}, one tower": _gap(flow, one),
                f"Eq. 65, {kind}, both, doubled": _gap((2 * flow[0], 2 * flow[1]), two),
                f"Eq. 8, {kind}": _gap(eq8, masked),
                "broken: not doubled": _gap(flow, two),
                "broken: the other nodes left out": _gap(alone, one),
                "broken: u not centred": _gap(raw, one),
                "broken: w2 without its square": _gap(printed, masked),
            }
        )
    return over_instances(*parts)


def _gap(value: Velocity, truth: Velocity) -> Tensor:
    """Relative error of each replica, both layers together."""
    a, b = (torch.cat([part.flatten(1) for part in pair], 1) for pair in (value, truth))
    return relative(a, b)


def off_diagonal_share(count: int = 100, seed: int = 0, *, masked: bool = False) -> Tensor:
    r"""For diagonal W2: share of the squared velocity of W2 that lies *off* the diagonal, ``(count,)``; autograd, ReLU.

    The entry that joins node j to output k moves by :math:`w_{2k} w_{1k}^T A_{kj} w_{1j}`, which nothing makes zero
    unless it is ``masked``: not a parameter.
    """
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, 6, 5, generator=draw, dtype=torch.float64)
    x = x + torch.randn(count, 4, 1, 5, generator=draw, dtype=torch.float64)
    w1 = torch.randn(count, 4, 5, generator=draw, dtype=torch.float64)
    diagonal = torch.randn(count, 4, generator=draw, dtype=torch.float64)
    w2 = diagonal if masked else torch.diag_embed(diagonal)
    move = _enumerated_velocity(x, w1, w2)[1].square()
    move = torch.diag_embed(move) if masked else move
    return 1 - move.diagonal(dim1=1, dim2=2).sum(1) / move.sum((1, 2))


# -- conserved quantities -------------------------------------------------------------------------------------------------


def excess(w1: Tensor, w2: Tensor) -> Tensor:
    r""":math:`\|w_{1j}\|^2 - \|w_{2j}\|^2` of each node, ``(..., n)``; a diagonal ``w2`` is ``(..., n)``."""
    outgoing = w2.square() if w2.ndim == w1.ndim - 1 else w2.square().sum(-1)
    return w1.square().sum(-1) - outgoing


@dataclass(frozen=True)
class Start:
    """A mixture and starting weights ``w1 (R, n, d)``, ``w2 (R, n)`` or ``(R, n, n_2)``."""

    mixture: Mixture
    w1: Tensor
    w2: Tensor

    def velocity(self, w1: Tensor, w2: Tensor, *, linear: bool = False) -> Velocity:
        """Eq. 8 for a diagonal second layer, Eq. 65 for a full one."""
        u = self.mixture.gated_means(w1, linear=linear)
        return diagonal_velocity(w1, w2, u) if w2.ndim == 2 else velocity(w1, w2, u)


def random_start(replicas: int = 8, *, nodes: int = 4, diagonal: bool = True, seed: int = 0) -> Start:
    """Random mixtures of four components (centres of length 1, sigma 0.3) and Gaussian weights."""
    size = 5
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(replicas, 4, size, generator=draw, dtype=torch.float64)
    centres = centres / centres.norm(dim=-1, keepdim=True)
    w1 = torch.randn(replicas, nodes, size, generator=draw, dtype=torch.float64) / size**0.5
    shape = (replicas, nodes) if diagonal else (replicas, nodes, 3)
    return Start(Mixture(centres, 0.3), w1, torch.randn(*shape, generator=draw, dtype=torch.float64))


def _solve(start: Start, time: float, *, linear: bool, towers: int, grid: np.ndarray | None, growth: float) -> Any:
    """SciPy's DOP853 to 1e-11; ends early where some replica's first layer has grown by ``growth``."""
    shapes = start.w1.shape, start.w2.shape
    cut = start.w1.numel()
    first = np.asarray(start.w1.flatten(1).norm(dim=1))

    def unpack(y: np.ndarray) -> Velocity:
        flat = torch.from_numpy(np.ascontiguousarray(y))
        return flat[:cut].reshape(shapes[0]), flat[cut:].reshape(shapes[1])

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        one, two = start.velocity(*unpack(y), linear=linear)
        return towers * np.asarray(torch.cat([one.flatten(), two.flatten()]))

    def grown(_: float, y: np.ndarray) -> float:
        return float((np.asarray(unpack(y)[0].flatten(1).norm(dim=1)) / first).max() - growth)

    grown.terminal = True  # type: ignore[attr-defined]  # what SciPy looks for
    y0 = np.asarray(torch.cat([start.w1.flatten(), start.w2.flatten()]))
    found = solve_ivp(rate, (0, time), y0, method="DOP853", rtol=1e-11, atol=1e-12, t_eval=grid, events=grown)
    return found, unpack


def horizon(start: Start, growth: float = 2.0, *, linear: bool = False, towers: int = 1) -> float:
    """The time at which the flow has first made some replica's W1 ``growth`` times as long; infinity is near then."""
    found, _ = _solve(start, 1e3, linear=linear, towers=towers, grid=None, growth=growth)
    return float(found.t[-1])


def integrate(start: Start, time: float, *, linear: bool = False, towers: int = 1, points: int = 2) -> Velocity:
    """The flow up to ``time``: weights at ``points`` equidistant times, ``(points, R, ...)`` each.

    Raises ValueError if some replica's W1 grows beyond 100 times its length before: the weights go to infinity in finite time.
    """
    grid = np.linspace(0, time, points)
    found, unpack = _solve(start, time, linear=linear, towers=towers, grid=grid, growth=100.0)
    if found.status != 0:
        raise ValueError(f"time must be shorter than {found.t_events[0][0]:.3g}, where the weights explode, got {time}")
    parts = [unpack(column) for column in found.y.T]
    return torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])


def descend(start: Start, time: float, rate: float) -> Velocity:
    """Exact expected gradient steps of size ``rate`` over the same ``time``: the weights at its end."""
    w1, w2 = start.w1, start.w2
    for _ in range(round(time / rate)):
        one, two = start.velocity(w1, w2)
        w1, w2 = w1 + rate * one, w2 + rate * two
    return w1, w2


def drift(start: Start, time: float, rates: tuple[float, ...], *, sign: float = -1.0) -> tuple[float, ...]:
    """How far the conserved quantity has moved at the end of `descend`, RMS over nodes and replicas, for each step size.

    ``sign=+1`` watches the sum of the squares in place of their difference, which the flow does not conserve.
    """

    def quantity(w1: Tensor, w2: Tensor) -> Tensor:
        return w1.square().sum(-1) + sign * (w1.square().sum(-1) - excess(w1, w2))

    before = quantity(start.w1, start.w2)
    return tuple(float((quantity(*descend(start, time, rate)) - before).square().mean().sqrt()) for rate in rates)


def step_gap(start: Start, rate: float = 0.05) -> tuple[float, float]:
    r"""Change of the conserved quantity in one step against :math:`\alpha^2 (\|\dot w_{1j}\|^2 - \dot w_{2j}^2)`.

    Relative to the largest change; and the same with the sum of the two squares in place of their difference.
    """
    one, two = start.velocity(start.w1, start.w2)
    change = excess(start.w1 + rate * one, start.w2 + rate * two) - excess(start.w1, start.w2)
    scale = change.abs().max()
    added = one.square().sum(-1) + two.square()
    gaps = [(change - rate**2 * right).abs().max() / scale for right in (excess(one, two), added)]
    return float(gaps[0]), float(gaps[1])


@dataclass(frozen=True)
class Training:
    """Relative distances of trained weights to the flow at one time, RMS over replicas, for each learning rate."""

    rates: tuple[float, ...]
    distance: tuple[float, ...]
    undoubled: float
    """The same at the smallest rate, to the flow through one tower."""


def sampled_training(start: Start, time: float, rates: tuple[float, ...], *, seed: int = 0) -> Training:
    """SGD on L_simp, H = 1, both towers, with sampled batches and a diagonal second layer, against the doubled flow."""
    goal, slow = (torch.cat([part[-1].flatten(1) for part in integrate(start, time, towers=t)], 1) for t in (2, 1))
    distances, last = [], goal
    for rate in rates:
        draw = torch.Generator().manual_seed(seed)
        w1, w2 = start.w1.clone(), start.w2.clone()
        rows = torch.arange(len(w1))[:, None]
        for _ in range(round(time / rate)):
            one, kind = start.mixture.sample(128, draw)
            noise = torch.randn(one.shape, generator=draw, dtype=one.dtype)
            two = start.mixture.centres[rows, kind] + start.mixture.sigma * noise
            leaves = [w.requires_grad_(True) for w in (w1, w2)]
            a, p = ((v @ leaves[0].mT).relu() * leaves[1][:, None] for v in (one, two))
            loss = 0.5 * ((a - p).square() - (a - a.roll(1, 1)).square()).sum(-1).mean(1)
            g1, g2 = torch.autograd.grad(loss.sum(), leaves)
            w1, w2 = (w1 - rate * g1).detach(), (w2 - rate * g2).detach()
        last = torch.cat([w1.flatten(1), w2], 1)
        distances.append(_distance(last, goal))
    return Training(rates, tuple(distances), _distance(last, slow))


def _distance(value: Tensor, goal: Tensor) -> float:
    return float(((value - goal).square().sum(1) / goal.square().sum(1)).mean().sqrt())


def leave_diagonal(seed: int = 0, *, growth: float = 4.0, replicas: int = 20, linear: bool = False) -> Tensor:
    """Free flow from a diagonal W2 until it is ``growth`` times as long: the off-diagonal share of its squares, ``(replicas,)``.

    Raises ValueError where some replica doesn't grow that far in 4000 steps.
    """
    begin = random_start(replicas, nodes=4, seed=seed)
    w1, w2 = begin.w1, torch.diag_embed(begin.w2)
    goal = growth * w2.flatten(1).norm(dim=1)
    for _ in range(4000):
        one, two = velocity(w1, w2, begin.mixture.gated_means(w1, linear=linear))
        live = w2.flatten(1).norm(dim=1) < goal
        if not live.any():
            square = w2.square()
            return 1 - square.diagonal(dim1=1, dim2=2).sum(1) / square.sum((1, 2))
        pace = 0.01 * live.to(w1.dtype) * w1.flatten(1).norm(dim=1) / one.flatten(1).norm(dim=1)
        w1, w2 = w1 + pace[:, None, None] * one, w2 + pace[:, None, None] * two
    raise ValueError(f"growth={growth} is out of reach of some replica in 4000 steps")
