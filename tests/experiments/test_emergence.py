"""How features emerge: the preserved subspace, the ring, and two layers: their flow, their nodes and their runs."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
import torch

from sslbook.experiments.emergence import ring, runs, theory
from sslbook.losses import pairs


def test_scrambled_populations() -> None:
    scene = theory.scrambled(3, gap=0.3)
    eye = torch.eye(6, dtype=torch.float64)
    assert torch.allclose(scene.preserved @ scene.preserved, scene.preserved)
    assert torch.allclose(scene.preserved + scene.nuisance, eye.expand(3, -1, -1))
    values = torch.linalg.eigvalsh(scene.operator)
    assert float((values[:, -2] / values[:, -1]).max()) <= 0.7
    draws = torch.randn(3, 40, 2, 6, 6, dtype=torch.float64)
    views = scene.views(draws)
    kept = torch.einsum("rivn,rnm->rivm", views, scene.preserved)
    assert torch.allclose(kept, (scene.x @ scene.preserved)[:, :, None].expand_as(kept))
    one = scene.nuisance[1] @ draws[1, 5, 0] @ scene.nuisance[1] @ scene.x[1, 5]
    assert torch.allclose(views[1, 5, 0] - kept[1, 5, 0], one)


def test_sampling_falls_as_the_root() -> None:
    errors = theory.sampling_errors((64, 1024), replicates=64)
    assert math.log(errors[1] / errors[0]) / math.log(16) == pytest.approx(-0.5, abs=0.1)
    biased = theory.sampling_errors((64, 1024), replicates=64, offset=1.0)
    assert math.log(biased[1] / biased[0]) / math.log(16) > -0.35


def test_a_trained_neuron_finds_the_leading_direction_inside() -> None:
    found = theory.train_neuron(8, steps=300)
    assert float(found.projected.min()) > 0.97
    assert float(found.whole.min()) < 0.9
    assert float(found.cut.min()) < 0.95


def test_the_counts_hold_from_four_places_on() -> None:
    for d in (4, 5, 9):
        assert ring.pattern_counts(d).tolist() == [[d - 3, 1, 1, 1], [d - 4, 2, 2, 0]]
        assert torch.equal(ring.pattern_counts(d)[0] - ring.pattern_counts(d)[1], ring.SIGNS.long())
    assert ring.pattern_counts(3)[0].tolist() == ring.pattern_counts(3)[1].tolist()


def test_a_ring_scene() -> None:
    scene = ring.ring_scene(5)
    assert scene.shape == (2, 5, 5)
    assert scene[1, 4].tolist() == [0, 1, 0, 0, 1]
    assert ring.windows(scene)[1, 4].tolist() == [[0, 1], [1, 0], [0, 0], [0, 1], [1, 0]]


def test_the_sets_that_occur() -> None:
    plain, biased = ring.possible_sets(False), ring.possible_sets(True)
    assert [sorted(s) for s in plain] == [[], ["01"], ["10"], ["01", "11"], ["10", "11"], ["01", "10", "11"]]
    assert len(biased) == 14
    assert frozenset({"01", "10"}) not in biased
    assert frozenset({"00", "11"}) not in biased
    for bias, sets in ((False, plain), (True, biased)):
        draws = torch.randn(20000, 3 if bias else 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        drawn = {tuple(row) for row in ring.selected(draws).tolist()}
        assert drawn == {tuple(ring.mask(s).tolist()) for s in sets}
        stuck = [s for s in sets if not ring.direction(ring.mask(s), bias).any()]
        assert stuck == [frozenset(), frozenset(ring.PATTERNS) if bias else frozenset({"01", "10", "11"})]


def test_every_moving_neuron_ends_at_one_pattern() -> None:
    for bias in (False, True):
        found = ring.fates(bias, 3000)
        assert sum(fate.share for fate in found) == pytest.approx(1)
        for fate in found:
            assert sum(fate.ends.values()) == pytest.approx(1)
            moves = bool(ring.direction(ring.mask(fate.start), bias).any())
            assert (fate.ends["stuck"] + fate.ends["dead"] == 0) == moves
        told = ring.foretold(bias, 3000)
        assert told["sign"] == told["strongest"] == 1.0
        assert told["last"] < 0.8


def test_the_strongest_response_stays_the_strongest() -> None:
    """The proof's claim, step by step, where the step is small against the gap to the next response."""
    draw = torch.Generator().manual_seed(2)
    for bias in (False, True):
        w = torch.randn(5000, 3 if bias else 2, dtype=torch.float64, generator=draw)
        moves = ring.direction(ring.selected(w), bias).ne(0).any(-1)
        before, after = ring.responses(w[moves]), ring.responses(ring.step(w[moves], 1e-6))
        top = before.argmax(-1, keepdim=True)
        rise = after - before
        assert bool((rise <= rise.gather(-1, top) + 1e-15).all())


