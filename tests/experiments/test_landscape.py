"""One layer: energies, kernels and limits, filters, optima, critical points and their stability, circles and their rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from held import hold
from scipy.integrate import dblquad, quad

from sslbook.experiments.landscape import instances, optima, stability, theory
from sslbook.experiments.landscape.theory import LINEAR, RELU, Activation, monomial
from sslbook.stats.replica_rng import Streams


@pytest.mark.parametrize("loss", ["info_nce", "soft_triplet", "hinge_triplet"])
def test_holding_the_weights_hides_a_negative_curvature(loss: str) -> None:
    gaps = theory.stop_gradient_gaps(loss, 64, seed=1)
    hold(gaps)
    assert gaps["positive"] < 1e-12
    if loss != "hinge_triplet":
        assert gaps["broken: sign"] > 1e-4


def test_batches_of_three_have_the_mean_that_is_promised() -> None:
    pop = theory.population(5, samples=3, views=2)
    weights = theory.gaussian(pop.clean, 0.8)
    assert torch.allclose(theory.expected(pop, weights, 3), theory.enumerated(pop, weights, 3), atol=1e-13)
    crowd, divided = theory.lopsided()
    assert torch.allclose(theory.limit(crowd, divided), _by_pairs(crowd, divided), atol=1e-14)
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
    mean = torch.stack([theory.sampled(pop, weights, 5, seed) for seed in range(3000)]).mean(0)
    gap = (mean - theory.expected(pop, weights, 5)).flatten(1).norm(dim=1) / theory.limit(pop, weights).flatten(1).norm(
        dim=1
    )
    assert float(gap.max()) < 0.1
    assert torch.allclose(theory.sampled(pop, weights, 7, 2)[1:2], theory.sampled(_only(pop, 1), weights[1:2], 7, 3))


def _only(pop: theory.Population, r: int) -> theory.Population:
    return theory.Population(pop.p[r : r + 1], pop.clean[r : r + 1], pop.views[r : r + 1])


def test_errors_fall_as_the_root() -> None:
    found = theory.convergence((64, 1024), 64)
    assert math.log(found.error[1] / found.error[0]) / math.log(16) == pytest.approx(-0.5, abs=0.12)
    assert float(found.unadjusted[1]) > 0.2
    assert float(theory.convergence((4,), 64).negative[0]) > 0.5
    assert float(theory.convergence((4,), 64, noise=0.0).negative[0]) == 0


def test_linear_filters() -> None:
    fixed, moving = optima.train_linear(6, 12, anew=False), optima.train_linear(6, 12, anew=True, tau=0.1)
    assert float(fixed.cosine.min()) > 0.999
    assert fixed.directions().tolist() == [1] * 6
    assert float(moving.directions().double().mean()) > 1.5


def test_the_two_models() -> None:
    gaps = instances.pattern_gaps(40, 3, seed=4)
    hold(gaps)
    assert max(gaps["categorical"], gaps["summation"]) < 1e-9
    assert gaps["largest q that leads"] < instances.THRESHOLD < gaps["least q that does not"]
    cloud = instances.summation(torch.full((1, 3), 0.2, dtype=torch.float64), instances.orthonormal(1, 3, 3))
    assert torch.allclose((cloud.p[..., None] * cloud.x).sum(1), torch.zeros(1, 3, dtype=torch.float64), atol=1e-14)
    assert torch.allclose(
        cloud.matrix(instances.directions(1, 2, 3), LINEAR), torch.eye(3, dtype=torch.float64), atol=1e-14
    )


def test_a_mixture_of_gaussians_by_sampling() -> None:
    pop = instances.blobs(1, 3, 3, sigma=0.5)
    w = instances.directions(1, 1, 3)
    draw = torch.Generator().manual_seed(0)
    which = torch.multinomial(pop.p[0], 400000, replacement=True, generator=draw)
    x = pop.centres[0, which] + 0.5 * torch.randn(400000, 3, generator=draw, dtype=torch.float64)
    for act in (RELU, Activation(0.3)):
        gated = act.gate(x @ w[0, 0])[:, None] * x
        assert torch.allclose(pop.matrix(w, act)[0, 0], torch.cov(gated.T), atol=0.02)


def test_clouds() -> None:
    cloud = instances.scattered(2, 7, 3)
    w = instances.directions(2, 4, 3)
    for act in (RELU, monomial(2)):
        assert torch.allclose((cloud.matrix(w, act) @ w[..., None])[..., 0], cloud.velocity(w, act), atol=1e-13)
        half = 0.5 * (cloud.velocity(w, act) * w).sum(-1)
        assert torch.allclose(half, cloud.energy(w, act), atol=1e-13)


def test_the_nine_points() -> None:
    hold(optima.missed(20, seed=2))
    relu, straight = optima.maxima(optima.NINE, RELU), optima.maxima(optima.NINE, LINEAR)
    assert (len(relu.smooth), len(relu.kinks)) == (0, 9)
    assert (len(straight.smooth), len(straight.kinks), straight.frozen) == (2, 0, (True, True))
    for slope in (-1.0, -0.5, 0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
        act = Activation(slope)
        assert optima.maxima(optima.NINE, act).total == optima.closed_form(optima.NINE, act), slope


@pytest.mark.parametrize("alpha", optima.WEIGHTS)
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
    for alpha in optima.WEIGHTS:
        for act in (RELU, monomial(3)):
            value = optima.energy(theta, optima.NINE, act, alpha, 0.3).sum()
            (wanted,) = torch.autograd.grad(value, theta)
            assert torch.allclose(optima.slope(theta.detach(), optima.NINE, act, alpha, 0.3), wanted, atol=1e-13)


def test_the_enumerator_finds_what_the_closed_form_counts() -> None:
    cloud = instances.Cloud(instances.grid(optima.NINE), torch.full((1, 9), 1 / 9, dtype=torch.float64))
    starts = instances.grid([2 * math.pi * (k + 0.5) / 720 for k in range(720)])
    for slope in (0.0, 0.3, 1.0):
        act = Activation(slope)
        found = optima.find(cloud, act, starts, steps=3000, first=0.002)
        assert len(found.w) == optima.closed_form(optima.NINE, act)
        assert found.residual < 1e-12
    angles = torch.atan2(found.w[:, 1], found.w[:, 0]).sort().values
    assert torch.allclose(
        angles, torch.tensor(optima.maxima(optima.NINE, LINEAR).smooth, dtype=torch.float64), atol=1e-9
    )


def test_every_maximum_is_found_and_every_face() -> None:
    """Euler's formula for faces; a closed form on a circle; elsewhere a search finds no others, and leads back to each."""
    circle = instances.Cloud(instances.grid(optima.NINE), torch.full((1, 9), 1 / 9, dtype=torch.float64))
    for slope in (0.0, 0.3, 1.0):
        assert len(optima.every(circle, Activation(slope))[0]) == optima.closed_form(optima.NINE, Activation(slope))
    random, rare = instances.scattered(1, 8, 3, seed=1), torch.full((1, 4), 0.2, dtype=torch.float64)
    corners, edges, cells = (optima.faces(random.x[0]) == 0).sum(-1).bincount().flip(0).tolist()
    assert (corners, edges, cells) == (56, 112, 58)  # of eight great circles in general position
    for cloud in (random, instances.summation(rare, torch.eye(4, dtype=torch.float64)[None])):
        w, _ = optima.every(cloud, RELU)
        found = optima.find(cloud, RELU, instances.directions(1, 100, w.shape[1]))
        assert len(w) > len(found.w) > 2
        assert float(torch.cdist(found.w, w).amin(1).max()) < 1e-6
        pushed = w + 1e-4 * torch.randn(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(0))
        pushed = pushed / pushed.norm(dim=-1, keepdim=True)
        assert bool((cloud.energy(pushed[None], RELU) < cloud.energy(w[None], RELU)).all())
        ends = optima.climb(cloud, RELU, pushed[None], steps=3000, first=1e-4)[0]
        assert float((ends - w).norm(dim=-1).max()) < 5e-5


