"""Stages of training, timed one by one: encoder, step, evaluation; and the device's own rate of multiplication beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sslbook.bench._timing import mean_seconds, medians
from sslbook.training.evaluate import knn, linear_probe
from sslbook.training.networks.siamese import Networks, Siamese, build
from sslbook.training.objectives import objective
from sslbook.training.runs.steps import layout_of

REPEATS = 5
"""Timed calls of each; the first one, before them, is not counted."""


@dataclass(frozen=True)
class Speed:
    """A stage: images a second, seconds of a call (the median's), and arithmetic operations a second."""

    images: float
    seconds: float
    flops: float


def measure_forward(networks: Networks, *, size: int = 32, batch: int = 512, device: str = "cpu") -> Speed:
    """The encoder in evaluation mode on ``batch`` images of ``size`` pixels; a multiplication and an addition count as two."""
    model, (images, _) = _model(networks, device), _views(networks, size, batch, device)
    model.eval()

    @torch.no_grad()
    def call() -> None:
        with _precision(device):
            model.features(images)

    return _speed(call, batch)


def measure_step(
    networks: Networks, name: str = "info_nce", *, size: int = 32, batch: int = 128, device: str = "cpu"
) -> Speed:
    """A training step without its augmentation: two views forwards and backwards, Adam, target; images, not views, a second."""
    model, views = _model(networks, device), _views(networks, size, batch, device)
    loss_of, optimizer = objective(name), torch.optim.Adam(model.learning(), lr=1e-3, fused=True)

    def call() -> None:
        with _precision(device):
            outputs = model(*views)
        optimizer.zero_grad()
        loss_of(outputs).backward()
        optimizer.step()
        model.update_target(0.996)

    return _speed(call, batch)


def measure_evaluate(
    features: int = 512, *, train: int = 50_000, test: int = 10_000, device: str = "cpu"
) -> dict[str, float]:
    """Seconds of nearest neighbours, and of an epoch of the linear protocol, on embeddings of CIFAR-10's size.

    The embedding itself is :func:`measure_forward`'s.
    """
    generator = torch.Generator().manual_seed(0)
    known, asked = (torch.randn(count, features, generator=generator).to(device) for count in (train, test))
    labels, truth = (torch.arange(count, device=device) % 10 for count in (train, test))
    return {
        "knn": mean_seconds(lambda: knn(known, labels, asked, truth, k=min(200, train)), 1),
        "linear epoch": mean_seconds(lambda: linear_probe(known, labels, asked, truth, epochs=1), 1),
    }


def measure_rate(device: str = "cpu") -> float:
    """Operations a second of one large matrix product: bfloat16 on a GPU, float32 elsewhere."""
    gpu = torch.device(device).type == "cuda"
    size, dtype = (8192, torch.bfloat16) if gpu else (1024, torch.float32)
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    return 2 * size**3 / medians([lambda: a @ a], REPEATS)[0]


def _model(networks: Networks, device: str) -> Siamese:
    layout = layout_of(networks.width, torch.device(device))
    return build(networks, 0).to(device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


def _views(networks: Networks, size: int, batch: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(batch, networks.channels, size, size, generator=generator) for _ in range(2)]
    return [view.to(device) for view in drawn]


def _precision(device: str) -> torch.autocast:
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


def _speed(call: Callable[[], object], images: int) -> Speed:
    with FlopCounterMode(display=False) as counter:
        call()
    (seconds,) = medians([call], REPEATS)
    return Speed(images / seconds, seconds, counter.get_total_flops() / seconds)
