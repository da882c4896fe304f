"""Eq. 11 and what collapses, Theorem 9's recurrence, and the two halves of the mean in training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gap_cases import assert_gaps

from sslbook.chapters.byol import collapse, ema, halves

# -- Eq. 11 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_eq_11(seed: int) -> None:
    assert_gaps(
        collapse.identity_gaps(seed=seed),
        ["one tower", "both towers, doubled"],
        ["not doubled", "views of all images mixed"],
    )


def test_the_solution() -> None:
    assert_gaps(collapse.solution_gaps(), ["solution", "kept directions stay"], ["solution, both towers", "no step"])


def test_populations() -> None:
    x = collapse.population(3, kept=2)
    assert float((x[..., :2] - x[:, :, :1, :2]).abs().max()) == 0
    assert float(x[..., 2:].var(2).min()) > 0
    images = x.mean(2)
    assert torch.allclose(images, collapse.population(3, kept=0).mean(2))


def test_what_is_left() -> None:
    assert float(collapse.left_over(0).max()) < 1e-9
    assert float(collapse.left_over(2).min()) > 1e-3
    assert torch.allclose(collapse.left_over(6), torch.ones(100, dtype=torch.float64))


@pytest.mark.parametrize("act", ["linear", "relu"])
def test_descent(act: str) -> None:
    lost, kept = (
        collapse.descend(collapse.random_tower(collapse.population(6, kept=k), act=act), 300, 0.05) for k in (0, 2)
    )
    for run in (lost, kept):
        assert bool((run.loss[1:] <= run.loss[:-1] * (1 + 1e-12)).all())
    assert float((lost.between[-1] / lost.between[0]).median()) < 0.01
    assert float((kept.between[-1] / kept.between[0]).median()) > 0.05


# -- Theorem 9 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_theorem_9(seed: int) -> None:
    names = [f"rate, {o}" for o in ema.ORDERS] + [f"bound, {o}" for o in ema.ORDERS]
    names += [f"w(t), {o}, target from {v}" for o in ema.ORDERS for v in (0, 1)]
    assert_gaps(
        ema.recurrence_gaps(seed=seed),
        names,
        ["rate of Eq. 15 as printed", "w(t) of Eq. 15 as printed", "updated after the step"],
    )


def test_the_recurrence_by_hand() -> None:
    alpha, eta, lam = 0.3, 0.2, 0.5
    for order in ema.ORDERS:
        for sign in (1, -1):
            w, v = 1.0, 0.4
            for _ in range(7):
                new = w + alpha * (-w + (1 + sign * lam) * v)
                v = (1 - eta) * v + eta * (w if order == "before" else new)
                w = new
            m = ema.matrix(alpha, eta, lam, sign=sign, order=order)
            found = ema.iterate(m, torch.tensor([1.0, 0.4], dtype=torch.float64), 7)[-1]
            assert found.tolist() == pytest.approx([w, v])


def test_kappa_as_stated() -> None:
    for alpha, eta, lam in ((0.1, 0.004, 2.0), (0.5, 1.0, 0.3), (0.2, 0.2, -0.7)):
        stated = 0.5 * (eta + alpha) * (np.sqrt(1 + 4 * alpha * eta * lam / (eta + alpha) ** 2) - 1)
        assert float(ema.kappa(alpha, eta, lam)) == pytest.approx(stated, rel=1e-12)
        assert float(ema.kappa(alpha, eta, lam)) <= float(ema.bound(alpha, eta, lam))
    assert float(ema.kappa(0.1, 0.0, 2.0)) == 0
    assert float(ema.kappa(0.3, 1.0, 0.7, "after")) == pytest.approx(
        0.3 * 0.7
    )  # no average: w grows by 1 + alpha lambda
    assert bool(torch.isnan(ema.kappa(0.2, 0.2, -1.5)))


def test_growth_needs_a_positive_lambda_whatever_the_average() -> None:
    alpha, eta, lam = ema.random_settings(300)
    for rate in (ema.kappa(alpha, eta, lam), ema.kappa(alpha, eta, lam, "after")):
        assert torch.equal(rate > 0, lam > 0)


def test_a_slower_average_slows_growth() -> None:
    eta = torch.linspace(0.01, 1, 60, dtype=torch.float64)
    for order in ema.ORDERS:
        assert bool((ema.kappa(0.3, eta, 0.8, order).diff() > 0).all())


def test_the_rate_is_reached() -> None:
    alpha, eta, lam = ema.random_settings(200, smallest=0.05)
    measured = ema.measured_rate(alpha, eta, lam)
    assert float((measured / ema.kappa(alpha, eta, lam) - 1).abs().max()) < 1e-9
    printed = ema.measured_rate(alpha, eta, lam, sign=-1)
    assert torch.equal(printed < 0, lam < 1 / alpha + 1 / eta)  # beyond, it swings ever higher


def test_the_bound_depends_on_the_order() -> None:
    assert 1.2 < ema.exceeded() < 2
    alpha, eta, lam = ema.random_settings(200, smallest=0.0)
    assert float((ema.kappa(alpha, eta, lam, "after") - ema.bound(alpha, eta, lam)).max()) > 0.1
    assert float(ema.kappa(1.0, 1.0, 0.7, "after") / ema.bound(1.0, 1.0, 0.7)) == pytest.approx(2)


def test_which_of_the_two_terms_is_the_larger() -> None:
    """The roots differ by 2 kappa + alpha + eta; the second is the smaller in size exactly if alpha + eta is below 2."""
    g = torch.Generator().manual_seed(0)
    alpha, eta, lam = (torch.rand(500, generator=g, dtype=torch.float64) * top for top in (3.0, 1.0, 2.0))
    rate = ema.kappa(alpha, eta, lam)
    assert torch.equal((1 - alpha - eta - rate).abs() < 1 + rate, alpha + eta < 2)
    assert 100 < int((alpha + eta < 2).sum()) < 400
    fading = (alpha + eta < 2) & (lam < 1 / alpha + 1 / eta)  # the printed sign: both roots within the unit circle
    printed = torch.linalg.eigvals(ema.matrix(alpha, eta, lam, sign=-1)).abs().amax(-1)
    assert float(printed[fading].max()) < 1


@pytest.mark.parametrize("seed", [0, 3])
def test_theorem_9_in_a_network(seed: int) -> None:
    assert_gaps(ema.network_gaps(seed=seed), ["network"], ["the target updated before", "sign of lambda as printed"])


# -- the halves of the mean ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def views() -> torch.Tensor:
    return halves.digits(300)[0]


def test_the_gradients_half_is_what_keeps_outputs_apart(views: torch.Tensor) -> None:
    runs = {half: halves.train(half, range(4), views, steps=100, every=50) for half in halves.HALVES}
    end = {half: run.spread[-1] for half, run in runs.items()}
    assert float(end["none"].median()) < 0.5
    assert float(end["forward only"].median()) < 0.05
    assert min(float(end[half].min()) for half in ("backward only", "both")) > 0.9
    for half in ("backward only", "both"):
        assert float(runs[half].common.max()) < 1e-10
    assert float(runs["forward only"].common[1:].max()) > 1e-3
    assert runs["both"].outputs.shape == (3, 4, 300, 16)


def test_without_unit_length_the_halves_do_the_same(views: torch.Tensor) -> None:
    plan = halves.Plan(unit=False, rate=0.01)
    forward, both, none = (
        halves.train(half, range(3), views, plan, steps=100, every=50).weights
        for half in ("forward only", "both", "none")
    )
    assert float((forward - both).norm() / both.norm()) < 1e-5
    assert float((none - both).norm() / both.norm()) > 1e-3


def test_without_biases_nothing_is_lost(views: torch.Tensor) -> None:
    found = halves.train("forward only", range(3), views, halves.Plan(bias=False), steps=100, every=50)
    assert float(found.spread[-1].min()) > 0.9


def test_a_replica_runs_as_it_would_alone(views: torch.Tensor) -> None:
    together = halves.train("both", [3, 5], views, steps=10, every=10)
    alone = halves.train("both", [5], views, steps=10, every=10)
    assert torch.allclose(together.loss[:, 1:], alone.loss, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: collapse.population(2, kept=7), "kept must be between 0 and 6, got 7"),
        (lambda: collapse.population(2, kept=0, images=2, views=2), r"must be at least size = 6, got 2 and 2"),
        (lambda: collapse.random_tower(collapse.population(2, kept=0), depth=0), "depth must be at least 1"),
        (
            lambda: collapse.descend(collapse.random_tower(collapse.population(2, kept=0)), 0, 0.1),
            "steps must be at least 1 and rate positive, got 0 and 0.1",
        ),
        (
            lambda: collapse.solved(collapse.random_tower(collapse.population(2, kept=0)), 3, 0.1),
            "tower must be a single linear layer",
        ),
        (lambda: ema.kappa(0.0, 0.5, 1.0), "alpha must be positive and eta between 0 and 1"),
        (lambda: ema.kappa(0.1, 1.5, 1.0), "alpha must be positive and eta between 0 and 1"),
        (lambda: ema.matrix(0.1, 0.5, 1.0, sign=0), "sign must be 1 or -1, got 0"),
        (lambda: ema.bound(0.1, 0.5, 1.0, "later"), "order must be one of before, after, got 'later'"),
        (lambda: halves.train("left", [0], torch.zeros(80, 2, 4)), "half must be one of none, .* got 'left'"),
        (lambda: halves.train("both", [0], torch.zeros(8, 2, 4)), "at least a batch of 64 images, got 8"),
        (lambda: halves.train("both", [0], torch.zeros(80, 2, 4), steps=7, every=2), "multiple of every, got 7 and 2"),
        (lambda: halves.Plan(act="gelu"), "act must be one of linear, relu, got 'gelu'"),
        (lambda: halves.Plan(outputs=1), "outputs must be at least 2, got 1"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
