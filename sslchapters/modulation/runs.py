r"""The experiments of Section 5 and Appendix E of [tian2023], and how well what they learn matches the generators.

Every setting and seed of one shape trains in one batch.  The scores are :math:`\bar\chi_+` and :math:`\bar\chi_-` (Eqs. 16, 180
and 181).  Filters of real images, Figures 12 and 13, are trained in the same network, each image cut into four receptive fields;
positive pairs are two random crops of one image, or the image twice.

A step on one-hot inputs is computed on tables of tokens instead of samples.  A field sees one of ``d`` tokens.  So its activations
are a table of ``d`` rows, BatchNorm's statistics are sums over that table weighted by how often each token occurs, and a sample's
output is a sum of ``K`` rows of the table :math:`T_k = \mathrm{BN}[h(W_k)]\,V_k`, one looked up in each field.  The backward pass
is the same in reverse: gradients of samples are summed token by token.  Where the batch is larger than ``d`` this saves most of the
arithmetic, and nothing is approximated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import embedding_bag

from sslbook._random import Streams
from sslchapters.enumerated import Images
from sslchapters.modulation.instances import (
    REFERENCES,
    SLOPE,
    World,
    contrastive_loss,
    draw_pairs,
    four_fields,
    make_world,
    printed_factor,
    random_crops,
    unit_outputs,
)
from sslchapters.sweep import sweep

# ---------------------------------------------------------------------------------------------------------------------
# One step

Segments = Sequence[tuple[str, slice]]
"""Replicas in a row that share a kind of activation or of loss, in order."""


@dataclass(frozen=True)
class Norms:
    """For each replica, ``(R, 1, 1, 1, 1)``, whether a statistic is used forward, and whether the gradient flows through it.

    plain: whether every replica subtracts the mean.
    """

    mean: Tensor
    std: Tensor
    through_mean: Tensor
    through_std: Tensor
    plain: bool


def norms(modes: Sequence[tuple[str, str]], dtype: torch.dtype, device: torch.device | str = "cpu") -> Norms:
    """From the modes of mean and deviation, ``normal``, ``detach`` or ``omit``, as in :mod:`sslbook.networks.batchnorm`."""

    def flags(which: int, *allowed: str) -> Tensor:
        chosen = torch.tensor([float(pair[which] in allowed) for pair in modes], dtype=dtype)
        return chosen.view(-1, 1, 1, 1, 1).to(device)

    forward, backward = ("normal", "detach"), ("normal",)
    plain = all(mean in forward for mean, _ in modes)
    return Norms(flags(0, *forward), flags(1, *forward), flags(0, *backward), flags(1, *backward), plain)


# ---------------------------------------------------------------------------------------------------------------------
# Which rows of the tables the samples read


@dataclass(frozen=True)
class Lookup:
    """Where the samples of one minibatch find their rows in a table ``(R, K, S, d, ...)``, and the inverse.

    S: groups of samples with statistics of their own, 2 (the views) or 1.
    rows: ``(R * 2 * B, K)``, the row of each sample and field.  samples, starts: for each row in turn, the samples that read it.
    shares: ``(R, K, S, d)``, how often a token occurs in its group.
    """

    rows: Tensor
    samples: Tensor
    starts: Tensor
    shares: Tensor


def lookups(tokens: Tensor, count: int, group: str, dtype: torch.dtype) -> list[Lookup]:
    """One :class:`Lookup` a step, from ``tokens (R, steps, 2, B, K)`` of ``count`` kinds; one sort serves all steps."""
    replicas, steps, views, batch, fields = tokens.shape
    groups = views if group == "view" else 1
    cells = replicas * fields * groups * count
    base = torch.arange(replicas * fields, device=tokens.device).view(replicas, 1, fields) * (groups * count)
    part = torch.arange(views, device=tokens.device).view(views, 1) * (count if groups > 1 else 0)
    rows = tokens.transpose(0, 1) + (base[:, :, None] + part).view(replicas, views, 1, fields)
    rows = rows.reshape(steps, -1, fields)
    samples, starts, counts = (_sorted_here if tokens.device.type == "cpu" else sorted_there)(rows, cells)
    shares = (counts.to(dtype) / (batch * views // groups)).view(steps, replicas, fields, groups, count)
    return [Lookup(*parts) for parts in zip(rows, samples, starts, shares)]


def _sorted_here(rows: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`sorted_there`, many times faster on a processor."""
    steps, count, fields = rows.shape
    offset = torch.arange(steps).view(-1, 1, 1) * cells
    flat = (rows + offset).flatten().numpy()
    ones, pointers = np.ones(len(flat), np.uint8), np.arange(0, len(flat) + 1, fields)
    matrix = sparse.csr_matrix((ones, flat, pointers), shape=(len(pointers) - 1, steps * cells)).tocsc()
    samples = torch.from_numpy(matrix.indices % count).long().view(steps, -1)
    edges = torch.from_numpy(matrix.indptr).long()
    counts = edges.diff().view(steps, cells)
    return samples, edges[:-1].view(steps, cells) - edges[:-1:cells, None], counts