def test_the_contrast_is_ascended() -> None:
    draw = torch.Generator().manual_seed(0)
    w = torch.randn(500, 3, dtype=torch.float64, generator=draw, requires_grad=True)
    (slope,) = torch.autograd.grad(0.5 * ring.contrast(w).square().sum(), w)
    assert torch.allclose(ring.step(w.detach(), 0.1) - w.detach(), 0.1 * slope)


@pytest.mark.parametrize(
    ("p", "bias", "rate"),
    [("01", False, 1 / 2), ("01", True, 1 / 2), ("10", True, 1 / 2), ("11", True, 1 / 3), ("00", True, 1 / 3)],
)
def test_the_rates_at_the_ends(p: str, bias: bool, rate: float) -> None:
    assert ring.end_rate(p, bias) == pytest.approx(rate, rel=0.01)


def test_the_networks_gradient_is_autograd_through_a_convolution() -> None:
    """The einsum network equals torch's circular convolution, so that what is trained is what the chapter names."""
    draw = torch.Generator().manual_seed(0)
    filters = torch.randn(1, 3, 3, dtype=torch.float64, generator=draw)
    x = torch.randn(1, 7, 6, dtype=torch.float64, generator=draw)
    conv = torch.nn.Conv1d(1, 3, 2, dtype=torch.float64)
    with torch.no_grad():
        conv.weight.copy_(filters[0, :, None, :2])
        conv.bias.copy_(filters[0, :, 2])
        wanted = conv(torch.cat([x[0], x[0, :, :1]], 1)[:, None]).relu().sum(-1)
    assert torch.allclose(runs.Network(filters, None).pooled(x)[0], wanted)


def test_replicas_of_the_network_are_independent() -> None:
    many, alone = runs.train_ring([3, 4, 5], "simclr", steps=30), runs.train_ring([4], "simclr", steps=30)
    assert torch.allclose(many.end.filters[1], alone.end.filters[0], rtol=1e-12, atol=1e-12)
    assert float(many.accuracy_end[1]) == float(alone.accuracy_end[0])


def test_a_linear_network_stays_at_chance() -> None:
    found = runs.train_ring(range(4), "simple", steps=100, linear=True)
    assert float((found.accuracy_end - 0.5).abs().max()) < 0.1
    assert float(runs.train_ring(range(4), "simple", steps=300).accuracy_end.mean()) > 0.8


def test_the_network_ends_as_foretold() -> None:
    found = runs.train_ring(range(4), "simple")
    start, end = runs.census(found.start), runs.census(found.end)
    assert end["single"] > start["single"]
    assert end["stuck"] == pytest.approx(start["stuck"], abs=0.05)
    assert runs.agreement(found.start, found.end) > 0.9
    assert runs.agreement(found.start, found.start) < 0.8


def test_a_head_and_normalisation_together_free_stuck_filters() -> None:
    settings = ("info_nce", "head", "normalised", "simclr")
    found = {s: runs.released(runs.train_ring(range(6), s)) for s in settings}
    freed = {s: {kind: float(share.mean()) for kind, share in found[s].items()} for s in settings}
    assert freed["simclr"]["stuck"] < 0.7
    assert freed["simclr"]["dead"] > max(freed["head"]["dead"], freed["normalised"]["dead"])
    assert min(freed[s]["stuck"] for s in ("info_nce", "head", "normalised")) > 0.65


