"""What a set of representations is worth, whatever network they come from."""

from __future__ import annotations

import torch
from torch import Tensor


def effective_rank(features: Tensor) -> Tensor:
    r""":math:`\exp(-\sum_i p_i \log p_i)` of features ``(..., N, F) -> (...)``.

    The :math:`p_i` are the shares of the variances along the principal axes.  The value is between 1, all
    features on a line, and the smaller of their number and the number of images; and 0 where nothing varies.
    """
    centred = features.double() - features.double().mean(-2, keepdim=True)
    size = centred.square().sum((-2, -1))
    scale = features.double().square().sum((-2, -1)).clamp(min=torch.finfo(torch.float64).tiny)
    values = torch.linalg.eigvalsh(centred.mT @ centred).clamp(min=0)
    shares = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    entropy = -torch.special.xlogy(shares, shares).sum(-1)
    return torch.where(size > 1e-20 * scale, entropy.exp(), 0.0)
