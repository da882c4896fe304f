r"""What single nodes learn from a mixture of Gaussians (Section 4.2 of [tian2021iclr]; claim B-MoG).

A sample's identity :math:`z_0` is its component, :math:`x | z_0 = k \sim N(\mu_k, \sigma^2 I)` with equal weights, and its
views are fresh draws from the component.  For a node with incoming weights ``w`` the means that the theory needs are those of a
truncated Gaussian: with :math:`m = w^T \mu`, :math:`s = \sigma \|w\|`, and :math:`\Phi, \varphi` of the standard normal,

.. math::  u_k = E[x\, 1(w^T x \ge 0)] = \mu \Phi(m / s) + \sigma^2 w / s\, \varphi(m / s), \qquad w^T u_k = E[\max(w^T x, 0)].

Two layers as one flow: Eq. 65 and Eq. 8 of [tian2021iclr], and what they conserve (claim B-Thm5).

A node ``j`` has incoming weights :math:`w_{1j} \in R^d`, outgoing weights :math:`w_{2j} \in R^{n_2}`, and
the mean of the inputs that activate it, :math:`u_j(z_0) = E[x\, 1(w_{1j}^T x \ge 0) | z_0]`.
With :math:`A_{jk} = Cov_{z_0}[u_j, u_k]` and :math:`C_j = \sum_k A_{jk} w_{1k} w_{2k}^T`
the expected step of L_simp through one tower is

.. math::  \dot w_{1j} = C_j w_{2j}, \qquad \dot w_{2j} = C_j^T w_{1j},

and twice that through both.  Shapes: ``w1 (R, n, d)``, ``w2 (R, n, n_2)`` (rows are nodes), ``u (R, K, n, d)``.

One linear neuron, and an augmentation that scrambles a subspace (Section 5.1 of [tian2020]; claim A-5.1a).

A sample :math:`x \in R^n` becomes the view :math:`x' = Q x + P G P x` with projectors :math:`Q + P = I` and a random Gaussian
matrix ``G``: the range of ``Q`` is preserved, its complement scrambled.  The connection of a linear neuron is its input, so that
:math:`OP = V_x[E[x' | x]]`, which is :math:`Q V[x] Q` if ``G`` has mean zero.

Everything has a leading replica axis ``R``: one random population and one random subspace each.

Centres at equal angles: which of them a ReLU unit ends up responding to, by its responses alone.

``n`` centres of length 1 have the pairwise cosine :math:`\rho`, and the origin is a centre ``m`` times as likely as each one. The
responses :math:`h_k = w^\top \mu_k` then follow :math:`\dot h = G\, (\lambda (h - \bar r))`, up to a factor, with the centres' Gram
matrix G, the open gates :math:`\lambda_k = 1\{h_k > 0\}`, and :math:`\bar r = \sum_k \max(h_k, 0) / (n + m)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor, nn

from sslbook.operator.covariance import covariance_operator
from sslchapters.checks import Gaps, over_instances, relative


@dataclass(frozen=True)
class Mixture:
    """Centres ``(R, K, d)`` of one mixture a replica, and the standard deviation ``sigma`` of every component."""

    centres: Tensor
    sigma: float

    def gated_means(self, w: Tensor, *, linear: bool = False) -> Tensor:
        r""":math:`u_{jk}` for nodes ``w (R, n, d)``: ``(R, K, n, d)``; for ``linear`` nodes the centres themselves."""
        centres = self.centres[:, :, None]
        if linear:
            return centres.expand(-1, -1, w.shape[1], -1)
        length = w.norm(dim=-1).clamp_min(torch.finfo(w.dtype).tiny)
        z = torch.einsum("rkd,rnd->rkn", self.centres, w) / (self.sigma * length[:, None])
        gate, bump = torch.special.ndtr(z), torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        unit = w / length[..., None]
        return gate[..., None] * centres + self.sigma * bump[..., None] * unit[:, None]

    def sample(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """``count`` draws ``(R, count, d)`` from random components, with the components' numbers ``(R, count)``."""
        r, k, d = self.centres.shape
        kind = torch.randint(k, (r, count), generator=draw)
        noise = torch.randn(r, count, d, generator=draw, dtype=self.centres.dtype)
        return self.centres[torch.arange(r)[:, None], kind] + self.sigma * noise, kind


