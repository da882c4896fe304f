r"""Losses that look at each coordinate of the outputs by itself: one table of weights for each.

Such a loss does not change when the sign of a coordinate is flipped in all views, so that it is a function of the Gram matrices
:math:`G^{(d)} = \mathbf z_d \mathbf z_d^\top` of the single coordinates, ``(D, 2N, 2N)``, rows in the order of the flattened views.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sslbook import batch_losses
from sslbook.chapters.operators_today.identities import gap, instances, step
from sslbook.connection import open_layer, vec
from sslbook.gaps import Gaps, relative_gap, worst


def vicreg(grams: Tensor, variance: float = 25.0, invariance: float = 25.0, covariance: float = 1.0) -> Tensor:
    r"""`~sslbook.batch_losses.vicreg` of the coordinates' Gram matrices.

    Its sum of squared covariances is :math:`\|H G H\|_F^2 / (N - 1)^2` less the squared variances, ``H`` the centring: beside the
    variances it sees inner products alone.
    """
    n = grams.shape[1] // 2
    apart = _trace(_block(grams, 0, 0)) + _trace(_block(grams, 1, 1)) - 2 * _trace(_block(grams, 0, 1))
    loss: Tensor = invariance * apart.mean() / n
    for view in (0, 1):
        centred = _centred(_block(grams, view, view))
        spread = _trace(centred) / (n - 1)
        between = centred.sum(0).square().sum() / (n - 1) ** 2 - spread.square().sum()
        hinge = torch.relu(1 - (spread + 1e-4).sqrt()).mean()
        loss = loss + variance / 2 * hinge + covariance / len(grams) * between
    return loss


def barlow_twins(grams: Tensor, weight: float) -> Tensor:
    r"""`~sslbook.batch_losses.barlow_twins` of the coordinates' Gram matrices, each of which is divided by its own variance."""
    n = grams.shape[1] // 2
    one, two, cross = (_centred(_block(grams, *views)) for views in ((0, 0), (1, 1), (0, 1)))
    first, second = (1 / (_trace(view) / n + 1e-5) for view in (one, two))
    own = _trace(cross) / n * (first * second).sqrt()
    whole = (torch.tensordot(first, one, 1) * torch.tensordot(second, two, 1)).sum() / n**2
    loss: Tensor = (1 - own).square().sum() + weight * (whole - own.square().sum())
    return loss


LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "vicreg": (vicreg, batch_losses.vicreg),
    "barlow_twins": (partial(barlow_twins, weight=0.01), partial(batch_losses.barlow_twins, weight=0.01)),
}
"""Each as a function of the coordinates' Gram matrices, and as it is used, of outputs ``(N, 2, D)``."""


def tables(loss: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    r""":math:`C^{(d)} = -2\, \partial \ell / \partial G^{(d)}`, symmetrised: ``(D, 2N, 2N)`` of outputs ``(N, 2, D)``."""
    columns = outputs.detach().flatten(0, 1).T
    grams = (columns[:, :, None] * columns[:, None]).requires_grad_()
    (slope,) = torch.autograd.grad(loss(grams), grams)
    return -(slope + slope.mT)


def table_gaps(name: str, networks: int = 20, seed: int = 0) -> Gaps:
    r"""The step of a loss of :data:`LOSSES` against :math:`\sum_d \sum_{ab} C^{(d)}_{ab} K^{(d)}_a K^{(d)\top}_b`.

    operator: on the weights, in networks of degree 1.  Broken: the mean of all tables for each coordinate, which is the nearest
    that a loss of inner products comes; the next coordinate's; the matrix between different coordinates counted too.
    A network whose outputs lie within a hundredth of one line is passed over: terms of the step cancel there, and digits with them.
    """
    of_grams, loss = LOSSES[name]
    rows: list[Gaps] = []
    for net, layer, views in instances(networks, seed):
        opened = open_layer(net, layer, views.flatten(0, 1))
        longest, next_to_it, *_ = torch.linalg.svdvals(opened.output)
        if next_to_it < longest / 100:
            continue
        truth = step(net, layer, views, loss)
        matrices, columns = tables(of_grams, opened.output.unflatten(0, views.shape[:2])), opened.output.T
        tried = {
            "step": matrices,
            "broken: one table for all": matrices.mean(0).expand_as(matrices),
            "broken: another coordinate's": matrices.roll(1, 0),
        }
        k = opened.connections()
        op = torch.einsum("and,dab,bmd->nm", k, matrices, k)
        row = {
            "value": gap(of_grams(columns[:, :, None] * columns[:, None]), loss(opened.output.unflatten(0, (-1, 2)))),
            "symmetric": gap(op, op.T),
        }
        for what, each in tried.items():
            row[what] = gap(opened.vjp((each @ columns[:, :, None])[..., 0].T.contiguous()), truth)
        if relative_gap(opened.jvp(opened.weight), opened.output) < 1e-10:
            row["operator"] = gap(op @ vec(opened.weight), vec(truth))
            mixed = torch.einsum("and,dab,bmo->nm", k, matrices, k) @ vec(opened.weight)
            row["broken: coordinates mixed"] = gap(mixed, vec(truth))
        rows.append(row)
    return worst(rows)


def _block(grams: Tensor, one: int, other: int) -> Tensor:
    """Between two views: ``(D, N, N)``."""
    return grams[:, one::2, other::2]


def _centred(blocks: Tensor) -> Tensor:
    return blocks - blocks.mean(1, keepdim=True) - blocks.mean(2, keepdim=True) + blocks.mean((1, 2), keepdim=True)


def _trace(blocks: Tensor) -> Tensor:
    return blocks.diagonal(dim1=1, dim2=2).sum(1)
