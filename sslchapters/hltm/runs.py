r"""SimCLR on latent trees: anchor and positive share the root, the negative has its own.

All replicas train at once, each on its own tree, from its own streams.  The two losses are the paper's formula and what its
released code computes; they are not the same.  Measured is the normalised correlation of a latent variable: the largest absolute
correlation of a unit of its part with it, from samples or over the population.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeVar

import torch
from torch import Tensor

from sslbook._random import Streams, to_device
from sslbook.trees import exact
from sslbook.trees import latent as trees
from sslbook.trees.exact import TreeNetwork, initial_network
from sslbook.trees.latent import LatentTree
from sslchapters.hltm.theory import joint, place, random_symmetric
from sslchapters.sweep import sweep


@dataclass(frozen=True)
class Activity:
    r"""What a forward pass leaves, one tensor a depth, root first.

    inputs: what a part reads, rectified, ``(R, nodes, fan-in, B)``.
    pre: pre-activations :math:`\tilde f`, ``(R, nodes, width, B)``; ``pre[0]`` is the output before the division by its length.
    """

    inputs: tuple[Tensor, ...]
    pre: tuple[Tensor, ...]


def forward(net: TreeNetwork, leaves: Tensor) -> Activity:
    """Run ``leaves`` of shape ``(R, leaves, B)`` through all parts, from the bottom up."""
    inputs: list[Tensor] = []
    pre: list[Tensor] = []
    below = leaves.to(net.weights[0].dtype)
    for weight, bias in zip(reversed(net.weights), reversed(net.biases)):
        r, nodes, width, fan_in = weight.shape
        read = below.reshape(r * nodes, fan_in, -1)
        out = torch.baddbmm(bias.reshape(-1, width, 1), weight.flatten(0, 1), read)
        inputs.append(read.unflatten(0, (r, nodes)))
        pre.append(out.unflatten(0, (r, nodes)))
        below = out.relu()
    return Activity(tuple(reversed(inputs)), tuple(reversed(pre)))


FORMULAS = ("printed", "released")
MIXED = ("printed, no logarithm", "released, logarithm")
"""The two losses between: :data:`FORMULAS` differ in the logarithm and in what is averaged first, each of these in one alone."""

T = TypeVar("T")


@dataclass(frozen=True)
class TreeRun:
    r"""One experiment of Appendix D.1 of [tian2020], for trees of one shape and networks of one width.

    loss: ``printed`` is :math:`L^\tau_{nce}` with one negative, the mean over the batch of
        :math:`\log(1 + e^{(r_+ - r_-)/\tau})`, :math:`r = \frac12\lVert f - f' \rVert^2`; ``released`` is
        :math:`-1/(1 + e^{(p - n)/\tau})` with the mean squares :math:`p, n` of :math:`f - f'` over the batch *and* the units;
        those of :data:`MIXED` are the mean of :math:`-1/(1 + e^{(r_+ - r_-)/\tau})`, and :math:`\log(1 + e^{(p - n)/\tau})`.
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


def normalize(output: Tensor) -> Tensor:
    """``output / (length + 1e-4)`` along the axis of the units, ``(R, width, B)``, as in the released experiments."""
    return output / (torch.linalg.vector_norm(output, dim=1, keepdim=True) + 1e-4)


def triplet_loss(output: Tensor, loss: str, tau: float) -> Tensor:
    """Each replica's loss, ``(R,)``, of the normalised outputs ``(R, width, 3B)`` of anchors, positives and negatives."""
    anchor, positive, negative = output.chunk(3, dim=2)
    nearer = (anchor - positive).square() - (anchor - negative).square()
    apart = nearer.sum(1) / 2 if loss.startswith("printed") else nearer.mean((1, 2))[:, None]
    if loss in ("printed", "released, logarithm"):
        return torch.nn.functional.softplus(apart / tau).mean(1)
    return -torch.sigmoid(-apart / tau).mean(1)


def gradients(net: TreeNetwork, leaves: Tensor, protocol: TreeRun) -> list[Tensor]:
    """Gradients in weights, then biases; ``leaves`` are those of anchors, positives and negatives, ``(R, leaves, 3B)``."""
    with torch.enable_grad():
        free = net.each(lambda part: part.detach().requires_grad_())
        output = normalize(forward(free, leaves).pre[0][:, 0])
        total = triplet_loss(output, protocol.loss, protocol.tau).sum()
        return list(torch.autograd.grad(total, (*free.weights, *free.biases)))


