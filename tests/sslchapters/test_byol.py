"""Steps by plain modules, terms by loops; small BYOL in many replicas against PyTorch's own modules, and what is measured of it."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from sslbook._random import Streams
from sslbook.networks.batchnorm import BatchNorm
from sslbook.operator.covariance import relative_gap
from sslchapters.byol import checks, instances, records, runs, theory
from sslchapters.byol.instances import (
    TUPLE_LOSSES,
    Pair,
    digit_views,
    step,
    train_halves,
    tuple_step,
)
from sslchapters.byol.runs import (
    DIRECTIONS,
    IMAGES,
    MEASURES,
    NONE,
    NUMBERS,
    PLAIN,
    SAMPLE,
    VIEWS,
    Ablation,
    Augmentation,
    Norm,
    Recipe,
    Shape,
    Split,
    State,
    _byol_loss,
    _draw_predictor,
    _features,
    _step,
    _symmetrize,
    augment,
    common_gradient,
    definite,
    digits,
    encode,
    few_labels,
    initial_weights,
    linear,
    linear_probe,
    probes,
    probes_and_definite,
    train_ablations,
)
from sslchapters.byol.theory import inter_matrix
from sslchapters.enumerated import Images


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


SMALL = Recipe(shape=Shape(channels=(3, 5), width=7, output=4), epochs=2, batch=16)
SHORT = replace(SMALL, epochs=1)
f64 = torch.float64


def tiny(n: int = 48) -> Split:
    everything = digits().train
    return Split(
        Images(everything.pixels[:n], everything.labels[:n], "digits"),
        Images(everything.pixels[-30:], everything.labels[-30:], "digits"),
    )


class Reference(nn.Module):
    """One replica, as anyone would write it with PyTorch's modules."""

    def __init__(self, shape: Shape, predictor: int, norm: Norm) -> None:
        super().__init__()
        self.norm = norm
        c = (shape.colours, *shape.channels)
        convs = [nn.Conv2d(a, b, 3, 2, 1, bias=False) for a, b in itertools.pairwise(c)]
        self.encoder = nn.Sequential(
            *(m for conv in convs for m in (conv, self.middle(conv.out_channels), nn.ReLU())),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.projector = nn.ModuleList([nn.Linear(c[-1], shape.width), nn.Linear(shape.width, shape.output)])
        sizes = {
            0: [],
            1: [(shape.output, shape.output)],
            2: [(shape.output, shape.width), (shape.width, shape.output)],
        }
        self.predictor = nn.ModuleList([nn.Linear(a, b) for a, b in sizes[predictor]])
        if norm == SAMPLE:
            for layer in (*convs, self.projector[0], *self.predictor[:-1]):
                register_parametrization(layer, "weight", StandardWeights())

    def middle(self, channels: int) -> nn.Module:
        if self.norm == SAMPLE:
            return nn.GroupNorm(1, channels, affine=False)
        return nn.Identity() if self.norm == PLAIN else nn.BatchNorm2d(channels, affine=False)

    def standardize(self, x: Tensor) -> Tensor:
        if self.norm in (SAMPLE, PLAIN):
            return self.middle(x.shape[1])(x)
        return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()

    def project(self, x: Tensor) -> Tensor:
        first, second = self.projector
        return second(self.standardize(first(self.encoder(x))).relu())

    def predict(self, z: Tensor) -> Tensor:
        if len(self.predictor) == 2:
            return self.predictor[1](self.standardize(self.predictor[0](z)).relu())
        return self.predictor[0](self.standardize(z)) if len(self.predictor) else z


class StandardWeights(nn.Module):
    """Each output's weights without their mean, over their deviation and the root of their number."""

    def forward(self, w: Tensor) -> Tensor:
        axes = tuple(range(1, w.ndim))
        count = w[0].numel()
        return (w - w.mean(axes, keepdim=True)) / (count * (w.var(axes, unbiased=False, keepdim=True) + 1e-5)).sqrt()


def reference_of(weights: dict[str, Tensor], shape: Shape, predictor: int, r: int, norm: Norm) -> Reference:
    net = Reference(shape, predictor, norm).double()

    def raw(layer: nn.Module) -> Tensor:
        return layer.parametrizations.weight.original if is_parametrized(layer) else layer.weight  # type: ignore[union-attr, return-value]

    convs = [m for m in net.encoder if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        for level, conv in enumerate(convs):
            raw(conv).copy_(weights[f"conv{level}"][r])
        names = (
            ["projector0", "projector1"] + (["predictor0"] if predictor == 2 else []) + ["predictor1"] * (predictor > 0)
        )
        for name, layer in zip(names, [*net.projector, *net.predictor], strict=True):
            raw(layer).copy_(weights[f"{name}.weight"][r])
            layer.bias.copy_(weights[f"{name}.bias"][r])
    return net


@pytest.mark.parametrize("predictor", [0, 1, 2])
@pytest.mark.parametrize("ema", [0.0, 0.8])
@pytest.mark.parametrize("norm", [Norm(), SAMPLE, PLAIN])
def test_three_steps_equal_a_plain_implementation(predictor: int, ema: float, norm: Norm) -> None:
    """SGD of torch.optim, modules of torch.nn, one replica at a time, views as separate batches."""
    seeds, cells, shape = [3, 4], 2, SMALL.shape
    cell = Ablation(predictor, ema, norm, norm)
    online = {k: w.requires_grad_() for k, w in initial_weights(shape, seeds, cells, predictor, f64).items()}
    target = {k: w.detach().clone() for k, w in online.items()} if ema else None
    replicas = [reference_of(online, shape, predictor, r, norm) for r in range(4)]
    teachers = [copy.deepcopy(net) for net in replicas]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=4e-4) for net in replicas]
    velocity = [torch.zeros_like(w) for w in online.values()]
    keep = torch.full((4,), ema, dtype=f64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        views = torch.rand(12, 2, 1, 8, 8, generator=generator, dtype=f64)
        _step(SMALL, cell.kind, online, target, keep, velocity, views)
        for r, (net, teacher, optimizer) in enumerate(zip(replicas, teachers, optimizers, strict=True)):
            first, second = views[:6, r // cells], views[6:, r // cells]
            with torch.no_grad():
                goal = [(teacher if ema else net).project(x) for x in (first, second)]
            guess = [net.predict(net.project(x)) for x in (first, second)]
            cosines = F.cosine_similarity(guess[0], goal[1]) + F.cosine_similarity(guess[1], goal[0])
            optimizer.zero_grad()
            (-2 * cosines).mean().backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), net.parameters(), strict=True):
                    old.mul_(ema).add_((1 - ema) * new)
    for r, net in enumerate(replicas):
        again = reference_of(online, shape, predictor, r, norm)
        for mine, theirs in zip(again.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_a_replica_is_what_it_is_alone() -> None:
    cells = {"a": Ablation(2, 0.9), "b": Ablation(2, 0.5, span=(0.0, 0.1)), "c": Ablation(2, 0.9, reset=1)}
    cells["d"] = replace(cells["c"], span=(-0.02, 0.02))
    together = train_ablations(SMALL, cells, [5, 7], tiny(), at=(0, 2), dtype=f64)
    for name, cell in cells.items():
        alone = train_ablations(SMALL, {name: cell}, [7], tiny(), at=(0, 2), dtype=f64)
        for m in MEASURES:
            torch.testing.assert_close(together[name][m][:, 1:], alone[name][m], rtol=1e-9, atol=1e-12)


def test_reset_and_span_draw_new_predictors(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    original = _draw_predictor

    def spy(weights, cells, streams, which) -> None:
        original(weights, cells, streams, which)
        w = weights["predictor1.weight"]
        if not all(which):
            return
        drawn.append(w.min().item())
        assert (w >= 0).all()
        assert (w <= 0.1).all()
        assert (weights["predictor1.bias"] == 0).all()

    monkeypatch.setattr(runs, "_draw_predictor", spy)
    protocol = replace(SMALL, epochs=5)
    train_ablations(protocol, {"a": Ablation(1, 0.9, reset=2, span=(0.0, 0.1))}, [0], tiny())
    assert len(drawn) == 3  # at the start and after epochs 2 and 4
    assert len(set(drawn)) == 3
    drawn.clear()
    with pytest.raises(AssertionError):  # Xavier's range has both signs: without a span the spy must object
        train_ablations(protocol, {"a": Ablation(1, 0.9, reset=2)}, [0], tiny())


@pytest.mark.parametrize("layers", [1, 2])
def test_the_symmetric_predictor_is_the_mean_with_the_transpose(layers: int) -> None:
    weights = initial_weights(SMALL.shape, [0], 1, layers, f64)
    first, second = (weights[f"predictor{i}.weight"].clone() for i in (2 - layers, 1))
    _symmetrize(weights)
    assert weights["predictor1.weight"].equal((second + first.mT) / 2)
    assert weights[f"predictor{2 - layers}.weight"].mT.equal(weights["predictor1.weight"])


def test_digits_are_all_there_once() -> None:
    data = digits()
    assert (len(data.train), len(data.test)) == (1397, 400)
    both = torch.cat([data.train.pixels, data.test.pixels]).flatten(1)
    from sklearn.datasets import load_digits

    theirs = torch.from_numpy(load_digits().data).float() / 16
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, theirs.tolist()))
    assert data.test.labels.bincount().min() > 20


