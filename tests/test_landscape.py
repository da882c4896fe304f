"""One layer: weights and energies, kernels and limits, filters, the two models and the enumerator of optima."""

from __future__ import annotations

import math

import pytest
import torch
from held import hold

from sslbook.book.exercises import check
from sslbook.chapters.landscape import circle, filters, kernel, linear, models, optima
from sslbook.chapters.landscape.filters import LINEAR, RELU, Activation, monomial
from sslbook.contrast import ENERGIES


@pytest.mark.parametrize("loss", ENERGIES)
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_a_loss_has_the_gradient_of_an_energy(loss: str, epsilon: float) -> None:
    gaps = filters.energy_gaps(loss, 32, seed=3, epsilon=epsilon)
    hold(gaps)
    assert gaps["energy"] < 1e-12
    assert min(v for k, v in gaps.items() if k.startswith("broken")) > 1e-4


@pytest.mark.parametrize("act", [RELU, LINEAR, Activation(0.3), Activation(-1.0), monomial(2), monomial(3)])
def test_the_dynamics_of_one_filter(act: Activation) -> None:
    gaps = filters.filter_gaps(act, 64, seed=5)
    hold(gaps)
    assert gaps["filter"] < 1e-9
    assert min(v for k, v in gaps.items() if k.startswith("broken")) > 1e-3


@pytest.mark.parametrize("loss", ["info_nce", "soft_triplet", "hinge_triplet"])
def test_holding_the_weights_hides_a_negative_curvature(loss: str) -> None:
    gaps = filters.stop_gradient_gaps(loss, 64, seed=1)
    hold(gaps)
    assert gaps["positive"] < 1e-12
    if loss != "hinge_triplet":
        assert gaps["broken: sign"] > 1e-4
    found = circle.hardening_gaps(20, seed=2)
    hold(found)
    hold(circle.missed(20, seed=2))
    assert found["hardening"] < 1e-9 < found["broken: held fixed"]


def test_kernels_and_limits() -> None:
    gaps = kernel.kernel_gaps(40, seed=9)
    hold(gaps)
    for name in ("features", "limit", "finite"):
        assert gaps[name] < 1e-9, name
    assert min(v for k, v in gaps.items() if k.startswith("broken")) > 1e-3


def test_batches_of_three_have_the_mean_that_is_promised() -> None:
    pop = kernel.population(5, samples=3, views=2)
    weights = kernel.gaussian(pop.clean, 0.8)
    assert torch.allclose(kernel.expected(pop, weights, 3), kernel.enumerated(pop, weights, 3), atol=1e-13)
    crowd, divided = kernel.lopsided()
    assert torch.allclose(kernel.limit(crowd, divided), _by_pairs(crowd, divided), atol=1e-14)
    assert float(torch.linalg.eigvalsh(kernel.limit(crowd, divided))[0, 0]) < -0.01


def _by_pairs(pop: kernel.Population, weights: torch.Tensor) -> torch.Tensor:
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
    pop = kernel.population(3, samples=4, views=2)
    weights = kernel.gaussian(pop.clean, 1.0)
    mean = torch.stack([kernel.sampled(pop, weights, 5, seed) for seed in range(3000)]).mean(0)
    gap = (mean - kernel.expected(pop, weights, 5)).flatten(1).norm(dim=1) / kernel.limit(pop, weights).flatten(1).norm(
        dim=1
    )
    assert float(gap.max()) < 0.1
    assert torch.allclose(kernel.sampled(pop, weights, 7, 2)[1:2], kernel.sampled(_only(pop, 1), weights[1:2], 7, 3))


def _only(pop: kernel.Population, r: int) -> kernel.Population:
    return kernel.Population(pop.p[r : r + 1], pop.clean[r : r + 1], pop.views[r : r + 1])


def test_errors_fall_as_the_root() -> None:
    found = kernel.convergence((64, 1024), 64)
    assert math.log(found.error[1] / found.error[0]) / math.log(16) == pytest.approx(-0.5, abs=0.12)
    assert float(found.unadjusted[1]) > 0.2
    assert float(kernel.convergence((4,), 64).negative[0]) > 0.5
    assert float(kernel.convergence((4,), 64, noise=0.0).negative[0]) == 0