def random_mixture(replicas: int, components: int, size: int, sigma: float, seed: int = 0) -> Mixture:
    """Centres from N(0, I) in ``size`` dimensions, the first one at the origin."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(replicas, components, size, generator=draw, dtype=torch.float64)
    centres[:, 0] = 0
    return Mixture(centres, sigma)


def equiangular_mixture(
    replicas: int, components: int, size: int, sigma: float, *, cosine: float = 0.0, seed: int = 0
) -> Mixture:
    """The origin and ``components - 1`` centres of length 1, any two of them at one ``cosine``, turned at random."""
    count = components - 1
    draw = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(replicas, size, count, generator=draw, dtype=torch.float64))[0]
    alone, together = (1 - cosine) ** 0.5, (1 + (count - 1) * cosine) ** 0.5
    root = alone * torch.eye(count, dtype=torch.float64) + (together - alone) / count  # of the cosines' matrix
    return Mixture(torch.cat([torch.zeros(replicas, 1, size, dtype=torch.float64), root @ basis.mT], 1), sigma)


def node_step(w: Tensor, mixture: Mixture, *, linear: bool = False) -> Tensor:
    r""":math:`A_j w_j` for each node, :math:`A_j = V_{z_0}[u_j]`: the direction in which Eq. 8 moves it, ``(R, n, d)``."""
    return diagonal_velocity(w, torch.ones_like(w[..., 0]), mixture.gated_means(w, linear=linear))[0]


def grow(w: Tensor, mixture: Mixture, *, steps: int = 600, rate: float = 0.05, linear: bool = False) -> Tensor:
    r"""Unit directions of the nodes after ``steps`` steps, each of which changes a node by ``rate`` of its length.

    In Eq. 8 the second layer sets only the pace, so a node's *path* is that of :math:`\dot w = A(w) w`, and A depends on
    the direction alone.  Nodes with :math:`A w = 0` stay.
    """
    w = w / w.norm(dim=-1, keepdim=True)
    for t in range(steps):
        move = node_step(w, mixture, linear=linear)
        length = move.norm(dim=-1, keepdim=True)
        pace = rate / (1 + 4 * t / steps)
        w = w + torch.where(length > 1e-14, pace * move / length.clamp_min(1e-14), torch.zeros_like(move))
        w = w / w.norm(dim=-1, keepdim=True)
    return w


class Ends(NamedTuple):
    r"""Which centres nodes respond to in the end, ``(R, n)`` each.

    active: counts of centres with :math:`w^T \mu_k` above a tenth of the strongest.  first: whether the strongest was so at the
    start.  single: whether a node responds to one centre alone.
    """

    active: Tensor
    first: Tensor
    single: Tensor


def specialise(mixture: Mixture, nodes: int = 20, *, seed: int = 0) -> Ends:
    """Grow ``nodes`` random ReLU nodes a replica and see which centres they respond to at the end.

    The steps are as long as they can be here: with half the rate and twice the steps the same nodes end at the same centres.
    """
    draw = torch.Generator().manual_seed(seed + 77)
    r, _, d = mixture.centres.shape
    start = torch.randn(r, nodes, d, generator=draw, dtype=torch.float64)
    end = grow(start, mixture, steps=1000, rate=0.5)
    before, after = (torch.einsum("rkd,rnd->rnk", mixture.centres, w) for w in (start, end))
    top, which = after.max(-1)
    active = (after > 0.1 * top.clamp_min(1e-9)[..., None]).sum(-1)
    return Ends(active, which == before.argmax(-1), active == 1)


def settle(h: Tensor, m: float, cosine: float, *, steps: int = 6000, rate: float = 0.2) -> Tensor:
    """Responses ``(units, n)`` after many steps of the flow, as parts of the largest."""
    n = h.shape[1]
    gram = (1 - cosine) * torch.eye(n, dtype=h.dtype) + cosine
    for _ in range(steps):
        positive = h.clamp_min(0)
        mean = positive.sum(1, keepdim=True) / (n + m)
        h = h + rate * ((h > 0) * (positive - mean)) @ gram
        h = h / h.max(1, keepdim=True).values  # homogeneous: only ratios matter
    return h


def fate(n: int, m: float, cosine: float, *, units: int = 40, seed: int = 0) -> tuple[float, float]:
    """The shares of units that respond in the end to their first strongest centre alone, and to all: by a tenth of the largest."""
    draws = torch.Generator().manual_seed(seed)
    h = torch.randn(units, n, generator=draws, dtype=torch.float64)
    start = torch.where(h.max(1, keepdim=True).values > 0, h, -h)  # at least one is positive
    end = settle(start, m, cosine)
    active = (end > 0.1).sum(1)
    first = end.argmax(1) == start.argmax(1)
    return float(((active == 1) & first).double().mean()), float((active == n).double().mean())


Velocity = tuple[Tensor, Tensor]


def gated_means(x: Tensor, w1: Tensor, *, linear: bool = False) -> Tensor:
    """``u (R, K, n, d)`` of a finite population ``x (R, K, V, d)``: K identities with V equally likely views each."""
    gate = torch.einsum("rkvd,rnd->rkvn", x, w1) > 0
    gate = torch.ones_like(gate) if linear else gate
    return torch.einsum("rkvn,rkvd->rknd", gate.to(x.dtype), x) / x.shape[2]


def velocity(w1: Tensor, w2: Tensor, u: Tensor, *, centred: bool = True) -> Velocity:
    r"""Eq. 65: :math:`C_j = Cov[u_j, \bar f]` times the other layer's weights; not ``centred``, by second moments, it is wrong."""
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


