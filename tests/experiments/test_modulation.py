"""Global modulation: each lemma and theorem on random instances, who wins, and what the figures draw."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from drawing_cases import GREYS, geometry
from gap_cases import assert_gaps
from held import hold
from matplotlib import rcParams
from matplotlib.figure import Figure

from sslbook.book.exercises import check
from sslbook.book.plots import PALETTE
from sslbook.experiments.modulation import checks, drawing, many_fields, theory
from sslbook.experiments.modulation.instances import random_population
from sslbook.experiments.modulation.reference import on_circle, sampled_probabilities, winners
from sslbook.stats.checks import over_instances, relative

SEEDS = [0, 1000]


@pytest.mark.parametrize("seed", SEEDS)
def test_dynamics_of_two_layers(seed: int) -> None:
    gaps = checks.lemma4_gaps(100, seed)
    held = ("filters", "top layer", "filters, InfoNCE", "top layer, InfoNCE", "square, halved")
    assert_gaps(gaps, held, ("fields apart", "no gates"))
    assert gaps["instances"] == 100


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_filters_move_together(seed: int) -> None:
    gaps = checks.theorem4_gaps(100, seed)
    held = ("collinear", "against Lemma 4", "sum of w b", "critical", "path to identical filters")
    broken = ("printed path", "S of rank two", "another unit vector", "filters of unit length")
    assert_gaps(gaps, held, broken, free=["printed path"])
    assert float(checks.linear_filters(20, seed, steps=500).min()) > 1 - 1e-6
    assert float(checks.linear_filters(20, seed, steps=0).min()) < 0.9
    hold({"mean": float(checks.linear_filters(20, seed, steps=3).mean())})


@pytest.mark.parametrize("seed", SEEDS)
def test_dynamics_with_batchnorm(seed: int) -> None:
    gaps = checks.lemma6_gaps(100, seed)
    assert_gaps(gaps, ("filters", "top layer", "mean detached"), ("deviation differentiated", "not divided"))
    gaps = checks.corollary3_gaps(100, seed)
    held = ("dynamics", "lambda below d", "negative factor", "variance one", "d formula", "scale of a field")
    assert_gaps(gaps, held, ("scale without BatchNorm", "deviation differentiated", "not divided"))


@pytest.mark.parametrize("seed", SEEDS)
def test_independent_fields(seed: int) -> None:
    gaps = checks.lemma5_gaps(120, seed)
    assert_gaps(gaps, ("Lemma 5", "rank"), ("one power of 1 - p", "no classes", "fields not independent"))
    gaps = checks.theorem5_gaps(100, seed)
    held = ("dynamics", "as if alone", "eigenvalue", "eigenvector", "second form", "share", "negative factor")
    assert_gaps(gaps, held, ("printed factor", "no modulation", "own field counted twice"))


def test_the_expectations_are_those_of_all_cases() -> None:
    drawn = random_population(5, 3, classes=3, filters=2)
    cases, chance = drawn.listed(drawn.gated())
    assert torch.allclose(chance.sum((1, 2)), torch.ones(5, dtype=torch.float64))
    found = theory.parts(drawn)
    means = torch.einsum("rcs,rsp->rcp", chance, cases) / drawn.prior[..., None]
    assert torch.allclose(means, found.means.flatten(2))


def test_batchnorm_takes_scales_away_but_not_every_difference() -> None:
    before, after = checks.uniformity(400, 0, 2.0)["d"]
    assert after.mean() < 0.2 * before.mean()
    even = checks.uniformity(400, 0, 0.0)
    worse = {name: float((after > before).double().mean()) for name, (before, after) in even.items()}
    assert 0 < worse["d"] < 0.1, "a few are less uniform than they were"
    assert worse["factor"] > 0.2, "the factors of modulation themselves often are"
    for name, (_, after) in checks.uniformity(400, 0, 2.0).items():
        assert torch.allclose(after, even[name][1]), "scales leave no trace"


@pytest.mark.parametrize("seed", SEEDS)
def test_blow_up_times(seed: int) -> None:
    gaps = checks.closed_form_gaps(200, seed)
    held = ("Eq. 146", "at time 0", "at the blow-up", "Eq. 151", "a slope not negative")
    assert_gaps(gaps, held, ())
    assert min(gaps["broken: b forgotten"], gaps["broken: time 1/y(0)"]) > 5e-3
    assert theory.blow_up_time(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 1.0])).isinf().all()


def test_a_modulated_basin_grows() -> None:
    def shares_at(c: float) -> dict[str, float]:
        return {name: float(won.mean()) for name, won in checks.basin_shares(4, [c], 2.0, 400, 0)[c].items()}

    shares = [shares_at(c) for c in (0.0, 0.3, 0.8)]
    assert shares[0]["agreement"] == shares[0]["free agreement"] == 1
    hold({f"{name} at {c}": shares_at(c)[name] for c in (0.3, 0.8) for name in ("blow-up", "unit", "free", "lost")})
    for less, more in itertools.pairwise(shares):
        assert less["unit"] < more["unit"]
        assert less["free"] <= more["free"]
        assert more["lost"] == 0
        assert more["free agreement"] > 0.99
    assert shares[2]["agreement"] < 0.9, "blow-up times do not decide where filters keep their length"
    far = {c: shares_at(c) for c in (1.2, 1.45)}
    assert far[1.2]["side"] == far[1.45]["side"] == 1, "the sign of the start decides"
    assert max(shares[2]["side"], far[1.2]["free side"]) < 1
    assert far[1.2]["unit"] == far[1.45]["unit"], "all that can be won is won at 1"
    assert 0.05 < far[1.2]["opposite"] < 0.5, "the others rest at mixtures"
    assert far[1.45]["opposite"] == 1, "beyond the root of 2 all on the other side go to its end"
    unit, free = theory.edge_of_two(0.5, 2.0)
    angles = torch.tensor([free - 0.01, free + 0.01, unit - 0.01, unit + 0.01], dtype=torch.float64)
    start, b = torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([2.5, 2.0], dtype=torch.float64)
    assert winners(start, b, unit=True).tolist() == [0, 0, 0, 1]
    assert winners(start, b, unit=False).tolist() == [0, 1, 1, 1]
    assert theory.edge_of_two(1.0, 2.0)[0] == pytest.approx(math.pi / 2)
    around, won = on_circle(0.5, 2.0)
    assert (won[(around > 0) & (around < 1.5)] == (around[(around > 0) & (around < 1.5)] > unit).int()).all()
    assert (won[(around > 3.2) & (around < 4.6)] == -1).all(), "both components negative"


@pytest.mark.parametrize("seed", SEEDS)
def test_probability_of_winning(seed: int) -> None:
    found = checks.probability_scores(40_000, seed, (2, 5))
    assert found["standard errors"] < 4.5
    assert found["quadrature"] < 1e-13
    assert min(found["broken: 1/d"], found["broken: half forgotten"]) > 20
    factors = 2 * torch.rand(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = theory.win_probabilities(factors)
    error = (exact * (1 - exact) / 40_000).sqrt().clamp_min(1 / 40_000)
    assert ((sampled_probabilities(factors, 40_000, seed) - exact).abs() / error).max() < 4.5


def test_bounds_on_the_probability() -> None:
    near = checks.bound_slack(300, 6, 1.0, 0)
    assert near["lower"] > 0
    assert near["upper"] > 0
    assert near["lower tightest"] > 0.5
    assert near["upper tightest"] > 0.9
    far = checks.bound_slack(300, 6, 3.0, 0)
    assert far["lower violated"] > 0.05
    assert far["upper violated"] > 0.05
    assert min(far["lower mended"], far["upper mended"]) > -1e-12


def test_gaps_of_instances() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert relative(values * 1.5, values).tolist() == [0.5, 0.5]
    found = over_instances({"a": torch.tensor([0.1, 0.3]), "broken: b": torch.tensor([2.0, 1.0])})
    assert found == {"a": pytest.approx(0.3), "broken: b": 1.0, "instances": 2.0}
    with pytest.raises(ValueError, match="reference must not be zero in any instance"):
        relative(values, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="one shape"):
        relative(values, values[:1])


def test_the_exercise_on_shares() -> None:
    """By autograd of the eigenvalue, by 1 - pi_k, and by Theorem 5's factor."""
    drawn = theory.balanced(random_population(20, 5, fields=4))
    m = theory.modulation(theory.parts(drawn), drawn.prior, drawn.weights[:, :, 0])
    by_factor = m.factor / (m.pq * m.s.square() + m.factor)
    cases = [(m.d[r], m.b[r], float(m.pq[r])) for r in range(20)]

    def share(d, b, pq):
        largest = torch.linalg.eigvalsh(torch.diag(d) + pq * torch.outer(b, b))[-1]
        return 1 - pq * b**2 / (largest - d)

    assert check(share, theory.others_share, cases, rtol=1e-6)
    assert not check(lambda d, b, pq: 1 - share(d, b, pq), theory.others_share, cases, rtol=1e-6)
    found = torch.stack([theory.others_share(*case) for case in cases])
    assert torch.allclose(found, by_factor, rtol=1e-6)
    assert torch.allclose((1 - found).sum(1), torch.ones(20, dtype=torch.float64))