def sorted_there(rows: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """The samples that read each row of a table in turn, where a row's begin, and how many they are; a line a step.

    ``rows (steps, samples, K)`` below ``cells`` to ``(steps, samples * K)`` and twice ``(steps, cells)``; nothing is read back.
    """
    flat = rows.flatten(1)
    samples = flat.argsort(dim=1, stable=True) // rows.shape[2]
    counts = torch.zeros(len(rows), cells, dtype=torch.long, device=rows.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    return samples, counts.cumsum(1) - counts, counts


# ---------------------------------------------------------------------------------------------------------------------
# Forward and backward


def activate(h: Tensor, segments: Segments) -> tuple[Tensor, Tensor | None]:
    """Activations of ``(R, ...)`` and their derivatives, each replica's by its own kind; no derivative where all are linear."""
    if len(segments) == 1:
        return _activation(h, segments[0][0])
    value, slope = torch.empty_like(h), torch.empty_like(h)
    for kind, part in segments:
        value[part], found = _activation(h[part], kind)
        slope[part] = 1.0 if found is None else found
    return value, slope


def _activation(h: Tensor, kind: str) -> tuple[Tensor, Tensor | None]:
    if kind == "linear":
        return h, None
    if kind == "relu":
        return h.clamp_min(0), (h > 0).to(h.dtype)
    if kind == "leaky_relu":
        slope = (h > 0).to(h.dtype).mul_(1 - SLOPE).add_(SLOPE)
        return h * slope, slope
    if kind == "quadratic":
        return h * h, 2 * h
    if kind != "sigmoid":  # a reader's own setting comes here
        raise ValueError(f"activation must be linear, relu, leaky_relu, quadratic or sigmoid, got {kind!r}")
    s = torch.sigmoid(h)
    return s, s * (1 - s)


def _gradient_in_outputs(z: Tensor, segments: Segments, tau: float, factors: dict[str, float]) -> Tensor:
    """Gradient of each replica's loss in its unit outputs ``(R, 2, B, O)``; ``factors``: what to multiply a kind of loss by."""
    if len(segments) == 1:
        kind = segments[0][0]
        return _info_nce(z, tau, factors[kind]) if kind == "info_nce" else _quadratic(z, tau, factors[kind])
    parts = [_gradient_in_outputs(z[part], [(kind, slice(None))], tau, factors) for kind, part in segments]
    return torch.cat(parts)


def _info_nce(z: Tensor, tau: float, factor: float) -> Tensor:
    one, two = z.unbind(1)
    scale = factor / (tau * z.shape[2])
    s = torch.bmm(one, one.mT)
    s.diagonal(dim1=1, dim2=2).copy_((one * two).sum(2))
    p = torch.softmax(s.div_(tau), 2)  # its diagonal is the positive pair's share, whose logit is of the two views
    own = p.diagonal(dim1=1, dim2=2).sub(1).mul_(scale).unsqueeze(2)
    p.diagonal(dim1=1, dim2=2).zero_()
    grad = torch.empty_like(z)
    both = torch.bmm(p + p.mT, one)  # each pair pulls at both of its ends
    torch.add(both.mul_(scale), own * two, out=grad[:, 0])
    torch.mul(own, one, out=grad[:, 1])
    return grad


def _quadratic(z: Tensor, tau: float, factor: float) -> Tensor:
    one, two = z.unbind(1)
    batch, scale = z.shape[2], factor / tau
    far = (one.sum(1, keepdim=True) - one) * (2 * scale / batch**2)
    return torch.stack([far - two * (scale / batch), one * (-scale / batch)], 1)


@dataclass(frozen=True)
class Settings:
    """What does not change from step to step: kinds of activation and loss by replica, norms, temperature."""

    activations: Segments
    losses: Segments
    norms: Norms
    tau: float
    factors: dict[str, float]
    lengths: Tensor | None = None
    """``(R, 1, d, 1)``, of the tokens' vectors; None where all are 1."""
    eps: float = 1e-5


def gradients(weights: Tensor, top: Tensor, look: Lookup, how: Settings) -> tuple[Tensor, Tensor]:
    """Gradients of each replica's loss in ``weights (R, K, d, M)`` and ``top (R, K, M, O)``, for one minibatch."""
    replicas, fields, count, filters = weights.shape
    width = top.shape[3]
    groups, parts = look.shares.shape[2], replicas * fields
    shares, chosen = look.shares, how.norms
    # a token's row of W_k is its filters' responses; statistics are sums over rows, as often as each token occurs
    h = weights if how.lengths is None else weights * how.lengths
    a, slope = activate(h, how.activations)
    mean = torch.bmm(shares.view(parts, groups, count), a.view(parts, count, filters))
    mean = mean.view(replicas, fields, groups, 1, filters)
    centred = a.unsqueeze(2) - mean
    flat = centred.square().view(parts * groups, count, filters)
    variance = torch.bmm(shares.view(-1, 1, count), flat).view_as(mean)
    inverse = torch.rsqrt(variance.add_(how.eps))
    inverse = 1 + chosen.std * (inverse - 1)  # 1 where the deviation is omitted
    unit = centred * inverse  # what BatchNorm's backward pass projects on, also where the mean is not subtracted
    y = unit if chosen.plain else (a.unsqueeze(2) - chosen.mean * mean) * inverse
    y2, top2 = y.view(parts, groups * count, filters), top.view(parts, filters, width)
    table = torch.bmm(y2, top2)
    # a sample's output is the sum of K rows of the table; its loss is a function of that output's direction alone
    f = embedding_bag(look.rows, table.view(-1, width), mode="sum")
    length = torch.linalg.vector_norm(f, dim=1, keepdim=True).clamp_min_(1e-12)
    z = f / length
    grad = _gradient_in_outputs(z.view(replicas, 2, -1, width), how.losses, how.tau, how.factors).view_as(z)
    grad = (grad - (grad * z).sum(1, keepdim=True) * z).div_(length)
    # the same lookup in reverse: a row's gradient is the sum over the samples that read it
    down = embedding_bag(look.samples, grad, look.starts, mode="sum").view(parts, groups * count, width)
    in_top = torch.bmm(y2.mT, down).view_as(top)
    back = torch.bmm(down, top2.mT).view_as(centred).mul_(inverse)
    # Eq. 12 of [tian2021iclr] and its like for the deviation, each if the gradient flows through that statistic
    through_mean = chosen.mean * chosen.through_mean * back.sum(3, keepdim=True)
    through_std = chosen.std * chosen.through_std * (back * y).sum(3, keepdim=True)
    back = back - shares.unsqueeze(-1) * (through_mean + unit * through_std)
    in_weights = back.sum(2) if groups > 1 else back.squeeze(2)
    if slope is not None:
        in_weights = in_weights * slope
    return (in_weights if how.lengths is None else in_weights * how.lengths), in_top


# ---------------------------------------------------------------------------------------------------------------------
# Settings, and training


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


@dataclass
class State:
    """Weights of ``R`` replicas of one shape, ``(R, K, d, M)`` and ``(R, K, M, O)``, with their momenta."""

    weights: Tensor
    top: Tensor
    momenta: tuple[Tensor, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.momenta = (torch.zeros_like(self.weights), torch.zeros_like(self.top))


def initial_state(protocol: TokenRun, seeds: Sequence[int], filters: int, dtype: torch.dtype = torch.float32) -> State:
    r"""PyTorch's initial weights, uniform on :math:`\pm1/\sqrt{\text{inputs}}`, no biases; one stream a seed."""
    streams = Streams(seeds, "weights")
    k, d = protocol.fields, protocol.tokens
    weights = streams.uniform((k, d, filters), torch.float64).mul_(2).sub_(1).div_(d**0.5)
    top = streams.uniform((k, filters, protocol.outputs), torch.float64).mul_(2).sub_(1).div_((k * filters) ** 0.5)
    return State(weights.to(dtype), top.to(dtype))


def world_of(protocol: TokenRun, replicas: Sequence[Replica]) -> World:
    """The worlds of the replicas, by their seeds."""
    cells, seeds = [cell for cell, _ in replicas], [seed for _, seed in replicas]
    return make_world(
        seeds,
        [cell.patterns for cell in cells],
        fields=protocol.fields,
        tokens=protocol.tokens,
        generators=protocol.generators,
        fixed=protocol.fixed,
        zeta=[cell.zeta for cell in cells],
    )


def settings_of(protocol: TokenRun, replicas: Sequence[Replica], world: World, dtype: torch.dtype) -> Settings:
    """Kinds of activation, loss and BatchNorm by replica; it costs least where replicas of a kind lie side by side."""
    cells = [cell for cell, _ in replicas]
    even = bool((world.lengths == 1).all())
    return Settings(
        activations=_segments([cell.activation for cell in cells]),
        losses=_segments([cell.loss for cell in cells]),
        norms=norms([(cell.mean, cell.std) for cell in cells], dtype, world.lengths.device),
        tau=protocol.tau,
        factors={
            loss: printed_factor(loss, protocol.tau, protocol.batch) if protocol.form == "printed" else 1.0
            for loss in REFERENCES
        },
        lengths=None if even else world.lengths.to(dtype)[:, None, :, None],
    )


def _segments(kinds: Sequence[str]) -> Segments:
    runs = [(kind, len(list(same))) for kind, same in itertools.groupby(kinds)]
    ends = list(itertools.accumulate(count for _, count in runs))
    return [(kind, slice(end - count, end)) for (kind, count), end in zip(runs, ends, strict=True)]


BLOCK = 16
"""Minibatches drawn at a time; how many changes nothing, since streams are read in order."""


@torch.no_grad()
def train_tokens(
    protocol: TokenRun,
    replicas: Sequence[Replica],
    *,
    dtype: torch.dtype = torch.float32,
    world: World | None = None,
    device: torch.device | str = "cpu",
) -> tuple[State, World]:
    """Train replicas with one number of filters, side by side; replica ``r`` draws from streams of its seed alone.

    world: in place of the one that the seeds draw, such as a single place of it.
    """
    world, state = _start(protocol, replicas, dtype, world, device)
    for _ in _descent(protocol, replicas, state, world):
        pass
    return state, world


@torch.no_grad()
def train_course(
    protocol: TokenRun, replicas: Sequence[Replica], at: Sequence[int], *, world: World | None = None
) -> tuple[list[State], World]:
    """The same training, looked at on the way: the state after each of ``at`` minibatches, in increasing order, 0 the start."""
    world, state = _start(protocol, replicas, torch.float32, world, "cpu")
    steps = itertools.chain([0], _descent(protocol, replicas, state, world))
    passing = itertools.islice(steps, at[-1] + 1)
    return [State(state.weights.clone(), state.top.clone()) for done in passing if done in at], world


def _start(
    protocol: TokenRun, replicas: Sequence[Replica], dtype: torch.dtype, world: World | None, device: torch.device | str
) -> tuple[World, State]:
    world = world_of(protocol, replicas) if world is None else world
    state = initial_state(protocol, [seed for _, seed in replicas], replicas[0][0].filters, dtype)
    return world.to(device), State(state.weights.to(device), state.top.to(device))


def _descent(protocol: TokenRun, replicas: Sequence[Replica], state: State, world: World) -> Iterator[int]:
    """Change ``state`` in place, and count the minibatches done."""
    dtype = state.weights.dtype
    how, streams = settings_of(protocol, replicas, world, dtype), Streams([seed for _, seed in replicas], "pairs")
    for done in range(0, protocol.steps, BLOCK):
        pairs = draw_pairs(world, streams, protocol.batch, min(BLOCK, protocol.steps - done))
        for number, look in enumerate(lookups(pairs, protocol.tokens, protocol.group, dtype), done + 1):
            grads = gradients(state.weights, state.top, look, how)
            for parameter, momentum, grad in zip((state.weights, state.top), state.momenta, grads, strict=True):
                momentum.mul_(protocol.momentum).add_(grad).add_(parameter, alpha=protocol.decay)
                parameter.sub_(momentum, alpha=protocol.rate)
            yield number


# ---------------------------------------------------------------------------------------------------------------------
# Many cells on all cores

CACHE = 8e6
"""Bytes of the arrays that a step of a chunk of replicas goes through: past this, chunks gain nothing by being longer."""

MEMORY = 4e9
"""The same of a GPU, where a step costs its kernels' launches: one chunk for each number of filters."""


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

    Cells of equal shape train together, like beside like, in chunks that fit a processor's cache.
    processes, parts: see :func:`sslchapters.sweep.sweep`.  What comes back lies on the CPU.
    """
    memory = CACHE if torch.device(device).type == "cpu" else MEMORY
    found = sweep(
        partial(_train_chunk, protocol, keep=keep, device=device),
        sorted(cells, key=lambda cell: (cell.loss, cell.activation, cell.zeta != 1)),
        seeds,
        alike=lambda cell: cell.filters,
        most=lambda cell: round(memory / _bytes(protocol, cell.filters)),
        cost=lambda cell: 4 + cell.filters / 10,
        processes=processes,
        keep=parts,
    )
    return {cell: found[cell] for cell in cells}


def _train_chunk(
    protocol: TokenRun, replicas: Sequence[Replica], keep: bool, device: torch.device | str
) -> dict[str, Tensor]:
    state, world = train_tokens(protocol, replicas, device=device)
    linear = torch.tensor([cell.activation == "linear" for cell, _ in replicas])
    found = scores(state.weights.double(), world, linear)
    kept = {"weights": state.weights, "allowed": world.allowed} if keep else {}
    return {name: values.cpu() for name, values in (found | kept).items()}


def _bytes(protocol: TokenRun, filters: int) -> int:
    """Of one replica: weights with momenta, tables, similarities and outputs, in float32."""
    k, d, b, o = protocol.fields, protocol.tokens, protocol.batch, protocol.outputs
    return 4 * (3 * k * filters * (d + o) + 4 * 2 * k * d * filters + 3 * b * b + 6 * b * o + 2 * k * d * o)


SCORES = ("printed +", "printed -", "released +", "released -", "signless +", "signless -")


def cosines(weights: Tensor) -> Tensor:
    r"""Largest cosine of a filter of the field with each token, :math:`\max_m w_{km}^\top u_a/(\|w_{km}\| \|u_a\|)`: ``(R, K,
    d)``.

    weights: ``(R, K, d, M)``, filters in columns.  Token vectors are orthogonal, so the cosine is an entry over a length; a
    filter that is zero throughout matches nothing.
    """
    lengths = weights.norm(dim=2, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    best: Tensor = (weights / lengths).amax(-1)
    return best


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


@dataclass(frozen=True)
class PatchRun:
    r"""Appendix E.3 of [tian2023], and what it leaves open as the released code has it.

    strength: crops cover ``[1 - strength, 1]`` of the image's area with sides in the ratio ``[1 - strength, 1 + strength]``,
    as in the text for 1/2; 0 takes the image as it is, and the pair is equal.
    """

    beta: int = 5
    classes: int = 10
    outputs: int = 50
    batch: int = 8
    steps: int = 50_000
    rate: float = 0.02
    momentum: float = 0.9
    decay: float = 5e-3
    tau: float = 0.1
    strength: float = 0.0
    activation: str = "relu"

    @property
    def filters(self) -> int:
        """In each field: :math:`M = 10\\beta`, ten for the classes."""
        return self.beta * self.classes


def train_filters(data: Images, protocol: PatchRun, seeds: list[int]) -> Tensor:
    """Filters after training, ``(R, 4, M, S/2, S/2)``; every replica draws images and crops from streams of its seed.

    Images come in passes, each in a random order of its own, as far as whole minibatches go.
    """
    pixels = data.pixels[:, 0]
    side, batch = pixels.shape[-1] // 2, protocol.batch
    starts, order, crops = (Streams(seeds, name) for name in ("weights", "order", "crops"))
    d, m, o = side**2, protocol.filters, protocol.outputs
    w = starts.uniform((4, d, m)).mul_(2).sub_(1).div_(d**0.5).requires_grad_()
    v = starts.uniform((4, m, o)).mul_(2).sub_(1).div_((4 * m) ** 0.5).requires_grad_()
    optimizer = torch.optim.SGD([w, v], protocol.rate, protocol.momentum, weight_decay=protocol.decay)
    a_pass = len(pixels) // batch
    queue = torch.empty(0)
    for step in range(protocol.steps):
        if step % a_pass == 0:
            queue = order.uniform((len(pixels),)).argsort(1)
        at = step % a_pass * batch
        chosen = pixels[queue[:, at : at + batch]]
        if protocol.strength:
            pair = [random_crops(chosen, crops, protocol.strength) for _ in range(2)]
        else:
            pair = [chosen, chosen]
        x = four_fields(torch.stack(pair, 1))
        z = unit_outputs(x, w, v, activation=protocol.activation, mean="normal", std="detach")
        optimizer.zero_grad()
        contrastive_loss(z, "info_nce", "released", protocol.tau).sum().backward()
        optimizer.step()
    filters: Tensor = w.detach().mT.unflatten(-1, (side, side))
    return filters


def roughness(filters: Tensor) -> Tensor:
    """Squared differences of neighbouring pixels over the squares, ``(..., )`` for ``(..., S, S)``: near 4 for noise, small
    for smooth ones.

    Of each filter less its mean; a filter that is constant has 0.
    """
    centred = filters - filters.mean((-2, -1), keepdim=True)
    pairs = centred.diff(dim=-1).square().sum((-2, -1)) + centred.diff(dim=-2).square().sum((-2, -1))
    size = centred.square().sum((-2, -1))
    return torch.where(size > 0, pairs / size.clamp_min(1e-30), 0.0)


def living(filters: Tensor) -> Tensor:
    """Which filters have not faded, ``(R, 4, M)`` for ``(R, 4, M, S, S)``: longer than a twentieth of the replica's longest.

    A ReLU filter that no input opens any more gets no gradient, and weight decay takes it to zero.
    """
    lengths = filters.flatten(-2).norm(dim=-1)
    alive: Tensor = lengths > 0.05 * lengths.amax((-2, -1), keepdim=True)
    return alive


def mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of ``values (R, 4, M)`` over the ``chosen`` of all fields, ``(R,)``."""
    total: Tensor = (values * chosen).sum((1, 2)) / chosen.sum((1, 2))
    return total


def likeness(filters: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Mean absolute cosine of two different filters of a field, ``(R,)`` for ``(R, 4, M, S, S)``: 1 if all are alike.

    chosen: which filters count, ``(R, 4, M)``; all if not given.  0 where no field has two.
    """
    flat = torch.nn.functional.normalize(filters.flatten(-2), dim=-1)
    kept = torch.ones_like(flat[..., 0]) if chosen is None else chosen.to(flat)
    pairs = kept[..., None] * kept[..., None, :] * (1 - torch.eye(flat.shape[-2]).to(flat))
    cosines = (flat @ flat.mT).abs()
    total: Tensor = (cosines * pairs).sum((1, 2, 3)) / pairs.sum((1, 2, 3)).clamp_min(1)
    return total
