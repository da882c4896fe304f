"""Linear BYOL: the flow, its steps, the scalar system, two augmentations with exact moments, what is left for a task, figures."""

from __future__ import annotations

import numpy as np
import pytest
from drawing_cases import GREYS, geometry
from held import hold
from matplotlib.figure import Figure

from sslbook.experiments.linear_byol import checks, drawing, instances, reference, theory
from sslbook.experiments.linear_byol.theory import Moments, Times, Weights, jacobian


def test_replicas_do_not_see_each_other() -> None:
    rng = np.random.default_rng(3)
    data, start = instances.random_moments(4, 3, rng), instances.random_weights(4, 2, 3, rng)
    together = reference.integrate(start, data, np.array([1.0, 2.0, 3.0, 4.0]))
    alone = reference.integrate(
        Weights(*(part[2:3] for part in start)), Moments(data.same[2:3], data.cross[2:3]), 3.0, points=3
    )
    for one, two in zip(alone, together):
        assert np.allclose(one[-1, 0], two[-1, 2], rtol=1e-7, atol=1e-9)
    fractions = reference.integrate(start, data, 4.0, points=np.array([0.25, 1.0]))
    assert np.allclose(fractions.online[0, 0], together.online[-1, 0], rtol=1e-6, atol=1e-8)


def test_random_moments_have_shares_between_zero_and_one() -> None:
    for commuting in (False, True):
        data = instances.random_moments(50, 4, np.random.default_rng(7), commuting=commuting, least=0.2)
        shares = np.linalg.eigvals(data.cross @ np.linalg.inv(data.same)).real
        assert shares.min() > 0.2
        assert shares.max() < 1
        commutes = np.allclose(data.same @ data.cross, data.cross @ data.same)
        assert commutes == commuting


# --- one unit --------------------------------------------------------------------------------------------------------------


def test_the_boundary_cases() -> None:
    survives = theory.survives(np.array([1.0, 1.0, 0.0]), np.array([-1.0, 1.0, 1.0]), 0.5)
    assert survives.tolist() == [False, True, False]
    size, level = theory.scalar_ends(np.array([1.0]), np.array([1.0]), 0.5)
    assert (size[0], level[0]) == (0.5, 0.5)
    end = reference.follow(np.array([1.0]), np.array([-1.0]), np.array([1.0]), 0.5, 400.0)[-1]
    assert np.abs(end).max() < 0.02  # Q = 0, w2 < 0: to the origin, like 1 / t


def test_identity_predictors_collapse_below_a_share_of_one() -> None:
    small, one = np.array([0.05]), np.array([1.0])
    assert not theory.survives(small, one, 0.99).any()
    assert theory.survives(small, one, 1.0).all()


def test_the_slowest_rate_is_an_eigenvalue_of_the_scalar_flow() -> None:
    """The Jacobian at the foretold end, whose eigenvalue 0 along the line of fixed points is dropped."""
    w1, w2, r = np.array([0.8, 0.2, 0.5]), np.array([0.4, 1.3, -0.9]), np.array([0.6, 0.5, 0.7])
    tau = Times(*np.array([[0.7, 1.3, 1.0], [1.2, 0.6, 1.0], [2.0, 0.5, 1.0]])[:, :, None, None])
    size, level = theory.scalar_ends(w1, w2, r, tau)
    ones = np.ones((3, 1, 1))
    point = Weights(size[:, None, None], level[:, None, None], size[:, None, None])
    values = np.linalg.eigvals(jacobian(point, Moments(ones, r[:, None, None]), tau))
    rates = np.sort(-values.real, axis=1)
    assert np.allclose(rates[:, 0], 0, atol=1e-12)
    assert np.allclose(rates[:, 1], theory.slowest(w1, w2, r, tau))


def test_a_solver_that_stops_says_where() -> None:
    rng = np.random.default_rng(0)
    start, moments = instances.random_weights(1, 2, 3, rng), instances.random_moments(1, 3, rng)
    with pytest.raises(ValueError, match="the solver stopped at the fraction 0 of time: "):
        reference.integrate(start, moments, time=1e300)


def test_shares_of_the_two_worlds() -> None:
    one, two = (theory.modes(instances.world(kind, 4).moments) for kind in ("multiplicative", "additive"))
    assert np.allclose(one.values[:, :4], 1)
    assert np.allclose(one.values[:, 4:], 0)
    assert (two.values < 1).all()
    assert np.allclose(theory.modes(instances.world("proportional", 4).moments).values, 0.8)
    faint = instances.world("additive", 4).faint
    assert np.allclose(theory.alignment(two.rows[:, :2], faint.swapaxes(1, 2)), 1)


