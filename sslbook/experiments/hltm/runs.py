r"""SimCLR on latent trees: anchor and positive share the root, the negative has its own.

All replicas train at once, each on its own tree, from its own streams.  The two losses are the paper's formula and what its
released code computes; they are not the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from sslbook.experiments.hltm import tree_models
from sslbook.runtime.compute import process_pool
from sslbook.stats.replica_rng import Streams, to_device
from sslbook.trees import latent as trees
from sslbook.trees.latent import LatentTree
from sslbook.trees.network import Activity, TreeNetwork, forward, initial_network

# ---------------------------------------------------------------------------------------------------------------------
# The gradient by hand: through the division by the output's length, then down the parts

EPSILON = 1e-4
"""Added to the output's length before the division, as in the released experiments."""


def normalize(output: Tensor, epsilon: float = EPSILON) -> Tensor:
    """``output / (length + epsilon)`` along the axis of the units, ``(R, width, B)``."""
    return output / (length(output) + epsilon)


def length(output: Tensor) -> Tensor:
    """Length along the axis of the units, ``(R, 1, B)``."""
    return output.square().sum(1, keepdim=True).sqrt_()


def normalize_backward(output: Tensor, grad: Tensor, epsilon: float = EPSILON) -> Tensor:
    r"""Gradient through :func:`normalize` of an output :math:`o` of length n.

    :math:`(g - \hat o\,(\hat o^\top g)\,n / (n + \epsilon)) / (n + \epsilon)` with :math:`\hat o = o / n`, or 0 for :math:`o = 0`.
    """
    n = length(output)
    scale = n + epsilon
    along = (output * grad).sum(1, keepdim=True) / (n.clamp_min(torch.finfo(output.dtype).tiny) * scale)
    return (grad - output * along) / scale


