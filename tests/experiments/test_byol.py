"""Theorem 8 and 9, Corollaries 1 and 2, Eq. 11: steps by plain modules, terms by loops, the recurrence by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sslbook.experiments.byol import checks, instances, theory
from sslbook.experiments.byol.instances import (
    TUPLE_LOSSES,
    Pair,
    digit_views,
    step,
    train_halves,
    tuple_step,
)
from sslbook.experiments.byol.theory import inter_matrix
from sslbook.networks.batchnorm import BatchNorm
from sslbook.stats.checks import relative_gap


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


# -- Corollary 1 -----------------------------------------------------------------------------------------------------------


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


# -- the halves of the mean ------------------------------------------------------------------------------------------------


def test_a_replica_runs_as_it_would_alone() -> None:
    views, _ = digit_views(300)
    together = train_halves("both", [3, 5], views, steps=10, every=10)
    alone = train_halves("both", [5], views, steps=10, every=10)
    assert torch.allclose(together.loss[:, 1:], alone.loss, rtol=1e-4)


def test_pulls_are_the_quadratic_form() -> None:
    found = checks.predictor_pulls("random", 4, 5, seed=2)
    pair = instances.shared_pair(instances.random_predictors("random", 4, 5, seed=2), images=40, wide=True, seed=3)
    w = instances.vec(pair.online.weight)
    matrix = inter_matrix(theory.without_predictor(pair).connections(), theory.middle(pair.online.above[-1]))
    form = torch.einsum("rp,rpq,rq->r", w, matrix, w) / w.square().sum(1)
    assert torch.allclose(found, form, rtol=1e-10)
