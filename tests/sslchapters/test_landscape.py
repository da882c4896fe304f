"""One layer: energies, kernels and limits, filters, optima, critical points and their stability, circles and their rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad

from sslbook._random import Streams
from sslchapters.landscape import optima, stability, theory
from sslchapters.landscape.theory import LINEAR, RELU, Activation, monomial


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


def test_a_sampled_batch_is_a_batch() -> None:
    """The sums over samples equal Eq. 3 on the rows that were drawn."""
    pop = theory.population(3, samples=4, views=2)
    weights = theory.gaussian(pop.clean, 1.0)
    choice = [0] * 3000 + [1] * 3000 + [2] * 3000
    mean = theory.sampled(_only(pop, choice), weights[choice], 5).unflatten(0, (3, -1)).mean(1)
    gap = (mean - theory.expected(pop, weights, 5)).flatten(1).norm(dim=1) / theory.limit(pop, weights).flatten(1).norm(
        dim=1
    )
    assert float(gap.max()) < 0.1
    assert torch.allclose(theory.sampled(pop, weights, 7, 2)[1:2], theory.sampled(_only(pop, [1]), weights[1:2], 7, 3))


def _only(pop: theory.Population, choice: list[int]) -> theory.Population:
    return theory.Population(pop.p[choice], pop.clean[choice], pop.views[choice])


def test_a_mixture_of_gaussians_by_sampling() -> None:
    pop = theory.blobs(1, 3, 3, sigma=0.5)
    w = theory.directions(1, 1, 3)
    draw = torch.Generator().manual_seed(0)
    which = torch.multinomial(pop.p[0], 400000, replacement=True, generator=draw)
    x = pop.x[0, which] + 0.5 * torch.randn(400000, 3, generator=draw, dtype=torch.float64)
    for act in (RELU, Activation(0.3)):
        gated = act.gate(x @ w[0, 0])[:, None] * x
        assert torch.allclose(pop.matrix(w, act)[0, 0], torch.cov(gated.T), atol=0.02)


def test_clouds() -> None:
    cloud = theory.scattered(2, 7, 3)
    w = theory.directions(2, 4, 3)
    for act in (RELU, monomial(2)):
        assert torch.allclose((cloud.matrix(w, act) @ w[..., None])[..., 0], cloud.velocity(w, act), atol=1e-13)
        half = 0.5 * (cloud.velocity(w, act) * w).sum(-1)
        assert torch.allclose(half, cloud.energy(w, act), atol=1e-13)


def test_the_nine_points() -> None:
    circles = 2 * math.pi * Streams(range(2, 22), "circle").uniform((9,), torch.float64)
    for points in circles.tolist():
        assert optima.maxima(points, RELU).total == optima.closed_form(points, RELU)
    relu, straight = optima.maxima(optima.NINE, RELU), optima.maxima(optima.NINE, LINEAR)
    assert (len(relu.smooth), len(relu.kinks)) == (0, 9)
    assert (len(straight.smooth), len(straight.kinks), straight.frozen) == (2, 0, (True, True))
    for slope in (-1.0, -0.5, 0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
        act = Activation(slope)
        assert optima.maxima(optima.NINE, act).total == optima.closed_form(optima.NINE, act), slope


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


def test_slopes_are_derivatives() -> None:
    theta = torch.linspace(0.1, 6.2, 11, dtype=torch.float64, requires_grad=True)
    for alpha in ("uniform", "gaussian", "info_nce"):
        for act in (RELU, monomial(3)):
            value = optima.energy(theta, optima.NINE, act, alpha, 0.3).sum()
            (wanted,) = torch.autograd.grad(value, theta)
            assert torch.allclose(optima.slope(theta.detach(), optima.NINE, act, alpha, 0.3), wanted, atol=1e-13)


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


def test_a_gate_that_stays_shut_holds_on_one_side_alone() -> None:
    # a point across w, with t = 0: w is a maximum only if it leads A in the direction away from that point, too
    w, replica = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    weight = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    for angle, holds in ((math.pi / 9, True), (math.pi / 3, False)):
        cloud = theory.Cloud(theory.grid([angle, -angle, math.pi / 2]), weight)
        good, residual = optima.certify(cloud, RELU, w, torch.tensor([[False, False, True]]), replica)
        assert float(residual) < 1e-12
        assert bool(good) == holds
        away = theory.grid([-1e-4])
        assert bool(cloud.energy(away, RELU) < cloud.energy(w[None], RELU)) == holds


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


@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("c", [0.1, 2.5])
def test_a_ball_by_slices(d: int, c: float) -> None:
    """Slices at an angle to the filter, and, for the disc on its plane, at an angle to another direction."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    angle, weights = math.pi / 4 * (nodes + 1), math.pi / 2 * weights  # half of a turn's half, counted twice
    ball, disc = (weights * np.sin(angle) ** k for k in (d, d - 1))
    height = (ball * np.cos(angle)).sum() / 2 / ball.sum()
    rough = c**2 * height * (disc * np.cos(angle) ** 2).sum() / disc.sum() / ball.sum()
    assert stability.uniform_ball(d, c)["roughness"] == pytest.approx(rough, rel=1e-9)
