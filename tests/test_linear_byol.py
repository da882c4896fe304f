"""Linear BYOL: the flow, what it conserves, its steps, and the scalar system."""

from __future__ import annotations

import numpy as np
import pytest
from held import hold

from sslbook.book.exercises import check
from sslbook.chapters.linear_byol import flow, scalar
from sslbook.chapters.linear_byol.flow import Moments, Times, Weights
from sslbook.chapters.linear_byol.stability import jacobian


@pytest.mark.parametrize("seed", [0, 5])
def test_the_flow_is_the_gradient(seed: int) -> None:
    gaps = flow.flow_gaps(100, seed)
    hold(gaps)
    assert gaps["autograd"] < 1e-12
    assert min(gaps["broken: one matrix for both"], gaps["broken: time constants exchanged"]) > 1e-4


def test_the_balance_is_conserved_and_steps_move_it_in_second_order() -> None:
    rng = np.random.default_rng(1)
    data, start = flow.random_moments(20, 4, rng), flow.random_weights(20, 3, 4, rng)
    tau = Times(*(rng.uniform(0.5, 2, (20, 1, 1)) for _ in range(3)))
    path = flow.integrate(start, data, 5.0, tau, points=4)
    kept = np.array([flow.balance(Weights(*(part[k] for part in path)), tau) for k in range(4)])
    assert np.abs(kept - kept[0]).max() < 1e-7
    exact, added = flow.step_gap(start, data, tau)
    assert exact < 1e-12
    assert added > 0.1


def test_without_the_predictor_it_stays() -> None:
    rng = np.random.default_rng(2)
    data, start = flow.random_moments(3, 4, rng), flow.random_weights(3, 2, 4, rng)
    path = flow.integrate(start, data, 3.0, predictor=False)
    assert np.array_equal(path.predictor[-1], start.predictor)
    assert not np.allclose(path.online[-1], start.online)


def test_replicas_do_not_see_each_other() -> None:
    rng = np.random.default_rng(3)
    data, start = flow.random_moments(4, 3, rng), flow.random_weights(4, 2, 3, rng)
    together = flow.integrate(start, data, np.array([1.0, 2.0, 3.0, 4.0]))
    alone = flow.integrate(
        Weights(*(part[2:3] for part in start)), Moments(data.same[2:3], data.cross[2:3]), 3.0, points=3
    )
    for one, two in zip(alone, together):
        assert np.allclose(one[-1, 0], two[-1, 2], rtol=1e-7, atol=1e-9)
    fractions = flow.integrate(start, data, 4.0, points=np.array([0.25, 1.0]))
    assert np.allclose(fractions.online[0, 0], together.online[-1, 0], rtol=1e-6, atol=1e-8)


def test_the_steps_tend_to_the_flow() -> None:
    rng = np.random.default_rng(4)
    data, start = flow.random_moments(10, 4, rng), flow.random_weights(10, 2, 4, rng, 0.7)
    goal = Weights(*(part[-1] for part in flow.integrate(start, data, 1.0)))
    near, far = (flow.distance(flow.descend(start, data, 1.0, rate), goal).max() for rate in (0.005, 0.01))
    assert far / near == pytest.approx(2, abs=0.3)
    assert flow.distance(flow.descend(start, data, 1.0, 0.005, slow=0.5), goal).max() > 10 * near


def test_turning_is_an_action() -> None:
    rng = np.random.default_rng(6)
    start = flow.random_weights(5, 3, 4, rng)
    one, two = rng.standard_normal((2, 5, 3, 3))
    for left, right in zip(flow.turned(flow.turned(start, one), two), flow.turned(start, two @ one)):
        assert np.allclose(left, right)


def test_random_moments_have_shares_between_zero_and_one() -> None:
    for commuting in (False, True):
        data = flow.random_moments(50, 4, np.random.default_rng(7), commuting=commuting, least=0.2)
        shares = np.sort(np.linalg.eigvals(data.operator).real)
        assert shares.min() > 0.2
        assert shares.max() < 1
        commutes = np.allclose(data.same @ data.cross, data.cross @ data.same)
        assert commutes == commuting


