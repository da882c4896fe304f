"""Random instances: pairs of networks of many kinds, a layer of them, and pairs of inputs, for checking identities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sslbook.connection import Layer
from sslbook.networks import initialize, instance_seeds, random_network


@dataclass(frozen=True)
class Instance:
    """One random network with a twin of other weights, ``pairs`` input pairs, and one of its layers."""

    net: nn.Sequential
    twin: nn.Sequential
    layer: str
    x1: Tensor
    x2: Tensor

    @property
    def index(self) -> int:
        """Position of the layer among the members of the network."""
        return int(self.layer)

    @property
    def weight(self) -> Tensor:
        """The layer's weight."""
        weight = self.net[self.index].weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    @property
    def other(self) -> Tensor:
        """The weight of the twin's layer."""
        weight = self.twin[self.index].weight
        assert isinstance(weight, Tensor)
        return weight.detach()


def instances(networks: int, pairs: int, seed: int, kinds: Sequence[str]) -> Iterator[Instance]:
    """Every top-level linear or convolutional layer of ``networks`` random networks, with ``pairs`` random pairs each.

    Networks with a zero output, or with outputs in a single direction, are passed over: they leave nothing to compare.
    """
    for s in instance_seeds(networks, seed):
        net, shape = random_network(s, kinds)
        twin, _ = random_network(s, kinds)
        initialize(twin, s + 1_000_003)
        draw = torch.Generator().manual_seed(s)
        x1, x2 = torch.randn(2, pairs, *shape, generator=draw, dtype=torch.float64)
        if _silent(net, x1, x2) or _silent(twin, x1, x2):
            continue
        for name, module in net.named_children():
            if isinstance(module, Layer):
                yield Instance(net, twin, name, x1, x2)


def _silent(net: nn.Module, x1: Tensor, x2: Tensor) -> bool:
    """Whether an output is zero, or all pairs of outputs are parallel to rounding."""
    with torch.no_grad():
        y1, y2 = net(x1), net(x2)
    if bool((y1.norm(dim=1) == 0).any() | (y2.norm(dim=1) == 0).any()):
        return True
    return bool((torch.nn.functional.cosine_similarity(y1, y2).abs() >= 1 - 1e-12).all())
