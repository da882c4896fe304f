"""The world of the book: its moments by hand and by the library."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sslbook import covariance_operator, intra_operator, mlp
from sslchapters import world


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
