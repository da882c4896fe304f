"""Small BYOL, many replicas at once: against PyTorch's own modules, alone against in a batch, and what is measured on the way."""

from __future__ import annotations

import copy
import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from sslbook.experiments.byol import records, runs
from sslbook.experiments.byol.runs import (
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
from sslbook.images.enumerated import Images
from sslbook.stats.replicas import Streams

SMALL = Recipe(shape=Shape(channels=(3, 5), width=7, output=4), epochs=2, batch=16)
SHORT = replace(SMALL, epochs=1)
f64 = torch.float64


def tiny(n: int = 48) -> Split:
    everything = digits().train
    return Split(
        Images(everything.pixels[:n], everything.labels[:n], "digits"),
        Images(everything.pixels[-30:], everything.labels[-30:], "digits"),
    )


# ------------------------------------------------------------------------------- against PyTorch's modules


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


def test_cells_of_a_seed_start_alike_and_seeds_do_not() -> None:
    weights = initial_weights(SMALL.shape, [0, 1], 3, 2, f64)
    for w in weights.values():
        assert torch.equal(w[0], w[2])
        assert not torch.equal(w[0], w[3])
        assert w.abs().max() <= 1 / math.sqrt(4)  # the smallest fan-in: 4 outputs feed the predictor


def test_a_replica_is_what_it_is_alone() -> None:
    cells = {"a": Ablation(2, 0.9), "b": Ablation(2, 0.5, span=(0.0, 0.1)), "c": Ablation(2, 0.9, reset=1)}
    cells["d"] = replace(cells["c"], span=(-0.02, 0.02))
    together = train_ablations(SMALL, cells, [5, 7], tiny(), at=(0, 2), dtype=f64)
    for name, cell in cells.items():
        alone = train_ablations(SMALL, {name: cell}, [7], tiny(), at=(0, 2), dtype=f64)
        for m in MEASURES:
            torch.testing.assert_close(together[name][m][:, 1:], alone[name][m], rtol=1e-9, atol=1e-12)


def test_without_average_the_target_is_the_online_network() -> None:
    """A moving average that forgets at once is the same as none."""
    cells = {"none": Ablation(2, 0.0), "barely": Ablation(2, 1e-12)}
    found = train_ablations(SMALL, cells, [1], tiny(), dtype=f64)
    assert cells["none"].kind != cells["barely"].kind
    torch.testing.assert_close(found["none"]["rank"], found["barely"]["rank"], rtol=1e-6, atol=0)


# ------------------------------------------------------------------------------- cells


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


# ------------------------------------------------------------------------------- measures


def test_probe_equals_least_squares() -> None:
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.integers(0, 3, 90))
    truth = torch.from_numpy(generator.integers(0, 3, 40))
    train = torch.from_numpy(generator.normal(size=(2, 90, 5))) + F.one_hot(labels, 5)
    test = torch.from_numpy(generator.normal(size=(2, 40, 5))) + F.one_hot(truth, 5)
    from sklearn.linear_model import RidgeClassifier
    from sklearn.preprocessing import StandardScaler

    for r, accuracy in enumerate(linear_probe(train, labels, test, truth)):
        scale = StandardScaler().fit(train[r])
        # n - 1 in our deviations, n in theirs, and targets of 0 and 1 here, -1 and 1 there: the penalty absorbs it
        theirs = RidgeClassifier(alpha=90 * 1e-3).fit(scale.transform(train[r]), labels)
        assert accuracy.item() == pytest.approx(theirs.score(scale.transform(test[r]), truth), abs=1 / 40 + 1e-9)


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


# ------------------------------------------------------------------------------- views


def test_no_augmentation_is_the_image() -> None:
    pixels = digits().train.pixels[:5].double()
    still = Augmentation(shift=0, zoom=0, rotation=0, gain=0)
    u = torch.rand(5, NUMBERS, dtype=f64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(augment(pixels, u, still), pixels, rtol=1e-12, atol=1e-12)


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
    settings = {"protocol": SHORT, "data": tiny(), "parts": tmp_path}
    at = {"never": (0, 2, 3), "T = 50": (0, 2)}
    make = partial(records.resets_values, resets={"never": 0, "T = 50": 1}, moments=at, **settings)
    values = make([0, 1])
    json.dumps(values, allow_nan=False)
    assert {name: len(cells) for name, cells in values["runs"].items()} == {"never": 12, "T = 50": 12}
    one = values["runs"]["never"]["no BN in predictor; [0, 0.003]"]
    assert set(one) == {*MEASURES, "labels 1", "labels 5", "definite"}
    assert len(one["definite"]) == 3
    average = partial(records.average_values, at=(0, 1), **settings)
    assert list(average([0, 1])["averages"]) == ["0", "0.97", "0.996"]
    colour = partial(records.average_cifar10_values, at=(0, 1), device="cpu", **settings)
    found = colour([0, 1])
    assert len(found["averages"]["0.97"]["accuracy"][1]) == 2
    kept = {name: sorted((tmp_path / name).iterdir()) for name in ("byol-resets", "byol-average-cifar10")}
    assert [len(some) for some in kept.values()] == [4, 6], "a kind each; a cell and a seed each"
    kept["byol-resets"][0].unlink()
    assert make([0, 1]) == values, "made again"
    monkeypatch.setattr(runs, "_step", None)
    assert colour([0, 1]) == found, "kept"
