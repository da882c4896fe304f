"""What is measured along training, and the longer records, which go on where they were stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from sklearn.neighbors import NearestCentroid

from sslbook.chapters.byol import ablation, recorded_long, siamese, trained
from sslbook.chapters.byol.ablation import Cell, Protocol, Split, State
from sslbook.chapters.byol.probe import few_labels
from sslbook.chapters.byol.siamese import NONE, Norm, Shape
from sslbook.chapters.byol.views import NUMBERS, augment
from sslbook.images import Images
from sslbook.streams import Streams

SMALL = Protocol(shape=Shape(channels=(3, 5), width=7, output=4), epochs=1, batch=16)
f64 = torch.float64


def tiny() -> Split:
    everything = ablation.digits().train
    return Split(
        *(Images(everything.pixels[part], everything.labels[part], "digits") for part in (slice(40), slice(40, 80)))
    )


def state(head: Norm, *, ema: bool, projector: Norm = NONE, bias: bool = True) -> State:
    """Two replicas with a predictor of one layer; the target's weights are other ones if there is an average."""
    online, other = (siamese.initial(SMALL.shape, seeds, 1, 1, f64) for seeds in ((3, 4), (5, 6)))
    if not bias:
        online, other = ({n: 0 * w if n.endswith("bias") else w for n, w in part.items()} for part in (online, other))
    return State(Cell(1, 0.5 * ema, projector, head), online, other if ema else None, 2)


def views(images: int = 12) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    clean = torch.randn(images, 1, 8, 8, generator=g, dtype=f64).repeat_interleave(trained.VIEWS, 0)
    return clean + 0.3 * torch.randn(clean.shape, generator=g, dtype=f64)