def test_a_quarter_or_so_is_stuck_from_the_start() -> None:
    """A quarter plane without a bias; with one, the solid angle of four half-spaces, and by w -> -w as many are dead."""
    plain, biased = (ring.start_shares(b, 400_000) for b in (False, True))
    exact = 3 / 8 - math.acos(math.sqrt(2 / 3)) / (2 * math.pi)
    for found, share in ((plain, 0.25), (biased, exact)):
        assert found["stuck"] == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 400_000))
        assert found["dead"] == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 400_000))


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_distance_from_a_span(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(5, generator=draw, dtype=torch.float64)
    others = torch.randn(rows, 5, generator=draw, dtype=torch.float64)
    nearest = torch.linalg.lstsq(others.T, x[:, None]).solution[:, 0]
    distance = ring.squared_distance(x, others)
    assert float(distance) == pytest.approx(float((x - others.T @ nearest).square().sum()), rel=1e-10)
    assert float(ring.squared_distance(x + others[0], others)) == pytest.approx(float(distance), rel=1e-10)
    assert float(ring.squared_distance(others.sum(0), others)) == pytest.approx(0, abs=1e-10)


def test_the_distance_from_dependent_vectors() -> None:
    with pytest.raises(ValueError, match="independent"):
        ring.squared_distance(torch.ones(3), torch.ones(2, 3))


def test_pooling_needs_no_negatives_of_its_own() -> None:
    """A pooled network's outputs on a clean ring depend on the object alone, so the positive pair is at distance zero."""
    net = runs.train_ring([0], steps=1).start
    scene = ring.ring_scene(6).flatten(0, 1)[None]
    y = net.pooled(scene)[0].unflatten(0, (2, 6))
    assert float(pairs.half_squared_distance(y[:, :1], y).max()) < 1e-25


# --- two layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("linear", [True, False])
def test_what_the_flow_conserves(diagonal: bool, linear: bool) -> None:
    start = theory.random_start(4, diagonal=diagonal)
    time = theory.horizon(start, linear=linear)
    w1, w2 = theory.integrate(start, time, linear=linear, points=3)
    assert float(w1[-1].norm() / w1[0].norm()) > 1.1
    kept = theory.excess(w1, w2)
    assert float((kept - kept[0]).abs().max()) < 1e-8
    assert float((w1.square().sum(-1) - w1[0].square().sum(-1)).abs().max()) > 0.1
    with pytest.raises(ValueError, match=r"time must be shorter than .* where the weights explode"):
        theory.integrate(start, 100 * time, linear=linear)


def test_the_discrete_step_moves_the_conserved_quantity() -> None:
    start = theory.random_start(4)
    right, wrong = theory.step_gap(start)
    assert right < 1e-9
    assert wrong > 0.1
    time = theory.horizon(start, 1.3)
    coarse, fine = theory.drift(start, time, (time / 100, time / 400))
    assert math.log(coarse / fine) / math.log(4) == pytest.approx(1, abs=0.1)


def test_sampled_steps_follow_the_flow() -> None:
    start = theory.random_start(4)
    time = theory.horizon(start, 1.5, towers=2)
    (coarse, _), (fine, undoubled) = (theory.sampled_training(start, time, time / n) for n in (50, 800))
    assert fine < coarse
    assert fine < 0.05 < undoubled


def test_the_second_layer_leaves_the_diagonal() -> None:
    share = theory.off_diagonal_share(50)
    assert share.shape == (50,)
    assert float(share.min()) > 1e-3
    assert float(theory.off_diagonal_share(50, masked=True).abs().max()) < 1e-12
    assert float(theory.leave_diagonal(replicas=4, growth=2.0).min()) > 1e-4
    with pytest.raises(ValueError, match=r"growth=1e\+300 is out of reach of some replica in 4000 steps"):
        theory.leave_diagonal(replicas=1, growth=1e300)


@pytest.mark.parametrize("seed", [0, 1])
def test_truncated_means(seed: int) -> None:
    found, short = theory.gated_mean_gap(seed)
    assert found < 1e-12
    assert short > 0.01


def test_truncated_means_without_noise_are_gates() -> None:
    mix = theory.random_mixture(2, 4, 3, 0.0)
    w = torch.randn(2, 5, 3, dtype=torch.float64)
    gate = torch.einsum("rkd,rnd->rkn", mix.centres, w) >= 0
    assert torch.allclose(mix.gated_means(w), gate[..., None] * mix.centres[:, :, None])


def test_samples_of_a_mixture() -> None:
    mix = theory.random_mixture(2, 3, 4, 0.1)
    x, kind = mix.sample(5000, torch.Generator().manual_seed(0))
    for r in range(2):
        for k in range(3):
            assert torch.allclose(x[r][kind[r] == k].mean(0), mix.centres[r, k], atol=0.02)


def test_linear_nodes_share_one_direction() -> None:
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 2, 5, dtype=torch.float64, generator=draw)
    end = theory.grow(
        torch.randn(10, 6, 5, dtype=torch.float64, generator=draw), theory.Mixture(centres, 0.3), linear=True
    )
    gap = centres[:, 0] - centres[:, 1]
    assert float((end * (gap / gap.norm(dim=1, keepdim=True))[:, None]).sum(-1).abs().min()) > 0.999


def test_specialisation_depends_on_the_angles() -> None:
    even = theory.specialise(theory.equiangular_mixture(5, 6, 8, 0.1))
    acute = theory.specialise(theory.equiangular_mixture(5, 6, 8, 0.1, cosine=0.6))
    finer = theory.specialise(theory.equiangular_mixture(5, 6, 8, 0.1), steps=2000, rate=0.25)
    assert torch.equal(even.active, finer.active)
    assert float(even.single.double().mean()) > 0.95
    assert float(even.first.double().mean()) > 0.95
    assert float(acute.single.double().mean()) < 0.1
    gram = theory.equiangular_mixture(1, 6, 8, 0.1, cosine=0.6).centres[0, 1:]
    assert torch.allclose(gram @ gram.T, 0.4 * torch.eye(5, dtype=torch.float64) + 0.6)


