"""Networks of a caller's own, whose first weights are drawn in all the ways there are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

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
