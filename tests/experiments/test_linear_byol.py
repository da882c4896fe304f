"""Linear BYOL: the flow, its steps, the scalar system, two augmentations with exact moments, what is left for a task, figures."""

from __future__ import annotations

import numpy as np
import pytest
from drawing_cases import GREYS, geometry
from held import hold
from matplotlib.figure import Figure

from sslbook.experiments.linear_byol import checks, drawing, instances, reference, theory
from sslbook.experiments.linear_byol.theory import Moments, Times, Weights, jacobian


def test_the_balance_is_conserved_and_steps_move_it_in_second_order() -> None:
    rng = np.random.default_rng(1)
    data, start = instances.random_moments(20, 4, rng), instances.random_weights(20, 3, 4, rng)
    tau = Times(*(rng.uniform(0.5, 2, (20, 1, 1)) for _ in range(3)))
    path = reference.integrate(start, data, 5.0, tau, points=4)
    kept = np.array([theory.balance(Weights(*(part[k] for part in path)), tau) for k in range(4)])
    assert np.abs(kept - kept[0]).max() < 1e-7
    exact, added = checks.step_gap(start, data, tau)
    assert exact < 1e-12
    assert added > 0.1


def test_without_the_predictor_it_stays() -> None:
    rng = np.random.default_rng(2)
    data, start = instances.random_moments(3, 4, rng), instances.random_weights(3, 2, 4, rng)
    path = reference.integrate(start, data, 3.0, predictor=False)
    assert np.array_equal(path.predictor[-1], start.predictor)
    assert not np.allclose(path.online[-1], start.online)


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


def test_the_steps_tend_to_the_flow() -> None:
    rng = np.random.default_rng(4)
    data, start = instances.random_moments(10, 4, rng), instances.random_weights(10, 2, 4, rng, 0.7)
    goal = Weights(*(part[-1] for part in reference.integrate(start, data, 1.0)))
    near, far = (theory.distance(reference.descend(start, data, 1.0, rate), goal).max() for rate in (0.005, 0.01))
    assert far / near == pytest.approx(2, abs=0.3)
    assert theory.distance(reference.descend(start, data, 1.0, 0.005, slow=0.5), goal).max() > 10 * near


def test_turning_is_an_action() -> None:
    rng = np.random.default_rng(6)
    start = instances.random_weights(5, 3, 4, rng)
    one, two = rng.standard_normal((2, 5, 3, 3))
    for left, right in zip(theory.turned(theory.turned(start, one), two), theory.turned(start, two @ one)):
        assert np.allclose(left, right)


def test_random_moments_have_shares_between_zero_and_one() -> None:
    for commuting in (False, True):
        data = instances.random_moments(50, 4, np.random.default_rng(7), commuting=commuting, least=0.2)
        shares = np.sort(np.linalg.eigvals(data.operator).real)
        assert shares.min() > 0.2
        assert shares.max() < 1
        commutes = np.allclose(data.same @ data.cross, data.cross @ data.same)
        assert commutes == commuting


# --- one unit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_the_fate_of_one_unit(seed: int) -> None:
    found = checks.fates(500, seed)
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
            end = reference.follow(w1, w2, np.full(4, theta), 0.6, 300.0, Times(target=slow))[-1]
            assert np.array_equal(np.abs(end[0]) > 0.02, theory.survives(w1, w2, 0.6))


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


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.9])
def test_the_spectra_of_the_portraits(ratio: float) -> None:
    cases = {
        "fixed target": (0.0, 0.0, [-ratio, ratio]),
        "tied predictor": (ratio, ratio, np.roots([1, 1 + 2 * ratio**2, ratio**2])),
        "no predictor": (0.0, 0.0, np.roots([1, 2, 1 - ratio])),
    }
    assert np.allclose(
        theory.planar_spectrum(theory.planar_field("tied predictor", ratio), 0.0, 0.0), [-1, 0], atol=1e-12
    )
    for kind, (x, y, wanted) in cases.items():
        found = theory.planar_spectrum(theory.planar_field(kind, ratio), x, y)
        assert np.allclose(found, np.sort_complex(np.asarray(wanted, dtype=complex)), atol=1e-12), kind


