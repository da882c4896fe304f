"""Losses of a batch against the papers' formulas, one pair at a time; and what every loss of the registry promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from losses_cases import GIVEN, LABELS, bound, views
from torch import Tensor

from sslbook.losses import pairs
from sslbook.losses.batch import LOSSES, WHOLE, barlow_twins, decoupled, info_nce, supervised_contrastive
from sslbook.losses.pairs import OF_DISTANCES

TAU = GIVEN["temperature"]


def dot(a: Any, b: Any) -> float:
    return float(np.dot(a, b))


def cosine(a: Any, b: Any) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def anchors(z: Any) -> list[tuple[int, int]]:
    return [(i, v) for i in range(z.shape[0]) for v in range(z.shape[1])]


def entropies(z: Any, classes: Any, *, without_positives: bool = False) -> float:
    """The mean over anchors and their positives of -log(exp(cos/tau) / sum exp(cos/tau))."""
    terms = []
    for a in anchors(z):
        others = [b for b in anchors(z) if b != a]
        positives = [b for b in others if classes[b[0]] == classes[a[0]]]
        pool = [b for b in others if not (without_positives and b in positives)]
        total = sum(math.exp(cosine(z[a], z[b]) / TAU) for b in pool)
        terms.append(np.mean([-math.log(math.exp(cosine(z[a], z[b]) / TAU) / total) for b in positives]).item())
    return math.fsum(terms) / len(terms)


def spectral(z: Any) -> float:
    both = [(a, b) for a in anchors(z) for b in anchors(z) if a != b]
    positive, negative = ([dot(z[a], z[b]) for a, b in both if (a[0] == b[0]) == same] for same in (True, False))
    return -2 * np.mean(positive).item() + np.square(negative).mean().item()


def two_towers(z: Any) -> float:
    """Equal weights on the two directions, from images to texts and back."""
    n, loss = len(z), 0.0
    for i in range(n):
        rows = sum(math.exp(cosine(z[i, 0], z[j, 1]) / TAU) for j in range(n))
        columns = sum(math.exp(cosine(z[j, 0], z[i, 1]) / TAU) for j in range(n))
        loss -= (2 * cosine(z[i, 0], z[i, 1]) / TAU - math.log(rows) - math.log(columns)) / (2 * n)
    return loss


def sigmoids(z: Any) -> float:
    n, scale, bias = len(z), GIVEN["scale"], GIVEN["bias"]
    signed = [(1 if i == j else -1) * (scale * cosine(z[i, 0], z[j, 1]) + bias) for i in range(n) for j in range(n)]
    return sum(math.log(1 + math.exp(-logit)) for logit in signed) / n


def twins(z: Any) -> float:
    a, b = (z[:, view] - z[:, view].mean(0) for view in (0, 1))
    c = (a.T @ b / len(z)) / np.sqrt(np.outer((a * a).mean(0) + 1e-5, (b * b).mean(0) + 1e-5))
    return float(sum((1 - c[i, j]) ** 2 if i == j else GIVEN["weight"] * c[i, j] ** 2 for i, j in np.ndindex(c.shape)))


def variances(z: Any) -> float:
    """Twenty-five, twenty-five and three times invariance, variance and covariance."""
    loss = 25 * np.square(z[:, 0] - z[:, 1]).mean().item()
    for view in range(2):
        cov = np.cov(z[:, view], rowvar=False)
        loss += 25 * np.maximum(0, 1 - np.sqrt(np.diag(cov) + 1e-4)).mean().item() / 2
        loss += 3 * np.square(cov - np.diag(np.diag(cov))).sum().item() / len(cov)
    return loss


FORMULAS: dict[str, Callable[[Any], float]] = {
    "info_nce": lambda z: entropies(z, range(5)),
    "supervised_contrastive": lambda z: entropies(z, LABELS.tolist()),
    "decoupled": lambda z: entropies(z, range(5), without_positives=True),
    "spectral_contrastive": spectral,
    "clip": two_towers,
    "sigmoid_pairs": sigmoids,
    "barlow_twins": twins,
    "vicreg": variances,
}


COORDINATES = ("barlow_twins", "vicreg")  # which see more than inner products
TWO_VIEWS = (*OF_DISTANCES.keys() - {"info_nce"}, *COORDINATES, "clip", "sigmoid_pairs")


def test_each_loss_of_a_batch_has_its_formula_here() -> None:
    assert {loss.__name__ for loss in WHOLE} == FORMULAS.keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_a_loss_is_the_formula_of_its_paper(name: str) -> None:
    ours = bound(LOSSES[name], **{"covariance": 3.0} if name == "vicreg" else {})
    for count in (2,) if name in TWO_VIEWS else (2, 3):
        z = 0.7 * views(5, count, 4, seed=count)
        assert ours(z).item() == pytest.approx(FORMULAS[name](z.numpy()), rel=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_two_views_are_the_losses_of_pairs(normalize: bool, epsilon: float) -> None:
    z = views(3, 6, 2, 4)
    ours = (info_nce if epsilon else decoupled)(z, temperature=TAU, normalize=normalize)
    theirs = pairs.contrastive(*z.unbind(-2), temperature=TAU, epsilon=epsilon, normalize=normalize)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


def test_classes_of_each_replica_and_what_are_none() -> None:
    z, loss = views(2, 5, 3, 4), bound(supervised_contrastive)
    both = loss(z, labels=torch.stack([LABELS, torch.arange(5)]))
    torch.testing.assert_close(both, torch.stack([loss(z[0]), info_nce(z[1], temperature=TAU)]))
    for named in (LABELS + 2**62, LABELS / 10, LABELS.to(torch.uint16)):  # as many classes as occur, of any numbers
        torch.testing.assert_close(loss(z, labels=named), loss(z))
    unlabelled = torch.stack([LABELS, torch.tensor([0, 1, -1, 0, -1])])
    assert loss(z, labels=unlabelled).isnan().tolist() == [False, True]


def test_a_constant_coordinate_correlates_with_nothing() -> None:
    for offset in (0.0, 1.1, 1e6 + 0.1):
        assert barlow_twins(torch.full((7, 2, 4), offset), weight=0.005).item() == pytest.approx(4)


def refuses(ours: Callable[[Tensor], Tensor], z: Tensor) -> bool:
    try:
        return not ours(z).isfinite()
    except ValueError as error:
        return "z must have shape (..., N, V, D)" in str(error)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_the_registry_keeps_its_promises(name: str) -> None:
    loss, z, order = LOSSES[name], 0.5 * views(5, 2, 4), torch.tensor([4, 2, 0, 1, 3])

    def ours(z: Tensor, **other: Any) -> Tensor:
        clean = {"clean": z[..., 0, :] ** 2} if name == "exact" else {}
        return bound(loss, **clean, **other)(z)

    value = ours(z)
    assert value.shape == ()
    sorted_labels = {"labels": LABELS[order]} if name == "supervised_contrastive" else {}
    assert (ours(z[order], **sorted_labels) - value).abs() < 1e-12
    together = views(3, 5, 2, 4)
    torch.testing.assert_close(ours(together), torch.stack([ours(one) for one in together]))
    assert (ours(torch.stack([z[:, 0], z[order, 1]], 1)) - value).abs() > 1e-3, "which views are of one sample"
    torch.testing.assert_close(ours(z.float()), value.float(), rtol=1e-5, atol=1e-5)
    assert refuses(ours, views(5, 3, 4)) == (name in TWO_VIEWS)
    assert refuses(ours, z[:1])
    if name == "exact":  # whose weights, of clean, have no gradient
        return
    assert torch.autograd.gradcheck(ours, (z.clone().requires_grad_(),), atol=1e-8)
    assert (ours(z.flip(1)) - value).abs() < 1e-12
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=z.dtype))
    for turned in (z @ rotation, torch.nn.functional.pad(z, (0, 1))):
        assert ((ours(turned) - value).abs() < 1e-12) == (name not in COORDINATES)
