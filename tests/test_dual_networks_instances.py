"""Random instances: every layer, a twin of other weights, nothing silent."""

from __future__ import annotations

import torch
from torch import nn

from sslbook.chapters.dual_networks.instances import instances
from sslbook.gaps import relative_gap

KINDS = ("leaky_relu", "conv", "residual")


def test_every_layer_with_a_twin_of_other_weights() -> None:
    found = list(instances(6, 3, 0, KINDS))
    nets = {id(it.net): it.net for it in found}
    assert len(nets) >= 4  # silent ones are passed over
    for net in nets.values():
        wanted = [name for name, m in net.named_children() if isinstance(m, nn.Linear | nn.Conv2d)]
        assert [it.layer for it in found if it.net is net] == wanted
    for it in found:
        assert it.x1.shape == it.x2.shape
        assert len(it.x1) == 3
        assert it.weight.shape == it.other.shape
        assert relative_gap(it.weight, it.other) > 0.1
        assert str(it.index) == it.layer


def test_seeds_repeat_and_differ() -> None:
    one, again, other = (next(iter(instances(3, 2, seed, KINDS))) for seed in (1, 1, 2))
    assert torch.equal(one.weight, again.weight)
    assert torch.equal(one.x1, again.x1)
    assert one.weight.shape != other.weight.shape or not torch.equal(one.weight, other.weight)


def test_no_output_is_zero() -> None:
    for it in instances(40, 4, 0, ("relu",)):
        for net in (it.net, it.twin):
            for x in (it.x1, it.x2):
                assert bool((net(x).norm(dim=1) > 0).all())
