r"""The runs of Figures 7 and 8 of [tian2021iclr]: a diagonal second layer, a mixture of ten Gaussians, SGD.

:math:`f_j(x) = w_{2j} \max(w_{1j}^T x, 0)` for nodes :math:`j = 1 \dots n`, no bias.  Stated in the paper: ten
components, centres from N(0, I) with the first at the origin, covariance 0.1 I, batches of 128, 5000 of them, learning rate 0.01,
:math:`\tau = 0.05`, one negative, 30 seeds.  Not stated, and chosen here: the input's
dimension and the number of nodes (20 each), the start
:math:`W_1 \sim U(\pm 1/\sqrt d)`, :math:`w_2 \sim U(\pm 1/\sqrt n)` (PyTorch's default), and the least length by which an output is
divided.

The two views of a sample are fresh draws of its component; its negative is a view of the next sample in the batch; the gradient
runs through all three.  All tensors have a leading replica axis; every replica draws from a stream of its own.

A small convolutional network on the ring, trained by SimCLR: does it learn what the single neuron's operator says?

``k`` circular filters of width 2, ReLU (or nothing), summed over the ring, then either nothing or a linear head.  Objects come at
random places with pixel noise; two views of a sample are the same object at two places with fresh noise.  All tensors have a
leading replica axis, and every replica its own stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from sslbook._random import Streams
from sslbook.losses import pairs
from sslchapters.emergence.ring import direction, responses, ring_scene, selected
from sslchapters.emergence.theory import Mixture, diagonal_velocity
from sslchapters.sweep import Study

COMPARED = ("simple", "info_nce")
CHUNK = 125
"""Batches drawn at once."""


@dataclass(frozen=True)
class TwoLayerSizes:
    """The sizes of a run.

    floor: normalised outputs are divided by their length or by this, whichever is larger.  cap: a replica stops when its first
    layer has grown to this many times its start.
    """

    size: int = 20
    nodes: int = 20
    components: int = 10
    variance: float = 0.1
    batch: int = 128
    rate: float = 0.01
    tau: float = 0.05
    floor: float = 1e-3
    cap: float = 100.0


DEFAULT = TwoLayerSizes()


@dataclass(frozen=True)
class TwoLayers:
    """Weights ``w1 (R, n, d)``, ``w2 (R, n)`` and the centres ``(R, K, d)`` of each replica's data."""

    w1: Tensor
    w2: Tensor
    centres: Tensor

    def active(self) -> Tensor:
        """How many centres activate each node, ``w_1j^T mu_k > 0``: ``(R, n)``.  The one at the origin activates none."""
        return (torch.einsum("rkd,rnd->rkn", self.centres, self.w1) > 0).sum(1)


@dataclass(frozen=True)
class Run:
    """One setting trained on many seeds.

    norms: ``(R, steps + 1, 2)``, of both layers before each step; those of a stopped replica stay.  stopped: the step at which it
    stopped, ``steps + 1`` if it did not, ``(R,)``.
    """

    start: TwoLayers
    end: TwoLayers
    norms: Tensor
    stopped: Tensor


def begin(seeds: Sequence[int], protocol: TwoLayerSizes, dtype: torch.dtype) -> TwoLayers:
    """The start of every seed."""
    draws = Streams(seeds, "start")
    d, n = protocol.size, protocol.nodes
    centres = draws.normal((protocol.components, d), dtype)
    centres[:, 0] = 0
    w1, w2 = draws.uniform((n, d), dtype), draws.uniform((n,), dtype)
    return TwoLayers((2 * w1 - 1) / d**0.5, (2 * w2 - 1) / n**0.5, centres)


