"""What every loss of a batch promises: one that is added to the registry is tested here without a line of its own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sslbook.losses.batch import BATCH_LOSSES, BatchLoss

N, D = 5, 4
GIVEN: dict[str, Any] = {
    "temperature": 0.3,
    "scale": 4.0,
    "bias": -2.0,
    "weight": 0.1,
    "labels": torch.tensor([2, 0, 2, 1, 0]),
}
"""What a parameter without a default is given."""

names = pytest.mark.parametrize("name", BATCH_LOSSES)


def bound(value: Callable[..., Tensor], **other: Any) -> Callable[[Tensor], Tensor]:
    """The loss as a function of embeddings."""
    asked = list(inspect.signature(value).parameters.items())[1:]
    missing = {name for name, part in asked if part.default is inspect.Parameter.empty} - set(GIVEN)
    assert not missing, f"GIVEN says nothing about {', '.join(missing)}"
    return partial(value, **{name: {**GIVEN, **other}[name] for name, _ in asked if name in {**GIVEN, **other}})


def views(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randn(*shape[:-2], 1, shape[-1], generator=generator, dtype=torch.float64)
    return 0.5 * (sample + 0.7 * torch.randn(*shape, generator=generator, dtype=torch.float64))


def rotation(size: int) -> Tensor:
    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0]


def second_derivative(ours: Callable[[Tensor], Tensor], z: Tensor, direction: Tensor) -> Tensor:
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(leaf), leaf, create_graph=True)
    slope = (gradient * direction).sum() + 0 * leaf.sum()  # a constant has no second derivative, and PyTorch no zero
    (product,) = torch.autograd.grad(slope, leaf)
    return product


def flaws(loss: BatchLoss) -> set[str]:
    """Which promises a loss breaks."""
    z, ours = views(N, 2, D), bound(loss.value)
    value = ours(z)
    if value.shape != ():
        return {"one number"}
    leaf = z.clone().requires_grad_()
    order = torch.tensor([4, 2, 0, 1, 3])
    sorted_labels = bound(loss.value, labels=GIVEN["labels"][order])
    padded = torch.cat([z, torch.zeros(N, 2, 1, dtype=z.dtype)], -1)
    blind = [(ours(z @ rotation(D)) - value).abs() < 1e-12, (ours(padded) - value).abs() < 1e-12]
    together = views(3, N, 2, D)
    copies = ours(together)
    single = ours(z.float())
    three = views(N, 3, D)
    kept = {
        "gradient": torch.autograd.gradcheck(ours, (leaf,), raise_exception=False, atol=1e-8),
        "second derivative": torch.autograd.gradgradcheck(ours, (leaf,), raise_exception=False, atol=1e-7),
        "inner products": all(blind) if loss.inner_products else not any(blind),
        "a column of zeros": not loss.inner_products or _mirrors(ours, padded),
        "order of samples": bool((sorted_labels(z[order]) - value).abs() < 1e-12),
        "order of views": bool((ours(z.flip(1)) - value).abs() < 1e-12),
        "views apart": bool((ours(torch.stack([z[:, 0], z[order, 1]], 1)) - value).abs() > 1e-3),
        "replicas": copies.shape == (3,) and torch.allclose(copies, torch.stack([ours(one) for one in together])),
        "precision": single.dtype == torch.float32 and bool((single - value).abs() < 1e-5 * value.abs().clamp_min(1)),
        "number of views": refuses(ours, three) == loss.two_views,
    }
    return {name for name, holds in kept.items() if not holds}


def _mirrors(ours: Callable[[Tensor], Tensor], padded: Tensor) -> bool:
    """Of a loss of inner products, -2 Gamma is minus the second derivative in such a column; times ``z``, it is the step."""
    leaf = padded.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(leaf), leaf)
    steps = []
    for column in padded.unbind(-1)[:-1]:
        direction = torch.zeros_like(padded)
        direction[..., -1] = column
        steps.append(second_derivative(ours, padded, direction)[..., -1])
    return torch.allclose(torch.stack(steps, -1), gradient[..., :-1], rtol=1e-10, atol=1e-12)


def refuses(ours: Callable[[Tensor], Tensor], z: Tensor) -> bool:
    try:
        return not ours(z).isfinite()
    except ValueError as error:
        return "z must hold two views" in str(error)


@names
def test_a_loss_keeps_its_promises(name: str) -> None:
    assert flaws(BATCH_LOSSES[name]) == set()


@names
def test_bad_input_is_refused(name: str) -> None:
    loss, z = BATCH_LOSSES[name], views(N, 2, D)
    for bad, error, sentence in [
        (z.long(), TypeError, "z must have a floating dtype"),
        (z[:, 0], ValueError, r"z must have shape \(\.\.\., N, V, D\) .*got \(5, 4\)"),
        (z[:1], ValueError, r"with N >= 2 samples .*got \(1, 2, 4\)"),
        (z[:, :1], ValueError, r"and V >= 2 views, got \(5, 1, 4\)"),
    ]:
        with pytest.raises(error, match=sentence):
            bound(loss.value)(bad)
    for key, part in inspect.signature(loss.value).parameters.items():
        if isinstance(GIVEN.get(key, part.default), float):
            with pytest.raises(ValueError, match=f"{key} must be"):
                bound(loss.value, **{key: math.inf})(z)