def enumerated_loss(y: Tensor, *, both: bool = True) -> Tensor:
    """L_simp of outputs ``y (R, K, V, o)``, its mean over all tuples, ``(R,)``; differentiated through both towers or one."""
    partner = y if both else y.detach()

    def half(a: Tensor, b: Tensor) -> Tensor:
        return 0.5 * (a - b).square().sum(-1).flatten(1).mean(1)

    positive = half(y[:, :, :, None], partner[:, :, None])
    return positive - half(y.flatten(1, 2)[:, :, None], partner.flatten(1, 2)[:, None])


def _enumerated_velocity(x: Tensor, w1: Tensor, w2: Tensor, *, linear: bool = False, both: bool = True) -> Velocity:
    """Minus the autograd gradient of `enumerated_loss`, of ``x (R, K, V, d)``; ``w2 (R, n)`` is a diagonal second layer."""
    leaves = [w.clone().requires_grad_(True) for w in (w1, w2)]
    h = torch.einsum("rkvd,rnd->rkvn", x, leaves[0])
    h = h if linear else h.relu()
    y = h * leaves[1][:, None, None] if w2.ndim == 2 else torch.einsum("rkvn,rno->rkvo", h, leaves[1])
    one, two = torch.autograd.grad(-enumerated_loss(y, both=both).sum(), leaves)
    return one, two


def flow_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """Eq. 65 and Eq. 8 against the enumerated gradient on ``count`` random instances, ReLU and linear: relative errors."""
    draw = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=draw, dtype=torch.float64)
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
    normal = partial(torch.randn, count, 4, generator=draw, dtype=torch.float64)
    x, w1, diagonal = normal(6, 5) + normal(1, 5), normal(5), normal()
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


