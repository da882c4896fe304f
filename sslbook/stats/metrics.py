"""What a set of representations is worth, whatever network they come from."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.runtime.arguments import require_finite, require_floating


def effective_rank(features: Tensor, resolution: float | None = None) -> Tensor:
    r"""Return the effective rank :math:`\exp(-\sum_i p_i \log p_i)` of features, ``(..., N, F) -> (...)``.

    The :math:`p_i` are the shares of the variance along the principal axes.  The rank is at most the smaller of the
    numbers of features and images; it is 1 if all features lie on a line, and 0 if nothing varies.  RankMe (Garrido et
    al. 2023) uses singular values of uncentred features, so weak directions count for more.

    resolution: variation below this value, relative to the features' root mean square, counts as rounding error.  The
    default is 4 units in the last place of the features' dtype, but at least 1e-10.  Raises TypeError unless the
    features are a floating-point tensor, and ValueError for a wrong shape or infinite values.
    """
    require_floating(features=features)
    if features.ndim < 2 or 0 in features.shape[-2:]:
        raise ValueError(f"features must be (..., N, F), each at least 1, got {tuple(features.shape)}")
    require_finite(features=features)
    finest = 4 * torch.finfo(features.dtype).eps if resolution is None else resolution
    largest = features.detach().double().abs().amax((-2, -1), keepdim=True)
    scaled = features.double() / torch.where(largest > 0, largest, 1)  # squares that are neither 0 nor infinite
    centred = scaled - scaled.mean(-2, keepdim=True)
    size = centred.square().sum((-2, -1))
    scale = scaled.square().sum((-2, -1)).clamp(min=torch.finfo(torch.float64).tiny)
    values = torch.linalg.eigvalsh(centred.mT @ centred).clamp(min=0)
    shares = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    entropy = -torch.special.xlogy(shares, shares).sum(-1)
    return torch.where(size > max(finest, 1e-10) ** 2 * scale, entropy.exp(), 0.0)


def likeness(outputs: Tensor) -> Tensor:
    """Mean cosine between the outputs of two different images, ``(..., N, D) -> (...)``: 1 where all have one direction."""
    units = F.normalize(outputs.double(), dim=-1)
    count = units.shape[-2]
    return (units.sum(-2).square().sum(-1) - count) / (count * (count - 1))
