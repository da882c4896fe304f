"""``sslbook bench training``: images a second of the stages of training, each beside what it is compared with.

augment: our batches of views against one image after another with Pillow, the same views.
step: a training step, beside the device's own rate of multiplication.
epoch: steps of the real loop, with augmentation; and what looking costs, as a share of the training between two looks.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import Row, seconds
from sslbook._check import InputError
from sslbook._machine import keep_freed_memory
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import build
from sslbook.training import augment, evaluate
from sslbook.training.augment import PIPELINES
from sslbook.training.objectives import objective
from sslbook.training.papers import SMALL, presets
from sslbook.training.run.step import Batches, Step, layout_of, make_optimizer
from sslchapters.training.live import pillow_views

CUDA = torch.cuda.is_available()
PLACE = torch.device("cuda" if CUDA else "cpu")
IMAGES, TESTS = (50_000, 10_000) if CUDA else (5_000, 10_000)
SETTINGS = presets()["cifar10-simclr-nce"].settings if CUDA else replace(SMALL, subset=None)
"""The run that is timed on this device: the papers' on a GPU, what two cores do in minutes elsewhere."""
EPOCH_BARS: dict[int, float | None] = {512: 2.0, 128: 3.0} if CUDA else {SETTINGS.batch: None}
"""Seconds of an epoch of 50,000 images by the size of its batches, on one H200."""
WARM = 20 if CUDA else 2
"""Steps before those that are timed: a graph is recorded, a compiler at work."""


def run(options: argparse.Namespace) -> list[Row]:
    """The stages that are named, or all; each call is measured for three seconds at least, for a moment with ``--quick``."""
    if wrong := [name for name in options.stages if name not in STAGES]:
        raise InputError(f"no stage {wrong[0]!r}; there are {', '.join(STAGES)}")
    least = 0.2 if options.quick else 3.0
    return [row for name in options.stages or STAGES for row in STAGES[name](least)]


def noise(count: int) -> Dataset:
    """Images that cost what photographs do."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=draw)
    return Dataset(pixels, torch.arange(count) % 10, "noise", 10)


def augmentation(least: float) -> list[Row]:
    """Seconds of a view on one thread, those of drawing its numbers included: by Pillow, then by ours."""
    pipeline, threads = PIPELINES["cifar10"], torch.get_num_threads()
    part = "augment: images of 32 x 32 to views, one thread"
    mean, std = (torch.tensor(values)[:, None, None] for values in (pipeline.mean, pipeline.std))
    few, many = noise(100).pixels, noise(1000).pixels
    torch.set_num_threads(1)
    ours = seconds(lambda: augment.apply(many, pipeline, augment.draws(1000, 0, 0, 0)), least) / 1000
    pillow = partial(pillow_views, few, pipeline)
    theirs = seconds(lambda: pillow(augment.draws(100, 0, 0, 0)).div_(255).sub_(mean).div_(std), least) / 100
    torch.set_num_threads(threads)
    return [
        Row(part, "Pillow, image after image", 1 / theirs, "/s"),
        Row(part, "ours, in batches of 1000", 1 / ours, "/s"),
        Row(part, "our time by the clock, share of Pillow's", 100 * ours / theirs, "%", 20.0),
    ]


def step(least: float) -> list[Row]:
    """A step without its augmentation, and what share of the device's own rate it multiplies at; a multiply-add is two."""
    networks, batch = SETTINGS.networks, 512 if CUDA else 128
    model = build(networks, 0).to(PLACE, memory_format=layout_of(networks.width, PLACE)).train()  # type: ignore[call-overload]
    views = [torch.randn(batch, 3, 32, 32).to(PLACE) for _ in range(2)]
    loss_of, optimizer = objective("info_nce"), torch.optim.Adam(model.learning(), lr=1e-3, fused=True)

    def call() -> None:
        with torch.autocast(PLACE.type, torch.bfloat16, enabled=CUDA):
            outputs = model(*views)
        optimizer.zero_grad()
        loss_of(outputs).backward()
        optimizer.step()

    with FlopCounterMode(display=False) as counter:
        call()
    taken, size = seconds(call, least), 8192 if CUDA else 1024
    a = torch.randn(size, size).to(PLACE, torch.bfloat16 if CUDA else torch.float32)
    rate, device_rate = counter.get_total_flops() / taken, 2 * size**3 / seconds(lambda: a @ a, 0.2)
    part = f"step: ResNet-18 of width {networks.width}, {batch} images x 2 views, {PLACE}"
    return [
        Row(part, "images", batch / taken, "/s"),
        Row(part, "arithmetic", rate / 1e12, "TF/s"),
        Row(part, "share of the rate of one large product", 100 * rate / device_rate, "%"),
    ]


def epoch(least: float) -> list[Row]:
    """Epochs of the real loop on noise by the seconds of a step, and a look (k-NN and rank) at its default interval."""
    part, rows = f"epoch: {IMAGES} images x 2 views, width {SETTINGS.networks.width}, {PLACE}", []
    torch.backends.cudnn.benchmark = True  # as in a run
    keep_freed_memory()
    for batch, bar in EPOCH_BARS.items():
        settings, numbers = replace(SETTINGS, batch=batch), itertools.count()
        loss, batches = Step(settings, noise(IMAGES), PLACE), Batches(settings, IMAGES)
        optimizer = make_optimizer(settings, loss.model.learning())

        def turn(loss: Step = loss, batches: Batches = batches, optimizer: Any = optimizer, at: Any = numbers) -> None:
            loss(*batches.at(next(at)))
            optimizer.step()

        for _ in range(WARM):
            turn()
        taken = seconds(turn, least) * batches.per_epoch
        rows.append(Row(part, f"batches of {batch}", taken, "s", bar))
    data, between = (noise(IMAGES), noise(TESTS)), evaluate.epochs_between(IMAGES, IMAGES + TESTS)
    look = seconds(lambda: evaluate.report(loss.model.encoder, *data, PIPELINES[SETTINGS.pipeline], PLACE), 0.0)
    rows.append(Row(part, f"a look, share of {between} epochs", 100 * look / (between * taken), "%", 5.0))
    if not CUDA:
        rows.append(Row(part, "ten epochs and two looks", (10 * taken + 2 * look) / 60, "min", 4.0))
    return rows


STAGES = {"augment": augmentation, "step": step, "epoch": epoch}
"""What can be measured, by name: functions of the least seconds that each call is measured for."""
