"""Linear probes in closed form, of many networks at once: nothing to tune, and nothing chosen on what is asked about."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def standardised(known: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Features ``(..., N, F)`` and ``(..., M, F)`` in float64, both by the means and deviations of the known ones."""
    centre, spread = known.double().mean(-2, keepdim=True), known.double().std(-2, keepdim=True).clamp(min=1e-12)
    return (known.double() - centre) / spread, (asked.double() - centre) / spread


def ridge(known: Tensor, targets: Tensor, asked: Tensor, penalty: float = 0.01) -> Tensor:
    """Predictions ``(..., M, T)`` for ``asked``, by ridge regression on `standardised` features and a constant, float64.

    known ``(..., N, F)``, targets ``(N, T)``, asked ``(..., M, F)``.  The penalty stands beside the features' mean square of 1.
    """
    x, y = (F.pad(part, (0, 1), value=1.0) for part in standardised(known, asked))
    gram = x.mT @ x / len(targets) + penalty * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return y @ torch.linalg.solve(gram, x.mT @ targets.double() / len(targets))
