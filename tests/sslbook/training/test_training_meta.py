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
from sslbook.losses import batch, pairs
from sslbook.networks.siamese import Networks
from sslbook.training.augment import PIPELINES
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.run.settings import CHOICES, Settings
from sslbook.training.run.step import Batches, Step, make_optimizer

META = torch.device("meta")
SMALL = Networks(width=8, projector_hidden=16, projector_out=8, predictor_hidden=8)
BYOL = replace(SMALL, predictor=2, target="ema")
GREY = replace(SMALL, channels=1)
HALVES = replace(BYOL, projector_norm=("detach", "normal"), predictor_norm=("backward", "normal"), unbiased=True)
BASE = Settings(networks=SMALL, batch=32, precision="float32")
PRINTED = {"weights": "clean", "over": "sum", "beta": 0.1}
STEPS: dict[str, Settings] = {
    **{name: replace(BASE, objective=name, networks=BYOL if name == "byol" else SMALL) for name in OBJECTIVES},
    "exact, printed": replace(BASE, objective="exact", loss_kwargs=PRINTED),
    "beta, printed": replace(BASE, objective="beta", loss_kwargs={"beta": 0.2, "form": "printed"}),
    "byol, all": replace(BASE, objective="byol", networks=HALVES, symmetric=True, reset=1, noise=0.1, shuffle=True),
    "byol, both sides learn": replace(BASE, objective="byol", networks=BYOL, loss_kwargs={"stop_gradient": False}),
    **{optimizer: replace(BASE, optimizer=optimizer) for optimizer in CHOICES["optimizer"]},
    **{f"views of {name}": replace(BASE, pipeline=name, networks=GREY if name in ("digits", "mnist") else SMALL)
       for name in PIPELINES},
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_asks_the_device_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batch, pairs):
        # which refuses tensors without numbers
        monkeypatch.setattr(module, "require_tensor", lambda kind, **tensors: None)
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **named: contextlib.nullcontext())  # of no use there
    settings = STEPS[name]
    size = PIPELINES[settings.pipeline].size
    pixels = torch.zeros(1, settings.networks.channels, size, size, dtype=torch.uint8).expand(96, -1, -1, -1)
    data = Dataset(pixels, torch.arange(96) % 10, "nothing", 10)
    step, batches = Step(settings, data, META), Batches(settings, 96)
    optimizer = make_optimizer(settings, step.model.learning())
    for number in (0, 1):
        step(*batches.at(number))
        optimizer.step()
        step.model.update_target(0.9)
    for weight in step.model.learning():
        assert weight.device == weight.grad.device == META
