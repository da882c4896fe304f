"""The gradient of the tree-shaped network by hand: through the division by the output's length, then down the parts."""

from __future__ import annotations

import torch
from torch import Tensor

from sslbook.trees.network import Activity, TreeNetwork

EPSILON = 1e-4
"""Added to the output's length before the division, as in the released experiments."""


def normalize(output: Tensor, epsilon: float = EPSILON) -> Tensor:
    """``output / (length + epsilon)`` along the axis of the units, ``(R, width, B)``."""
    return output / (length(output) + epsilon)


def length(output: Tensor) -> Tensor:
    """Length along the axis of the units, ``(R, 1, B)``."""
    return output.square().sum(1, keepdim=True).sqrt_()


def normalize_backward(output: Tensor, grad: Tensor, epsilon: float = EPSILON) -> Tensor:
    r"""Gradient through :func:`normalize` of an output :math:`o` of length n.

    :math:`(g - \hat o\,(\hat o^\top g)\,n / (n + \epsilon)) / (n + \epsilon)` with :math:`\hat o = o / n`, or 0 for :math:`o = 0`.
    """
    n = length(output)
    scale = n + epsilon
    along = (output * grad).sum(1, keepdim=True) / (n.clamp_min(torch.finfo(output.dtype).tiny) * scale)
    return (grad - output * along) / scale


def backward(net: TreeNetwork, seen: Activity, grad: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of all weights and biases, root first, from that of the root's pre-activation ``(R, width, B)``."""
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    above = grad.contiguous()
    for d, weight in enumerate(net.weights):
        r, nodes, width, _ = weight.shape
        g, read = above.view(r * nodes, width, -1), seen.inputs[d].flatten(0, 1)
        weights.append(torch.bmm(g, read.transpose(1, 2)).view_as(weight))
        biases.append(g.sum(-1).view(r, nodes, width))
        if d + 1 < net.depth:
            down = torch.bmm(weight.flatten(0, 1).transpose(1, 2), g)
            # the rows of read are the children's units, rectified
            above = torch.ops.aten.threshold_backward(down, read, 0.0)
    return weights, biases
