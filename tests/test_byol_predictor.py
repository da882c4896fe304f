"""Corollary 2: the predictor's term, the law of beta I, other predictors, and no stop-gradient."""

from __future__ import annotations

import pytest
import torch
from gap_cases import assert_gaps

from sslbook.book.exercises import check
from sslbook.chapters.byol import predictor, towers
from sslbook.chapters.byol.terms import inter_matrix, intra_matrix
from sslbook.gaps import relative


@pytest.mark.parametrize("seed", [0, 3])
def test_corollary_2(seed: int) -> None:
    assert_gaps(
        predictor.corollary_gaps(seed=seed),
        ["stop-gradient", "no stop-gradient"],
        ["twice sym, as printed", "predictor left out", "the predictor transposed"],
    )


def test_twice_sym_is_right_for_the_identity() -> None:
    pair = predictor.shared_pair(torch.eye(3, dtype=torch.float64).repeat(30, 1, 1))
    w = towers.vec(pair.online.weight)
    twice = -2 * (intra_matrix(predictor.base(pair).connections()) @ w[..., None])[..., 0]
    assert float(relative(twice, towers.step(pair, towers.BOTH, both=True)).max()) < 1e-12


@pytest.mark.parametrize("seed", [0, 3])
def test_the_law_of_beta(seed: int) -> None:
    assert_gaps(predictor.rate_gaps(seed=seed), ["rate"], ["within augmentations without beta"])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_curve(share: float) -> None:
    beta = torch.linspace(-0.3, 1.3, 9, dtype=torch.float64)
    found = predictor.measured_rates(share, beta)
    assert float((found - predictor.rate_law(beta, share, 1 - share)).abs().max()) < 1e-13
    fine = torch.linspace(0, 1, 2001, dtype=torch.float64)
    law = predictor.rate_law(fine, share, 1 - share)
    assert float(fine[law.argmax()]) == pytest.approx(share / 2, abs=1e-3)
    assert float(predictor.rate_law(share, share, 1 - share)) == pytest.approx(0, abs=1e-15)


def test_kinds_of_predictor() -> None:
    symmetric = predictor.predictors("symmetric", 20, 6)
    values = torch.linalg.eigvalsh(symmetric)
    assert torch.allclose(symmetric, symmetric.mT)
    assert float(values.min()) > 0
    assert float(values.max()) < 1
    assert float(predictor.predictors("positive", 20, 6, scale=0.2).min()) >= 0
    leading = torch.linalg.eigvals(predictor.predictors("positive", 50, 40, scale=0.2)).abs().amax(1)
    assert float(leading.mean()) == pytest.approx(0.2, rel=0.05)
    gaussian = predictor.predictors("random", 50, 40, scale=0.2)
    assert float(gaussian.std()) == pytest.approx(0.2 * 40**-0.5, rel=0.05)
    scalar = predictor.predictors("scalar", 5, 3)
    assert torch.equal(scalar, scalar[:, :1, :1] * torch.eye(3, dtype=torch.float64))


def test_spectra() -> None:
    for kind in ("scalar", "symmetric"):
        assert float(predictor.spectrum(kind, 20).min()) > 0
    shares = {
        kind: float((predictor.spectrum(kind, 50, scale=0.1) > 0).double().mean()) for kind in ("random", "positive")
    }
    assert 0.4 < shares["random"] < 0.55
    assert 0.4 < shares["positive"] < 0.6
    positive = predictor.spectrum("positive", 50, scale=0.1)
    assert float((positive[:, -1] / positive[:, -2]).min()) > 3
    grows = {
        kind: float((predictor.pulls(kind, 100, scale=0.1) > 0).double().mean()) for kind in ("random", "positive")
    }
    assert grows["random"] < 0.2
    assert grows["positive"] > 0.95


def test_of_the_smallest_predictors_half_grow() -> None:
    """The second-order term, which is negative, leaves the field to ``W_p^T``, whose trace has either sign."""
    shares = [float((predictor.pulls("random", 400, scale=s) > 0).double().mean()) for s in (0.1, 0.01, 0.0001)]
    assert shares[0] < 0.2
    assert 0.35 < shares[1] < 0.55
    assert shares[2] == pytest.approx(0.5, abs=0.1)
    assert float((predictor.pulls("positive", 200, scale=0.01) > 0).double().mean()) > 0.95


def test_positive_predictors_grow_by_their_trace() -> None:
    """Not by being nearly semi-definite: half of their eigenvalues are negative, and without the trace half of them grow."""
    found = {
        traceless: float((predictor.pulls("positive", 400, scale=0.01, traceless=traceless) > 0).double().mean())
        for traceless in (False, True)
    }
    assert found[False] > 0.95
    assert found[True] == pytest.approx(0.45, abs=0.1)


def test_pulls_are_the_quadratic_form() -> None:
    found = predictor.pulls("random", 4, 5, seed=2)
    pair = predictor.shared_pair(predictor.predictors("random", 4, 5, seed=2), images=40, wide=True, seed=3)
    w = towers.vec(pair.online.weight)
    matrix = inter_matrix(predictor.base(pair).connections(), predictor.middle(pair.online.above[-1]))
    form = torch.einsum("rp,rpq,rq->r", w, matrix, w) / w.square().sum(1)
    assert torch.allclose(found, form, rtol=1e-10)


def test_no_stop_gradient_no_growth() -> None:
    assert predictor.largest_unstopped() < 1e-12
    assert float(predictor.largest_stopped().min()) > 0.1


def test_the_matrix_of_the_step_is_that_of_the_terms() -> None:
    pair = predictor.shared_pair(predictor.predictors("random", 8, 3, scale=1.5))
    found, formula = towers.step_matrix(pair, towers.BOTH, both=True), predictor.unstopped_operator(pair)
    assert torch.allclose(found, formula, rtol=1e-9, atol=1e-12)
    w = towers.vec(pair.online.weight)
    for both in (False, True):
        turned = (towers.step_matrix(pair, towers.BOTH, both=both) @ w[..., None])[..., 0]
        assert float(relative(turned, towers.step(pair, towers.BOTH, both=both)).max()) < 1e-11
    other = towers.Pair(pair.online, towers.random_pair(8, sizes=(5, 6, 5, 3)).target)
    with pytest.raises(ValueError, match="both towers must have weights of one shape"):
        towers.step_matrix(other)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: predictor.predictors("diagonal", 2, 3), "kind must be one of .* got 'diagonal'"),
        (lambda: predictor.predictors("random", 0, 3), "replicas must be at least 1, got 0"),
        (lambda: predictor.predictors("random", 2, 3, scale=0.0), "scale must be above 0, got 0.0"),
        (lambda: predictor.measured_rates(1.5, torch.ones(1)), "share must be between 0 and 1, got 1.5"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_the_exercise_on_the_best_beta() -> None:
    """What the chapter's second exercise accepts and rejects."""

    def reference(a: float, b: float) -> float:
        grid = torch.linspace(0, 1, 100_001, dtype=torch.float64)
        return float(grid[predictor.rate_law(grid, a, b).argmax()])

    cases = [(1.0, 0.0), (1.0, 1.0), (0.3, 0.9)]
    assert check(lambda a, b: a / (2 * (a + b)), reference, cases, atol=1e-5)
    assert not check(lambda a, b: 0.5, reference, cases, atol=1e-5)