def gradients(
    w1: Tensor, w2: Tensor, one: Tensor, two: Tensor, loss: str, normalize: bool, tau: float, floor: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """Gradients of the batch's mean loss with ``one, two (R, B, d)`` the views and the next sample's first view as negative."""
    leaves = [w.detach().requires_grad_() for w in (w1, w2)]
    y = (torch.cat([one, two], 1) @ leaves[0].mT).relu() * leaves[1][:, None]
    y = y / y.norm(dim=2, keepdim=True).clamp_min(floor) if normalize else y
    first, second = y.chunk(2, 1)
    near, far = (pairs.half_squared_distance(first, other) for other in (second, first.roll(1, 1)))
    setting = {"temperature": tau} if loss == "info_nce" else {}
    value = pairs.OF_DISTANCES[loss](near, far[..., None], **setting)
    in_first, in_second = torch.autograd.grad(value.mean(1).sum(), leaves)
    return in_first, in_second


def train_nodes(
    seeds: Sequence[int],
    loss: str = "simple",
    normalize: bool = False,
    *,
    steps: int = 5000,
    protocol: TwoLayerSizes = DEFAULT,
    dtype: torch.dtype = torch.float32,
) -> Run:
    """SGD for every seed at once."""
    start, draws = begin(seeds, protocol, dtype), Streams(seeds, "batches")
    w1, w2, centres = start.w1, start.w2, start.centres
    replicas, d, batch = len(seeds), protocol.size, protocol.batch
    norms = torch.empty(replicas, steps + 1, 2, dtype=dtype)
    stopped = torch.full((replicas,), steps + 1)
    rows = torch.arange(replicas)[:, None, None]
    limit = protocol.cap * w1.flatten(1).norm(dim=1)
    kinds = noise = torch.empty(0)
    for t in range(steps + 1):
        norms[:, t, 0], norms[:, t, 1] = w1.flatten(1).norm(dim=1), w2.norm(dim=1)
        stopped = torch.where((norms[:, t, 0] > limit) & (stopped > t), t, stopped)
        if t == steps:
            break
        if t % CHUNK == 0:
            if bool((stopped <= t).all()):
                norms[:, t + 1 :] = norms[:, t : t + 1]  # nothing moves any more
                break
            kinds = (protocol.components * draws.uniform((CHUNK, batch), torch.float64)).long()
            noise = protocol.variance**0.5 * draws.normal((CHUNK, 2, batch, d), dtype)
        views = centres[rows, kinds[:, t % CHUNK, None]] + noise[:, t % CHUNK]
        g1, g2 = gradients(w1, w2, views[:, 0], views[:, 1], loss, normalize, protocol.tau, protocol.floor)
        live = (stopped > t).to(dtype) * protocol.rate
        w1, w2 = w1 - live[:, None, None] * g1, w2 - live[:, None] * g2
    return Run(start, TwoLayers(w1, w2, start.centres), norms, stopped)


def steps_to(norms: Tensor, factor: float) -> Tensor:
    """The first step at which W1 is ``factor`` times as long as at the start, or the last one there is: ``(R,)``."""
    there = norms[:, :, 0] >= factor * norms[:, :1, 0]
    there[:, -1] = True
    return there.int().argmax(1)


def foretold_steps(seeds: Sequence[int], *, protocol: TwoLayerSizes = DEFAULT) -> Tensor:
    """Steps that the *exact expected* descent of L_simp (twice Eq. 8) takes to make W1 ten times as long, ``(R,)``."""
    most = 2000
    start = begin(seeds, protocol, torch.float32)
    w1, w2 = start.w1.double(), start.w2.double()
    mixture = Mixture(start.centres.double(), protocol.variance**0.5)
    limit = 10.0 * w1.flatten(1).norm(dim=1)
    found = torch.full((len(seeds),), most)
    for t in range(most):
        one, two = diagonal_velocity(w1, w2, mixture.gated_means(w1))
        live = (found == most).double() * 2 * protocol.rate
        w1, w2 = w1 + live[:, None, None] * one, w2 + live[:, None] * two
        found = torch.where((w1.flatten(1).norm(dim=1) >= limit) & (found == most), t + 1, found)
        if bool((found < most).all()):
            break
    return found


# -- Figure 8 -------------------------------------------------------------------------------------------------------------


def rank_correlation(net: TwoLayers) -> float:
    r"""Spearman's correlation of the number of centres that activate a node with :math:`|w_{2j}|`, over all nodes of all seeds."""
    return float(spearmanr(net.active().flatten(), net.w2.abs().flatten()).statistic)


def two_layer_values(seeds: Sequence[int]) -> dict[str, Any]:
    r"""The paper's protocol on all ``seeds``: what `sslbook record emergence-two-layer` writes.  Other sizes on the first eight.

    by_count: for each number of activating centres, how many nodes have it, and the median of their :math:`|w_{2j}|`.
    """
    values: dict[str, Any] = {"steps": 5000, "size": DEFAULT.size, "nodes": DEFAULT.nodes}
    for loss in COMPARED:
        run = train_nodes(seeds, loss)
        values[f"growth-{loss}"] = {
            "ten": steps_to(run.norms, 10.0),
            "factor": [round(v, 4) for v in (run.norms[:, -1, 0] / run.norms[:, 0, 0]).tolist()],
        }
        normal = train_nodes(seeds, loss, normalize=True)
        active, size = normal.end.active().flatten(), normal.end.w2.abs().flatten()
        groups = {str(int(k)): size[active == k] for k in active.unique()}
        values[f"nodes-{loss}"] = _nodes(normal) | {
            "by_count": {k: [len(sizes), round(float(sizes.median()), 5)] for k, sizes in groups.items()}
        }
    values["foretold"] = foretold_steps(seeds)
    others = {
        f"{d} by {n}": TwoLayerSizes(size=d, nodes=n) for d, n in ((2, 20), (5, 10), (10, 10), (10, 50), (50, 50))
    }
    others |= {f"floor {floor:g}": TwoLayerSizes(floor=floor) for floor in (1e-2, 1e-3, 1e-6, 1e-12)}
    values["others"] = {
        name: {loss: _nodes(train_nodes(seeds[:8], loss, True, protocol=protocol)) for loss in COMPARED}
        for name, protocol in others.items()
    }
    return values


def _nodes(run: Run) -> dict[str, Any]:
    return {
        "correlation": round(rank_correlation(run.end), 4),
        "selective": round(float((run.end.active() <= 1).double().mean()), 4),
        "growth": [round(v, 4) for v in (run.norms[:, -1] / run.norms[:, 0]).median(0).values.tolist()],
        "largest": round(float((run.norms[:, -1, 1] / run.norms[:, 0, 1]).max()), 4),
    }


SETTINGS = {"simple": 0.03, "info_nce": 0.075, "head": 0.5, "normalised": 0.5, "simclr": 0.5}
"""What is trained, with its learning rate.

simple: L_simp of the pooled responses; info_nce: InfoNCE of them; head: of a linear head's outputs; normalised: of the pooled
responses scaled to unit length; simclr: of a linear head's outputs scaled to unit length.
"""


@dataclass(frozen=True)
class Network:
    """Filters ``(R, k, 2 or 3)`` (the third is the bias) and, if any, a head ``(R, outputs, k)``."""

    filters: Tensor
    head: Tensor | None = None
    linear: bool = field(default=False, kw_only=True)

    def pooled(self, x: Tensor) -> Tensor:
        """Responses summed over the ring: ``(R, B, d)`` -> ``(R, B, k)``."""
        windows = torch.stack([x, x.roll(-1, -1)], dim=-1)
        h = torch.einsum("rbdp,rkp->rbdk", windows, self.filters[..., :2])
        if self.filters.shape[-1] == 3:
            h = h + self.filters[:, None, None, :, 2]
        return (h if self.linear else h.relu()).sum(2)

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs that the loss sees, ``(R, B, k or outputs)``."""
        y = self.pooled(x)
        return y if self.head is None else torch.einsum("rbk,rok->rbo", y, self.head)


@dataclass(frozen=True)
class Trained:
    """A network before and after training; ``accuracy`` are shares ``(R,)`` of noisy test objects told apart."""

    start: Network
    end: Network
    accuracy_start: Tensor
    accuracy_end: Tensor


def train_ring(seeds: Sequence[int], setting: str, *, bias: bool = False, linear: bool = False) -> Trained:
    """Train one network of 16 filters (and 8 outputs) for each seed on a ring of 6 places, all at once, in float64.

    Filters that have grown to ten times the length of the longest at the start stop their whole replica, since nothing bounds them
    under a loss of distances.
    """
    draws = Streams(seeds)

    def normal(*shape: int) -> Tensor:
        return draws.normal(shape)

    def integers(high: int, *shape: int) -> Tensor:
        return (high * draws.uniform(shape, torch.float64)).long()

    d, filters, outputs, batch, noise, test_noise = 6, 16, 8, 32, 0.05, 0.15
    scene = ring_scene(d)
    w = 0.5 * normal(filters, 3 if bias else 2)
    head = normal(outputs, filters) / filters**0.5 if setting in ("head", "simclr") else None
    start = Network(w, head, linear=linear)
    leaves = [part.clone().requires_grad_() for part in (w, head) if part is not None]
    limit = 10 * w.norm(dim=-1).amax(1)

    def views(count: int) -> tuple[Tensor, Tensor]:
        kind, place = integers(2, count), integers(d, 2, count)
        x = scene[kind[:, None], place] + noise * normal(2, count, d)
        return x[:, 0], x[:, 1]

    for _ in range(400):
        one, two = views(batch)
        first, second = Network(*leaves, linear=linear)(torch.cat([one, two], 1)).split(batch, 1)
        if setting == "simple":
            loss = pairs.contrastive(first, second, loss="simple", normalize=False)
        else:
            unit = setting in ("normalised", "simclr")
            loss = pairs.contrastive(first, second, normalize=unit, temperature=0.5)
        gradients = torch.autograd.grad(loss.sum(), leaves)
        with torch.no_grad():
            live = (leaves[0].norm(dim=-1).amax(1) < limit).double()[:, None, None]
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf -= SETTINGS[setting] * live * gradient
    end = Network(*(leaf.detach() for leaf in leaves), linear=linear)
    test_kind, test_place = integers(2, 400), integers(d, 400)
    test = scene[test_kind, test_place] + test_noise * normal(400, d)
    clean = scene[:, 0].expand(len(seeds), -1, -1)
    return Trained(start, end, *(accuracy(net, clean, test, test_kind) for net in (start, end)))


def accuracy(net: Network, clean: Tensor, x: Tensor, kind: Tensor) -> Tensor:
    """Share of ``x (R, B, d)`` whose output lies on its own object's side of the middle between the clean outputs, ``(R,)``.

    ``clean (R, 2, d)``.  Outputs that coincide to rounding have no sides: all are called the first object.
    """
    with torch.no_grad():
        ends, y = net(clean), net(x)
    axis = ends[:, 1] - ends[:, 0]
    scale = ends.norm(dim=-1).amax(1, keepdim=True)
    axis = torch.where(axis.norm(dim=1, keepdim=True) > 1e-9 * scale, axis, torch.zeros_like(axis))
    side = torch.einsum("rbk,rk->rb", y - ends.mean(1, keepdim=True), axis) > 0
    return (side.long() == kind).double().mean(1)


def _kinds(net: Network) -> dict[str, Tensor]:
    """Which filters respond to no pattern, to patterns that cancel, and to one pattern alone: masks ``(R, k)``.

    For the last, a response below a quarter of the filter's largest counts as none: at their ends filters hover about thresholds.
    """
    h, chosen = responses(net.filters), selected(net.filters)
    dead = ~chosen.any(-1)
    return {
        "dead": dead,
        "stuck": ~dead & (direction(chosen, net.filters.shape[-1] == 3) == 0).all(-1),
        "single": ~dead & ((h > 0.25 * h.amax(-1, keepdim=True).clamp_min(0)).sum(-1) == 1),
    }


def census(net: Network) -> dict[str, float]:
    """Shares of all filters that are of one of the `_kinds`."""
    return {name: float(which.double().mean()) for name, which in _kinds(net).items()}


def released(trained: Trained) -> dict[str, Tensor]:
    """What stuck filters come to: each network's shares of them of one of the `_kinds`, ``(R',)``, of networks that have some."""
    stuck = _kinds(trained.start)["stuck"]
    some = stuck.any(1)
    return {
        name: ((which & stuck).sum(1) / stuck.sum(1).clamp_min(1)).double()[some]
        for name, which in _kinds(trained.end).items()
    }


def missed(start: Network, end: Network) -> tuple[Tensor, Tensor]:
    """Masks ``(R, k)``: the filters that move, and those of them that do not end at the pattern strongest at the ``start`` alone.

    Those that move are those whose patterns at the start do not cancel; "alone" as in `_kinds`.
    """
    bias = start.filters.shape[-1] == 3
    moving = direction(selected(start.filters), bias).ne(0).any(-1)
    before, after = (responses(net.filters).argmax(-1) for net in (start, end))
    return moving, moving & ~(_kinds(end)["single"] & (before == after))


def agreement(start: Network, end: Network) -> float:
    """Share of the filters that move which end as predicted (`missed`)."""
    moving, out = missed(start, end)
    return float((~out)[moving].double().mean())


STUDIES = {"emergence-two-layer": Study(two_layer_values, tuple(range(30)))}
