r"""Small finite worlds: how fast each attribute grows under a loss, by autograd over all pairs of views, and by formula.

A *direction* of the input has a variance a between images, its amount, and b within views.  Its share is :math:`h = a / (a + b)`.
With weights :math:`w_k` along direction k, :math:`p_k = |w_k|^2 (a_k + b_k) / E|z|^2` is its part of the output's mean square, and
the *rate* of k is :math:`-\partial L / \partial \log |w_k|^2`, a quarter of the growth of :math:`|w_k|^2` under gradient flow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from scipy.optimize import bisect
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor], Tensor]
"""Of all outputs of a world, ``(images, views, D)``: a number."""


def jittered(s: float, strong: float = 2.0, weak: float = 1.0) -> Tensor:
    r"""The chapter's world, ``(4, 4, 3)``: four images :math:`(\pm 2, \pm 1, 0)`, four views each.

    A view moves the first coordinate by ``strong * s`` up or down and the third, the clutter, by one: the strong attribute has the
    amount ``strong**2`` and the share :math:`1/(1+s^2)`, the weak one its whole variance, the clutter none.
    """
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=2)), dtype=torch.float64)
    image = torch.stack([strong * signs[:, 0], weak * signs[:, 1], 0 * signs[:, 0]], 1)
    view = torch.stack([strong * s * signs[:, 0], 0 * signs[:, 0], signs[:, 1]], 1)
    return image[:, None] + view


def flipped(shares: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    r"""All images and all flips of ``K`` attributes: coordinates ``(2^K, 2^K, K)`` and how likely each flip is, ``(2^K,)``.

    An image has the attributes :math:`\pm 1`; a view flips attribute k with probability :math:`(1 - \sqrt{h_k}) / 2`, so that a
    share :math:`h_k` of its variance survives.  Every view has the same length.
    """
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=len(shares))), dtype=torch.float64)
    chance = torch.where(signs > 0, 1 + shares.sqrt(), 1 - shares.sqrt()).div(2).prod(1)
    return signs[:, None] * signs * sizes, chance


def pair_losses(chance: Tensor | None = None, tau: float = 0.5, beta: float = 0.5) -> dict[str, Loss]:
    """The exact losses of a world, with as many negatives as there are views; a positive is an independent view of the image.

    chance: how likely each view of an image is, equally if not given.  ``byol``: half the squared distance of ``beta z`` to a
    target without gradient, for outputs of mean zero.
    """

    def likely(z: Tensor) -> Tensor:
        return (torch.ones(z.shape[1]).double() / z.shape[1] if chance is None else chance).to(z.dtype)

    def means(gram: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        n, p = len(z), likely(z)
        pairs = gram.unflatten(0, (n, -1)).unflatten(2, (n, -1))
        return torch.einsum("ivix,v,x->", pairs, p, p) / n, torch.einsum("ivjx,v,x->", pairs, p, p) / n**2

    def gram(z: Tensor, unit: bool = False) -> Tensor:
        rows = (F.normalize(z, dim=-1) if unit else z).flatten(0, 1)
        return rows @ rows.T

    def simple(z: Tensor, unit: bool = False) -> Tensor:
        near, far = means(gram(z, unit), z)
        return far - near

    def square(z: Tensor) -> Tensor:
        return (z.square().sum(-1) @ likely(z)).mean()

    def info_nce(z: Tensor) -> Tensor:
        cosines, p = gram(z, unit=True) / tau, likely(z).repeat(len(z)) / len(z)
        return p @ (cosines.exp() @ p).log() - means(cosines, z)[0]

    def spectral(z: Tensor) -> Tensor:
        products = gram(z)
        return means(products.square(), z)[1] - 2 * means(products, z)[0]

    def byol(z: Tensor) -> Tensor:
        rows = z.flatten(0, 1)
        return beta**2 * square(z) / 2 - beta * means(rows @ rows.detach().T, z)[0]

    return {
        "simple": simple,
        "root mean square": lambda z: simple(z) / square(z),
        "cosines": lambda z: simple(z, unit=True),
        "InfoNCE": info_nce,
        "spectral": spectral,
        "BYOL": byol,
    }


def rates(loss: Loss, views: Tensor, weights: Tensor) -> Tensor:
    r""":math:`-\partial L / \partial \log |w_k|^2` of each coordinate of views ``(N, V, d)``, by autograd: ``(d,)``."""
    grown = torch.zeros(views.shape[-1], dtype=views.dtype, requires_grad=True)
    return -torch.autograd.grad(loss(views @ (weights * (grown / 2).exp()).T), grown)[0]


def parts_of(weights: Tensor, variances: Tensor) -> Tensor:
    r""":math:`p_k`, for uncorrelated coordinates of these variances: ``(d,)``."""
    size = weights.square().sum(0) * variances
    return size / size.sum()


def rate_of_info_nce(parts: Tensor, shares: Tensor, tau: float) -> Tensor:
    r"""Of attributes that flip: :math:`\frac{p_k}\tau (e_k - \sum_j p_j e_j)`, with :math:`e_k = h_k - \tanh(p_k / \tau)`."""
    excess = shares - torch.tanh(parts / tau)
    return parts * (excess - parts @ excess) / tau


def settled(shares: Tensor, tau: float) -> Tensor:
    r"""The parts at which InfoNCE rests: :math:`p_k = \tau \operatorname{artanh}(h_k - \lambda)`, which add up to one."""
    most = float(shares.max())

    def at(level: float) -> Tensor:
        return tau * torch.atanh((shares - level).clamp(0, 1 - 1e-15))

    level = bisect(lambda level: float(at(level).sum()) - 1, most - 1, most, xtol=1e-16)
    return at(level) / at(level).sum()


def flow(shares: Tensor, variances: Tensor, start: Tensor, times: int, step: float) -> tuple[Tensor, Tensor]:
    r"""Gradient flow of the loss :math:`-c`: :math:`|w_k|^2`, ``(times, K)``, and c, ``(times,)``, by Euler steps.

    :math:`\frac{d}{dt} \log |w_k|^2 = 4 \sigma_k^2 (h_k - c) / E|z|^2`, with the variances :math:`\sigma_k^2`.
    """
    squares, path, course = start.clone(), [], []
    for _ in range(times):
        total = squares @ variances
        c = squares * variances @ shares / total
        path.append(squares)
        course.append(c)
        squares = squares * (step * 4 * variances * (shares - c) / total).exp()
    return torch.stack(path), torch.stack(course)
