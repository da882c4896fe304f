r"""The covariance operator as an operator: products with it, never its matrix.

On a finite population of ``N`` samples with ``V`` equally likely views each, every operator of Section 4 of [tian2020]
has the form

    OP = sum_{a,b} C_ab  L_a R_b^T,      a, b over the N V views,

with connections :math:`R_a = K_l(x_a)` (and :math:`L_a = R_a`, except under l2 normalisation, where
:math:`R_a = K_a / \|f_a\|` and :math:`L_a = R_a P^\perp_{f_a}`), and a matrix ``C`` on the views that is a few means and
differences (:class:`Mixing`).  So ``OP v`` is one JVP, one mixing, one VJP.

``N V`` forward passes happen once, when the operator is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

from sslbook.arguments import require_one_of, require_whole
from sslbook.connection import OpenedLayer, open_layer, unvec, vec
from sslbook.contrast import project
from sslbook.gaps import relative_gap
from sslbook.losses import half_squared_distance, pair_weight
from sslbook.mixing import Mixing

WEIGHTED = ("soft_triplet", "info_nce")


@dataclass(frozen=True)
class EigenPairs:
    r"""Leading eigenpairs, largest first.

    values: ``(k,)``.  vectors: ``(size, k)``, orthonormal, in the order of :func:`sslbook.connection.vec`.
    residuals: :math:`\|OP v - \lambda v\| / |\lambda|`, ``(k,)``.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor

    def directions(self, shape: torch.Size) -> Tensor:
        """The eigenvectors as weights, ``(k, *shape)``."""
        return torch.stack([unvec(v, shape) for v in self.vectors.T])