def test_a_step_of_the_crowd_climbs_the_largest_eigenvalue() -> None:
    w = many_fields.random_filters(5, 4, 0).requires_grad_()
    d, b = (torch.tensor(many_fields.WITHIN, dtype=torch.float64) * w.square()).sum(-1), w[..., 1]
    spread = torch.diag_embed(d) + many_fields.PQ * b[..., None] * b[..., None, :]
    (slope,) = torch.autograd.grad(torch.linalg.eigvalsh(spread)[..., -1].sum() / 2, w)
    w = w.detach()
    stepped = torch.nn.functional.normalize(w + 0.5 * slope, dim=-1)
    assert torch.allclose(many_fields.turned(w), stepped, atol=1e-12)
    assert not torch.allclose(many_fields.turned(w, "deaf"), stepped, atol=1e-3)
    assert not torch.allclose(many_fields.turned(w, "printed"), stepped, atol=1e-3)
    alone = many_fields.random_filters(5, 1, 0)
    assert torch.allclose(many_fields.turned(alone), many_fields.turned(alone, "deaf"), atol=1e-12), (
        "nobody else to listen to"
    )


def test_a_crowd_learns_the_class_from_the_fourth_field_on() -> None:
    for fields, known in ((1, 0.0), (3, 0.0), (4, 1.0), (6, 1.0)):
        taken, heard = many_fields.heard(many_fields.course(many_fields.random_filters(8, fields, 1), 600)[-1])
        assert taken.shape == (8, fields)
        assert torch.allclose(taken.sum(-1), torch.ones(8, dtype=torch.float64))
        assert torch.allclose(heard, torch.full((8,), known, dtype=torch.float64), atol=1e-6)
    path = many_fields.course(many_fields.random_filters(2, 3, 0), 5)
    assert len(path) == 6
    assert torch.equal(many_fields.random_filters(2, 3, 0), path[0])


