"""The token experiments: worlds, the fast step against autograd, replicas, scores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sslbook.chapters.modulation import network, training
from sslbook.chapters.modulation.network import gradients, lookups
from sslbook.chapters.modulation.reference import ACTIVATIONS, FORMS, GROUPS, REFERENCES, loss, outputs, printed_factor
from sslbook.chapters.modulation.scores import SCORES, cosines, scores
from sslbook.chapters.modulation.tokens import WILDCARD, World, draw_pairs, make_world
from sslbook.chapters.modulation.training import (
    Cell,
    Protocol,
    course,
    initial_state,
    run,
    settings_of,
    train,
    world_of,
)
from sslbook.streams import Streams

TINY = Protocol(fields=4, tokens=6, generators=5, fixed=2, outputs=3, batch=9, steps=20)
MODES = ("normal", "detach", "omit")


def embed(world: World, tokens: torch.Tensor) -> torch.Tensor:
    """Vectors of tokens ``(R, ..., K)``: ``(R, ..., K, d)``, of the world's dtype."""
    hot = torch.nn.functional.one_hot(tokens, world.lengths.shape[1]).to(world.lengths)
    return hot * world.lengths.view(len(world.lengths), *(1,) * (tokens.ndim - 1), -1)


def all_kinds() -> list[training.Replica]:
    kinds = [(kind, activation) for kind in REFERENCES for activation in ACTIVATIONS]
    modes = [(mean, std) for mean in MODES for std in MODES]
    cells = [Cell(2, 2, a, mean, std, kind, z) for kind, a in kinds for mean, std in modes for z in (1.0, 3.0)]
    return [(cell, seed) for seed, cell in enumerate(cells)]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_that_of_autograd(group: str, form: str) -> None:
    protocol, replicas = replace(TINY, group=group, form=form), all_kinds()
    seeds = [seed for _, seed in replicas]
    world = world_of(protocol, replicas)
    state = initial_state(protocol, seeds, 4, torch.float64)
    tokens = draw_pairs(world, Streams(seeds, "pairs"), protocol.batch, 2)
    look = lookups(tokens, protocol.tokens, group, torch.float64)[1]
    found = gradients(state.weights, state.top, look, settings_of(protocol, replicas, world, torch.float64))
    x = embed(world, tokens[:, 1])
    for r, (cell, _) in enumerate(replicas):
        w, v = (part[r].clone().requires_grad_() for part in (state.weights, state.top))
        z = outputs(x[r], w, v, activation=cell.activation, mean=cell.mean, std=cell.std, group=group)
        for mine, true in zip(found, torch.autograd.grad(loss(z, cell.loss, form, protocol.tau), (w, v))):
            assert (mine[r] - true).norm() <= 1e-10 * true.norm(), cell


