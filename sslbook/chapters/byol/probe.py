"""What a representation is worth: a linear probe, and how alike the outputs of different images are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

RIDGE = 1e-3
"""Penalty of the probe, beside standardised features, whose mean square is 1."""


def linear_probe(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> Tensor:
    """Accuracy ``(R,)`` on the test images of the best linear map, by least squares, from features to classes.

    train ``(R, N, F)``, test ``(R, M, F)``: standardised by the training features' means and deviations, as in the released
    code; targets are centred indicators of the classes.  In float64, with a penalty of :data:`RIDGE`, and in closed form:
    there is nothing to tune, and nothing is chosen on the test images.
    """
    centre, spread = train.double().mean(1, keepdim=True), train.double().std(1, keepdim=True)
    x, y = ((part.double() - centre) / spread.clamp(min=1e-12) for part in (train, test))
    wanted = F.one_hot(labels).double()
    shares = wanted.mean(0)
    gram = x.mT @ x / x.shape[1] + RIDGE * torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
    scores = y @ torch.linalg.solve(gram, x.mT @ (wanted - shares) / x.shape[1]) + shares
    right: Tensor = scores.argmax(2) == truth
    return right.double().mean(1)


def few_labels(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor, count: int, draws: int = 20) -> Tensor:
    """Accuracy ``(R,)`` on the test images with ``count`` labels a class: the nearest of the classes' means.

    Features are standardised by all training images, for which no label is needed; the mean over ``draws`` choices of the
    labelled images, the same for every replica.  A probe that every representation passes tells none apart; this one is harder.
    """
    centre, spread = train.double().mean(1, keepdim=True), train.double().std(1, keepdim=True)
    x, y = ((part.double() - centre) / spread.clamp(min=1e-12) for part in (train, test))
    generator, members = (
        torch.Generator().manual_seed(0),
        [(labels.cpu() == c).nonzero()[:, 0] for c in labels.unique()],
    )
    right = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for _ in range(draws):
        chosen = [m[torch.randperm(len(m), generator=generator)[:count]].to(x.device) for m in members]
        means = torch.stack([x[:, some].mean(1) for some in chosen], 1)
        scores = y @ means.mT - means.square().sum(2)[:, None] / 2
        right += (scores.argmax(2) == truth).double().mean(1)
    return right / draws


def likeness(outputs: Tensor) -> Tensor:
    """Mean cosine ``(R,)`` between the outputs of two different images: 1 when all images have the same direction."""
    units = F.normalize(outputs.double(), dim=2)
    count = units.shape[1]
    return (units.sum(1).square().sum(1) - count) / (count * (count - 1))