@pytest.mark.parametrize(("within", "fields"), [(0.1, 4), (0.4, 3), (0.6, 2), (0.9, 1)])
def test_how_many_a_crowd_takes(within: float, fields: int) -> None:
    assert many_fields.fewest((1.0, within)) == fields
    if fields > 2:
        with pytest.raises(ValueError, match="most must be larger, got 2"):
            many_fields.fewest((1.0, within), most=2)


def test_filters_in_order_of_their_tokens_and_faded_ones_last() -> None:
    allowed = torch.tensor([False, True, False, True])
    last = torch.zeros(4, 5)
    last[3, 0], last[1, 1], last[0, 2], last[1, 3], last[3, 4] = -1.0, 0.5, 0.6, 0.9, 0.01
    tokens, order = drawing.field_order(last, allowed)
    assert tokens.tolist() == [1, 3, 0, 2], "tokens that generators use come first"
    assert order.tolist() == [3, 1, 0, 2, 4], "the larger first, the faded last"


def test_views_in_the_drawn_world_share_what_the_generator_fixes() -> None:
    for view in (drawing.ONE, drawing.TWO):
        assert len(view) == len(drawing.PATTERN) == 10
        assert all(rule in ("*", letter) for rule, letter in zip(drawing.PATTERN, view, strict=True))
    assert sum(rule != "*" for rule in drawing.PATTERN) == 5


