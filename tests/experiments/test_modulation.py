"""Global modulation: each lemma and theorem on random instances, who wins, and what the figures draw."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from drawing_cases import GREYS, geometry
from held import hold
from matplotlib import rcParams
from matplotlib.figure import Figure

from sslbook.book.plots import PALETTE
from sslbook.experiments.modulation import checks, drawing, many_fields, theory
from sslbook.experiments.modulation.instances import random_population
from sslbook.experiments.modulation.reference import on_circle, sampled_probabilities, winners

SEEDS = [0, 1000]


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_filters_move_together(seed: int) -> None:
    assert float(checks.linear_filters(20, seed, steps=500).min()) > 1 - 1e-6
    assert float(checks.linear_filters(20, seed, steps=0).min()) < 0.9
    hold({"mean": float(checks.linear_filters(20, seed, steps=3).mean())})


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


def test_what_never_blows_up_has_no_time() -> None:
    assert theory.blow_up_time(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 1.0])).isinf().all()


def test_a_modulated_basin_grows() -> None:
    def shares_at(c: float) -> dict[str, float]:
        return {name: float(won.mean()) for name, won in checks.basin_shares(4, [c], 2.0, 400, 0)[c].items()}

    shares = [shares_at(c) for c in (0.0, 0.3, 0.8)]
    assert shares[0]["agreement"] == shares[0]["free agreement"] == 1
    hold({f"{name} at {c}": shares_at(c)[name] for c in (0.3, 0.8) for name in ("unit", "free", "lost")})
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
    assert near["upper tightest"] > 0.9
    far = checks.bound_slack(300, 6, 3.0, 0)
    assert far["lower violated"] > 0.05
    assert far["upper violated"] > 0.05
    assert min(far["lower mended"], far["upper mended"]) > -1e-12


def test_the_share_of_the_others() -> None:
    """By autograd of the eigenvalue, and by Theorem 5's factor."""
    drawn = theory.balanced(random_population(20, 5, fields=4))
    m = theory.modulation(theory.parts(drawn), drawn.prior, drawn.weights[:, :, 0])
    found = torch.stack([theory.others_share(m.d[r], m.b[r], float(m.pq[r])) for r in range(20)])
    assert torch.allclose(found, m.factor / (m.pq * m.s.square() + m.factor), rtol=1e-6)
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
    allowed, last = torch.tensor([False, True, False, True]), torch.zeros(4, 5)
    last[3, 0], last[1, 1], last[0, 2], last[1, 3], last[3, 4] = -1.0, 0.5, 0.6, 0.9, 0.01
    tokens, order = drawing.field_order(last, allowed)
    assert tokens.tolist() == [1, 3, 0, 2], "tokens that generators use come first"
    assert order.tolist() == [3, 1, 0, 2, 4], "the larger first, the faded last"


def test_views_in_the_drawn_world_share_what_the_generator_fixes() -> None:
    for view in (drawing.ONE, drawing.TWO):
        assert len(view) == len(drawing.PATTERN) == 10
        assert all(rule in ("*", letter) for rule, letter in zip(drawing.PATTERN, view, strict=True))
    assert sum(rule != "*" for rule in drawing.PATTERN) == 5


def test_what_is_drawn_into_several_axes() -> None:
    axes = Figure().subplots(1, 5)
    coupling, data = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.eye(4) + 0.5
    drawing.blocks(axes[:3], coupling, data, 2)
    product = axes[2].collections[0].get_array()
    assert product is not None
    assert product.reshape(4, 4).tolist() == (torch.kron(coupling, torch.ones(2, 2)) * data).tolist()
    drawing.uneven(axes[3], {"a": (torch.rand(20), torch.rand(20)), "b": (torch.rand(20), torch.rand(20))}, PALETTE)
    assert [label.get_text() for label in axes[3].get_xticklabels()] == ["a", "b"]
    drawing.tiles(axes[4], torch.stack([torch.ones(5, 5), torch.full((5, 5), 0.01)]), gap=0, least=1.0)
    image = axes[4].images[0].get_array()
    assert image is not None
    assert image.sum() == 25, "what is too short stays blank"
    panels = Figure().subplots(2, 2)
    drawing.panels(panels, torch.rand(4, 4, 1, 3), ("a",), {"a": ("red", "o-")})
    place = rcParams["axes.titlelocation"]  # the book's style, which another test may have set, puts titles on the left
    assert [ax.get_title(place) for ax in panels.flat] == ["P = 1", "P = 3", "P = 5", "P = 10"]


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
