r"""Learning rates as pure functions of the step: what a run has done doesn't matter, so a resumed one has nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

STEADY = 10
"""Epochs before the released schedule begins to fall."""


@dataclass(frozen=True)
class Length:
    """How long a run is: steps in an epoch, and epochs; the first ``warmup`` of them grow linearly where the schedule asks."""

    steps: int
    epochs: int
    warmup: int = 0


def constant(step: int, length: Length) -> float:
    """1, as the released BYOL has it."""
    return 1.0


def cosine(step: int, length: Length) -> float:
    r"""SimCLR's: grows as :math:`(s+1)/w` over the :math:`w` steps of the warm-up, then
    :math:`\frac12(1 + \cos\pi\frac{s - w}{S - w})` of the run's :math:`S` steps.
    """
    warm = length.warmup * length.steps
    if step < warm:
        return (step + 1) / warm
    total = length.epochs * length.steps
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def released(step: int, length: Length) -> float:
    r"""The released SimCLR's: :math:`\frac12(1 + \cos\pi t/T)` with :math:`t` epochs after the first ten plus one.

    Its half period :math:`T` is the number of *batches in an epoch*, though it moves once an epoch: on CIFAR-10 with batches of
    128, :math:`T = 390`, the rate reaches 0 in epoch 401 and rises after it; on STL-10 it never gets there.  It does not depend
    on the length of the run, so a run of 100 epochs is the beginning of one of 500.
    """
    return 0.5 * (1 + math.cos(math.pi * max(0, step // length.steps - STEADY) / length.steps))


SCHEDULES: dict[str, Callable[[int, Length], float]] = {"constant": constant, "cosine": cosine, "released": released}
"""The factor of the learning rate in step ``s`` (from 0), by name."""


def needs_length(schedule: str) -> bool:
    """Whether the schedule depends on the number of epochs; a run under one that doesn't can be prolonged."""
    return schedule == "cosine"
