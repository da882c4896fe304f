"""What the chapter's figures draw: names where the tree has them, areas that are squared correlations, the lucky corner."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pytest
import torch
from drawing_cases import GREYS, geometry

from sslbook.book import plots
from sslbook.chapters.hltm import figures, lucky


def test_children_lie_either_side_of_their_parent() -> None:
    for name in figures.NAMES[:3]:
        (x, y), left, right = figures.spot(name), figures.spot(name + "0"), figures.spot(name + "1")
        assert (left[0] + right[0]) / 2 == pytest.approx(x)
        assert left[1] == right[1] == y - 1


def test_tree_and_network_name_the_same_leaves() -> None:
    fig, axes = plt.subplots(1, 2)
    figures.latent_tree(axes[0], plots.PALETTE)
    figures.tree_network(axes[1], plots.PALETTE)
    written = [{text.get_text() for text in ax.texts} for ax in axes]
    assert set(figures.NAMES) <= written[0]
    assert written[0] & written[1] == {"s00", "s01", "s10", "s11"} | (written[0] & {""})
    plt.close(fig)


def test_a_circle_fills_with_the_squared_correlation() -> None:
    fig, ax = plt.subplots()
    figures.correlations(ax, [torch.tensor([[0.5]]), torch.tensor([[1.0, 0.0]])], "C0")
    areas = [dots.get_sizes() for dots in ax.collections]
    assert areas[1] / areas[0] == pytest.approx(0.25)
    assert (areas[3] / areas[2]).tolist() == pytest.approx([1.0, 0.0])
    plt.close(fig)


@pytest.mark.parametrize(("signed", "some"), [(True, True), (False, False)])
def test_luck_needs_both_signs(signed: bool, some: bool) -> None:
    fig, ax = plt.subplots()
    rho = 0.8 * torch.tensor([1.0, -1.0 if signed else 1.0]).double().repeat(20)
    weights = lucky.uniform_weights((500, 40), 1.0, 3)
    found = figures.means_of_units(ax, lucky.LeafPart(rho), weights, 1.0, plots.PALETTE)
    assert (found > 0) is some
    assert len(ax.lines[1].get_xdata()) == found
    plt.close(fig)


def test_every_part_of_the_drawings_is_where_it_was() -> None:
    assert geometry(lambda ax: figures.latent_tree(ax, GREYS)) == pytest.approx(26848.222699243655, rel=1e-9)
    assert geometry(lambda ax: figures.tree_network(ax, GREYS)) == pytest.approx(192219.05700701012, rel=1e-9)
    best = [torch.tensor([[0.5]]), torch.tensor([[1.0, 0.2]]), torch.tensor([[0.9, 0.1, 0.3, 0.6]])]
    assert geometry(lambda ax: figures.correlations(ax, best, "0.2")) == pytest.approx(22368.6046975)
    part, weights = lucky.LeafPart(torch.tensor([0.8, -0.6]).double()), torch.tensor([[1.0, -1], [1, 1]]).double()
    assert geometry(lambda ax: figures.means_of_units(ax, part, weights, 1.0, GREYS)) == pytest.approx(260.1582435)
