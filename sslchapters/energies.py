r"""Contrastive losses as energies, after [tian2023]: what several chapters compute with the loss of a pair of networks.

With two views :math:`f_i, f_i'` of each of ``N`` samples and weights :math:`\alpha` (Section 2 of the paper), the contrastive
covariance is

.. math:: C_\alpha[a, b] = \frac1{2 N^2} \sum_{ij} \alpha_{ij} [(a_i - a_j)(b_i - b_j)^\top - (a_i - a_i')(b_i - b_i')^\top].

The energy of a network is :math:`\frac12 \operatorname{tr} C_\alpha[f, f]`, and a step of gradient descent on a loss is a step of
ascent on it with :math:`\alpha` held fixed.  All functions take leading batch dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sslbook._check import require_one_of
from sslbook.losses.pairs import half_squared_distance, info_nce, pair_distances, quadratic, soft_triplet

ENERGIES = ("info_nce", "quadratic", "hinge_triplet", "soft_triplet")
"""Losses that are energies: InfoNCE (Eq. 1, with any epsilon), quadratic, and triplet with a hinge or a softplus."""


def square_distances(f: Tensor) -> Tensor:
    r""":math:`d_{ij}^2 = \|f_i - f_j\|^2 / 2`: ``(..., N, D)`` -> ``(..., N, N)``."""
    return half_squared_distance(f[..., :, None, :], f[..., None, :, :])


def contrastive_covariance(
    a: Tensor, a2: Tensor, alpha: Tensor, b: Tensor | None = None, b2: Tensor | None = None
) -> Tensor:
    r""":math:`C_\alpha[a, b]` of Eq. 3 of [tian2023], :math:`C_\alpha[a, a]` without ``b``: ``(..., D, E)``.

    a, a2: first and second views, ``(..., N, D)``; b, b2: the same, ``(..., N, E)``.  alpha: ``(..., N, N)``.

    The double sum is :math:`a^T L b` with the Laplacian :math:`L = \operatorname{diag}(\alpha 1 + \alpha^T 1) - \alpha - \alpha^T`.
    """
    b, b2 = (a, a2) if b is None or b2 is None else (b, b2)
    n = a.shape[-2]
    rows, columns = alpha.sum(-1), alpha.sum(-2)
    laplacian = torch.diag_embed(rows + columns) - alpha - alpha.mT
    da, db = a - a2, b - b2
    return (a.mT @ laplacian @ b - (rows[..., None] * da).mT @ db) / (2 * n**2)


def energy(f: Tensor, f2: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`\frac12 \operatorname{tr} C_\alpha[f, f] = \frac1{2 N^2} \sum_{ij} \alpha_{ij} (d_{ij}^2 - d_i^2)`: ``(...)``."""
    far, near = square_distances(f), half_squared_distance(f, f2)[..., None]
    return (alpha * (far - near)).sum((-2, -1)) / (2 * f.shape[-2] ** 2)


def weights(
    loss: str, f: Tensor, f2: Tensor, *, temperature: float = 1.0, epsilon: float = 0.0, margin: float = 0.0
) -> Tensor:
    r"""Pairwise weights ``alpha (..., N, N)`` of a loss at the outputs ``f, f2 (..., N, D)``, without gradient.

    ``alpha_ij`` is minus the loss's derivative by :math:`d_{ij}^2`, and zero for ``i = j`` except in the quadratic loss:

    - info_nce: :math:`e^{-d_{ij}^2/\tau} / (\epsilon e^{-d_i^2/\tau} + \sum_{k \ne i} e^{-d_{ik}^2/\tau})`
    - quadratic: 1
    - hinge_triplet: 1 where :math:`d_i^2 - d_{ij}^2 + r_0 > 0`, else 0;  soft_triplet: the sigmoid of that over :math:`\tau`

    ``margin`` is :math:`r_0`.  Raises ValueError for a loss that is not among :data:`ENERGIES`.
    """
    require_one_of("loss", loss, ENERGIES)
    with torch.no_grad():
        far, near = square_distances(f), half_squared_distance(f, f2)[..., None]
        apart = ~torch.eye(f.shape[-2], dtype=torch.bool, device=f.device)
        if loss == "quadratic":
            return torch.ones_like(far)
        if loss == "info_nce":
            gap = ((near - far) / temperature).masked_fill(~apart, -torch.inf)
            # the positive pair's share, as one more logit
            own = gap.new_full((*gap.shape[:-1], 1), math.log(epsilon) if epsilon else -torch.inf)
            return torch.softmax(torch.cat([gap, own], -1), -1)[..., :-1]
        gap = near - far + margin
        on = (gap > 0).to(f.dtype) if loss == "hinge_triplet" else torch.sigmoid(gap / temperature)
        return on * apart


def loss_value(
    loss: str, f: Tensor, f2: Tensor, *, temperature: float = 1.0, epsilon: float = 0.0, margin: float = 0.0
) -> Tensor:
    """The loss itself, summed over anchors and pairs as in Eq. 1 of [tian2023]: ``f, f2 (..., N, D)`` -> ``(...)``.

    Raises ValueError for a loss that is not among :data:`ENERGIES`.
    """
    require_one_of("loss", loss, ENERGIES)
    pos, neg = pair_distances(f, f2, negatives="same_view")
    n = f.shape[-2]
    if loss == "info_nce":
        return temperature * info_nce(pos, neg, temperature, epsilon).sum(-1)
    if loss == "quadratic":
        return n * quadratic(pos, neg).sum(-1)
    if loss == "soft_triplet":
        return (n - 1) * soft_triplet(pos, neg, temperature, margin).sum(-1)
    return (pos[..., None] - neg + margin).relu().sum((-1, -2))


def project(w: Tensor, v: Tensor) -> Tensor:
    r""":math:`P^\perp_w v`: ``v`` without its part along the unit vectors ``w``, both ``(..., d)``."""
    return v - (w * v).sum(-1, keepdim=True) * w
