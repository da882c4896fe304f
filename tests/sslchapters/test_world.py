"""The world of the book: its moments by hand and by the library, and a drawing of each new thing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sslbook import covariance_operator, intra_operator, mlp
from sslchapters import plots, world


@pytest.mark.parametrize(("jitter", "kept"), [(0.0, 1.0), (0.5, 0.8), (1.0, 0.5)])
def test_moments_are_those_by_hand_and_the_library_s(jitter: float, kept: float) -> None:
    found = world.moments(jitter=jitter)
    np.testing.assert_allclose(found.between, np.diag([1.0, 0.0]))
    np.testing.assert_allclose(found.within, np.diag([jitter**2, 1.0]))
    np.testing.assert_allclose(found.common, 0)
    assert found.between[0, 0] / (found.between + found.within)[0, 0] == pytest.approx(kept)
    assert world.share(jitter) == pytest.approx(kept)
    views, neuron = torch.from_numpy(world.views(jitter)), mlp((2, 1), dtype=torch.float64)
    np.testing.assert_allclose(covariance_operator(neuron, "0", views).dense(), found.between, atol=1e-15)
    np.testing.assert_allclose(intra_operator(neuron, "0", views).dense(), found.within, atol=1e-15)


def test_the_parts_add_up_to_the_second_moment() -> None:
    points = np.random.default_rng(0).normal(size=(3, 4, 2))
    found = world.moments(points)
    flat = points.reshape(-1, 2)
    np.testing.assert_allclose(found.between + found.within + found.common, flat.T @ flat / len(flat))


@pytest.mark.parametrize(
    "new",
    [
        {"weight": (1, 1), "arrow": (1, 0)},
        {"arrow": {"means": (1, 0), "none": (0, 0)}},
        {"jitter": 0.5},
        {"ellipses": False},
        {"gate": ((1, 1), -0.5)},
        {"points": world.views(at=(1, 1)), "words": False},
    ],
)
def test_each_new_thing_is_drawn(new: dict) -> None:
    plots.style()
    fig, ax = plots.figure(height=3.0)
    world.draw(ax, **new)
    assert plots.picture(fig)