def test_linear_filters() -> None:
    fixed, moving = linear.train(6, 12, anew=False), linear.train(6, 12, anew=True, tau=0.1)
    assert float(fixed.cosine.min()) > 0.999
    assert fixed.directions().tolist() == [1] * 6
    assert float(moving.directions().double().mean()) > 1.5


def test_the_two_models() -> None:
    gaps = models.pattern_gaps(40, 3, seed=4)
    hold(gaps)
    assert max(gaps["categorical"], gaps["summation"]) < 1e-9
    assert gaps["largest q that leads"] < models.THRESHOLD < gaps["least q that does not"]
    cloud = models.summation(torch.full((1, 3), 0.2, dtype=torch.float64), models.orthonormal(1, 3, 3))
    assert torch.allclose((cloud.p[..., None] * cloud.x).sum(1), torch.zeros(1, 3, dtype=torch.float64), atol=1e-14)
    assert torch.allclose(
        cloud.matrix(models.directions(1, 2, 3), LINEAR), torch.eye(3, dtype=torch.float64), atol=1e-14
    )


def test_a_mixture_of_gaussians_by_sampling() -> None:
    pop = models.blobs(1, 3, 3, sigma=0.5)
    w = models.directions(1, 1, 3)
    draw = torch.Generator().manual_seed(0)
    which = torch.multinomial(pop.p[0], 400000, replacement=True, generator=draw)
    x = pop.centres[0, which] + 0.5 * torch.randn(400000, 3, generator=draw, dtype=torch.float64)
    for act in (RELU, Activation(0.3)):
        gated = act.gate(x @ w[0, 0])[:, None] * x
        assert torch.allclose(pop.matrix(w, act)[0, 0], torch.cov(gated.T), atol=0.02)


def test_clouds() -> None:
    cloud = models.scattered(2, 7, 3)
    w = models.directions(2, 4, 3)
    for act in (RELU, monomial(2)):
        assert torch.allclose((cloud.matrix(w, act) @ w[..., None])[..., 0], cloud.velocity(w, act), atol=1e-13)
        half = 0.5 * (cloud.velocity(w, act) * w).sum(-1)
        assert torch.allclose(half, cloud.energy(w, act), atol=1e-13)


