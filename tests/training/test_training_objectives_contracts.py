"""What every objective promises: one that is added to the registry is tested here without a line of its own.

Two processes against one are in ``test_training_distributed.py``, for every objective too.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sslbook.networks.siamese import Outputs
from sslbook.training.objectives import OBJECTIVES, Objective, objective

N, D = 9, 6
STOPPED: dict[str, dict[str, Any]] = {"exact": {"weights": "clean"}}
"""Settings with which an objective's gradient is that of its value: by default, exact's weights are constants."""
SEES_LENGTHS = ("barlow_twins", "vicreg")
"""Objectives of the outputs' coordinates as they are, which alone aren't blind to a common factor."""

names = pytest.mark.parametrize("name", OBJECTIVES)


def embeddings(seed: int = 0) -> Outputs:
    drawn = torch.randn(8, N, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn[1] = drawn[0] + 0.7 * drawn[1]  # two views of an image are alike
    return Outputs(*drawn, labels=torch.arange(N) % 4)


def changed(out: Outputs, change: Any) -> Outputs:
    return Outputs(*(change(part) for part in out[:8]), labels=out.labels)


def flaws(ours: Objective, smooth: Objective) -> set[str]:
    """Which promises an objective breaks; ``smooth`` is the one whose gradient is held against finite differences."""
    out = embeddings()
    value = ours(out)
    if value.shape != ():
        return {"one number"}
    leaves = [part.clone().requires_grad_() for part in out[:4]]  # targets may be constants

    def of_views(*views: Tensor) -> Tensor:
        return smooth(Outputs(*views, *out[4:]))

    single = changed(out, Tensor.float)
    with torch.autocast("cpu", torch.bfloat16):
        inside = ours(single)
    half = ours(changed(out, Tensor.bfloat16))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    kept = {
        "gradient": torch.autograd.gradcheck(of_views, leaves, raise_exception=False, atol=1e-8),
        "order": bool((ours(Outputs(*(part[order] for part in out if part is not None))) - value).abs() < 1e-12),
        "length": bool((ours(changed(out, lambda part: 3 * part)) - value).abs() < 1e-12),
        "views apart": bool((ours(out._replace(z2=out.z2.flip(0), p2=out.p2.flip(0))) - value).abs() > 1e-3),
        "autocast": bool((inside - value).abs() < 1e-6),
        "bfloat16": half.dtype == torch.float32 and bool((half - value).abs() < 2e-2 * max(1.0, float(value.abs()))),
    }
    return {name for name, holds in kept.items() if not holds}


@names
def test_an_objective_keeps_its_promises(name: str) -> None:
    found = flaws(objective(name), objective(name, **STOPPED.get(name, {})))
    assert found == ({"length"} if name in SEES_LENGTHS else set())


@names
def test_settings_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} takes .*got 'nonsense'"):
        objective(name, nonsense=1)
    for setting, parameter in inspect.signature(OBJECTIVES[name]).parameters.items():
        bad = {bool: [1, "yes"], float: [math.nan, math.inf, "high", None, True], str: ["nonsense", 1]}
        for value in bad[type(parameter.default)]:
            with pytest.raises((TypeError, ValueError), match=f"{setting} must be"):
                objective(name, **{setting: value})
