"""Losses of a batch against the papers' formulas, one pair at a time, and against the libraries that have them, where installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sslbook.losses.batch import (
    barlow_twins,
    clip,
    decoupled,
    info_nce,
    sigmoid_pairs,
    spectral_contrastive,
    supervised_contrastive,
    vicreg,
)
from sslbook.losses.pairs import contrastive

TAU = 0.3
LABELS = torch.tensor([2, 0, 2, 1, 0])


def views(*shape: int, seed: int = 0) -> Tensor:
    """``(..., N, V, D)``: views of a sample are alike."""
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randn(*shape[:-2], 1, shape[-1], generator=generator, dtype=torch.float64)
    return sample + 0.7 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def dot(a: Any, b: Any) -> float:
    return float(np.dot(a, b))


def cosine(a: Any, b: Any) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def anchors(z: Any) -> list[tuple[int, int]]:
    return [(i, v) for i in range(z.shape[0]) for v in range(z.shape[1])]


def entropies(z: Any, classes: list[int], *, without_positives: bool = False) -> float:
    """The mean over anchors and their positives of -log(exp(cos/tau) / sum exp(cos/tau))."""
    terms = []
    for i, v in anchors(z):
        others = [pair for pair in anchors(z) if pair != (i, v)]
        positives = [pair for pair in others if classes[pair[0]] == classes[i]]
        pool = [pair for pair in others if not (without_positives and pair in positives)]
        total = sum(math.exp(cosine(z[i, v], z[pair]) / TAU) for pair in pool)
        terms.append(
            np.mean([-math.log(math.exp(cosine(z[i, v], z[pair]) / TAU) / total) for pair in positives]).item()
        )
    return math.fsum(terms) / len(terms)


def spectral(z: Any) -> float:
    pairs = [(a, b) for a in anchors(z) for b in anchors(z) if a != b]
    positive = [dot(z[a], z[b]) for a, b in pairs if a[0] == b[0]]
    negative = [dot(z[a], z[b]) ** 2 for a, b in pairs if a[0] != b[0]]
    return -2 * math.fsum(positive) / len(positive) + math.fsum(negative) / len(negative)


def two_towers(z: Any) -> float:
    """Equal weights on the two directions, from images to texts and back."""
    n, loss = len(z), 0.0
    for i in range(n):
        rows = sum(math.exp(cosine(z[i, 0], z[j, 1]) / TAU) for j in range(n))
        columns = sum(math.exp(cosine(z[j, 0], z[i, 1]) / TAU) for j in range(n))
        loss -= (2 * cosine(z[i, 0], z[i, 1]) / TAU - math.log(rows) - math.log(columns)) / (2 * n)
    return loss


def sigmoids(z: Any, scale: float, bias: float) -> float:
    n, loss = len(z), 0.0
    for i in range(n):
        for j in range(n):
            label = 1 if i == j else -1
            loss += math.log(1 + math.exp(-label * (scale * cosine(z[i, 0], z[j, 1]) + bias)))
    return loss / n


def twins(z: Any, weight: float) -> float:
    n, d, loss = len(z), z.shape[2], 0.0
    for i in range(d):
        for j in range(d):
            a, b = (z[:, view, c] - sum(z[:, view, c]) / n for view, c in ((0, i), (1, j)))
            c = dot(a, b) / n / math.sqrt((dot(a, a) / n + 1e-5) * (dot(b, b) / n + 1e-5))
            loss += (1 - c) ** 2 if i == j else weight * c**2
    return loss


def variances(z: Any, variance: float, invariance: float, covariance: float) -> float:
    n, d, loss = len(z), z.shape[2], 0.0
    loss += invariance * sum((z[i, 0, c] - z[i, 1, c]) ** 2 for i in range(n) for c in range(d)) / (n * d)
    for view in range(2):
        cov = np.cov(z[:, view], rowvar=False)
        loss += variance * sum(max(0.0, 1 - math.sqrt(cov[c, c] + 1e-4)) for c in range(d)) / (2 * d)
        loss += covariance * sum(cov[i, j] ** 2 for i in range(d) for j in range(d) if i != j) / d
    return loss


Formula = tuple[Callable[[Tensor], Tensor], Callable[[Any], float], int]
FORMULAS: dict[str, Formula] = {
    "info_nce": (lambda z: info_nce(z, temperature=TAU), lambda z: entropies(z, [*range(5)]), 3),
    "supervised": (
        lambda z: supervised_contrastive(z, LABELS, temperature=TAU),
        lambda z: entropies(z, LABELS.tolist()),
        3,
    ),
    "decoupled": (
        lambda z: decoupled(z, temperature=TAU),
        lambda z: entropies(z, [*range(5)], without_positives=True),
        3,
    ),
    "spectral": (spectral_contrastive, spectral, 3),
    "clip": (lambda z: clip(z, temperature=TAU), two_towers, 2),
    "sigmoids": (lambda z: sigmoid_pairs(z, scale=4, bias=-2), lambda z: sigmoids(z, 4, -2), 2),
    "barlow_twins": (lambda z: barlow_twins(z, weight=0.1), lambda z: twins(z, 0.1), 2),
    "vicreg": (lambda z: vicreg(0.7 * z, covariance=3), lambda z: variances(0.7 * z, 25, 25, 3), 2),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_loss_is_the_formula_of_its_paper(name: str) -> None:
    ours, formula, most = FORMULAS[name]
    for count in range(2, most + 1):
        z = views(5, count, 4, seed=count)
        assert ours(z).item() == pytest.approx(formula(z.numpy()), rel=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_two_views_are_the_losses_of_pairs(normalize: bool, epsilon: float) -> None:
    z = views(3, 6, 2, 4).requires_grad_()
    ours = (info_nce if epsilon else decoupled)(z, temperature=TAU, normalize=normalize)
    theirs = contrastive(*z.unbind(-2), temperature=TAU, epsilon=epsilon, normalize=normalize)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    gradients = [torch.autograd.grad(loss.sum(), z)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-13)


def test_a_class_for_each_sample_is_info_nce() -> None:
    z = views(2, 5, 3, 4)
    torch.testing.assert_close(
        supervised_contrastive(z, torch.arange(5), temperature=TAU), info_nce(z, temperature=TAU)
    )
    classes = torch.stack([LABELS, torch.arange(5)])
    both = supervised_contrastive(z, classes, temperature=TAU)
    torch.testing.assert_close(both[0], supervised_contrastive(z[0], LABELS, temperature=TAU))
    torch.testing.assert_close(both[1], info_nce(z[1], temperature=TAU))


@pytest.mark.parametrize(
    ("labels", "error", "sentence"),
    [
        ([0, 1], TypeError, "labels must be a torch tensor, got list"),
        (torch.zeros(5), TypeError, "labels must have an integer dtype, got torch.float32"),
        (
            torch.tensor([0, 1, -1, 0, -1]),
            ValueError,
            "labels must be classes from 0 on, got -1: an image without a label",
        ),
        (torch.arange(6), ValueError, r"labels must be one a sample, \(5,\) or \(3, 5\), got \(6,\)"),
    ],
)
def test_labels_that_are_none_are_refused(labels: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        supervised_contrastive(views(3, 5, 2, 4), labels, temperature=TAU)


def test_a_label_that_nobody_may_look_at_leaves_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    z, labels = views(3, 5, 2, 4), torch.tensor([[0, 1, 1, 0, 2], [0, 1, -1, 0, -1], [7, 7, 7, 8, 8]])
    assert supervised_contrastive(z, labels, temperature=TAU).isnan().tolist() == [False, True, False]


def test_what_is_not_normalised_may_be_large() -> None:
    """Squares of a thousand in single precision: distances keep three digits."""
    z = views(5, 2, 4)
    near, far = (info_nce(y, temperature=1.0, normalize=False).item() for y in (z, (z + 1000).float()))
    assert far == pytest.approx(near, rel=2e-3)


def test_terms_without_weight_are_none() -> None:
    z = views(6, 2, 4)
    assert vicreg(z, variance=0, invariance=0, covariance=0).item() == 0
    for call in (lambda: vicreg(z, covariance=-0.5), lambda: barlow_twins(z, weight=-0.5)):
        with pytest.raises(ValueError, match=r"at least 0, got -0\.5"):
            call()
