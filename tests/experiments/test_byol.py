"""Theorem 8 and 9, Corollaries 1 and 2, Eq. 11: towers against plain modules, terms against loops, what breaks, what collapses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sslbook.experiments.byol import checks, instances, theory
from sslbook.experiments.byol.batchnorm_mean_halves import HALVES, Plan, digit_views, train_halves
from sslbook.experiments.byol.instances import BOTH, Pair
from sslbook.experiments.byol.reference import (
    TUPLE_LOSSES,
    batch_step,
    descend,
    measured_growth,
    step,
    step_matrix,
    tuple_step,
)
from sslbook.experiments.byol.theory import inter_matrix, intra_matrix
from sslbook.networks.batchnorm import BatchNorm
from sslbook.operator.layer import connection
from sslbook.stats.checks import relative, relative_gap


def one(pair: Pair, r: int) -> Pair:
    """Replica ``r`` alone."""

    def cut(t: instances.Tower) -> instances.Tower:
        return replace(
            t, below=t.below[r : r + 1], weight=t.weight[r : r + 1], above=tuple(m[r : r + 1] for m in t.above)
        )

    return Pair(cut(pair.online), cut(pair.target))


def module(tower: instances.Tower, norm: nn.Module | None = None) -> nn.Sequential:
    """The first replica's tower as a plain network, with a BatchNorm behind its first layer."""
    act = {"linear": nn.Identity(), "relu": nn.ReLU()}[tower.act]
    layers = []
    for matrix in (tower.weight, *tower.above):
        layer = nn.Linear(matrix.shape[2], matrix.shape[1], bias=False, dtype=torch.float64)
        layer.weight.data.copy_(matrix[0])
        layers += [layer, act]
    if norm is not None:
        layers.insert(1, norm)
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("act", ["linear", "relu"])
def test_a_tower_is_the_network_that_it_says(act: str) -> None:
    tower = one(instances.random_pair(3, sizes=(5, 6, 8, 4)).changed(act=act), 1).online
    x = tower.below[0].flatten(0, 1)
    assert torch.allclose(tower.output()[0].flatten(0, 1), module(tower)(x), rtol=1e-12)
    assert relative_gap(tower.connections()[0].flatten(0, 1), connection(module(tower), "0", x)) < 1e-12
    if act == "linear":
        assert torch.allclose(tower.above[1] @ tower.above[0] @ tower.weight @ x.mT, module(tower)(x).mT[None])


@pytest.mark.parametrize("act", ["linear", "relu"])
@pytest.mark.parametrize("mean", ["normal", "detach", "backward"])
def test_the_step_is_autograd_on_plain_networks_and_all_pairs_of_views(act: str, mean: str) -> None:
    pair = one(instances.random_pair(4, images=3, views=2, sizes=(5, 6, 8, 4)).changed(act=act), 2)
    online, target = (module(t, BatchNorm(8, mean=mean, std="omit").double()) for t in (pair.online, pair.target))
    y, t = (net(tower.below[0].flatten(0, 1)) for net, tower in ((online, pair.online), (target, pair.target)))
    loss = sum(
        0.5 * (y[2 * i + a] - t[2 * i + b].detach()).square().sum() / 12
        for i in range(3)
        for a in range(2)
        for b in range(2)
    )
    loss.backward()
    found = step(pair, {"mean": mean, "std": "omit"})[0]
    assert relative_gap(-online[0].weight.grad.T.flatten(), found) < 1e-12


