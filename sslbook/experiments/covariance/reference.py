r"""Expectations over a finite population, by enumeration: the independent answer for Theorems 3 and 4 and Corollary 1.

``N`` samples have ``V`` equally likely views each.  A *tuple* is an anchor view, a positive view of the same sample and ``H``
negative views; :func:`all_tuples` lists every one of them, :func:`random_tuples` draws some.  The gradient of the mean loss
over tuples is then plain autograd on the network's outputs: no connection, no covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sslbook.losses import pairs
from sslbook.operator.layer import find_layer

TupleLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``loss(r_pos (T,), r_neg (T, H), r_clean (T, H)) -> (T,)``; ``r_clean`` are distances between un-augmented samples."""


@dataclass(frozen=True)
class Tuples:
    """Indices into the flattened ``N V`` views: ``anchor (T,)``, ``positive (T,)``, ``negative (T, H)``; ``views`` is V."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    views: int

    def __len__(self) -> int:
        return len(self.anchor)


def all_tuples(samples: int, views: int, negatives: int = 1, *, distinct: bool = False) -> Tuples:
    """Every tuple, ``N V V (N V)^H`` of them; ``distinct`` leaves out negatives of the anchor's own sample."""
    count = samples * views * views * (samples * views) ** negatives
    if count > 20_000_000:
        raise ValueError(f"{count:,} tuples are too many to enumerate; draw them with random_tuples")
    axes = [torch.arange(samples), torch.arange(views), torch.arange(views)]
    grid = torch.cartesian_prod(*axes, *[torch.arange(samples * views)] * negatives)
    if distinct:
        grid = grid[(grid[:, 3:] // views != grid[:, :1]).all(1)]
    sample, first, second = grid[:, 0], grid[:, 1], grid[:, 2]
    return Tuples(sample * views + first, sample * views + second, grid[:, 3:], views)


def random_tuples(samples: int, views: int, count: int, *, seed: int = 0) -> Tuples:
    """``count`` independent tuples: sample, two views and one negative uniform and with replacement."""
    draw = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=draw)

    sample = integers(samples, count) * views
    return Tuples(
        sample + integers(views, count),
        sample + integers(views, count),
        integers(samples * views, count, 1),
        views,
    )


def expected_gradient(
    net: nn.Module,
    layer: str,
    views: Tensor,
    loss: TupleLoss,
    tuples: Tuples,
    *,
    clean: Tensor | None = None,
    both: bool = False,
    normalize: bool = False,
) -> Tensor:
    r"""Autograd gradient, in the layer's weight, of the mean loss over ``tuples``; the weight's shape.

    both: back-propagate into the anchor *and* its partners (what SimCLR does); otherwise into the anchor's tower only (the paper's
    Lemma 2).  clean: un-augmented samples ``(N, ...)`` for ``r_clean``, always without gradient; the first views unless given.
    """
    name, module = find_layer(net, layer)
    weight = module.weight.detach().clone().requires_grad_(True)
    params = {key: p.detach() for key, p in net.named_parameters()} | {f"{name}.weight".lstrip("."): weight}

    def outputs(x: Tensor) -> Tensor:
        f: Tensor = functional_call(net, params, (x,)).flatten(1)
        return f / f.norm(dim=1, keepdim=True) if normalize else f

    f, fixed = outputs(views.flatten(0, 1)), outputs(views[:, 0] if clean is None else clean).detach()
    anchor, partner = f[tuples.anchor], f if both else f.detach()
    r_pos = pairs.half_squared_distance(anchor, partner[tuples.positive])
    r_neg = pairs.half_squared_distance(anchor[:, None], partner[tuples.negative])
    mine, theirs = tuples.anchor // tuples.views, tuples.negative // tuples.views
    r_clean = pairs.half_squared_distance(fixed[mine][:, None], fixed[theirs])
    (gradient,) = torch.autograd.grad(loss(r_pos, r_neg, r_clean).mean(), weight)
    return gradient


def mean_estimate(k: Tensor, views: int) -> Tensor:
    r"""The operator that is estimated from two images with ``views`` views each, its mean over all draws, ``(n, n)``.

    ``k (N, V, n, n_L)`` are the connections.  Images and views are drawn with replacement, :math:`m_i` is the mean of the
    connections of image i's drawn views, and the estimate is the covariance of the two with Bessel's correction,
    :math:`\frac12 (m_1 - m_2)(m_1 - m_2)^T`.  Raises ValueError for more than 10,000 means :math:`m`.
    """
    samples, count = k.shape[:2]
    if samples * count**views > 10_000:
        raise ValueError(f"{samples * count**views:,} means of views are too many to pair with each other")
    picks = torch.cartesian_prod(*[torch.arange(count)] * views).reshape(-1, views)
    means = k[:, picks].mean(2).flatten(0, 1)  # (N V^views, n, n_L)
    total = k.new_zeros(k.shape[2], k.shape[2])
    for mean in means:  # one at a time: a table of all pairs would take N^2 V^(2 views) matrices
        gaps = (mean - means).movedim(1, 0).flatten(1)
        total += gaps @ gaps.T
    return total / (2 * len(means) ** 2)


def simple_loss(beta: float = 0.0) -> TupleLoss:
    r""":math:`L^\beta_{simp} = (1 + \beta) r_+ - r_-`."""
    return lambda p, n, _: pairs.simple(p, n, beta=beta)


def triplet_loss(tau: float, margin: float = 0.0) -> TupleLoss:
    r""":math:`L^\tau_{tri}`."""
    return lambda p, n, _: pairs.soft_triplet(p, n, temperature=tau, margin=margin)


def nce_loss(tau: float) -> TupleLoss:
    r""":math:`L^\tau_{nce}`."""
    return lambda p, n, _: pairs.info_nce(p, n, temperature=tau)


def exact_loss(tau: float) -> TupleLoss:
    r""":math:`L^{\tau,exact}` (Eq. 7): weights from the un-augmented distances, without gradient."""
    return lambda p, n, c: pairs.exact(p, n, c, temperature=tau)