def test_readout_error_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 5)) @ rng.standard_normal((5, 5))
    online, task = rng.standard_normal((1, 2, 5)), rng.standard_normal((1, 5))
    y, code = x @ task[0], x @ online[0].T
    left = y - code @ np.linalg.lstsq(code, y, rcond=None)[0]
    found = theory.readout_error(online, (x.T @ x / 500)[None], task)[0]
    assert found == pytest.approx(left @ left / (y @ y), rel=1e-9)


def test_the_lines_cross() -> None:
    scene = instances.world("additive", 8, 2)
    own = {"BYOL": theory.modes(scene.moments).rows[:, :2], "SimCLR": scene.strong.swapaxes(1, 2)}
    errors = checks.readout_errors(own, scene, np.array([0.0, 0.5, 1.0]))
    assert np.allclose(errors["BYOL"].mean(1), [1, 0.5, 0], atol=1e-9)
    assert np.allclose(errors["SimCLR"].mean(1), [0, 0.5, 1], atol=1e-9)


def test_a_time_course_and_a_crossing_are_where_they_were() -> None:
    path = reference.follow(np.array([0.5]), np.array([0.3]), np.array([0.3]), 0.7, 5.0, points=6)
    errors = {"one": np.random.default_rng(0).uniform(0, 1, (3, 4))}
    found = {
        "course": geometry(lambda ax: drawing.time_course(ax, path, np.linspace(0.1, 5, 6), 0.7, GREYS)),
        "crossing": geometry(lambda ax: drawing.crossing(ax, np.array([0.0, 0.5, 1]), errors, {"one": ("0.2", "-")})),
    }
    hold(found)
    assert drawing.share_that_collapses(0.2) > drawing.share_that_collapses(1.0) > 0.1


@pytest.mark.parametrize(
    ("kind", "starts", "drawn"),
    [
        ("tied predictor", -24.78, 83517.59358),
        ("fixed target", -6.25, -2409.25913),
        ("no predictor", 3.0, 20723.95267),
    ],
)
def test_every_part_of_a_portrait_is_where_it_was(kind: str, starts: float, drawn: float) -> None:
    begin = drawing._begin(kind).ravel()
    assert begin @ np.arange(1, len(begin) + 1) == pytest.approx(starts, rel=1e-9)
    assert geometry(lambda ax: drawing.portrait(ax, kind, 0.5, GREYS)) == pytest.approx(drawn)
    ax = Figure().add_subplot()
    drawing.portrait(ax, kind, 0.5, GREYS)
    both = ("$w_1$", "$w_2$") if kind == "fixed target" else ("$w$", r"$\theta$")
    assert (ax.get_xlabel(), ax.get_ylabel()) == both


def test_every_part_of_the_plane_of_fates_is_where_it_was() -> None:
    assert geometry(lambda ax: drawing.plane_of_fates(ax, 0.5, GREYS)) == pytest.approx(170334.3201)


# --- fixed points and their stability --------------------------------------------------------------------------------


def test_the_modes_diagonalise_both_moments() -> None:
    data = instances.random_moments(30, 5, np.random.default_rng(0))
    found = theory.modes(data)
    turned = found.rows.swapaxes(1, 2)
    assert np.allclose(found.rows @ data.same @ turned, np.eye(5), atol=1e-9)
    assert np.allclose(found.rows @ data.cross @ turned, found.values[:, :, None] * np.eye(5), atol=1e-9)
    assert (np.diff(found.values) < 0).all()


@pytest.mark.parametrize("commuting", [True, False])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_balanced_bases_are_balanced(commuting: bool, outputs: int) -> None:
    rng = np.random.default_rng(6)
    data, tau = instances.random_moments(20, 4, rng, commuting=commuting), instances.random_times(20, rng)
    found, kept = theory.modes(data), instances.random_kept(20, outputs, 4, rng, leading=False)
    point = theory.fixed_point(found, kept, instances.balanced_basis(found, kept, tau, rng))
    assert np.abs(theory.balance(point, tau)).max() < 1e-12
    assert theory.speed(point, data, tau).max() < 1e-12
    if commuting:  # the rows are orthogonal, of the lengths that the proof of Theorem 6.5(4) finds
        values = np.take_along_axis(found.values, kept, axis=1)
        wanted = (tau.predictor / tau.online)[..., 0] * values**2
        lengths = np.linalg.eigvalsh(point.online @ point.online.swapaxes(1, 2))
        assert np.abs(lengths - np.sort(wanted, axis=1)).max() < 1e-12


def test_alignment() -> None:
    rows = np.eye(4)[None, :2]
    assert theory.alignment(np.array([[[1.0, 2, 0, 0], [3, 4, 0, 0]]]), rows)[0] == pytest.approx(1)
    assert theory.alignment(np.eye(4)[None, [0, 2]], rows)[0] == pytest.approx(0, abs=1e-12)


def test_what_stays_undecided_is_said() -> None:
    with pytest.raises(ValueError, match="rounds=1 leaves 1 of 1 problems undecided"):
        reference.rests(*instances.example("skewed"), rounds=1, rest=1e-12)