def test_everything_can_be_drawn() -> None:
    fig = Figure()
    one, two, three, four = fig.subplots(4)
    drawing.world(one, PALETTE)
    drawing.filters(two, torch.randn(6, 3), 2, PALETTE)
    image = two.images[0].get_array()
    assert image is not None
    assert image.shape == (3, 6), "a row a filter"
    drawing.scores(three, torch.rand(4, 2, 3), ("a", "b"), {"a": ("red", "o-"), "b": ("blue", "s--")})
    assert [line.get_label() for line in three.lines if not str(line.get_label()).startswith("_")] == ["a", "b"]
    axes = Figure().subplots(2, 2)
    drawing.panels(axes, torch.rand(4, 4, 1, 3), ("a",), {"a": ("red", "o-")})
    place = rcParams["axes.titlelocation"]  # the book's style, which another test may have set, puts titles on the left
    assert [ax.get_title(place) for ax in axes.flat] == ["P = 1", "P = 3", "P = 5", "P = 10"]
    drawing.tiles(four, torch.randn(3, 5, 5), gap=2)
    image = four.images[0].get_array()
    assert image is not None
    assert image.shape == (5, 3 * 5 + 2 * 2)
    four.clear()
    drawing.tiles(four, torch.stack([torch.ones(5, 5), torch.full((5, 5), 0.01)]), gap=0, least=1.0)
    image = four.images[0].get_array()
    assert image is not None
    assert image.sum() == 25, "what is too short stays blank"
    fig.canvas.draw()


def test_pictures_of_the_theory_can_be_drawn() -> None:
    fig = Figure()
    axes = fig.subplots(1, 7)
    coupling, data = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.eye(4) + 0.5
    drawing.blocks(axes[:3], coupling, data, 2)
    product = axes[2].collections[0].get_array()
    assert product is not None
    assert product.reshape(4, 4).tolist() == (torch.kron(coupling, torch.ones(2, 2)) * data).tolist()
    drawing.crowd(axes[3], torch.rand(5, 3), torch.rand(5, 3), PALETTE)
    assert len(axes[3].collections) == 3, "a field each"
    angles = torch.tensor([0.1, 1.4, 3.0, 4.0])
    drawing.circle(axes[4], angles, torch.tensor([0, 1, -1, -1]), 0.8, PALETTE)
    marks = {line.get_marker(): len(line.get_xdata()) for line in axes[4].lines}  # type: ignore[arg-type]
    assert (marks["o"], marks["s"], marks["x"]) == (1, 1, 2)
    drawing.uneven(axes[5], {"a": (torch.rand(20), torch.rand(20)), "b": (torch.rand(20), torch.rand(20))}, PALETTE)
    assert [label.get_text() for label in axes[5].get_xticklabels()] == ["a", "b"]
    drawing.shares(axes[6], {0.0: (0.2, 0.2), 0.5: (0.35, 0.25)}, 0.5, PALETTE)
    assert [list(line.get_ydata()) for line in axes[6].lines if len(line.get_xdata()) == 1] == [[0.35], [0.25]]  # type: ignore[arg-type]
    fig.canvas.draw()


RAMP = torch.arange(12.0).view(4, 3)
STYLES = {"a": ("0.3", "o-"), "b": ("0.6", "s--")}
ANGLES, WON = torch.tensor([0.1, 1.4, 3.0, 4.0]), torch.tensor([0, 1, -1, -1])
DRAWN = {
    "filters": (lambda ax: drawing.filters(ax, RAMP, 2, GREYS), 152.7116363),
    "scores": (lambda ax: drawing.scores(ax, torch.arange(24.0).view(4, 2, 3) / 24, ("a", "b"), STYLES), 1974.809103),
    "crowd": (lambda ax: drawing.crowd(ax, RAMP / 12, RAMP / 20, GREYS), 2907.979438),
    "circle": (lambda ax: drawing.circle(ax, ANGLES, WON, 0.8, GREYS), 7231.335516),
    "shares": (lambda ax: drawing.shares(ax, {0.0: (0.2, 0.2), 0.5: (0.35, 0.25)}, 0.5, GREYS), 504.3505331),
    "tiles": (lambda ax: drawing.tiles(ax, RAMP.view(3, 2, 2)), 60.14843893),
}


def test_every_part_of_the_drawn_world_is_where_it_was() -> None:
    assert geometry(lambda ax: drawing.world(ax, GREYS)) == pytest.approx(419608.43789748853, rel=1e-9)


@pytest.mark.parametrize("name", DRAWN)
def test_every_part_of_a_drawing_is_where_it_was(name: str) -> None:
    draw, found = DRAWN[name]
    assert geometry(draw) == pytest.approx(found)
