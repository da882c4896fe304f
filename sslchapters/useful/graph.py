r"""The augmentation graph of a finite population, its functions with the largest surviving shares, and linear probes on them.

A population is a table ``p(v | x)``, ``(N, n)``: equally likely images in rows, distinct views in columns. Averages lead from
functions of views to functions of images, :math:`\mathbb E[f(v) \mid x]`, and back, :math:`\mathbb E[u(x) \mid v]`. One after the
other they are the operator of the graph with edges :math:`A_{vw} = \mathbb E_x\, p(v \mid x)\, p(w \mid x)`. Both ways have its
eigenvalues: a function of views, and one of images, for each surviving share (Section 3 of [haochen2021]).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

TIED = 1e-9
"""Shares closer than this are one: which functions belong to which is then for nobody to say."""


class Spectrum(NamedTuple):
    """Functions beside the constant, largest share first, of mean 0 and variance 1; ``E[images_i | v] = √share_i views_i``.

    shares: ``(K,)``.  views: ``(n, K)``.  images: ``(N, K)``.
    """

    shares: Tensor
    views: Tensor
    images: Tensor


class Probe(NamedTuple):
    """What least squares on the first k functions leaves of the variance of labels, for k = 0, 1, …, K

    share: that of the labels.  left: the fraction left, ``(K + 1,)``; of tied shares, the mean over all choices of functions.
    bound: ``(1 - share) / (1 - share of function k + 1)``, ``(K + 1,)``.
    """

    share: float
    left: Tensor
    bound: Tensor


def adjacency(table: Tensor) -> Tensor:
    """The probability of each two views in two independent draws from one image, ``(n, n)``."""
    return table.T @ table / len(table)


def joined(table: Tensor) -> Tensor:
    """From an image to one of its views to an image that shows this view, ``(N, N)``: rows sum to one."""
    return (table / table.mean(0)) @ table.T / len(table)


def spectrum(table: Tensor) -> Spectrum:
    """By the eigenvectors of the images' matrix less its constant one: as many functions as there are images, less one."""
    count = len(table)
    values, vectors = torch.linalg.eigh(joined(table) - 1 / count)
    keep = values.argsort(descending=True)[: count - 1]
    shares, images = values[keep].clamp(0, 1), vectors[:, keep] * count**0.5
    views = (table.T @ images) / table.sum(0)[:, None] / shares.clamp(min=TIED).sqrt()
    return Spectrum(shares, views, images)


def one_hot(labels: Tensor) -> Tensor:
    """Labels ``(N,)`` as rows with a single one, ``(N, C)``."""
    return torch.nn.functional.one_hot(labels).double()


def probe(found: Spectrum, labels: Tensor, weights: Tensor | None = None) -> Probe:
    """Labels of images, ``(N,)`` integers, or targets ``(N, C)``: what one view and the first k functions tell of them.

    With ``weights``, labels of views, ``(n,)`` or ``(n, C)``, whose probabilities these are.
    """
    shares, functions, seen = found.shares, found.views, torch.ones_like(found.shares)
    if weights is None:  # of an image's function a view tells a part
        weights, functions, seen = torch.full_like(found.images[:, 0], 1 / len(labels)), found.images, shares
    target = one_hot(labels) if labels.ndim == 1 else labels
    target = target - weights @ target
    energy = (functions.T @ (weights[:, None] * target)).square().sum(1) / (weights @ target.square()).sum()
    energy = torch.where(shares > TIED, energy, 0.0)
    ends = [0, *((shares[:-1] - shares[1:] > TIED).nonzero()[:, 0] + 1).tolist(), len(shares)]
    for first, last in itertools.pairwise(ends):
        energy[first:last] = energy[first:last].mean()
    share = float(shares @ energy)
    left = 1 - torch.cat([torch.zeros(1, dtype=torch.float64), (seen * energy).cumsum(0)])
    next_share = torch.cat([shares, torch.zeros(1, dtype=torch.float64)])
    return Probe(share, left, torch.where(next_share < 1 - TIED, (1 - share) / (1 - next_share), torch.inf))