# -- the trainer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", runs.COMPARED)
@pytest.mark.parametrize("normalize", [False, True])
def test_the_gradient_is_autograds(loss: str, normalize: bool) -> None:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    w1, w2, one, two = normal(3, 6, 5), normal(3, 6), normal(3, 9, 5), normal(3, 9, 5)
    floor = 1.5  # between the lengths of the outputs, so that both branches are tested
    found = runs.gradients(w1, w2, one, two, loss, normalize, 0.3, floor)
    leaves = [w.clone().requires_grad_(True) for w in (w1, w2)]
    y = [(v @ leaves[0].mT).relu() * leaves[1][:, None] for v in (one, two)]
    if normalize:
        assert (y[0].norm(dim=-1) < floor).any()
        assert (y[0].norm(dim=-1) > floor).any()
        y = [v / v.norm(dim=-1, keepdim=True).clamp_min(floor) for v in y]
    near = pairs.half_squared_distance(y[0], y[1])
    far = pairs.half_squared_distance(y[0], y[0].roll(1, 1))[..., None]
    value = pairs.simple(near, far) if loss == "simple" else pairs.info_nce(near, far, temperature=0.3)
    wanted = torch.autograd.grad(value.mean(1).sum(), leaves)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("loss", runs.COMPARED)
def test_a_replica_is_the_same_alone(loss: str, dtype: torch.dtype, tol: float) -> None:
    many = runs.train_nodes([3, 4, 5, 6], loss, True, steps=150, dtype=dtype)
    alone = runs.train_nodes([5], loss, True, steps=150, dtype=dtype)
    for mine, theirs in ((many.end.w1[2], alone.end.w1[0]), (many.end.w2[2], alone.end.w2[0])):
        assert torch.allclose(mine, theirs, rtol=tol, atol=tol)
    assert not torch.allclose(many.end.w2[1], alone.end.w2[0], rtol=1e-3)


def test_a_replica_stops_at_its_cap_and_stays() -> None:
    run = runs.train_nodes(range(3), "simple", steps=400)
    assert bool((run.stopped < 400).all())
    for r in range(3):
        tail = run.norms[r, int(run.stopped[r]) :]
        assert torch.equal(tail, tail[:1].expand_as(tail))
        assert float(tail[0, 0] / run.norms[r, 0, 0]) > 100
    assert bool(torch.isfinite(run.norms).all())


def test_growth_is_faster_than_exponential_for_the_simple_loss_alone() -> None:
    simple = runs.train_nodes(range(3), "simple", steps=400)
    assert float(runs.acceleration(simple).min()) > 2
    foretold = runs.foretold_steps(range(3))
    assert torch.allclose(runs.steps_to(simple.norms, 10).double(), foretold.double(), rtol=0.15)
    steady = runs.train_nodes(range(3), "info_nce", steps=400)
    assert bool((steady.stopped == 401).all())
    assert float(runs.acceleration(steady).max()) < 1
    exponential = torch.exp(0.01 * torch.arange(401.0))[None, :, None].expand(1, -1, 2)
    plain = runs.Run(simple.start, simple.end, exponential, torch.tensor([401]))
    assert runs.acceleration(plain)[0, 0] == pytest.approx(1, abs=0.02)


def test_counts_and_correlations() -> None:
    centres = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    net = runs.TwoLayers(
        torch.tensor([[[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]]), torch.tensor([[-2.0, 1.0, 3.0]]), centres
    )
    assert net.active().tolist() == [[1, 2, 0]]
    assert runs.rank_correlation(net) == pytest.approx(-1)
    assert runs.by_count(net) == {0: (1, 3.0), 1: (1, 2.0), 2: (1, 1.0)}
    assert runs.selective_share(net) == pytest.approx(2 / 3)


def test_the_record_of_a_short_run() -> None:
    values = runs.two_layer_values([0, 1], steps=3)
    assert len(values["foretold"]) == 2
    assert set(values["others"]) >= {"2 by 20", "floor 1e-12"}


def test_starts_are_uniform_about_zero() -> None:
    protocol = runs.TwoLayerSizes(size=16, nodes=50)
    start = runs.begin(range(20), protocol, torch.float64)
    for weights, inputs in ((start.w1, 16), (start.w2, 50)):
        scaled = weights * inputs**0.5
        assert float(scaled.abs().max()) <= 1
        assert float(scaled.mean()) == pytest.approx(0, abs=4 / (3 * scaled.numel()) ** 0.5), "four standard errors"
        assert float(scaled.square().mean()) == pytest.approx(1 / 3, rel=0.1)


def test_sizes_of_a_run() -> None:
    assert astuple(runs.TwoLayerSizes()) == (20, 20, 10, 0.1, 128, 0.01, 0.05, 1e-3, 100.0)
