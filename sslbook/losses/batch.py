r"""Losses of a whole batch's embeddings, as people train with them today.

``z (..., N, V, D)`` embeds ``V`` views of each of ``N`` samples; the leading dimensions are replicas, and every loss gives one
value for each, ``(...,)``.  Those between two towers, or of two views by definition, ask for ``V = 2``.

=====================  ===================================================  =======================================
loss                   an anchor's positives and negatives                  source
=====================  ===================================================  =======================================
info_nce               views of its sample; views of all other samples      SimCLR [chen2020simclr]
supervised_contrastive views of its class; views of all other classes       [khosla2020]
decoupled              as info_nce, positives not in the denominator         DCL [yeh2022]
clip                   the other tower's view of its sample, and of others  [radford2021]
sigmoid_pairs          the same, each pair a decision of its own            SigLIP [zhai2023]
spectral_contrastive   views of its sample; views of all other samples      [haochen2021]
barlow_twins           none: correlations of the output's coordinates       [zbontar2021]
vicreg                 none: variances and covariances of the coordinates   [bardes2022]
=====================  ===================================================  =======================================

All but the last two see the outputs through their inner products :math:`z_a^\top z_b` alone: no rotation of the outputs and no
coordinate that is zero changes them.  The entropies among them are :func:`sslbook.losses.pairs.info_nce` of half squared distances,
which for outputs divided by their norms are one minus the cosines.

SimSiam [chen2021] is a quarter of what the objective ``byol`` of :mod:`sslbook.training.objectives` is without a target tower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere
from sslbook._check import require_classes, require_floating, require_number
from sslbook.losses import pairs
from sslbook.losses.pairs import cross_distances, octave, unit

# ------------------------------------------------------------------------- entropies of distances


@anywhere
def info_nce(z: Tensor, *, temperature: float, normalize: bool = True) -> Tensor:
    r""":math:`\mathrm{mean}_{a, p} \; r_{ap}/\tau + \log \sum_{b \ne a} e^{-r_{ab}/\tau}`, ``p`` the other views of ``a``'s sample.

    Each of the ``N V`` views is an anchor, all ``N V - 1`` others stand in its denominator.  For ``V = 2`` it is
    ``contrastive(z1, z2, temperature=...)`` of :mod:`sslbook.losses.pairs`, SimCLR's loss; ``normalize=False`` is that function's,
    too: half squared distances of the outputs as they are.
    """
    same = _same_sample(z)
    return _entropy(_distances(z, normalize), same, torch.ones_like(same), temperature)


@anywhere
def supervised_contrastive(z: Tensor, labels: Tensor, *, temperature: float, normalize: bool = True) -> Tensor:
    r"""info_nce whose positives are all views of all samples of the anchor's class: :math:`L_\text{out}` of [khosla2020].

    labels: classes from 0 on, ``(N,)`` or ``(..., N)``; one class a sample is :func:`info_nce`.  The mean over an anchor's
    positives stands outside of the logarithm.  The paper adds up the anchors; here, as in its released code, it is their mean.  A
    label below 0 is none: refused on a processor, and NaN on a GPU, which would have to wait for a look.
    """
    _require_views(z)
    require_classes("labels", labels, look=z.device.type == "cpu")
    if labels.shape not in (z.shape[-3:-2], z.shape[:-2]):
        asked = f"{tuple(z.shape[-3:-2])} or {tuple(z.shape[:-2])}"
        raise ValueError(f"labels must be one a sample, {asked}, got {tuple(labels.shape)}")
    labels = labels.long()  # PyTorch compares few of the unsigned types
    of_rows = labels.repeat_interleave(z.shape[-2], dim=-1)
    same = of_rows[..., :, None] == of_rows[..., None, :]
    value = _entropy(_distances(z, normalize), same, torch.ones_like(same), temperature)
    return value.masked_fill((labels < 0).any(-1), math.nan)


@anywhere
def decoupled(z: Tensor, *, temperature: float, normalize: bool = True) -> Tensor:
    r""":math:`\mathrm{mean}_{a, p} \; r_{ap}/\tau + \log \sum_b e^{-r_{ab}/\tau}`, ``b`` the views of other samples than ``a``'s.

    That is :func:`info_nce` without the positives in the denominator, that of distances with ``epsilon = 0``; it may be negative.
    """
    same = _same_sample(z)
    return _entropy(_distances(z, normalize), same, ~same, temperature)


@anywhere
def clip(z: Tensor, *, temperature: float) -> Tensor:
    r"""The cross-entropies of the ``(N, N)`` cosines of tower 0 and tower 1 over :math:`\tau`, by rows and by columns: their mean.

    An anchor's negatives are the other tower's alone; products within a tower don't count.  ``V = 2``; CLIP learns its
    temperature, which is given here.
    """
    r = 1 - _cosines(z)
    same = torch.eye(r.shape[-1], dtype=torch.bool, device=r.device)
    everything = torch.ones_like(same)
    rows, columns = (_cross_entropy(each, same, everything, temperature) for each in (r, r.mT))
    return 0.5 * (rows + columns)


def _entropy(r: Tensor, positive: Tensor, against: Tensor, temperature: float) -> Tensor:
    """`_cross_entropy` without the pairs of a view with itself."""
    other = ~torch.eye(r.shape[-1], dtype=torch.bool, device=r.device)
    return _cross_entropy(r, positive & other, against & other, temperature)


def _cross_entropy(r: Tensor, positive: Tensor, against: Tensor, temperature: float) -> Tensor:
    """Mean over the rows of distances ``(..., A, B)``, with masks of its shape: who attracts, and who is in the denominator."""
    share = positive.to(r.dtype) / positive.sum(-1, keepdim=True)
    return pairs.info_nce((share * r).sum(-1), r.masked_fill(~against, math.inf), temperature, epsilon=0).mean(-1)


# --------------------------------------------------------------------- other functions of products


@anywhere
def sigmoid_pairs(z: Tensor, *, scale: float, bias: float) -> Tensor:
    r""":math:`-\frac1N \sum_{ij} \log \sigma(y_{ij} (\text{scale} \cos_{ij} + \text{bias}))`, :math:`y_{ii} = 1`, -1 elsewhere.

    The cosines are those of tower 0 with tower 1; ``V = 2``.  The sum over all ``N^2`` pairs is divided by ``N``, as printed.
    SigLIP learns both numbers, from 10 and -10; here they are given.
    """
    scale = require_number("scale", scale)
    bias = require_number("bias", bias)
    logits = scale * _cosines(z) + bias
    label = 2 * torch.eye(logits.shape[-1], dtype=z.dtype, device=z.device) - 1
    return -F.logsigmoid(label * logits).sum(-1).mean(-1)


@anywhere
def spectral_contrastive(z: Tensor) -> Tensor:
    r""":math:`-2\, \mathrm{mean}_+ \, z_a^\top z_b + \mathrm{mean}_- (z_a^\top z_b)^2`, of the outputs as they are.

    The first mean is over the ``N V (V - 1)`` ordered pairs of two views of one sample, the second over the ``N (N - 1) V^2`` of
    views, also equal ones, of two samples: each is unbiased.  (The released code has the negatives of view 0 with view 1 alone.)
    """
    same = _same_sample(z)
    rows = z.flatten(-3, -2)
    gram = rows @ rows.mT
    itself = torch.eye(len(same), dtype=torch.bool, device=z.device)
    return _mean(gram.square(), ~same) - 2 * _mean(gram, same & ~itself)


def _mean(pairs: Tensor, chosen: Tensor) -> Tensor:
    """Mean of ``(..., M, M)`` over the pairs of a mask ``(M, M)``; without a sum that half precision couldn't hold."""
    return (pairs * chosen).mean((-2, -1)) / chosen.double().mean().to(pairs.dtype)


