r"""The optima of one leaky rectifier on a finite set of points or of views, exactly (uniform weights).

Between the planes :math:`w^T x_i = 0` the matrix :math:`A` is constant and the energy is :math:`\frac12 w^T A w`; a maximum
there is the leading eigenvector of :math:`A`.  On a plane the mean response has a kink, so that the energy's slope *falls* by
:math:`(1 - a)\, p_i\, E[h]\, |x_i^T \dot w|` (a the lower slope), and the sphere can have a maximum there too: w with
:math:`w^T x_i = 0` for i in Z is one if, with :math:`g = P^\perp_w A w` (gates of Z at a),

.. math::  g = (1 - a)\, E[h] \sum_{i \in Z} t_i\, p_i\, x_i, \qquad 0 \le t_i \le 1

(with views, E[h] less the mean response to the views of i's image, which must not be negative),
and w leads A, with gate i open by :math:`t_i`, on the complement of the :math:`x_i` with :math:`0 < t_i < 1`.
`find` climbs from many starts, puts what it finds exactly where it belongs and keeps what passes this test; `every` leaves nothing
out: it tries all faces into which the planes cut the sphere, on each of which only the leading eigenvectors of A can be maxima.

Filters on a circle of points: the energy along :math:`w = (\cos\theta, \sin\theta)` and its maxima (Fig. 8 of [tian2023]).

Without augmentation the dynamics of Eq. 2, with weights that are computed anew at every step, climbs (up to a constant)

- uniform weights: :math:`\frac{1}{2 N^2} \sum_{ij} d_{ij}^2`, half the variance;
- Gaussian weights: :math:`\frac{\tau}{2 N^2} \sum_{ij} (1 - e^{-d_{ij}^2/\tau})`;
- InfoNCE with :math:`\epsilon = 0`: :math:`-\frac{\tau}{2 N^2} \sum_i \log \frac{1}{N - 1} \sum_{j \ne i} e^{-d_{ij}^2/\tau}`,

with :math:`d_{ij}^2 = (h_i - h_j)^2 / 2`.  Between the kinks, where :math:`w \perp x_i`, it is analytic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import lsq_linear
from torch import Tensor
from torch.nn import functional as F

from sslbook._random import Streams
from sslchapters.energies import contrastive_covariance, project, weights
from sslchapters.landscape.theory import Activation, Cloud, gaussian


@dataclass(frozen=True)
class Optima:
    """Distinct certified maxima: of each, its replica ``(n,)``, ``w (n, d)``, energy, and share of starts.

    ``residual`` is the worst violation of the equations over all of them.
    """

    replica: Tensor
    w: Tensor
    energy: Tensor
    share: Tensor
    residual: float

    def counts(self, replicas: int) -> Tensor:
        """How many each replica has, ``(R,)``."""
        return torch.bincount(self.replica, minlength=replicas)


def climb(w: Tensor, uphill: Callable[[Tensor], Tensor], *, steps: int, first: float) -> Tensor:
    """Projected ascent of unit ``w (..., d)`` along ``uphill`` by steps whose *length* falls geometrically from ``first`` to 1e-7.

    Fixed lengths make it settle on kinks, where the gradient does not vanish; it ends within some 1e-7 of a maximum.
    """
    for t in range(steps):
        g = project(w, uphill(w))
        length = first * (1e-7 / first) ** (t / (steps - 1))
        w = F.normalize(w + length * g / g.norm(dim=-1, keepdim=True).clamp_min(1e-12), dim=-1)
    return w


def find(
    cloud: Cloud, act: Activation, starts: Tensor, *, steps: int = 1500, first: float = 0.02, near: float = 1e-4
) -> Optima:
    """All certified maxima that ``starts (R, S, d)`` lead to; points within ``near`` (a sine) of the plane count as on it."""
    w = climb(starts, lambda w: cloud.velocity(w, act), steps=steps, first=first)
    u = w @ cloud.x.mT
    on = u.abs() < near * cloud.x.norm(dim=-1)[:, None]
    # the exact maximum of the face that w lies on; one that is a line or a point has no eigenvalue above the zeros of its
    # complement: there w is projected instead
    face = _complement(cloud, on)
    top = torch.linalg.eigh(face @ _open(cloud, act, u, on) @ face)[1][..., -1]
    top = top * (top * w).sum(-1, keepdim=True).sign()
    inside = (face @ top[..., None])[..., 0].norm(dim=-1, keepdim=True) > 1 - 1e-9
    w = F.normalize(torch.where(inside, top, (face @ w[..., None])[..., 0]), dim=-1)
    value = cloud.energy(w, act)
    loud = value > 1e-12
    # the first start of each group of equal ends stands for it
    same = (torch.cdist(w, w) < 1e-5) & loud[:, None] & loud[:, :, None]
    one = loud & ~same.tril(-1).any(-1)
    share = same.double().mean(-1)[one]
    replica = one.nonzero()[:, 0]
    good, residual = certify(cloud, act, w[one], on[one], replica)
    worst = float(residual[good].max()) if bool(good.any()) else 0.0
    return Optima(replica[good], w[one][good], value[one][good], share[good], worst)


def every(cloud: Cloud, act: Activation) -> tuple[Tensor, Tensor]:
    """All strict maxima with energy of a single population, ``(n, d)``, and how many points are on the plane of each, ``(n,)``.

    For fewer than 40 points that span the space. The signs of ``w^T x`` on each face into which their planes cut the sphere are
    compositions (the first that is not zero counts) of those of the arrangement's corners, the cocircuits [Bjoerner et al.,
    Oriented Matroids, Proposition 3.7.2]; so corners are composed until nothing is new.
    """
    x = cloud.x[0]
    unit = x / x.norm(dim=-1, keepdim=True)
    _, size, right = torch.linalg.svd(unit[torch.combinations(torch.arange(len(x)), x.shape[1] - 1)])
    corner = right[size[:, -1] > 1e-9, -1]
    corners = found = _distinct(_signs(torch.cat([corner, -corner]), x))
    known = 0
    while known < len(found):
        known = len(found)
        found = _distinct(torch.where(found[:, None] == 0, corners, found[:, None]).flatten(0, 1))
    gate = act.slope + (1 - act.slope) * (found > 0).to(x.dtype)[None]
    a, face = cloud.gated(gate), _complement(cloud, found[None] == 0)
    top = torch.linalg.eigh(face @ a @ face)[1][0, ..., -1]
    w, found = torch.cat([-top, top]), found.repeat(2, 1)  # the sign of an eigenvector is the library's own
    kept = (_signs(w, x) == found).all(-1) & (cloud.energy(w[None], act)[0] > 1e-12)
    w, on = w[kept], found[kept] == 0
    good, _ = certify(cloud, act, w, on, torch.zeros(len(w), dtype=torch.long))
    return w[good], on[good].sum(-1)


def _signs(w: Tensor, x: Tensor) -> Tensor:
    """Signs of ``w^T x``, 0 for a sine below 1e-9, of unit ``w (n, d)`` and points ``x (N, d)``: ``(n, N)``, int8."""
    u = w @ (x / x.norm(dim=-1, keepdim=True)).T
    return torch.where(u.abs() < 1e-9, 0.0, u.sign()).to(torch.int8)


def _distinct(signs: Tensor) -> Tensor:
    """Rows without repeats, by their number in base three."""
    power = 3 ** torch.arange(signs.shape[1])
    code: Tensor = ((signs.long() + 1) * power).sum(-1).unique()
    return (code[:, None] // power % 3 - 1).to(torch.int8)


def certify(cloud: Cloud, act: Activation, w: Tensor, on: Tensor, replica: Tensor) -> tuple[Tensor, Tensor]:
    """Whether candidates ``w (n, d)`` on the planes of ``on (n, N)`` pass the module's test, and the error of their equations.

    The openings come from a least-squares problem with bounds.  Candidates differ in the number of points on their plane, which can
    depend on each other (two points on one line, the corners of a box), so SciPy solves them one by one.
    """
    x, p = cloud.x[replica], cloud.p[replica]
    single = Cloud(x, p, cloud.views)
    u = w[:, None] @ x.mT
    a = _open(single, act, u, on[:, None])[:, 0]
    velocity = (a @ w[..., None])[..., 0]
    value = (velocity * w).sum(-1)
    pull = project(w, velocity)
    cost = -(1 - act.slope) * p * single.centred(act(u) * ~on[:, None])[:, 0]  # of a gate that opens
    residual = (on * u[:, 0]).norm(dim=-1)
    opening = torch.zeros_like(u[:, 0])
    for k, (mask, force) in enumerate(zip(on, pull, strict=True)):
        columns = (cost[k, mask, None] * x[k, mask]).T
        if columns.any():
            # dependent points leave a choice: openings strictly between the ends, if there are any, say most
            for edge in (1e-6, 0.0):
                found = lsq_linear(columns.numpy(), force.numpy(), bounds=(edge, 1 - edge), method="bvls")
                if found.cost < 1e-24 * float(value[k]) ** 2:
                    break
            opening[k, mask] = torch.as_tensor(found.x)
            force = force - columns @ opening[k, mask]
        residual[k] += force.norm() / value[k]
    # a gate that is shut or open to the end holds w on one side alone: there its point moves freely, with that gate
    between = on & (opening > 1e-9) & (opening < 1 - 1e-9)
    a = _open(single, act, u, on[:, None], opening[:, None])[:, 0]
    inner = _complement(single, between[:, None])[:, 0] - w[:, :, None] * w[:, None, :]
    second = torch.linalg.eigvalsh(inner @ a @ inner)[..., -1]
    return (residual < 1e-9) & (second < value * (1 - 1e-9)) & ~(on & (cost < 0)).any(-1), residual


def _open(cloud: Cloud, act: Activation, u: Tensor, on: Tensor, opening: Tensor | float = 0.0) -> Tensor:
    """``A`` with the gates of the points on the plane open by ``opening``: at the lower slope for 0, at one for 1."""
    gate = torch.where(on, torch.zeros_like(u) + act.slope + (1 - act.slope) * opening, act.gate(u))
    return cloud.gated(gate)


def _complement(cloud: Cloud, on: Tensor) -> Tensor:
    """Projector on what is orthogonal to the points on the plane, ``(R, S, d, d)``."""
    rows = on[..., None] * cloud.x[:, None]
    return torch.eye(cloud.x.shape[-1], dtype=cloud.x.dtype) - torch.linalg.pinv(rows) @ rows


def train_linear(
    replicas: int, filters: int, seed: int, *, anew: bool, tau: float = 0.1, steps: int = 800
) -> dict[str, Tensor]:
    """Projected ascent of linear filters from random starts, on batches of 10 points without augmentation: where they end, up to
    sign (Section 3 of [tian2023]).

    ``anew``: InfoNCE weights (epsilon 0) at each filter's own outputs in every step; else Gaussian weights of the points.
    cosine: of each end with the leading eigenvector of the fixed matrix, ``(R, S)``.  directions: how many of the ends of filters
    that stand still are different, ``(R,)``.
    """
    draw = Streams(range(seed, seed + replicas), "linear")
    x, w = (F.normalize(draw.normal((count, 3)), dim=-1) for count in (10, filters))
    matrix = contrastive_covariance(x, x, gaussian(x, 1.0))
    lead = torch.linalg.eigh(matrix)[1][..., -1]
    step = 0.2 / torch.linalg.matrix_norm(matrix, ord=2)[:, None, None]
    data = x[:, None].expand(-1, filters, -1, -1)
    rate = step * 10  # a row of InfoNCE weights sums to one, a row of the others to some ten
    v = w
    for _ in range(steps):
        if anew:
            f = data @ w[..., None]
            alpha = weights("info_nce", f, f, temperature=tau)
            v = rate * contrastive_covariance(data, data, alpha, f, f)[..., 0]
        else:
            v = step * (w @ matrix)
        w = F.normalize(w + project(w, v), dim=-1)
    still = project(w, v).norm(dim=-1) < 1e-6
    same = ((w @ w.mT).abs() > 1 - 1e-4) & still[:, :, None] & still[:, None]
    different = (still & ~same.tril(-1).any(-1)).sum(-1)
    return {"cosine": (w @ lead[..., None])[..., 0].abs(), "directions": different}


# --- Filters on a circle of points -----------------------------------------------------------------------------------

NINE = tuple(math.pi * f for f in (-4 / 5, -1 / 2, -2 / 5, -1 / 6, 0, 1 / 5, 2 / 5, 3 / 5, 4 / 5))
"""The points of Appendix E.1 of [tian2023], as angles."""


@dataclass(frozen=True)
class Maxima:
    """Angles of the maxima inside an arc, ``smooth``, and at a kink, ``kinks``; which smooth ones stay with fixed weights."""

    smooth: tuple[float, ...]
    kinks: tuple[float, ...]
    frozen: tuple[bool, ...]

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.smooth) + len(self.kinks)


def _parts(
    theta: Tensor, points: Tensor, act: Activation, alpha: str, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Differences of responses, their derivatives by theta (first and second), and the weights: all ``(T, N, N)``."""

    def gaps(at: Tensor) -> Tensor:
        h = act((at[:, None] - points).cos())
        return h[:, :, None] - h[:, None, :]

    def turned(of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:  # its derivative by theta
        return lambda at: torch.func.jvp(of, (at,), (torch.ones_like(at),))[1]

    gap, first, second = (of(theta) for of in (gaps, turned(gaps), turned(turned(gaps))))
    far = -gap.square() / (2 * tau)
    if alpha == "uniform":
        return gap, first, second, torch.ones_like(gap)
    if alpha == "gaussian":
        return gap, first, second, far.exp()
    return gap, first, second, far.masked_fill(torch.eye(len(points), dtype=torch.bool), -torch.inf).softmax(-1)


def energy(theta: Tensor, points: Sequence[float], act: Activation, alpha: str = "uniform", tau: float = 1.0) -> Tensor:
    """What the dynamics climbs, at the angles ``theta (T,)`` for points at the angles ``points``: ``(T,)``."""
    at = torch.as_tensor(points, dtype=torch.float64)
    gap = _parts(theta, at, act, "uniform", 1.0)[0]
    n, far = len(at), gap.square() / 2
    if alpha == "uniform":
        return far.sum((1, 2)) / (2 * n**2)
    if alpha == "gaussian":
        return -tau * torch.expm1(-far / tau).sum((1, 2)) / (2 * n**2)
    far = far.masked_fill(torch.eye(n, dtype=torch.bool), torch.inf)
    return -tau * (torch.logsumexp(-far / tau, -1) - math.log(n - 1)).sum(1) / (2 * n**2)


def slope(theta: Tensor, points: Sequence[float], act: Activation, alpha: str = "uniform", tau: float = 1.0) -> Tensor:
    """Its derivative by theta, ``(T,)``, with the lower gate at a kink: the projected velocity of Lemma 3, times the degree."""
    gap, first, _, weight = _parts(theta, torch.as_tensor(points, dtype=torch.float64), act, alpha, tau)
    return (weight * gap * first).sum((1, 2)) / (2 * gap.shape[-1] ** 2)


def opening(points: Sequence[float], index: int) -> float:
    r"""How far a ReLU's gate for one point is open, at the crease where it opens as the angle grows, if the filter is to rest.

    With ``w`` at the point's angle less a right angle, and the gate closed, the certificate :math:`A w = E[h]\, t\, p\, x` along
    the point ``x`` itself, orthogonal to ``w``, solved for ``t``; between 0 and 1 at a maximum.  Uniform weights.
    """
    at = torch.as_tensor(points, dtype=torch.float64)
    theta = at[index] - math.pi / 2
    w, x = torch.stack([theta.cos(), theta.sin()]), torch.stack([at.cos(), at.sin()], -1)
    u = x @ w
    others = torch.arange(len(at)) != index
    passed = (others & (u > 0)).to(u.dtype)[:, None] * x
    centred = passed - passed.mean(0)
    a = centred.T @ centred / len(at)
    return float(x[index] @ a @ w / ((passed @ w).mean() / len(at)))


def maxima(
    points: Sequence[float], act: Activation, alpha: str = "uniform", tau: float = 1.0, *, resolution: int = 200
) -> Maxima:
    """All maxima on the circle: falls of the slope's sign inside the arcs, on ``resolution`` angles each, and at the kinks.

    A kink is a maximum where the slope is positive before and negative after it; arcs on which the energy is constant have none.
    Angles inside arcs are refined by bisection.
    """
    at = torch.as_tensor(points, dtype=torch.float64)
    ends = torch.cat([at + math.pi / 2, at - math.pi / 2]).remainder(2 * math.pi).sort().values  # where gates change
    ends = ends[torch.cat([torch.tensor([True]), ends.diff() > 1e-9])]
    ends = torch.cat([ends, ends[:1] + 2 * math.pi])
    inner = torch.linspace(0, 1, resolution, dtype=torch.float64)
    eps = 1e-9
    theta = (ends[:-1, None] + eps) + (ends[1:, None] - ends[:-1, None] - 2 * eps) * inner  # (arcs, resolution)
    g = slope(theta.flatten(), points, act, alpha, tau).view_as(theta)
    g = torch.where(g.abs() < 1e-12, torch.zeros_like(g), g)
    # at a smooth corner (every activation but a rectifier) the arcs join up, and a fall of sign can lie between two of them
    top = torch.cat([g.flatten(), g.flatten()[:1]])
    where = torch.cat([theta.flatten(), theta.flatten()[:1] + 2 * math.pi])
    falls = ((top[:-1] > 0) & (top[1:] < 0)).nonzero()[:, 0]
    joint = (falls + 1) % resolution == 0
    bent = act.degree == 1 and act.slope != 1
    at_kink = falls[joint] if bent else falls[:0]
    low, high = (where[falls[~joint] + k] if bent else where[falls + k] for k in (0, 1))
    for _ in range(60):
        middle = (low + high) / 2
        up = slope(middle, points, act, alpha, tau) > 0
        low, high = torch.where(up, middle, low), torch.where(up, high, middle)
    gap, first, second, weight = _parts(low, at, act, alpha, tau)
    stay = (weight * (first.square() + gap * second)).sum((1, 2)) < 0  # the energy with the weights held fixed
    kinks = ends[1:][torch.div(at_kink, resolution, rounding_mode="floor")]
    return Maxima(tuple(_wrap(low)), tuple(_wrap(kinks)), tuple(stay.tolist()))


def census(
    sets: int, points: int, act: Activation, alpha: str = "uniform", tau: float = 1.0, seed: int = 0
) -> dict[str, Tensor]:
    """Numbers of maxima on random sets of uniformly drawn points, ``(sets,)`` each: ``smooth``, ``kinks``, ``total``."""
    angles = 2 * math.pi * Streams(range(seed, seed + sets), "circle").uniform((points,), torch.float64)
    found = [maxima(row.tolist(), act, alpha, tau, resolution=100) for row in angles]  # they differ in number: no batch
    smooth, kinks = torch.tensor([[len(m.smooth), len(m.kinks)] for m in found]).double().T
    return {"smooth": smooth, "kinks": kinks, "total": smooth + kinks}


def _wrap(theta: Tensor) -> list[float]:
    return ((theta + math.pi).remainder(2 * math.pi) - math.pi).sort().values.tolist()


def blurred(theta: Tensor, points: Sequence[float], reach: float) -> Tensor:
    """Half the variance of a ReLU filter's mean response on a circle of points, turned at random by at most ``reach``: ``(T,)``.

    The mean of ``max(cos, 0)`` over an interval in closed form; ``reach = pi`` is the whole group, 0 no augmentation.
    """

    def primitive(v: Tensor) -> Tensor:
        # an integral of max(cos v, 0): two for every turn, and the sine where the cosine is positive
        turns = ((v + math.pi) / (2 * math.pi)).floor()
        return 2 * turns + (v - 2 * math.pi * turns).clamp(-math.pi / 2, math.pi / 2).sin()

    u = theta[:, None] - torch.as_tensor(points, dtype=theta.dtype)
    b = u.cos().clamp_min(0) if reach == 0 else (primitive(u + reach) - primitive(u - reach)) / (2 * reach)
    return 0.5 * b.var(-1, correction=0)
