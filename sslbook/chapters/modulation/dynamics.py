r"""Dynamics of two layers: Lemma 4, Theorem 4 and Lemma 6 of [tian2023], each against autograd, on many random instances.

A lower layer of ``K`` disjoint receptive fields with ``M`` filters :math:`w_{km} \in \mathbb R^d` each, homogeneous
activation :math:`h(u) = h'(u)\,u`, and a linear top layer ``V`` with :math:`S = V^\top V`.  Training ascends the energy
:math:`\mathcal E_\alpha = \frac12 \operatorname{tr} C_\alpha[f_2]`, with :math:`\alpha` held constant.  Replicas lie along
the first axis; ``x`` is ``(R, 2, N, K, d)``, two views of ``N`` samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.chapters.modulation.reference import ACTIVATIONS
from sslbook.contrast import contrastive_covariance, energy, loss_value, project
from sslbook.contrast import weights as pair_weights
from sslbook.gaps import Gaps, over_instances, relative
from sslbook.normalization import batch_normalize

DTYPE = torch.float64
EPS = 1e-5
"""Under BatchNorm's root, so that a filter that no input opens divides by something."""


@dataclass(frozen=True)
class Instances:
    """Random networks and inputs: ``x (R, 2, N, K, d)``, ``weights (R, K, M, d)``, ``top (R, O, K, M)``."""

    x: Tensor
    weights: Tensor
    top: Tensor

    def hidden(self, weights: Tensor, activation: str) -> Tensor:
        """Activations of the lower layer, ``(R, 2, N, K M)``."""
        return ACTIVATIONS[activation](torch.einsum("rvnkd,rkmd->rvnkm", self.x, weights)).flatten(3)

    def gated(self, activation: str) -> Tensor:
        r""":math:`\tilde x_{km} = x_k\, h'(w_{km}^\top x_k)`, concatenated: ``(R, 2, N, K M d)``."""
        u = torch.einsum("rvnkd,rkmd->rvnkm", self.x, self.weights).requires_grad_()
        (slope,) = torch.autograd.grad(ACTIVATIONS[activation](u).sum(), u)
        return (slope[..., None] * self.x[..., None, :]).flatten(3)


