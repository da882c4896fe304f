"""Theorem 8 and Corollary 1: towers against plain modules, terms against loops, gaps, what breaks, bad input."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gap_cases import assert_gaps
from torch import nn

from sslbook.chapters.byol import contrast, terms, theorem8, towers
from sslbook.chapters.byol.towers import BACKWARD, BOTH, FORWARD, Pair
from sslbook.connection import connection
from sslbook.gaps import relative, relative_gap
from sslbook.normalization import BatchNorm


def one(pair: Pair, r: int) -> Pair:
    """Replica ``r`` alone."""

    def cut(t: towers.Tower) -> towers.Tower:
        return replace(
            t, below=t.below[r : r + 1], weight=t.weight[r : r + 1], above=tuple(m[r : r + 1] for m in t.above)
        )

    return Pair(cut(pair.online), cut(pair.target))


def module(tower: towers.Tower, norm: nn.Module | None = None) -> nn.Sequential:
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
    tower = one(towers.random_pair(3, sizes=(5, 6, 8, 4)).changed(act=act), 1).online
    x = tower.below[0].flatten(0, 1)
    assert torch.allclose(tower.output()[0].flatten(0, 1), module(tower)(x), rtol=1e-12)
    assert relative_gap(tower.connections()[0].flatten(0, 1), connection(module(tower), "0", x)) < 1e-12
    if act == "linear":
        assert torch.allclose(tower.top() @ tower.weight @ x.mT, module(tower)(x).mT[None])


@pytest.mark.parametrize("act", ["linear", "relu"])
@pytest.mark.parametrize("mean", ["normal", "detach", "backward"])
def test_the_step_is_autograd_on_plain_networks_and_all_pairs_of_views(act: str, mean: str) -> None:
    pair = one(towers.random_pair(4, images=3, views=2, sizes=(5, 6, 8, 4)).changed(act=act), 2)
    online, target = (module(t, BatchNorm(8, mean=mean, std="omit").double()) for t in (pair.online, pair.target))
    y, t = (net(tower.below[0].flatten(0, 1)) for net, tower in ((online, pair.online), (target, pair.target)))
    loss = sum(
        0.5 * (y[2 * i + a] - t[2 * i + b].detach()).square().sum() / 12
        for i in range(3)
        for a in range(2)
        for b in range(2)
    )
    loss.backward()
    step = towers.step(pair, {"mean": mean, "std": "omit"})[0]
    assert relative_gap(-online[0].weight.grad.T.flatten(), step) < 1e-12


def test_the_terms_by_loops() -> None:
    pair = one(towers.random_pair(5), 3)
    found = terms.terms(pair)
    k, other = pair.online.connections()[0], pair.target.connections()[0]  # (N, V, p, o)
    w, v = towers.vec(pair.online.weight)[0], towers.vec(pair.target.weight)[0]
    n, views = k.shape[:2]
    bar, bar_other = k.mean(1), other.mean(1)
    sym = sum((k[i, a] - bar[i]) @ (k[i, a] - bar[i]).T @ w for i in range(n) for a in range(views)) / (n * views)
    variance = sum((bar[i] - bar.mean(0)) @ (bar[i] - bar.mean(0)).T @ w for i in range(n)) / n
    cov = sum((bar[i] - bar.mean(0)) @ (bar_other[i] - bar_other.mean(0)).T @ v for i in range(n)) / n
    for name, value in (("sym", -sym), ("variance", variance), ("covariance", cov)):
        assert relative_gap(getattr(found, name)[0], value) < 1e-12, name
    assert relative_gap((found.plain + found.correction)[0], found.corrected[0]) < 1e-12
    assert relative_gap(terms.intra(k[None], w[None])[0], sym) < 1e-12
    assert relative_gap((terms.intra_matrix(k[None])[0] @ w), sym) < 1e-12
    assert relative_gap((terms.inter_matrix(k[None])[0] @ w), variance) < 1e-12


@pytest.mark.parametrize("seed", [0, 3])
def test_theorem_8(seed: int) -> None:
    assert_gaps(
        theorem8.identity_gaps(seed=seed),
        [
            "no BatchNorm",
            "Eq. 13",
            "Eq. 14",
            "Eq. 14, forward only",
            "Eq. 14, both halves",
            "Eq. 14, BatchNorm higher up",
        ],
        [
            "gradient not centred",
            "within augmentations left out",
            "the variance left out",
            "the target's weights left out",
            "the predictor left out",
        ],
    )


@pytest.mark.parametrize("seed", [0, 3])
def test_what_each_hypothesis_is_worth(seed: int) -> None:
    table = theorem8.variants(seed=seed)
    assert set(table) == {*theorem8.TOPS, "raw target"}
    for top, row in table.items():
        for name, errors in row.items():
            assert errors.shape == (100,)
            exact = top == "linear" or (top == "raw target" and name != "forward only")
            assert (float(errors.max()) < 1e-12) if exact else (float(errors.min()) > 0.01), (top, name)


@pytest.mark.parametrize("seed", [0, 3])
def test_eq_12_in_any_network(seed: int) -> None:
    assert_gaps(
        theorem8.covariance_gaps(seed=seed),
        ["minus a covariance", "sum of the gradients"],
        ["product, not covariance", "sum without Eq. 12"],
    )


def test_batches_are_all_there() -> None:
    found = theorem8.all_batches(4, 2, 3, distinct=True)
    rows = torch.cat([found.image, found.first, found.second], 1)
    assert rows.shape == (4 * 2**6, 9)
    assert len(rows.unique(dim=0)) == len(rows)
    assert all(len(set(row.tolist())) == 3 for row in found.image)
    repeated = theorem8.all_batches(3, 2, 2, distinct=False)
    assert repeated.image.shape == (9 * 2**4, 2)


def test_a_batch_of_everything_is_the_population() -> None:
    """One view each: a batch of all images is the whole population, and the step the population's."""
    pair = towers.random_pair(20, images=4, views=1)
    found = theorem8.batch_step(pair, theorem8.all_batches(4, 1, 4, distinct=True), BOTH)
    assert float(relative(found, towers.step(pair, BOTH)).max()) < 1e-12


