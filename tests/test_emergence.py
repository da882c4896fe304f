"""One neuron: the scrambled subspace, the ring of 11 and 101, and the small convolutional network."""

from __future__ import annotations

import math

import pytest
import torch
from held import hold

from sslbook import losses
from sslbook.book.exercises import check
from sslbook.chapters.emergence import preserved, ring, ringnet
from sslbook.operators import covariance_operator


@pytest.mark.parametrize("seed", [0, 7])
def test_the_projected_covariance_is_the_operator(seed: int) -> None:
    gaps = preserved.projector_gaps(seed=seed)
    hold(gaps)
    for name in ("projected covariance", "library's operator", "mean not zero, corrected"):
        assert gaps[name] < 1e-12, name
    for name in ("library's operator and V[x]", "V[x] itself", "projected once", "mean not zero"):
        assert gaps[f"broken: {name}"] > 0.01, name


def test_scrambled_populations() -> None:
    scene = preserved.scrambled(3, gap=0.3)
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
    errors = preserved.sampling_errors((64, 1024), replicates=64)
    assert math.log(errors[1] / errors[0]) / math.log(16) == pytest.approx(-0.5, abs=0.1)
    biased = preserved.sampling_errors((64, 1024), replicates=64, offset=1.0)
    assert math.log(biased[1] / biased[0]) / math.log(16) > -0.35


