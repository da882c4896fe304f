"""Networks of a caller's own, of which every process says the same; ``python own_networks.py`` prints what."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbook.training import pretrain as module


class Begun(Exception):
    """A run that would begin: its settings and its network."""


def begun(images: Any, backbone: Any, **options: Any) -> tuple[dict[str, Any], nn.Module]:
    """What a run would be recognised by, and its network as it is before the first step."""

    def stop(run: Any, folder: Any, **kept: Any) -> None:
        raise Begun(dict(run.own), kept["own"].encoder)

    before, module.train = module.train, stop
    try:
        module.pretrain(images, backbone, **options)
    except Begun as seen:
        return seen.args[0], seen.args[1]
    finally:
        module.train = before
    raise AssertionError


class Shown(nn.Module):
    """Shows something of the caller's in its text."""

    def __init__(self, thing: object) -> None:
        super().__init__()
        self.thing = thing

    def extra_repr(self) -> str:
        return f"thing={self.thing}"

    def forward(self, x: Tensor) -> Tensor:
        return x


def eager(*more: nn.Module, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride), nn.BatchNorm2d(4), *more, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(8))


def drawn(numbers: Callable[[], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        net[1].weight.data[0, 0] = float(numbers())
        return net

    return make


def frozen() -> nn.Module:
    net = eager()
    net[0].requires_grad_(False)
    return net


SEEDED: dict[str, Callable[[], nn.Module]] = {
    "eager": eager,
    "lazy": lazy,
    "dropout": lambda: eager(nn.Dropout2d(0.5)),
    "NumPy": drawn(lambda: np.random.standard_normal()),  # noqa: NPY002
    "Python": drawn(random.random),
    "frozen": frozen,
}
SHOWN: dict[str, Callable[[], object]] = {
    "a function": lambda: torch.relu,
    "another": lambda: torch.tanh,
    "a lambda": lambda: lambda x: x,
    "an object": lambda: object(),
    "a method": lambda: nn.ReLU().forward,
    "a generator": lambda: torch.Generator(),
    "a set": lambda: {"relu", "gelu", "tanh", "silu"},
    "a class": lambda: nn.ReLU,
}
DIFFERENT: dict[str, Callable[[], nn.Module]] = {
    **{name: (lambda thing=thing: eager(Shown(thing()))) for name, thing in SHOWN.items()},
    "eager": eager,
    "stride": lambda: eager(stride=2),
    "dropout": lambda: eager(nn.Dropout2d(0.5)),
    "more dropout": lambda: eager(nn.Dropout2d(0.6)),
    "frozen": frozen,
    "lazy": lazy,
}


def digests() -> dict[str, str]:
    images = torch.zeros(4, 1, 8, 8)
    return {name: begun(images, make)[0]["backbone"] for name, make in DIFFERENT.items()}


if __name__ == "__main__":
    json.dump(digests(), sys.stdout)
