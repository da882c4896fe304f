"""Trees and lucky nodes; training: gradients, losses, replicas; correlations from samples; tables, curves and records."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hltm_cases import correlation, triplet_loss
from scipy import integrate, stats
from torch import Tensor

from sslbook._random import Streams
from sslbook.trees import latent as trees
from sslbook.trees.exact import TreeNetwork, initial_network
from sslbook.trees.latent import LatentTree
from sslchapters.audit import hltm as records
from sslchapters.hltm import lucky_nodes, runs, theory


@pytest.mark.parametrize("y", [-2.0, 0.1, 3.0, 40.0])
def test_mills_ratio_is_its_integral(y: float) -> None:
    integral, _ = integrate.quad(lambda t: math.exp(-y * t - t * t / 2), 0, math.inf, epsabs=0, epsrel=1e-12)
    assert lucky_nodes.mills_ratio(y) == pytest.approx(integral, rel=1e-11)
    if y <= 10:
        assert lucky_nodes.mills_ratio(y) == pytest.approx(stats.norm.sf(y) / stats.norm.pdf(y), rel=1e-10)


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


@pytest.mark.parametrize("loss", runs.FORMULAS + runs.MIXED)
def test_a_step_is_gradient_descent_on_the_loss(loss: str) -> None:
    protocol = replace(TINY, loss=loss, tau=0.3)
    tree, net = runs.start(protocol, [1, 2], torch.float64)
    leaves = next(runs.minibatches(tree, Streams([1, 2], "minibatches"), 32, 1, torch.float64))
    copy = net.each(torch.clone)
    before = [p.requires_grad_() for p in (*copy.weights, *copy.biases)]
    value = triplet_loss(runs.normalize(runs.forward(copy, leaves).pre[0][:, 0]), loss, protocol.tau)
    slopes = torch.autograd.grad(value.sum(), before)
    runs.step(net, leaves, protocol)
    for new, old, slope in zip((*net.weights, *net.biases), before, slopes, strict=True):
        assert (new - (old - protocol.rate * slope)).abs().max() < 1e-13
        assert slope.abs().max() > 0


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


@pytest.mark.parametrize(("loss", "width"), [("printed", 2), ("released", 10)])
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_replica_trains_as_it_would_alone(loss: str, width: int, dtype: torch.dtype, bar: float) -> None:
    """Few steps: a product of several replicas may round otherwise than one alone, and 120 steps make a millionfold of it."""
    protocol = runs.TreeRun(depth=3, width=width, loss=loss, batch=32, epoch_size=32 * 4)
    together = runs.train_trees(protocol, [7, 8, 9, 10, 11], 1, parameters, [0, 1], dtype=dtype)
    for r in (1, 4):
        alone = runs.train_trees(protocol, [7 + r], 1, parameters, [1], dtype=dtype)[1]["all"][0]
        assert (together[1]["all"][r] - alone).abs().max() <= bar
    assert (together[1]["all"] - together[0]["all"]).abs().max() > 1e3 * bar


@pytest.mark.parametrize("mean", [0.0, 1e8])
def test_the_centred_correlation_is_numpys(mean: float) -> None:
    """Latents in {0, 1}, and units about ``mean`` that follow them more or less."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randint(0, 2, (2, 3, 1000), generator=draw).double()
    share = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64)[:, None]
    f = torch.randn(2, 3, 4, 1000, generator=draw, dtype=torch.float64) + share * z[:, :, None] + mean
    wanted = [np.corrcoef(z[r, node], f[r, node, unit])[0, 1] for r, node, unit in np.ndindex(2, 3, 4)]
    assert (runs.centred_correlation(z, f).flatten() - torch.tensor(wanted)).abs().max() < 1e-12 * max(1, abs(mean))


@pytest.mark.parametrize("branching", [(2, 2, 2), (1, 3, 2)])
def test_the_forward_pass_is_a_loop_over_the_parts(branching: tuple[int, ...]) -> None:
    net = initial_network([1, 2], branching, 3, dtype=torch.float64)
    x = torch.rand(2, int(np.prod(branching)), 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = runs.forward(net, x)
    for r in range(2):
        read = [leaf[:, None] for leaf in x[r]]
        for d in reversed(range(net.depth)):
            blocks = [torch.cat(read[i : i + branching[d]], 1) for i in range(0, len(read), branching[d])]
            parts = [
                torch.nn.functional.linear(*part)
                for part in zip(blocks, net.weights[d][r], net.biases[d][r], strict=True)
            ]
            assert (found.pre[d][r].transpose(1, 2) - torch.stack(parts)).abs().max() < 1e-13
            assert (found.inputs[d][r].transpose(1, 2) - torch.stack(blocks)).abs().max() < 1e-13
            read = [part.relu() for part in parts]


def test_the_best_linear_unit() -> None:
    """One leaf: its own correlation.  Two: no unit on a circle of directions is better, and the best of them is as good."""
    alone = trees.symmetric_binary([torch.tensor([[0.7], [-0.4]], dtype=torch.float64)], root_polarity=0.0)
    assert runs.best_linear(alone).tolist() == pytest.approx([0.7, 0.4])
    tree = trees.random_categorical([5, 6], (2, 2), (2,))
    assignments, chance = theory.joint(tree)
    angle = torch.linspace(0, math.pi, 20_001, dtype=torch.float64)
    units = torch.stack([angle.cos(), angle.sin()], 1) @ assignments[-1][0].double()
    for found, p in zip(runs.best_linear(tree), chance, strict=True):
        tried = correlation(assignments[0][0, 0].double(), units, p).abs()
        assert float(tried.max()) <= float(found) + 1e-12
        assert float(tried.max()) == pytest.approx(float(found), abs=1e-7)
