"""Global modulation: each lemma and theorem on random instances, who wins, and what the figures draw."""

from __future__ import annotations

import math

import pytest
import torch
from drawing_cases import GREYS, geometry
from matplotlib import rcParams
from matplotlib.figure import Figure

from sslbook.book.plots import PALETTE
from sslbook.experiments.modulation import drawing, reference, theory
from sslbook.experiments.modulation.reference import on_circle, sampled_probabilities


def test_starts_on_the_circle_end_on_their_side_of_the_edge() -> None:
    unit, _ = theory.edge_of_two(0.5, 2.0)
    assert theory.edge_of_two(1.0, 2.0)[0] == pytest.approx(math.pi / 2)
    around, won = on_circle(0.5, 2.0)
    assert (won[(around > 0) & (around < 1.5)] == (around[(around > 0) & (around < 1.5)] > unit).int()).all()
    assert (won[(around > 3.2) & (around < 4.6)] == -1).all(), "both components negative"


def test_probabilities_of_winning_are_shares_of_draws() -> None:
    factors = 2 * torch.rand(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = theory.win_probabilities(factors)
    error = (exact * (1 - exact) / 40_000).sqrt().clamp_min(1 / 40_000)
    assert ((sampled_probabilities(factors, 40_000, 0) - exact).abs() / error).max() < 4.5


def test_a_step_of_the_crowd_climbs_the_largest_eigenvalue() -> None:
    w = reference.random_filters(5, 4, 0).requires_grad_()
    d, b = (torch.tensor(reference.WITHIN, dtype=torch.float64) * w.square()).sum(-1), w[..., 1]
    spread = torch.diag_embed(d) + reference.PQ * b[..., None] * b[..., None, :]
    (slope,) = torch.autograd.grad(torch.linalg.eigvalsh(spread)[..., -1].sum() / 2, w)
    w = w.detach()
    stepped = torch.nn.functional.normalize(w + 0.5 * slope, dim=-1)
    assert torch.allclose(reference.turned(w), stepped, atol=1e-12)
    assert not torch.allclose(reference.turned(w, "deaf"), stepped, atol=1e-3)
    assert not torch.allclose(reference.turned(w, "printed"), stepped, atol=1e-3)
    alone = reference.random_filters(5, 1, 0)
    assert torch.allclose(reference.turned(alone), reference.turned(alone, "deaf"), atol=1e-12), (
        "nobody else to listen to"
    )


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