@torch.no_grad()
def step(net: TreeNetwork, leaves: Tensor, protocol: TreeRun) -> None:
    """One step of SGD, in place."""
    for parameter, slope in zip((*net.weights, *net.biases), gradients(net, leaves, protocol), strict=True):
        parameter.sub_(slope, alpha=protocol.rate)


def minibatches(tree: LatentTree, streams: Streams, batch: int, steps: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Leaves of ``steps`` minibatches of triplets, ``(R, leaves, 3 batch)`` each."""
    device = tree.root.device
    buffer = torch.empty(len(streams), 3 * sum(tree.nodes[1:]) + 2, batch, dtype=dtype)
    for _ in range(steps):
        u = to_device(streams.uniform(buffer.shape[1:], out=buffer), device)
        roots = trees.draw_root(tree, u[:, :2].flatten(1))
        anchor, negative = roots.chunk(2, dim=1)
        below = u[:, 2:].reshape(len(streams), -1, 3 * batch)
        yield trees.descend(tree, torch.cat([anchor, anchor, negative], 1), below)[-1]


def start(
    protocol: TreeRun, seeds: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[LatentTree, TreeNetwork]:
    """Trees and untrained networks of ``protocol``, one a seed; the trees' tables are float64."""
    tree = random_symmetric(seeds, protocol.depth, protocol.lower, signed=protocol.signed)
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
    net = net.each(lambda part: part.to(device))
    streams = Streams(seeds, "minibatches")
    found: dict[int, T] = {}
    for epoch in range(epochs + 1):
        if epoch in at:
            found[epoch] = measure(tree, net, seeds, epoch)
        if epoch < epochs:
            steps = protocol.epoch_size // protocol.batch
            for leaves in minibatches(tree, streams, protocol.batch, steps, dtype):
                step(net, leaves, protocol)
    return found


Measure = Callable[[LatentTree, TreeNetwork, Sequence[int], int], dict[str, Tensor]]


def train_protocols(
    protocols: Sequence[TreeRun],
    seeds: Sequence[int],
    measure: Measure,
    at: Sequence[int],
    *,
    processes: int = 2,
    device: torch.device | str = "cpu",
) -> dict[TreeRun, dict[str, Tensor]]:
    """:func:`train_trees` for every protocol and all seeds, up to the last epoch of ``at``: what is measured, ``(R, epochs, ...)``.

    measure: picklable.  A chunk of replicas fits the cache, with a few MB of activations; on a GPU all seeds are one.
    """
    on_cpu = torch.device(device).type == "cpu"
    return sweep(
        partial(_train_chunk, measure=measure, at=tuple(at), device=device),
        protocols,
        seeds,
        alike=lambda protocol: protocol,
        most=lambda protocol: 60 // protocol.width if on_cpu else len(seeds),
        cost=lambda protocol: protocol.width * protocol.depth,
        processes=processes,
    )


def _train_chunk(
    chunk: Sequence[tuple[TreeRun, int]], measure: Measure, at: tuple[int, ...], device: torch.device | str
) -> dict[str, Tensor]:
    found = train_trees(chunk[0][0], [seed for _, seed in chunk], max(at), measure, at, device=device)
    return {name: torch.stack([found[epoch][name] for epoch in at], 1) for name in found[at[0]]}


# --- Correlation from samples, centred in float64 or summed up as the released code does it; and the largest there is ---


def centred_correlation(latent: Tensor, units: Tensor) -> Tensor:
    """Correlation of ``units (R, nodes, width, B)`` with their ``latent (R, nodes, B)``; 0 for what is constant up to rounding."""
    z, f = latent.double()[:, :, None], units.double()
    rounding = 4 * torch.finfo(units.dtype).eps * f.abs().amax(-1)
    z, f = z - z.mean(-1, keepdim=True), f - f.mean(-1, keepdim=True)
    spread_z, spread_f = (part.square().mean(-1).sqrt() for part in (z, f))
    constant = (spread_f <= rounding) | (spread_z == 0)
    return torch.where(constant, 0.0, (z * f).mean(-1) / (spread_z * spread_f))


BATCH = 128
"""Samples of a minibatch."""


def raw_correlation(latent: Tensor, units: Tensor) -> Tensor:
    """The same from raw sums in float32, by minibatches of 128, as the released code accumulates them.

    :math:`E[zf] - E[z]E[f]` over the roots of :math:`E[z^2] - E[z]^2` and :math:`E[f^2] - E[f]^2`, each clamped at 0; set to 0
    where the norms' product *and* the covariance lie below 1e-6, then clamped to [-1, 1].
    """
    z, f = (part.float().unflatten(-1, (-1, BATCH)) for part in (latent[:, :, None], units))
    sums = (reduce(torch.add, part.sum(-1).unbind(-1)) for part in (z, f, z * z, f * f, z * f))
    mean_z, mean_f, zz, ff, zf = (total / latent.shape[-1] for total in sums)
    covariance = zf - mean_z * mean_f
    norms = (zz - mean_z * mean_z).clamp_min(0).sqrt() * (ff - mean_f * mean_f).clamp_min(0).sqrt()
    return torch.where((norms < 1e-6) & (covariance.abs() < 1e-6), 0.0, covariance / norms).clamp(-1, 1)


def best_linear(tree: LatentTree) -> Tensor:
    r"""The largest correlation with the root that a linear unit over the leaves can have, ``(R,)``.

    :math:`\sqrt{1 - E[r^2] / V[z_0]}`, with r the residual of the regression of :math:`z_0` on the leaves and a constant:
    least squares over all assignments.
    """
    assignments, chance = joint(tree)
    z, leaves = assignments[0][0, 0].to(chance.dtype), assignments[-1][0].to(chance.dtype)
    root = chance.sqrt()[..., None]
    design, target = root * torch.cat([torch.ones_like(z)[None], leaves]).T, root * z[:, None]
    residual = target - design @ torch.linalg.lstsq(design, target).solution
    centred = z - (chance @ z)[:, None]
    left: Tensor = residual.square().sum((1, 2)) / (chance * centred.square()).sum(1)
    return (1 - left).clamp_min(0).sqrt()


STATISTICS = ("exact", "released", "population")
"""``exact``: centred, float64, on fresh samples; ``released``: raw sums in float32 on the same; ``population``: enumerated."""


def best_correlations(
    tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int, latents: Sequence[str], samples: int
) -> dict[str, Tensor]:
    """Normalised correlation of the named variables by each of the :data:`STATISTICS`, ``(R, latents)``.

    samples: fresh ones, a multiple of 128, from streams of their own.
    """
    places, streams = [place(tree, name) for name in latents], Streams(seeds, f"statistics {epoch}")
    latent, units, dtype = [], [], net.weights[0].dtype
    for done in range(0, samples, 3200):
        count = min(3200, samples - done)
        u = to_device(streams.uniform((sum(tree.nodes), count), dtype), tree.root.device)
        drawn = trees.descend(tree, trees.draw_root(tree, u[:, 0]), u[:, 1:])
        seen = forward(net, drawn[-1])
        latent.append(torch.stack([drawn[d][:, i] for d, i in places], 1))
        units.append(torch.stack([seen.pre[d][:, i] for d, i in places], 1))
    population = exact.latent_correlations(tree, net)
    whole = torch.stack([population[d][:, i] for d, i in places], 1)
    both = torch.cat(latent, -1), torch.cat(units, -1)
    found = {"exact": centred_correlation(*both), "released": raw_correlation(*both).double(), "population": whole}
    return {name: corr.abs().amax(-1).cpu() for name, corr in found.items()}


def untrained(protocol: TreeRun, seeds: Sequence[int], latents: Sequence[str]) -> Tensor:
    """Normalised correlation of the named variables before training, over the whole population: ``(R, latents)``."""
    shape, _ = start(protocol, seeds[:1])
    places, found = [place(shape, name) for name in latents], []
    for first in range(0, len(seeds), 4):  # as many as fit the cache
        corr = exact.latent_correlations(*start(protocol, seeds[first : first + 4]))
        found.append(torch.stack([corr[d][:, i].abs().amax(-1) for d, i in places], 1))
    return torch.cat(found)
