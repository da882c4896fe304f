"""A small network, and pictures for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6), nn.ReLU(), nn.Linear(6, 3)
    ).double()  # fmt: skip


def pictures(count: int = 12) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 1, 8, 8), generator=draw, dtype=torch.uint8)
