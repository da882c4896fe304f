"""One layer: stability and roughness, power iteration, rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from held import hold
from scipy.integrate import dblquad, quad

from sslbook.book.exercises import check
from sslbook.chapters.landscape import basin, circle, models, rotation, roughness, stability
from sslbook.chapters.landscape.filters import LINEAR, RELU, Activation, monomial
from sslbook.streams import Streams


def test_the_jacobian_is_the_derivative_of_the_flow() -> None:
    pop = models.blobs(3, 4, 3, sigma=0.5)
    w = stability.newton(pop, models.directions(3, 5, 3), RELU)
    t = stability.jacobian(pop, w, RELU)
    u = models.directions(3, 5, 3, seed=9)
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


def test_the_roughness_comes_from_the_plane() -> None:
    gaps = stability.plane_gaps(32, seed=6)
    hold(gaps)
    assert gaps["plane"] < 1e-9
    assert min(gaps["broken: sign"], gaps["broken: mean left out"]) > 1e-4


@pytest.mark.parametrize("setting", stability.SETTINGS)
def test_the_theorem_on_stability(setting: str) -> None:
    found = stability.scan(setting, 16, 20, seed=11)
    sure = found.maximal & (found.gap > found.rho)
    assert int(sure.sum()) > 3
    assert bool(found.returned[sure].all())
    assert bool(((found.growth < 0) == found.returned)[found.clear].all())
    if setting == "relu":
        assert float(found.lift.max()) < 0
        assert bool(found.returned[found.maximal].all())
    if setting == "square":
        assert not bool(found.returned[found.maximal].all())


def test_roughness_on_a_disc_against_scipy() -> None:
    disc = roughness.discs(1, seed=4, least=0.5, most=2.0)
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
    assert float(roughness.roughness(disc, angle).plane) == pytest.approx(up * along, rel=1e-6)


@pytest.mark.parametrize("tau", [None, 0.1])
def test_bounds_on_the_roughness(tau: float | None) -> None:
    disc = roughness.discs(24, seed=8)
    angle = 2 * math.pi * Streams(range(24), "turn").uniform((1,), torch.float64)[:, 0]
    found = roughness.roughness(disc, angle, tau)
    assert float((found.measured / found.plane - 1).abs().max()) < 1e-4
    assert bool((found.plane <= found.sharp).all())
    assert bool((found.plane <= found.corrected).all())
    even = roughness.roughness(disc, angle)
    assert bool((even.plane > even.printed).any())
    assert torch.allclose(found.r, found.z0 * even.r, rtol=1e-10)
    assert bool((found.plane <= found.z0 * even.plane * (1 + 1e-12)).all())


def test_the_uniform_ball() -> None:
    flat = roughness.Disc(torch.tensor([0.1]), torch.zeros(1, 2), torch.zeros(1, 2, 2))
    flat = roughness.Disc(*(v.double() for v in (flat.radius, flat.linear, flat.quadratic)))
    found = roughness.roughness(flat, torch.zeros(1, dtype=torch.float64))
    ball = roughness.uniform_ball(2, float(flat.radius[0]))
    assert float(found.plane) == pytest.approx(ball["roughness"], rel=1e-9)
    # the density peaks everywhere on the plane, and 400 nodes reach it
    assert float(found.printed) == pytest.approx(ball["printed"], rel=1e-9)
    assert ball["printed"] < ball["roughness"] < ball["corrected"]


def test_the_second_order_of_an_eigenvector() -> None:
    found = basin.perturbation_gaps(2000, seed=3)
    hold(found)
    assert 2.5 < found["random"] < basin.KAPPA < found["broken: first order left out"]
    assert found["exchange"] == pytest.approx(4 * 2**0.5, rel=1e-3)
    assert 0.9 * basin.KAPPA < found["exchange"] < basin.KAPPA, "the constant is no generous one"
    a, d = basin.exchanging(torch.tensor([1e-3], dtype=torch.float64))
    assert torch.linalg.matrix_norm(d, ord=2).item() == pytest.approx(0.5, rel=1e-2)
    assert torch.linalg.eigh(a + d)[1][0, 0, -1].abs() < 0.01, "turned by nearly a right angle"


def test_power_iteration_where_the_theorem_applies() -> None:
    pop, start = basin.tight_triples(24, seed=5)
    angle = torch.atan2(pop.centres[..., 1], pop.centres[..., 0])
    off = (angle - 2 * math.pi / 3 * torch.arange(3) + math.pi).remainder(2 * math.pi) - math.pi
    assert 0.1 * math.pi < float(off.abs().max()) < 0.15 * math.pi, "around the circle, up to a seventh of a turn"
    found = basin.certify_plane(pop, start)
    on = found.applies
    assert int(on.sum()) > 3
    assert bool((found.moved < found.bound)[on].all())
    assert float(found.excess[on].max()) <= 1 + 1e-6
    assert float(found.residual[on].max()) < 1e-12


def test_power_iteration_on_points() -> None:
    cloud, u, off = basin.nearly_orthogonal(12, 0.03, patterns=4, size=5)
    assert float(off.max()) < 0.2
    found = basin.certify_points(cloud, u[:, :1])
    assert float(found.applies.double().mean()) > 0.5
    assert bool((found.moved < found.bound)[found.applies].all())
    assert float(found.excess[found.applies].max()) <= 1 + 1e-6
    path = basin.iterate(cloud, u, 60)
    assert float((path[-1] * u).sum(-1).min()) > 0.95


def test_irregularity_of_a_constant_matrix() -> None:
    one, half = torch.tensor(1.0), torch.tensor(0.5)
    assert float(basin.irregularity(one, half, one, torch.tensor(0.0))) == pytest.approx(0.25)
    assert float(basin.irregularity(one, half, one, torch.tensor(0.1))) > 0.25


@pytest.mark.parametrize("act", [LINEAR, RELU, Activation(0.3), monomial(2), monomial(3)])
def test_orbits_are_flat(act: Activation) -> None:
    gaps = rotation.orbit_gaps(act, 32, seed=7)
    hold(gaps)
    assert gaps["group"] < 1e-9
    assert gaps.get("circle", 0.0) < 1e-9
    assert min(gaps["broken: no group"], gaps["broken: no augmentation"]) > 1e-3


def test_the_mean_over_a_turn_against_scipy() -> None:
    theta = torch.tensor([0.3, 2.0, 5.0], dtype=torch.float64)
    for reach in (0.4, 2.0, math.pi):
        b = torch.tensor(
            [
                [
                    quad(lambda s, u=float(t) - p: max(math.cos(u + s), 0), -reach, reach, limit=200)[0] / (2 * reach)
                    for p in circle.NINE
                ]
                for t in theta
            ],
            dtype=torch.float64,
        )
        wanted = 0.5 * b.var(-1, correction=0)
        assert torch.allclose(rotation.blurred(theta, circle.NINE, reach), wanted, atol=1e-7)


def test_turns_remove_maxima() -> None:
    assert rotation.blurred_maxima(circle.NINE, 0.0) == circle.maxima(circle.NINE, RELU).total
    assert rotation.blurred_maxima(circle.NINE, math.pi) == 0
    assert rotation.blurred_maxima(circle.NINE, math.pi / 3) == 2
    kept, lost = rotation.ripple((8, 64), 16), rotation.ripple((8, 64), 16, share=2 / 3)
    assert float(kept[1] / kept[0]) < 0.05
    assert float(lost[1] / lost[0]) > 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stability.scan("cube"), "setting must be one of relu, leaky_relu, square, got 'cube'"),
        (lambda: roughness.features(torch.ones(2), 0.0), "tau must be above 0"),
        (lambda: roughness.uniform_ball(1, 1.0), "size must be at least 2, got 1"),
        (lambda: roughness.uniform_ball(2, 0.0), "radius must be above 0, got 0.0"),
        (lambda: rotation.views(torch.ones(1, 1, 2), 0), "count must be at least 1, got 0"),
        (lambda: rotation.blurred(torch.zeros(1), circle.NINE, 4.0), "reach must be between 0 and 3.14"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_the_exercise_on_the_ball() -> None:
    def rough(d, c):
        v = [math.pi ** (k / 2) / math.gamma(k / 2 + 1) for k in (d - 1, d)]
        return (c * v[0] / ((d + 1) * v[1])) ** 2

    def reference(d, c):
        return roughness.uniform_ball(d, c)["roughness"]

    def integrated(d, c):
        """By slices at an angle to the filter, and, for the disc on its plane, at an angle to another direction."""
        nodes, weights = np.polynomial.legendre.leggauss(60)
        angle, weights = math.pi / 4 * (nodes + 1), math.pi / 2 * weights  # half of a turn's half, counted twice
        ball, disc = (weights * np.sin(angle) ** k for k in (d, d - 1))
        height = (ball * np.cos(angle)).sum() / 2 / ball.sum()
        return c**2 * height * (disc * np.cos(angle) ** 2).sum() / disc.sum() / ball.sum()

    cases = [(d, c) for d in (2, 3, 8) for c in (0.1, 1.0, 2.5)]
    assert check(rough, reference, cases)
    assert check(rough, integrated, cases)
    assert not check(lambda d, c: c * rough(d, c), reference, cases)


def test_discs_are_of_all_sizes() -> None:
    """Their radii are uniform on a logarithmic scale."""
    radius = roughness.discs(400, least=0.1, most=10.0).radius.log10()
    assert -1 <= float(radius.min()) < -0.95
    assert 0.95 < float(radius.max()) <= 1
    assert float(radius.mean()) == pytest.approx(0, abs=4 * 2 / (12 * 400) ** 0.5), "four standard errors"
