r"""What is drawn: worlds of tokens, random networks and populations, quarters and crops of images.

The world of Section 5 of [tian2023]: a sequence has ``K`` places (the receptive fields), and ``d`` tokens can stand in each.  A
**generator** fixes the token of five places and leaves a wildcard in the others; two sequences of one generator are a positive
pair.  In place ``k`` a generator may only fix tokens of a subset :math:`R_k^g` of ``P`` tokens, so that any other token there is
noise.  Token ``a`` enters the network as the vector :math:`u_a = \ell_a e_a`.

Conditionally independent fields (Assumption 2): a class ``z`` of ``C`` is drawn with probability :math:`p_c`, and given ``z`` each
field sees one of ``n`` inputs on its own, with probabilities that depend on ``z``.  All :math:`C n^K` cases are listed, so that
every expectation is exact.

And the two-layer network, :math:`f(x) = V^\top \mathrm{BN}[h(W_k^\top x_k)]` over ``K`` disjoint receptive fields with ``M``
filters each, with its losses as one would write them for autograd, and the flows of
:mod:`sslchapters.modulation.theory` simulated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from sslbook._random import Streams, to_device
from sslbook.networks.batchnorm import batch_normalize

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.05),
    "quadratic": torch.square,
    "sigmoid": torch.sigmoid,
}
r"""The activations of Figure 9.  The first three satisfy :math:`h(x) = h'(x)\,x`; the square misses it by a factor of 2."""


def unit_outputs(
    x: Tensor, weights: Tensor, top: Tensor, *, activation: str, mean: str, std: str, group: str = "view"
) -> Tensor:
    """Outputs of unit length ``(..., 2, B, O)`` of two views ``(..., 2, B, K, d)``; ``top`` is ``(..., K, M, O)``.

    group: BatchNorm's statistics are those of each ``view``, as in the released code, or of the whole ``batch``, as in Eqs.
    164 and 165.
    """

    def hidden(views: Tensor) -> Tensor:
        h = ACTIVATIONS[activation](torch.einsum("...nkd,...kdm->...nkm", views, weights))
        return batch_normalize(h, mean=mean, std=std, dims=h.ndim - 3)

    one, two = x.unbind(-4)
    if group == "view":
        parts = [hidden(one), hidden(two)]
    else:
        parts = list(hidden(torch.cat([one, two], -3)).chunk(2, dim=-3))
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
    return released * (tau * batch if kind == "info_nce" else tau / 2) if form == "printed" else released


DTYPE = torch.float64


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
    return y / y.norm(dim=-1, keepdim=True)


def on_circle(c: float, b: float) -> tuple[Tensor, Tensor]:
    """With ``d = 2``: angles of 44 starts all around, and the component that each unit flow ends in, -1 for none."""
    count = 44
    angles = (torch.arange(count, dtype=DTYPE) + 0.37) * (2 * torch.pi / count)  # none on an axis or on an edge
    start = torch.stack([angles.cos(), angles.sin()], 1)
    return angles, winners(start, torch.tensor([b + c, b], dtype=DTYPE), unit=True)


# --- How many fields it takes to learn the class together: Theorem 5 of [tian2023] followed from random starts ------------
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


WILDCARD = -1


@dataclass(frozen=True)
class World:
    """Generators of ``R`` replicas.

    allowed: ``(R, K, d)``, whether a token belongs to :math:`R_k^g`.
    generators: ``(R, G, K)``, the token that a generator fixes in a place, or :data:`WILDCARD`.
    lengths: ``(R, d)``, the length of each token's vector.
    """

    allowed: Tensor
    generators: Tensor
    lengths: Tensor

    @property
    def used(self) -> Tensor:
        """``(R, K, d)``: whether a generator fixes the token there; some of the ``P`` tokens may be in none."""
        tokens = torch.arange(self.allowed.shape[2], device=self.generators.device)
        return (self.generators[..., None] == tokens).any(1)

    def to(self, device: torch.device | str) -> World:
        """The same worlds on another device."""
        return World(self.allowed.to(device), self.generators.to(device), self.lengths.to(device))

    def place(self, k: int) -> World:
        """The same sequences cut down to place ``k``, as a world of one field; its generators fix the token or leave a wildcard."""
        one = slice(k, k + 1)
        return World(self.allowed[:, one], self.generators[:, :, one].contiguous(), self.lengths)


def draw_pairs(world: World, streams: Streams, batch: int, steps: int = 1) -> Tensor:
    """Tokens of ``steps`` minibatches of positive pairs, ``(R, steps, 2, batch, K)``: one generator a pair, wildcards anew in
    each."""
    replicas, count, fields = world.generators.shape
    tokens = world.allowed.shape[2]
    u = to_device(streams.uniform((steps, batch, 1 + 2 * fields)), world.generators.device)
    which = (u[..., 0] * count).long().clamp_(max=count - 1)
    rows = which.view(replicas, -1, 1).expand(-1, -1, fields)
    pattern = world.generators.gather(1, rows).view(replicas, steps, 1, batch, fields)
    noise = (u[..., 1:] * tokens).long().clamp_(max=tokens - 1)
    noise = noise.view(replicas, steps, batch, 2, fields).transpose(2, 3)
    return torch.where(pattern == WILDCARD, noise, pattern)


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


def random_instances(
    count: int, seed: int, *, fields: int = 3, filters: int = 2, d: int = 3, samples: int = 7
) -> Instances:
    """``count`` of them; filters have length 1, inputs a mean of their own, views differ by noise."""
    draw = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, count, generator=draw, dtype=DTYPE)
    x = normal(1, samples, fields, d) + 0.5 * normal(1, 1, fields, d) + 0.4 * normal(2, samples, fields, d)
    w = normal(fields, filters, d)
    return Instances(x, w / w.norm(dim=-1, keepdim=True), normal(4, fields, filters))


@dataclass(frozen=True)
class Population:
    """Random classes and fields, ``R`` of them.

    prior: ``(R, C)``.  points: ``(R, K, n, d)``.  chances: ``(R, C, K, n)``, of each point given the class.
    weights: ``(R, K, M, d)``.
    """

    prior: Tensor
    points: Tensor
    chances: Tensor
    weights: Tensor

    def gated(self) -> Tensor:
        r""":math:`\tilde x_{km} = x_k\,[w_{km}^\top x_k > 0]` of each point, ``(R, K, n, M d)``."""
        opened = torch.einsum("rknd,rkmd->rknm", self.points, self.weights) > 0
        return (opened[..., None] * self.points[:, :, :, None]).flatten(3)

    def listed(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """All cases: the fields' features ``(R, K, n, p)`` side by side, ``(R, n^K, K p)``, and their chances ``(R, C, n^K)``."""
        k, n = features.shape[1:3]
        index = torch.tensor(list(itertools.product(range(n), repeat=k)))  # (n^K, K)
        fields = torch.arange(k)
        found = features[:, fields, index]  # (R, n^K, K, p)
        given = self.chances[:, :, fields, index].prod(-1)
        return found.flatten(2), self.prior[..., None] * given


