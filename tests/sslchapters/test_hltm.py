"""Trees and lucky nodes; training: gradients, losses, replicas; correlations from samples; tables, curves and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hltm_cases import triplet_loss
from torch import Tensor

from sslbook._random import Streams
from sslbook.trees.exact import TreeNetwork
from sslbook.trees.latent import LatentTree
from sslchapters.audit import hltm as records
from sslchapters.hltm import runs, theory


def test_a_column_of_our_own_trials_is_likely_and_a_shifted_one_is_not() -> None:
    draw = torch.Generator().manual_seed(0)
    shared = torch.randn(1, 1, 50, generator=draw)  # the cells of a trial go together
    trials = shared + 0.3 * torch.randn(3, 3, 50, generator=draw)
    own, others = trials[..., :40], trials[..., 40:]
    column = records.Column(others.mean(-1), others.std(-1), trials=10)
    assert records.chance_of_column(own, column, draws=200, seed=1) > 0.05
    shifted = replace(column, mean=column.mean + 2)
    assert records.chance_of_column(own, shifted, draws=200, seed=1) < 0.02
    error = (own.var(-1) / 40 + column.std.square() / 10).sqrt()
    by_hand = ((own.mean(-1) - column.mean) / error).square().mean().sqrt()
    assert records.distance(own, column) == pytest.approx(float(by_hand))


TINY = runs.TreeRun(depth=3, width=3, batch=32, epoch_size=128)


def parameters(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
    """A measurement: all parameters, ``(R, count)``."""
    return {"all": torch.cat([p.flatten(1) for p in (*net.weights, *net.biases)], 1).clone()}


def test_the_positive_has_the_anchors_root_and_the_negative_half_of_the_time() -> None:
    """With polarities of 1 every leaf shows its root."""
    tree = theory.random_symmetric([1, 2], 2, 1.0, signed=False)
    kept, met, batch = [], [], 128
    for leaves in runs.minibatches(tree, Streams([1, 2]), batch, 100, torch.float32):
        assert leaves.shape == (2, 4, 3 * batch)
        assert leaves.eq(leaves[:, :1]).all()
        anchor, positive, negative = leaves[:, 0].chunk(3, dim=1)
        kept.append(anchor.eq(positive).all())
        met.append(anchor.eq(negative).double().mean(1))
    assert all(kept)
    share = torch.stack(met).mean(0)
    assert ((share - 0.5).abs() < 5 * 0.5 / (100 * batch) ** 0.5).all()


@pytest.mark.parametrize("loss", runs.FORMULAS + runs.MIXED)
@pytest.mark.parametrize("bias", [True, False])
def test_replicas_train_as_torch_would_train_each_alone(loss: str, bias: bool) -> None:
    """Few steps: a product of several replicas may round otherwise than one alone, and each step multiplies it."""
    protocol, seeds = (
        runs.TreeRun(depth=3, width=3, loss=loss, tau=0.3, batch=32, epoch_size=4 * 32, bias=bias),
        [7, 8, 9],
    )
    together = runs.train_trees(protocol, seeds, 1, parameters, [0, 1], dtype=torch.float64)
    for r, seed in enumerate(seeds):
        tree, net = runs.start(protocol, [seed], torch.float64)
        own = [p.requires_grad_() for p in (*net.weights, *net.biases)]
        optimizer = torch.optim.SGD(own, protocol.rate)
        for leaves in runs.minibatches(tree, Streams([seed], "minibatches"), 32, 4, torch.float64):
            optimizer.zero_grad()
            output = runs.normalize(runs.forward(net, leaves).pre[0][:, 0])
            triplet_loss(output, loss, protocol.tau).sum().backward()
            optimizer.step()
        alone = parameters(tree, net, [seed], 1)["all"][0]
        assert (together[1]["all"][r] - alone).abs().max() < 1e-12
        assert (together[0]["all"][r] - alone).abs().max() > 1e-4


@pytest.mark.parametrize("mean", [0.0, 1e8])
def test_the_centred_correlation_is_numpys(mean: float) -> None:
    """Latents in {0, 1}, and units about ``mean`` that follow them more or less."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randint(0, 2, (2, 3, 1000), generator=draw).double()
    share = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64)[:, None]
    f = torch.randn(2, 3, 4, 1000, generator=draw, dtype=torch.float64) + share * z[:, :, None] + mean
    wanted = [np.corrcoef(z[r, node], f[r, node, unit])[0, 1] for r, node, unit in np.ndindex(2, 3, 4)]
    assert (runs.centred_correlation(z, f).flatten() - torch.tensor(wanted)).abs().max() < 1e-12 * max(1, abs(mean))
