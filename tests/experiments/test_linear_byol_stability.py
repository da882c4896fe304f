"""Linear BYOL: fixed points, Jacobians, spectra, verdicts, and the ends of random starts."""

from __future__ import annotations

import numpy as np
import pytest
from held import hold

from sslbook.experiments.linear_byol import checks, instances, reference, theory
from sslbook.experiments.linear_byol.theory import Times, Weights


def test_the_modes_diagonalise_both_moments() -> None:
    data = instances.random_moments(30, 5, np.random.default_rng(0))
    found = theory.modes(data)
    turned = found.rows.swapaxes(1, 2)
    assert np.allclose(found.rows @ data.same @ turned, np.eye(5), atol=1e-9)
    assert np.allclose(found.rows @ data.cross @ turned, found.values[:, :, None] * np.eye(5), atol=1e-9)
    assert np.allclose(found.rows @ data.operator, found.values[:, :, None] * found.rows, atol=1e-8)
    assert (np.diff(found.values) < 0).all()


def test_fixed_points_rest() -> None:
    gaps = checks.fixed_point_gaps(150, 1)
    hold(gaps)
    assert gaps["fixed"] < 1e-9
    assert min(gap for name, gap in gaps.items() if name.startswith("broken")) > 1e-3


def test_the_flow_keeps_rotations_alone() -> None:
    gaps = checks.symmetry_gaps(150, 1)
    hold(gaps)
    assert gaps["orthogonal"] < 1e-12
    assert min(gaps["broken: any invertible basis"], gaps["broken: twice an orthogonal one"]) > 1e-2


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


def test_balanced_starts_end_with_a_symmetric_predictor_where_moments_commute() -> None:
    assert checks.random_ends("balanced", 20, seed=3, commuting=True).asymmetry.max() < 0.01
    assert checks.random_ends("balanced", 20, seed=3).asymmetry.max() > 0.01


def test_alignment() -> None:
    rows = np.eye(4)[None, :2]
    assert theory.alignment(np.array([[[1.0, 2, 0, 0], [3, 4, 0, 0]]]), rows)[0] == pytest.approx(1)
    assert theory.alignment(np.eye(4)[None, [0, 2]], rows)[0] == pytest.approx(0, abs=1e-12)


def test_what_stays_undecided_is_said() -> None:
    with pytest.raises(ValueError, match="rounds=1 leaves 1 of 1 problems undecided"):
        reference.rests(*instances.example("skewed"), rounds=1, rest=1e-12)
    with pytest.raises(ValueError, match="problems=50 asks for more than the 0 clear ones among 1000"):
        checks.verdicts(50, 2, 4, slowest=0.9)
