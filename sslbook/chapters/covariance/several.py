r"""Many negatives: where the symmetry of Theorem 4 breaks through one tower, and holds through both (Eq. 80 of [tian2020])."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook import losses
from sslbook.chapters.covariance.population import all_tuples, expected_gradient, nce_loss
from sslbook.connection import open_layer, vec
from sslbook.gaps import relative_gap
from sslbook.mixing import Mixing
from sslbook.networks import mlp
from sslbook.operators import CovarianceOperator


def joint_weights(distances: Tensor, negatives: int, tau: float) -> Tensor:
    r"""Mean weight :math:`\Xi_{ij} = N\, E[\sum_k \xi_k 1(x_k = x_j) \mid x = x_i]` of a pair under H negatives, ``(N, N)``.

    ``distances`` are :math:`r(x_i, x_j)`, ``(N, N)``; all :math:`N^H` draws of negatives are listed.  Symmetric for H = 1 only.
    """
    n = len(distances)
    draws = torch.cartesian_prod(*[torch.arange(n)] * negatives).reshape(-1, negatives)
    xi = losses.joint_pair_weight(distances[:, draws], tau)  # (N, N^H, H)
    total = torch.zeros(n, n, dtype=distances.dtype)
    return total.index_add_(1, draws.flatten(), xi.flatten(1)) * (n / len(draws))


@dataclass(frozen=True)
class SeveralNegatives:
    r"""What happens to the operator of InfoNCE without augmentation when there are H negatives, as relative numbers.

    one_tower: enumerated one-tower gradient against :math:`OP\, vec(W)` with the non-symmetric weights (an identity).
    symmetrised: the same against the symmetric operator (what Eq. 67 would give): the break of the symmetry trick.
    both_towers: enumerated two-tower gradient against twice the symmetric operator (an identity for every H).
    without_tau, without_half: the last with Eq. 80's weights as printed, lacking 1/tau, or the half of :math:`r`.
    asymmetry: :math:`\|A - A^T\| / \|A\|` of the one-tower operator.
    """

    negatives: int
    one_tower: float
    symmetrised: float
    both_towers: float
    without_tau: float
    without_half: float
    asymmetry: float


def several_negatives(negatives: int, *, seed: int = 0) -> SeveralNegatives:
    """Measure :class:`SeveralNegatives` on one leaky-ReLU network without augmentation."""
    samples, tau = 5, 2.0
    net = mlp((4, 8, 6, 3), "leaky_relu", seed=seed)
    clean = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    views, layer = clean[:, None], "2"
    opened = open_layer(net, layer, clean)
    distances = losses.half_squared_distance(opened.output[:, None], opened.output[None])

    def operator(r: Tensor, *, symmetric: bool) -> CovarianceOperator:
        xi = joint_weights(r, negatives, tau)
        return CovarianceOperator(opened, (samples, 1), Mixing(weights=0.5 * (xi + xi.T) if symmetric else xi))

    skew, even = operator(distances, symmetric=False), operator(distances, symmetric=True)
    tuples = all_tuples(samples, 1, negatives)
    one = -expected_gradient(net, layer, views, nce_loss(tau), tuples)
    both = -expected_gradient(net, layer, views, nce_loss(tau), tuples, both=True)
    a = skew.dense()
    return SeveralNegatives(
        negatives,
        one_tower=relative_gap(vec(skew.update()), vec(one)),
        symmetrised=relative_gap(vec(even.update()), vec(one)),
        both_towers=relative_gap(vec(2 * even.update()), vec(both)),
        without_tau=relative_gap(vec(2 * tau * even.update()), vec(both)),
        without_half=relative_gap(vec(2 * operator(2 * distances, symmetric=True).update()), vec(both)),
        asymmetry=float((a - a.T).norm() / a.norm()),
    )
