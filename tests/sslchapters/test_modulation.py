"""Networks trained on tokens and on quarters of images: the fast step, worlds, scores, crops, filters; Table 1 and the figures."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from sslbook._random import Streams
from sslchapters.modulation import instances, runs

TINY = runs.TokenRun(fields=4, tokens=6, generators=5, fixed=2, outputs=3, batch=9, steps=20)
MODES = ("normal", "detach", "omit")


def embed(world: instances.World, tokens: torch.Tensor) -> torch.Tensor:
    """Vectors of tokens ``(R, ..., K)``: ``(R, ..., K, d)``, of the world's dtype."""
    hot = torch.nn.functional.one_hot(tokens, world.lengths.shape[1]).to(world.lengths)
    return hot * world.lengths.view(len(world.lengths), *(1,) * (tokens.ndim - 1), -1)


@pytest.mark.parametrize(("group", "form"), [("view", "released"), ("batch", "printed")])
def test_replicas_train_as_torch_would_train_each_alone(group: str, form: str) -> None:
    """Of every kind, side by side; few steps, since each multiplies what is rounded in another order."""
    protocol = replace(TINY, group=group, form=form, steps=3)
    kinds = itertools.product(instances.ACTIVATIONS, MODES, MODES, ("info_nce", "quadratic"), (1.0, 3.0))
    replicas = [(runs.TableCell(p := 1 + seed % 2, 2 // p, *kind), seed) for seed, kind in enumerate(kinds)]
    (mine,), _ = runs.train_course(protocol, replicas, [protocol.steps], dtype=torch.float64)
    for r, (cell, seed) in enumerate(replicas):
        world, begun = runs.world_of(protocol, [(cell, seed)]), runs.initial_state(protocol, [seed], 2, torch.float64)
        w, v = (part[0].clone().requires_grad_() for part in begun)
        optimizer = torch.optim.SGD([w, v], protocol.rate, protocol.momentum, weight_decay=protocol.decay)
        tokens = instances.draw_pairs(world, Streams([seed], "pairs"), protocol.batch, protocol.steps)
        for x in embed(world, tokens)[0]:
            optimizer.zero_grad()
            z = instances.unit_outputs(x, w, v, activation=cell.activation, mean=cell.mean, std=cell.std, group=group)
            instances.contrastive_loss(z, cell.loss, form, protocol.tau).backward()
            optimizer.step()
        for part, true, old in zip((mine.weights[r], mine.top[r]), (w, v), begun, strict=True):
            assert (part - true).norm() <= 1e-9 * (true - old[0]).norm(), cell


def test_printed_losses_are_those_of_distances() -> None:
    z = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = z / z.norm(dim=-1, keepdim=True)
    far, near = 0.5 * torch.cdist(z[0], z[0]).square(), 0.5 * (z[0] - z[1]).square().sum(-1)
    own, tau = torch.eye(8, dtype=torch.bool), 0.3
    weights = (-far / tau).exp().masked_fill(own, 0).sum(-1)
    eq1 = -tau * ((-near / tau).exp() / ((-near / tau).exp() + weights)).log().sum()
    assert instances.contrastive_loss(z, "info_nce", "printed", tau) == pytest.approx(float(eq1), rel=1e-12)
    z.requires_grad_()
    (mine,) = torch.autograd.grad(instances.contrastive_loss(z, "quadratic", "printed", tau), z)
    far, near = 0.5 * (z[0, :, None] - z[0]).square().sum(-1), 0.5 * (z[0] - z[1]).square().sum(-1)
    (true,) = torch.autograd.grad(-(far - near[:, None]).sum() / (2 * 8**2), z)
    part = mine - true  # distances of unit vectors: equal along the sphere
    assert (part - (part * z).sum(-1, keepdim=True) * z).norm() < 1e-12


def test_scores_of_known_filters() -> None:
    allowed = torch.zeros(1, 2, 4, dtype=torch.bool)
    allowed[..., :2] = True
    generators = torch.tensor(
        [[[0, instances.WILDCARD], [0, 1]]]
    )  # token 1 of field 0 and token 0 of field 1 are in no generator
    world = instances.World(allowed, generators, torch.ones(1, 4, dtype=torch.float64))
    filters = torch.tensor([[[1.0, 0, 0, 0], [0, 0, 3, 4]], [[0, -2, 0, 0], [0, 0, 0, 0]]], dtype=torch.float64)
    weights = filters.mT[None]  # (R, K, d, M)
    best = torch.tensor([[[1, 0, 0.6, 0.8], [0, 0, 0, 0]]], dtype=torch.float64)
    assert torch.allclose(runs.cosines(weights), best)
    found = runs.scores(weights, world)
    assert {name: round(float(found[name]), 3) for name in runs.SCORES} == {
        "printed +": 0.25,
        "printed -": 0.35,  # the sum over two others, divided by P = 2
        "released +": 0.498,  # 0.5 / 1.004: a thousandth of 4 on a length of 1
        "released -": 0.233,
        "signless +": 0.5,
        "signless -": 0.35,
    }
    assert [float(score) for score in runs.scores(0 * weights, world).values()] == [0.0] * len(runs.SCORES)
    for name in ("signless +", "signless -"):
        assert runs.scores(-weights, world)[name].equal(found[name])
    assert float(runs.scores(weights, world, linear=True)["released +"]) == pytest.approx(1, abs=3e-3)
