"""The 2-2-1 network that chapter "Dual networks" follows by hand, and its picture."""

from __future__ import annotations

import pytest
import torch

from sslbook.book import plots
from sslbook.chapters.dual_networks import toy
from sslbook.connection import connection, unvec


def test_the_numbers_of_the_example() -> None:
    k = connection(toy.network(), "0", toy.inputs())[..., 0]
    assert [unvec(row, (2, 2)).tolist() for row in k] == [[[2, 1], [2, 1]], [[1, 2], [0, 0]]]
    assert toy.network()(toy.inputs())[:, 0].tolist() == [3, 1]
    assert float(toy.distance(toy.network()).detach()) == 2


@pytest.mark.parametrize(
    ("rate", "real", "frozen"), [(0.0, 2.0, 2.0), (1 / 14, 0.5, 0.5), (1 / 10, 0.18, 0.18), (1 / 7, 9 / 98, 0.0)]
)
def test_a_step_is_what_frozen_gates_promise_until_one_switches(rate: float, real: float, frozen: float) -> None:
    assert float(toy.distance(toy.stepped(rate))) == pytest.approx(real, abs=1e-14)
    assert toy.frozen(rate) == pytest.approx(frozen, abs=1e-14)


def test_a_unit_that_is_off_is_hollow() -> None:
    fig, axes = plots.figure(3)
    toy.draw_step(axes, 0.0, colors=plots.PALETTE)
    dashed = [[patch.get_linestyle() == "--" for patch in ax.patches] for ax in axes[:2]]
    assert [sum(row) for row in dashed] == [0, 1]
    assert [text.get_text() for text in axes[1].texts] == ["1", "2", "1", "−1", "1"]
    assert torch.equal(toy.inputs(), torch.tensor(toy.INPUTS, dtype=torch.float64))
    fig.clear()