def test_the_terms_by_loops() -> None:
    pair = one(instances.random_pair(5), 3)
    found = theory.terms(pair)
    k, other = pair.online.connections()[0], pair.target.connections()[0]  # (N, V, p, o)
    w, v = instances.vec(pair.online.weight)[0], instances.vec(pair.target.weight)[0]
    n, views = k.shape[:2]
    bar, bar_other = k.mean(1), other.mean(1)
    sym = sum((k[i, a] - bar[i]) @ (k[i, a] - bar[i]).T @ w for i in range(n) for a in range(views)) / (n * views)
    variance = sum((bar[i] - bar.mean(0)) @ (bar[i] - bar.mean(0)).T @ w for i in range(n)) / n
    cov = sum((bar[i] - bar.mean(0)) @ (bar_other[i] - bar_other.mean(0)).T @ v for i in range(n)) / n
    for name, value in (("sym", -sym), ("variance", variance), ("covariance", cov)):
        assert relative_gap(getattr(found, name)[0], value) < 1e-12, name
    assert relative_gap((found.plain + found.correction)[0], found.corrected[0]) < 1e-12
    assert relative_gap(theory.intra(k[None], w[None])[0], sym) < 1e-12
    assert relative_gap((theory.intra_matrix(k[None])[0] @ w), sym) < 1e-12
    assert relative_gap((theory.inter_matrix(k[None])[0] @ w), variance) < 1e-12


@pytest.mark.parametrize("seed", [0, 3])
def test_what_each_hypothesis_is_worth(seed: int) -> None:
    table = checks.variant_errors(seed=seed)
    assert set(table) == {*checks.TOPS, "raw target"}
    for top, row in table.items():
        for name, errors in row.items():
            assert errors.shape == (100,)
            exact = top == "linear" or (top == "raw target" and name != "forward only")
            assert (float(errors.max()) < 1e-12) if exact else (float(errors.min()) > 0.01), (top, name)


def test_batches_are_all_there() -> None:
    found = instances.all_batches(4, 2, 3, distinct=True)
    rows = torch.cat([found.image, found.first, found.second], 1)
    assert rows.shape == (4 * 2**6, 9)
    assert len(rows.unique(dim=0)) == len(rows)
    assert all(len(set(row.tolist())) == 3 for row in found.image)
    repeated = instances.all_batches(3, 2, 2, distinct=False)
    assert repeated.image.shape == (9 * 2**4, 2)


def test_a_batch_of_everything_is_the_population() -> None:
    """One view each: a batch of all images is the whole population, and the step the population's."""
    pair = instances.random_pair(20, images=4, views=1)
    found = batch_step(pair, instances.all_batches(4, 1, 4, distinct=True), BOTH)
    assert float(relative(found, step(pair, BOTH)).max()) < 1e-12


# -- Corollary 1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_one_towers_gradients_do_have_a_mean(seed: int) -> None:
    assert float(checks.one_tower_correction("simple").max()) < 1e-12
    for name in ("soft_triplet", "info_nce"):
        assert float(checks.one_tower_correction(name, seed=seed).median()) > 0.2, name