# --- one unit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_the_fate_of_one_unit(seed: int) -> None:
    found = scalar.fates(500, seed)
    hold(found.rules)
    assert found.starts == 500
    assert found.rules["ours"] == 1
    assert max(rate for name, rate in found.rules.items() if name != "ours") < 0.99
    assert found.off < 1e-5
    assert found.off_without > 0.1
    assert found.collapsed > 0.2
    assert found.collapsed_safe == 0
    assert found.turned_safe == 0
    assert 0.05 < found.turned < 0.5


def test_the_target_does_not_matter_for_the_fate() -> None:
    w1, w2 = np.array([0.5, 0.5, 0.1, 0.9]), np.array([0.3, 1.2, 1.0, -0.5])
    for theta in (-1.0, 0.0, 2.0):
        for slow in (0.2, 5.0):
            end = scalar.follow(w1, w2, np.full(4, theta), 0.6, 300.0, Times(target=slow))[-1]
            assert np.array_equal(np.abs(end[0]) > 0.02, scalar.survives(w1, w2, 0.6))


def test_the_boundary_cases() -> None:
    survives = scalar.survives(np.array([1.0, 1.0, 0.0]), np.array([-1.0, 1.0, 1.0]), 0.5)
    assert survives.tolist() == [False, True, False]
    size, level = scalar.ends(np.array([1.0]), np.array([1.0]), 0.5)
    assert (size[0], level[0]) == (0.5, 0.5)
    end = scalar.follow(np.array([1.0]), np.array([-1.0]), np.array([1.0]), 0.5, 400.0)[-1]
    assert np.abs(end).max() < 0.02  # Q = 0, w2 < 0: to the origin, like 1 / t


def test_identity_predictors_collapse_below_a_share_of_one() -> None:
    small, one = np.array([0.05]), np.array([1.0])
    assert not scalar.survives(small, one, 0.99).any()
    assert scalar.survives(small, one, 1.0).all()


def test_the_matrices_fall_apart_into_scalars() -> None:
    gaps = scalar.reduction_gaps(40, 3)
    hold(gaps)
    assert gaps["scalars"] < 1e-9
    assert min(gap for name, gap in gaps.items() if name.startswith("broken")) > 1e-4


def test_the_slowest_rate_is_an_eigenvalue_of_the_scalar_flow() -> None:
    """The Jacobian at the foretold end, whose eigenvalue 0 along the line of fixed points is dropped."""
    w1, w2, r = np.array([0.8, 0.2, 0.5]), np.array([0.4, 1.3, -0.9]), np.array([0.6, 0.5, 0.7])
    tau = Times(*np.array([[0.7, 1.3, 1.0], [1.2, 0.6, 1.0], [2.0, 0.5, 1.0]])[:, :, None, None])
    size, level = scalar.ends(w1, w2, r, tau)
    ones = np.ones((3, 1, 1))
    point = Weights(size[:, None, None], level[:, None, None], size[:, None, None])
    values = np.linalg.eigvals(jacobian(point, Moments(ones, r[:, None, None]), tau))
    rates = np.sort(-values.real, axis=1)
    assert np.allclose(rates[:, 0], 0, atol=1e-12)
    assert np.allclose(rates[:, 1], scalar.slowest(w1, w2, r, tau))


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.9])
def test_the_spectra_of_the_portraits(ratio: float) -> None:
    cases = {
        "fixed target": (0.0, 0.0, [-ratio, ratio]),
        "tied predictor": (ratio, ratio, np.roots([1, 1 + 2 * ratio**2, ratio**2])),
        "no predictor": (0.0, 0.0, np.roots([1, 2, 1 - ratio])),
    }
    assert np.allclose(scalar.planar_spectrum(scalar.portrait("tied predictor", ratio), 0.0, 0.0), [-1, 0], atol=1e-12)
    for kind, (x, y, wanted) in cases.items():
        found = scalar.planar_spectrum(scalar.portrait(kind, ratio), x, y)
        assert np.allclose(found, np.sort_complex(np.asarray(wanted, dtype=complex)), atol=1e-12), kind