@dataclass(frozen=True, eq=False)
class CovarianceOperator:
    r"""``OP_l`` of one layer over a fixed population of views; made by :func:`covariance_operator` and its sisters.

    opened: the network opened at the layer on all ``N V`` views.  population: ``(N, V)``.  mixing: ``C``.
    normalize: whether the output is l2-normalised (Eq. 56), which makes the operator a cross-covariance.
    """

    opened: OpenedLayer
    population: tuple[int, int]
    mixing: Mixing
    normalize: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """``(size, size)``, with ``size`` the number of weights of the layer."""
        return self.opened.size, self.opened.size

    @property
    def dtype(self) -> torch.dtype:
        """That of the layer's weight."""
        return self.opened.weight.dtype

    @property
    def device(self) -> torch.device:
        """That of the layer's weight."""
        return self.opened.weight.device

    @property
    def symmetric(self) -> bool:
        """Whether the operator equals its transpose by construction."""
        return self.mixing.symmetric and not self.normalize

    def apply(self, direction: Tensor) -> Tensor:
        """``OP`` applied to a direction in the weight's shape (or ``(k, *shape)``): same shape back."""
        return self.opened.vjp(self._left(self._mix(self._right(self.opened.jvp(direction)))))

    def apply_transpose(self, direction: Tensor) -> Tensor:
        """``OP^T`` applied to a direction in the weight's shape (or ``(k, *shape)``)."""
        return self.opened.vjp(self._right(self._mix(self._left(self.opened.jvp(direction)), adjoint=True)))

    def matvec(self, vector: Tensor) -> Tensor:
        """``OP v`` for ``v`` of shape ``(size,)``, in the order of :func:`sslbook.connection.vec`."""
        return vec(self.apply(unvec(vector, self.opened.weight.shape)))

    def rmatvec(self, vector: Tensor) -> Tensor:
        """``OP^T v``."""
        return vec(self.apply_transpose(unvec(vector, self.opened.weight.shape)))

    def matmat(self, matrix: Tensor) -> Tensor:
        """``OP M`` for ``M`` of shape ``(size, k)``: the k products in one batched pass."""
        directions = torch.stack([unvec(column, self.opened.weight.shape) for column in matrix.T])
        return torch.stack([vec(out) for out in self.apply(directions)], dim=1)

    def update(self) -> Tensor:
        r"""``OP vec(W)`` in the weight's shape: the paper's update direction (Eq. 3), for outputs of degree 1 in this layer."""
        return self.apply(self.opened.weight)

    def exact_update(self) -> Tensor:
        r"""The same with :math:`f_L` for :math:`K^T vec(W)`: :math:`\mathrm{Cov}_x[\bar K_l, \bar f_L]`, right for *any* network.

        The two agree where :math:`K_l^T vec(W_l) = f_L` (no biases, no parallel path, degree 1): see :meth:`euler_gap`.
        """
        return self.opened.vjp(self._left(self._mix(self._right(self.opened.output))))

    def euler_gap(self, degree: float = 1.0) -> float:
        r"""Largest :math:`\|K_l^T vec(W_l) - \kappa f_L\| / \max \|\kappa f_L\|` over the population: 0 where Theorem 1 applies."""
        return relative_gap(self.opened.jvp(self.opened.weight), degree * self.opened.output)

    def trace(self) -> float:
        """The exact trace, output by output; about as many products as the network has outputs.

        Takes ``(N V)^2`` numbers of memory for a linear layer with more weights than views, else ``N V size``.
        """
        opened, below = self.opened, self.opened.below
        by_views = isinstance(opened.module, nn.Linear) and below.ndim == 2 and len(below) <= opened.size
        # K_a = f_a (x) J_a^T, so that <K_a, K_b> is the product of two inner products; else gradients view by view
        gradients = opened.pulled_back if by_views else opened.sample_gradients
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        gram = torch.zeros(len(below), len(below), dtype=self.dtype, device=self.device) if by_views else None
        for unit in torch.eye(opened.output.shape[1], dtype=self.dtype, device=self.device):
            rows = unit.expand(opened.output.shape)
            left = gradients(self._left(rows))
            right = gradients(self._right(rows)) if self.normalize else left
            if gram is None:
                total += (left * self._mix(right)).sum()
            else:
                gram += right @ left.T
        if gram is not None:
            total = self._mix(gram * (below @ below.T)).diagonal().sum()
        return float(total)

    def dense(self) -> Tensor:
        """The matrix, from dense connections and the definitions, term by term: the reference, for small layers."""
        n, v = self.population
        k = self.opened.connections().unflatten(0, (n, v))
        norm, unit = self._scales()
        if not self.normalize:
            left, right = k, k
        else:
            right = k / norm.reshape(n, v, 1, 1)
            left = right - (right @ unit.reshape(n, v, -1, 1)) * unit.reshape(n, v, 1, -1)
        left_mean, right_mean = left.mean(1), right.mean(1)
        if self.mixing.weights is None:
            centred = right_mean - right_mean.mean(0)
            between = torch.einsum("ino,imo->nm", left_mean - left_mean.mean(0), centred) / n
        else:
            between = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
            for i in range(n):  # one sample against all: memory stays N * size * n_L
                gap = torch.einsum("j,jmo->mo", self.mixing.weights[i], right_mean[i] - right_mean)
                between += torch.einsum("no,mo->nm", left_mean[i], gap) / n**2
        within = torch.einsum("ivno,ivmo->nm", left - left_mean[:, None], right - right_mean[:, None]) / (n * v)
        return self.mixing.inter * between + self.mixing.intra * within

    def top_eigenpairs(self, k: int = 5, *, tol: float = 1e-9, seed: int = 0) -> EigenPairs:
        r"""The ``k`` algebraically largest eigenpairs of a symmetric operator, by Lanczos' method (ARPACK) to ``tol``.

        With :math:`OP = B B^T`, :math:`B = K C^{1/2}`, they come from :math:`B^T B`, which acts on fields of ``N V n_L`` numbers,
        wherever ``C`` is positive and these are fewer than the weights.  Below ``4 k + 32`` weights the matrix is formed.

        Raises ValueError for an operator that isn't symmetric and for ``k`` outside ``1 .. size``.
        """
        size = self.shape[0]
        if not self.symmetric:
            raise ValueError("eigenpairs are for symmetric operators; for others use to_scipy() and scipy's eigs")
        require_whole("k", k, least=1, most=size)
        if size <= 4 * k + 32:
            basis = torch.linalg.eigh(self.dense())[1].flip(1)[:, :k]
        else:
            tol = max(tol, 4 * torch.finfo(self.dtype).eps)  # below it, float32 gains nothing
            root = self.mixing.root(*self.population)
            fields = self.opened.output.numel()
            dual = root is not None and 4 * k + 32 < fields < size
            basis = self._dual_basis(root, k, tol, seed) if root and dual else _lanczos(self.to_scipy(), k, tol, seed)
        # In float64: LAPACK's single-precision sums over a million weights lose three digits.
        basis = torch.linalg.qr(torch.as_tensor(basis, dtype=torch.float64, device=self.device))[0]
        image = self.matmat(basis.to(self.dtype)).double()
        small = basis.T @ image
        values, turn = torch.linalg.eigh(0.5 * (small + small.T))  # Rayleigh and Ritz, at no further cost
        values, turn = values.flip(0), turn.flip(1)
        vectors = basis @ turn
        gap = (image @ turn - vectors * values).norm(dim=0)
        residuals = gap / values.abs().clamp_min(torch.finfo(self.dtype).tiny)
        return EigenPairs(values.to(self.dtype), vectors.to(self.dtype), residuals.to(self.dtype))

    def _dual_basis(self, root: Mixing, k: int, tol: float, seed: int) -> Tensor:
        """``B u`` for the top eigenvectors ``u`` of ``B^T B``; any vector where the eigenvalue is zero."""
        shape = self.opened.output.shape

        def mix(u: Tensor) -> Tensor:
            return root(u.unflatten(0, self.population)).flatten(0, 1)

        def product(u: np.ndarray) -> np.ndarray:
            field = torch.as_tensor(u, dtype=self.dtype, device=self.device).reshape(shape)
            return _array(mix(self.opened.kernel(mix(field))).reshape(-1))

        operator = LinearOperator((shape.numel(), shape.numel()), matvec=product, dtype=_numpy_dtype(self.dtype))
        columns = []
        for column in _lanczos(operator, k, tol, seed).T:
            field = torch.as_tensor(column, dtype=self.dtype, device=self.device).reshape(shape)
            columns.append(vec(self.opened.vjp(mix(field))))
        basis = torch.stack(columns, dim=1)
        length = basis.norm(dim=0)
        draw = torch.Generator().manual_seed(seed)
        spare = torch.randn(basis.shape, generator=draw, dtype=self.dtype).to(self.device)
        return torch.where(length > 1e-6 * length.max(), basis / length, spare / spare.norm(dim=0))

    def to_scipy(self) -> LinearOperator:
        """A ``scipy.sparse.linalg.LinearOperator`` on NumPy vectors."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array), dtype=self.dtype, device=self.device)

        return LinearOperator(
            self.shape,
            matvec=lambda v: _array(self.matvec(tensor(v.reshape(-1)))),
            rmatvec=lambda v: _array(self.rmatvec(tensor(v.reshape(-1)))),
            matmat=lambda m: _array(self.matmat(tensor(m))),
            dtype=_numpy_dtype(self.dtype),
        )

    # -- the three factors; fields on views are (..., N V, n_L) ---------------------------------------------------------

    def _mix(self, u: Tensor, *, adjoint: bool = False) -> Tensor:
        if u.ndim == 3:  # a batch of k fields: the views' axis must come first
            mixed = self._mix(u.movedim(0, -1).flatten(1), adjoint=adjoint)
            return mixed.reshape(*u.shape[1:], len(u)).movedim(-1, 0)
        out: Tensor = self.mixing(u.unflatten(0, self.population), adjoint=adjoint).flatten(0, 1)
        return out

    def _scales(self) -> tuple[Tensor, Tensor]:
        norm = self.opened.output.norm(dim=1, keepdim=True)
        return norm, self.opened.output / norm

    def _right(self, u: Tensor) -> Tensor:
        """Multiply by what stands right of the connection: ``1 / ||f||`` under normalisation."""
        return u / self._scales()[0] if self.normalize else u

    def _left(self, u: Tensor) -> Tensor:
        r"""Multiply by :math:`P^\perp_f / \|f\|` under normalisation."""
        if not self.normalize:
            return u
        norm, unit = self._scales()
        return project(unit, u) / norm


def covariance_operator(
    net: nn.Module,
    layer: str | nn.Module,
    views: Tensor,
    *,
    loss: str = "simple",
    tau: float | None = None,
    margin: float = 0.0,
    beta: float = 0.0,
    normalize: bool = False,
    clean: Tensor | None = None,
) -> CovarianceOperator:
    r"""The covariance operator of ``layer`` on a population of views.

    views: ``(N, V, ...)``, N samples with V equally likely views each.  The result depends on ``loss``:

    * ``"simple"``: :math:`V_x[\bar K_l]` (Theorem 3 of [tian2020]); with ``beta``, :math:`-\beta EV_l + VE_l` (its Corollary 1).
    * ``"soft_triplet"``, ``"info_nce"``: :math:`\frac12 V^\xi_{x,x'}[\bar K_l(x) - \bar K_l(x')]`, the main term of its
      Theorem 4 (H = 1), with :math:`\xi` from the distances between the outputs of ``clean``, the un-augmented samples
      ``(N, ...)``; needs ``tau``.

    normalize: the network's output is divided by its norm in the loss; the operator then is
    :math:`Cov_x[\overline{K^n P^\perp}, \bar K^n]` (Eq. 56).

    ``net`` may be any ``torch.nn`` network that treats samples independently; ``layer`` a linear or convolutional layer of it.
    Raises ValueError for a population without two axes, an unknown loss, weights without ``clean`` or ``tau``.
    """
    population = _population(views)
    require_one_of("loss", loss, ("simple", *WEIGHTED))
    if loss == "simple":
        mixing = Mixing(inter=1.0, intra=-beta)
    else:
        if beta:
            raise ValueError(f"beta belongs to loss='simple', got beta={beta} with loss={loss!r}")
        if clean is None or tau is None:
            raise ValueError(
                f"loss={loss!r} weighs pairs by the distance of un-augmented samples: give clean=(N, ...) and tau"
            )
        if len(clean) != population[0]:
            raise ValueError(
                f"clean must hold one sample for each of the {population[0]} rows of views, got {len(clean)}"
            )
        mixing = Mixing(weights=pair_weights(net, clean, loss=loss, tau=tau, margin=margin, normalize=normalize))
    opened = open_layer(net, layer, views.flatten(0, 1))
    if normalize and bool((opened.output == 0).all(dim=1).any()):
        raise ValueError("normalize=True needs outputs that aren't zero: that of at least one view is (dead ReLUs?)")
    return CovarianceOperator(opened, population, mixing, normalize)


def intra_operator(net: nn.Module, layer: str | nn.Module, views: Tensor) -> CovarianceOperator:
    r""":math:`EV_l = E_x V_{x' | x}[K_l(x')]`, the covariance *within* augmentations (Eq. 9)."""
    population = _population(views)
    mixing = Mixing(inter=0.0, intra=1.0)
    return CovarianceOperator(open_layer(net, layer, views.flatten(0, 1)), population, mixing)


@torch.no_grad()
def pair_weights(
    net: nn.Module, clean: Tensor, *, loss: str, tau: float, margin: float = 0.0, normalize: bool = False
) -> Tensor:
    r""":math:`\xi(r(x_i, x_j))` of Eq. 6 for all pairs of un-augmented samples, ``(N, N)``."""
    output = net(clean).flatten(1)
    if normalize:
        output = output / output.norm(dim=1, keepdim=True)
    distances = half_squared_distance(output[:, None], output[None, :])
    return pair_weight(distances, loss=loss, tau=tau, margin=margin)


def _population(views: Tensor) -> tuple[int, int]:
    if views.ndim < 3 or views.shape[0] < 1 or views.shape[1] < 1:
        raise ValueError(f"views must have shape (samples, views, ...), got {tuple(views.shape)}")
    return views.shape[0], views.shape[1]


def _lanczos(operator: LinearOperator, k: int, tol: float, seed: int) -> np.ndarray:
    """Eigenvectors ``(n, k)`` of the ``k`` largest eigenvalues of a symmetric operator, largest first."""
    start = np.random.default_rng(seed).standard_normal(operator.shape[0]).astype(operator.dtype)
    if not operator.matvec(start).any():  # a zero operator, on which ARPACK can't start
        return np.eye(operator.shape[0], k, dtype=operator.dtype)
    values, vectors = eigsh(operator, k=k, which="LA", tol=tol, v0=start)
    found: np.ndarray = vectors[:, np.argsort(values)[::-1]]
    return found


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype
