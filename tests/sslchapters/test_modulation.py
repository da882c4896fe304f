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
def test_a_step_is_that_of_autograd(group: str, form: str) -> None:
    protocol = replace(TINY, group=group, form=form)
    kinds = itertools.product(instances.ACTIVATIONS, MODES, MODES, instances.REFERENCES, (1.0, 3.0))
    replicas = [(runs.TableCell(2, 2, *kind), seed) for seed, kind in enumerate(kinds)]
    seeds = [seed for _, seed in replicas]
    world = runs.world_of(protocol, replicas)
    state = runs.initial_state(protocol, seeds, 4, torch.float64)
    tokens = instances.draw_pairs(world, Streams(seeds, "pairs"), protocol.batch, 2)
    look = runs.lookups(tokens, protocol.tokens, group, torch.float64)[1]
    found = runs.gradients(state.weights, state.top, look, runs.settings_of(protocol, replicas, world, torch.float64))
    x = embed(world, tokens[:, 1])
    for r, (cell, _) in enumerate(replicas):
        w, v = (part[r].clone().requires_grad_() for part in (state.weights, state.top))
        z = instances.unit_outputs(x[r], w, v, activation=cell.activation, mean=cell.mean, std=cell.std, group=group)
        for mine, true in zip(
            found, torch.autograd.grad(instances.contrastive_loss(z, cell.loss, form, protocol.tau), (w, v))
        ):
            assert (mine[r] - true).norm() <= 1e-10 * true.norm(), cell


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


def test_a_replica_trains_as_it_would_alone() -> None:
    """Few steps, since each multiplies what a product of several replicas rounds otherwise than one alone."""
    replicas = [
        *((runs.TableCell(2, 3, "linear", zeta=z), s) for z, s in ((1.0, 4), (5.0, 4))),
        *((runs.TableCell(p, 6 // p, "relu", "detach", "normal"), s) for p, s in ((1, 0), (2, 4), (3, 7))),
        *((runs.TableCell(6, 1, a, "omit", "omit", "quadratic"), 4) for a in ("relu", "sigmoid")),
    ]
    for dtype, bar in ((torch.float32, 1e-3), (torch.float64, 1e-11)):
        (together,), _ = runs.train_course(TINY, replicas, [3], dtype=dtype)
        for r in (0, 3, 5, 6):
            (alone,), _ = runs.train_course(TINY, [replicas[r]], [3], dtype=dtype)
            assert (together.weights[r] - alone.weights[0]).abs().max() <= bar
            assert (together.top[r] - alone.top[0]).abs().max() <= bar
            assert (together.top[r] - together.top[r - 1]).abs().max() > 100 * bar


def test_training_is_that_of_torch() -> None:
    protocol, replica = replace(TINY, steps=40), (runs.TableCell(2, 2, zeta=2.0), 3)
    (mine,), world = runs.train_course(protocol, [replica], [protocol.steps], dtype=torch.float64)
    begun = runs.initial_state(protocol, [3], 4, torch.float64)
    w, v = (part[0].clone().requires_grad_() for part in (begun.weights, begun.top))
    optimizer = torch.optim.SGD([w, v], protocol.rate, protocol.momentum, weight_decay=protocol.decay)
    tokens = instances.draw_pairs(world, Streams([3], "pairs"), protocol.batch, protocol.steps)
    for x in embed(world, tokens)[0]:
        optimizer.zero_grad()
        z = instances.unit_outputs(x, w, v, activation="relu", mean="normal", std="detach")
        instances.contrastive_loss(z, "info_nce", "released", protocol.tau).backward()
        optimizer.step()
    assert (mine.weights[0] - w).abs().max() < 1e-9, "rounding, which grows from step to step"
    assert (mine.weights[0] - begun.weights[0]).abs().max() > 1e-3


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
        "released +": 0.498,
        "released -": 0.233,
        "signless +": 0.5,
        "signless -": 0.35,
    }
    assert float(found["released +"]) == pytest.approx(0.5 / 1.004), "a thousandth of 4 on a length of 1"
    assert float(found["released -"]) == pytest.approx(7 / 5.004 / 3 / 2)
    assert [float(score) for score in runs.scores(0 * weights, world).values()] == [0.0] * len(runs.SCORES)
    for name in ("signless +", "signless -"):
        assert runs.scores(-weights, world)[name].equal(found[name])
    assert float(runs.scores(weights, world, linear=True)["released +"]) == pytest.approx(1, abs=3e-3)