def backward(net: TreeNetwork, seen: Activity, grad: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of all weights and biases, root first, from that of the root's pre-activation ``(R, width, B)``."""
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    above = grad.contiguous()
    for d, weight in enumerate(net.weights):
        r, nodes, width, _ = weight.shape
        g, read = above.view(r * nodes, width, -1), seen.inputs[d].flatten(0, 1)
        weights.append(torch.bmm(g, read.transpose(1, 2)).view_as(weight))
        biases.append(g.sum(-1).view(r, nodes, width))
        if d + 1 < net.depth:
            down = torch.bmm(weight.flatten(0, 1).transpose(1, 2), g)
            # the rows of read are the children's units, rectified
            above = torch.ops.aten.threshold_backward(down, read, 0.0)
    return weights, biases


# ---------------------------------------------------------------------------------------------------------------------
# Losses and steps

FORMULAS = ("printed", "released")

T = TypeVar("T")


@dataclass(frozen=True)
class TreeRun:
    r"""One experiment of Appendix D.1 of [tian2020], for trees of one shape and networks of one width.

    loss: ``printed`` is :math:`L^\tau_{nce}` with one negative, the mean over the batch of
        :math:`\log(1 + e^{(r_+ - r_-)/\tau})`, :math:`r = \frac12\lVert f - f' \rVert^2`; ``released`` is
        :math:`-1/(1 + e^{(p - n)/\tau})` with the mean squares :math:`p, n` of :math:`f - f'` over the batch *and* the units.
    lower: polarities are drawn from :math:`U[\text{lower}, 1]`, with a random sign if ``signed``.
    epoch_size: samples an epoch, drawn afresh every time.
    """

    depth: int = 5
    width: int = 10
    lower: float = 0.7
    loss: str = "released"
    tau: float = 0.1
    rate: float = 0.1
    batch: int = 128
    epoch_size: int = 64_000
    signed: bool = True
    bias: bool = True

    @property
    def steps(self) -> int:
        """Minibatches an epoch."""
        return self.epoch_size // self.batch


def triplet_gradient(output: Tensor, loss: str, tau: float) -> Tensor:
    """Gradient of each replica's loss in the normalised outputs ``(R, width, 3B)`` of anchors, positives and negatives."""
    anchor, positive, negative = output.chunk(3, dim=2)
    to_positive, to_negative = anchor - positive, anchor - negative
    if loss == "printed":
        r_pos, r_neg = (0.5 * d.square().sum(1, keepdim=True) for d in (to_positive, to_negative))
        force = torch.sigmoid((r_pos - r_neg) / tau) / (tau * anchor.shape[2])
    else:
        p, n = (d.square().mean((1, 2), keepdim=True) for d in (to_positive, to_negative))
        share = torch.sigmoid((n - p) / tau)
        force = share * (1 - share) * 2 / (tau * anchor.shape[1] * anchor.shape[2])
    return torch.cat([force * (to_positive - to_negative), -force * to_positive, force * to_negative], 2)


@torch.no_grad()
def step(net: TreeNetwork, leaves: Tensor, protocol: TreeRun) -> None:
    """One step of SGD, in place; ``leaves`` are those of anchors, positives and negatives, ``(R, leaves, 3B)``."""
    seen = forward(net, leaves)
    top = seen.pre[0][:, 0]
    grad = normalize_backward(top, triplet_gradient(normalize(top), protocol.loss, protocol.tau))
    weights, biases = backward(net, seen, grad)
    for parameter, slope in zip((*net.weights, *net.biases), (*weights, *biases)):
        parameter.sub_(slope, alpha=protocol.rate)


def minibatches(tree: LatentTree, streams: Streams, batch: int, steps: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Leaves of ``steps`` minibatches of triplets, ``(R, leaves, 3 batch)`` each."""
    device = tree.root.device
    edges = trees.thresholds(tree, dtype)
    buffer = torch.empty(len(streams), 3 * trees.numbers_needed(tree) + 2, batch, dtype=dtype)
    for _ in range(steps):
        u = to_device(streams.uniform(buffer.shape[1:], out=buffer), device)
        roots = trees.draw_root(tree, u[:, :2].flatten(1))
        anchor, negative = roots.chunk(2, dim=1)
        below = u[:, 2:].reshape(len(streams), -1, 3 * batch)
        yield trees.descend(tree, torch.cat([anchor, anchor, negative], 1), below, edges)[-1]


def start(
    protocol: TreeRun, seeds: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[LatentTree, TreeNetwork]:
    """Trees and untrained networks of ``protocol``, one a seed; the trees' tables are float64."""
    tree = tree_models.random_symmetric(seeds, protocol.depth, protocol.lower, signed=protocol.signed)
    return tree, initial_network(seeds, tree.branching, protocol.width, bias=protocol.bias, dtype=dtype)


def train_trees(
    protocol: TreeRun,
    seeds: Sequence[int],
    epochs: int,
    measure: Callable[[LatentTree, TreeNetwork, Sequence[int], int], T],
    at: Collection[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> dict[int, T]:
    """Train for ``epochs``; returns what ``measure(tree, net, seeds, epoch)`` gave after each number of epochs in ``at``.

    Replica ``r`` draws from streams of ``seeds[r]`` alone: it is what it would be in any other batch.
    """
    tree, net = start(protocol, seeds, dtype)
    tree = LatentTree(tree.root.to(device), tuple(table.to(device) for table in tree.tables))
    net = net.to(torch.device(device))
    streams = Streams(seeds, "minibatches")
    found: dict[int, T] = {}
    for epoch in range(epochs + 1):
        if epoch in at:
            found[epoch] = measure(tree, net, seeds, epoch)
        if epoch < epochs:
            for leaves in minibatches(tree, streams, protocol.batch, protocol.steps, dtype):
                step(net, leaves, protocol)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Many trials on all cores


def train_chunks(
    protocols: Sequence[TreeRun],
    seeds: Sequence[int],
    epochs: int,
    measure: Callable[[LatentTree, TreeNetwork, Sequence[int], int], dict[str, Tensor]],
    at: Collection[int],
    *,
    processes: int = 2,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[dict[int, dict[str, Tensor]]]:
    """:func:`train_trees` for every protocol and all seeds, in chunks of replicas that fit the cache, in ``processes``.

    measure: picklable; what it returns is joined along the replica axis, the first.  On a GPU all seeds are one chunk.
    How replicas are cut into chunks changes nothing.
    """
    gpu, pieces = torch.device(device).type != "cpu", -(-processes // len(protocols))
    jobs = [
        (p, protocol, first, part)
        for p, protocol in enumerate(protocols)
        for first, part in _chunks(
            list(seeds), len(seeds) if gpu else max(CACHE_UNITS // protocol.width, 1), 1 if gpu else pieces
        )
    ]
    jobs.sort(key=lambda job: -job[1].width * job[1].depth * len(job[3]))  # the longest first
    call = partial(train_trees, epochs=epochs, measure=measure, at=at, dtype=dtype, device=device)
    asked = [job[1] for job in jobs], [job[3] for job in jobs]
    if processes == 1:
        results = list(map(call, *asked))
    else:
        with process_pool(processes) as pool:
            results = list(pool.map(call, *asked))
    joined: list[dict[int, dict[str, Tensor]]] = []
    for p in range(len(protocols)):
        mine = {job[2]: result for job, result in zip(jobs, results) if job[0] == p}
        parts = [mine[first] for first in sorted(mine)]
        joined.append(
            {
                epoch: {name: torch.cat([part[epoch][name] for part in parts]) for name in found}
                for epoch, found in parts[0].items()
            }
        )
    return joined


CACHE_UNITS = 60
"""Replicas times width of a chunk: a few MB of activations."""


def _chunks(seeds: list[int], most: int, pieces: int) -> Iterator[tuple[int, list[int]]]:
    """Even chunks of at most ``most`` seeds, at least ``pieces`` of them where there are so many seeds, each with its place."""
    pieces = max(pieces, -(-len(seeds) // most))
    size = -(-len(seeds) // pieces)
    for first in range(0, len(seeds), size):
        yield first, seeds[first : first + size]
