r"""The experiments of Section 5 and Appendix E of [tian2023], and how well what they learn matches the generators.

Every setting and seed of one shape trains in one batch.  The scores are :math:`\bar\chi_+` and :math:`\bar\chi_-` (Eqs. 16, 180
and 181).  Filters of real images, Figures 12 and 13, are trained in the same network, each image cut into four receptive fields;
positive pairs are two random crops of one image, or the image twice.

A step on one-hot inputs is computed on tables of tokens instead of samples.  A field sees one of ``d`` tokens.  So its activations
are a table of ``d`` rows, BatchNorm's statistics are sums over that table weighted by how often each token occurs, and a sample's
output is a sum of ``K`` rows of the table :math:`T_k = \mathrm{BN}[h(W_k)]\,V_k`, one looked up in each field.  Where the batch is
larger than ``d`` this saves most of the arithmetic, and nothing is approximated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from sslbook._random import Streams
from sslchapters.enumerated import Images
from sslchapters.modulation import instances
from sslchapters.modulation.instances import ACTIVATIONS, WILDCARD, World
from sslchapters.sweep import sweep

Look = tuple[Tensor, Tensor]
"""Where the samples of one minibatch find their rows in tables ``(R, K, S, d, ...)``, with ``S`` groups of samples that have
statistics of their own, 2 (the views) or 1: the row of each sample and field, ``(R * 2 * B, K)``; and how often each token occurs
in its group, ``(R, K, S, d)``."""


def lookups(tokens: Tensor, count: int, group: str, dtype: torch.dtype) -> list[Look]:
    """One :data:`Look` a step, from ``tokens (R, steps, 2, B, K)`` of ``count`` kinds."""
    replicas, steps, views, batch, fields = tokens.shape
    groups = views if group == "view" else 1
    cells = replicas * fields * groups * count
    base = torch.arange(replicas * fields, device=tokens.device).view(replicas, 1, fields) * (groups * count)
    part = torch.arange(views, device=tokens.device).view(views, 1) * (count if groups > 1 else 0)
    rows = tokens.transpose(0, 1) + (base[:, :, None] + part).view(replicas, views, 1, fields)
    rows = rows.reshape(steps, -1, fields)
    step = torch.arange(steps, device=tokens.device).view(-1, 1, 1) * cells
    counts = torch.bincount((rows + step).flatten(), minlength=steps * cells).to(dtype)
    shares = (counts / (batch * views // groups)).view(steps, replicas, fields, groups, count)
    return list(zip(rows, shares))


@dataclass(frozen=True)
class TableCell:
    r"""One setting of a table or figure.

    patterns: :math:`P`, tokens in each :math:`R_k^g`.  beta: :math:`\beta`, so that each field has :math:`M = \beta P` filters.
    mean, std: BatchNorm's statistics, ``normal``, ``detach`` (not differentiated through) or ``omit``; the default is
    Definition 5.
    zeta: :math:`\zeta`, the lengths of the tokens' vectors are :math:`\zeta` and :math:`1/\zeta`.
    """

    patterns: int = 1
    beta: int = 1
    activation: str = "relu"
    mean: str = "normal"
    std: str = "detach"
    loss: str = "info_nce"
    zeta: float = 1.0

    @property
    def filters(self) -> int:
        """:math:`M`, filters in a field."""
        return self.beta * self.patterns


@dataclass(frozen=True)
class TokenRun:
    """What all settings share; the default is the released code's, as its instructions have it.

    group: BatchNorm's statistics are those of a ``view`` or of the ``batch`` of both.  form: of the losses, see
    :func:`sslchapters.modulation.instances.contrastive_loss`.  rate, momentum, decay: of SGD.
    """

    fields: int = 10
    tokens: int = 20
    generators: int = 40
    fixed: int = 5
    outputs: int = 50
    batch: int = 128
    steps: int = 5000
    rate: float = 0.02
    momentum: float = 0.9
    decay: float = 5e-3
    tau: float = 0.1
    group: str = "view"
    form: str = "released"


PRINTED = TokenRun(outputs=20, rate=2e-3, group="batch", form="printed")
"""The paper's text: its learning rate, Eq. 1, statistics over all ``2B`` samples; ``outputs`` it leaves open (the code's
default)."""

Replica = tuple[TableCell, int]


class State(NamedTuple):
    """Weights of ``R`` replicas of one shape, ``(R, K, d, M)`` and ``(R, K, M, O)``."""

    weights: Tensor
    top: Tensor


def initial_state(protocol: TokenRun, seeds: Sequence[int], filters: int, dtype: torch.dtype = torch.float32) -> State:
    r"""PyTorch's initial weights, uniform on :math:`\pm1/\sqrt{\text{inputs}}`, no biases; one stream a seed."""
    streams = Streams(seeds, "weights")
    k, d = protocol.fields, protocol.tokens
    weights = streams.uniform((k, d, filters), torch.float64).mul_(2).sub_(1).div_(d**0.5)
    top = streams.uniform((k, filters, protocol.outputs), torch.float64).mul_(2).sub_(1).div_((k * filters) ** 0.5)
    return State(weights.to(dtype), top.to(dtype))


