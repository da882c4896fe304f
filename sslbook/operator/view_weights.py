r"""The matrix ``C`` on the views of a population from which an operator is made: :math:`OP = \sum_{ab} C_{ab} L_a R_b^T`.

:class:`Mixing` is that of the papers' operators, a few means and differences; :class:`PairMixing` is any matrix, such as that
of a loss of inner products.  Both are called with a field ``u`` on ``(N, V, ...)`` and return ``C u``, or ``C^T u`` if
``transposed``; and both have a ``root``, which squares to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sslbook._ambient import default_device_of, with_gradients
from sslbook.operator.frozen import sentences

Loss = Callable[[Tensor], Tensor]
"""From a batch's outputs ``(N, V, d)``, whatever ``d``, to a number."""


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

    def __call__(self, u: Tensor, *, transposed: bool = False) -> Tensor:
        r"""Return ``C u``, or ``C^T u`` if ``transposed``, in the shape of ``u``.

        The sum over ``j`` is the Laplacian of :math:`\xi` on the samples' means :math:`\bar u_i`.  It sends a constant to zero, and
        so what samples have in common, which would only bring rounding, is taken off them first.
        """
        n, v = u.shape[:2]
        mean = u.mean(dim=1, keepdim=True)
        if self.weights is None:
            between = (mean - mean.mean(dim=0, keepdim=True)) / n
        else:
            flat = mean.reshape(n, -1)
            if not transposed:
                flat = flat - flat.mean(dim=0)
            laplacian = self._laplacian.to(flat.dtype)
            between = ((laplacian.T if transposed else laplacian) @ flat).reshape(mean.shape) / n**2
        return (self.inter * between + (self.intra / n) * (u - mean)) / v

    def root(self, samples: int, views: int) -> Mixing | None:
        r"""Return the mixing :math:`C^{1/2}` on ``(samples, views, ...)``; ``None`` unless it is symmetric and no term is negative.

        ``C`` acts on means and on differences from them, so that its root has the roots of their factors; that of :math:`\xi` is
        the root of its Laplacian.
        """
        if min(self.inter, self.intra) < 0 or not is_symmetric(self.weights):
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
    def _laplacian(self) -> Tensor:
        r""":math:`\mathrm{diag}(\sum_j \xi_{ij}) - \xi_{ij}`, ``(N, N)``.

        The terms ``i = j`` cancel: in floating point only if they are left out, since one of them may be large.
        """
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

    def __call__(self, u: Tensor, *, transposed: bool = False) -> Tensor:
        """Return ``C u`` for a field on ``(N, V, ...)``, or ``C^T u`` if ``transposed``; the shape and dtype of ``u``."""
        out: Tensor = (self.matrix.mT if transposed else self.matrix) @ u.flatten(0, 1).flatten(1).to(self.matrix.dtype)
        return out.to(u.dtype).reshape(u.shape)

    def root(self, samples: int, views: int) -> PairMixing | None:
        r"""Return the mixing :math:`C^{1/2}`, by the eigenvalues of ``C``.

        ``None`` unless it is symmetric and has no negative eigenvalue, which has no real root, beyond rounding:
        ``N V`` units of the largest.
        """
        if not is_symmetric(self.matrix):
            return None
        values, vectors = torch.linalg.eigh(self.matrix)
        if float(values[0]) < -len(values) * torch.finfo(values.dtype).eps * float(values[-1].abs()):
            return None
        return PairMixing((vectors * values.clamp_min(0).sqrt()) @ vectors.T)


def is_symmetric(matrix: Tensor | None) -> bool:
    """Return whether a matrix equals its transpose, to 1000 units of rounding of its largest entry; None, for weights 1, does.

    A processor may round the two equal exponentials of a pair differently; what it refuses must not depend on that.
    """
    if matrix is None:
        return True
    return bool((matrix - matrix.T).abs().max() <= 1000 * torch.finfo(matrix.dtype).eps * matrix.abs().max())


