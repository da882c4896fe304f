"""The matrix ``C`` on the views of a population from which an operator is made: :math:`OP = \\sum_{ab} C_{ab} L_a R_b^T`.

:class:`Mixing` is that of the papers' operators, a few means and differences; :class:`PairMixing` is any matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
            laplacian = self._laplacian.to(flat.dtype)
            pulled = (laplacian.T if adjoint else laplacian) @ flat
            between = pulled.reshape(mean.shape) / n**2
        return (self.inter * between + (self.intra / n) * (u - mean)) / v

    def __neg__(self) -> Mixing:
        return replace(self, inter=-self.inter, intra=-self.intra)

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

    def dense(self, left: Tensor, right: Tensor) -> Tensor:
        """The operator's matrix ``(m, m)`` from dense connections ``(N, V, m, n_L)``, term by term, as it is defined."""
        n, v = left.shape[:2]
        left_mean, right_mean = left.mean(1), right.mean(1)
        if self.weights is None:
            centred = right_mean - right_mean.mean(0)
            between = torch.einsum("ino,imo->nm", left_mean - left_mean.mean(0), centred) / n
        else:
            between = left.new_zeros(left.shape[2], left.shape[2])
            for i in range(n):  # one sample against all: memory stays N * size * n_L
                gap = torch.einsum("j,jmo->mo", self.weights[i], right_mean[i] - right_mean)
                between += torch.einsum("no,mo->nm", left_mean[i], gap) / n**2
        within = torch.einsum("ivno,ivmo->nm", left - left_mean[:, None], right - right_mean[:, None]) / (n * v)
        return self.inter * between + self.intra * within

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


@dataclass(frozen=True, eq=False)
class PairMixing:
    r"""Any matrix ``C`` on the views, ``(N V, N V)``, rows and columns in the order of the flattened views.

    Of a loss of inner products it is :math:`-2 \Gamma` (:func:`sslbook.operator.inner_products.gram_weights`).  Fields are
    mixed in its dtype and come back in their own.
    """

    matrix: Tensor

    def __call__(self, u: Tensor, *, adjoint: bool = False) -> Tensor:
        """``C u`` for a field on ``(N, V, ...)``, or ``C^T u`` if ``adjoint``; the shape of ``u``."""
        out: Tensor = (self.matrix.mT if adjoint else self.matrix) @ u.flatten(0, 1).flatten(1).to(self.matrix.dtype)
        return out.to(u.dtype).reshape(u.shape)

    def __neg__(self) -> PairMixing:
        return PairMixing(-self.matrix)

    def root(self, samples: int, views: int) -> PairMixing | None:
        r"""The mixing :math:`C^{1/2}`; ``None`` unless ``C`` is symmetric and has no negative eigenvalue beyond rounding."""
        if not self.symmetric:
            return None
        values, vectors = torch.linalg.eigh(self.matrix)
        if float(values[0]) < -len(values) * torch.finfo(values.dtype).eps * float(values[-1].abs()):
            return None
        return PairMixing((vectors * values.clamp_min(0).sqrt()) @ vectors.T)

    def dense(self, left: Tensor, right: Tensor) -> Tensor:
        """The operator's matrix ``(m, m)`` from dense connections ``(N, V, m, n_L)``."""
        sides = (side.flatten(0, 1).to(self.matrix.dtype) for side in (left, right))
        matrix: Tensor = torch.einsum("ano,ab,bmo->nm", next(sides), self.matrix, next(sides))
        return matrix.to(left.dtype)

    @cached_property
    def symmetric(self) -> bool:
        """Whether ``C`` is symmetric."""
        return bool(torch.equal(self.matrix, self.matrix.T))
