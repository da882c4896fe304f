r"""A small convolutional network on the ring, trained by SimCLR: does it learn what the single neuron's operator says?

``k`` circular filters of width 2, ReLU (or nothing), summed over the ring, then either nothing or a linear head.  Objects come at
random places with pixel noise; two views of a sample are the same object at two places with fresh noise.  All tensors have a
leading replica axis, and every replica its own stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.experiments.emergence.ring import direction, pattern_inputs, responses, ring_scene, selected, windows
from sslbook.losses import pairs
from sslbook.stats.replica_rng import Streams

SETTINGS = {"simple": 0.03, "info_nce": 0.075, "head": 0.5, "normalised": 0.5, "simclr": 0.5}
"""What is trained, with its learning rate.

simple: L_simp of the pooled responses; info_nce: InfoNCE of them; head: of a linear head's outputs; normalised: of the pooled
responses scaled to unit length; simclr: of a linear head's outputs scaled to unit length.
"""


@dataclass(frozen=True)
class Network:
    """Filters ``(R, k, 2 or 3)`` (the third is the bias) and, if any, a head ``(R, outputs, k)``."""

    filters: Tensor
    head: Tensor | None
    linear: bool = False

    def pooled(self, x: Tensor) -> Tensor:
        """Responses summed over the ring: ``(R, B, d)`` -> ``(R, B, k)``."""
        patches = windows(x)
        h = torch.einsum("rbdp,rkp->rbdk", patches, self.filters[..., :2])
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


def train_ring(
    seeds: Sequence[int],
    setting: str = "simple",
    *,
    bias: bool = False,
    linear: bool = False,
    noise: float = 0.05,
    steps: int = 400,
    tau: float = 0.5,
) -> Trained:
    """Train one network of 16 filters (and 8 outputs) for each seed on a ring of 6 places, all at once, in float64.

    Filters that have grown to ten times the length of the longest at the start stop their whole replica, since nothing bounds them
    under a loss of distances.
    """
    draws = Streams(seeds)

    def normal(*shape: int) -> Tensor:
        return draws.normal(shape)

    def integers(high: int, *shape: int) -> Tensor:
        return (high * draws.uniform(shape, torch.float64)).long()

    d, filters, outputs, batch, test_noise = 6, 16, 8, 32, 0.15
    scene = ring_scene(d)
    w = 0.5 * normal(filters, 3 if bias else 2)
    head = normal(outputs, filters) / filters**0.5 if setting in ("head", "simclr") else None
    start = Network(w, head, linear)
    leaves = [w.clone().requires_grad_(True)] + ([] if head is None else [head.clone().requires_grad_(True)])
    limit = 10 * w.norm(dim=-1).amax(1)

    def views(count: int) -> tuple[Tensor, Tensor]:
        kind, place = integers(2, count), integers(d, 2, count)
        x = scene[kind[:, None], place] + noise * normal(2, count, d)
        return x[:, 0], x[:, 1]

    for _ in range(steps):
        one, two = views(batch)
        net = Network(leaves[0], leaves[1] if head is not None else None, linear)
        both = net(torch.cat([one, two], 1))
        pair = both[:, :batch], both[:, batch:]
        if setting == "simple":
            loss = pairs.contrastive(*pair, loss="simple", normalize=False)
        else:
            loss = pairs.contrastive(*pair, normalize=setting in ("normalised", "simclr"), tau=tau)
        gradients = torch.autograd.grad(loss.sum(), leaves)
        with torch.no_grad():
            live = (leaves[0].norm(dim=-1).amax(1) < limit).double()[:, None, None]
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf -= SETTINGS[setting] * live * gradient
    end = Network(leaves[0].detach(), leaves[1].detach() if head is not None else None, linear)
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
    bias = net.filters.shape[-1] == 3
    h = net.filters @ pattern_inputs(bias).T
    chosen = selected(net.filters)
    silent = ~chosen.any(-1)
    return {
        "silent": silent,
        "stuck": ~silent & (direction(chosen, bias) == 0).all(-1),
        "single": ~silent & ((h > 0.25 * h.amax(-1, keepdim=True).clamp_min(0)).sum(-1) == 1),
    }


def census(net: Network) -> dict[str, float]:
    """Shares of all filters that are of one of the `_kinds`."""
    return {name: float(which.double().mean()) for name, which in _kinds(net).items()}


def shares(net: Network) -> dict[str, Tensor]:
    """Each network's shares of filters that are of one of the `_kinds`, ``(R,)``."""
    return {name: which.double().mean(1) for name, which in _kinds(net).items()}


def released(trained: Trained) -> dict[str, Tensor]:
    """What the filters that were stuck at the start are at the end: each network's shares of them of one of the `_kinds`.

    ``(R',)``: networks that start without a stuck filter have no share.
    """
    stuck = _kinds(trained.start)["stuck"]
    some = stuck.any(1)
    return {
        name: ((which & stuck).sum(1) / stuck.sum(1).clamp_min(1)).double()[some]
        for name, which in _kinds(trained.end).items()
    }


def agreement(start: Network, end: Network) -> float:
    """Share of the filters that move which respond, at the ``end``, to the pattern strongest at the ``start``, and to it alone.

    Those that move are those whose patterns at the start do not cancel; "alone" as in `_kinds`.
    """
    bias = start.filters.shape[-1] == 3
    moving = direction(selected(start.filters), bias).ne(0).any(-1)
    before, after = (responses(net.filters).argmax(-1) for net in (start, end))
    return float((_kinds(end)["single"] & (before == after))[moving].double().mean())
