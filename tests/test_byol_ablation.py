"""Small BYOL, many replicas at once: against PyTorch's own modules, alone against in a batch, and collapse seen."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional as F

from sslbook.chapters.byol import ablation, siamese
from sslbook.chapters.byol.ablation import MEASURES, Cell, Protocol, Split
from sslbook.chapters.byol.probe import likeness, linear_probe
from sslbook.chapters.byol.siamese import NONE, Norm, Shape
from sslbook.chapters.byol.views import NUMBERS, Augmentation, augment
from sslbook.images import Images
from sslbook.streams import Streams

SMALL = Protocol(shape=Shape(channels=(3, 5), width=7, output=4), epochs=2, batch=16)
f64 = torch.float64


def tiny(n: int = 48) -> Split:
    everything = ablation.digits().train
    return Split(
        Images(everything.pixels[:n], everything.labels[:n], "digits"),
        Images(everything.pixels[-30:], everything.labels[-30:], "digits"),
    )


# ------------------------------------------------------------------------------- against PyTorch's modules


class Reference(nn.Module):
    """One replica, as anyone would write it with PyTorch's modules."""

    def __init__(self, shape: Shape, predictor: int) -> None:
        super().__init__()
        c = (shape.colours, *shape.channels)
        convs = [nn.Conv2d(a, b, 3, 2, 1, bias=False) for a, b in itertools.pairwise(c)]
        self.encoder = nn.Sequential(
            *(m for conv in convs for m in (conv, nn.BatchNorm2d(conv.out_channels, affine=False), nn.ReLU())),
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

    @staticmethod
    def standardize(x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()

    def project(self, x: Tensor) -> Tensor:
        first, second = self.projector
        return second(self.standardize(first(self.encoder(x))).relu())

    def predict(self, z: Tensor) -> Tensor:
        if len(self.predictor) == 2:
            return self.predictor[1](self.standardize(self.predictor[0](z)).relu())
        return self.predictor[0](self.standardize(z)) if len(self.predictor) else z


def reference_of(weights: dict[str, Tensor], shape: Shape, predictor: int, r: int) -> Reference:
    net = Reference(shape, predictor).double()
    convs = [m for m in net.encoder if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        for level, conv in enumerate(convs):
            conv.weight.copy_(weights[f"conv{level}"][r])
        names = (
            ["projector0", "projector1"] + (["predictor0"] if predictor == 2 else []) + ["predictor1"] * (predictor > 0)
        )
        for name, layer in zip(names, [*net.projector, *net.predictor], strict=True):
            layer.weight.copy_(weights[f"{name}.weight"][r])
            layer.bias.copy_(weights[f"{name}.bias"][r])
    return net


@pytest.mark.parametrize("predictor", [0, 1, 2])
@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_three_steps_equal_a_plain_implementation(predictor: int, ema: float) -> None:
    """SGD of torch.optim, modules of torch.nn, one replica at a time, views as separate batches."""
    seeds, cells, shape = [3, 4], 2, SMALL.shape
    cell = Cell(predictor, ema)
    online = {k: w.requires_grad_() for k, w in siamese.initial(shape, seeds, cells, predictor, f64).items()}
    target = {k: w.detach().clone() for k, w in online.items()} if ema else None
    replicas = [reference_of(online, shape, predictor, r) for r in range(4)]
    teachers = [copy.deepcopy(net) for net in replicas]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=4e-4) for net in replicas]
    velocity = [torch.zeros_like(w) for w in online.values()]
    keep = torch.full((4,), ema, dtype=f64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        views = torch.rand(12, 2, 1, 8, 8, generator=generator, dtype=f64)
        ablation._step(SMALL, cell.kind, online, target, keep, velocity, views)
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
        again = reference_of(online, shape, predictor, r)
        for mine, theirs in zip(again.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_cells_of_a_seed_start_alike_and_seeds_do_not() -> None:
    weights = siamese.initial(SMALL.shape, [0, 1], 3, 2, f64)
    for w in weights.values():
        assert torch.equal(w[0], w[2])
        assert not torch.equal(w[0], w[3])
        assert w.abs().max() <= 1 / math.sqrt(4)  # the smallest fan-in: 4 outputs feed the predictor


def test_a_replica_is_what_it_is_alone() -> None:
    cells = {"a": Cell(2, 0.9), "b": Cell(2, 0.5, span=(0.0, 0.1)), "c": Cell(2, 0.9, reset=1)}
    cells["d"] = replace(cells["c"], span=(-0.02, 0.02))
    together = ablation.run(SMALL, cells, [5, 7], tiny(), at=(0, 2), dtype=f64)
    for name, cell in cells.items():
        alone = ablation.run(SMALL, {name: cell}, [7], tiny(), at=(0, 2), dtype=f64)
        for m in MEASURES:
            torch.testing.assert_close(together[name][m][:, 1:], alone[name][m], rtol=1e-9, atol=1e-12)


def test_without_average_the_target_is_the_online_network() -> None:
    """A moving average that forgets at once is the same as none."""
    cells = {"none": Cell(2, 0.0), "barely": Cell(2, 1e-12)}
    found = ablation.run(SMALL, cells, [1], tiny(), dtype=f64)
    assert cells["none"].kind != cells["barely"].kind
    torch.testing.assert_close(found["none"]["rank"], found["barely"]["rank"], rtol=1e-6, atol=0)


# ------------------------------------------------------------------------------- cells


def test_reset_and_span_draw_new_predictors(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    original = ablation._draw_predictor

    def spy(weights, cells, streams, which) -> None:
        original(weights, cells, streams, which)
        w = weights["predictor1.weight"]
        if not all(which):
            return
        drawn.append(w.min().item())
        assert (w >= 0).all()
        assert (w <= 0.1).all()
        assert (weights["predictor1.bias"] == 0).all()

    monkeypatch.setattr(ablation, "_draw_predictor", spy)
    protocol = replace(SMALL, epochs=5)
    ablation.run(protocol, {"a": Cell(1, 0.9, reset=2, span=(0.0, 0.1))}, [0], tiny())
    assert len(drawn) == 3  # at the start and after epochs 2 and 4
    assert len(set(drawn)) == 3
    drawn.clear()
    with pytest.raises(AssertionError):  # Xavier's range has both signs: without a span the spy must object
        ablation.run(protocol, {"a": Cell(1, 0.9, reset=2)}, [0], tiny())


@pytest.mark.parametrize("layers", [1, 2])
def test_symmetric_predictor_stays_symmetric(layers: int) -> None:
    weights = siamese.initial(SMALL.shape, [0], 1, layers, f64)
    ablation._symmetrize(weights)
    last = weights["predictor1.weight"]
    other = weights["predictor0.weight"] if layers == 2 else last
    assert torch.equal(last, other.mT)


def test_cells_refuse_what_makes_no_sense() -> None:
    for wrong, words in [
        ({"predictor": 3}, "predictor must be 0, 1 or 2 layers, got 3"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1, got 1.0"),
        ({"reset": -1}, "reset must be a number of epochs"),
        ({"span": (0.1, 0.0)}, "span must be two numbers in increasing order"),
        ({"predictor": 0, "reset": 3}, "there is none"),
    ]:
        with pytest.raises(ValueError, match=words):
            Cell(**wrong)
    with pytest.raises(ValueError, match="batch at least 2"):
        Protocol(batch=1)
    with pytest.raises(ValueError, match="rate > 0"):
        Protocol(rate=0.0)
    with pytest.raises(ValueError, match="too many for images of 8 pixels"):
        Shape(channels=(4, 4, 4, 4))
    with pytest.raises(ValueError, match="at least 1"):
        Shape(width=0)
    with pytest.raises(ValueError, match="predictor must be between 0 and 2"):
        siamese.heads(Shape(), 3)


def test_runs_refuse_what_makes_no_sense() -> None:
    cells = {"a": Cell()}
    with pytest.raises(ValueError, match=r"at must be increasing epochs between 0 and 2, got \[2, 1\]"):
        ablation.run(SMALL, cells, [0], tiny(), at=(2, 1))
    with pytest.raises(ValueError, match="at must be"):
        ablation.run(SMALL, cells, [0], tiny(), at=(3,))
    with pytest.raises(ValueError, match="batch must be at most the 10 training images, got 16"):
        ablation.run(SMALL, cells, [0], tiny(10))
    with pytest.raises(ValueError, match="test must be between 1 and 1796"):
        ablation.digits(0)


def test_digits_are_all_there_once() -> None:
    data = ablation.digits()
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


def test_features_are_those_of_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, pixels = siamese.initial(SMALL.shape, [3], 1, 0, f64), tiny().train.pixels
    encoder = reference_of(weights, SMALL.shape, 0, 0).encoder
    torch.testing.assert_close(ablation._features(weights, pixels, 1)[0], encoder(pixels.double()))
    monkeypatch.setattr(ablation, "CHUNK", 20)  # three parts of 16, each by its own statistics
    parts = torch.cat([encoder(part.double()) for part in pixels.split(16)])
    torch.testing.assert_close(ablation._features(weights, pixels, 1)[0], parts)


def test_likeness() -> None:
    x = torch.randn(1, 500, 6, dtype=f64, generator=torch.Generator().manual_seed(0))
    assert likeness(torch.full((1, 10, 3), 0.7)).item() == pytest.approx(1, rel=1e-12)
    u = F.normalize(x[0, :30], dim=1)
    pairs = (u @ u.T)[~torch.eye(30, dtype=torch.bool)]
    assert likeness(x[:, :30]).item() == pytest.approx(pairs.mean().item(), abs=1e-14)


# ------------------------------------------------------------------------------- views


def test_no_augmentation_is_the_image() -> None:
    pixels = ablation.digits().train.pixels[:5].double()
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


def test_augmentations_out_of_range() -> None:
    with pytest.raises(ValueError, match="grey must be between 0 and 1, got 2"):
        Augmentation(grey=2)
    with pytest.raises(ValueError, match="zoom must be below 1"):
        Augmentation(zoom=1)


# ------------------------------------------------------------------------------- what it is for


@pytest.mark.slow
def test_collapse_is_seen_and_prevented() -> None:
    cells = {"nothing": Cell(0, 0.0, NONE, NONE), "predictor and BN": Cell(2, 0.0, Norm(), Norm())}
    found = ablation.run(Protocol(epochs=8, rate=0.2), cells, [0, 1, 2], ablation.digits(), at=(0, 8))
    assert (found["nothing"]["likeness"][1] > 0.9999).all()
    assert (found["predictor and BN"]["likeness"][1] < 0.7).all()
    gain = found["predictor and BN"]["accuracy"][1] - found["nothing"]["accuracy"][1]
    assert (gain > 0).all()


def test_the_symmetric_predictor_is_the_mean_with_the_transpose() -> None:
    weights = siamese.initial(SMALL.shape, [0], 1, 2, torch.float64)
    first, second = (weights[f"predictor{i}.weight"].clone() for i in (0, 1))
    ablation._symmetrize(weights)
    assert weights["predictor1.weight"].equal((second + first.mT) / 2)


def test_first_weights_fill_their_span() -> None:
    shape = Shape(channels=(40, 50), width=60, output=30)
    weights = siamese.initial(shape, range(20), 2, 2, torch.float64)
    fans = {"conv0": 9, "conv1": 360, "projector0.weight": 50, "projector1.bias": 60, "predictor0.weight": 30}
    for name, fan_in in fans.items():
        found = weights[name] * fan_in**0.5
        assert -1 <= found.min() < -0.98
        assert 0.98 < found.max() <= 1
    ablation._draw_predictor(weights, [Cell(), Cell(span=(0.1, 0.3))], Streams(range(20), "x"), [True, True])
    drawn = weights["predictor1.weight"]
    bound = (6 / 90) ** 0.5
    assert -bound <= drawn[::2].min() < -0.99 * bound
    assert 0.99 * bound < drawn[::2].max() <= bound
    assert 0.1 <= drawn[1::2].min() < 0.101
    assert 0.299 < drawn[1::2].max() <= 0.3


@pytest.mark.parametrize(
    "wrong",
    [{"ema": -0.1}, {"span": (0.1, 0.1)}, {"predictor": 0, "span": (0.0, 1.0)}, {"predictor": 0, "symmetric": True}],
    ids=str,
)
def test_a_cell_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Cell(**wrong)


@pytest.mark.parametrize("wrong", [{"epochs": -1}, {"momentum": 1.0}, {"momentum": -0.1}, {"decay": -1e-3}], ids=str)
def test_a_protocol_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Protocol(**wrong)
