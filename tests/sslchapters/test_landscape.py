"""One layer: energies, kernels and limits, filters, optima, critical points and their stability, circles and their rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad

from sslchapters.landscape import optima, stability, theory
from sslchapters.landscape.theory import RELU, Activation, monomial


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


@pytest.mark.parametrize("alpha", ["uniform", "gaussian", "info_nce"])
def test_maxima_are_maxima(alpha: str) -> None:
    for act in (RELU, Activation(0.3), monomial(2)):
        found = optima.maxima(optima.NINE, act, alpha, 0.2)
        for angle in found.smooth + found.kinks:
            near = torch.tensor([angle - 1e-6, angle, angle + 1e-6], dtype=torch.float64)
            value = optima.energy(near, optima.NINE, act, alpha, 0.2)
            assert float(value[1]) >= float(value.max()) - 1e-15
        theta = 2 * math.pi * torch.arange(7200, dtype=torch.float64) / 7200
        value = optima.energy(theta, optima.NINE, act, alpha, 0.2)
        higher = (value > value.roll(1)) & (value > value.roll(-1))
        assert abs(int(higher.sum()) - found.total) <= 1  # a grid can miss the narrowest one


def test_every_maximum_is_found_and_every_face() -> None:
    """Euler's formula for faces; a closed form on a circle; elsewhere a search finds no others, and leads back to each."""
    circle = theory.Cloud(theory.grid(optima.NINE), torch.full((1, 9), 1 / 9, dtype=torch.float64))
    for slope in (0.0, 0.3, 1.0):
        assert len(optima.every(circle, Activation(slope))[0]) == optima.closed_form(optima.NINE, Activation(slope))
    random, rare = theory.scattered(1, 8, 3, seed=1), torch.full((1, 4), 0.2, dtype=torch.float64)
    corners, edges, cells = (optima.faces(random.x[0]) == 0).sum(-1).bincount().flip(0).tolist()
    assert (corners, edges, cells) == (56, 112, 58)  # of eight great circles in general position
    for cloud in (random, theory.summation(rare, torch.eye(4, dtype=torch.float64)[None])):
        w, _ = optima.every(cloud, RELU)
        found = optima.find(cloud, RELU, theory.directions(1, 100, w.shape[1]))
        assert len(w) > len(found.w) > 2
        assert float(torch.cdist(found.w, w).amin(1).max()) < 1e-6
        pushed = w + 1e-4 * torch.randn(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(0))
        pushed = pushed / pushed.norm(dim=-1, keepdim=True)
        assert bool((cloud.energy(pushed[None], RELU) < cloud.energy(w[None], RELU)).all())
        ends = optima.climb(cloud, RELU, pushed[None], steps=3000, first=1e-4)[0]
        assert float((ends - w).norm(dim=-1).max()) < 5e-5


def test_the_jacobian_is_the_derivative_of_the_flow() -> None:
    pop = theory.blobs(3, 4, 3, sigma=0.5)
    w = stability.newton(pop, theory.directions(3, 5, 3), RELU)
    t = stability.jacobian(pop, w, RELU)
    u = theory.directions(3, 5, 3, seed=9)
    u = u - (u * w).sum(-1, keepdim=True) * w
    h = 1e-6

    def at(sign: float) -> torch.Tensor:
        v = w + sign * h * u
        return stability.velocity(pop, v / v.norm(dim=-1, keepdim=True), RELU)

    still = stability.velocity(pop, w, RELU).norm(dim=-1) < 1e-11
    assert int(still.sum()) > 5
    slope = (at(1) - at(-1)) / (2 * h)
    slope = slope - (slope * w).sum(-1, keepdim=True) * w
    assert torch.allclose((t @ u[..., None])[..., 0][still], slope[still], atol=1e-7)


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