def test_the_portraits_fixed_points() -> None:
    tied = theory.planar_field("tied predictor", 0.4)
    assert np.allclose(tied(np.array(0.4), np.array(0.4)), 0)
    path = reference.planar_path(tied, np.array([0.1, -0.4]), np.array([0.0, 0.3]), 300.0)
    assert np.allclose(path[-1, :, 0], 0.4, atol=1e-6)
    assert np.abs(path[-1, :, 1]).max() < 0.05
    none = theory.planar_field("no predictor", 1.0)
    assert np.allclose(none(np.array(0.7), np.array(0.7)), 0)  # a line of solutions where everything survives
    held = theory.planar_field("fixed target", 0.4)
    assert np.allclose(held(np.array(2.0), np.array(0.2)), 0)


def test_a_solver_that_stops_says_where() -> None:
    rng = np.random.default_rng(0)
    start, moments = instances.random_weights(1, 2, 3, rng), instances.random_moments(1, 3, rng)
    with pytest.raises(ValueError, match="the solver stopped at the fraction 0 of time: "):
        reference.integrate(start, moments, time=1e300)


def test_where_the_printed_formulas_hold() -> None:
    for scrambled in (1, 2, 3):
        same, operator = checks.printed_gap(50, scrambled=scrambled)
        assert operator < 1e-9
        assert (same < 1e-9) == (scrambled == 1)


@pytest.mark.parametrize("kind", ["multiplicative", "additive"])
def test_sampled_views_have_the_exact_moments(kind: str) -> None:
    scene = instances.world(kind, 16, 3)
    assert checks.sampled_gap(scene.moments, scene.draw, 3000) == pytest.approx(1, abs=0.15)
    wrong = Moments(scene.moments.same * 1.1, scene.moments.cross)
    assert checks.sampled_gap(wrong, scene.draw, 3000) > 1.2


def test_shares_of_the_two_worlds() -> None:
    one, two = (theory.modes(instances.world(kind, 4).moments) for kind in ("multiplicative", "additive"))
    assert np.allclose(one.values[:, :4], 1)
    assert np.allclose(one.values[:, 4:], 0)
    assert (two.values < 1).all()
    assert np.allclose(theory.modes(instances.world("proportional", 4).moments).values, 0.8)
    faint = instances.world("additive", 4).faint
    assert np.allclose(theory.alignment(two.rows[:, :2], faint.swapaxes(1, 2)), 1)


def test_scramble_by_hand() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((1, 4, 2)))[0]
    x, matrix = rng.standard_normal((1, 3, 4)), rng.standard_normal((1, 3, 2, 2))
    by_hand = np.stack([(theory.conserved(basis)[0] + basis[0] @ m @ basis[0].T) @ v for v, m in zip(x[0], matrix[0])])
    assert np.allclose(instances.scramble(x, basis, matrix)[0], by_hand)


def test_readout_error_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 5)) @ rng.standard_normal((5, 5))
    online, task = rng.standard_normal((1, 2, 5)), rng.standard_normal((1, 5))
    y, code = x @ task[0], x @ online[0].T
    left = y - code @ np.linalg.lstsq(code, y, rcond=None)[0]
    found = theory.readout_error(online, (x.T @ x / 500)[None], task)[0]
    assert found == pytest.approx(left @ left / (y @ y), rel=1e-9)


def test_byol_follows_the_flow_and_simclr_finds_variance() -> None:
    scene = instances.world("additive", 8, 2)
    start = instances.balanced_start(8, 2, 6, np.random.default_rng(0))
    assert np.abs(theory.balance(start)).max() < 1e-12
    goal = reference.integrate(start, scene.moments, 5.0)
    found = reference.train_byol(start, scene.draw, 1000, 0.005, ema=0.005)
    assert theory.distance(found, theory.Weights(*(part[-1] for part in goal))).max() < 0.1
    online = reference.train_simclr(start.online, scene.draw, 600, 0.02)
    assert np.allclose(online @ online.swapaxes(1, 2), np.eye(2))
    assert theory.alignment(online, scene.strong.swapaxes(1, 2)).min() > 0.95


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
    assert np.allclose(found.rows @ data.operator, found.values[:, :, None] * found.rows, atol=1e-8)
    assert (np.diff(found.values) < 0).all()