def _solve(start: Start, time: float, *, linear: bool, growth: float, grid: np.ndarray | None = None) -> Any:
    """SciPy's DOP853 to 1e-11; ends early where some replica's first layer has grown by ``growth``."""
    shape, cut = start.w1.shape, start.w1.numel()
    first = start.w1.flatten(1).norm(dim=1)

    def unpack(y: np.ndarray) -> Velocity:
        flat = torch.from_numpy(np.ascontiguousarray(y))
        return flat[:cut].reshape(shape), flat[cut:].reshape(start.w2.shape)

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ravel(part) for part in start.velocity(*unpack(y), linear=linear)])

    def grown(_: float, y: np.ndarray) -> float:
        return float((unpack(y)[0].flatten(1).norm(dim=1) / first).max() - growth)

    grown.terminal = True  # type: ignore[attr-defined]  # what SciPy looks for
    y0 = np.concatenate([np.ravel(start.w1), np.ravel(start.w2)])
    found = solve_ivp(rate, (0, time), y0, method="DOP853", rtol=1e-11, atol=1e-12, t_eval=grid, events=grown)
    return found, unpack


def horizon(start: Start, growth: float = 2.0, *, linear: bool = False) -> float:
    """The time at which the flow has first made some replica's W1 ``growth`` times as long; infinity is near then."""
    return float(_solve(start, 1e3, linear=linear, growth=growth)[0].t[-1])


def integrate(start: Start, time: float, *, linear: bool = False, points: int = 2) -> Velocity:
    """The flow up to ``time``: weights at ``points`` equidistant times, ``(points, R, ...)`` each.

    Through both copies it is twice as fast: the same for twice the time.
    Raises ValueError if some replica's W1 grows beyond 100 times its length before: the weights go to infinity in finite time.
    """
    found, unpack = _solve(start, time, linear=linear, growth=100.0, grid=np.linspace(0, time, points))
    if found.status != 0:
        raise ValueError(f"time must be shorter than {found.t_events[0][0]:.3g}, where the weights explode, got {time}")
    w1, w2 = zip(*(unpack(column) for column in found.y.T))
    return torch.stack(w1), torch.stack(w2)


@dataclass(frozen=True)
class Scrambled:
    """Populations ``x (R, N, n)``, projectors ``preserved (R, n, n)`` and ``nuisance (R, n, n)`` that add up to the identity.

    covariance: ``V[x]``, divided by ``N``.  operator: ``Q V[x] Q``, ``(R, n, n)`` both.
    """

    x: Tensor
    preserved: Tensor
    nuisance: Tensor
    covariance: Tensor
    operator: Tensor

    def views(self, draws: Tensor) -> Tensor:
        """``Q x + P G P x`` for ``draws`` G of shape ``(R, N, V, n, n)``: ``(R, N, V, n)``."""
        kept = (self.x @ self.preserved)[:, :, None]
        lost = (self.x @ self.nuisance)[:, :, None, :, None]
        return kept + (draws @ lost)[..., 0] @ self.nuisance[:, None]


def scrambled(replicas: int, *, samples: int = 40, seed: int = 0, gap: float = 0.0) -> Scrambled:
    """Random populations with six correlated coordinates and random subspaces of dimension three, in float64.

    gap: only populations whose operator has ``1 - lambda_2 / lambda_1`` of at least this are taken (the first of 16 times as many).
    """
    size, kept = 6, 3
    draw = torch.Generator().manual_seed(seed)
    count = replicas if gap == 0 else 16 * replicas
    normal = partial(torch.randn, generator=draw, dtype=torch.float64)
    x = normal(count, samples, size) @ normal(count, size, size) + normal(count, 1, size)
    basis = torch.linalg.qr(normal(count, size, kept))[0]
    preserved, centred = basis @ basis.mT, x - x.mean(1, keepdim=True)
    covariance = centred.mT @ centred / samples
    operator = preserved @ covariance @ preserved
    values = torch.linalg.eigvalsh(operator)
    chosen = (1 - values[:, -2] / values[:, -1] >= gap).nonzero()[:replicas, 0]
    every = (x, preserved, torch.eye(size, dtype=torch.float64) - preserved, covariance, operator)
    return Scrambled(*(part[chosen] for part in every))


