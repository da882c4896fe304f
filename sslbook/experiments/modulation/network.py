r"""One step of the two-layer network on one-hot inputs, computed on tables of tokens instead of samples.

A field sees one of ``d`` tokens.  So its activations are a table of ``d`` rows, BatchNorm's statistics are sums over that
table weighted by how often each token occurs, and a sample's output is a sum of ``K`` rows of the table
:math:`T_k = \mathrm{BN}[h(W_k)]\,V_k`, one looked up in each field.  The backward pass is the same in reverse: gradients of
samples are summed token by token.  Where the batch is larger than ``d`` this saves most of the arithmetic, and nothing is
approximated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import embedding_bag

from sslbook.experiments.modulation.reference import SLOPE
from sslbook.runtime.arguments import require_one_of

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

    for pair in modes:
        for name, mode in zip(("mean", "std"), pair, strict=True):
            require_one_of(name, mode, ("normal", "detach", "omit"))

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
