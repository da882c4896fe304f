r"""The two-layer network and its losses as one would write them for autograd, and flows simulated: what all else must agree with.

:math:`f(x) = V^\top \mathrm{BN}[h(W_k^\top x_k)]`, one after the other over ``K`` disjoint receptive fields with ``M``
filters each.  The flows are those of :mod:`sslbook.experiments.modulation.theory`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sslbook.networks.batchnorm import batch_normalize

SLOPE = 0.05
"""Of the leaky ReLU below 0."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": lambda x: functional.leaky_relu(x, SLOPE),
    "quadratic": torch.square,
    "sigmoid": torch.sigmoid,
}
r"""The activations of Figure 9.  The first three satisfy :math:`h(x) = h'(x)\,x`; the square misses it by a factor of 2."""

REFERENCES = ("info_nce", "quadratic")


def hidden(x: Tensor, weights: Tensor, activation: str, mean: str, std: str) -> Tensor:
    """Normalised activations ``(..., N, K, M)`` of ``x (..., N, K, d)``; statistics over the ``N``. ``weights``: ``(..., K,
    d, M)``."""
    h = ACTIVATIONS[activation](torch.einsum("...nkd,...kdm->...nkm", x, weights))
    return batch_normalize(h, mean=mean, std=std, dims=h.ndim - 3)


def unit_outputs(
    x: Tensor, weights: Tensor, top: Tensor, *, activation: str, mean: str, std: str, group: str = "view"
) -> Tensor:
    """Outputs of unit length ``(..., 2, B, O)`` of two views ``(..., 2, B, K, d)``; ``top`` is ``(..., K, M, O)``.

    group: BatchNorm's statistics are those of each ``view``, as in the released code, or of the whole ``batch``, as in Eqs.
    164 and 165.
    """
    one, two = x.unbind(-4)
    if group == "view":
        parts = [hidden(view, weights, activation, mean, std) for view in (one, two)]
    else:
        parts = list(hidden(torch.cat([one, two], -3), weights, activation, mean, std).chunk(2, dim=-3))
    f = torch.stack([torch.einsum("...nkm,...kmo->...no", part, top) for part in parts], -3)
    return functional.normalize(f, dim=-1)


def contrastive_loss(z: Tensor, kind: str, form: str, tau: float) -> Tensor:
    r"""Contrastive loss of unit outputs ``(..., 2, B, O)``.

    With :math:`s_{ij} = z_i^\top z_j` between first views and :math:`s_{ii} = z_i^\top z_i'` on the diagonal, ``info_nce`` is
    the mean over ``i`` of :math:`-\log(e^{s_{ii}/\tau}/\sum_j e^{s_{ij}/\tau})`, and ``quadratic`` is
    :math:`(-(1 + \frac1B)\,\mathrm{mean}_i\, s_{ii} + \mathrm{mean}_{ij}\, s_{ij})/\tau`.  These are the ``released`` forms.
    The ``printed`` ones are Eq. 1 with :math:`\epsilon = 1`, which is :math:`\tau B` times the former because
    :math:`d_{ij}^2 = 1 - s_{ij}`, and minus the energy with :math:`\alpha \equiv 1`, whose gradient is :math:`\tau/2` times
    the latter's.
    """
    one, two = z.unbind(-3)
    s = one @ one.mT
    own = (one * two).sum(-1)
    s = torch.where(torch.eye(s.shape[-1], dtype=torch.bool, device=s.device), own[..., None], s) / tau
    batch = s.shape[-1]
    if kind == "info_nce":
        released = (s.logsumexp(-1) - own / tau).mean(-1)
    else:
        released = -(1 + 1 / batch) * own.mean(-1) / tau + s.mean((-1, -2))
    return released * printed_factor(kind, tau, batch) if form == "printed" else released


def printed_factor(kind: str, tau: float, batch: int) -> float:
    """What the printed form of a loss is, in units of the released one."""
    return tau * batch if kind == "info_nce" else tau / 2


DTYPE = torch.float64

# ---------------------------------------------------------------------------------------------------------------------
# Basins


def winners(start: Tensor, b: Tensor, *, unit: bool) -> Tensor:
    r"""Which component a flow ends in, ``(...,)``, from ``start (..., d)``; -1 where no positive one dominates.

    On the unit sphere that is so at :math:`-u_l`, and, with an advantage ``c`` between 1 and :math:`\sqrt2` for one
    component, at the mixtures :math:`y_l = y_1 + c` where most starts with :math:`y_1 < 0` come to rest.
    Simulated with exact exponential steps for a frozen rate, :math:`y_l \leftarrow y_l\, e^{h (y_l + b_l)}`.  For the
    ``unit`` flow the result is divided by its length, which is the common rate :math:`\nu`; for the free one ``h`` shrinks
    with the largest component, and lengths are only divided out at the end.
    """
    return dominant_component(flow_ends(start, b, unit))


def dominant_component(direction: Tensor) -> Tensor:
    """The component that makes nearly all of a unit vector, -1 for none."""
    value, index = direction.max(-1)
    return torch.where(value > 0.99, index, -1)