# --------------------------------------------------------------- functions of the coordinates, too


@anywhere
def barlow_twins(z: Tensor, *, weight: float) -> Tensor:
    r""":math:`\sum_i (1 - C_{ii})^2 + \text{weight} \sum_{i \ne j} C_{ij}^2`: coordinate ``i`` of view 0 with ``j`` of view 1.

    ``C (D, D)`` are correlations over the batch, of coordinates less their mean and divided by their deviation; as in the released
    code, 1e-5 is added to the variance, so that a coordinate that is constant correlates with nothing.  ``V = 2``.
    """
    _require_two_views(z)
    weight = require_number("weight", weight, least=0)
    centred = z - z.mean(-3, keepdim=True)
    centred = centred - centred.mean(-3, keepdim=True)  # what is constant keeps nothing of its mean's rounding
    size = octave(centred.abs().clamp(min=1), -3)  # squares of 1e20 overflow
    centred = centred / size
    # a quotient, since half precision can't hold the derivative of a reciprocal root at 1e-5
    first, second = (centred / (centred.square().mean(-3, keepdim=True) + 1e-5 / size / size).sqrt()).unbind(-2)
    correlation = first.mT @ second / z.shape[-3]
    own = 1 - correlation.diagonal(dim1=-2, dim2=-1)
    return own.square().sum(-1) + weight * _between_coordinates(correlation)


