"""Leading eigenpairs of a covariance operator from products with it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from sslbook.operator.layer import unvec, vec
from sslbook.operator.view_weights import Mixing, PairMixing
from sslbook.runtime.arguments import require_number, require_whole

if TYPE_CHECKING:
    from sslbook.operator.covariance import CovarianceOperator


@dataclass(frozen=True)
class EigenPairs:
    r"""Eigenpairs from the end that was asked for: the leading ones largest first, the others smallest first.

    values: ``(k,)``.  vectors: ``(size, k)``, orthonormal, in the order of :func:`sslbook.operator.layer.vec`.
    residuals: :math:`\|OP v - \lambda v\| / |\lambda|`, ``(k,)``.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor

    def directions(self, shape: torch.Size) -> Tensor:
        """The eigenvectors as weights, ``(k, *shape)``."""
        return torch.stack([unvec(v, shape) for v in self.vectors.T])


def top_eigenpairs(op: CovarianceOperator, k: int, tol: float, seed: int) -> EigenPairs:
    """See :meth:`sslbook.operator.covariance.CovarianceOperator.top_eigenpairs`."""
    size = op.shape[0]
    if not op.symmetric:
        raise ValueError("eigenpairs are for symmetric operators; for others use to_scipy() and scipy's eigs")
    require_whole("k", k, least=1, most=size)
    require_number("tol", tol, least=0)
    require_whole("seed", seed, least=0)
    if size <= 4 * k + 32:
        basis = torch.linalg.eigh(held(op.dense()))[1].flip(1)[:, :k]
    else:
        tol = max(tol, 4 * torch.finfo(op.dtype).eps)  # below it, float32 gains nothing
        root = op.mixing.root(*op.population)
        fields = op.opened.output.numel()
        dual = root is not None and 4 * k + 32 < fields < size
        basis = _dual_basis(op, root, k, tol, seed) if root and dual else _lanczos(op.to_scipy(), k, tol, seed)
    # In float64: LAPACK's single-precision sums over a million weights lose three digits.
    basis = torch.linalg.qr(torch.as_tensor(basis, dtype=torch.float64, device=op.device))[0]
    image = held(op.matmat(basis.to(op.dtype))).double()
    if not bool(image.any()):  # a zero operator, unless squares of its fields are
        direction = torch.randn(op.opened.weight.shape, generator=torch.Generator().manual_seed(seed), dtype=op.dtype)
        field = op._mix(op._right(op.opened.jvp(direction.to(op.device))))
        _require_size(float(field.abs().max()) ** 2, op.dtype)
    small = basis.T @ image
    values, turn = torch.linalg.eigh(0.5 * (small + small.T))  # Rayleigh and Ritz, at no further cost
    values, turn = values.flip(0), turn.flip(1)
    vectors = basis @ turn
    gap = (image @ turn - vectors * values).norm(dim=0)
    residuals = gap / values.abs().clamp_min(torch.finfo(op.dtype).tiny)
    return EigenPairs(values.to(op.dtype), vectors.to(op.dtype), residuals.to(op.dtype))


def _dual_basis(op: CovarianceOperator, root: Mixing | PairMixing, k: int, tol: float, seed: int) -> Tensor:
    """``B u`` for the top eigenvectors ``u`` of ``B^T B``; any vector where the eigenvalue is zero."""
    shape = op.opened.output.shape

    def mix(u: Tensor) -> Tensor:
        return root(u.unflatten(0, op.population)).flatten(0, 1)

    def product(u: np.ndarray) -> np.ndarray:
        field = torch.as_tensor(u, dtype=op.dtype, device=op.device).reshape(shape)
        return array(mix(op.opened.kernel(mix(field))).reshape(-1))

    operator = LinearOperator((shape.numel(), shape.numel()), matvec=product, dtype=numpy_dtype(op.dtype))
    columns = []
    for column in _lanczos(operator, k, tol, seed).T:
        field = torch.as_tensor(column, dtype=op.dtype, device=op.device).reshape(shape)
        columns.append(vec(op.opened.vjp(mix(field))))
    basis = torch.stack(columns, dim=1)
    length = basis.norm(dim=0)
    draw = torch.Generator().manual_seed(seed)
    spare = torch.randn(basis.shape, generator=draw, dtype=op.dtype).to(op.device)
    return torch.where(length > 1e-6 * length.max(), basis / length, spare / spare.norm(dim=0))


def _lanczos(operator: LinearOperator, k: int, tol: float, seed: int) -> np.ndarray:
    """Eigenvectors ``(n, k)`` of the ``k`` largest eigenvalues of a symmetric operator, largest first."""
    start = np.random.default_rng(seed).standard_normal(operator.shape[0]).astype(operator.dtype)
    if not held(torch.as_tensor(operator.matvec(start))).any():  # a zero operator, on which ARPACK can't start
        return np.eye(operator.shape[0], k, dtype=operator.dtype)
    values, vectors = eigsh(operator, k=k, which="LA", tol=tol, v0=start)
    found: np.ndarray = vectors[:, np.argsort(values)[::-1]]
    return found


def held(products: Tensor, field: Tensor | None = None) -> Tensor:
    """Products of an operator, if their type can hold them; raises ValueError for others.

    field: what they were made of; where it is so small that its squares vanish, products of 0 are none.
    """
    largest = float(products.abs().max())
    if not largest and field is not None and field.numel():
        largest = float(field.abs().max()) ** 2
    _require_size(largest, products.dtype)
    return products


def _require_size(largest: float, dtype: torch.dtype) -> None:
    """Raise ValueError where products overflow, or are so small that digits are lost."""
    if largest and not torch.finfo(dtype).tiny < largest < math.inf:
        raise ValueError(
            f"net and views must have an operator whose products {torch.finfo(dtype).dtype} can hold, got some of size "
            f"{largest:.1g}; give them in float64, or scale the network's outputs"
        )


def array(tensor: Tensor) -> np.ndarray:
    """The same numbers, on the host."""
    found: np.ndarray = tensor.cpu().numpy()
    return found


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """NumPy's name for torch's."""
    return torch.empty(0, dtype=dtype).numpy().dtype