def test_the_probes_penalty_is_a_ridge() -> None:
    """With hardly more images than features, so that another penalty, of 24e-3 for 24 images, decides otherwise."""
    from sklearn.linear_model import Ridge

    generator, labels, truth = torch.Generator().manual_seed(2), torch.arange(24) % 3, torch.arange(2000) % 3
    train = torch.randn(2, 24, 20, generator=generator, dtype=f64)
    test = torch.randn(2, 2000, 20, generator=generator, dtype=f64) + 0.3 * F.one_hot(truth, 20)
    for x, y, accuracy in zip(train, test, linear_probe(train, labels, test, truth), strict=True):
        scaled, asked = ((part - x.mean(0)) / x.std(0) for part in (x, y))
        theirs = Ridge(alpha=24e-3).fit(scaled.numpy(), F.one_hot(labels).double().numpy())
        right = torch.from_numpy(theirs.predict(asked.numpy())).argmax(1) == truth
        assert accuracy.item() == pytest.approx(right.double().mean().item(), abs=1e-12)


@pytest.mark.parametrize("norm", [Norm(), SAMPLE, PLAIN])
def test_features_are_those_of_the_encoder(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, pixels = initial_weights(SMALL.shape, [3], 1, 0, f64), tiny().train.pixels
    encoder = reference_of(weights, SMALL.shape, 0, 0, norm).encoder
    torch.testing.assert_close(_features(weights, pixels, 1, norm)[0], encoder(pixels.double()))
    monkeypatch.setattr(runs, "CHUNK", 20)  # three parts of 16, each by its own statistics
    parts = torch.cat([encoder(part.double()) for part in pixels.split(16)])
    torch.testing.assert_close(_features(weights, pixels, 1, norm)[0], parts)


def test_views_equal_scipys_affine_transform() -> None:
    image = torch.rand(1, 1, 9, 9, dtype=f64, generator=torch.Generator().manual_seed(1))
    kind = Augmentation(shift=0.2, zoom=0.3, rotation=0.5, gain=0.0)
    u = torch.rand(1, NUMBERS, dtype=f64, generator=torch.Generator().manual_seed(2))
    v = (2 * u - 1)[0].numpy()
    angle, size = 0.5 * v[0], 1 + 0.3 * v[1]
    # ours by (x, y) in units of half a side; SciPy's by (row, column) in pixels, about the centre
    matrix = size * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    moved = 0.2 * 9 * np.array([v[3], v[2]])
    offset = np.array([4.0, 4.0]) + moved - matrix @ np.array([4.0, 4.0])
    padded = np.pad(image[0, 0].numpy(), 8)  # zeros outside, and interpolation towards them
    theirs = ndimage.affine_transform(padded, matrix, offset + 8 - matrix @ [8, 8], order=1)[8:-8, 8:-8]
    torch.testing.assert_close(augment(image, u, kind)[0, 0], torch.from_numpy(theirs), rtol=1e-10, atol=1e-12)


def test_colours_gain_and_mirror() -> None:
    image = torch.rand(3, 3, 6, 6, dtype=f64, generator=torch.Generator().manual_seed(3))
    u = torch.rand(3, NUMBERS, dtype=f64, generator=torch.Generator().manual_seed(4))
    still = Augmentation(shift=0, zoom=0, rotation=0, gain=0)
    grey = augment(image, u, replace(still, grey=1.0))
    torch.testing.assert_close(grey, image.mean(1, keepdim=True).expand_as(image), rtol=1e-12, atol=1e-12)
    bright = augment(image, u, replace(still, gain=0.5))
    torch.testing.assert_close(bright, image * (1 + 0.5 * (2 * u[:, 4] - 1))[:, None, None, None])
    tinted = augment(image, u, replace(still, tint=0.5))
    torch.testing.assert_close(tinted, image * (1 + 0.5 * (2 * u[:, 5:8] - 1))[:, :, None, None])
    u[:, 9] = torch.tensor([0.1, 0.9, 0.2])
    seen = augment(image, u, replace(still, mirror=True))
    torch.testing.assert_close(seen, torch.stack([image[0].flip(-1), image[1], image[2].flip(-1)]))


def test_first_weights_fill_their_span() -> None:
    shape = Shape(channels=(40, 50), width=60, output=30)
    weights = initial_weights(shape, range(20), 2, 2, torch.float64)
    fans = {"conv0": 9, "conv1": 360, "projector0.weight": 50, "projector1.bias": 60, "predictor0.weight": 30}
    for name, fan_in in fans.items():
        found = weights[name] * fan_in**0.5
        assert -1 <= found.min() < -0.98
        assert 0.98 < found.max() <= 1
    _draw_predictor(weights, [Ablation(), Ablation(span=(0.1, 0.3))], Streams(range(20), "x"), [True, True])
    drawn = weights["predictor1.weight"]
    bound = (6 / 90) ** 0.5
    assert -bound <= drawn[::2].min() < -0.99 * bound
    assert 0.99 * bound < drawn[::2].max() <= bound
    assert 0.1 <= drawn[1::2].min() < 0.101
    assert 0.299 < drawn[1::2].max() <= 0.3


def state(head: Norm, *, ema: bool) -> State:
    """Two replicas with a predictor of one layer; the target's weights are other ones if there is an average."""
    online, other = (initial_weights(SHORT.shape, seeds, 1, 1, f64) for seeds in ((3, 4), (5, 6)))
    return State(Ablation(1, 0.5 * ema, NONE, head), online, other if ema else None, 2)


def views() -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    clean = torch.randn(12, 1, 8, 8, generator=g, dtype=f64).repeat_interleave(VIEWS, 0)
    return clean + 0.3 * torch.randn(clean.shape, generator=g, dtype=f64)


def jacobians(w: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """``w x`` differentiated in ``w`` at each input: ``(N, VIEWS, outputs, numbers of w)``."""
    found = torch.func.vmap(torch.func.jacrev(torch.mv), (None, 0))(w, inputs)
    return found.flatten(2).unflatten(0, (-1, VIEWS))


def test_few_labels_are_scikit_learns_nearest_centroid() -> None:
    g = torch.Generator().manual_seed(0)
    labels, truth = torch.arange(60) % 3, torch.arange(50) % 3
    train, test = (
        torch.randn(2, len(part), 4, generator=g, dtype=f64) + part[None, :, None] for part in (labels, truth)
    )
    found = few_labels(train, labels, test, truth, 20, draws=1)  # all there are, so that the draw is no matter
    for x, y, right in zip(train, test, found, strict=True):
        scaled = (x - x.mean(0)) / x.std(0), (y - x.mean(0)) / x.std(0)
        theirs = NearestCentroid().fit(scaled[0].numpy(), labels.numpy()).predict(scaled[1].numpy())
        assert float(right) == pytest.approx(float((torch.from_numpy(theirs) == truth).double().mean()))
    assert few_labels(train, labels, test, truth, 1).mean() < few_labels(train, labels, test, truth, 20).mean()
    assert torch.equal(few_labels(train, labels, test, truth, 1), few_labels(train, labels, test, truth, 1))


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize("head", [NONE, Norm()])
def test_the_definite_share_is_that_of_the_jacobian(head: Norm, ema: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """K by autograd, in the projector's last layer; sigma held at its value, as Theorem 8's J has it."""
    monkeypatch.setattr(runs, "DIRECTIONS", 7)
    now, x = state(head, ema=ema), views()
    found = definite(now, x)
    for r in range(2):
        weights = {name: w[r : r + 1] for name, w in now.online.items()}
        goals = weights if now.target is None else {name: w[r : r + 1] for name, w in now.target.items()}
        z, v = (
            linear(part, "projector0", encode(part, x[:, None], NONE, views=1)).relu()[0] for part in (weights, goals)
        )
        w, w_goal = weights["projector1.weight"][0], goals["projector1.weight"][0]
        h = z @ w.mT
        scale = (h.var(0) + 1e-5).rsqrt() if head != NONE else torch.ones(4, dtype=f64)
        k = (weights["predictor1.weight"][0] * scale) @ jacobians(w, z)
        other = jacobians(w_goal, v)
        halves = [(part[:, :2].mean(1), part[:, 2:].mean(1)) for part in (k, other)]
        (a, b), (c, d) = ([half - half.mean(0) for half in pair] for pair in halves)
        matrix = (torch.einsum("nop,noq->pq", a, d) + torch.einsum("nop,noq->pq", b, c)) / 24
        values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
        share = values.clamp(min=0).sum() / values.abs().sum()
        assert float(found[r]) == pytest.approx(float(share), rel=1e-8)


def test_the_definite_share_is_measured_on_views_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (IMAGES, DIRECTIONS) == (256, 12)
    monkeypatch.setattr(runs, "IMAGES", 10)
    now, data = state(Norm(), ema=True), tiny()
    u = Streams([0], "byol terms").uniform((10 * VIEWS, NUMBERS))[0]
    pixels = data.train.pixels[:10].float().repeat_interleave(VIEWS, 0)
    wanted = probes(now, data) | {"definite": definite(now, augment(pixels, u, SHORT.augmentation))}
    found = probes_and_definite(SHORT)(now, data)
    assert {name: value.tolist() for name, value in found.items()} == {name: v.tolist() for name, v in wanted.items()}


def test_the_common_gradient_image_by_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without BatchNorm each image has a loss of its own; a whole mean leaves nothing in common."""
    monkeypatch.setattr(runs, "IMAGES", 10)
    now, data = state(NONE, ema=True), tiny()
    u = Streams([0], "byol common").uniform((20, NUMBERS))[0]
    views = augment(data.train.pixels[:10].float().repeat(2, 1, 1, 1), u, SHORT.augmentation).double()[:, None]
    views = views.expand(-1, now.seeds, -1, -1, -1)
    goal = runs.project(now.target, encode(now.target, views, NONE), NONE)
    seen = encode(now.online, views, NONE).detach().requires_grad_()
    out = runs.predict(now.online, runs.project(now.online, seen, NONE), NONE)
    pairs = [_byol_loss(out[:, i::10], goal[:, i::10].detach()).sum() for i in range(10)]
    slopes = torch.stack([torch.autograd.grad(pair, seen, retain_graph=True)[0] for pair in pairs])
    both = slopes.sum(0).unflatten(1, (2, 10))
    wanted = (both.sum(2).square().sum(2) / (10 * both.square().sum((2, 3)))).mean(1)
    assert torch.allclose(common_gradient(SHORT)(now, data)["common"], wanted, rtol=1e-9)
    centred = Norm("normal", "omit")
    whole = replace(now, kind=replace(now.kind, projector=centred, head=centred))
    assert float(common_gradient(SHORT)(whole, data)["common"].max()) < 1e-20 < 0.01 < float(wanted.min())


def test_long_records_go_on_where_they_were_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "DIGITS": SHORT,
        "CIFAR10": SHORT,
        "digits": tiny,
        "cifar10": lambda count: tiny(),
        "RESETS": {"never": 0, "T = 50": 1},
        "RESET_MOMENTS": {"never": (0, 2, 3), "T = 50": (0, 2)},
        "DIGITS_AT": (0, 1),
        "CIFAR10_AT": (0, 1),
        "parts_folder": lambda: tmp_path,
    }.items():
        monkeypatch.setattr(records, name, value)
    values = records.resets_values([0, 1])
    json.dumps(values, allow_nan=False)
    assert {name: len(cells) for name, cells in values["runs"].items()} == {"never": 12, "T = 50": 12}
    one = values["runs"]["never"]["no BN in predictor; [0, 0.003]"]
    assert set(one) == {*MEASURES, "labels 1", "labels 5", "definite"}
    assert len(one["definite"]) == 3
    assert list(records.average_values([0, 1])["averages"]) == ["0", "0.97", "0.996"]
    found = records.average_cifar10_values([0, 1])
    assert len(found["averages"]["0.97"]["accuracy"][1]) == 2
    kept = {name: sorted((tmp_path / name).iterdir()) for name in ("byol-resets", "byol-average-cifar10")}
    assert [len(some) for some in kept.values()] == [4, 6], "a kind each; a cell and a seed each"
    kept["byol-resets"][0].unlink()
    assert records.resets_values([0, 1]) == values, "made again"
    monkeypatch.setattr(runs, "_step", None)
    assert records.average_cifar10_values([0, 1]) == found, "kept"