def test_the_jacobian_is_autograds() -> None:
    exact, rough = checks.jacobian_gap(50, 1)
    assert exact < 1e-12
    assert rough > 1e-3


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_the_manifold_has_n_squared_dimensions(outputs: int) -> None:
    rng = np.random.default_rng(2)
    data = instances.random_moments(20, 4, rng)
    kept = instances.random_kept(20, outputs, 4, rng, leading=False)
    basis = np.linalg.qr(rng.standard_normal((20, outputs, outputs)))[0]
    point = theory.fixed_point(theory.modes(data), kept, basis)
    assert (theory.manifold_dimension(theory.jacobian(point, data)) == outputs**2).all()


def test_the_spectrum_of_aligned_solutions() -> None:
    rng = np.random.default_rng(3)
    data, tau = instances.random_moments(100, 4, rng, commuting=True), instances.random_times(100, rng)
    found, kept = theory.modes(data), instances.random_kept(100, 2, 4, rng, leading=False)
    same = 1 / np.square(found.rows).sum(-1)
    lengths = rng.uniform(0.2, 2, (100, 2))
    turn = np.linalg.qr(rng.standard_normal((100, 2, 2)))[0]
    basis = turn * (lengths * np.sqrt(np.take_along_axis(same, kept, 1)))[:, None]
    matrix = theory.jacobian(theory.fixed_point(found, kept, basis), data, tau)
    assert checks.spectrum_gap(matrix, theory.aligned_spectrum(found.values, same, kept, lengths, tau)).max() < 1e-9
    wrong = theory.aligned_spectrum(found.values, same, kept, lengths, tau, held=False)
    assert checks.spectrum_gap(matrix, wrong).min() > 1e-4


def test_the_roots_solve_the_quadratic() -> None:
    tau = Times(0.7, 1.3, 2.1)
    w, s, c, q = np.random.default_rng(4).uniform(0.1, 1, (4, 50))
    for mu in theory.pair_roots(w, s, c, q, tau):
        value = 0.7 * 2.1 * mu**2 + (0.7 + 2.1 * (0.7 * q + w**2 * s)) * mu + 0.7 * q + w * (w * s - c)
        assert np.abs(value).max() < 1e-12


@pytest.mark.parametrize(("outputs", "balanced"), [(1, False), (2, False), (3, False), (2, True)])
def test_jacobian_and_flow_agree(outputs: int, balanced: bool) -> None:
    found = checks.verdicts(60, outputs, outputs + 2, 4, balanced=balanced, commuting=balanced)
    assert found.agree == 1
    assert (found.agree_held < 0.9) == (outputs > 1)
    if outputs == 1 or balanced:
        assert np.array_equal(found.jacobian, found.leading)


def test_the_rule_holds_for_one_unit_and_for_balanced_solutions() -> None:
    assert checks.stable_shares(300, 1, 3, 5) == (1, 0)
    assert checks.stable_shares(300, 2, 4, 5, balanced=True, commuting=True) == (1, 0)
    assert checks.stable_shares(300, 3, 5, 5, balanced=True, commuting=True) == (1, 0)
    lead, other = checks.stable_shares(300, 2, 4, 5)
    assert lead < 0.95
    assert other > 0.02


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


