r"""The optima of one leaky rectifier on a finite set of points, exactly (uniform weights, no augmentation).

Between the planes :math:`w^T x_i = 0` the matrix :math:`A` is constant and the energy is :math:`\frac12 w^T A w`; a maximum
there is the leading eigenvector of :math:`A`.  On a plane the mean response has a kink, so that the energy's slope *falls* by
:math:`(1 - a)\, p_i\, E[h]\, |x_i^T \dot w|` (a the lower slope), and the sphere can have a maximum there too: w with
:math:`w^T x_i = 0` for i in Z is one if, with :math:`g = P^\perp_w A w` (gates of Z at a),

.. math::  g = (1 - a)\, E[h] \sum_{i \in Z} t_i\, p_i\, x_i, \qquad 0 \le t_i \le 1,

and w leads A, with gate i open by :math:`t_i`, on the complement of the :math:`x_i` with :math:`0 < t_i < 1`.
`find` climbs from many starts, puts what it finds exactly where it belongs and keeps what passes this test.

Linear filters in training: where they go if the weights stay as they are, and if each step computes them anew (Section 3).

With weights that are held fixed, the energy of a linear filter is :math:`\frac12 w^T C_\alpha[x] w`; its only maxima on the
sphere are plus and minus the leading eigenvector.  With the weights of InfoNCE at the filter's own outputs, :math:`C_\alpha[x]`
moves with w.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import lsq_linear
from torch import Tensor

from sslbook.experiments.landscape.instances import Cloud
from sslbook.experiments.landscape.theory import Activation, gaussian
from sslbook.losses.energies import contrastive_covariance, project, weights
from sslbook.stats.replica_rng import Streams


@dataclass(frozen=True)
class Optima:
    """Distinct certified maxima: of each, its replica ``(n,)``, ``w (n, d)``, energy, points at the kink, and share of starts.

    ``residual`` is the worst violation of the equations over all of them; ``uncertified`` the share of starts whose end failed the
    test, ``silent`` of those that ended where the energy is zero.
    """

    replica: Tensor
    w: Tensor
    energy: Tensor
    kinks: Tensor
    share: Tensor
    residual: float
    uncertified: float
    silent: float

    def counts(self, replicas: int) -> Tensor:
        """How many each replica has, ``(R,)``."""
        return torch.bincount(self.replica, minlength=replicas)


def climb(cloud: Cloud, act: Activation, starts: Tensor, *, steps: int = 1500, first: float = 0.02) -> Tensor:
    """Projected ascent from ``starts (R, S, d)`` with steps whose *length* falls geometrically from ``first`` to 1e-7.

    Fixed lengths make it settle on kinks, where the gradient does not vanish; it ends within some 1e-7 of a maximum.
    """
    w = starts
    for t in range(steps):
        g = project(w, cloud.velocity(w, act))
        length = first * (1e-7 / first) ** (t / (steps - 1))
        w = w + length * g / g.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        w = w / w.norm(dim=-1, keepdim=True)
    return w


def find(cloud: Cloud, act: Activation, starts: Tensor, *, steps: int = 1500, first: float = 0.02) -> Optima:
    """All certified maxima that ``starts (R, S, d)`` lead to; points within 1e-4 (a sine) of the plane count as on it."""
    w, on = _polish(cloud, act, climb(cloud, act, starts, steps=steps, first=first))
    value = cloud.energy(w, act)
    loud = value > 1e-12
    # the first start of each group of equal ends stands for it
    same = (torch.cdist(w, w) < 1e-5) & loud[:, None] & loud[:, :, None]
    one = loud & ~same.tril(-1).any(-1)
    share = same.double().mean(-1)[one]
    replica = one.nonzero()[:, 0]
    good, residual = certify(cloud, act, w[one], on[one], replica)
    worst = float(residual[good].max()) if bool(good.any()) else 0.0
    bad = float(share[~good].sum()) / len(cloud.x)
    kept = (replica[good], w[one][good], value[one][good], on.sum(-1)[one][good], share[good])
    return Optima(*kept, worst, bad, float((~loud).double().mean()))


def _polish(cloud: Cloud, act: Activation, w: Tensor) -> tuple[Tensor, Tensor]:
    """The exact maximum of the face that ``w`` lies on, ``(R, S, d)``, and which points are on its plane, ``(R, S, n)``."""
    u = w @ cloud.x.mT
    on = u.abs() < 1e-4 * cloud.x.norm(dim=-1)[:, None]
    a = _open(cloud, act, u, on)
    face = _complement(cloud, on)
    top = torch.linalg.eigh(face @ a @ face)[1][..., -1]
    top = top * (top * w).sum(-1, keepdim=True).sign()
    # a face that is a line or a point has no eigenvalue above the zeros of its complement: project instead
    back = (face @ w[..., None])[..., 0]
    inside = (face @ top[..., None])[..., 0].norm(dim=-1, keepdim=True) > 1 - 1e-9
    out = torch.where(inside, top, back)
    return out / out.norm(dim=-1, keepdim=True), on


def certify(cloud: Cloud, act: Activation, w: Tensor, on: Tensor, replica: Tensor) -> tuple[Tensor, Tensor]:
    """Whether candidates ``w (n, d)`` on the planes of ``on (n, N)`` pass the module's test, and the error of their equations.

    The openings come from a least-squares problem with bounds.  Candidates differ in the number of points on their plane, which can
    depend on each other (two points on one line, the corners of a box), so SciPy solves them one by one.
    """
    x, p = cloud.x[replica], cloud.p[replica]
    single = Cloud(x, p)
    u = w[:, None] @ x.mT
    a = _open(single, act, u, on[:, None])[:, 0]
    velocity = (a @ w[..., None])[..., 0]
    value = (velocity * w).sum(-1)
    pull = project(w, velocity)
    mean = (p * act(u[:, 0]) * ~on).sum(-1)
    residual = (on * u[:, 0]).norm(dim=-1)
    opening = torch.zeros_like(u[:, 0])
    for k, (mask, force) in enumerate(zip(on, pull, strict=True)):
        columns = ((1 - act.slope) * mean[k] * p[k, mask, None] * x[k, mask]).T
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
    return (residual < 1e-9) & (second < value * (1 - 1e-9)), residual


def _open(cloud: Cloud, act: Activation, u: Tensor, on: Tensor, opening: Tensor | float = 0.0) -> Tensor:
    """``A`` with the gates of the points on the plane open by ``opening``: at the lower slope for 0, at one for 1."""
    gate = torch.where(on, torch.zeros_like(u) + act.slope + (1 - act.slope) * opening, act.gate(u))
    return cloud.gated(gate)


def _complement(cloud: Cloud, on: Tensor) -> Tensor:
    """Projector on what is orthogonal to the points on the plane, ``(R, S, d, d)``."""
    rows = on[..., None] * cloud.x[:, None]
    out: Tensor = torch.eye(cloud.x.shape[-1], dtype=cloud.x.dtype) - torch.linalg.pinv(rows) @ rows
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Linear filters


@dataclass(frozen=True)
class Filters:
    """Ends ``w (R, S, d)`` of linear filters on R batches, and the leading eigenvector of the fixed matrix, ``lead (R, d)``."""

    w: Tensor
    lead: Tensor
    still: Tensor

    @property
    def cosine(self) -> Tensor:
        """``|w^T lead|``, ``(R, S)``."""
        return (self.w @ self.lead[..., None])[..., 0].abs()

    def directions(self) -> Tensor:
        """The number of different ends up to sign on each batch, of filters that stand still, ``(R,)``."""
        near = (self.w @ self.w.mT).abs() > 1 - 1e-4
        settled = self.still[:, :, None] & self.still[:, None]
        return (self.still & ~(near & settled).tril(-1).any(-1)).sum(-1)


def train_linear(
    replicas: int, filters: int = 64, *, anew: bool, tau: float = 0.1, steps: int = 800, seed: int = 0, size: int = 3
) -> Filters:
    """Projected ascent of linear filters from random starts, on batches of 10 points without augmentation.

    ``anew``: InfoNCE weights (epsilon 0) at each filter's own outputs in every step; else Gaussian weights of the points.
    """
    draw = Streams(range(seed, seed + replicas), "linear")
    x = draw.normal((10, size))
    x = x / x.norm(dim=-1, keepdim=True)
    w = draw.normal((filters, size))
    w = w / w.norm(dim=-1, keepdim=True)
    fixed = gaussian(x, 1.0)
    matrix = contrastive_covariance(x, x, fixed)
    lead = torch.linalg.eigh(matrix)[1][..., -1]
    step = 0.2 / torch.linalg.matrix_norm(matrix, ord=2)[:, None, None]
    data = x[:, None].expand(-1, filters, -1, -1)
    rate = step * 10  # a row of InfoNCE weights sums to one, a row of the others to some ten
    v = w
    for _ in range(steps):
        if anew:
            f = data @ w[..., None]
            alpha = weights("info_nce", f, f, tau=tau)
            v = rate * contrastive_covariance(data, data, alpha, f, f)[..., 0]
        else:
            v = step * (w @ matrix)
        w = w + project(w, v)
        w = w / w.norm(dim=-1, keepdim=True)
    return Filters(w, lead, project(w, v).norm(dim=-1) < 1e-6)
