"""The matrix on the views of a population from which a covariance operator is made, applied without being formed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixing:
    r"""The matrix ``C`` of an operator, applied to a field ``u`` on ``(N, V, ...)`` without being formed.

    .. math::  (C u)_{iv} = \frac{inter}{N^2 V} \sum_j \xi_{ij} (\bar u_i - \bar u_j)
                            + \frac{intra}{N V} (u_{iv} - \bar u_i)

    weights: :math:`\xi`, ``(N, N)``, or ``None`` for :math:`\xi = 1`; symmetric for every operator of Theorems 3 and 4, not so
    for one tower and several negatives (Eq. 80).
    """

    inter: float = 1.0
    intra: float = 0.0
    weights: Tensor | None = None

    def __call__(self, u: Tensor, *, adjoint: bool = False) -> Tensor:
        """``C u``, or ``C^T u`` if ``adjoint``; the shape of ``u``."""
        n, v = u.shape[:2]
        mean = u.mean(dim=1, keepdim=True)
        if self.weights is None:
            between = (mean - mean.mean(dim=0, keepdim=True)) / n
        else:
            flat = mean.reshape(n, -1)
            if not adjoint:  # C sends constants to zero: what samples have in common would only bring rounding
                flat = flat - flat.mean(dim=0)
            pulled = (self._laplacian.T if adjoint else self._laplacian) @ flat
            between = pulled.reshape(mean.shape) / n**2
        return (self.inter * between + (self.intra / n) * (u - mean)) / v

    def root(self, samples: int, views: int) -> Mixing | None:
        r"""The mixing :math:`C^{1/2}` on ``(samples, views, ...)``; ``None`` unless it is symmetric and no term is negative."""
        if min(self.inter, self.intra) < 0 or not self.symmetric:
            return None
        intra = math.sqrt(self.intra * samples * views)
        if self.weights is None:
            return Mixing(math.sqrt(self.inter * samples * views), intra)
        if bool((self.weights < 0).any()):
            return None
        laplacian = self._laplacian
        # A constant goes to zero: lifted out of the way, as the root of its rounding error would be 1e-8
        constant = torch.full_like(laplacian, 1 / samples)
        lift = float(laplacian.diagonal().max()) or 1.0
        values, vectors = torch.linalg.eigh(laplacian + lift * constant)
        half = (vectors * values.clamp_min(0).sqrt()) @ vectors.T - math.sqrt(lift) * constant
        return Mixing(samples * math.sqrt(self.inter * views), intra, -0.5 * (half + half.T))

    @cached_property
    def symmetric(self) -> bool:
        """Whether ``C`` is symmetric."""
        return self.weights is None or bool(torch.equal(self.weights, self.weights.T))

    @cached_property
    def _laplacian(self) -> Tensor:
        """``diag(sum_j xi_ij) - xi_ij`` without the terms ``i = j``, which cancel: in floating point only if left out."""
        assert self.weights is not None
        xi = self.weights - torch.diag(self.weights.diagonal())
        return torch.diag(xi.sum(1)) - xi
