"""Without a GPU: on PyTorch's device ``meta`` a step of each objective, optimizer and pipeline reads nothing and mixes no devices.

Its tensors have shapes, types and gradients, and no numbers: PyTorch refuses to read one, to take a shape from what it holds,
and to add what is the host's.  That nothing waits for a copy, and what is computed, only a GPU shows.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Networks
from sslbook.training.augment import PIPELINES
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.run.settings import CHOICES, Settings
from sslbook.training.run.step import Batches, Step, make_optimizer

META = torch.device("meta")
SMALL = Networks(width=8, projector_hidden=16, projector_out=8, predictor_hidden=8)
HALVES = replace(SMALL, predictor=2, target="ema", projector_norm=("detach", "normal"), unbiased=True)
BASE = Settings(networks=SMALL, batch=32, precision="float32")
STEPS: dict[str, Settings] = {
    **{name: replace(BASE, objective=name, networks=HALVES if name == "byol" else SMALL) for name in OBJECTIVES},
    "exact, printed": replace(BASE, objective="exact", loss_kwargs={"weights": "clean", "over": "sum", "beta": 0.1}),
    **{optimizer: replace(BASE, optimizer=optimizer) for optimizer in CHOICES["optimizer"]},
    **{f"views of {name}": replace(BASE, pipeline=name) for name in PIPELINES},
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_asks_the_device_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **named: contextlib.nullcontext())  # of no use there
    channels = 1 if STEPS[name].pipeline in ("digits", "mnist") else 3
    settings = replace(STEPS[name], networks=replace(STEPS[name].networks, channels=channels))
    size = PIPELINES[settings.pipeline].size
    pixels = torch.zeros(1, channels, size, size, dtype=torch.uint8).expand(96, -1, -1, -1)
    data = Dataset(pixels, torch.arange(96) % 10, "nothing", 10)
    step, batches = Step(settings, data, META), Batches(settings, 96)
    optimizer = make_optimizer(settings, step.model.learning())
    for number in (0, 1):
        step(*batches.at(number))
        optimizer.step()
        step.model.update_target(0.9)
    for weight in step.model.learning():
        assert weight.device == weight.grad.device == META