def jacobians(f: Callable[..., torch.Tensor], w: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """``f(w, x)`` differentiated in ``w`` at each input: ``(N, VIEWS, outputs, numbers of w)``."""
    found = torch.func.vmap(torch.func.jacrev(f), (None, 0))(w, inputs)
    return found.flatten(2).unflatten(0, (-1, trained.VIEWS))


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
def test_terms_are_those_of_the_jacobian(head: Norm, ema: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """K by autograd, in the projector's last layer; sigma held at its value, as Theorem 8's J has it."""
    monkeypatch.setattr(trained, "DIRECTIONS", 7)
    now, x = state(head, ema=ema), views()
    found = trained.terms(now, x)
    assert torch.allclose(found["held"], torch.ones(2, dtype=f64))
    for r in range(2):
        weights = {name: w[r : r + 1] for name, w in now.online.items()}
        goals = weights if now.target is None else {name: w[r : r + 1] for name, w in now.target.items()}

        def hidden(part: siamese.Parameters) -> torch.Tensor:
            seen = siamese.encode(part, x[:, None], views=1)
            return siamese.linear(part, "projector0", seen).relu()[0]

        z, v = hidden(weights), hidden(goals)
        w, w_goal = weights["projector1.weight"][0], goals["projector1.weight"][0]
        top = weights["predictor1.weight"][0]
        h = z @ w.mT
        scale = (h.var(0) + 1e-5).rsqrt() if head != NONE else torch.ones(4, dtype=f64)
        k = (top * scale) @ jacobians(lambda u, one: u @ one, w, z)
        other = jacobians(lambda u, one: u @ one, w_goal, v)
        halves = [(part[:, :2].mean(1), part[:, 2:].mean(1)) for part in (k, other)]
        (a, b), (c, d) = ([half - half.mean(0) for half in pair] for pair in halves)
        matrix = (torch.einsum("nop,noq->pq", a, d) + torch.einsum("nop,noq->pq", b, c)) / 24
        variance = torch.einsum("nop,noq->pq", a, b) / 12
        inside = k - k.mean(1, keepdim=True)
        within = torch.einsum("nvop,nvoq->pq", inside, inside) / (12 * (trained.VIEWS - 1))
        flat, flat_goal = w.flatten(), w_goal.flatten()
        goal = (v @ w_goal.mT).unflatten(0, (-1, trained.VIEWS))
        one, two = (half.mean(1) - half.mean((0, 1)) for half in goal.chunk(2, 1))
        assert float(found["spread"][r]) == pytest.approx(float((one * two).sum()) / 12, rel=1e-10)
        assert float(found["pull"][r]) == pytest.approx(float(flat @ matrix @ flat_goal), rel=1e-10)
        assert float(found["against"][r]) == pytest.approx(float(flat @ variance @ flat), rel=1e-10)
        assert float(found["within"][r]) == pytest.approx(float(flat @ within @ flat), rel=1e-10)
        values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
        share = values.clamp(min=0).sum() / values.abs().sum()
        assert float(found["definite"][r]) == pytest.approx(float(share), rel=1e-8)


def test_the_pull_is_the_same_at_every_layer() -> None:
    """Without biases the output is ``K_l^T w_l`` at each, also below a ReLU."""
    now, x = state(NONE, ema=False, bias=False), views()
    weights = {name: w[:1] for name, w in now.online.items()}
    seen = siamese.encode(weights, x[:, None], views=1)[0]
    above, top = weights["projector1.weight"][0], weights["predictor1.weight"][0]
    lower = weights["projector0.weight"][0]

    def both(u: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        h = above @ (u @ one).relu()
        return torch.cat([top @ h, h])

    k = jacobians(both, lower, seen)
    first, second = ([half - half.mean(0) for half in (k[:, :2, part].mean(1), k[:, 2:, part].mean(1))]
                     for part in (slice(4), slice(4, 8)))  # fmt: skip
    w = lower.flatten()
    pull = sum(((a @ w) * (b @ w)).sum() for a, b in zip(first, second[::-1], strict=True)) / 24
    assert float(trained.terms(now, x)["pull"][0]) == pytest.approx(float(pull), rel=1e-10)


def test_terms_need_a_predictor_of_one_layer() -> None:
    with pytest.raises(ValueError, match="terms are those of a predictor of one layer, got 2"):
        trained.terms(replace(state(NONE, ema=False), kind=Cell(2)), views())


def test_terms_are_measured_on_views_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (trained.IMAGES, trained.DIRECTIONS) == (256, 12)
    monkeypatch.setattr(trained, "IMAGES", 10)
    now, data = state(Norm(), ema=True), tiny()
    u = Streams([0], "byol terms").uniform((10 * trained.VIEWS, NUMBERS))[0]
    pixels = data.train.pixels[:10].float().repeat_interleave(trained.VIEWS, 0)
    wanted = trained.probes(now, data) | trained.terms(now, augment(pixels, u, SMALL.augmentation))
    found = trained.probes_and_terms(SMALL)(now, data)
    assert {name: value.tolist() for name, value in found.items()} == {name: v.tolist() for name, v in wanted.items()}


def test_long_records_go_on_where_they_were_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    go = recorded_long.run

    def counting(protocol, cells, *rest, **more):
        ran.append(len(cells))
        return go(protocol, cells, *rest, **more)

    monkeypatch.setattr(recorded_long, "run", counting)
    settings = {"protocol": SMALL, "data": tiny(), "root": tmp_path}
    at = {"never": (0, 2, 3), "T = 50": (0, 2)}
    make = partial(recorded_long.resets_values, resets={"never": 0, "T = 50": 1}, moments=at, **settings)
    values = make([0, 1])
    json.dumps(values, allow_nan=False)
    assert ran == [6] * 4
    assert {name: len(cells) for name, cells in values["runs"].items()} == {"never": 12, "T = 50": 12}
    one = values["runs"]["never"]["no BN in predictor; [0, 0.003]"]
    assert set(one) == {
        *ablation.MEASURES,
        "labels 1",
        "labels 5",
        "pull",
        "against",
        "within",
        "spread",
        "definite",
        "held",
    }
    assert len(one["pull"]) == 3
    (tmp_path / "byol-resets T = 50 BN, 0 1.json").unlink()
    assert make([0, 1]) == values
    assert ran[4:] == [6]
    ran.clear()
    average = partial(recorded_long.average_values, at=(0, 1), **settings)
    assert list(average([0, 1])["averages"]) == ["0", "0.97", "0.996"]
    colour = partial(recorded_long.average_cifar10_values, at=(0, 1), device="cpu", **settings)
    found = colour([0, 1])
    assert len(found["averages"]["0.97"]["accuracy"][1]) == 2
    assert ran == [1, 2, *[1] * 6]
    assert colour([0, 1]) == found
    assert len(ran) == 8