def flow_ends(start: Tensor, b: Tensor, unit: bool) -> Tensor:
    """Where a flow ends, of length 1."""
    rate, steps = 0.05, 4000
    y = start / start.norm(dim=-1, keepdim=True) if unit else start.clone()
    for step in range(steps):
        if unit and step % 100 == 0 and bool((y.abs().amax(-1) > 1 - 1e-9).all()):
            break  # every filter is at rest
        h = rate if unit else rate / (1 + y.abs().amax(-1, keepdim=True))  # a free flow explodes in finite time
        y = y * torch.exp(h * (y + b))
        if unit:
            y = y / y.norm(dim=-1, keepdim=True)
        elif bool((y.amax(-1) > 1e12).all()):
            break
        else:
            y = y.clamp_max(1e15)
    direction: Tensor = y / y.norm(dim=-1, keepdim=True)
    return direction


def on_circle(c: float, b: float) -> tuple[Tensor, Tensor]:
    """With ``d = 2``: angles of 44 starts all around, and the component that each unit flow ends in, -1 for none."""
    count = 44
    angles = (torch.arange(count, dtype=DTYPE) + 0.37) * (2 * torch.pi / count)  # none on an axis or on an edge
    start = torch.stack([angles.cos(), angles.sin()], 1)
    return angles, winners(start, torch.tensor([b + c, b], dtype=DTYPE), unit=True)


def sampled_probabilities(factors: Tensor, samples: int, seed: int) -> Tensor:
    """Share of ``samples`` draws in which each component wins, ``(R, d)``."""
    draw = torch.Generator().manual_seed(seed)
    replicas, d = factors.shape
    wins, done = torch.zeros(replicas, d, dtype=DTYPE), 0
    while done < samples:
        size = min(samples - done, 20_000)
        y = 2 * torch.rand(replicas, size, d, generator=draw, dtype=DTYPE) - 1
        best = (y + factors[:, None]).argmax(-1, keepdim=True)
        wins += torch.zeros_like(y).scatter(2, best, (y.gather(2, best) > 0).to(DTYPE)).sum(1)
        done += size
    return wins / samples


# ---------------------------------------------------------------------------------------------------------------------
# How many fields it takes to learn the class together: Theorem 5 of [tian2023] followed from random starts, in two dimensions
#
# Each of ``K`` fields sees noise on its first coordinate and the class, two equal ones, on its second: within the classes the
# coordinates have the variances ``within``, and the class moves the mean of the second by 1.  Filters are linear and keep the
# length 1, and the top layer has converged, S = ss^T with the leading eigenvector of V[f_1].

WITHIN = (1.0, 0.2)

PQ = 0.25
""":math:`p_0 p_1` of two equal classes."""


def random_filters(count: int, fields: int, seed: int) -> Tensor:
    """``count`` starts, ``(count, fields, 2)``, uniform on the circle."""
    draw = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(count, fields, 2, generator=draw, dtype=DTYPE), dim=-1)


def turned(w: Tensor, theory: str = "true", within: tuple[float, float] = WITHIN) -> Tensor:
    r"""One step of all filters ``(..., K, 2)``.

    theory: ``true``; ``deaf``, where every field is left with its own class term, :math:`\delta_k = 0`; ``printed``, with the
    second form that the proof of Theorem 5 gives for :math:`\delta_k`, which lacks a factor.
    """
    spread, b, top, s = _top(w, within)
    pull = s.square()[..., None] * torch.tensor(within, dtype=w.dtype) * w
    own = PQ * s.square() * b
    if theory == "true":
        own = PQ * s * (s * b).sum(-1, keepdim=True)
    elif theory == "printed":
        own = own + (1 - PQ * b.square() / (top - spread)) * b
    pull[..., 1] += own
    return functional.normalize(w + 0.5 * pull, dim=-1)


def _top(w: Tensor, within: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """:math:`d_k`, :math:`b_k`, the largest eigenvalue of the units' covariance, ``(..., 1)``, and its eigenvector."""
    d, b = (torch.tensor(within, dtype=w.dtype) * w.square()).sum(-1), w[..., 1]
    values, vectors = torch.linalg.eigh(torch.diag_embed(d) + PQ * b[..., None] * b[..., None, :])
    return d, b, values[..., -1:], vectors[..., -1]


def course(w: Tensor, steps: int, theory: str = "true", within: tuple[float, float] = WITHIN) -> list[Tensor]:
    """The filters before the first step and after each."""
    path = [w]
    for _ in range(steps):
        path.append(turned(path[-1], theory, within))
    return path


def heard(w: Tensor, within: tuple[float, float] = WITHIN) -> tuple[Tensor, Tensor]:
    """What the output takes from each field, :math:`s_k^2`, and of this what it takes from the class's coordinate: ``(..., K)``,
    ``(...)``."""
    taken = _top(w, within)[3].square()
    return taken, (taken * w[..., 1].square()).sum(-1)


@functools.cache  # the exercise asks again and again
def fewest(within: tuple[float, float]) -> int:
    """The least number of fields that learn the class from every start; by simulation."""

    def learn(fields: int) -> bool:
        end = course(random_filters(10, fields, fields), 1500, within=within)[-1]
        return bool((heard(end, within)[1] > 0.99).all())

    return next(filter(learn, itertools.count(1)))
