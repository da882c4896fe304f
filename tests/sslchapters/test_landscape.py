"""One layer: energies, kernels and limits, filters, optima, critical points and their stability, circles and their rotations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad

from sslbook._random import Streams
from sslchapters.landscape import layers, optima, stability, theory


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


def test_roughness_on_a_disc_against_scipy() -> None:
    disc = stability.discs(1, seed=4, least=0.5, most=2.0)
    angle = torch.tensor([0.7], dtype=torch.float64)
    c = float(disc.radius[0])

    def density(r: float, t: float) -> float:
        x = torch.tensor([[[r * math.cos(t), r * math.sin(t)]]], dtype=torch.float64)
        return float(disc.unnormalised(x))

    def over(low: float, high: float, weight) -> float:
        found: float = dblquad(
            lambda r, t: r * density(r, t) * weight(r, t), low, high, 0, c, epsrel=1e-7, epsabs=1e-9
        )[0]
        return found

    total = over(0, 2 * math.pi, lambda r, t: 1)
    up = over(0.7 - math.pi / 2, 0.7 + math.pi / 2, lambda r, t: r * math.cos(t - 0.7)) / total
    along = (
        sum(quad(lambda s, a=a: s**2 * density(s, a), 0, c)[0] for a in (0.7 + math.pi / 2, 0.7 - math.pi / 2)) / total
    )
    assert float(stability.roughness(disc, angle)["plane"]) == pytest.approx(up * along, rel=1e-6)


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


@pytest.mark.parametrize(("d", "c"), [(2, 0.1), (8, 2.5)])
def test_a_ball_by_slices(d: int, c: float) -> None:
    """Slices at an angle to the filter, and, for the disc on its plane, at an angle to another direction."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    angle, weights = math.pi / 4 * (nodes + 1), math.pi / 2 * weights  # half of a turn's half, counted twice
    ball, disc = (weights * np.sin(angle) ** k for k in (d, d - 1))
    height = (ball * np.cos(angle)).sum() / 2 / ball.sum()
    rough = c**2 * height * (disc * np.cos(angle) ** 2).sum() / disc.sum() / ball.sum()
    assert stability.uniform_ball(d, c)["roughness"] == pytest.approx(rough, rel=1e-9)


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
