"""What the tests of the losses share: random pairs and embeddings, and losses with their keywords bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

LABELS = torch.tensor([2, 0, 2, 1, 0])
GIVEN: dict[str, Any] = {"temperature": 0.3, "scale": 4.0, "bias": -2.0, "weight": 0.1, "labels": LABELS}
"""What a keyword without a default is given."""


def bound(value: Callable[..., Tensor], **other: Any) -> Callable[..., Tensor]:
    """A loss with all keywords that it needs."""
    function = value.func if isinstance(value, partial) else value
    loss = value.keywords["loss"] if isinstance(value, partial) else None
    needed = {"temperature"} if loss in ("soft_triplet", "exact") else set(inspect.signature(function).parameters)
    return partial(value, **{name: given for name, given in GIVEN.items() if name in needed} | other)


def distances(*shape: int, h: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """``r_pos (*shape)`` and ``r_neg (*shape, h)``."""
    generator = torch.Generator().manual_seed(seed)
    r_pos = torch.rand(shape, generator=generator, dtype=torch.float64)
    return r_pos, torch.rand((*shape, h), generator=generator, dtype=torch.float64)


def views(*shape: int, seed: int = 0) -> Tensor:
    """``(..., N, V, D)``: views of a sample are alike."""
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randn(*shape[:-2], 1, shape[-1], generator=generator, dtype=torch.float64)
    return sample + 0.7 * torch.randn(*shape, generator=generator, dtype=torch.float64)
