"""``sslbook bench training``: images a second of the stages of training, each beside what it is compared with.

augment: our batched augmentation against what torchvision does to one image after another with Pillow, on the same images.
forward, step: the encoder, and a training step, beside the device's own rate of multiplication.
capture: a step eagerly, as a CUDA graph, and compiled.
epoch: whole epochs of the real loop.  evaluate: what looking costs, as a share of the training between two looks.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sslbook import datasets
from sslbook.bench import _training_rows
from sslbook.bench._report import Row, parser, report
from sslbook.chapters.training.pillow import Choice, pillow_view
from sslbook.machine import cores, process_pool
from sslbook.training.views import augment
from sslbook.training.views.pipelines import PIPELINES, Pipeline

AUGMENT_BAR = 5.0
IMAGES, QUICK_IMAGES, VIEWS = 10_000, 1_000, 2
BATCH, SMALL_BATCH = 1_000, 128


# -- what torchvision does with Pillow --------------------------------------------------------------------------------------


def choose(height: int, width: int, pipeline: Pipeline, stream: random.Random) -> Choice:
    """torchvision's choices for one image: RandomResizedCrop, RandomHorizontalFlip, RandomApply of ColorJitter, RandomGrayscale."""
    jittered = stream.random() < pipeline.jitter_probability
    b, c, s, h = pipeline.jitter
    factors = (
        stream.uniform(max(0, 1 - b), 1 + b),
        stream.uniform(max(0, 1 - c), 1 + c),
        stream.uniform(max(0, 1 - s), 1 + s),
        stream.uniform(-h, h),
    )
    return Choice(
        choose_box(height, width, pipeline, stream),
        stream.random() < pipeline.flip,
        tuple(kind for kind in stream.sample(range(4), 4) if pipeline.jitter[kind]) if jittered else (),
        factors,
        stream.random() < pipeline.grey,
    )


def choose_box(height: int, width: int, pipeline: Pipeline, stream: random.Random) -> tuple[int, int, int, int]:
    """The sampler of torchvision's RandomResizedCrop."""
    low, high = map(math.log, pipeline.ratio)
    for _ in range(10):
        area = height * width * stream.uniform(*pipeline.scale)
        ratio = math.exp(stream.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return stream.randint(0, height - h), stream.randint(0, width - w), h, w
    w, h = width, height
    if width / height < pipeline.ratio[0]:
        h = round(width / pipeline.ratio[0])
    elif width / height > pipeline.ratio[1]:
        w = round(height * pipeline.ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


# -- the stage ----------------------------------------------------------------------------------------------------------


def pixels(count: int) -> Tensor:
    """CIFAR-10's test images where they are to be had; else noise, which costs the same."""
    if datasets.available("cifar10", "test"):
        data = datasets.load_dataset("cifar10", "test").pixels
        return data[torch.arange(count) % len(data)]
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _pillow_share(count: int, seed: int) -> tuple[float, float]:
    """Seconds by the clock and of the processor for :data:`VIEWS` views of ``count`` images, one image after another."""
    from PIL import Image

    pipeline, stream = PIPELINES["cifar10"], random.Random(seed)
    data = pixels(count).permute(0, 2, 3, 1).numpy()
    mean, std = (torch.tensor(values)[:, None, None] for values in (pipeline.mean, pipeline.std))

    def work() -> None:
        for image in data:
            for _ in range(VIEWS):
                view = pillow_view(Image.fromarray(image), choose(32, 32, pipeline, stream), pipeline.size)
                tensor = torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous().float().div_(255)
                tensor.sub_(mean).div_(std)

    return timed(work)


def _our_share(count: int, seed: int, size: int = BATCH) -> tuple[float, float]:
    """As `_pillow_share`, in batches of ``size``, the drawing of the uniform numbers included."""
    pipeline, data = PIPELINES["cifar10"], pixels(count)

    def work() -> None:
        for step, batch in enumerate(data.split(size)):
            for view in range(VIEWS):
                augment.apply(batch, pipeline, augment.draws(pipeline, len(batch), seed, step, view))

    augment.apply(data[:size], pipeline, augment.draws(pipeline, len(data[:size]), 0, 0, 0))
    return timed(work)


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock, and of this process's processor time."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - used


def augmentation(*, quick: bool, processes: int | None = None, rounds: int = 3) -> list[Row]:
    """Both ways in turn on as many processes of one thread each, the same images split among them; medians over the rounds."""
    try:
        import PIL  # noqa: F401  (Matplotlib, which the book draws with, brings it)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the stage augment compares with Pillow, which is not here: pip install pillow"
        ) from None
    processes, count = processes or cores(), QUICK_IMAGES if quick else IMAGES
    share = count // processes
    seconds: dict[Callable[[int, int], tuple[float, float]], list[tuple[float, float]]] = {
        _pillow_share: [],
        _our_share: [],
    }
    with process_pool(processes) as pool:
        for call in [pool.submit(_our_share, 10, 0) for _ in range(2 * processes)]:  # imports, before the clock runs
            call.result()
        for r in range(rounds):
            for work, found in seconds.items():
                calls = [pool.submit(work, share, r * processes + i) for i in range(processes)]
                parts = [call.result() for call in calls]
                found.append((max(wall for wall, _ in parts), sum(cpu for _, cpu in parts)))
    views = share * processes * VIEWS
    theirs, ours = ([statistics.median(column) for column in zip(*found)] for found in seconds.values())
    small, _ = _our_share(count, 0, SMALL_BATCH)
    part = f"augment: {share * processes} CIFAR-10 images x {VIEWS} views, {processes} processes, medians of {rounds} rounds"
    return [
        Row(part, "Pillow, image after image", views / theirs[0], "/s"),
        Row(part, f"ours, in batches of {BATCH}", views / ours[0], "/s"),
        Row(part, "ours is faster by the clock", theirs[0] / ours[0], "x", AUGMENT_BAR, at_least=True),
        Row(part, "and in processor time", theirs[1] / ours[1], "x"),
        Row(part, "processor time an image, Pillow", theirs[1] / views * 1e6, "us"),
        Row(part, "processor time an image, ours", ours[1] / views * 1e6, "us"),
        Row(
            part,
            f"ours in batches of {SMALL_BATCH}, one process, threads: {torch.get_num_threads()}",
            count * VIEWS / small,
            "/s",
        ),
    ]


STAGES: dict[str, Callable[..., list[Row]]] = {
    "augment": augmentation,
    "forward": _training_rows.forward,
    "step": _training_rows.step,
    "capture": _training_rows.capture,
    "epoch": _training_rows.epoch,
    "evaluate": _training_rows.evaluate,
}
"""What can be measured, by name: functions of ``quick``, the first of ``processes`` too."""


def main(arguments: Sequence[str] | None = None) -> int:
    """``sslbook bench training``: print the table; exit status 1 if a bar is missed."""
    asked = parser("training", __doc__, quick="fewer images")
    asked.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} (default: all)")
    options = asked.parse_args(arguments)
    for name in options.stages:
        if name not in STAGES:
            asked.error(f"no stage {name!r}; there are {', '.join(STAGES)}")
    stages: dict[str, Callable[..., list[Row]]] = {
        **STAGES,
        "augment": partial(augmentation, processes=options.processes),
    }
    rows = [row for name in options.stages or stages for row in stages[name](quick=options.quick)]
    return report(rows, as_json=options.json)
