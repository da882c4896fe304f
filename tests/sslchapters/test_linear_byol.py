"""Linear BYOL: many flows as one system."""

from __future__ import annotations

import numpy as np

from sslchapters.linear_byol import instances
from sslchapters.linear_byol.theory import Moments, Weights


def test_replicas_do_not_see_each_other() -> None:
    rng = np.random.default_rng(3)
    data, start = instances.random_moments(4, 3, rng), instances.random_weights(4, 2, 3, rng)
    together = instances.integrate(start, data, np.array([1.0, 2.0, 3.0, 4.0]))
    alone = instances.integrate(
        Weights(*(part[2:3] for part in start)), Moments(data.same[2:3], data.cross[2:3]), 3.0, points=3
    )
    for one, two in zip(alone, together):
        assert np.allclose(one[-1, 0], two[-1, 2], rtol=1e-7, atol=1e-9)
    fractions = instances.integrate(start, data, 4.0, points=np.array([0.25, 1.0]))
    assert np.allclose(fractions.online[0, 0], together.online[-1, 0], rtol=1e-6, atol=1e-8)
