"""The losses and correlations of networks on latent trees as they are defined."""

from __future__ import annotations

import torch
from torch import Tensor


def triplet_loss(output: Tensor, loss: str, tau: float) -> Tensor:
    """The loss of each replica, ``(R,)``, of normalised outputs ``(R, width, 3B)``, as printed: a softmax of two distances."""
    anchor, positive, negative = output.chunk(3, dim=2)
    far = torch.stack([(anchor - other).square() for other in (positive, negative)])
    distances = far.sum(2) / 2 if loss.startswith("printed") else far.mean((2, 3))[..., None]
    chosen = (-distances / tau).softmax(0)[0]  # the chance that the positive is taken for the anchor's own
    return -(chosen.log() if loss in ("printed", "released, logarithm") else chosen).mean(1)


def correlation(z: Tensor, f: Tensor, chance: Tensor) -> Tensor:
    dz, df = z - (chance * z).sum(), f - (chance * f).sum(-1, keepdim=True)
    variance = (chance * df * df).sum(-1)
    corr = (chance * dz * df).sum(-1) / (variance * (chance * dz * dz).sum()).sqrt()
    return torch.where(variance < 1e-28, 0.0, corr)