@anywhere
def vicreg(z: Tensor, *, variance: float = 25.0, invariance: float = 25.0, covariance: float = 1.0) -> Tensor:
    r"""Three terms with their weights, of view 0 and view 1 (``V = 2``), as in the released code:

    - invariance: the mean over samples and coordinates of the two views' squared differences
    - variance: the mean over views and coordinates of :math:`\max(0, 1 - \sqrt{\mathrm{Var} + 10^{-4}})`
    - covariance: :math:`\frac1D \sum_{i \ne j} \mathrm{Cov}_{ij}^2`, added up over the two views

    with variances and covariances over ``N - 1``.  (As printed, the first is not divided by ``D``, and the second adds up views.)
    """
    _require_two_views(z)
    given = {"variance": variance, "invariance": invariance, "covariance": covariance}
    variance, invariance, covariance = (require_number(name, number, least=0) for name, number in given.items())
    views = z.movedim(-2, 0)
    centred = views - views.mean(-2, keepdim=True)
    products = centred.mT @ centred / (z.shape[-3] - 1)
    deviation = (products.diagonal(dim1=-2, dim2=-1) + 1e-4).sqrt()
    return (
        invariance * (views[0] - views[1]).square().mean((-2, -1))
        + variance * F.relu(1 - deviation).mean(-1).mean(0)
        + covariance * _between_coordinates(products).sum(0) / z.shape[-1]
    )


def _between_coordinates(matrix: Tensor) -> Tensor:
    """Sum of the squares off the diagonal of ``(..., D, D)``."""
    return (matrix.square() * ~torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device)).sum((-2, -1))


# ------------------------------------------------------------------------------------- the registry


class BatchLoss(NamedTuple):
    """A loss of a batch, and what it promises.

    inner_products: it sees the outputs through their inner products alone.  two_views: it is of ``V = 2`` alone.
    """

    value: Callable[..., Tensor]
    inner_products: bool = True
    two_views: bool = False


BATCH_LOSSES = {
    "info_nce": BatchLoss(info_nce),
    "supervised_contrastive": BatchLoss(supervised_contrastive),
    "decoupled": BatchLoss(decoupled),
    "clip": BatchLoss(clip, two_views=True),
    "sigmoid_pairs": BatchLoss(sigmoid_pairs, two_views=True),
    "spectral_contrastive": BatchLoss(spectral_contrastive),
    "barlow_twins": BatchLoss(barlow_twins, inner_products=False, two_views=True),
    "vicreg": BatchLoss(vicreg, inner_products=False, two_views=True),
}
"""The losses of a batch by name; ``tests/losses/test_batch_losses_contracts.py`` holds each to what all promise."""


# ------------------------------------------------------------------------------- views and their pairs


def _distances(z: Tensor, normalize: bool) -> Tensor:
    """Half squared distances of all ``M = N V`` views of a batch, ``(..., M, M)``, sample by sample."""
    rows = (unit(z) if normalize else z).flatten(-3, -2)
    rows = rows - rows.detach().mean(-2, keepdim=True)  # no distance changes; see pair_distances
    return cross_distances(rows, rows)


def _cosines(z: Tensor) -> Tensor:
    """Of view 0 with view 1: ``(..., N, N)``."""
    _require_two_views(z)
    first, second = unit(z).unbind(-2)
    return first @ second.mT


def _same_sample(z: Tensor) -> Tensor:
    """Which of the ``M = N V`` views are of one sample: ``(M, M)``."""
    _require_views(z)
    sample = torch.arange(z.shape[-3], device=z.device).repeat_interleave(z.shape[-2])
    return sample[:, None] == sample


def _require_views(z: Tensor) -> None:
    require_floating(z=z)
    if z.ndim < 3 or z.shape[-3] < 2 or z.shape[-2] < 2 or not z.shape[-1]:
        asked = "(..., N, V, D) of D >= 1 numbers, with N >= 2 samples and V >= 2 views"
        raise ValueError(f"z must have shape {asked}, got {tuple(z.shape)}")


def _require_two_views(z: Tensor) -> None:
    _require_views(z)
    if z.shape[-2] != 2:
        raise ValueError(f"z must hold two views (..., N, 2, D) for this loss, got V = {z.shape[-2]}")
