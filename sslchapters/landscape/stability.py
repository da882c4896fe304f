r"""Critical points of :math:`\dot w = P^\perp_w A(w) w`, and which are stable (Theorem 1 of [tian2023]).

At a critical point, :math:`A(w) w = \lambda w`, a perturbation u orthogonal to w moves with the Jacobian

.. math::  T = P^\perp_w (A(w) - \lambda I + J) P^\perp_w, \qquad J u = (\partial_u A)(w)\, w.

The local roughness :math:`\rho` is the norm of J on the tangent space; Theorem 1 asks that the gap of A exceeds it.

How rough A(w) is for a ReLU, exactly and by its bounds (Theorem 2 and Corollary 2 of [tian2023]), on a disc.

For weights :math:`\alpha = K(x, y)` that are held fixed, no augmentation and a large batch, the roughness is the norm of

.. math::  J = - \int_{w^T x = 0} x x^T \kappa_h(x)\, p(x)\, dS, \qquad \kappa_h(x) = E_y[K(x, y)\, h(w^T y)].

A `Disc` holds random smooth densities :math:`p \propto \exp(b^T x / C + x^T M x / C^2)` on discs of radius C.  All integrals are
Gauss-Legendre in the radius and in the angle on each side of the plane, where everything is smooth.

Power iteration with a matrix that moves: where it must converge (Theorem 3 of [tian2023], and Fig. 1, right).

.. math::  w \leftarrow A(w) w / \|A(w) w\|, \qquad c(w) = w^T \phi_1(w).

Theorem 3 asks for a number :math:`\gamma < 1` that bounds the irregularity (Definition 4) on a cap around the start whose radius is
:math:`\sqrt{2 (1 + \gamma)(1 - c_0)} / (1 - \sqrt\gamma)`.  Its constants are the Lipschitz constant L of A *on the cap*, and
:math:`\kappa` of Lemma 9, for which `KAPPA` over the squared gap always serves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._random import Streams
from sslchapters.checks import over_instances, relative
from sslchapters.energies import project
from sslchapters.landscape import theory
from sslchapters.landscape.theory import Activation, Blobs, Cloud

Population = Cloud | Blobs
"""What has a matrix ``A(w)``."""


@dataclass(frozen=True)
class Critical:
    r"""Distinct critical points of many populations, ``(n,)`` each: replica, ``w (n, d)``, and what decides their stability.

    ``value`` is :math:`\lambda`; ``gap`` is :math:`\lambda` less the largest eigenvalue of A across w (positive for a locally
    maximal eigenvector); ``rho`` the roughness; ``growth`` the largest real part of T's eigenvalues; ``lift`` the
    largest eigenvalue of the symmetric part of J across w; ``returned`` whether perturbations of it died out.
    """

    replica: Tensor
    w: Tensor
    value: Tensor
    gap: Tensor
    rho: Tensor
    growth: Tensor
    lift: Tensor
    returned: Tensor

    @property
    def maximal(self) -> Tensor:
        """Which are locally maximal eigenvectors (Definition 3)."""
        return self.gap > 0

    @property
    def clear(self) -> Tensor:
        """Which are not marginal: the simulated time is enough to see them grow or fade."""
        return self.growth.abs() > 0.02 * self.value


def parts(pop: Population, w: Tensor, act: Activation) -> tuple[Tensor, Tensor]:
    """``A`` and ``J`` at ``w (R, S, d)``, each ``(R, S, d, d)``; J by automatic differentiation, on the tangent space."""

    def moved(v: Tensor) -> Tensor:  # A(v) w on the sphere, off which a population may extend A in any way
        return (pop.matrix(v / v.norm(dim=-1, keepdim=True), act) @ w[..., None])[..., 0].sum((0, 1))

    return pop.matrix(w, act), torch.autograd.functional.jacobian(moved, w).movedim(0, -2)


def jacobian(pop: Population, w: Tensor, act: Activation) -> Tensor:
    """``T`` at ``w (R, S, d)``, as a matrix on the whole space that is zero along w."""
    a, j = parts(pop, w, act)
    eye = torch.eye(w.shape[-1], dtype=w.dtype)
    across = eye - w[..., :, None] * w[..., None, :]
    value = ((a @ w[..., None])[..., 0] * w).sum(-1)[..., None, None]
    return across @ (a - value * eye + j) @ across


def velocity(pop: Population, w: Tensor, act: Activation) -> Tensor:
    """Eq. 7: ``P A(w) w``."""
    return project(w, (pop.matrix(w, act) @ w[..., None])[..., 0])


def critical_points(pop: Population, act: Activation, starts: Tensor, seed: int = 0) -> Critical:
    """The distinct critical points that Newton's method on the sphere finds from ``starts (R, S, d)``, of every kind.

    They are classified, and simulated from nearby.
    """
    w = starts
    for _ in range(40):
        t = jacobian(pop, w, act) + w[..., :, None] * w[..., None, :]  # invertible: w's direction is nobody's concern
        step = (torch.linalg.pinv(t) @ velocity(pop, w, act)[..., None])[..., 0]
        w = w - step * (0.3 / step.norm(dim=-1, keepdim=True).clamp_min(0.3))  # no leap longer than 0.3
        w = w / w.norm(dim=-1, keepdim=True)
    a, j = parts(pop, w, act)
    aw = (a @ w[..., None])[..., 0]
    value = (aw * w).sum(-1)
    found = (project(w, aw).norm(dim=-1) < 1e-11 * value) & (value > 1e-9)
    same = (torch.cdist(w, w) < 1e-6) & found[:, None] & found[:, :, None]
    first = found & ~same.tril(-1).any(-1)
    replica = first.nonzero()[:, 0]
    across = torch.eye(w.shape[-1], dtype=w.dtype) - w[..., :, None] * w[..., None, :]

    def top(matrix: Tensor) -> Tensor:
        """Largest eigenvalue across w of a symmetric matrix: w itself is pushed far below."""
        inside = across @ matrix @ across - 1e6 * w[..., :, None] * w[..., None, :]
        return torch.linalg.eigvalsh(inside)[..., -1]

    t = across @ (a + j) @ across
    growth = top(0.5 * (t + t.mT)) - value
    rho = torch.linalg.matrix_norm(j @ across, ord=2)
    returned = returns(pop, w[first], replica, act, (value + rho)[first], seed)
    gap, lift = value - top(a), top(0.5 * (j + j.mT))
    return Critical(replica, w[first], value[first], gap[first], rho[first], growth[first], lift[first], returned)


def returns(pop: Population, w: Tensor, replica: Tensor, act: Activation, scale: Tensor, seed: int = 0) -> Tensor:
    """Whether random perturbations of size 1e-4 of ``w (n, d)`` shrink under the flow; four of each, all must.

    Euler steps of length ``0.3 / scale``, for 1200 steps; a point that has grown tenfold counts as gone.
    """
    size = w.shape[-1]
    push = Streams([seed], "push").normal((len(w), 4, size))[0]
    v = w[:, None] + 1e-4 * project(w[:, None], push) / push.norm(dim=-1, keepdim=True)
    v = v / v.norm(dim=-1, keepdim=True)
    start = (v - w[:, None]).norm(dim=-1)
    own = replace(pop, x=pop.x[replica], p=pop.p[replica])  # one for each point: all are simulated in one batch
    gone = torch.zeros(start.shape, dtype=torch.bool)
    for t in range(1200):
        v = F.normalize(v + (0.3 / scale)[:, None, None] * velocity(own, v, act), dim=-1)
        if t % 50 == 0:
            gone |= (v - w[:, None]).norm(dim=-1) > 10 * start
    return (((v - w[:, None]).norm(dim=-1) < start) & ~gone).all(-1)


def plane_gaps(replicas: int = 128, seed: int = 0, *, images: bool = False) -> dict[str, float]:
    r"""Where J comes from: for a leaky rectifier :math:`J = -(1 - a)\, E[h] \int_{w^T x = 0} x x^T p`, at *every* w.

    With augmentation, ``images``, and uniform weights it is :math:`(1 - a) \int_{w^T x' = 0} E[\psi(x) | x']\, x' x'^T p`.  There
    the components of a mixture are the images, and their draws the views; an image with the mean response b has
    :math:`\psi = b - E[b]`.
    The integral over the plane in closed form (the mixture's density there), J by automatic differentiation, on the tangent space;
    worst relative error over random mixtures in three dimensions.  Broken: the sign, and the factor, which is 1 in place of
    E[h], and of images that without augmentation.
    """
    pop = replace(theory.blobs(replicas, 5, 3, seed, sigma=0.5), images=images)
    w = theory.directions(replicas, 1 if images else 4, 3, seed)
    across, moments = torch.eye(3, dtype=w.dtype) - w[..., :, None] * w[..., None, :], _plane_moments(pop, w)
    found = []
    for act in (Activation(), Activation(0.3), Activation(-1.0)):
        _, j = parts(pop, w, act)
        response = (pop.gated_means(w, act) * w[:, :, None]).sum(-1)  # the mean one of each part
        mean = (pop.p[:, None] * response).sum(-1, keepdim=True)
        none, clean = -torch.ones_like(response), -mean.expand_as(response)
        right, wrong = (response - mean, clean) if images else (clean, none)
        factors = {"plane": right, "broken: sign": -right, "broken: factor": wrong}
        j, base = (across @ j @ across).flatten(0, 1), (1 - act.slope) * moments.flatten(0, 1)
        formulas = {name: torch.einsum("nk,nkde->nde", each.flatten(0, 1), base) for name, each in factors.items()}
        found.append({name: relative(j, wanted) for name, wanted in formulas.items()})
    return over_instances(*found)


def _plane_moments(pop: Blobs, w: Tensor) -> Tensor:
    r""":math:`P (\int_{w^T x = 0} x x^T p_k(x)\, dS) P` of each part of a mixture at unit ``w (R, S, d)``: ``(R, S, K, d, d)``."""
    m = w @ pop.x.mT
    density = pop.p[:, None] * torch.exp(-0.5 * (m / pop.sigma).square()) / (pop.sigma * (2 * torch.pi) ** 0.5)
    aside = pop.x[:, None] - m[..., None] * w[:, :, None]
    eye = torch.eye(w.shape[-1], dtype=w.dtype) - w[..., :, None] * w[..., None, :]
    square = torch.einsum("rskd,rske->rskde", aside, aside) + pop.sigma**2 * eye[:, :, None]
    return density[..., None, None] * square


@dataclass(frozen=True)
class Disc:
    """Densities of the plane: radius ``radius (R,)``, ``linear (R, 2)`` and symmetric ``quadratic (R, 2, 2)`` in the exponent."""

    radius: Tensor
    linear: Tensor
    quadratic: Tensor

    def unnormalised(self, x: Tensor) -> Tensor:
        """The density up to its constant at ``x (R, n, 2)``: ``(R, n)``."""
        y = x / self.radius[:, None, None]
        return torch.exp((y * self.linear[:, None]).sum(-1) + ((y @ self.quadratic) * y).sum(-1))

    def sector(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes ``(R, n, 2)`` between the angles ``low`` and ``high (R,)`` and their weights times the density, ``(R, n)``."""
        t, weight = (torch.as_tensor(v) for v in np.polynomial.legendre.leggauss(32))
        r = 0.5 * (t + 1) * self.radius[:, None]
        angle = low[:, None] + 0.5 * (t + 1) * (high - low)[:, None]
        ray = torch.stack([angle.cos(), angle.sin()], -1)  # (R, a, 2)
        x = (r[:, :, None, None] * ray[:, None]).flatten(1, 2)
        along, around = 0.5 * self.radius[:, None] * weight * r, 0.5 * (high - low)[:, None] * weight
        return x, (along[:, :, None] * around[:, None]).flatten(1) * self.unnormalised(x)


def discs(replicas: int, seed: int = 0) -> Disc:
    """Random densities on discs whose radii are spread evenly over a logarithmic range, from 0.05 to 3."""
    draw = Streams(range(seed, seed + replicas), "disc")
    radius = 0.05 * 60 ** draw.uniform((1,), torch.float64)[:, 0]
    quadratic = draw.normal((2, 2))
    return Disc(radius, draw.normal((2,)), 0.5 * (quadratic + quadratic.mT))


def roughness(disc: Disc, angle: Tensor, tau: float | None = None) -> dict[str, Tensor]:
    r"""Roughness of ReLU filters at the angles ``angle (R,)``; weights uniform for ``tau = None``, else Gaussian in the response.

    ``tau`` is in units of the squared radius, so that discs of every size are alike.  Of each density, ``(R,)``: the roughness,
    exactly (``plane``) and by automatic differentiation of A (``measured``), and what bounds it.
    ``r`` is :math:`\sum_l z_l^2 \max \tilde p_l` on the plane; ``printed`` is :math:`C^3 \mathrm{vol}(C)\, r / \pi`, ``corrected``
    has :math:`C^2`; ``sharp`` is :math:`\frac23 C^3 \max_{w^T x = 0} \kappa_h p`; ``z0`` the factor of Corollary 2.
    """
    c = disc.radius
    w = torch.stack([angle.cos(), angle.sin()], -1)
    half = math.pi / 2
    on, on_mass = disc.sector(angle - half, angle + half)
    off, off_mass = disc.sector(angle + half, angle + 3 * half)
    total = on_mass.sum(1) + off_mass.sum(1)

    def phi(x: Tensor) -> Tensor:
        h = (x @ w[..., None])[..., 0].clamp_min(0) / c[:, None]
        return torch.ones_like(h)[..., None] if tau is None else theory.features(h[..., None], tau, 45)

    z = torch.einsum("rn,rnl->rl", on_mass, phi(on)) + torch.einsum("rn,rnl->rl", off_mass, phi(off))
    z = z / total[:, None]

    def pulled(turn: Tensor) -> Tensor:  # A w at a filter that is turned on; the weights are held where they were
        x, mass = disc.sector(angle + turn - half, angle + turn + half)
        feature = phi(x)
        mean = feature.mT @ (mass[..., None] * x) / total[:, None, None]
        heavy = mass * (feature @ z[..., None])[..., 0]
        a = x.mT @ (heavy[..., None] * x) / total[:, None, None] - mean.mT @ mean
        return (a @ w[..., None])[..., 0]

    moved = torch.func.jvp(pulled, (torch.zeros_like(angle),), (torch.ones_like(angle),))[1]
    fine, weight = (torch.as_tensor(v) for v in np.polynomial.legendre.leggauss(400))
    along = torch.stack([-angle.sin(), angle.cos()], -1)
    s = fine * c[:, None]
    p = disc.unnormalised(s[..., None] * along[:, None]) / total[:, None]
    start = phi(torch.zeros(len(c), 1, 2, dtype=c.dtype))[:, 0]  # the features on the plane, where the response is zero
    h = (on @ w[..., None])[..., 0]
    pull = torch.einsum("rn,rn,rnl,rl->r", on_mass, h, phi(on), start) / total
    exact = pull * (weight * s.square() * p).sum(1) * c
    r = (z * start).sum(1) * p.amax(1)
    disc_area = math.pi * c.square()
    corrected = c.square() * disc_area / math.pi * r
    sharp = 2 / 3 * c**3 * pull * p.amax(1)
    bounds = {"printed": c * corrected, "corrected": corrected, "sharp": sharp}
    return bounds | {"plane": exact, "measured": moved.norm(dim=-1), "r": r, "z0": (z * start).sum(1)}


def uniform_ball(size: int, radius: float) -> dict[str, float]:
    r"""The uniform density on a ball of any dimension, in closed form: its roughness, the printed and the corrected bound.

    :math:`\rho = C^2 [v_{d-1} / ((d + 1) v_d)]^2` with the volume :math:`v_d` of the unit ball; the bounds are
    :math:`C^3 / \pi` and :math:`C^2 / \pi`.
    """
    v = [math.pi ** (d / 2) / math.gamma(d / 2 + 1) for d in (size - 1, size)]
    rho = radius**2 * (v[0] / ((size + 1) * v[1])) ** 2
    return {"roughness": rho, "printed": radius**3 / math.pi, "corrected": radius**2 / math.pi}


# --- Power iteration with a matrix that moves ------------------------------------------------------------------------

KAPPA = 2 * math.sqrt(4 + (1 + math.sqrt(2)) ** 2)
r"""Lemma 9 holds with :math:`\kappa = \mathrm{KAPPA} / \lambda_{\mathrm{gap}}^2`, for every symmetric perturbation."""


def irregularity(c: Tensor, gap: Tensor, top: Tensor, lipschitz: Tensor) -> Tensor:
    r""":math:`\omega` of Definition 4 with :math:`\kappa` = `KAPPA` / gap^2; all arguments broadcast."""
    mu = 0.5 * (1 + c) / c.square() * (1 - gap / top).square()
    kappa = KAPPA / gap.square()
    spread = 1 + mu * c
    return mu + 2 * kappa * lipschitz.square() * spread + 2 * lipschitz / gap * (mu * spread).sqrt()


def radius(c0: Tensor, gamma: Tensor) -> Tensor:
    r"""Radius of the cap :math:`B_\gamma` around the start (Lemma 11)."""
    return (2 * (1 + gamma) * (1 - c0).clamp_min(0)).sqrt() / (1 - gamma.sqrt())


def perturbation_gaps(count: int = 2000, seed: int = 0) -> dict[str, float]:
    r"""Lemma 9: the largest :math:`\|\phi_1' - \phi_1 - \Delta\phi_1\|\, \lambda_{\mathrm{gap}}^2 / \|\delta A\|^2` that is
    found.

    ``random``: symmetric matrices of 2 to 5 rows, perturbations of any size up to the gap, ``count`` each.
    ``exchange``: with the eigenvalues 1, 0 and -1, perturbations that take :math:`\frac12 (1 + e)` from the first and give it to
    the second, and couple them by :math:`e^2`: the leading eigenvector turns by nearly a right angle, which first order, small as
    the coupling, does not see; they tend to :math:`4\sqrt2`.  Broken: :math:`\Delta\phi_1` left out, the least over the sizes
    of matrices.
    """
    kept, dropped = [], []
    for rows in range(2, 6):
        draw = Streams(range(seed, seed + count), f"perturbation {rows}")
        a, d = (v + v.mT for v in (draw.normal((rows, rows)), draw.normal((rows, rows))))
        values = torch.linalg.eigvalsh(a)
        length = draw.uniform((1, 1), torch.float64) * (values[:, -1] - values[:, -2])[:, None, None]
        found = _second_order(a, d * length / torch.linalg.matrix_norm(d, ord=2)[:, None, None])
        kept.append(found[0].max())
        dropped.append(found[1].max())
    apart = torch.logspace(-6, -1, 50, dtype=torch.float64)
    change = torch.zeros(50, 3, 3, dtype=torch.float64)
    change[:, 1, 1] = 0.5 * (1 + apart)
    change[:, 0, 0], change[:, 0, 1], change[:, 1, 0] = -change[:, 1, 1], apart.square(), apart.square()
    exchanged = torch.diag(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)).expand_as(change)
    return {
        "random": float(torch.stack(kept).max()),
        "exchange": float(_second_order(exchanged, change)[0].max()),
        "broken: first order left out": float(torch.stack(dropped).min()),
    }


