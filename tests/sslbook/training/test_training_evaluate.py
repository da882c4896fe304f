"""Nearest neighbours and the linear protocol against scikit-learn and PyTorch's own layers; what a report says and leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional as F

from sslbook.images import datasets
from sslbook.networks.siamese import Networks, build
from sslbook.training import evaluate
from sslbook.training.augment import PIPELINES, plain
from sslbook.training.evaluate import embed, knn_accuracy, linear_probe, report

Problem = tuple[Tensor, Tensor, Tensor, Tensor]


def problem(count: int = 600, features: int = 12, classes: int = 4, noise: float = 2.5) -> Problem:
    """Classes around their centres, so far apart that some are mistaken; features of unlike means and deviations."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, features, generator=generator)
    labels = torch.randint(0, classes, (2 * count,), generator=generator)
    x = centres[labels] + noise * torch.randn(2 * count, features, generator=generator)
    x = x * torch.linspace(0.1, 3, features) + torch.linspace(-1, 1, features)
    return x[:count], labels[:count], x[count:], labels[count:]


def test_neighbours_vote_as_in_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a small temperature too, where weights of the cosine itself would all be 0: the nearest alone votes."""
    train, labels, test, truth = problem()
    for k, temperature in ((1, 0.1), (20, 0.1), (600, 0.1), (600, 1e-4)):
        far = lambda d, tau=temperature: np.exp(-(d - d.min(1, keepdims=True)) / tau)  # noqa: E731
        theirs = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=far)
        wanted = theirs.fit(train.numpy(), labels.numpy()).score(test.numpy(), truth.numpy())
        for similarities in (10**9, 7 * 600):  # at once, and in blocks of seven
            monkeypatch.setattr(evaluate, "SIMILARITIES", similarities)
            found = knn_accuracy(train, labels, test, truth, k=k, temperature=temperature)
            assert found == pytest.approx(wanted, abs=1e-9)


def by_autograd(data: Problem, epochs: int) -> tuple[list[float], Tensor]:
    """The released protocol with PyTorch's layer, loss and optimiser and scikit-learn's scaler: its curve, and its weights."""
    train, labels, test, truth = data
    scaler = StandardScaler().fit(train.numpy())
    x, y = (torch.from_numpy(scaler.transform(part.numpy())).float() for part in (train, test))
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(x.shape[1], 4)
    bound = x.shape[1] ** -0.5
    start = torch.empty(x.shape[1] + 1, 4).uniform_(-bound, bound, generator=generator)
    layer.weight.data, layer.bias.data = start[:-1].T.clone(), start[-1].clone()
    descent = torch.optim.Adam(layer.parameters(), lr=3e-4, weight_decay=1e-3)
    curve = []
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(128):
            descent.zero_grad()
            F.cross_entropy(layer(x[rows]), labels[rows]).backward()
            descent.step()
        curve.append((layer(y).argmax(1) == truth).double().mean().item())
    return curve, torch.cat([layer.weight.T, layer.bias[None]]).detach()


def test_the_protocol_is_the_released_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data, made, adam = problem(), [], torch.optim.Adam
    curve, weights = by_autograd(data, 8)
    monkeypatch.setattr(torch.optim, "Adam", lambda learnt, **options: made.extend(learnt) or adam(learnt, **options))
    found = linear_probe(*data, epochs=8)
    assert found.curve == pytest.approx(curve, abs=1.5 / 600), "an image or so on the border between two classes"
    assert found.final == found.curve[-1]
    assert found.best == max(found.curve) >= found.final
    assert (made[0] - weights).abs().max() < 1e-6, "forty steps, each with a rounding of 1e-8"
    torch.manual_seed(1)
    assert linear_probe(*data, epochs=8) == found != linear_probe(*data, epochs=8, seed=6)


def test_bad_calls_get_a_sentence() -> None:
    train, labels, test, truth = problem(20)
    for call, sentence in (
        (lambda: knn_accuracy(train, labels, test, truth, k=21), "k must be at least 1 and at most 20, got 21"),
        (lambda: knn_accuracy(train / 0, labels, test, truth, k=1), "features must be finite"),
        (lambda: linear_probe(train, labels - 1, test, truth), "each a class from 0 on"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            call()


def test_features_that_never_vary_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, constants, and the same but for one unit of the last place above or below."""
    data, constant = problem(), torch.tensor([0.1, 7.7, 1.0001, -1.0001])

    def with_constants(part: Tensor) -> Tensor:
        upwards = torch.arange(len(part))[:, None].div(torch.tensor([1, 2, 3, 5]), rounding_mode="floor") % 2 == 0
        noisy = torch.nextafter(constant, torch.where(upwards, torch.inf, -torch.inf))
        return torch.cat([part, torch.zeros(len(part), 1), constant.expand(len(part), 4), noisy], dim=1)

    seen, pad = [], F.pad
    monkeypatch.setattr(F, "pad", lambda x, *how, **options: seen.append(x) or pad(x, *how, **options))
    more = with_constants(data[0]), data[1], with_constants(data[2]), data[3]
    found, wanted = (linear_probe(*each, epochs=30, lr=1e-2).final for each in (more, data))
    assert found == pytest.approx(wanted, abs=0.02)
    assert found > 0.4
    assert (seen[0][:, 12:21].abs().amax(0) < 1e-5).all()


def test_a_report_tells_what_was_asked_and_embeddings_do_not_depend_on_the_batch() -> None:
    model, pipeline = build(Networks(width=4, projector_hidden=16, projector_out=8, channels=1), 0), PIPELINES["digits"]
    train, test = (datasets.subset(datasets.load_dataset("digits", part), 300, 0) for part in ("train", "test"))
    found = report(model.encoder, train, test, pipeline, "cpu", linear=True)
    assert 0.3 < found["knn"] <= 1, "pixels seen through random filters tell digits apart"
    assert 0 < found["linear"] <= found["linear_best"] <= 1
    assert found["rank"] == evaluate.effective_rank(embed(model.encoder, test, pipeline)).item()
    quick = report(model.encoder, train, test, pipeline, "cpu")
    assert quick == {**found, "linear": None, "linear_best": None}
    model.eval()
    whole, parts = (embed(model.encoder, train, pipeline, "cpu", batch=batch) for batch in (300, 7))
    assert whole.shape == (300, 32)
    assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-5)
    assert torch.allclose(whole, model.encoder(plain(train.pixels, pipeline)), rtol=1e-4, atol=1e-5)