def test_finite_batches() -> None:
    assert_gaps(
        theorem8.batch_gaps(),
        ["repeated, backward only", "repeated, forward only", "repeated, both", "distinct"],
        ["Eq. 14 itself", "distinct, as if repeated"],
    )


@pytest.mark.parametrize("seed", [0, 3])
def test_the_deviation(seed: int) -> None:
    assert_gaps(
        theorem8.deviation_gaps(seed=seed),
        ["sigma constant", "sigma differentiated", "orthogonal to every row"],
        ["Eq. 14 without sigma", "sigma a constant"],
    )


# -- Corollary 1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_corollary_1(seed: int) -> None:
    gaps = contrast.corollary_gaps(seed=seed)
    broken = [f"{n}, {what}" for n in contrast.TUPLE_LOSSES for what in ("ReLU above", "outputs of length 1")]
    assert_gaps(gaps, [*(f"{n}, all towers" for n in contrast.TUPLE_LOSSES), "simple, one tower"], broken)
    assert float(contrast.one_tower("simple").max()) < 1e-12
    for name in ("soft_triplet", "info_nce"):
        assert float(contrast.one_tower(name, seed=seed).median()) > 0.2, name


def test_tuples_are_all_there() -> None:
    anchor, positive, negatives = contrast.all_tuples(3, 2, 2)
    rows = torch.cat([anchor[:, None], positive[:, None], negatives], 1)
    assert rows.shape == (6 * 2 * 36, 4)
    assert len(rows.unique(dim=0)) == len(rows)
    assert torch.equal(anchor // 2, positive // 2)


def test_the_contrastive_step_by_loops() -> None:
    tower = contrast.tower(2)
    single = replace(tower, below=tower.below[1:], weight=tower.weight[1:], above=tuple(m[1:] for m in tower.above))
    net = module(single)
    y = net(single.below[0].flatten(0, 1))
    total, count = 0.0, 0
    for a in range(6):
        for p in (a // 2 * 2, a // 2 * 2 + 1):
            for n in range(6):
                r = [0.5 * (y[a] - y[k]).square().sum() for k in (p, n)]
                total, count = total + contrast.TUPLE_LOSSES["info_nce"](r[0][None], r[1][None, None])[0], count + 1
    (total / count).backward()
    assert relative_gap(contrast.tuple_step(tower, contrast.TUPLE_LOSSES["info_nce"])[1], -net[0].weight.grad) < 1e-12


def test_one_batch_for_both_views_or_one_each() -> None:
    assert float(contrast.batch_correction(8).max()) < 1e-12
    apart = [float(contrast.batch_correction(size, joint=False).median()) for size in (4, 64)]
    assert apart[0] > 3 * apart[1] > 0.01


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: towers.random_pair(0), "replicas, images, views and sizes must be at least 1, got 0"),
        (lambda: contrast.tower(2, act="gelu"), "act must be one of linear, relu, leaky_relu, tanh, got 'gelu'"),
        (lambda: towers.random_pair(2).changed(norm_at=2), "norm_at must be between 0 and 1, got 2"),
        (lambda: towers.random_pair(2).changed(weight=torch.ones(2, 4, 3)), r"weight must read the 6 features"),
        (lambda: towers.random_pair(2).changed(norm_at=1).online.connections(BOTH), "need norm_at = 0, got 1"),
        (
            lambda: Pair(towers.random_pair(2).online, towers.random_pair(2, views=2).target),
            r"both towers must see views \(R, N, V, .\)",
        ),
        (lambda: theorem8.all_batches(3, 2, 4, distinct=True), "size must be between 1 and 3, got 4"),
        (lambda: theorem8.all_batches(9, 9, 9, distinct=False), "at most 1000000 can be listed"),
        (
            lambda: contrast.tuple_step(contrast.tower(2), contrast.TUPLE_LOSSES["simple"], roles=()),
            "roles must be one or more",
        ),
        (
            lambda: contrast.tuple_step(contrast.tower(2), contrast.TUPLE_LOSSES["simple"], roles=("query",)),
            r"got \('query',\)",
        ),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_forward_and_backward_agree_on_every_batch() -> None:
    """Under a linear top and a centred target the three ways to subtract the mean give one gradient, batch by batch."""
    pair = towers.random_pair(10, images=4, views=2)
    for seed in range(5):
        pick = torch.randint(2, (3, 2, 3), generator=torch.Generator().manual_seed(seed))[0]
        batch = theorem8.Batches(torch.tensor([[0, 1, 3]]), pick[:1], pick[1:])
        steps = [theorem8.batch_step(pair, batch, norm) for norm in (BACKWARD, FORWARD, BOTH)]
        for other in steps[1:]:
            assert float(relative(other, steps[0]).max()) < 1e-11


def test_a_target_that_keeps_its_mean_separates_the_halves() -> None:
    """Forward only leaves the target's mean in the residual, and the step is off by just its product with the mean input."""
    pair = towers.random_pair(10)
    raw = {"mean": "omit", "std": "omit"}
    steps = {name: towers.step(pair, norm, target_norm=raw) for name, norm in theorem8.VARIANTS.items()}
    assert float(relative(steps["both"], steps["backward only"]).max()) < 1e-11
    kept = torch.einsum("rok,ro->rk", pair.online.top(), pair.target.output().mean((1, 2)))
    extra = torch.einsum("rk,rm->rkm", kept, pair.online.below.mean((1, 2)))
    off = steps["forward only"] - steps["both"]
    assert float(relative(off, towers.vec(extra)).max()) < 1e-11
    assert float((off.norm(dim=1) / steps["both"].norm(dim=1)).min()) > 0.01