def test_the_portraits_fixed_points() -> None:
    tied = scalar.portrait("tied predictor", 0.4)
    assert np.allclose(tied(np.array(0.4), np.array(0.4)), 0)
    path = scalar.planar_path(tied, np.array([0.1, -0.4]), np.array([0.0, 0.3]), 300.0)
    assert np.allclose(path[-1, :, 0], 0.4, atol=1e-6)
    assert np.abs(path[-1, :, 1]).max() < 0.05
    none = scalar.portrait("no predictor", 1.0)
    assert np.allclose(none(np.array(0.7), np.array(0.7)), 0)  # a line of solutions where everything survives
    held = scalar.portrait("fixed target", 0.4, theta=2.0)
    assert np.allclose(held(np.array(2.0), np.array(0.4)), 0)


def threshold(w2: np.ndarray, ratio: float) -> np.ndarray:
    return np.where(w2 > 0, np.sqrt(np.clip(w2**2 - ratio**2, 0, None)), np.abs(w2))


def searched(w2: np.ndarray, ratio: float) -> np.ndarray:
    size = np.linspace(0, 3, 3001)[:, None]
    return size[np.argmax(scalar.survives(size, w2[None], ratio), axis=0), 0]


def test_the_exercise_on_thresholds() -> None:
    cases = [(np.linspace(-1.9, 1.9, 20), ratio) for ratio in (0.2, 0.55, 0.9)]
    assert check(threshold, searched, cases, atol=2e-3)
    assert not check(lambda w2, ratio: np.abs(w2), searched, cases, atol=2e-3)


def test_the_exercise_on_weight_decay() -> None:
    """The larger root attracts, the smaller one is the edge: integrated with decay, which the library's flow lacks."""
    from scipy.integrate import solve_ivp

    cross, rho = 0.7, 0.05
    low, high = np.sort(np.roots([1, -cross, rho]))

    def move(_: float, y: np.ndarray) -> list[float]:
        e = y[2] * cross - y[1] * y[0]
        return [y[1] * e - rho * y[0], e * y[0] - rho * y[1], y[0] - y[2]]

    above, below = (solve_ivp(move, (0, 2000), [w] * 3, rtol=1e-8).y[0, -1] for w in (1.05 * low, 0.95 * low))
    assert above == pytest.approx(high, abs=1e-4)
    assert abs(below) < 1e-4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Moments(np.eye(2), np.eye(2)), r"same must have shape \(R, d, d\), got \(2, 2\)"),
        (
            lambda: Moments(np.eye(2)[None], np.array([[[1.0, 1], [0, 1]]])),
            "cross must be symmetric, got an asymmetry of 1",
        ),
        (lambda: Moments(np.eye(2)[None], np.eye(3)[None]), r"one shape, got \(1, 2, 2\) and \(1, 3, 3\)"),
        (
            lambda: Moments(np.zeros((1, 2, 2)), np.eye(2)[None]),
            "same must be positive definite, got an eigenvalue of 0",
        ),
        (lambda: Times(online=0.0), "online must be a positive time constant, got 0"),
        (lambda: Times(target=np.array([[[1.0]], [[-2.0]]])), "target must be a positive time constant, got -2"),
        (lambda: _integrate(time=-1.0), "time must be positive, got -1"),
        (lambda: _integrate(points=1), "points must be at least 2, got 1"),
        (lambda: _integrate(time=1e300), "the solver stopped at the fraction 0 of time: "),
        (lambda: _descend(rate=2.0), r"rate / tau_t must be at most 1, got 2"),
        (lambda: scalar.survives(np.ones(1), np.ones(1), 1.5), r"ratio must lie in \(0, 1\], got 1.5"),
        (lambda: scalar.portrait("free", 0.5), "kind must be one of fixed target, .* got 'free'"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def _problem() -> tuple[Weights, Moments]:
    rng = np.random.default_rng(0)
    return flow.random_weights(1, 2, 3, rng), flow.random_moments(1, 3, rng)


def _integrate(**changed) -> Weights:
    return flow.integrate(*_problem(), **{"time": 1.0, **changed})


def _descend(rate: float) -> Weights:
    return flow.descend(*_problem(), 4.0, rate)