def _random_instances(
    count: int, seed: int, *, fields: int = 3, filters: int = 2, d: int = 3, samples: int = 7
) -> Instances:
    """``count`` of them; filters have length 1, inputs a mean of their own, views differ by noise."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=draw, dtype=DTYPE)

    x = normal(1, samples, fields, d) + 0.5 * normal(1, 1, fields, d) + 0.4 * normal(2, samples, fields, d)
    w = normal(fields, filters, d)
    return Instances(x, w / w.norm(dim=-1, keepdim=True), normal(4, fields, filters))


def modulated(kernel: Tensor, covariance: Tensor, w: Tensor) -> Tensor:
    r""":math:`[(S \otimes 1_d 1_d^\top) \circ C]\, w`, ``(R, K M d)``; ``kernel``: :math:`S`, ``(R, KM, KM)``."""
    d = covariance.shape[1] // kernel.shape[1]
    ones = torch.ones(d, d, dtype=kernel.dtype)
    return torch.einsum("rpq,rq->rp", torch.kron(kernel, ones) * covariance, w)


# ---------------------------------------------------------------------------------------------------------------------
# Lemma 4


def lemma4_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 12 against autograd: of the energy with random :math:`\alpha`, and of InfoNCE itself, where it is
    :math:`-1/(2N^2)` of the loss's.

    Half of the instances have ReLU, half leaky ReLU.  ``square, halved``: with a square for the activation, whose
    :math:`h'(u)\,u = 2 h(u)`, half of the right side.
    """
    rows: dict[str, list[Tensor]] = {}
    for activation in ("relu", "leaky_relu"):
        drawn = _random_instances(count // 2, seed)
        for name, gap in _lemma4(drawn, activation, 0.7, seed).items():
            rows.setdefault(name, []).append(gap)
        seed += 1
    return over_instances({name: torch.cat(parts) for name, parts in rows.items()})


def _lemma4(drawn: Instances, activation: str, tau: float, seed: int) -> dict[str, Tensor]:
    replicas, samples = drawn.x.shape[0], drawn.x.shape[2]
    draw = torch.Generator().manual_seed(seed + 77)
    alpha = torch.rand(replicas, samples, samples, generator=draw, dtype=DTYPE)
    w, v = drawn.weights.clone().requires_grad_(), drawn.top.clone().requires_grad_()
    f1 = drawn.hidden(w, activation)
    f2 = torch.einsum("rvnp,rop->rvno", f1, v.flatten(2))
    true = torch.autograd.grad(energy(f2[:, 0], f2[:, 1], alpha).sum(), (w, v), retain_graph=True)
    slopes = torch.autograd.grad(loss_value("info_nce", f2[:, 0], f2[:, 1], tau=tau).sum(), (w, v))
    learned = [-slope / (2 * samples**2) for slope in slopes]
    f1, f2, rows = f1.detach(), f2.detach(), drawn.top.flatten(2)
    kernel, flat, gated = rows.mT @ rows, drawn.weights.flatten(1), drawn.gated(activation)

    def both(alpha: Tensor, kernel: Tensor = kernel, gated: Tensor = gated) -> tuple[Tensor, Tensor]:
        in_w = modulated(kernel, contrastive_covariance(gated[:, 0], gated[:, 1], alpha), flat).view_as(drawn.weights)
        in_v = (rows @ contrastive_covariance(f1[:, 0], f1[:, 1], alpha)).view_as(drawn.top)
        return project(drawn.weights, in_w), in_v

    def gap(found: Tensor, reference: Tensor) -> Tensor:
        return relative(found, project(drawn.weights, reference))

    in_w, in_v = both(alpha)
    nce_w, nce_v = both(pair_weights("info_nce", f2[:, 0], f2[:, 1], tau=tau))
    blocks = torch.kron(torch.eye(drawn.x.shape[3], dtype=DTYPE), torch.ones(2 * [drawn.weights.shape[2]], dtype=DTYPE))
    square = drawn.weights.clone().requires_grad_()
    outputs = torch.einsum("rvnp,rop->rvno", drawn.hidden(square, "quadratic"), rows)
    (misfit,) = torch.autograd.grad(energy(outputs[:, 0], outputs[:, 1], alpha).sum(), square)
    return {
        "filters": gap(in_w, true[0]),
        "top layer": relative(in_v, true[1]),
        "filters, InfoNCE": gap(nce_w, learned[0]),
        "top layer, InfoNCE": relative(nce_v, learned[1]),
        "broken: fields apart": gap(both(alpha, kernel * blocks)[0], true[0]),
        "broken: no gates": gap(both(alpha, gated=drawn.gated("linear"))[0], true[0]),
        "square, halved": gap(both(alpha, gated=drawn.gated("quadratic"))[0] / 2, misfit),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Theorem 4


def theorem4_gaps(count: int, seed: int) -> Gaps:
    r"""Theorem 4 on critical points with distinct filters: collinear gradients, and two paths from there.

    Inputs are fewer than ``K d``, so that their covariance has a kernel, and filters are chosen with
    :math:`b = C[x]\,\bar w = 0`, :math:`\bar w_k = \sum_m s_{km} w_{km} \ne 0`.  With ``s`` held fixed, ``b`` depends on the
    filters through :math:`\bar w` alone, so that the straight path to :math:`\bar w_k / \sum_m s_{km}` consists of critical
    points.  The paper's path first exchanges two filters without their :math:`s_{km}`; it does not.  Sizes of ``b`` are in
    units of its size where the filters are scaled one by one at random.

    ``sum of w b``: where ``s`` is the leading eigenvector of :math:`C[f_1]`, as after fast training of the top layer,
    :math:`\sum_k \bar w_k^\top b_k = \lambda_{\max}(C[f_1])`.  So all :math:`b_k` vanish only with the whole covariance, and
    the theorem's critical points are networks with constant outputs; :func:`linear_filters` has the others.
    """
    drawn = _random_instances(count, seed, fields=3, filters=3, d=4, samples=8)
    replicas, k, m, d = drawn.weights.shape
    draw = torch.Generator().manual_seed(seed + 5)
    s = 0.3 + torch.rand(replicas, k, m, generator=draw, dtype=DTYPE)  # no sums that vanish
    alpha = torch.ones(replicas, 8, 8, dtype=DTYPE)
    x = drawn.x[:, :1].expand(-1, 2, -1, -1, -1).flatten(3)  # no augmentation: a covariance, of rank 7
    covariance = contrastive_covariance(x[:, 0], x[:, 1], alpha)

    def b(weights: Tensor, s: Tensor = s) -> Tensor:
        mean = (s[..., None] * weights).sum(2).flatten(1)
        return torch.einsum("rpq,rq->rp", covariance, mean).view(replicas, k, d)

    kernel = torch.linalg.eigh(covariance).eigenvectors[..., : k * d - 7]
    wanted = kernel.sum(-1).view(replicas, k, d)
    rest = (s[:, :, :-1, None] * drawn.weights[:, :, :-1]).sum(2)
    critical = torch.cat([drawn.weights[:, :, :-1], ((wanted - rest) / s[:, :, -1:])[:, :, None]], 2)
    scale = 0.5 + torch.rand(replicas, k, m, 1, generator=draw, dtype=DTYPE)
    unit = b(scale * critical).flatten(1).norm(dim=1)

    def largest(path: list[Tensor]) -> Tensor:
        sizes: list[Tensor] = [b(w).flatten(1).norm(dim=1) / unit for w in path]
        return torch.stack(sizes).amax(0)

    same = (wanted / s.sum(2, keepdim=True))[:, :, None].expand_as(critical)
    swapped = critical[:, :, [1, 0, *range(2, m)]]
    times = torch.linspace(0, 1, 9, dtype=DTYPE).tolist()
    f1 = drawn.hidden(drawn.weights, "linear")[:, :1].expand(-1, 2, -1, -1)
    values, vectors = torch.linalg.eigh(contrastive_covariance(f1[:, 0], f1[:, 1], alpha))
    leading = vectors[..., -1].view(replicas, k, m)
    mean = (leading[..., None] * drawn.weights).sum(2)
    other = s / s.flatten(1).norm(dim=1)[:, None, None]
    aside = (other[..., None] * drawn.weights).sum(2)
    rank_two = torch.randn(replicas, 2, k * m, generator=draw, dtype=DTYPE)
    slopes = s[..., None] * b(drawn.weights)[:, :, None]
    full = modulated(rank_two.mT @ rank_two, _repeated(covariance, k, m, d), drawn.weights.flatten(1))
    return over_instances(
        {
            "collinear": _aside(slopes),
            "against Lemma 4": relative(
                slopes,
                modulated(_outer(s), _repeated(covariance, k, m, d), drawn.weights.flatten(1)).view_as(slopes),
            ),
            "sum of w b": relative((mean * b(drawn.weights, leading)).sum((1, 2)), values[:, -1]),
            "critical": b(critical).flatten(1).norm(dim=1) / unit,
            "path to identical filters": largest([(1 - t) * critical + t * same for t in times]),
            "broken: printed path": largest([(1 - t / 2) * critical + t / 2 * swapped for t in times]),
            "broken: another unit vector": relative((aside * b(drawn.weights, other)).sum((1, 2)), values[:, -1]),
            "broken: S of rank two": _aside(full.view_as(slopes)),
            "broken: filters of unit length": _aside(project(drawn.weights, slopes)),
        }
    )


def _outer(s: Tensor) -> Tensor:
    flat = s.flatten(1)
    return flat[:, :, None] * flat[:, None]


def _repeated(covariance: Tensor, k: int, m: int, d: int) -> Tensor:
    """The covariance of inputs repeated for each of ``m`` filters: ``(R, K M d, K M d)``."""
    blocks = covariance.view(-1, k, 1, d, k, 1, d).expand(-1, k, m, d, k, m, d)
    return blocks.reshape(-1, k * m * d, k * m * d)


def _aside(vectors: Tensor) -> Tensor:
    """How far the vectors ``(R, K, M, d)`` of a field are from one line: second over first singular value, largest field."""
    values = torch.linalg.svdvals(vectors)
    share: Tensor = (values[..., 1] / values[..., 0]).amax(-1)
    return share


def linear_filters(count: int, seed: int, steps: int = 4000) -> Tensor:
    r"""Smallest :math:`|\cos|` between two filters of a field at the end of linear training, ``(R,)``.

    Filters keep unit length, and the top layer has converged at each step, :math:`S = ss^\top` with the leading eigenvector
    of :math:`C[f_1]`.  At a critical point each filter with :math:`s_{km} \ne 0` is :math:`\pm b_k/\|b_k\|`, so this tends to
    1.
    """
    drawn = _random_instances(count, seed, filters=3, samples=40)
    x, w = drawn.x[:, 0] - drawn.x[:, 0].mean(1, keepdim=True), drawn.weights.clone()
    for _ in range(steps):
        f = torch.einsum("rnkd,rkmd->rnkm", x, w)
        flat = f.flatten(2)
        s = torch.linalg.eigh(flat.mT @ flat).eigenvectors[..., -1].view(f.shape[0], *f.shape[2:])
        b = torch.einsum("rnkd,rn->rkd", x, torch.einsum("rnkm,rkm->rn", f, s)) / x.shape[1]
        w = w + s[..., None] * b[:, :, None]
        w = w / w.norm(dim=-1, keepdim=True)
    cosines = torch.einsum("rkmd,rknd->rkmn", w, w).abs()
    return cosines.flatten(1).amin(1)


# ---------------------------------------------------------------------------------------------------------------------
# Lemma 6


def lemma6_gaps(count: int, seed: int) -> Gaps:
    r"""Eq. 166 against autograd through a BatchNorm whose deviation is held constant (Definition 5).

    ``mean detached`` holds too: the contrastive covariance is made of differences, in which a common mean cancels, so that it
    makes no difference whether the gradient flows through it.
    """
    drawn = _random_instances(count, seed)
    replicas, samples = drawn.x.shape[0], drawn.x.shape[2]
    alpha = torch.rand(replicas, samples, samples, generator=torch.Generator().manual_seed(seed + 9), dtype=DTYPE)
    rows = drawn.top.flatten(2)

    def slopes(mean: str, std: str) -> tuple[Tensor, Tensor]:
        w, v = drawn.weights.clone().requires_grad_(), rows.clone().requires_grad_()
        f2 = torch.einsum("rvnp,rop->rvno", _normalized(drawn.hidden(w, "relu"), mean, std), v)
        in_w, in_v = torch.autograd.grad(energy(f2[:, 0], f2[:, 1], alpha).sum(), (w, v))
        return in_w, in_v

    true = slopes("normal", "detach")
    f1 = drawn.hidden(drawn.weights, "relu")
    sigma = (f1.flatten(1, 2).var(1, correction=0) + EPS).sqrt()
    scaled = f1 / sigma[:, None, None]
    gated = drawn.gated("relu").unflatten(3, (-1, drawn.x.shape[-1]))
    gated_bn = (gated / sigma[:, None, None, :, None]).flatten(3)
    kernel, flat = rows.mT @ rows, drawn.weights.flatten(1)

    def formula(gated: Tensor) -> Tensor:
        return modulated(kernel, contrastive_covariance(gated[:, 0], gated[:, 1], alpha), flat).view_as(drawn.weights)

    found = formula(gated_bn)
    return over_instances(
        {
            "filters": relative(found, true[0]),
            "top layer": relative(rows @ contrastive_covariance(scaled[:, 0], scaled[:, 1], alpha), true[1]),
            "mean detached": relative(slopes("detach", "detach")[0], true[0]),
            "broken: deviation differentiated": relative(found, slopes("normal", "normal")[0]),
            "broken: not divided": relative(formula(gated.flatten(3)), true[0]),
        }
    )


def _normalized(f: Tensor, mean: str, std: str) -> Tensor:
    """BatchNorm over both views of ``(R, 2, N, p)``."""
    return batch_normalize(f, mean=mean, std=std, dims=(1, 2), eps=EPS)
