r"""Where symmetry is lost: targets that are held constant; and where there are two networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sslbook.chapters.operators_today.identities import gap
from sslbook.connection import connection, open_layer, vec
from sslbook.gaps import Gaps, worst
from sslbook.mixing import PairMixing
from sslbook.networks import instance_seeds, mlp
from sslbook.operators import CovarianceOperator


def cross_entropy(anchors: Tensor, keys: Tensor) -> Tensor:
    """InfoNCE between rows: row ``i`` of anchors is to find row ``i`` of keys, by inner products ``(n, n)``."""
    return nn.functional.cross_entropy(anchors @ keys.T, torch.arange(len(anchors)))


def _cross_weights(anchors: Tensor, keys: Tensor) -> Tensor:
    r""":math:`M = \partial \ell / \partial (A B^\top)` of :func:`cross_entropy`, ``(n, n)``: a softmax less the identity, by n."""
    products = (anchors @ keys.T).detach().requires_grad_()
    loss = nn.functional.cross_entropy(products, torch.arange(len(products)))
    (slope,) = torch.autograd.grad(loss, products)
    return slope


def _network(seed: int, inputs: int = 6) -> nn.Sequential:
    return mlp((inputs, 8, 7, 4), "leaky_relu", seed=seed)


def stop_gradient_gaps(networks: int = 20, seed: int = 0) -> Gaps:
    r"""Keys that carry no gradient: the step is that of :math:`-M`, not symmetric; with the gradient, of :math:`-(M + M^\top)`.

    lost: the antisymmetric part of ``-M``, relative (the least of the instances).  Anchors and keys are views of one network.
    """
    rows, lost = [], []
    for s in instance_seeds(networks, seed):
        net, draw = _network(s), torch.Generator().manual_seed(s)
        sample = torch.randn(5, 1, 6, generator=draw, dtype=torch.float64)
        views = sample + 0.4 * torch.randn(5, 2, 6, generator=draw, dtype=torch.float64)
        opened = open_layer(net, "2", views.flatten(0, 1))
        slope = torch.zeros(10, 10, dtype=torch.float64)
        slope[::2, 1::2] = _cross_weights(opened.output[::2], opened.output[1::2])
        held, free = (CovarianceOperator(opened, (5, 2), PairMixing(-m)) for m in (slope, slope + slope.T))
        weight = net.get_parameter("2.weight")
        anchors, keys = net(views[:, 0]), net(views[:, 1])
        (stopped,) = torch.autograd.grad(cross_entropy(anchors, keys.detach()), weight, retain_graph=True)
        (whole,) = torch.autograd.grad(cross_entropy(anchors, keys), weight)
        rows.append(
            {
                "held": gap(held.update(), -stopped),
                "through both": gap(free.update(), -whole),
                "broken: half of both": gap(0.5 * free.update(), -stopped),
                "broken: transposed": gap(CovarianceOperator(opened, (5, 2), PairMixing(-slope.T)).update(), -stopped),
            }
        )
        dense = held.dense()
        lost.append(float((dense - dense.T).norm() / (2 * dense.norm())))
    return {**worst(rows), "lost": min(lost)}


def two_network_gaps(networks: int = 20, seed: int = 0) -> Gaps:
    r"""Two networks (CLIP): :math:`\Delta w_1 = B w_2`, :math:`\Delta w_2 = B^\top w_1`, :math:`B = -\sum M_{ij} K_i K_j'^\top`.

    pairs: the eigenvalues of both layers' joint operator against plus and minus the singular values of ``B``.
    """
    rows: list[Gaps] = []
    for s in instance_seeds(networks, seed):
        one, two = _network(s), _network(s + 5000, inputs=5)
        draw = torch.Generator().manual_seed(s)
        x, y = (torch.randn(5, size, generator=draw, dtype=torch.float64) for size in (6, 5))
        a, b = one(x), two(y)
        k, k2 = connection(one, "2", x), connection(two, "2", y)
        cross = -torch.einsum("ino,ij,jmo->nm", k, _cross_weights(a, b), k2)
        weights = one.get_parameter("2.weight"), two.get_parameter("2.weight")
        first, second = torch.autograd.grad(cross_entropy(a, b), weights)
        size, other = cross.shape
        joint = torch.zeros(size + other, size + other, dtype=torch.float64)
        joint[:size, size:], joint[size:, :size] = cross, cross.T
        singular = torch.linalg.svdvals(cross)
        values = torch.linalg.eigvalsh(joint).flip(0)[: len(singular)]
        w, w2 = (vec(weight.detach()) for weight in weights)
        rows.append(
            {
                "first": gap(cross @ w2, vec(-first)),
                "second": gap(cross.T @ w, vec(-second)),
                "pairs": gap(values, singular),
                "broken: its own weights": gap(cross @ w, vec(-first)) if size == other else 1.0,
            }
        )
    return worst(rows)