def test_a_balanced_problem_that_never_rests() -> None:
    point, data = instances.circling()
    assert np.abs(theory.balance(point)).max() < 1e-14
    assert theory.speed(point, data)[0] < 1e-14
    assert np.linalg.eigvals(theory.jacobian(point, data)).real.max() > 0.3
    still, plain = instances.circling(commuting=True)
    assert np.abs(theory.modes(plain).values - theory.modes(data).values).max() < 1e-12
    assert theory.is_stable(theory.jacobian(still, plain))[0]
    begin = instances.balanced_start(1, 2, 3, np.random.default_rng(1), 0.1)
    for method in ("DOP853", "LSODA"):  # one verdict by two solvers
        path = reference.integrate(begin, data, 1000.0, points=101, rtol=1e-10, method=method)
        late = [theory.Weights(*(part[k] for part in path)) for k in range(50, 101)]
        assert min(theory.speed(w, data)[0] for w in late) > 5e-3
        assert max(np.abs(theory.balance(w)).max() for w in late) < 1e-6
    rest = reference.integrate(begin, plain, 1000.0)
    assert theory.speed(theory.Weights(*(part[-1] for part in rest)), plain)[0] < 1e-6


@pytest.mark.parametrize(("name", "stable"), [("sheared", True), ("small", False), ("skewed", False)])
def test_the_examples(name: str, stable: bool) -> None:
    point, data = instances.example(name)
    assert np.abs(theory.error(point, data)).max() < 1e-10
    assert theory.is_stable(theory.jacobian(point, data))[0] == stable
    rests = reference.rests(point, data, push=1e-7, rest=1e-8, rounds=20, method="LSODA")
    assert rests[0] == stable


def test_the_skewed_example_grows_along_the_mode_left_out() -> None:
    point, data = instances.example("skewed")
    values, vectors = np.linalg.eig(theory.jacobian(point, data)[0])
    online = vectors[:12, values.real.argmax()].reshape(3, 4)
    share = np.linalg.norm(online[:, 3]) / np.linalg.norm(online)
    assert share > 0.99
    assert theory.share_left_out(point, data, np.array([[0, 1, 2]]))[0] == pytest.approx(share)


def test_the_small_example_loses_a_mode() -> None:
    point, data = instances.example("small")
    rng = np.random.default_rng(0)
    nudge = Weights(*(part + 1e-3 * rng.standard_normal(part.shape) for part in point))
    values = np.linalg.svd(reference.integrate(nudge, data, 2000.0).online[-1, 0])[1]
    assert values[1] < 1e-6 * values[0]


def test_collapsed_solutions() -> None:
    rng = np.random.default_rng(7)
    data = instances.random_moments(50, 4, rng)
    top = theory.modes(data).values[:, :1, None]
    turn = np.linalg.qr(rng.standard_normal((50, 2, 2)))[0]
    for omega, stable in ((-0.4, True), (1.1 * top, True), (0.9 * top, False)):
        predictor = (turn * (omega * np.ones((1, 1, 2)))) @ turn.swapaxes(1, 2)
        matrix = theory.jacobian(theory.collapsed(predictor, 4), data)
        assert (theory.is_stable(matrix) == stable).all()
    origin = theory.jacobian(theory.collapsed(np.zeros((50, 2, 2)), 4), data, Times(target=2.0))
    assert np.allclose(np.unique(np.linalg.eigvals(origin).real.round(12)), [-0.5, 0])


def test_where_random_starts_end() -> None:
    seen = {kind: checks.random_ends(kind, 24, seed=2) for kind in instances.STARTS}
    assert seen["balanced"].full.all()
    assert seen["balanced"].leading.mean() > 0.85
    assert not seen["reflected"].full.any()
    assert not seen["identity"].rank.any()
    assert seen["gaussian"].full.mean() < 0.9


def test_alignment() -> None:
    rows = np.eye(4)[None, :2]
    assert theory.alignment(np.array([[[1.0, 2, 0, 0], [3, 4, 0, 0]]]), rows)[0] == pytest.approx(1)
    assert theory.alignment(np.eye(4)[None, [0, 2]], rows)[0] == pytest.approx(0, abs=1e-12)


def test_what_stays_undecided_is_said() -> None:
    with pytest.raises(ValueError, match="rounds=1 leaves 1 of 1 problems undecided"):
        reference.rests(*instances.example("skewed"), rounds=1, rest=1e-12)
    with pytest.raises(ValueError, match="problems=50 asks for more than the 0 clear ones among 1000"):
        checks.verdicts(50, 2, 4, slowest=0.9)
