"""Linear BYOL: two augmentations with exact moments, and what is left for a task."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from held import hold

from sslbook.book import plots
from sslbook.book.exercises import check
from sslbook.chapters.linear_byol import figures, flow, scalar, scrambling, stability
from sslbook.chapters.linear_byol.flow import Moments


@pytest.mark.parametrize("scrambled", [1, 2])
def test_moments_are_exact(scrambled: int) -> None:
    gaps = scrambling.moment_gaps(100, 1, scrambled=scrambled)
    hold(gaps)
    for name in ("same", "cross", "operator"):
        assert gaps[name] < 1e-9, name
    for name in ("same is the data's", "cross is the data's", "the printed operator"):
        assert gaps[f"broken: {name}"] > 1e-2, name


def test_where_the_printed_formulas_hold() -> None:
    for scrambled in (1, 2, 3):
        same, operator = scrambling.printed_gap(50, scrambled=scrambled)
        assert operator < 1e-9
        assert (same < 1e-9) == (scrambled == 1)
    assert max(scrambling.printed_gap(50, scrambled=3, isotropic=True)) < 1e-9


@pytest.mark.parametrize("kind", ["multiplicative", "additive"])
def test_sampled_views_have_the_exact_moments(kind: str) -> None:
    scene = scrambling.world(kind, 16, 3)
    assert scrambling.sampled_gap(scene.moments, scene.draw, 3000) == pytest.approx(1, abs=0.15)
    wrong = Moments(scene.moments.same * 1.1, scene.moments.cross)
    assert scrambling.sampled_gap(wrong, scene.draw, 3000) > 1.2


def test_shares_of_the_two_worlds() -> None:
    one, two = (stability.modes(scrambling.world(kind, 4).moments) for kind in ("multiplicative", "additive"))
    assert np.allclose(one.values[:, :4], 1)
    assert np.allclose(one.values[:, 4:], 0)
    assert (two.values < 1).all()
    assert np.allclose(stability.modes(scrambling.world("proportional", 4).moments).values, 0.8)
    faint = scrambling.world("additive", 4).faint
    assert np.allclose(stability.alignment(two.rows[:, :2], faint.swapaxes(1, 2)), 1)


def test_scramble_by_hand() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((1, 4, 2)))[0]
    x, matrix = rng.standard_normal((1, 3, 4)), rng.standard_normal((1, 3, 2, 2))
    by_hand = np.stack(
        [(scrambling.conserved(basis)[0] + basis[0] @ m @ basis[0].T) @ v for v, m in zip(x[0], matrix[0])]
    )
    assert np.allclose(scrambling.scramble(x, basis, matrix)[0], by_hand)


def test_readout_error_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 5)) @ rng.standard_normal((5, 5))
    online, task = rng.standard_normal((1, 2, 5)), rng.standard_normal((1, 5))
    y, code = x @ task[0], x @ online[0].T
    left = y - code @ np.linalg.lstsq(code, y, rcond=None)[0]
    found = scrambling.readout_error(online, (x.T @ x / 500)[None], task)[0]
    assert found == pytest.approx(left @ left / (y @ y), rel=1e-9)


def test_byol_follows_the_flow_and_simclr_finds_variance() -> None:
    scene = scrambling.world("additive", 8, 2)
    start = scrambling.balanced_start(8, 2, 6, np.random.default_rng(0))
    assert np.abs(flow.balance(start)).max() < 1e-12
    goal = flow.integrate(start, scene.moments, 5.0)
    found = scrambling.byol(start, scene.draw, 1000, 0.005, ema=0.005)
    assert flow.distance(found, flow.Weights(*(part[-1] for part in goal))).max() < 0.1
    online = scrambling.simclr(start.online, scene.draw, 600, 0.02)
    assert np.allclose(online @ online.swapaxes(1, 2), np.eye(2))
    assert stability.alignment(online, scene.strong.swapaxes(1, 2)).min() > 0.95


def test_the_lines_cross() -> None:
    scene = scrambling.world("additive", 8, 2)
    own = {"BYOL": stability.modes(scene.moments).rows[:, :2], "SimCLR": scene.strong.swapaxes(1, 2)}
    errors = scrambling.crossing(own, scene, np.array([0.0, 0.5, 1.0]))
    assert np.allclose(errors["BYOL"].mean(1), [1, 0.5, 0], atol=1e-9)
    assert np.allclose(errors["SimCLR"].mean(1), [0, 0.5, 1], atol=1e-9)


def by_hand(a: np.ndarray, b: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(np.argsort(a / b)[-n:]), np.sort(np.argsort(a)[-n:])


def by_library(a: np.ndarray, b: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    data = scrambling.additive(np.diag(a)[None], np.diag(b)[None])
    rows = stability.modes(data).rows[0, :n]
    return np.sort(np.abs(rows).argmax(1)), np.sort(np.abs(np.linalg.eigh(data.cross[0])[1][:, -n:]).argmax(0))


def test_the_exercise_on_noise() -> None:
    cases = [(*np.random.default_rng(k).uniform(0.1, 2, (2, 6)), n) for k in range(4) for n in (1, 3)]
    assert check(by_hand, by_library, cases)
    assert not check(lambda a, b, n: (by_hand(a, b, n)[1],) * 2, by_library, cases)


def test_the_figures_draw() -> None:
    _, axes = plots.figure(2, 2)
    for ax, kind in zip(axes.flat, scalar.PORTRAITS):
        figures.portrait(ax, kind, 0.5, plots.PALETTE)
    figures.plane_of_fates(axes[1, 1], 0.5, plots.PALETTE)
    plt.close("all")
    _, axes = plots.figure(2)
    path = scalar.follow(np.array([0.5]), np.array([0.3]), np.array([0.3]), 0.7, 5.0, points=6)
    figures.time_course(axes[0], path, np.linspace(0.1, 5, 6), 0.7, plots.PALETTE)
    errors = {"one": np.random.default_rng(0).uniform(0, 1, (3, 4))}
    figures.crossing(axes[1], np.array([0.0, 0.5, 1]), errors, {"one": (plots.PALETTE["blue"], "-")})
    assert axes[1].get_lines()[0].get_ydata().shape == (3,)
    plt.close("all")
    assert figures.share_that_collapses(0.2) > figures.share_that_collapses(1.0) > 0.1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: scrambling.conserved(np.ones((1, 3, 2))), "directions must have orthonormal columns"),
        (lambda: scrambling.world("divided", 2), "kind must be one of multiplicative, .* got 'divided'"),
        (lambda: scrambling.crossing({}, None, np.array([0.5, 1.5])), r"shares must lie in \[0, 1\], got 0.5 to 1.5"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