def test_a_trained_neuron_finds_the_leading_direction_inside() -> None:
    found = preserved.train(8, steps=300)
    assert float(found.projected.min()) > 0.97
    assert float(found.whole.min()) < 0.9
    assert float(found.cut.min()) < 0.95


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: preserved.scrambled(2, kept=6), r"kept must be between 1 and 5, got 6"),
        (lambda: preserved.scrambled(2, gap=1.5), r"gap must be at least 0 and below 1, got 1.5"),
        (lambda: preserved.scrambled(40, gap=0.99), "populations where replicas=40 are wanted"),
        (lambda: ring.ring_scene(2), "d must be at least 3, got 2"),
        (lambda: ring.ring_scene(5, ("11", "1x1")), "words of 0 and 1 .* got '1x1'"),
        (lambda: ring.ring_scene(5, ("000",)), "got '000'"),
        (lambda: ring.ring_scene(3, ("1111",)), "at most d = 3 letters, got '1111'"),
        (lambda: ring.mask({"12"}), "patterns are 00, 01, 10, 11, got '12'"),
        (lambda: ring.single_direction("11", bias=False), "without a bias no weight responds to 11 alone"),
        (lambda: ring.follow(torch.ones(2), 0, 0.1), "steps must be at least 1, got 0"),
        (lambda: ringnet.train([0], "simple", noise=-1.0), "noise must be at least 0, got -1.0"),
        (lambda: ringnet.train([0], "infonce"), "setting must be one of .* did you mean 'info_nce'"),
        (lambda: ringnet.train([]), "seeds must be one or more whole numbers"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


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


@pytest.mark.parametrize("seed", [0, 3])
def test_the_relu_neurons_operator(seed: int) -> None:
    gaps = ring.operator_gaps(40, seed)
    hold(gaps)
    for name, gap in gaps.items():
        if name.startswith("broken"):
            assert gap > 0.1, name
        elif name != "instances":
            assert gap < 1e-11, name


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


def test_geometric_growth() -> None:
    gaps = ring.growth_gaps()
    hold(gaps)
    assert gaps["growth"] < 1e-12
    assert min(gaps["broken: norm left out"], gaps["broken: not doubled"]) > 1e-3
    with pytest.raises(ValueError, match="the neuron left the pattern"):
        ring.growth_gaps(d=4, alpha=20.0, steps=20)


def test_every_moving_neuron_ends_at_one_pattern() -> None:
    for bias in (False, True):
        found = ring.fates(bias, 3000)
        assert sum(fate.share for fate in found) == pytest.approx(1)
        for fate in found:
            assert sum(fate.ends.values()) == pytest.approx(1)
            moves = bool(ring.direction(ring.mask(fate.start), bias).any())
            assert (fate.ends["stuck"] + fate.ends["silent"] == 0) == moves
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
    assert torch.allclose(ringnet.Network(filters, None).pooled(x)[0], wanted)


def test_replicas_of_the_network_are_independent() -> None:
    many, alone = ringnet.train([3, 4, 5], "simclr", steps=30), ringnet.train([4], "simclr", steps=30)
    assert torch.allclose(many.end.filters[1], alone.end.filters[0], rtol=1e-12, atol=1e-12)
    assert float(many.accuracy_end[1]) == float(alone.accuracy_end[0])


def test_a_linear_network_stays_at_chance() -> None:
    found = ringnet.train(range(4), "simple", steps=100, linear=True)
    assert float((found.accuracy_end - 0.5).abs().max()) < 0.1
    assert float(ringnet.train(range(4), "simple", steps=300).accuracy_end.mean()) > 0.8


def test_the_network_ends_as_foretold() -> None:
    found = ringnet.train(range(4), "simple")
    start, end = ringnet.census(found.start), ringnet.census(found.end)
    assert end["single"] > start["single"]
    assert end["stuck"] == pytest.approx(start["stuck"], abs=0.05)
    assert ringnet.agreement(found.start, found.end) > 0.9
    assert ringnet.agreement(found.start, found.start) < 0.8


def test_a_head_and_normalisation_together_free_stuck_filters() -> None:
    settings = ("info_nce", "head", "normalised", "simclr")
    found = {s: ringnet.released(ringnet.train(range(6), s)) for s in settings}
    freed = {s: {kind: float(share.mean()) for kind, share in found[s].items()} for s in settings}
    assert freed["simclr"]["stuck"] < 0.7
    assert freed["simclr"]["silent"] > max(freed["head"]["silent"], freed["normalised"]["silent"])
    assert min(freed[s]["stuck"] for s in ("info_nce", "head", "normalised")) > 0.65


def test_a_quarter_or_so_is_stuck_from_the_start() -> None:
    """A quarter plane without a bias; with one, the solid angle of four half-spaces, and by w -> -w as many are silent."""
    plain, biased = (ring.start_shares(b, 400_000) for b in (False, True))
    exact = 3 / 8 - math.acos(math.sqrt(2 / 3)) / (2 * math.pi)
    for found, share in ((plain, 0.25), (biased, exact)):
        assert found["stuck"] == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 400_000))
        assert found["silent"] == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 400_000))
    net = ringnet.train(range(3), "simple", steps=1).start
    assert float(ringnet.shares(net)["stuck"].mean()) == pytest.approx(ringnet.census(net)["stuck"])


def test_the_exercise_on_other_objects() -> None:
    """The self-check of the chapter's exercise takes the right answer and refuses one that forgets to halve the difference."""

    def answer(d, first, second):
        views = ring.neuron_views(d, False, (first, second)).mean(1)
        gap = views[0] - views[1]
        return torch.outer(gap, gap) / 4

    def reference(d, first, second):
        blank = ring.neuron(torch.zeros(2, dtype=torch.float64), linear=True)
        return covariance_operator(blank, "0", ring.neuron_views(d, False, (first, second))).dense()

    cases = [(d, a, b) for d in (5, 8) for a, b in (("1", "11"), ("111", "101"), ("1011", "1"), ("1101", "1011"))]
    assert check(answer, reference, cases)
    assert not check(lambda *case: 4 * answer(*case), reference, cases)


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
    net = ringnet.train([0], steps=1).start
    scene = ring.ring_scene(6).flatten(0, 1)[None]
    y = net.pooled(scene)[0].unflatten(0, (2, 6))
    assert float(losses.half_squared_distance(y[:, :1], y).max()) < 1e-25
