r"""Losses of a whole batch's embeddings, as people train with them today, and :data:`LOSSES`, all losses by name.

``z (..., N, V, D)`` embeds ``V`` views of each of ``N`` samples; the leading dimensions are replicas, and every loss gives one
value for each, ``(...,)``.  Those between two towers, or of two views by definition, ask for ``V = 2``.

All but barlow_twins and vicreg see the outputs through their inner products :math:`z_a^\top z_b` alone: no rotation of the outputs
and no coordinate that is zero changes them.  The entropies among them are :func:`sslbook.losses.pairs.info_nce` of half squared
distances, which for outputs divided by their norms are one minus the cosines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere
from sslbook.losses import pairs
from sslbook.losses.pairs import cross_distances, unit


@anywhere
def info_nce(
    z: Tensor,
    *,
    temperature: float,
    normalize: bool = True,
    classes: Tensor | None = None,
    without_positives: bool = False,
) -> Tensor:
    r""":math:`\mathrm{mean}_{a, p} \; r_{ap}/\tau + \log \sum_{b \ne a} e^{-r_{ab}/\tau}`, ``p`` the other views of ``a``'s sample.

    Each of the ``N V`` views is an anchor, all ``N V - 1`` others stand in its denominator [chen2020simclr].  For ``V = 2`` it is
    ``contrastive(z1, z2, temperature=...)`` of :mod:`sslbook.losses.pairs`, SimCLR's loss; ``normalize=False`` is that function's,
    too: half squared distances of the outputs as they are, instead of divided by their norms.

    classes: of the samples, ``(N,)`` or ``(..., N)``; by default, each is its own.  The other views of an anchor's class are its
    positives.  without_positives: the sum over ``b`` leaves them out.
    """
    require_views(z)
    classes = torch.arange(z.shape[-3], device=z.device) if classes is None else classes
    rows = (unit(z) if normalize else z).flatten(-3, -2)
    rows = rows - rows.detach().mean(-2, keepdim=True)  # changes no distance: see pair_distances
    r = cross_distances(rows, rows)
    of_rows = classes.repeat_interleave(z.shape[-2], dim=-1)
    same = of_rows[..., :, None] == of_rows[..., None, :]
    other = ~torch.eye(same.shape[-1], dtype=torch.bool, device=z.device)
    positive, against = same & other, ~same if without_positives else other
    share = positive.to(r.dtype) / positive.sum(-1, keepdim=True)
    return pairs.info_nce((share * r).sum(-1), r.masked_fill(~against, math.inf), temperature, epsilon=0).mean(-1)


def supervised_contrastive(z: Tensor, labels: Tensor, *, temperature: float, normalize: bool = True) -> Tensor:
    r"""info_nce whose positives are all views of all samples of the anchor's class: :math:`L_\text{out}` of [khosla2020].

    labels: classes from 0 on, ``(N,)`` or ``(..., N)``; one class a sample is :func:`info_nce`.  A label below 0 is
    none, and leaves NaN.  The mean over an anchor's positives stands outside of the logarithm.  The paper adds up the anchors;
    here, as in its released code, it is their mean.  Raises ValueError for one sample or one view.
    """
    loss = info_nce(z, temperature=temperature, normalize=normalize, classes=labels)
    return loss.masked_fill((labels.double() < 0).any(-1), math.nan)


def decoupled(z: Tensor, *, temperature: float, normalize: bool = True) -> Tensor:
    r""":math:`\mathrm{mean}_{a, p} \; r_{ap}/\tau + \log \sum_b e^{-r_{ab}/\tau}`, ``b`` the views of other samples than ``a``'s.

    That is :func:`info_nce` without the positives in the denominator, that of distances with ``epsilon = 0`` (DCL, [yeh2022]).
    """
    return info_nce(z, temperature=temperature, normalize=normalize, without_positives=True)


@anywhere
def clip(z: Tensor, *, temperature: float) -> Tensor:
    r"""The cross-entropies of the ``(N, N)`` cosines of tower 0 and tower 1 over :math:`\tau`, by rows and by columns: their mean.

    An anchor's negatives are the other tower's alone; products within a tower don't count.  ``V = 2``; CLIP [radford2021] learns
    its temperature, which is given here.
    """
    require_views(z, two=True)
    first, second = unit(z).unbind(-2)
    r = 1 - first @ second.mT
    itself = r.diagonal(dim1=-2, dim2=-1)
    rows, columns = (pairs.info_nce(itself, each, temperature, epsilon=0).mean(-1) for each in (r, r.mT))
    return 0.5 * (rows + columns)


@anywhere
def sigmoid_pairs(z: Tensor, *, scale: float, bias: float) -> Tensor:
    r""":math:`-\frac1N \sum_{ij} \log \sigma(y_{ij} (\text{scale} \cos_{ij} + \text{bias}))`, :math:`y_{ii} = 1`, -1 elsewhere.

    The cosines are those of tower 0 with tower 1; ``V = 2``.  The sum over all ``N^2`` pairs is divided by ``N``, as printed.
    SigLIP [zhai2023] learns both numbers, from 10 and -10; here they are given.  Each pair has a term of its own: no softmax
    compares it with the others of its row.
    """
    require_views(z, two=True)
    first, second = unit(z).unbind(-2)
    logits = scale * (first @ second.mT) + bias
    label = 2 * torch.eye(logits.shape[-1], dtype=z.dtype, device=z.device) - 1
    return -F.logsigmoid(label * logits).sum(-1).mean(-1)


@anywhere
def spectral_contrastive(z: Tensor) -> Tensor:
    r""":math:`-2\, \mathrm{mean}_+ \, z_a^\top z_b + \mathrm{mean}_- (z_a^\top z_b)^2`, of the outputs as they are [haochen2021].

    The first mean is over the ``N V (V - 1)`` ordered pairs of two views of one sample, the second over the ``N (N - 1) V^2`` of
    views, also equal ones, of two samples: each is unbiased.  (The released code has the negatives of view 0 with view 1 alone.)
    """
    require_views(z)
    rows = z.flatten(-3, -2)
    gram = rows @ rows.mT
    sample = torch.arange(z.shape[-3], device=z.device).repeat_interleave(z.shape[-2])
    negative = sample[:, None] != sample
    positive = ~negative & ~torch.eye(len(sample), dtype=torch.bool, device=z.device)
    # means over a mask, without a sum that half precision couldn't hold
    attraction = (gram * positive).mean((-2, -1)) / positive.double().mean().to(gram.dtype)
    repulsion = (gram.square() * negative).mean((-2, -1)) / negative.double().mean().to(gram.dtype)
    return repulsion - 2 * attraction


@anywhere
def barlow_twins(z: Tensor, *, weight: float) -> Tensor:
    r""":math:`\sum_i (1 - C_{ii})^2 + \text{weight} \sum_{i \ne j} C_{ij}^2`: coordinate ``i`` of view 0 with ``j`` of view 1.

    ``C (D, D)`` are correlations over the batch, of coordinates less their mean and divided by their deviation [zbontar2021]; as in
    the released code, 1e-5 is added to the variance, so that a coordinate that is constant correlates with nothing.  ``V = 2``.
    """
    require_views(z, two=True)
    centred = z - z.mean(-3, keepdim=True)
    centred = centred - centred.mean(-3, keepdim=True)  # what is constant keeps nothing of its mean's rounding
    # a quotient, since half precision can't hold the derivative of a reciprocal root at 1e-5
    first, second = (centred / (centred.square().mean(-3, keepdim=True) + 1e-5).sqrt()).unbind(-2)
    correlation = first.mT @ second / z.shape[-3]
    itself = 1 - correlation.diagonal(dim1=-2, dim2=-1)
    between = ~torch.eye(z.shape[-1], dtype=torch.bool, device=z.device)
    return itself.square().sum(-1) + weight * (correlation.square() * between).sum((-2, -1))


@anywhere
def vicreg(z: Tensor, *, variance: float = 25.0, invariance: float = 25.0, covariance: float = 1.0) -> Tensor:
    r"""Three terms with their weights, of view 0 and view 1 (``V = 2``), as in the released code of [bardes2022]:

    - invariance: the mean over samples and coordinates of the two views' squared differences
    - variance: the mean over views and coordinates of :math:`\max(0, 1 - \sqrt{\mathrm{Var} + 10^{-4}})`
    - covariance: :math:`\frac1D \sum_{i \ne j} \mathrm{Cov}_{ij}^2`, added up over the two views

    with variances and covariances over ``N - 1``.  (As printed, the first is not divided by ``D``, and the second adds up views.)
    """
    require_views(z, two=True)
    views = z.movedim(-2, 0)
    centred = views - views.mean(-2, keepdim=True)
    products = centred.mT @ centred / (z.shape[-3] - 1)
    deviation = (products.diagonal(dim1=-2, dim2=-1) + 1e-4).sqrt()
    between = ~torch.eye(z.shape[-1], dtype=torch.bool, device=z.device)
    return (
        invariance * (views[0] - views[1]).square().mean((-2, -1))
        + variance * F.relu(1 - deviation).mean(-1).mean(0)
        + covariance * (products.square() * between).sum((-2, -1)).sum(0) / z.shape[-1]
    )


def require_views(z: Tensor, *, two: bool = False) -> None:
    """Raise ValueError unless ``z`` is ``(..., N, V, D)`` with two samples and two views at least, to tell apart.

    two: unless it has two views exactly.  Of one sample, or one view, each of these losses is a constant or NaN.
    """
    if z.ndim < 3 or z.shape[-3] < 2 or z.shape[-2] < 2 or (two and z.shape[-2] != 2):
        views = "V = 2 views" if two else "V >= 2 views"
        raise ValueError(f"z must have shape (..., N, V, D) with N >= 2 samples and {views}, got {tuple(z.shape)}")


def of_two_views(z: Tensor, *, loss: str, **params: Any) -> Tensor:
    """Return :func:`sslbook.losses.pairs.contrastive` of ``z (..., N, 2, D)``, with its keywords; a value a replica, ``(...,)``."""
    require_views(z, two=True)
    first, second = z.unbind(-2)
    return pairs.contrastive(first, second, loss, **params)


WHOLE = (
    info_nce,
    supervised_contrastive,
    decoupled,
    clip,
    sigmoid_pairs,
    spectral_contrastive,
    barlow_twins,
    vicreg,
)
LOSSES: dict[str, Callable[..., Tensor]] = {name: partial(of_two_views, loss=name) for name in pairs.OF_DISTANCES}
LOSSES |= {loss.__name__: loss for loss in WHOLE}
"""All losses of the library by name, functions of ``z (..., N, V, D)`` and of their own keywords: the operators' registry."""