@pytest.mark.parametrize("group", GROUPS)
def test_a_gpu_sorts_the_samples_as_the_processor_does(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [(Cell(2, 2), 3), (Cell(3, 1), 4)]
    tokens = draw_pairs(world_of(TINY, replicas), Streams([3, 4], "pairs"), 9, 3)
    here = lookups(tokens, TINY.tokens, group, torch.float64)
    monkeypatch.setattr(network, "_sorted_here", network.sorted_there)
    there = lookups(tokens, TINY.tokens, group, torch.float64)
    for one, two in zip(here, there, strict=True):
        for name in ("rows", "samples", "starts", "shares"):
            assert getattr(one, name).equal(getattr(two, name)), name


def test_printed_losses_are_those_of_distances() -> None:
    z = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = z / z.norm(dim=-1, keepdim=True)
    far, near = 0.5 * torch.cdist(z[0], z[0]).square(), 0.5 * (z[0] - z[1]).square().sum(-1)
    own, tau = torch.eye(8, dtype=torch.bool), 0.3
    weights = (-far / tau).exp().masked_fill(own, 0).sum(-1)
    eq1 = -tau * ((-near / tau).exp() / ((-near / tau).exp() + weights)).log().sum()
    assert loss(z, "info_nce", "printed", tau) == pytest.approx(float(eq1), rel=1e-12)
    z.requires_grad_()
    (mine,) = torch.autograd.grad(loss(z, "quadratic", "printed", tau), z)
    far, near = 0.5 * (z[0, :, None] - z[0]).square().sum(-1), 0.5 * (z[0] - z[1]).square().sum(-1)
    (true,) = torch.autograd.grad(-(far - near[:, None]).sum() / (2 * 8**2), z)
    part = mine - true  # distances of unit vectors: equal along the sphere
    assert (part - (part * z).sum(-1, keepdim=True) * z).norm() < 1e-12
    assert printed_factor("info_nce", 0.1, 128) == pytest.approx(12.8)


def test_a_replica_trains_as_it_would_alone() -> None:
    protocol = replace(TINY, steps=60)
    replicas = [
        *((Cell(2, 3, "linear", zeta=z), s) for z, s in ((1.0, 4), (5.0, 4))),
        *((Cell(p, 6 // p, "relu", "detach", "normal"), s) for p, s in ((1, 0), (2, 4), (3, 7))),
        *((Cell(6, 1, a, "omit", "omit", "quadratic"), 4) for a in ("relu", "sigmoid")),
    ]
    for dtype, bar in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        together, _ = train(protocol, replicas, dtype=dtype)
        for r in (0, 3, 5, 6):
            alone, _ = train(protocol, [replicas[r]], dtype=dtype)
            assert (together.weights[r] - alone.weights[0]).abs().max() <= bar
            assert (together.top[r] - alone.top[0]).abs().max() <= bar


def test_a_look_on_the_way_changes_nothing() -> None:
    protocol, replicas = replace(TINY, steps=20), [(Cell(2, 2), 3), (Cell(2, 2, "linear"), 3)]
    states, world = course(protocol, replicas, [0, 7, 20])
    begun, (end, same) = initial_state(protocol, [3, 3], 4), train(protocol, replicas)
    assert states[0].weights.equal(begun.weights)
    assert states[2].weights.equal(end.weights)
    assert states[2].top.equal(end.top)
    assert states[1].weights.equal(train(replace(protocol, steps=7), replicas)[0].weights)
    assert world.generators.equal(same.generators)
    for at in ([], [-1, 3], [3, 3], [0, 21]):
        with pytest.raises(ValueError, match=r"at must increase within 0 to steps = 20, got \["):
            course(protocol, replicas, at)


def test_training_is_that_of_torch() -> None:
    protocol, replica = replace(TINY, steps=40), (Cell(2, 2, zeta=2.0), 3)
    mine, world = train(protocol, [replica], dtype=torch.float64)
    begun = initial_state(protocol, [3], 4, torch.float64)
    w, v = (part[0].clone().requires_grad_() for part in (begun.weights, begun.top))
    optimizer = torch.optim.SGD([w, v], protocol.rate, protocol.momentum, weight_decay=protocol.decay)
    tokens = draw_pairs(world, Streams([3], "pairs"), protocol.batch, protocol.steps)
    for x in embed(world, tokens)[0]:
        optimizer.zero_grad()
        z = outputs(x, w, v, activation="relu", mean="normal", std="detach")
        loss(z, "info_nce", "released", protocol.tau).backward()
        optimizer.step()
    assert (mine.weights[0] - w).abs().max() < 1e-9, "rounding, which grows from step to step"
    assert (mine.weights[0] - begun.weights[0]).abs().max() > 1e-3


def test_how_cells_are_cut_and_spread_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(2, 2), Cell(1, 4, "linear"), Cell(2, 1, zeta=3.0), Cell(2, 2)]
    whole = run(TINY, cells, [5, 2, 5], keep=True)
    assert list(whole) == cells[:3]
    assert whole[cells[0]]["weights"].shape == (3, 4, 6, 4)
    assert whole[cells[0]]["printed +"][0] == whole[cells[0]]["printed +"][2]
    monkeypatch.setattr(training, "CACHE", 1.0)
    for other in (run(TINY, cells, [5, 2, 5]), run(TINY, cells, [5, 2, 5], processes=2)):
        for cell in cells:
            for name in SCORES:
                assert (other[cell][name] - whole[cell][name]).abs().max() < 1e-4
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        run(TINY, cells, [1], processes=0)


# --- worlds -------------------------------------------------------------------------------------------------------------


def test_worlds() -> None:
    world = make_world([0, 1, 0], [1, 3, 5], zeta=[1.0, 2.0, 10.0])
    assert world.allowed.sum(-1).eq(torch.tensor([1, 3, 5])[:, None]).all()
    assert (world.generators != WILDCARD).sum(-1).eq(5).all()
    assert (world.allowed | ~world.used).all(), "generators fix allowed tokens only"
    assert (world.generators[0] == WILDCARD).equal(world.generators[2] == WILDCARD), "one seed, the same places"
    assert (world.allowed[2] | ~world.allowed[0]).all(), "one seed, nested subsets"
    assert world.lengths[:, [0, 9, 10, 19]].tolist() == [[1, 1, 1, 1], [0.5, 0.5, 2, 2], [0.1, 0.1, 10, 10]]
    counts = make_world(range(40), [3] * 40).used.float().mean((0, 1))
    assert counts.min() > 0.08
    assert counts.max() < 0.22, "every token is as likely, 3 of 20"


def test_positive_pairs_share_a_generator_and_nothing_else() -> None:
    world = make_world([0, 1], [3, 5])
    pairs = draw_pairs(world, Streams([0, 1], "pairs"), 256, 4)
    assert pairs.shape == (2, 4, 2, 256, 10)
    for r in range(2):
        one, two = pairs[r].transpose(0, 1).flatten(1, 2)
        fits = [
            ((g == WILDCARD) | (g == one)).all(-1) & ((g == WILDCARD) | (g == two)).all(-1) for g in world.generators[r]
        ]
        assert torch.stack(fits).any(0).all()
        places = (one != two).float().mean()
        assert places == pytest.approx(0.5 * 19 / 20, abs=0.02), "half of the places are wildcards, drawn anew"
    both = draw_pairs(world, Streams([0, 1], "pairs"), 256, 2)
    assert both.equal(pairs[:, :2]), "streams are read in order"
    x = embed(world, pairs[:, 0])
    assert x.shape == (2, 2, 256, 10, 20)
    assert x.argmax(-1).equal(pairs[:, 0])


def test_one_place_of_a_world_trains_by_itself() -> None:
    protocol, replicas = replace(TINY, steps=5), [(Cell(2, 2), 3), (Cell(2, 2), 4)]
    whole = world_of(protocol, replicas)
    cut = whole.place(2)
    assert cut.generators[..., 0].equal(whole.generators[..., 2])
    assert cut.used[:, 0].equal(whole.used[:, 2])
    assert cut.lengths.equal(whole.lengths)
    narrow = replace(protocol, fields=1, fixed=1)
    (begun, end), world = course(narrow, replicas, [0, 5], world=cut)
    assert world.generators is cut.generators
    assert begun.weights.shape == (2, 1, 6, 4)
    assert end.weights.equal(train(narrow, replicas, world=cut)[0].weights)
    assert not end.weights.equal(train(narrow, replicas)[0].weights), "there each generator fixes the place"
    with pytest.raises(ValueError, match="k must be between 0 and 3, got 4"):
        whole.place(4)
    with pytest.raises(ValueError, match=r"world must have \(2, 4, 6\) replicas, fields and tokens, got \(2, 1, 6\)"):
        train(protocol, replicas, world=cut)


# --- scores -------------------------------------------------------------------------------------------------------------


def test_scores_of_known_filters() -> None:
    allowed = torch.zeros(1, 2, 4, dtype=torch.bool)
    allowed[..., :2] = True
    generators = torch.tensor(
        [[[0, WILDCARD], [0, 1]]]
    )  # token 1 of field 0 and token 0 of field 1 are in no generator
    world = World(allowed, generators, torch.ones(1, 4, dtype=torch.float64))
    filters = torch.tensor([[[1.0, 0, 0, 0], [0, 0, 3, 4]], [[0, -2, 0, 0], [0, 0, 0, 0]]], dtype=torch.float64)
    weights = filters.mT[None]  # (R, K, d, M)
    best = torch.tensor([[[1, 0, 0.6, 0.8], [0, 0, 0, 0]]], dtype=torch.float64)
    assert torch.allclose(cosines(weights), best)
    found = scores(weights, world)
    assert {name: round(float(found[name]), 3) for name in SCORES} == {
        "printed +": 0.25,
        "printed -": 0.35,  # the sum over two others, divided by P = 2
        "released +": 0.498,
        "released -": 0.233,
        "signless +": 0.5,
        "signless -": 0.35,
    }
    assert float(found["released +"]) == pytest.approx(0.5 / 1.004), "a thousandth of 4 on a length of 1"
    assert float(found["released -"]) == pytest.approx(7 / 5.004 / 3 / 2)
    assert [float(score) for score in scores(0 * weights, world).values()] == [0.0] * len(SCORES)
    for name in ("signless +", "signless -"):
        assert scores(-weights, world)[name].equal(found[name])
    assert float(scores(weights, world, linear=True)["released +"]) == pytest.approx(1, abs=3e-3)


def test_a_small_training_finds_the_tokens_of_its_generators() -> None:
    protocol = Protocol(steps=400, batch=64)
    found = run(protocol, [Cell(3, 5), Cell(3, 5, "linear")], [0, 1])
    relu, linear = found.values()
    assert relu["printed +"].min() > linear["printed +"].max() + 0.1
    assert relu["released -"].max() < 0.3
    start = scores(initial_state(protocol, [0, 1], 15).weights, make_world([0, 1], [3, 3]))
    assert relu["printed +"].min() > start["printed +"].max() + 0.1


# --- what bad input gets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Cell(activation="tanh"),
            "activation must be one of linear, relu, leaky_relu, quadratic, sigmoid, got 'tanh'",
        ),
        (lambda: Cell(loss="triplet"), "loss must be one of info_nce, quadratic, got 'triplet'"),
        (lambda: Cell(patterns=0), "patterns must be at least 1, got 0"),
        (lambda: Cell(std="none"), "std must be one of normal, detach, omit, got 'none'"),
        (lambda: Protocol(group="sample"), "group must be one of view, batch, got 'sample'"),
        (lambda: Protocol(batch=1), "batch must be at least 2, got 1"),
        (lambda: Protocol(rate=0), "rate must be above 0, got 0"),
        (lambda: Protocol(momentum=1), "momentum must be at least 0 and below 1, got 1"),
        (lambda: train(TINY, []), "replicas must hold at least one cell with a seed, got none"),
        (lambda: train(TINY, [(Cell(1, 1), 0), (Cell(1, 2), 0)]), r"one number of filters, got \[1, 2\]"),
        (lambda: make_world([0], [21]), r"candidates must lie between 1 and tokens = 20, got \[21\]"),
        (lambda: make_world([0], [1, 2]), "candidates and zeta must have one entry a seed"),
        (lambda: make_world([0], [1], fixed=11), "fixed must be between 1 and 10, got 11"),
        (lambda: make_world([0], [1], zeta=[0.0]), "zeta must be above 0"),
        (lambda: make_world([0], [1], generators=0), "generators must be at least 1, got 0"),
    ],
)
def test_bad_input_gets_a_sentence(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