def error_rate(table: Tensor, features: Tensor, labels: Tensor) -> float:
    """How often the largest output of the best linear probe on ``features`` of a view, ``(n, k)``, is not its image's label."""
    guesses = fit(table, features, one_hot(labels)).argmax(1)
    return float(table[guesses != labels[:, None]].sum()) / len(table)


def fit(table: Tensor, features: Tensor, target: Tensor) -> Tensor:
    """The least-squares probe, with a bias, of images' targets ``(N, C)`` from features of one view: its outputs ``(n, C)``."""
    weights = table.mean(0)
    inputs = torch.nn.functional.pad(features, (0, 1), value=1.0)
    wanted = inputs.T @ (table.T @ target) / len(table)
    solution: Tensor = torch.linalg.pinv(inputs.T @ (weights[:, None] * inputs), hermitian=True) @ wanted
    return inputs @ solution


def left_by(table: Tensor, features: Tensor, labels: Tensor) -> float:
    """The fraction of the labels' variance that the best linear probe on any ``features`` of one view leaves."""
    target = one_hot(labels)
    target = target - target.mean(0)
    fitted = fit(table, features, target)
    return 1 - float((table.mean(0) @ fitted.square()).sum() / target.square().mean(0).sum())


def spectral_loss(table: Tensor, outputs: Tensor) -> Tensor:
    """The spectral contrastive loss of the population, of outputs ``(n, k)``: E[(z·z⁻)²] - 2 E[z·z⁺], all drawn independently."""
    means = table @ outputs  # of each image
    gram = outputs.T @ (table.mean(0)[:, None] * outputs)
    return gram.square().sum() - 2 * means.square().sum() / len(table)


def descend(table: Tensor, k: int, seed: int, steps: int = 1500) -> Tensor:
    """Free outputs ``(n, k)``, a row for each view, after steps down the gradient of `spectral_loss` per unit of probability."""
    draws = torch.Generator().manual_seed(seed)
    outputs = torch.randn(table.shape[1], k, generator=draws, dtype=torch.float64).requires_grad_()
    weights = table.mean(0)[:, None]
    for _ in range(steps):
        (slope,) = torch.autograd.grad(spectral_loss(table, outputs), outputs)
        with torch.no_grad():
            outputs -= slope / weights / 8
    return outputs.detach()


def top(table: Tensor, k: int) -> Tensor:
    """What minimises `spectral_loss`, up to a rotation: the constant, and k - 1 functions times the root of their shares."""
    found = spectrum(table)
    scaled = found.views[:, : k - 1] * found.shares[: k - 1].sqrt()
    return torch.nn.functional.pad(scaled, (1, 0), value=1.0)


def inner_products(table: Tensor, outputs: Tensor) -> Tensor:
    """Of any two views' outputs, times the root of the views' probabilities, ``(n, n)``: what no rotation changes."""
    scaled = outputs * table.mean(0)[:, None].sqrt()
    return scaled @ scaled.T


def linear_modes(world: tuple[Tensor, Tensor], k: int) -> dict[str, Tensor]:
    """``k`` linear functions of what views show, by three rules: the largest share, the largest amount, the largest variance."""
    table, shown = world
    weights = table.mean(0)
    centred = shown - weights @ shown
    total = centred.T @ (weights[:, None] * centred)
    means = table @ centred
    between = means.T @ means / len(means)
    sizes, axes = torch.linalg.eigh(total)
    white = (axes / sizes.clamp(min=TIED).sqrt())[:, sizes > TIED]
    by_share = white @ torch.linalg.eigh(white.T @ between @ white)[1]
    rules = {"share": by_share, "amount": torch.linalg.eigh(between)[1], "variance": axes}
    return {name: centred @ directions.flip(1)[:, :k] for name, directions in rules.items()}
