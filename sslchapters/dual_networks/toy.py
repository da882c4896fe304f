r"""The smallest pair of copies with a gate: a 2-2-1 network whose numbers can be followed with a pencil.

Weights :math:`W_1 = (1, 0; 1, -1)` and :math:`W_2 = (1, 1)`, inputs :math:`x_1 = (2, 1)` and :math:`x_2 = (1, 2)`.  Only
:math:`W_1` moves.  The second unit is on in the first copy and off in the second.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sslbook.losses import pairs
from sslbook.networks.small import mlp
from sslbook.operator.layer import connection, vec

BELOW, ABOVE = ((1.0, 0.0), (1.0, -1.0)), ((1.0, 1.0),)


def network(below: Tensor | None = None) -> nn.Sequential:
    """The 2-2-1 ReLU network; ``below (2, 2)`` in the place of :math:`W_1`."""
    net = mlp((2, 2, 1))
    net[0].weight = nn.Parameter(torch.tensor(BELOW).double() if below is None else below)
    net[2].weight = nn.Parameter(torch.tensor(ABOVE).double())
    return net


def inputs() -> Tensor:
    """The two inputs, ``(2, 2)``."""
    return torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)


def distance(net: nn.Module) -> Tensor:
    r""":math:`r = \frac12 \|f(x_1) - f(x_2)\|^2` of the two inputs."""
    one, two = net(inputs())
    return pairs.half_squared_distance(one, two)


def stepped(rate: float) -> nn.Sequential:
    r"""The network after one step :math:`-\eta\, (K_1 - K_2)(K_1 - K_2)^T vec(W)` of its lower layer; it needs no gradient."""
    net = network()
    below = next(net.parameters())
    (gradient,) = torch.autograd.grad(distance(net), below)
    return network(below.detach() - rate * gradient).requires_grad_(False)


def frozen(rate: float) -> float:
    r"""What :math:`r` would be after that step if no gate switched: the outputs are then linear in the weights."""
    k = connection(network(), "0", inputs())[..., 0]
    return float(0.5 * ((k[0] - k[1]) @ vec(next(stepped(rate).parameters()))) ** 2)


def on(before: Tensor) -> Tensor:
    """Which units are on; a pre-activation of 0, up to rounding, is off."""
    return before > 1e-12