def test_the_nine_points() -> None:
    relu, straight = circle.maxima(circle.NINE, RELU), circle.maxima(circle.NINE, LINEAR)
    assert (len(relu.smooth), len(relu.kinks)) == (0, 9)
    assert (len(straight.smooth), len(straight.kinks), straight.frozen) == (2, 0, (True, True))
    for slope in (-1.0, -0.5, 0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
        act = Activation(slope)
        assert circle.maxima(circle.NINE, act).total == circle.closed_form(circle.NINE, act), slope


@pytest.mark.parametrize("alpha", circle.WEIGHTS)
def test_maxima_are_maxima(alpha: str) -> None:
    for act in (RELU, Activation(0.3), monomial(2)):
        found = circle.maxima(circle.NINE, act, alpha, 0.2)
        for angle in found.smooth + found.kinks:
            near = torch.tensor([angle - 1e-6, angle, angle + 1e-6], dtype=torch.float64)
            value = circle.energy(near, circle.NINE, act, alpha, 0.2)
            assert float(value[1]) >= float(value.max()) - 1e-15
        theta = 2 * math.pi * torch.arange(7200, dtype=torch.float64) / 7200
        value = circle.energy(theta, circle.NINE, act, alpha, 0.2)
        higher = (value > value.roll(1)) & (value > value.roll(-1))
        assert abs(int(higher.sum()) - found.total) <= 1  # a grid can miss the narrowest one


def test_slopes_are_derivatives() -> None:
    theta = torch.linspace(0.1, 6.2, 11, dtype=torch.float64, requires_grad=True)
    for alpha in circle.WEIGHTS:
        for act in (RELU, monomial(3)):
            value = circle.energy(theta, circle.NINE, act, alpha, 0.3).sum()
            (wanted,) = torch.autograd.grad(value, theta)
            assert torch.allclose(circle.slope(theta.detach(), circle.NINE, act, alpha, 0.3), wanted, atol=1e-13)


def test_the_enumerator_finds_what_the_closed_form_counts() -> None:
    cloud = models.Cloud(models.grid(circle.NINE), torch.full((1, 9), 1 / 9, dtype=torch.float64))
    starts = models.grid([2 * math.pi * (k + 0.5) / 720 for k in range(720)])
    for slope in (0.0, 0.3, 1.0):
        act = Activation(slope)
        found = optima.find(cloud, act, starts, steps=3000, first=0.002)
        assert len(found.w) == circle.closed_form(circle.NINE, act)
        assert found.residual < 1e-12
    angles = torch.atan2(found.w[:, 1], found.w[:, 0]).sort().values
    assert torch.allclose(
        angles, torch.tensor(circle.maxima(circle.NINE, LINEAR).smooth, dtype=torch.float64), atol=1e-9
    )


def test_certified_maxima_are_maxima_in_every_direction() -> None:
    cloud = models.scattered(4, 8, 3, seed=2)
    found = optima.find(cloud, RELU, models.directions(4, 60, 3))
    assert len(found.w) > 4
    assert int((found.kinks > 0).sum()) > 0
    push = torch.randn(len(found.w), 200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moved = found.w[:, None] + 1e-4 * push
    moved = moved / moved.norm(dim=-1, keepdim=True)
    own = models.Cloud(cloud.x[found.replica], cloud.p[found.replica])
    assert bool((own.energy(moved, RELU) < found.energy[:, None]).all())


def test_a_gate_that_stays_shut_holds_on_one_side_alone() -> None:
    # a point across w, with t = 0: w is a maximum only if it leads A in the direction away from that point, too
    w, replica = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    weight = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    for angle, holds in ((math.pi / 9, True), (math.pi / 3, False)):
        cloud = models.Cloud(models.grid([angle, -angle, math.pi / 2]), weight)
        good, residual = optima.certify(cloud, RELU, w, torch.tensor([[False, False, True]]), replica)
        assert float(residual) < 1e-12
        assert bool(good) == holds
        away = models.grid([-1e-4])
        assert bool(cloud.energy(away, RELU) < cloud.energy(w[None], RELU)) == holds


def test_patterns_are_the_only_maxima_of_the_categorical_model() -> None:
    p = torch.tensor([[0.2, 0.3, 0.5], [0.4, 0.35, 0.25]], dtype=torch.float64)
    u = models.orthonormal(2, 3, 3)
    found = optima.find(models.categorical(p, u), RELU, models.directions(2, 40, 3))
    assert found.counts(2).tolist() == [3, 3]
    assert float((found.w[:, None] * u[found.replica]).sum(-1).amax(-1).min()) > 1 - 1e-12


def test_patterns_above_the_threshold_are_no_maxima() -> None:
    u = torch.eye(3, dtype=torch.float64)[None]
    for q, expected in ((0.37, 3), (0.39, 0)):
        cloud = models.summation(torch.full((1, 3), q, dtype=torch.float64), u)
        found = optima.find(cloud, RELU, u)
        ends = (found.w @ u[0].T).amax(-1) if len(found.w) else torch.zeros(0)
        assert int((ends > 1 - 1e-9).sum()) == expected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Activation(0.0, 2), "degree 2 takes slope=1, got 0.0"),
        (lambda: monomial(0), "degree must be at least 1, got 0"),
        (lambda: kernel.gaussian(torch.ones(3, 1), 0.0), "tau must be above 0, got 0.0"),
        (lambda: kernel.features(-torch.ones(3, 1), 1.0, 2), "y must not be negative"),
        (lambda: kernel.features(torch.ones(3, 1), 1.0, -1), "degree must be at least 0"),
        (lambda: kernel.population(2, noise=-1.0), "noise must be at least 0"),
        (lambda: kernel.sampled(kernel.population(1), torch.ones(1, 6, 6), 1), "batch must be at least 2, got 1"),
        (lambda: models.summation(torch.ones(1, 2), torch.ones(1, 2, 2)), "strictly between 0 and 1"),
        (lambda: models.categorical(torch.ones(1, 2), torch.ones(1, 2, 2)), "sum to one"),
        (lambda: models.orthonormal(1, 4, 3), "count must be between 1 and size = 3, got 4"),
        (lambda: models.Cloud(torch.ones(2, 3), torch.ones(2, 3)), r"x must be \(R, n, d\)"),
        (lambda: models.Blobs(torch.ones(1, 2, 2), torch.ones(1, 2), 0.0), "sigma must be above 0, got 0.0"),
        (lambda: models.blobs(1, 2, 2).matrix(models.directions(1, 1, 2), monomial(2)), "got degree 2"),
        (lambda: circle.maxima(circle.NINE, RELU, "flat"), "alpha must be one of"),
        (lambda: circle.energy(torch.zeros(1), circle.NINE, RELU, "gaussian", 0.0), "tau must be above 0"),
        (lambda: optima.find(models.scattered(1, 4, 2), monomial(2), models.directions(1, 2, 2)), "got degree 2"),
        (lambda: optima.climb(models.scattered(1, 4, 2), RELU, models.directions(1, 2, 3)), "2 entries"),
        (
            lambda: optima.climb(models.scattered(1, 4, 2), RELU, models.directions(1, 2, 2), steps=1),
            "at least 2, got 1",
        ),
        (lambda: linear.train(1, 2, anew=True, tau=-1.0), "tau must be above 0, got -1.0"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_the_exercise_on_the_other_side_of_the_threshold() -> None:
    def reference(q):
        frame = torch.eye(3, dtype=torch.float64)[None]
        a = models.summation(torch.full((1, 3), q, dtype=torch.float64), frame).matrix(-frame, RELU)[0, 0]
        return a[0, 0] - a[1, 1]

    cases = [(q,) for q in (0.1, 0.4, 0.6, 0.63, 0.9)]
    assert check(lambda q: q**2 - (1 - q), reference, cases)
    assert not check(lambda q: (1 - q) ** 2 - q, reference, cases)


def test_the_exercise_on_openings() -> None:
    sets = (2 * math.pi * torch.rand(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).tolist()

    def slopes(points, i, e=1e-9):
        crease = points[i] - math.pi / 2
        return circle.slope(torch.tensor([crease - e, crease + e], dtype=torch.float64), points, RELU)

    def measured(answer):
        return lambda points, i: answer(*slopes(points, i))

    cases = [(points, i) for points in sets for i in range(9) if slopes(points, i)[0] > 0 > slopes(points, i)[1]]
    assert len(cases) > 5
    assert check(measured(lambda before, after: before / (before - after)), circle.opening, cases, rtol=1e-6)
    assert not check(measured(lambda before, after: before / (before + after)), circle.opening, cases, rtol=1e-6)


def test_an_opening_lets_the_filter_rest() -> None:
    """With the gate as far open as that, and held there, autograd finds no slope; and none but that does."""
    points = (2 * math.pi * torch.rand(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).tolist()
    at = torch.tensor(points, dtype=torch.float64)
    for i in range(9):
        theta = (at[i] - math.pi / 2).requires_grad_()
        for t, rests in ((circle.opening(points, i), True), (circle.opening(points, i) + 0.1, False)):
            gate = ((theta - at).cos() > 1e-9).to(torch.float64)
            gate[i] = t
            (slope,) = torch.autograd.grad(0.5 * (gate * (theta - at).cos()).var(correction=0), theta)
            assert (abs(float(slope)) < 1e-12) == rests
    with pytest.raises(ValueError, match="index must be between 0 and 8, got 9"):
        circle.opening(points, 9)
    with pytest.raises(ValueError, match="points must have one on the crease of point 0, got another on it too"):
        circle.opening(circle.NINE, 0)
