r"""The tree-shaped ReLU network: one small fully connected part :math:`\mathcal N_\mu` for each hidden variable of the tree.

Part :math:`\mu` reads the rectified outputs of its children's parts, the lowest parts read the leaves' values; the root's part
has no rectifier, and its output is divided by its length (Section 6 and Appendix D.1 of [tian2020]).  All replicas and all
parts of a depth are one batched product.  Features stand before samples, ``(R, parts, width, B)``, so that the children's
outputs *are* the parent's input, without a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.runtime.arguments import counted, require_whole
from sslbook.stats.replicas import Streams


@dataclass(frozen=True)
class TreeNetwork:
    """This class holds ``R`` networks on trees of one shape.

    weights: one tensor for each depth, the root's first; ``weights[d]`` is ``(R, nodes at depth d, width, fan-in)``.
    Its last axis lists the children's units, child by child.  biases: tensors ``(R, nodes at depth d, width)``.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    def __repr__(self) -> str:
        sizes = f"{counted(self.replicas, 'replica')}; depth {self.depth}, width {self.width}, {self.weights[0].dtype}"
        return f"TreeNetwork({sizes})"

    @property
    def replicas(self) -> int:
        """Number of networks, ``R``."""
        return self.weights[0].shape[0]

    @property
    def depth(self) -> int:
        """Number of layers, :math:`L`."""
        return len(self.weights)

    @property
    def width(self) -> int:
        r"""Number of units of a part, :math:`|\mathcal N_\mu|`."""
        return self.weights[0].shape[2]

    def replica(self, r: int) -> TreeNetwork:
        """Return network ``r`` alone, with a replica axis of length 1."""
        return self._each(lambda tensor: tensor[r : r + 1])

    def clone(self) -> TreeNetwork:
        """Return a copy that shares no memory with the original."""
        return self._each(Tensor.clone)

    def to(self, target: torch.device | torch.dtype) -> TreeNetwork:
        """Return the networks on another device or in another precision."""
        return self._each(lambda tensor: tensor.to(target))

    def _each(self, change: Callable[[Tensor], Tensor]) -> TreeNetwork:
        return TreeNetwork(tuple(map(change, self.weights)), tuple(map(change, self.biases)))


def initial_network(
    seeds: Sequence[int], branching: Sequence[int], width: int, *, bias: bool = True, dtype: torch.dtype = torch.float32
) -> TreeNetwork:
    r"""Return a network for each seed, with parameters from :math:`U[-1, 1] / \sqrt{\text{fan-in}}`, PyTorch's default.

    branching: the number of a variable's children at each depth, from the root on.
    bias: whether initial biases are drawn; otherwise they start at zero, and training changes them all the same.
    Raises ValueError for a width of 0 or an empty tree.
    """
    require_whole("width", width, least=1)
    if not branching or any(b < 1 for b in branching):
        raise ValueError(f"branching must hold one number of at least 1 a depth, got {tuple(branching)}")
    streams = Streams(seeds, "weights")
    nodes = list(itertools.accumulate((1, *branching[:-1]), lambda n, b: n * b))
    weights, biases = [], []
    for d, (n, b) in enumerate(zip(nodes, branching)):
        fan_in = b if d == len(branching) - 1 else b * width
        drawn = (2 * streams.uniform((n, width, fan_in + 1), torch.float64) - 1) / fan_in**0.5
        weights.append(drawn[..., :fan_in].to(dtype).contiguous())
        biases.append((drawn[..., fan_in] * bias).to(dtype).contiguous())
    return TreeNetwork(tuple(weights), tuple(biases))


@dataclass(frozen=True)
class Activity:
    r"""What a forward pass leaves, one tensor a depth, root first.

    inputs: what a part reads, rectified, ``(R, nodes, fan-in, B)``.
    pre: pre-activations :math:`\tilde f`, ``(R, nodes, width, B)``; ``pre[0]`` is the output before the division by its length.
    """

    inputs: tuple[Tensor, ...]
    pre: tuple[Tensor, ...]


def forward(net: TreeNetwork, leaves: Tensor) -> Activity:
    """Run ``leaves`` of shape ``(R, leaves, B)`` through all parts, from the bottom up."""
    inputs: list[Tensor] = []
    pre: list[Tensor] = []
    below = leaves.to(net.weights[0].dtype)
    for weight, bias in zip(reversed(net.weights), reversed(net.biases)):
        r, nodes, width, fan_in = weight.shape
        read = below.reshape(r * nodes, fan_in, -1)
        out = torch.baddbmm(bias.reshape(-1, width, 1), weight.flatten(0, 1), read)
        inputs.append(read.unflatten(0, (r, nodes)))
        pre.append(out.unflatten(0, (r, nodes)))
        below = out.relu()
    return Activity(tuple(reversed(inputs)), tuple(reversed(pre)))
