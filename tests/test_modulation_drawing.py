"""The chapter's figures: which filter stands where, and that everything can be drawn."""

from __future__ import annotations

import pytest
import torch
from drawing_cases import GREYS, geometry
from matplotlib import rcParams
from matplotlib.figure import Figure

from sslbook.book.plots import PALETTE
from sslbook.chapters.modulation import drawing


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