def test_certified_maxima_are_maxima_in_every_direction() -> None:
    cloud = instances.scattered(4, 8, 3, seed=2)
    found = optima.find(cloud, RELU, instances.directions(4, 60, 3))
    assert len(found.w) > 4
    assert int((found.kinks > 0).sum()) > 0
    push = torch.randn(len(found.w), 200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moved = found.w[:, None] + 1e-4 * push
    moved = moved / moved.norm(dim=-1, keepdim=True)
    own = instances.Cloud(cloud.x[found.replica], cloud.p[found.replica])
    assert bool((own.energy(moved, RELU) < found.energy[:, None]).all())


def test_a_gate_that_stays_shut_holds_on_one_side_alone() -> None:
    # a point across w, with t = 0: w is a maximum only if it leads A in the direction away from that point, too
    w, replica = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    weight = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    for angle, holds in ((math.pi / 9, True), (math.pi / 3, False)):
        cloud = instances.Cloud(instances.grid([angle, -angle, math.pi / 2]), weight)
        good, residual = optima.certify(cloud, RELU, w, torch.tensor([[False, False, True]]), replica)
        assert float(residual) < 1e-12
        assert bool(good) == holds
        away = instances.grid([-1e-4])
        assert bool(cloud.energy(away, RELU) < cloud.energy(w[None], RELU)) == holds


def test_patterns_are_the_only_maxima_of_the_categorical_model() -> None:
    p = torch.tensor([[0.2, 0.3, 0.5], [0.4, 0.35, 0.25]], dtype=torch.float64)
    u = instances.orthonormal(2, 3, 3)
    found = optima.find(instances.categorical(p, u), RELU, instances.directions(2, 40, 3))
    assert found.counts(2).tolist() == [3, 3]
    assert float((found.w[:, None] * u[found.replica]).sum(-1).amax(-1).min()) > 1 - 1e-12


def test_patterns_above_the_threshold_are_no_maxima() -> None:
    u = torch.eye(3, dtype=torch.float64)[None]
    for q, expected in ((0.37, 3), (0.39, 0)):
        cloud = instances.summation(torch.full((1, 3), q, dtype=torch.float64), u)
        found = optima.find(cloud, RELU, u)
        ends = (found.w @ u[0].T).amax(-1) if len(found.w) else torch.zeros(0)
        assert int((ends > 1 - 1e-9).sum()) == expected


def test_an_opening_lets_the_filter_rest() -> None:
    """With the gate as far open as that, and held there, autograd finds no slope; and none but that does."""
    points = (2 * math.pi * torch.rand(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).tolist()
    at = torch.tensor(points, dtype=torch.float64)
    for i in range(9):
        theta = (at[i] - math.pi / 2).requires_grad_()
        for t, rests in ((optima.opening(points, i), True), (optima.opening(points, i) + 0.1, False)):
            gate = ((theta - at).cos() > 1e-9).to(torch.float64)
            gate[i] = t
            (slope,) = torch.autograd.grad(0.5 * (gate * (theta - at).cos()).var(correction=0), theta)
            assert (abs(float(slope)) < 1e-12) == rests
    with pytest.raises(ValueError, match="points must have one on the crease of point 0, got another on it too"):
        optima.opening(optima.NINE, 0)


# --- stability, roughness, basins, rotations -------------------------------------------------------------------------


def test_the_jacobian_is_the_derivative_of_the_flow() -> None:
    pop = instances.blobs(3, 4, 3, sigma=0.5)
    w = stability.newton(pop, instances.directions(3, 5, 3), RELU)
    t = stability.jacobian(pop, w, RELU)
    u = instances.directions(3, 5, 3, seed=9)
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
    assert float(stability.roughness(disc, angle).plane) == pytest.approx(up * along, rel=1e-6)


@pytest.mark.parametrize("tau", [None, 0.1])
def test_bounds_on_the_roughness(tau: float | None) -> None:
    disc = stability.discs(24, seed=8)
    angle = 2 * math.pi * Streams(range(24), "turn").uniform((1,), torch.float64)[:, 0]
    found = stability.roughness(disc, angle, tau)
    assert float((found.measured / found.plane - 1).abs().max()) < 1e-4
    assert bool((found.plane <= found.sharp).all())
    assert bool((found.plane <= found.corrected).all())
    even = stability.roughness(disc, angle)
    assert bool((even.plane > even.printed).any())
    assert torch.allclose(found.r, found.z0 * even.r, rtol=1e-10)
    assert bool((found.plane <= found.z0 * even.plane * (1 + 1e-12)).all())


def test_the_uniform_ball() -> None:
    flat = stability.Disc(torch.tensor([0.1]), torch.zeros(1, 2), torch.zeros(1, 2, 2))
    flat = stability.Disc(*(v.double() for v in (flat.radius, flat.linear, flat.quadratic)))
    found = stability.roughness(flat, torch.zeros(1, dtype=torch.float64))
    ball = stability.uniform_ball(2, float(flat.radius[0]))
    assert float(found.plane) == pytest.approx(ball["roughness"], rel=1e-9)
    # the density peaks everywhere on the plane, and 400 nodes reach it
    assert float(found.printed) == pytest.approx(ball["printed"], rel=1e-9)
    assert ball["printed"] < ball["roughness"] < ball["corrected"]


def test_the_second_order_of_an_eigenvector() -> None:
    found = stability.perturbation_gaps(2000, seed=3)
    hold(found)
    assert 2.5 < found["random"] < stability.KAPPA < found["broken: first order left out"]
    assert found["exchange"] == pytest.approx(4 * 2**0.5, rel=1e-3)
    assert 0.9 * stability.KAPPA < found["exchange"] < stability.KAPPA, "the constant is no generous one"
    a, d = stability.exchanging(torch.tensor([1e-3], dtype=torch.float64))
    assert torch.linalg.matrix_norm(d, ord=2).item() == pytest.approx(0.5, rel=1e-2)
    assert torch.linalg.eigh(a + d)[1][0, 0, -1].abs() < 0.01, "turned by nearly a right angle"


def test_power_iteration_where_the_theorem_applies() -> None:
    pop, start = stability.tight_triples(24, seed=5)
    angle = torch.atan2(pop.centres[..., 1], pop.centres[..., 0])
    off = (angle - 2 * math.pi / 3 * torch.arange(3) + math.pi).remainder(2 * math.pi) - math.pi
    assert 0.1 * math.pi < float(off.abs().max()) < 0.15 * math.pi, "around the circle, up to a seventh of a turn"
    found = stability.certify_plane(pop, start)
    on = found.applies
    assert int(on.sum()) > 3
    assert bool((found.moved < found.bound)[on].all())
    assert float(found.excess[on].max()) <= 1 + 1e-6
    assert float(found.residual[on].max()) < 1e-12


def test_power_iteration_on_points() -> None:
    cloud, u, off = stability.nearly_orthogonal(12, 0.03, patterns=4, size=5)
    assert float(off.max()) < 0.2
    found = stability.certify_points(cloud, u[:, :1])
    assert float(found.applies.double().mean()) > 0.5
    assert bool((found.moved < found.bound)[found.applies].all())
    assert float(found.excess[found.applies].max()) <= 1 + 1e-6
    path = stability.iterate(cloud, u, 60)
    assert float((path[-1] * u).sum(-1).min()) > 0.95


def test_irregularity_of_a_constant_matrix() -> None:
    one, half = torch.tensor(1.0), torch.tensor(0.5)
    assert float(stability.irregularity(one, half, one, torch.tensor(0.0))) == pytest.approx(0.25)
    assert float(stability.irregularity(one, half, one, torch.tensor(0.1))) > 0.25


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


def test_turns_remove_maxima() -> None:
    assert optima.blurred_maxima(optima.NINE, 0.0) == optima.maxima(optima.NINE, RELU).total
    assert optima.blurred_maxima(optima.NINE, math.pi) == 0
    assert optima.blurred_maxima(optima.NINE, math.pi / 3) == 2
    kept, lost = optima.ripple((8, 64), 16), optima.ripple((8, 64), 16, share=2 / 3)
    assert float(kept[1] / kept[0]) < 0.05
    assert float(lost[1] / lost[0]) > 0.5


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


def test_discs_are_of_all_sizes() -> None:
    """Their radii are uniform on a logarithmic scale."""
    radius = stability.discs(400, least=0.1, most=10.0).radius.log10()
    assert -1 <= float(radius.min()) < -0.95
    assert 0.95 < float(radius.max()) <= 1
    assert float(radius.mean()) == pytest.approx(0, abs=4 * 2 / (12 * 400) ** 0.5), "four standard errors"
