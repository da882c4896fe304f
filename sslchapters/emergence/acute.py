r"""Centres at equal angles: which of them a ReLU unit ends up responding to, by its responses alone.

``n`` centres of length 1 have the pairwise cosine :math:`\rho`, and the origin is a centre ``m`` times as likely as each one. The
responses :math:`h_k = w^\top \mu_k` then follow :math:`\dot h = G\, (\lambda (h - \bar r))`, up to a factor, with the centres' Gram
matrix G, the open gates :math:`\lambda_k = 1\{h_k > 0\}`, and :math:`\bar r = \sum_k \max(h_k, 0) / (n + m)`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def settle(h: Tensor, m: float, cosine: float, *, steps: int = 6000, rate: float = 0.2) -> Tensor:
    """Responses ``(units, n)`` after many steps of the flow, as parts of the largest."""
    n = h.shape[1]
    gram = (1 - cosine) * torch.eye(n, dtype=h.dtype) + cosine
    for _ in range(steps):
        positive = h.clamp_min(0)
        mean = positive.sum(1, keepdim=True) / (n + m)
        h = h + rate * ((h > 0) * (positive - mean)) @ gram
        h = h / h.max(1, keepdim=True).values  # homogeneous: only ratios matter
    return h


def fate(n: int, m: float, cosine: float, *, units: int = 40, seed: int = 0) -> tuple[float, float]:
    """The shares of units that respond in the end to their first strongest centre alone, and to all: by a tenth of the largest."""
    draws = torch.Generator().manual_seed(seed)
    h = torch.randn(units, n, generator=draws, dtype=torch.float64)
    start = torch.where(h.max(1, keepdim=True).values > 0, h, -h)  # at least one is positive
    end = settle(start, m, cosine)
    active = (end > 0.1).sum(1)
    first = end.argmax(1) == start.argmax(1)
    return float(((active == 1) & first).double().mean()), float((active == n).double().mean())