def test_tuples_are_all_there() -> None:
    anchor, positive, negatives = instances.all_tuples(3, 2, 2)
    rows = torch.cat([anchor[:, None], positive[:, None], negatives], 1)
    assert rows.shape == (6 * 2 * 36, 4)
    assert len(rows.unique(dim=0)) == len(rows)
    assert torch.equal(anchor // 2, positive // 2)


def test_the_contrastive_step_by_loops() -> None:
    tower = instances.contrastive_tower(2)
    single = replace(tower, below=tower.below[1:], weight=tower.weight[1:], above=tuple(m[1:] for m in tower.above))
    net = module(single)
    y = net(single.below[0].flatten(0, 1))
    total, count = 0.0, 0
    for a in range(6):
        for p in (a // 2 * 2, a // 2 * 2 + 1):
            for n in range(6):
                r = [0.5 * (y[a] - y[k]).square().sum() for k in (p, n)]
                total, count = total + TUPLE_LOSSES["info_nce"](r[0][None], r[1][None, None])[0], count + 1
    (total / count).backward()
    assert relative_gap(tuple_step(tower, TUPLE_LOSSES["info_nce"])[1], -net[0].weight.grad) < 1e-12


def test_one_batch_for_both_views_or_one_each() -> None:
    assert float(checks.batch_correction(8).max()) < 1e-12
    apart = [float(checks.batch_correction(size, joint=False).median()) for size in (4, 64)]
    assert apart[0] > 3 * apart[1] > 0.01


def test_a_target_that_keeps_its_mean_separates_the_halves() -> None:
    """Forward only leaves the target's mean in the residual, and the step is off by just its product with the mean input."""
    pair = instances.random_pair(10)
    raw = {"mean": "omit", "std": "omit"}
    steps = {name: step(pair, norm, target_norm=raw) for name, norm in checks.VARIANTS.items()}
    assert float(relative(steps["both"], steps["backward only"]).max()) < 1e-11
    below, above = pair.online.above
    kept = torch.einsum("rok,ro->rk", above @ below, pair.target.output().mean((1, 2)))
    extra = torch.einsum("rk,rm->rkm", kept, pair.online.below.mean((1, 2)))
    off = steps["forward only"] - steps["both"]
    assert float(relative(off, instances.vec(extra)).max()) < 1e-11
    assert float((off.norm(dim=1) / steps["both"].norm(dim=1)).min()) > 0.01


# -- Eq. 11 ----------------------------------------------------------------------------------------------------------------


def test_populations() -> None:
    x = instances.population(3, kept=2)
    assert float((x[..., :2] - x[:, :, :1, :2]).abs().max()) == 0
    assert float(x[..., 2:].var(2).min()) > 0
    images = x.mean(2)
    assert torch.allclose(images, instances.population(3, kept=0).mean(2))


def test_what_is_left() -> None:
    assert float(checks.left_over(0).max()) < 1e-9
    assert float(checks.left_over(2).min()) > 1e-3
    assert torch.allclose(checks.left_over(6), torch.ones(100, dtype=torch.float64))


@pytest.mark.parametrize("act", ["linear", "relu"])
def test_descent(act: str) -> None:
    lost, kept = (descend(instances.random_tower(instances.population(6, kept=k), act=act), 300, 0.05) for k in (0, 2))
    for run in (lost, kept):
        assert bool((run.loss[1:] <= run.loss[:-1] * (1 + 1e-12)).all())
    assert float((lost.between[-1] / lost.between[0]).median()) < 0.01
    assert float((kept.between[-1] / kept.between[0]).median()) > 0.05


# -- Theorem 9 -------------------------------------------------------------------------------------------------------------


def test_the_recurrence_by_hand() -> None:
    alpha, eta, lam = 0.3, 0.2, 0.5
    for order in theory.ORDERS:
        for sign in (1, -1):
            w, v = 1.0, 0.4
            for _ in range(7):
                new = w + alpha * (-w + (1 + sign * lam) * v)
                v = (1 - eta) * v + eta * (w if order == "before" else new)
                w = new
            m = theory.ema_matrix(alpha, eta, lam, sign=sign, order=order)
            found = theory.iterate(m, torch.tensor([1.0, 0.4], dtype=torch.float64), 7)[-1]
            assert found.tolist() == pytest.approx([w, v])


def test_kappa_as_stated() -> None:
    for alpha, eta, lam in ((0.1, 0.004, 2.0), (0.5, 1.0, 0.3), (0.2, 0.2, -0.7)):
        stated = 0.5 * (eta + alpha) * (np.sqrt(1 + 4 * alpha * eta * lam / (eta + alpha) ** 2) - 1)
        assert float(theory.kappa(alpha, eta, lam)) == pytest.approx(stated, rel=1e-12)
        assert float(theory.kappa(alpha, eta, lam)) <= float(theory.kappa_bound(alpha, eta, lam))
    assert float(theory.kappa(0.1, 0.0, 2.0)) == 0
    assert float(theory.kappa(0.3, 1.0, 0.7, "after")) == pytest.approx(
        0.3 * 0.7
    )  # no average: w grows by 1 + alpha lambda
    assert bool(torch.isnan(theory.kappa(0.2, 0.2, -1.5)))


def test_growth_needs_a_positive_lambda_whatever_the_average() -> None:
    alpha, eta, lam = instances.random_settings(300)
    for rate in (theory.kappa(alpha, eta, lam), theory.kappa(alpha, eta, lam, "after")):
        assert torch.equal(rate > 0, lam > 0)


def test_a_slower_average_slows_growth() -> None:
    eta = torch.linspace(0.01, 1, 60, dtype=torch.float64)
    for order in theory.ORDERS:
        assert bool((theory.kappa(0.3, eta, 0.8, order).diff() > 0).all())


def test_the_rate_is_reached() -> None:
    alpha, eta, lam = instances.random_settings(200, smallest=0.05)
    measured = measured_growth(alpha, eta, lam)
    assert float((measured / theory.kappa(alpha, eta, lam) - 1).abs().max()) < 1e-9
    printed = measured_growth(alpha, eta, lam, sign=-1)
    assert torch.equal(printed < 0, lam < 1 / alpha + 1 / eta)  # beyond, it swings ever higher


def test_the_bound_depends_on_the_order() -> None:
    assert 1.2 < checks.kappa_over_bound() < 2
    alpha, eta, lam = instances.random_settings(200, smallest=0.0)
    assert float((theory.kappa(alpha, eta, lam, "after") - theory.kappa_bound(alpha, eta, lam)).max()) > 0.1
    assert float(theory.kappa(1.0, 1.0, 0.7, "after") / theory.kappa_bound(1.0, 1.0, 0.7)) == pytest.approx(2)


# -- the halves of the mean ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def views() -> torch.Tensor:
    return digit_views(300)[0]


def test_the_gradients_half_is_what_keeps_outputs_apart(views: torch.Tensor) -> None:
    runs = {half: train_halves(half, range(4), views, steps=100, every=50) for half in HALVES}
    end = {half: run.spread[-1] for half, run in runs.items()}
    assert float(end["none"].median()) < 0.5
    assert float(end["forward only"].median()) < 0.05
    assert min(float(end[half].min()) for half in ("backward only", "both")) > 0.9
    for half in ("backward only", "both"):
        assert float(runs[half].common.max()) < 1e-10
    assert float(runs["forward only"].common[1:].max()) > 1e-3
    assert runs["both"].outputs.shape == (3, 4, 300, 16)


def test_without_unit_length_the_halves_do_the_same(views: torch.Tensor) -> None:
    plan = Plan(unit=False, rate=0.01)
    forward, both, none = (
        train_halves(half, range(3), views, plan, steps=100, every=50).weights
        for half in ("forward only", "both", "none")
    )
    assert float((forward - both).norm() / both.norm()) < 1e-5
    assert float((none - both).norm() / both.norm()) > 1e-3


def test_without_biases_nothing_is_lost(views: torch.Tensor) -> None:
    found = train_halves("forward only", range(3), views, Plan(bias=False), steps=100, every=50)
    assert float(found.spread[-1].min()) > 0.9


def test_a_replica_runs_as_it_would_alone(views: torch.Tensor) -> None:
    together = train_halves("both", [3, 5], views, steps=10, every=10)
    alone = train_halves("both", [5], views, steps=10, every=10)
    assert torch.allclose(together.loss[:, 1:], alone.loss, rtol=1e-4)


def test_twice_sym_is_right_for_the_identity() -> None:
    pair = instances.shared_pair(torch.eye(3, dtype=torch.float64).repeat(30, 1, 1))
    w = instances.vec(pair.online.weight)
    twice = -2 * (intra_matrix(theory.without_predictor(pair).connections()) @ w[..., None])[..., 0]
    assert float(relative(twice, step(pair, instances.BOTH, both=True)).max()) < 1e-12


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_curve(share: float) -> None:
    beta = torch.linspace(-0.3, 1.3, 9, dtype=torch.float64)
    found = checks.measured_rates(share, beta)
    assert float((found - theory.rate_law(beta, share, 1 - share)).abs().max()) < 1e-13
    fine = torch.linspace(0, 1, 2001, dtype=torch.float64)
    law = theory.rate_law(fine, share, 1 - share)
    assert float(fine[law.argmax()]) == pytest.approx(share / 2, abs=1e-3)
    assert float(theory.rate_law(share, share, 1 - share)) == pytest.approx(0, abs=1e-15)


def test_kinds_of_predictor() -> None:
    symmetric = instances.random_predictors("symmetric", 20, 6)
    values = torch.linalg.eigvalsh(symmetric)
    assert torch.allclose(symmetric, symmetric.mT)
    assert float(values.min()) > 0
    assert float(values.max()) < 1
    assert float(instances.random_predictors("positive", 20, 6, scale=0.2).min()) >= 0
    leading = torch.linalg.eigvals(instances.random_predictors("positive", 50, 40, scale=0.2)).abs().amax(1)
    assert float(leading.mean()) == pytest.approx(0.2, rel=0.05)
    gaussian = instances.random_predictors("random", 50, 40, scale=0.2)
    assert float(gaussian.std()) == pytest.approx(0.2 * 40**-0.5, rel=0.05)
    scalar = instances.random_predictors("scalar", 5, 3)
    assert torch.equal(scalar, scalar[:, :1, :1] * torch.eye(3, dtype=torch.float64))


def test_spectra() -> None:
    for kind in ("scalar", "symmetric"):
        assert float(checks.predictor_spectrum(kind, 20).min()) > 0
    shares = {
        kind: float((checks.predictor_spectrum(kind, 50, scale=0.1) > 0).double().mean())
        for kind in ("random", "positive")
    }
    assert 0.4 < shares["random"] < 0.55
    assert 0.4 < shares["positive"] < 0.6
    positive = checks.predictor_spectrum("positive", 50, scale=0.1)
    assert float((positive[:, -1] / positive[:, -2]).min()) > 3
    grows = {
        kind: float((checks.predictor_pulls(kind, 100, scale=0.1) > 0).double().mean())
        for kind in ("random", "positive")
    }
    assert grows["random"] < 0.2
    assert grows["positive"] > 0.95


def test_positive_predictors_grow_by_their_trace() -> None:
    """Not by being nearly semi-definite: half of their eigenvalues are negative, and without the trace half of them grow."""
    found = {
        traceless: float((checks.predictor_pulls("positive", 400, scale=0.01, traceless=traceless) > 0).double().mean())
        for traceless in (False, True)
    }
    assert found[False] > 0.95
    assert found[True] == pytest.approx(0.45, abs=0.1)


def test_pulls_are_the_quadratic_form() -> None:
    found = checks.predictor_pulls("random", 4, 5, seed=2)
    pair = instances.shared_pair(instances.random_predictors("random", 4, 5, seed=2), images=40, wide=True, seed=3)
    w = instances.vec(pair.online.weight)
    matrix = inter_matrix(theory.without_predictor(pair).connections(), theory.middle(pair.online.above[-1]))
    form = torch.einsum("rp,rpq,rq->r", w, matrix, w) / w.square().sum(1)
    assert torch.allclose(found, form, rtol=1e-10)


def test_no_stop_gradient_no_growth() -> None:
    assert checks.largest_unstopped() < 1e-12
    assert float(checks.largest_stopped().min()) > 0.1


def test_the_matrix_of_the_step_is_that_of_the_terms() -> None:
    pair = instances.shared_pair(instances.random_predictors("random", 8, 3, scale=1.5))
    found, formula = step_matrix(pair, instances.BOTH, both=True), theory.unstopped_operator(pair)
    assert torch.allclose(found, formula, rtol=1e-9, atol=1e-12)
    w = instances.vec(pair.online.weight)
    for both in (False, True):
        turned = (step_matrix(pair, instances.BOTH, both=both) @ w[..., None])[..., 0]
        assert float(relative(turned, step(pair, instances.BOTH, both=both)).max()) < 1e-11