def random_population(count: int, seed: int, *, classes: int = 2, fields: int = 3, filters: int = 1) -> Population:
    """``count`` of them, from normal points and filters of length 1, and chances that are squares of uniform ones."""
    d, points = 3, 3
    draw = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, count, generator=draw, dtype=DTYPE)

    def chances(*shape: int) -> Tensor:
        p = torch.rand(count, *shape, generator=draw, dtype=DTYPE).square() + 0.05
        return p / p.sum(-1, keepdim=True)

    x, w = normal(fields, points, d), normal(fields, filters, d)
    w = w / w.norm(dim=-1, keepdim=True)
    first, second = w[:, :, 0], -w[:, :, 0]  # one point opens the first gate wide, one leaves it shut: units that vary
    for index, towards in enumerate((first, second)):
        part = (x[:, :, index] * towards).sum(-1, keepdim=True)
        x[:, :, index] += (part.abs() + 0.5 - part) * towards
    return Population(chances(classes), x, chances(classes, fields, points), w)


FIELDS = ("upper left", "upper right", "lower left", "lower right")


def random_crops(pixels: Tensor, streams: Streams, strength: float) -> Tensor:
    """A random crop of each image ``(R, N, S, S)``, enlarged to full size; boxes from the replicas' own streams.

    Boxes are those of torchvision's ``RandomResizedCrop``, in whole pixels: of ten tries (area, ratio on a logarithmic scale,
    top, left) the first that fits is taken, else all of the image.  Enlargement is bilinear: a new pixel's centre falls between
    two old ones of the box, and beyond the outer centres it takes the outer pixel.
    """
    size = pixels.shape[-1]
    u = to_device(streams.uniform((pixels.shape[1], 10, 4), pixels.dtype), pixels.device)
    area = size**2 * (1 - strength * u[..., 0])
    low, high = torch.log(torch.tensor([1 - strength, 1 + strength], dtype=u.dtype))
    ratio = torch.exp(low + (high - low) * u[..., 1])
    width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    top, left = (u[..., 2] * (size - height + 1)).floor(), (u[..., 3] * (size - width + 1)).floor()
    tries = torch.stack([top, left, height, width], -1)
    whole = torch.tensor([0, 0, size, size]).to(tries).expand_as(tries[..., :1, :])
    fits = (width <= size) & (height <= size) & (width > 0) & (height > 0)
    first = torch.cat([fits, torch.ones_like(fits[..., :1])], -1).to(torch.int8).argmax(-1)
    chosen = first[..., None, None].expand(*first.shape, 1, 4)
    top, left, height, width = torch.cat([tries, whole], -2).gather(-2, chosen).squeeze(-2).unbind(-1)
    grid = torch.arange(size, dtype=u.dtype, device=u.device)

    def enlarging(start: Tensor, length: Tensor) -> Tensor:  # matrices (..., S, S) on the whole side
        centre = (grid + 0.5) * (length[..., None] / size) - 0.5
        at = start[..., None] + centre.clamp_min(0).minimum(length[..., None] - 1)
        return (1 - (at[..., None] - grid).abs()).clamp_min(0)

    return enlarging(top, height) @ pixels @ enlarging(left, width).mT
