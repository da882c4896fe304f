r"""Reversible layers: the matrices whose product a network is, and the degree of its homogeneity.

A network without biases is a product of matrices whose *gates* depend on the input; for one of its modules

    module(u) = G(u) u        and        d module(u) / du = Q(u) G(u).

Definition 2 of [tian2020] calls such a layer *reversible*.  :func:`transitions` multiplies these matrices
from a layer up to the output and returns both products, :math:`V^f_l` and :math:`V^b_l` of Lemma 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sslbook.networks.small import Power, Residual


def gates(module: nn.Module, u: Tensor) -> tuple[Tensor, Tensor] | None:
    r"""Diagonals of :math:`G` and :math:`QG` for an element-wise activation at ``u``; ``None`` for other modules.

    ReLU and leaky ReLU have :math:`Q = I`; the monomial :math:`u^p` has :math:`G = \mathrm{diag}(u^{p-1})`, :math:`Q = pI`.
    """
    if isinstance(module, nn.ReLU):
        gate = (u > 0).to(u.dtype)
        return gate, gate
    if isinstance(module, nn.LeakyReLU):
        gate = torch.where(u > 0, torch.ones_like(u), torch.full_like(u, module.negative_slope))
        return gate, gate
    if isinstance(module, Power):
        gate = u ** (module.p - 1)
        return gate, module.p * gate
    return None


def stage_matrices(module: nn.Module, u: Tensor) -> tuple[Tensor, Tensor]:
    r"""Per-sample matrices :math:`(G, QG)` of one module at its input ``u`` of shape ``(B, ...)``.

    Shapes ``(B, out, in)`` on flattened features.  Sequential modules multiply, residual blocks add, activations are
    diagonal, everything else must be a linear map without bias and is read off from its action on a basis.
    """
    batch = u.shape[0]
    pair = gates(module, u)
    if pair is not None:
        return torch.diag_embed(pair[0].reshape(batch, -1)), torch.diag_embed(pair[1].reshape(batch, -1))
    if isinstance(module, nn.Sequential):
        return _product(list(module), u)
    if isinstance(module, Residual):
        skip, branch = stage_matrices(module.skip, u), stage_matrices(module.branch, u)
        return skip[0] + branch[0], skip[1] + branch[1]
    if getattr(module, "bias", None) is not None:
        raise ValueError(f"{type(module).__name__} has a bias: it isn't reversible (Definition 2)")
    if not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Identity, nn.AvgPool2d)):
        raise TypeError(f"no gate form is known for {type(module).__name__}")
    size = u[0].numel()
    basis = torch.eye(size, dtype=u.dtype, device=u.device).reshape(size, *u.shape[1:])
    matrix = module(basis).reshape(size, -1).T
    return matrix.expand(batch, -1, -1), matrix.expand(batch, -1, -1)


def _product(stages: Sequence[nn.Module], u: Tensor) -> tuple[Tensor, Tensor]:
    size = u[0].numel()
    eye = torch.eye(size, dtype=u.dtype, device=u.device).expand(u.shape[0], -1, -1)
    secant, tangent = eye, eye
    for stage in stages:
        g, qg = stage_matrices(stage, u)
        secant, tangent, u = g @ secant, qg @ tangent, stage(u)
    return secant, tangent


@dataclass(frozen=True)
class Transitions:
    r"""Lemma 1's transition matrices at one layer, for a batch of ``B`` inputs.

    forward:  :math:`V^f_l`, shape ``(B, n_L, n_l)``: the output is ``forward @ preactivation``.
    backward: :math:`V^b_l`, shape ``(B, n_L, n_l)``: the Jacobian of the output in the pre-activation.
    preactivation: :math:`\tilde f_l`, shape ``(B, n_l)``, flattened.
    """

    forward: Tensor
    backward: Tensor
    preactivation: Tensor


@torch.no_grad()
def transitions(net: nn.Sequential, layer: int, x: Tensor) -> Transitions:
    r"""Transition matrices :math:`V^f_l, V^b_l` above member ``layer`` of a reversible ``net`` (Lemma 1 of [tian2020]).

    :math:`V^f_{l-1} = V^f_l G_l` and :math:`V^b_{l-1} = V^b_l Q_l G_l`, starting from the identity at the output.
    """
    preactivation: Tensor = net[: layer + 1](x)
    forward, backward = _product(list(net)[layer + 1 :], preactivation)
    return Transitions(forward, backward, preactivation.flatten(1))


def degree(net: nn.Sequential, layer: int) -> int:
    r"""Degree of homogeneity :math:`\kappa_l` of the output in the pre-activation of member ``layer``.

    :math:`J_l \tilde f_l = \kappa_l f_L` by Euler's theorem; :math:`\kappa_l = p^m` for ``m`` monomial activations above,
    1 for ReLU networks.  The skip and the branch of a residual block must have one degree.

    Raises ValueError where the output isn't homogeneous (a bias, a block of two degrees), TypeError for a module whose degree
    isn't known.
    """
    above = net[layer + 1 :]
    if any(getattr(m, "bias", None) is not None for m in [net[layer], *above.modules()]):
        raise ValueError("a bias at or above this layer: the output isn't homogeneous in its pre-activation")
    return _degree(above)


DEGREE_ONE = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.PReLU),
    *(nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd),
    *(nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd),
    nn.modules.dropout._DropoutNd,
)


def _degree(module: nn.Module) -> int:
    if isinstance(module, nn.Sequential):
        return math.prod(_degree(stage) for stage in module)
    if isinstance(module, Residual):
        skip, branch = _degree(module.skip), _degree(module.branch)
        if skip != branch:
            raise ValueError(f"a residual block adds terms of degree {skip} and {branch}: not homogeneous")
        return skip
    if isinstance(module, Power):
        return module.p
    if not isinstance(module, DEGREE_ONE) or (isinstance(module, nn.modules.dropout._DropoutNd) and module.training):
        raise TypeError(f"no degree of homogeneity is known for {type(module).__name__}")
    return 1
