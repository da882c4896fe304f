"""Stages of training as rows: encoder, step, whole epochs with their augmentation, and what looking costs beside them."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from sslbook.bench._report import Row
from sslbook.bench._timing import mean_seconds
from sslbook.bench._training_stages import Speed, measure_evaluate, measure_forward, measure_rate, measure_step
from sslbook.chapters.training.presets import SMALL, simclr_settings
from sslbook.datasets import Dataset
from sslbook.machine import keep_freed_memory
from sslbook.training.evaluate import epochs_between, report
from sslbook.training.networks.siamese import Networks
from sslbook.training.runs.settings import Settings
from sslbook.training.runs.trainer import Trainer

IMAGES, TESTS = 50_000, 10_000
SMALL_IMAGES, SMALL_EPOCHS, SMALL_WIDTH = 5_000, 10, 16
EPOCH_BARS = {512: 2.0, 128: 3.0}
"""Seconds of an epoch of 50,000 images by the size of its batches, on one H200."""
CAPTURES = ("none", "graph", "compile", "both")
MINUTES_BAR, SHARE_BAR = 4.0, 0.05


def device() -> str:
    """Where it is measured."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def forward(*, quick: bool) -> list[Row]:
    """The encoder alone, and what share of the device's own rate of multiplication it comes to."""
    place = device()
    networks, batch = (Networks(), 512) if place == "cuda" else (Networks(width=SMALL_WIDTH), 128 if quick else 512)
    speed = measure_forward(networks, batch=batch, device=place)
    return _rows(f"forward: ResNet-18 of width {networks.width}, {batch} images of 32 x 32, {place}", speed, place)


def step(*, quick: bool) -> list[Row]:
    """A step without its augmentation: two views forwards and backwards, and the optimiser."""
    del quick
    place = device()
    networks, batch = (Networks(), 512) if place == "cuda" else (Networks(width=SMALL_WIDTH), 128)
    speed = measure_step(networks, batch=batch, device=place)
    return _rows(f"step, eager: width {networks.width}, {batch} images x 2 views, {place}", speed, place)


def _rows(part: str, speed: Speed, place: str) -> list[Row]:
    kind = "bfloat16" if place == "cuda" else "float32"
    return [
        Row(part, "images", speed.images, "/s"),
        Row(part, "a call", 1e3 * speed.seconds, "ms"),
        Row(part, "arithmetic", speed.flops / 1e12, "TF/s"),
        Row(part, f"share of the measured {kind} rate", 100 * speed.flops / measure_rate(place), "%"),
    ]


def epoch(*, quick: bool) -> list[Row]:
    """Epochs as a run has them, on noise: the real loop with augmentation, step and optimiser."""
    if device() == "cuda":
        part = f"epoch: {IMAGES} CIFAR-sized images x 2 views, ResNet-18, augmentation and all, one GPU"
        rows = []
        for batch, bar in EPOCH_BARS.items():
            run = _trainer(replace(simclr_settings("cifar10"), batch=batch, subset=None), IMAGES)
            speed = batch / mean_seconds(run.advance, run.per_epoch if not quick else 20, warm=20)
            one = measure_step(run.settings.networks, batch=batch, device="cuda")
            arithmetic = one.flops * one.seconds / batch * speed  # the step's operations, at the speed of the epoch
            rows.append(Row(part, f"batches of {batch}", IMAGES / speed, "s", bar))
            rows.append(Row(part, f"images a second, batches of {batch}", speed, "/s"))
            share = 100 * arithmetic / measure_rate("cuda")
            rows.append(Row(part, f"share of the measured bfloat16 rate, batches of {batch}", share, "%"))
        return rows
    keep_freed_memory()
    part = f"epoch: {SMALL_IMAGES} CIFAR-sized images x 2 views, width {SMALL_WIDTH}, {torch.get_num_threads()} threads"
    run = _trainer(small(), SMALL_IMAGES)
    speed = run.settings.batch / mean_seconds(run.advance, 4 if quick else 20, warm=2)
    seconds = SMALL_IMAGES / speed  # of as many images as there are, also where a last batch is left out
    looks = 2 * _look(run)
    return [
        Row(part, "an epoch", seconds, "s"),
        Row(part, "images", speed, "/s"),
        Row(part, f"{SMALL_EPOCHS} epochs and two looks", (SMALL_EPOCHS * seconds + looks) / 60, "min", MINUTES_BAR),
    ]


def capture(*, quick: bool) -> list[Row]:
    """The same steps eagerly, as a CUDA graph and compiled, each beside the first; a processor has no graph."""
    gpu = device() == "cuda"
    settings = replace(simclr_settings("cifar10"), subset=None) if gpu else small()
    kinds = CAPTURES if gpu else tuple(kind for kind in CAPTURES if kind in ("none", "compile"))
    count = (20 if quick else 100) if gpu else 3
    part = f"capture: {count} steps of {settings.batch} images x 2 views, width {settings.networks.width}, {device()}"
    seconds = {}
    for kind in kinds:
        try:
            seconds[kind] = mean_seconds(_trainer(replace(settings, capture=kind), SMALL_IMAGES).advance, count, warm=5)
        except Exception as error:  # a compiler that is missing or fails takes the other kinds' numbers from nobody
            print(f"capture={kind} does not run here: {type(error).__name__}: {error}", file=sys.stderr)
    rows = [Row(part, f"{kind}: a step", 1e3 * value, "ms") for kind, value in seconds.items()]
    others = [kind for kind in seconds if kind != "none"]
    return rows + [Row(part, f"{kind} against none", seconds["none"] / seconds[kind], "x") for kind in others]


def evaluate(*, quick: bool) -> list[Row]:
    """What looking costs at its default interval, as a share of the training between two looks."""
    place = device()
    settings, images = (simclr_settings("cifar10"), IMAGES) if place == "cuda" else (small(), SMALL_IMAGES)
    run = _trainer(settings, images)
    seconds = mean_seconds(run.advance, 4 if quick else 20, warm=2) * run.per_epoch
    looking, between = _look(run), epochs_between(images, images + TESTS)
    part = f"evaluate: {images} and {TESTS} images, {place}"
    parts = measure_evaluate(8 * settings.networks.width, train=images, test=TESTS, device=place)
    return [
        Row(part, "a look: k-NN and rank", looking, "s"),
        Row(part, "of it, k-NN on embeddings", parts["knn"], "s"),
        Row(part, "an epoch of the linear protocol", parts["linear epoch"], "s"),
        Row(part, f"share of {between} epochs of training", 100 * looking / (between * seconds), "%", 100 * SHARE_BAR),
    ]


def small() -> Settings:
    """The run that two cores do in minutes."""
    return replace(SMALL, subset=None, networks=Networks(width=SMALL_WIDTH), epochs=SMALL_EPOCHS)


def _trainer(settings: Settings, images: int) -> Trainer:
    """A run on noise, which costs what photographs cost."""
    generator = torch.Generator().manual_seed(0)

    def noise(count: int) -> Dataset:
        pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
        return Dataset(pixels, torch.arange(count) % 10, "noise", 10)

    torch.backends.cudnn.benchmark = True  # as in a run
    folder = Path(tempfile.gettempdir()) / "sslbook-bench"  # nothing is written: it never comes to a checkpoint
    return Trainer(settings, folder, (noise(images), noise(TESTS)), torch.device(device()), quiet=True)


def _look(run: Trainer) -> float:
    assert run.shown is not None
    model, shown = run.state.model, run.shown
    return mean_seconds(lambda: report(model, *shown, run.step.pipeline, run.device), 1, warm=0)
