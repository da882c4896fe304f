"""One layer: energies, kernels and limits, filters, optima, critical points and their stability, circles and their rotations."""

from __future__ import annotations

import itertools
import math

import torch
from scipy.integrate import quad

from sslbook._random import Streams
from sslchapters.landscape import layers, optima, theory


def test_batches_of_three_have_the_mean_that_is_promised() -> None:
    pop = theory.population(5, samples=3, views=2)
    weights = theory.gaussian(pop.clean, 0.8)
    assert torch.allclose(theory.expected(pop, weights, 3), theory.enumerated(pop, weights, 3), atol=1e-13)
    crowd, divided = theory.lopsided()
    assert torch.allclose(theory.limit(crowd, divided), _by_pairs(crowd, divided), atol=1e-13)
    assert float(torch.linalg.eigvalsh(theory.limit(crowd, divided))[0, 0]) < -0.01


def _by_pairs(pop: theory.Population, weights: torch.Tensor) -> torch.Tensor:
    """The limit by the definition: independent pairs of samples and of views."""
    p, g = pop.p[0], pop.views[0]
    total = torch.zeros(g.shape[-1], g.shape[-1], dtype=g.dtype)
    n, v = g.shape[:2]
    for s in range(n):
        for t in range(n):
            chance = p[s] * p[t] * weights[0, s, t] / v**2
            far = (g[s, :, None] - g[t, None]).flatten(0, 1)
            near = (g[s, :, None] - g[s, None]).flatten(0, 1)
            total += 0.5 * chance * (far.T @ far - near.T @ near)
    return total[None]


def test_the_mean_over_a_turn_against_scipy() -> None:
    theta = torch.tensor([0.3, 2.0, 5.0], dtype=torch.float64)
    for reach in (0.4, 2.0, math.pi):
        b = torch.tensor(
            [
                [
                    quad(lambda s, u=float(t) - p: max(math.cos(u + s), 0), -reach, reach, limit=200)[0] / (2 * reach)
                    for p in optima.NINE
                ]
                for t in theta
            ],
            dtype=torch.float64,
        )
        wanted = 0.5 * b.var(-1, correction=0)
        assert torch.allclose(optima.blurred(theta, optima.NINE, reach), wanted, atol=1e-7)


def test_info_nce_of_all_pairs_is_its_formula() -> None:
    z = torch.nn.functional.normalize(torch.randn(4, 3, 5, dtype=torch.float64), dim=-1)
    terms = []
    for i, v, w in itertools.product(range(4), range(3), range(3)):
        if v != w:
            away = sum((z[i, v] @ z[j, u] / 0.5).exp() for j in range(4) if j != i for u in range(3))
            near = (z[i, v] @ z[i, w] / 0.5).exp()
            terms.append(-(near / (near + away)).log())
    torch.testing.assert_close(layers.info_nce(z, 0.5), torch.stack(terms).mean())


def test_linear_units_that_climb_alone_end_at_the_leading_eigenvector() -> None:
    draw = Streams([0], "units")
    x, start = (draw.normal(shape)[0] for shape in ((20, 3, 4), (6, 4)))
    ends = layers.climbed(start / start.norm(dim=1, keepdim=True), x, layers.RULES["alone, linear"], draw)
    lead = torch.linalg.eigh(torch.cov(x.mean(1).T, correction=0))[1][:, -1]
    torch.testing.assert_close((ends @ lead).abs(), torch.ones(6, dtype=torch.float64))
