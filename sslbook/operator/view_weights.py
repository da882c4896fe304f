r"""The matrix ``C`` on the views of a population from which an operator is made: :math:`OP = \sum_{ab} C_{ab} L_a R_b^T`.

:class:`Mixing` is that of the papers' operators, a few means and differences; :class:`PairMixing` is any matrix, such as that of a
loss of inner products.  Let ``Z``, ``(n, d)``, be the outputs of a batch, a row a view, and let a loss see them through their inner
products alone, :math:`L = \ell(G)`, :math:`G = Z Z^T`.  With :math:`\Gamma = \partial \ell / \partial G`, symmetrised, its
gradient in ``Z`` is :math:`2 \Gamma Z`.  Where each row is :math:`f_a = K_a^T vec(W)` (Theorem 1 of [tian2020]), the step of
gradient descent on ``W`` is that of the symmetric operator

    OP = -2 sum_{a,b} Gamma_ab  K_a K_b^T.

Losses of distances, and of outputs scaled to length 1, are losses of inner products: of
:math:`G_{aa} + G_{bb} - 2 G_{ab}`, and of :math:`G_{ab} / \sqrt{G_{aa} G_{bb}}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sslbook._ambient import beside, with_gradients
from sslbook.operator.frozen import OTHERS, sentences


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
        """Whether ``C`` is symmetric, up to rounding."""
        return self.weights is None or _is_symmetric(self.weights)

    @cached_property
    def _laplacian(self) -> Tensor:
        """``diag(sum_j xi_ij) - xi_ij`` without the terms ``i = j``, which cancel: in floating point only if left out."""
        assert self.weights is not None
        xi = self.weights - torch.diag(self.weights.diagonal())
        return torch.diag(xi.sum(1)) - xi


@dataclass(frozen=True, eq=False)
class PairMixing:
    r"""Any matrix ``C`` on the views, ``(N V, N V)``, rows and columns in the order of the flattened views.

    Of a loss of inner products it is :math:`-2 \Gamma` (:func:`gram_weights`).  Fields are mixed in its dtype and come back in
    their own.
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
        """Whether ``C`` is symmetric, up to rounding."""
        return _is_symmetric(self.matrix)


def _is_symmetric(matrix: Tensor) -> bool:
    """Up to 1000 units of rounding of its largest entry: a processor may round equal exponentials differently."""
    return bool((matrix - matrix.T).abs().max() <= 1000 * torch.finfo(matrix.dtype).eps * matrix.abs().max())


# --- losses of inner products, and the weights with which they join the views ----------------------------------------

Loss = Callable[[Tensor], Tensor]
"""From a batch's outputs ``(N, V, d)``, whatever ``d``, to a number."""


def name_of(loss: Loss) -> str:
    """A function's name, or its kind's."""
    return str(getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__))


def own_loss(loss: Loss, *, of_gram: bool = False) -> Loss:
    """A loss of the caller's own, which raises TypeError or ValueError, with its form in a sentence, where it isn't one."""
    taken = "inner products (N V, N V)" if of_gram else "outputs (N, V, d) of any width d; two views: z[:, 0], z[:, 1]"
    form = f"a loss is a function of the {taken}"

    def called(given: Tensor) -> Tensor:
        what = f"loss {name_of(loss)} fails on a tensor of shape {tuple(given.shape)} ({form})"
        with sentences(what, OTHERS), beside(given):
            value = loss(given)
        if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
            got = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"loss must give one number, as a tensor, got {got}: {form}")
        if not value.requires_grad:
            raise ValueError(
                f"loss must be differentiable, what {name_of(loss)} gives has no graph (item, detach?): {form}"
            )
        return value.reshape(())

    return called


@with_gradients
def gram_weights(loss: Loss, outputs: Tensor, *, of_gram: bool = False) -> Tensor:
    r""":math:`\Gamma = \partial \ell / \partial G` at :math:`G = Z Z^T`, symmetric, ``(N V, N V)``, in float64.

    outputs: ``(N, V, d)``; ``Z`` has a row for each view.  loss: of the outputs; with ``of_gram``, of ``G``, ``(N V, N V)``.  It
    gets them in float64, since a view is pushed and pulled by weights that nearly cancel: float32 would lose two of its digits.

    A loss of the outputs gets further columns that are zero: :math:`\ell(Z Z^T + Y Y^T) = L([Z, Y])` has the gradient
    :math:`2 \Gamma Y` in ``Y`` near zero, whose derivative along :math:`Y = I` is :math:`2 \Gamma`.  So ``loss`` must
    take outputs of any width.  The equation :math:`2 \Gamma Z = \partial L / \partial Z` alone may have many solutions.

    Raises ValueError where the loss sees more than inner products (:math:`2 \Gamma Z` is then not its gradient), can't be
    differentiated twice or not finitely.
    """
    z = outputs.detach().double()
    rows = z.flatten(0, 1)
    with sentences("loss must be differentiable twice by autograd"):
        if of_gram:
            gram = (rows @ rows.T).requires_grad_()
            (slope,) = torch.autograd.grad(loss(gram), gram)
        else:
            slope = _silent_slope(loss, z)
            _require_inner_products(loss, z, slope)
    if not bool(slope.isfinite().all()):
        raise ValueError(
            "loss: its derivative in the inner products of these outputs isn't finite (an output of length 0?)"
        )
    return 0.5 * (slope + slope.T)


def _silent_slope(loss: Loss, z: Tensor) -> Tensor:
    r"""Half the derivative of :math:`\nabla_Y L([Z, Y])` at ``Y = 0`` along the identity: one product with the Hessian."""
    n = z.shape[0] * z.shape[1]
    silent = z.new_zeros(*z.shape[:2], n, requires_grad=True)
    value = loss(torch.cat([z, silent], dim=-1))
    (slope,) = torch.autograd.grad(value, silent, create_graph=True)
    if not slope.requires_grad:  # of first order in Y, and so nothing of its square
        return z.new_zeros(n, n)
    (twice,) = torch.autograd.grad(slope.reshape(n, n).trace(), silent)
    return 0.5 * twice.reshape(n, n)


def _require_inner_products(loss: Loss, z: Tensor, weights: Tensor) -> None:
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf), leaf)
    seen = 2 * weights @ z.flatten(0, 1)
    apart, size = float((seen - slope.flatten(0, 1)).norm()), float(slope.norm())
    # second derivatives may lose half of the digits; sums that cancel are as exact as what is summed
    if apart > math.sqrt(torch.finfo(z.dtype).eps) * max(size, float(weights.norm() * z.norm())):
        raise ValueError(
            "loss must be one of inner products, of outputs of any width: the gradient of this one isn't twice its derivative "
            f"in G = Z Z^T times Z (they differ by {apart / max(size, apart):.1%}), so it sees more than that, as turning all "
            "outputs would show; the step of any loss is OpenedLayer.vjp of its gradient in the outputs"
        )