def projector_gaps(replicas: int = 20, seed: int = 0) -> Gaps:
    r"""Relative errors of :math:`-2\, Q V[x] Q\, w` against the enumerated gradient, and of the library's operator.

    Every scrambling matrix comes with its negative, so that the views' mean is exact on a finite set of views.
    """
    scene = scrambled(replicas, samples=8, seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    r, n_samples, size = scene.x.shape
    half = torch.randn(r, n_samples, 2, size, size, generator=draw, dtype=torch.float64)
    weight = torch.randn(r, size, generator=draw, dtype=torch.float64)
    offset = torch.randn(r, 1, 1, size, size, generator=draw, dtype=torch.float64)
    even, odd = (scene.views(torch.cat([mean + half, mean - half], 2)) for mean in (0 * offset, offset))
    one = torch.ones(r, 1, dtype=torch.float64)  # the outgoing weight of a single unit
    truth, leaning = (0.5 * _enumerated_velocity(v, weight[:, None], one, linear=True)[0][:, 0] for v in (even, odd))
    moved = scene.preserved + scene.nuisance @ offset[:, 0, 0] @ scene.nuisance

    def gap(matrix: Tensor, step: Tensor) -> Tensor:
        return relative((matrix @ weight[..., None])[..., 0], step)

    net = nn.Sequential(nn.Linear(size, 1, bias=False, dtype=torch.float64))
    library = torch.stack([covariance_operator(net, "0", seen).dense() for seen in even])
    return over_instances(
        {
            "projected covariance": gap(scene.operator, truth),
            "library's operator": relative(library, scene.operator),
            "mean not zero, corrected": gap(moved @ scene.covariance @ moved.mT, leaning),
            "broken: library's operator and V[x]": relative(library, scene.covariance),
            "broken: V[x] itself": gap(scene.covariance, truth),
            "broken: projected once": gap(scene.preserved @ scene.covariance, truth),
            "broken: mean not zero": gap(scene.operator, leaning),
        }
    )


def train_neuron(replicas: int = 32, *, steps: int = 800, seed: int = 0) -> dict[str, Tensor]:
    r"""SGD on L_simp with fresh Gaussian views, the weight scaled to unit length after each step; all replicas at once.

    Absolute cosines ``(R,)`` of the trained weight with leading eigenvectors of ``Q V Q``, of ``V``, and ``Q`` times that.
    The rate is in units of the operator's leading eigenvalue and falls as :math:`1 / (1 + 10 t / steps)`.
    """
    batch, rate = 64, 0.05
    scene = scrambled(replicas, gap=0.3, seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    n_samples, size = scene.x.shape[1:]
    values, vectors = torch.linalg.eigh(scene.operator)
    weight = torch.nn.functional.normalize(torch.randn(replicas, size, generator=draw, dtype=torch.float64), dim=-1)
    rows = torch.arange(replicas)[:, None]
    for t in range(steps):
        index = torch.randint(n_samples, (replicas, batch), generator=draw)
        x = scene.x[rows, index][:, None]  # (R, 1, batch, n): each sample twice
        # a fresh G with independent entries turns any vector y into |y| times a Gaussian vector
        noise = torch.randn(replicas, 2, batch, size, generator=draw, dtype=torch.float64)
        nuisance = scene.nuisance[:, None]
        lost = (x @ nuisance).norm(dim=-1, keepdim=True) * noise @ nuisance
        views = x @ scene.preserved[:, None] + lost
        one, two = views.unbind(1)
        other = one.roll(1, 1)  # a view of another draw
        pull, push = one - two, one - other
        gradient = torch.einsum("rbn,rb->rn", push, torch.einsum("rbn,rn->rb", push, weight)) / batch
        gradient -= torch.einsum("rbn,rb->rn", pull, torch.einsum("rbn,rn->rb", pull, weight)) / batch
        weight = weight + rate / (1 + 10 * t / steps) / values[:, -1:] * gradient
        weight /= weight.norm(dim=1, keepdim=True)
    leading = torch.linalg.eigh(scene.covariance)[1][:, :, -1]
    cut = (scene.preserved @ leading[..., None])[..., 0]
    towards = {"projected": vectors[:, :, -1], "whole": leading, "cut": cut}
    return {name: torch.cosine_similarity(weight, direction).abs() for name, direction in towards.items()}