def one_number(loss: Loss, z: Tensor) -> Tensor:
    """Return the value of a caller's loss of outputs ``z (N, V, d)``, a scalar tensor with its graph.

    New tensors that the loss makes are on the device of ``z``.  Raises TypeError where it gives something else, as a float or a
    detached tensor, which has lost its derivative.
    """
    with default_device_of(z):
        value = loss(z)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        wanted = "map the outputs (N, V, d) of a batch, of any width d, to one number, a tensor with its graph"
        raise TypeError(f"loss must {wanted}; of the shape {tuple(z.shape)} it made {value!r:.60}")
    return value.reshape(())


@with_gradients
def gram_weights(loss: Loss, outputs: Tensor, *, of_gram: bool = False) -> Tensor:
    r"""Return :math:`\Gamma = \partial \ell / \partial G` at :math:`G = Z Z^T`, symmetric, ``(N V, N V)``, in float64.

    outputs: ``(N, V, d)``; ``Z`` has a row for each view.  loss: of the outputs; with ``of_gram``, of ``G``, ``(N V, N V)``.  It
    gets them in float64, since a view is pushed and pulled by weights that nearly cancel: float32 would lose two of its digits.

    Let a loss see the outputs through their inner products alone, :math:`L = \ell(G)`.  Its gradient in ``Z`` is
    :math:`2 \Gamma Z`.  Where each row is :math:`f_a = K_a^T vec(W)` (Theorem 1 of [tian2020]), the step of gradient descent on
    ``W`` is that of the symmetric operator :math:`OP = -2 \sum_{ab} \Gamma_{ab} K_a K_b^T`.  Losses of distances, and of outputs
    scaled to length 1, are among these: of :math:`G_{aa} + G_{bb} - 2 G_{ab}`, and of :math:`G_{ab} / \sqrt{G_{aa} G_{bb}}`.

    A loss of the outputs gets further columns that are zero: :math:`\ell(Z Z^T + Y Y^T) = L([Z, Y])` has the gradient
    :math:`2 \Gamma Y` in ``Y`` near zero, whose derivative along :math:`Y = I` is :math:`2 \Gamma`.  So ``loss`` must
    take outputs of any width.  The equation :math:`2 \Gamma Z = \partial L / \partial Z` alone may have many solutions.

    Raises ValueError where the loss sees more than inner products (:math:`2 \Gamma Z` is then not its gradient; its step is
    :meth:`sslbook.operator.layer.OpenedLayer.vjp` of that), can't be differentiated twice or not finitely.

    >>> z = torch.tensor([[[1.0], [0.0]], [[0.0], [2.0]]])  # two samples, two views, one output
    >>> gram_weights(lambda z: (z[:, 0] * z[:, 1]).sum(), z)[:2, :2]  # attraction of the two views of a sample
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    z = outputs.detach().double()
    rows, eps = z.flatten(0, 1), torch.finfo(z.dtype).eps
    with sentences("loss must be differentiable twice by autograd"):
        if of_gram:
            gram = (rows @ rows.T).requires_grad_()
            (weights,) = torch.autograd.grad(one_number(loss, gram), gram)
        else:
            silent = z.new_zeros(*z.shape[:2], len(rows), requires_grad=True)
            (slope,) = torch.autograd.grad(one_number(loss, torch.cat([z, silent], -1)), silent, create_graph=True)
            weights = z.new_zeros(len(rows), len(rows))
            if slope.requires_grad:  # else of first order in Y, and so nothing of its square
                (twice,) = torch.autograd.grad(slope.flatten(0, 1).trace(), silent)
                weights = 0.5 * twice.flatten(0, 1)
            (gradient,) = torch.autograd.grad(one_number(loss, leaf := z.clone().requires_grad_()), leaf)
            apart, size = float((2 * weights @ rows - gradient.flatten(0, 1)).norm()), float(gradient.norm())
            if apart > math.sqrt(eps) * max(size, float(weights.norm() * z.norm())):  # half of the digits
                gap = f"its gradient differs by {apart / max(size, apart):.1%} from that in G = Z Z^T"
                raise ValueError(f"loss must be one of inner products, of outputs of any width: {gap}")
        if not bool(weights.isfinite().all()):
            raise ValueError("loss must have finite derivatives in the inner products (an output of length 0?)")
    return 0.5 * (weights + weights.T)
