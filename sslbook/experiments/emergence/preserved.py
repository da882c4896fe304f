r"""One linear neuron, and an augmentation that scrambles a subspace (Section 5.1 of [tian2020]; claim A-5.1a).

A sample :math:`x \in R^n` becomes the view :math:`x' = Q x + P G P x` with projectors :math:`Q + P = I` and a random Gaussian
matrix ``G``: the range of ``Q`` is preserved, its complement scrambled.  The connection of a linear neuron is its input, so that
:math:`OP = V_x[E[x' | x]]`, which is :math:`Q V[x] Q` if ``G`` has mean zero.

Everything has a leading replica axis ``R``: one random population and one random subspace each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sslbook.operator.covariance import covariance_operator
from sslbook.stats.checks import Gaps, relative, relative_gap


@dataclass(frozen=True)
class Scrambled:
    """Populations ``x (R, N, n)``, projectors ``preserved (R, n, n)`` and ``nuisance (R, n, n)`` that add up to the identity."""

    x: Tensor
    preserved: Tensor
    nuisance: Tensor

    @property
    def covariance(self) -> Tensor:
        """``V[x]``, ``(R, n, n)``, divided by ``N``."""
        centred = self.x - self.x.mean(1, keepdim=True)
        return centred.mT @ centred / self.x.shape[1]

    @property
    def operator(self) -> Tensor:
        """``Q V[x] Q``, ``(R, n, n)``."""
        return self.preserved @ self.covariance @ self.preserved

    def views(self, draws: Tensor) -> Tensor:
        """``Q x + P G P x`` for ``draws`` G of shape ``(R, N, V, n, n)``: ``(R, N, V, n)``."""
        kept = (self.x @ self.preserved)[:, :, None]
        lost = (self.x @ self.nuisance)[:, :, None, :, None]
        return kept + (draws @ lost)[..., 0] @ self.nuisance[:, None]


def scrambled(replicas: int, *, samples: int = 40, kept: int = 3, seed: int = 0, gap: float = 0.0) -> Scrambled:
    """Random populations with correlated coordinates and random subspaces of dimension ``kept``, in float64.

    gap: only populations whose operator has ``1 - lambda_2 / lambda_1`` of at least this are taken (the first of 16 times as many).
    Raises ValueError where too few populations have the gap.
    """
    size = 6
    draw = torch.Generator().manual_seed(seed)
    count = replicas if gap == 0 else 16 * replicas

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    x = normal(count, samples, size) @ normal(count, size, size) + normal(count, 1, size)
    basis = torch.linalg.qr(normal(count, size, kept))[0]
    preserved = basis @ basis.mT
    found = Scrambled(x, preserved, torch.eye(size, dtype=torch.float64) - preserved)
    values = torch.linalg.eigvalsh(found.operator)
    chosen = (1 - values[:, -2] / values[:, -1] >= gap).nonzero()[:replicas, 0]
    if len(chosen) < replicas:
        raise ValueError(f"gap={gap} leaves {len(chosen)} populations where replicas={replicas} are wanted: lower it")
    return Scrambled(found.x[chosen], preserved[chosen], found.nuisance[chosen])


def _enumerated_gradient(weight: Tensor, views: Tensor) -> Tensor:
    """Autograd gradient of the mean L_simp over *all* tuples of ``views (R, N, V, n)``, both towers, in ``weight (R, n)``."""
    leaf = weight.clone().requires_grad_(True)
    f = torch.einsum("rivn,rn->riv", views, leaf)
    positive = 0.5 * (f[:, :, :, None] - f[:, :, None]).square().mean((1, 2, 3))
    every = f.flatten(1)
    negative = 0.5 * (every[:, :, None] - every[:, None]).square().mean((1, 2))
    (gradient,) = torch.autograd.grad((positive - negative).sum(), leaf)
    return gradient


def projector_gaps(replicas: int = 20, seed: int = 0) -> Gaps:
    r"""Relative errors of :math:`-2\, Q V[x] Q\, w` against the enumerated gradient, and of the library's operator (on five).

    Every scrambling matrix comes with its negative, so that the views' mean is exact on a finite set of views.  The worst of
    what must agree, the best of what must not, as :func:`sslbook.stats.checks.worst` has it.
    """
    scene = scrambled(replicas, samples=8, seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    r, n_samples, size = scene.x.shape
    half = torch.randn(r, n_samples, 2, size, size, generator=draw, dtype=torch.float64)
    weight = torch.randn(r, size, generator=draw, dtype=torch.float64)
    even = scene.views(torch.cat([half, -half], 2))
    truth = -0.5 * _enumerated_gradient(weight, even)
    offset = torch.randn(r, 1, 1, size, size, generator=draw, dtype=torch.float64)
    leaning = -0.5 * _enumerated_gradient(weight, scene.views(torch.cat([offset + half, offset - half], 2)))
    moved = scene.preserved + scene.nuisance @ offset[:, 0, 0] @ scene.nuisance

    def times(matrix: Tensor) -> Tensor:
        return torch.einsum("rnm,rm->rn", matrix, weight)

    def smallest(value: Tensor, reference: Tensor = truth) -> float:
        return float(relative(value, reference).min())

    net = nn.Linear(size, 1, bias=False, dtype=torch.float64)
    dense = [covariance_operator(nn.Sequential(net), "0", seen).dense() for seen in even[:5]]
    right, wrong = (
        [relative_gap(a.flatten(), b.flatten()) for a, b in zip(dense, truths, strict=False)]
        for truths in (scene.operator, scene.covariance)
    )
    return {
        "projected covariance": relative_gap(times(scene.operator), truth),
        "library's operator": max(right),
        "mean not zero, corrected": relative_gap(times(moved @ scene.covariance @ moved.mT), leaning),
        "broken: library's operator and V[x]": min(wrong),
        "broken: V[x] itself": smallest(times(scene.covariance)),
        "broken: projected once": smallest(times(scene.preserved @ scene.covariance)),
        "broken: mean not zero": smallest(times(scene.operator), leaning),
        "instances": float(replicas),
    }


def sampling_errors(
    counts: tuple[int, ...], replicates: int = 32, seed: int = 0, *, offset: float = 0.0
) -> tuple[float, ...]:
    r"""Relative RMS error of ``OP w`` estimated from ``T`` random tuples with fresh Gaussian scrambling, for each ``T``.

    One population, ``replicates`` independent estimates :math:`\frac1T \sum x_1 (x_+ - x_-)^T w`: no view is drawn twice.
    ``offset`` is the mean of G's entries; where it is not zero, the estimates converge, but not to Q V[x] Q w.
    """
    scene = scrambled(1, seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    n_samples, size = scene.x.shape[1:]
    weight = torch.randn(size, generator=draw, dtype=torch.float64)
    truth = scene.operator[0] @ weight
    errors = []
    for count in counts:
        index = torch.randint(n_samples, (2, replicates, count), generator=draw)
        index = torch.stack([index[0], index[0], index[1]])  # anchor, positive, negative
        x = scene.x[0][index]
        noise = offset + torch.randn(*x.shape, size, generator=draw, dtype=torch.float64)
        lost = ((noise @ (x @ scene.nuisance[0])[..., None])[..., 0]) @ scene.nuisance[0]
        one, plus, minus = x @ scene.preserved[0] + lost
        step = torch.einsum("rtn,rt->rn", one, (plus - minus) @ weight) / count
        errors.append(float(((step - truth).square().sum(1).mean()).sqrt() / truth.norm()))
    return tuple(errors)


@dataclass(frozen=True)
class Learned:
    """Absolute cosines ``(R,)`` of the trained weight with leading eigenvectors of ``Q V Q``, of ``V``, and ``Q`` times that."""

    projected: Tensor
    whole: Tensor
    cut: Tensor


def train_neuron(
    replicas: int = 32, *, steps: int = 800, batch: int = 64, rate: float = 0.05, gap: float = 0.3, seed: int = 0
) -> Learned:
    r"""SGD on L_simp with fresh Gaussian views, the weight scaled to unit length after each step; all replicas at once.

    The rate is in units of the operator's leading eigenvalue and falls as :math:`1 / (1 + 10 t / steps)`.
    """
    scene = scrambled(replicas, gap=gap, seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    n_samples, size = scene.x.shape[1:]
    values, vectors = torch.linalg.eigh(scene.operator)
    weight = torch.randn(replicas, size, generator=draw, dtype=torch.float64)
    weight /= weight.norm(dim=1, keepdim=True)
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
    cut = torch.einsum("rnm,rm->rn", scene.preserved, leading)

    def cosine(direction: Tensor) -> Tensor:
        found: Tensor = (weight * direction).sum(1).abs() / direction.norm(dim=1)
        return found

    return Learned(cosine(vectors[:, :, -1]), cosine(leading), cosine(cut))
