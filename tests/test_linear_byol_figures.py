"""The chapter's figures: every start, line and mark is where it was."""

from __future__ import annotations

import numpy as np
import pytest
from drawing_cases import GREYS, geometry
from matplotlib.figure import Figure

from sslbook.chapters.linear_byol import figures


@pytest.mark.parametrize(
    ("kind", "starts", "drawn"),
    [
        ("tied predictor", -24.78, 83517.59358),
        ("fixed target", -6.25, -2409.25913),
        ("no predictor", 3.0, 20723.95267),
    ],
)
def test_every_part_of_a_portrait_is_where_it_was(kind: str, starts: float, drawn: float) -> None:
    begin = figures._begin(kind).ravel()
    assert begin @ np.arange(1, len(begin) + 1) == pytest.approx(starts, rel=1e-9)
    assert geometry(lambda ax: figures.portrait(ax, kind, 0.5, GREYS)) == pytest.approx(drawn)
    ax = Figure().add_subplot()
    figures.portrait(ax, kind, 0.5, GREYS)
    both = ("$w_1$", "$w_2$") if kind == "fixed target" else ("$w$", r"$\theta$")
    assert (ax.get_xlabel(), ax.get_ylabel()) == both


def test_every_part_of_the_plane_of_fates_is_where_it_was() -> None:
    assert geometry(lambda ax: figures.plane_of_fates(ax, 0.5, GREYS)) == pytest.approx(170334.3201)
