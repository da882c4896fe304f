r"""Losses of inner products: the weights with which they join the views of a batch.

Let ``Z``, ``(n, d)``, be the outputs of a batch, a row a view, and let a loss see them through their inner products alone,
:math:`L = \ell(G)`, :math:`G = Z Z^T`.  With :math:`\Gamma = \partial \ell / \partial G`, symmetrised, its gradient in ``Z`` is
:math:`2 \Gamma Z`.  Where each row is :math:`f_a = K_a^T vec(W)` (Theorem 1 of [tian2020]), the step of gradient descent on
``W`` is that of the symmetric operator

    OP = -2 sum_{a,b} Gamma_ab  K_a K_b^T.

Losses of distances, and of outputs scaled to length 1, are losses of inner products: of
:math:`G_{aa} + G_{bb} - 2 G_{ab}`, and of :math:`G_{ab} / \sqrt{G_{aa} G_{bb}}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor], Tensor]
"""From a batch's outputs ``(N, V, d)``, whatever ``d``, to a number."""


def gram_weights(loss: Loss, outputs: Tensor, *, of_gram: bool = False) -> Tensor:
    r""":math:`\Gamma = \partial \ell / \partial G` at :math:`G = Z Z^T`, symmetric, ``(N V, N V)``, in float64.

    outputs: ``(N, V, d)``; ``Z`` has a row for each view.  loss: of the outputs; with ``of_gram``, of ``G``, ``(N V, N V)``.  It
    gets them in float64, since a view is pushed and pulled by weights that nearly cancel: float32 would lose two of its digits.

    A loss of the outputs gets further columns that are zero: :math:`\ell(Z Z^T + Y Y^T) = L([Z, Y])` has the gradient
    :math:`2 \Gamma Y` in ``Y`` near zero, whose derivative along :math:`Y = I` is :math:`2 \Gamma`.  So ``loss`` must take outputs
    of any width.  Unlike any solution of :math:`2 \Gamma Z = \partial L / \partial Z` this is the derivative where ``Z`` has more
    rows than columns, too.

    Raises ValueError where the loss sees more than inner products (:math:`2 \Gamma Z` is then not its gradient), can't be
    differentiated twice or not finitely; TypeError unless it gives one number.
    """
    z = outputs.detach().double()
    rows = z.flatten(0, 1)
    with torch.enable_grad():
        if of_gram:
            gram = (rows @ rows.T).requires_grad_()
            (slope,) = torch.autograd.grad(one_number(loss(gram)), gram)
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
    value = one_number(loss(torch.cat([z, silent], dim=-1)))
    try:
        (slope,) = torch.autograd.grad(value, silent, create_graph=True)
        if not slope.requires_grad:  # of first order in Y, and so nothing of its square
            return z.new_zeros(n, n)
        (twice,) = torch.autograd.grad(slope.reshape(n, n).trace(), silent)
    except RuntimeError as error:
        raise ValueError(f"loss must be differentiable twice by autograd: {str(error).splitlines()[0]}") from error
    return 0.5 * twice.reshape(n, n)


def _require_inner_products(loss: Loss, z: Tensor, weights: Tensor) -> None:
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(one_number(loss(leaf)), leaf)
    seen = 2 * weights @ z.flatten(0, 1)
    apart, size = float((seen - slope.flatten(0, 1)).norm()), float(slope.norm())
    # second derivatives may lose half of the digits; sums that cancel are as exact as what is summed
    if apart > math.sqrt(torch.finfo(z.dtype).eps) * max(size, float(weights.norm() * z.norm())):
        raise ValueError(
            "loss must be one of inner products, of outputs of any width: the gradient of this one isn't twice its derivative "
            f"in G = Z Z^T times Z (they differ by {apart / max(size, apart):.1%}), so it sees more than that, as turning all "
            "outputs would show; the step of any loss is OpenedLayer.vjp of its gradient in the outputs"
        )


def one_number(value: object) -> Tensor:
    """What a loss gave, without its axes; raises TypeError unless it is a tensor of one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"loss must give one number, as a tensor, got {given}")
    return value.reshape(())