def _second_order(a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    r"""The change of the leading eigenvector beyond first order, and all of it, by the perturbation's square in gaps: ``(R,)``."""
    values, vectors = torch.linalg.eigh(a)
    old, new = vectors[..., -1], torch.linalg.eigh(a + d)[1][..., -1]
    new = new * (new * old).sum(-1, keepdim=True).sign()  # eigenvectors come with any sign
    # first-order perturbation: sum over the other eigenvectors v of v (v^T dA phi_1) / (lambda_1 - lambda_v)
    inside = (vectors.mT @ d @ old[..., None])[..., :-1, 0] / (values[:, -1:] - values[:, :-1])
    first = (vectors[..., :-1] @ inside[..., None])[..., 0]
    unit = (values[:, -1] - values[:, -2]).square() / torch.linalg.matrix_norm(d, ord=2).square()
    return (new - old - first).norm(dim=-1) * unit, (new - old).norm(dim=-1) * unit


def iterate(pop: Population, w: Tensor, steps: int) -> Tensor:
    """Power iteration from ``w (R, S, d)``, for a ReLU: all iterates, ``(steps + 1, R, S, d)``."""
    path = [w]
    for _ in range(steps):
        w = F.normalize((pop.matrix(w, Activation()) @ w[..., None])[..., 0], dim=-1)
        path.append(w)
    return torch.stack(path)


def _outcome(pop: Population, start: Tensor, gamma: Tensor, c0: Tensor, *, least: float) -> dict[str, Tensor]:
    r"""Theorem 3 at one start for each population, ``(R,)``: whether it applies, with which :math:`\gamma`, and what happened.

    ``gamma`` is NaN where the theorem does not apply, and then taken as ``least``.  ``bound`` is the cap's radius; ``moved`` the
    distance from the start to where power iteration ended, ``excess`` the largest :math:`(1 - c_t) / (\gamma^t (1 - c_0))` while
    that is above rounding, ``hasty`` the same with :math:`\mu` at the start in place of :math:`\gamma`, as if the matrix stayed
    what it is there, and ``residual`` the last step's length.
    """
    applies = ~gamma.isnan()
    gamma = gamma.nan_to_num(least)
    path = iterate(pop, start, steps=80)
    leading = torch.stack([torch.linalg.eigh(pop.matrix(w, Activation()))[1][..., -1] for w in path])
    c = (leading * path).sum(-1).abs()[..., 0]
    values = torch.linalg.eigvalsh(pop.matrix(start, Activation())[:, 0])
    fixed = irregularity(c[0], values[:, -1] - values[:, -2], values[:, -1], torch.zeros_like(c[0]))
    moved, residual = ((path[-1] - path[i]).norm(dim=-1)[:, 0] for i in (0, -2))
    found = {"applies": applies, "gamma": gamma, "bound": radius(c0, gamma), "moved": moved}
    return found | {"excess": _excess(c, gamma), "hasty": _excess(c, fixed), "residual": residual}


def _excess(c: Tensor, rate: Tensor) -> Tensor:
    promised = rate ** torch.arange(len(c), dtype=c.dtype)[:, None] * (1 - c[0])
    return torch.where(promised > 1e-13, (1 - c) / promised, torch.zeros_like(c))[1:].amax(0)


def certify_plane(pop: Blobs, start: Tensor) -> dict[str, Tensor]:
    """Theorem 3 for ReLU filters on mixtures of Gaussians in the plane, from the angles ``start (R,)``.

    The smallest of twenty values of gamma for which the supremum over a grid on the cap stays below it; L by all pairs of the grid.
    """
    points = 61
    act = Activation()
    w0 = torch.stack([start.cos(), start.sin()], -1)[:, None]
    values, vectors = torch.linalg.eigh(pop.matrix(w0, act))
    lead = vectors[..., -1]
    lead = lead * (lead * w0).sum(-1, keepdim=True).sign()
    c0 = (lead * w0).sum(-1)[:, 0]
    best = torch.full_like(c0, math.nan)
    grid = torch.linspace(-1, 1, points, dtype=c0.dtype)
    i, j = torch.triu_indices(points, points, 1)
    for gamma in torch.linspace(0.95, 0.05, 20, dtype=c0.dtype):
        cap = radius(c0, gamma)
        angle = start[:, None] + 2 * torch.asin((cap / 2).clamp_max(1))[:, None] * grid
        w = torch.stack([angle.cos(), angle.sin()], -1)
        a = pop.matrix(w, act)
        values, vectors = torch.linalg.eigh(a)
        top = vectors[..., -1]
        top = top * (top * lead).sum(-1, keepdim=True).sign()
        c = (top * w).sum(-1)
        step = a[:, i] - a[:, j]  # symmetric, 2 x 2: their spectral norm in closed form
        middle, half = (0.5 * (step[..., 0, 0] + sign * step[..., 1, 1]) for sign in (1, -1))
        length = middle.abs() + torch.hypot(half, step[..., 0, 1])
        steep = length / (w[:, i] - w[:, j]).norm(dim=-1).clamp_min(1e-300)
        omega = irregularity(
            c.clamp_min(1e-9), values[..., -1] - values[..., 0], values[..., -1], steep.amax(1, keepdim=True)
        )
        good = (omega.amax(1) <= gamma) & (cap < 1) & (c > 0).all(1)
        best = torch.where(good, gamma, best)
    return _outcome(pop, w0, best, c0, least=0.95)


def certify_points(cloud: Cloud, start: Tensor) -> dict[str, Tensor]:
    """Theorem 3 for ReLU filters on finitely many points, from ``start (R, 1, d)``: A is constant on the cap, so L = 0 there.

    It applies with the smallest gamma of a grid for which the gates are the same all over the cap and :math:`\\mu \\le \\gamma`.
    """
    act = Activation()
    values, vectors = torch.linalg.eigh(cloud.matrix(start, act)[:, 0])
    top = vectors[..., -1]
    c0 = (top * start[:, 0]).sum(-1).abs()
    margin = ((start @ cloud.x.mT)[:, 0].abs() / cloud.x.norm(dim=-1)).amin(1)
    best = torch.full_like(c0, math.nan)
    for gamma in torch.linspace(0.98, 0.02, 97, dtype=c0.dtype):
        cap = radius(c0, gamma)
        turn = torch.acos(c0.clamp_max(1)) + 2 * torch.asin((cap / 2).clamp_max(1))
        c = torch.cos(turn.clamp_max(math.pi / 2))
        mu = 0.5 * (1 + c) / c.square().clamp_min(1e-12) * (values[:, -2] / values[:, -1]).square()
        best = torch.where((cap < margin) & (mu <= gamma), gamma, best)
    return _outcome(cloud, start, best, c0, least=0.98)