def world_of(protocol: TokenRun, replicas: Sequence[Replica]) -> World:
    r"""One world a replica, with as many tokens in each :math:`R_k^g` as its cell says, from streams of its seed.

    Generators are drawn independently, so they may repeat.  The first half of the tokens has length :math:`1/\zeta`, the
    others :math:`\zeta`.  With one seed, worlds of different cells fix the same places, and their :math:`R_k^g` are nested.
    """
    cells, streams = [cell for cell, _ in replicas], Streams([seed for _, seed in replicas], "generators")
    size = torch.tensor([cell.patterns for cell in cells])[:, None, None]
    fields, tokens, shape = protocol.fields, protocol.tokens, (protocol.generators, protocol.fields)
    # the first P of a place's order are its subset
    order = streams.uniform((fields, tokens), torch.float64).argsort(-1)
    places = streams.uniform(shape, torch.float64).argsort(-1).argsort(-1) < protocol.fixed
    picked = (streams.uniform(shape, torch.float64) * size).long()
    token = order.gather(2, picked.mT).mT
    length = torch.tensor([cell.zeta for cell in cells], dtype=torch.float64)[:, None]
    return World(
        allowed=order.argsort(-1) < size,
        generators=torch.where(places, token, WILDCARD),
        lengths=torch.where(torch.arange(tokens) < tokens // 2, 1 / length, length),
    )


def gradients_of(
    protocol: TokenRun, replicas: Sequence[Replica], world: World, dtype: torch.dtype
) -> Callable[[Tensor, Tensor, Look], tuple[Tensor, Tensor]]:
    """A function of ``weights (R, K, d, M)``, ``top (R, K, M, O)`` and a minibatch: gradients of each replica's loss in both.

    It costs least where replicas of one activation and of one loss lie side by side.
    """
    cells, lengths = [cell for cell, _ in replicas], world.lengths.to(dtype)[:, None, :, None]
    norms = [[c.mean != "omit", c.std != "omit", c.mean == "normal", c.std == "normal"] for c in cells]
    norms_of = torch.tensor(norms, dtype=dtype, device=lengths.device).T.reshape(4, -1, 1, 1, 1, 1)
    with_mean, with_std, through_mean, through_std = norms_of  # whether they are used, and whether a gradient flows

    def alike(kinds: Sequence[str]) -> list[tuple[str, slice]]:  # replicas in a row that share a kind
        ends = [0, *(r for r in range(1, len(kinds)) if kinds[r] != kinds[r - 1]), len(kinds)]
        return [(kinds[start], slice(start, end)) for start, end in itertools.pairwise(ends)]

    def held(statistic: Tensor, through: Tensor) -> Tensor:  # where the gradient does not flow through it
        return through * statistic + (1 - through) * statistic.detach()

    activations, losses = alike([cell.activation for cell in cells]), alike([cell.loss for cell in cells])

    @torch.enable_grad()
    def gradients(weights: Tensor, top: Tensor, look: Look) -> tuple[Tensor, Tensor]:
        w, v = leaves = [part.detach().requires_grad_() for part in (weights, top)]
        rows, shares = look
        # a token's row of W_k is its filters' responses; statistics are sums over rows, as often as each token occurs
        responses = w * lengths
        a = torch.cat([ACTIVATIONS[kind](responses[part]) for kind, part in activations]).unsqueeze(2)
        mean = shares.unsqueeze(3) @ a  # (R, K, S, 1, M)
        variance = shares.unsqueeze(3) @ (a - mean).square()
        root = torch.rsqrt(held(variance, through_std) + 1e-5)
        inverse = 1 + with_std * (root - 1)  # 1 where the deviation is omitted
        y = (a - with_mean * held(mean, through_mean)) * inverse
        # a sample's output is the sum of K rows of the table; its loss is a function of that output's direction alone
        table = (y.flatten(2, 3) @ v).flatten(0, 2)
        z = normalize(embedding_bag(rows, table, mode="sum"), dim=1).view(len(w), 2, -1, top.shape[3])
        values = [instances.contrastive_loss(z[part], kind, protocol.form, protocol.tau).sum() for kind, part in losses]
        in_weights, in_top = torch.autograd.grad(torch.stack(values).sum(), leaves)
        return in_weights, in_top

    return gradients


BLOCK = 16
"""Minibatches drawn at a time; how many changes nothing, since streams are read in order."""


@torch.no_grad()
def train_course(
    protocol: TokenRun,
    replicas: Sequence[Replica],
    at: Sequence[int],
    *,
    world: World | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[list[State], World]:
    """Train replicas with one number of filters, side by side; replica ``r`` draws from streams of its seed alone.

    at: the states that are returned, after so many minibatches each, in increasing order; 0 is the start.  world: in place of the
    one that the seeds draw, such as a single place of it.
    """
    world, seeds = (world_of(protocol, replicas) if world is None else world).to(device), [s for _, s in replicas]
    now = State(*(part.to(device) for part in initial_state(protocol, seeds, replicas[0][0].filters, dtype)))
    momenta = [torch.zeros_like(part) for part in now]
    gradients, streams = gradients_of(protocol, replicas, world, dtype), Streams(seeds, "pairs")
    states = [State(*(part.clone() for part in now))] if 0 in at else []
    for done in range(0, at[-1], BLOCK):
        pairs = instances.draw_pairs(world, streams, protocol.batch, min(BLOCK, at[-1] - done))
        for number, look in enumerate(lookups(pairs, protocol.tokens, protocol.group, dtype), done + 1):
            for parameter, momentum, grad in zip(now, momenta, gradients(*now, look), strict=True):
                momentum.mul_(protocol.momentum).add_(grad).add_(parameter, alpha=protocol.decay)
                parameter.sub_(momentum, alpha=protocol.rate)
            if number in at:
                states.append(State(*(part.clone() for part in now)))
    return states, world


def train_cells(
    protocol: TokenRun,
    cells: Sequence[TableCell],
    seeds: Sequence[int],
    *,
    processes: int = 1,
    keep: bool = False,
    parts: Path | None = None,
    device: torch.device | str = "cpu",
) -> dict[TableCell, dict[str, Tensor]]:
    """Train every cell with every seed; for each cell the scores ``(seeds,)`` of `scores`, and with ``keep`` its
    ``weights``.

    Cells of equal shape train together, like beside like, in chunks whose arrays fit a processor's cache, 8 MB: past this they gain
    nothing by being longer.  On a GPU, where a step costs its kernels' launches, a chunk is all cells of one number of filters.
    processes, parts: see :func:`sslchapters.sweep.sweep`.  What comes back lies on the CPU.
    """
    k, d, b, o = protocol.fields, protocol.tokens, protocol.batch, protocol.outputs

    def size(m: int) -> int:
        # bytes of a replica with m filters: weights with momenta, tables, similarities and outputs, in float32
        return 4 * (3 * k * m * (d + o) + 4 * 2 * k * d * m + 3 * b * b + 6 * b * o + 2 * k * d * o)

    small = torch.device(device).type == "cpu"
    found = sweep(
        partial(_train_chunk, protocol, keep=keep, device=device),
        sorted(cells, key=lambda cell: (cell.loss, cell.activation, cell.zeta != 1)),
        seeds,
        alike=lambda cell: cell.filters,
        most=lambda cell: round(8e6 / size(cell.filters)) if small else math.inf,
        cost=lambda cell: 4 + cell.filters / 10,
        processes=processes,
        keep=parts,
    )
    return {cell: found[cell] for cell in cells}


def _train_chunk(
    protocol: TokenRun, replicas: Sequence[Replica], keep: bool, device: torch.device | str
) -> dict[str, Tensor]:
    (state,), world = train_course(protocol, replicas, [protocol.steps], device=device)
    linear = torch.tensor([cell.activation == "linear" for cell, _ in replicas])
    found = scores(state.weights.double(), world, linear)
    kept = {"weights": state.weights, "allowed": world.allowed} if keep else {}
    return {name: values.cpu() for name, values in (found | kept).items()}


SCORES = ("printed +", "printed -", "released +", "released -", "signless +", "signless -")


def cosines(weights: Tensor) -> Tensor:
    r"""Largest cosine of a filter of the field with each token, :math:`\max_m w_{km}^\top u_a/(\|w_{km}\| \|u_a\|)`: ``(R, K,
    d)``.

    weights: ``(R, K, d, M)``, filters in columns.  Token vectors are orthogonal, so the cosine is an entry over a length; a
    filter that is zero throughout matches nothing.
    """
    lengths = weights.norm(dim=2, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return (weights / lengths).amax(-1)


def scores(weights: Tensor, world: World, linear: bool | Tensor = False) -> dict[str, Tensor]:
    r"""Each of :data:`SCORES`, ``(R,)``: means over the fields.

    printed: Eqs. 180 and 181 as they stand.  Both sums are divided by ``P``, also the one over the ``d - P`` other tokens, so
        that :math:`\bar\chi_-` is :math:`(d - P)/P` times a mean of cosines and reaches 19 where ``P = 1`` and ``d = 20``.
    released: what the authors' code averages: means over the tokens that *occur* in a generator, and over all others; filters of
        linear networks (``linear``, one value or one a replica) count with the absolute value of the cosine, since their sign
        means nothing; and lengths grow by a thousandth of the field's largest weight, which fades filters that have died.
    signless: means over the tokens of :math:`R_k^g`, and over the others, of the largest *absolute* cosine, for every activation:
        the sign of a filter means as little under the square, which is even, as in a linear network behind BatchNorm.
    """
    best, either = cosines(weights), torch.maximum(cosines(weights), cosines(-weights))
    size = world.allowed.sum(-1).to(best)
    largest = weights.abs().amax((2, 3), keepdim=True)
    shares = weights / (weights.norm(dim=2, keepdim=True) + (largest / 1000).clamp_min(1e-6))
    signless = torch.as_tensor(linear, device=weights.device).expand(len(weights)).view(-1, 1, 1, 1)
    faded = torch.where(signless, shares.abs(), shares).amax(-1)
    return {
        "printed +": ((best * world.allowed).sum(-1) / size).mean(-1),
        "printed -": ((best * ~world.allowed).sum(-1) / size).mean(-1),
        "released +": _mean_over(faded, world.used),
        "released -": _mean_over(faded, ~world.used),
        "signless +": _mean_over(either, world.allowed),
        "signless -": _mean_over(either, ~world.allowed),
    }


def _mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean over the fields of the means of the chosen tokens; fields without one are passed over."""
    means = (values * chosen).sum(-1) / chosen.sum(-1)
    return means.nanmean(-1)


def train_filters(data: Images, strength: float, steps: int, seeds: list[int]) -> Tensor:
    r"""Filters of image quarters after ``steps`` minibatches of eight, ``(R, 4, M, S/2, S/2)``: Appendix E.3 of [tian2023], and
    what it leaves open as the released code has it.

    There are :math:`M = 10 \beta` ReLU filters in each field, :math:`\beta = 5`; outputs and optimiser are those of
    :class:`TokenRun`.  strength: crops cover ``[1 - strength, 1]`` of the image's area with sides in the ratio ``[1 - strength,
    1 + strength]``, as in the text for 1/2; 0 takes the image as it is, and the pair is equal.  Every replica draws images and
    crops from streams of its seed; images come in passes, each in a random order of its own, as far as whole minibatches go.
    """
    pixels, how = data.pixels[:, 0], TokenRun()
    side, batch, m = pixels.shape[-1] // 2, 8, 50
    starts, order, crops = (Streams(seeds, name) for name in ("weights", "order", "crops"))
    d = side**2
    w = starts.uniform((4, d, m)).mul_(2).sub_(1).div_(d**0.5).requires_grad_()
    v = starts.uniform((4, m, how.outputs)).mul_(2).sub_(1).div_((4 * m) ** 0.5).requires_grad_()
    optimizer = torch.optim.SGD([w, v], how.rate, how.momentum, weight_decay=how.decay)
    a_pass = len(pixels) // batch
    queue = torch.empty(0)
    for step in range(steps):
        if step % a_pass == 0:
            queue = order.uniform((len(pixels),)).argsort(1)
        at = step % a_pass * batch
        chosen = pixels[queue[:, at : at + batch]]
        pair = [instances.random_crops(chosen, crops, strength) if strength else chosen for _ in range(2)]
        halves = torch.stack(pair, 1).unflatten(-1, (2, side)).unflatten(-3, (2, side))
        x = halves.transpose(-3, -2).flatten(-2).flatten(-3, -2)  # quarters, in the order of FIELDS
        z = instances.unit_outputs(x, w, v, activation="relu", mean="normal", std="detach")
        optimizer.zero_grad()
        instances.contrastive_loss(z, "info_nce", "released", how.tau).sum().backward()
        optimizer.step()
    return w.detach().mT.unflatten(-1, (side, side))


def roughness(filters: Tensor) -> Tensor:
    """Squared differences of neighbouring pixels over the squares, ``(..., )`` for ``(..., S, S)``: near 4 for noise, small
    for smooth ones.

    Of each filter less its mean; a filter that is constant has 0.
    """
    centred = filters - filters.mean((-2, -1), keepdim=True)
    pairs = centred.diff(dim=-1).square().sum((-2, -1)) + centred.diff(dim=-2).square().sum((-2, -1))
    return pairs / centred.square().sum((-2, -1)).clamp_min(1e-30)


def living(filters: Tensor) -> Tensor:
    """Which filters have not faded, ``(R, 4, M)`` for ``(R, 4, M, S, S)``: longer than a twentieth of the replica's longest.

    A ReLU filter that no input opens any more gets no gradient, and weight decay takes it to zero.
    """
    lengths = filters.flatten(-2).norm(dim=-1)
    return lengths > 0.05 * lengths.amax((-2, -1), keepdim=True)


def likeness(filters: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Mean absolute cosine of two different filters of a field among those ``chosen (R, 4, M)``, ``(R,)``: 1 if all are alike."""
    flat = torch.nn.functional.normalize(filters.flatten(-2), dim=-1)
    kept = torch.ones_like(flat[..., 0]) if chosen is None else chosen.to(flat)
    pairs = kept[..., None] * kept[..., None, :] * (1 - torch.eye(flat.shape[-2]).to(flat))
    cosines = (flat @ flat.mT).abs()
    return (cosines * pairs).sum((1, 2, 3)) / pairs.sum((1, 2, 3)).clamp_min(1)
