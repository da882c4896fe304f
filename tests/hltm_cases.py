"""The losses of the latent trees as they are defined, for autograd to differentiate."""

from __future__ import annotations

import torch
from torch import Tensor


def triplet_loss(output: Tensor, loss: str, tau: float) -> Tensor:
    """The loss of each replica, ``(R,)``, of normalised outputs ``(R, width, 3B)``: what `triplet_gradient` differentiates."""
    anchor, positive, negative = output.chunk(3, dim=2)
    to_positive, to_negative = anchor - positive, anchor - negative
    if loss == "printed":
        r_pos, r_neg = (0.5 * d.square().sum(1) for d in (to_positive, to_negative))
        return torch.nn.functional.softplus((r_pos - r_neg) / tau).mean(1)
    p, n = (d.square().mean((1, 2)) for d in (to_positive, to_negative))
    return -torch.sigmoid((n - p) / tau)
