"""``sslbook bench training``: images a second of the stages of training, each beside what it is compared with.

augment: our batches of views against one image after another with Pillow, the same views.
forward, step: the encoder, and a training step, beside the device's own rate of multiplication.
capture: a step eagerly, as a CUDA graph, and compiled.
epoch: steps of the real loop, with augmentation.  evaluate: what looking costs, as a share of the training between two looks.
lightly: the same steps beside those of the package lightly, with torchvision's transforms, where both are installed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import Row, parser, report, seconds
from sslbook._machine import cores, keep_freed_memory
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Networks, ResNet18, build
from sslbook.training import augment
from sslbook.training import evaluate as evaluation
from sslbook.training.augment import PIPELINES
from sslbook.training.objectives import objective
from sslbook.training.presets.papers import SMALL, simclr_settings
from sslbook.training.run.data import make_batches
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import Step, layout_of, make_optimizer, make_step
from sslchapters.sweep import process_pool
from sslchapters.training.live import pillow_views

AUGMENT_BAR, MINUTES_BAR, SHARE_BAR = 5.0, 4.0, 5.0
EPOCH_BARS = {512: 2.0, 128: 3.0}
"""Seconds of an epoch of 50,000 images by the size of its batches, on one H200."""
IMAGES, TESTS = 50_000, 10_000
SMALL_IMAGES, SMALL_EPOCHS, SMALL_WIDTH = 5_000, 10, 16
WARM = 20
"""Steps before those that are timed: a graph is recorded, a compiler at work."""


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _here() -> tuple[Settings, int]:
    """The run that is timed on this device, and its images: the papers' on a GPU, what two cores do in minutes elsewhere."""
    if _device() == "cuda":
        return replace(simclr_settings("cifar10"), subset=None), IMAGES
    small = replace(SMALL, subset=None, networks=Networks(width=SMALL_WIDTH), epochs=SMALL_EPOCHS)
    return small, SMALL_IMAGES


def _noise(count: int) -> Tensor:
    """Pixels, which cost what those of photographs do."""
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


# -- stages -------------------------------------------------------------------------------------------------------------


def augmentation(least: float) -> list[Row]:
    """Both ways in turn, in a process of one thread."""
    with process_pool(1) as pool:
        theirs, ours = (pool.submit(_view_seconds, batched, least).result() for batched in (False, True))
    part = "augment: images of 32 x 32 to views, one thread"
    return [
        Row(part, "Pillow, image after image", 1 / theirs, "/s"),
        Row(part, "ours, in batches of 1000", 1 / ours, "/s"),
        Row(part, "ours is faster by the clock", theirs / ours, "x", AUGMENT_BAR, at_least=True),
    ]


def _view_seconds(batched: bool, least: float) -> float:
    """Seconds of a view, those of drawing its numbers included."""
    pipeline, pixels = PIPELINES["cifar10"], _noise(1000 if batched else 100)
    mean, std = (torch.tensor(values)[:, None, None] for values in (pipeline.mean, pipeline.std))

    def call() -> None:
        numbers = augment.draws(len(pixels), 0, 0, 0)
        if batched:
            augment.apply(pixels, pipeline, numbers)
        else:
            pillow_views(pixels, pipeline, numbers).div_(255).sub_(mean).div_(std)

    return seconds(call, least) / len(pixels)


def forward(least: float) -> list[Row]:
    """The encoder in evaluation mode, without gradients."""
    return _multiplying("forward", least, batch=512, training=False)


def step(least: float) -> list[Row]:
    """A step without its augmentation: two views forwards and backwards, and the optimiser."""
    return _multiplying("step", least, batch=512 if _device() == "cuda" else 128, training=True)


def _multiplying(name: str, least: float, *, batch: int, training: bool) -> list[Row]:
    """Speed, and what share of the device's own rate of multiplication it comes to; a multiplication and an addition are two."""
    place, networks = torch.device(_device()), _here()[0].networks
    layout = layout_of(networks.width, place)
    model = build(networks, 0).to(place, memory_format=layout).train(training)  # type: ignore[call-overload]
    views = [torch.randn(batch, 3, 32, 32).to(place) for _ in range(2)]
    loss_of, optimizer = objective("info_nce"), torch.optim.Adam(model.learning(), lr=1e-3, fused=True)

    def call() -> None:
        with torch.set_grad_enabled(training):
            with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
                outputs = model(*views) if training else model.features(views[0])
            if training:
                optimizer.zero_grad()
                loss_of(outputs).backward()
                optimizer.step()

    with FlopCounterMode(display=False) as counter:
        call()
    taken, part = seconds(call, least), f"{name}: ResNet-18 of width {networks.width}, {batch} images, {place}"
    rate = counter.get_total_flops() / taken
    return [
        Row(part, "images", batch / taken, "/s"),
        Row(part, "a call", 1e3 * taken, "ms"),
        Row(part, "arithmetic", rate / 1e12, "TF/s"),
        Row(part, "share of the rate of one large product", 100 * rate / _rate(), "%"),
    ]


def _rate() -> float:
    """Operations a second of one large matrix product: bfloat16 on a GPU, float32 elsewhere."""
    size, dtype = (8192, torch.bfloat16) if _device() == "cuda" else (1024, torch.float32)
    a = torch.randn(size, size).to(_device(), dtype)
    return 2 * size**3 / seconds(lambda: a @ a, 0.2)


def capture(least: float) -> list[Row]:
    """The same steps eagerly, as a CUDA graph and compiled, each beside the first; a processor has no graph."""
    settings, images = _here()
    kinds = ("none", "graph", "compile", "both") if _device() == "cuda" else ("none", "compile")
    part = f"capture: steps of {settings.batch} images x 2 views, width {settings.networks.width}, {_device()}"
    taken = {}
    for kind in kinds:
        try:
            taken[kind] = _step_seconds(_run(replace(settings, capture=kind), images)[1], least)
        except Exception as error:  # a compiler that is missing or fails takes the other kinds' numbers from nobody
            print(f"capture={kind} does not run here: {type(error).__name__}: {error}", file=sys.stderr)
    rows = [Row(part, f"{kind}: a step", 1e3 * value, "ms") for kind, value in taken.items()]
    return rows + [Row(part, f"{kind} against none", taken["none"] / taken[kind], "x") for kind in list(taken)[1:]]


def epoch(least: float) -> list[Row]:
    """Epochs of the real loop with augmentation, step and optimiser, by the seconds of a step."""
    settings, images = _here()
    bars: dict[int, float | None] = {**EPOCH_BARS} if _device() == "cuda" else {settings.batch: None}
    part = f"epoch: {images} CIFAR-sized images x 2 views, width {settings.networks.width}, {_device()}"
    rows = []
    for batch, bar in bars.items():
        step, turn = _run(replace(settings, batch=batch), images)
        speed = batch / _step_seconds(turn, least)
        rows.append(Row(part, f"batches of {batch}", images / speed, "s", bar))
        rows.append(Row(part, f"images, batches of {batch}", speed, "/s"))
    if _device() == "cpu":
        minutes = (SMALL_EPOCHS * images / speed + 2 * _look(step, images)) / 60
        rows.append(Row(part, f"{SMALL_EPOCHS} epochs and two looks", minutes, "min", MINUTES_BAR))
    return rows


def lightly(least: float) -> list[Row]:
    """Views, step and optimiser of one network, by our loop and by lightly's parts; no rows where it is missing."""
    try:
        import lightly as peer
    except ImportError:
        print("lightly is not installed: pip install lightly", file=sys.stderr)
        return []
    rows = []
    for width in (16, 64):
        settings = replace(_here()[0], networks=Networks(width=width))
        step, turn = _run(settings, SMALL_IMAGES)
        taken = [_step_seconds(turn, least), seconds(_lightly_step(settings), least)]
        part = f"lightly {peer.__version__}: steps of {settings.batch} images x 2 views, width {width}, {_device()}"
        rows += [
            Row(part, f"ours, in {str(step.precision).removeprefix('torch.')}: images", settings.batch / taken[0], "/s")
        ]
        rows += [Row(part, "lightly's, in float32, with torchvision's transforms", settings.batch / taken[1], "/s")]
        rows += [Row(part, "ours is faster by the clock", taken[1] / taken[0], "x")]
    return rows


def _two_sides(views: Callable[[Any], list[Tensor]], batch: Sequence[Any]) -> list[Tensor]:
    return [torch.stack(side) for side in zip(*map(views, batch), strict=True)]


def _lightly_step(settings: Settings) -> Callable[[], object]:
    """A step as lightly's example of SimCLR takes it, of the same network: a loader with a worker for each core."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform
    from torchvision.transforms.functional import to_pil_image

    place, sizes = torch.device(_device()), settings.networks
    net = ResNet18("cifar", sizes.width)
    head = SimCLRProjectionHead(net.features, sizes.projector_hidden, sizes.projector_out)
    model = torch.nn.Sequential(net, head).to(place)
    optimizer, loss_of = torch.optim.Adam(model.parameters(), lr=settings.lr), NTXentLoss(temperature=0.5)
    views = SimCLRTransform(input_size=32, cj_strength=0.5, gaussian_blur=0.0)
    images = [to_pil_image(pixels) for pixels in _noise(SMALL_IMAGES)]
    loader: DataLoader[Any] = DataLoader(
        images,  # type: ignore[arg-type]
        settings.batch,
        shuffle=True,
        drop_last=True,
        num_workers=cores(),
        collate_fn=partial(_two_sides, views),
    )
    batches = (batch for _ in itertools.count() for batch in loader)

    def call() -> None:
        with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
            first, second = (model(view.to(place)) for view in next(batches))
        optimizer.zero_grad()
        loss_of(first, second).backward()
        optimizer.step()

    call()
    return call


def evaluate(least: float) -> list[Row]:
    """What looking costs at its default interval, as a share of the training between two looks."""
    settings, images = _here()
    step, turn = _run(settings, images)
    taken = _step_seconds(turn, least) * make_batches(settings, images).per_epoch
    looking, between = _look(step, images), evaluation.epochs_between(images, images + TESTS)
    part = f"evaluate: {images} and {TESTS} images, {_device()}"
    return [
        Row(part, "a look: k-NN and rank", looking, "s"),
        Row(part, f"share of {between} epochs of training", 100 * looking / (between * taken), "%", SHARE_BAR),
    ]


def _run(settings: Settings, images: int) -> tuple[Step, Callable[[], None]]:
    """A run's step on noise, and a turn of the loop: the next batch, its views, forwards and backwards, and the optimiser."""
    data = Dataset(_noise(images), torch.arange(images) % 10, "noise", 10)
    torch.backends.cudnn.benchmark = True  # as in a run
    keep_freed_memory()
    step, batches = make_step(settings, data, torch.device(_device())), make_batches(settings, images)
    optimizer, numbers = make_optimizer(settings, step.model.learning()), itertools.count()

    def turn() -> None:
        step(*batches.at(next(numbers)))
        optimizer.step()

    return step, turn


def _step_seconds(turn: Callable[[], None], least: float) -> float:
    for _ in range(WARM if _device() == "cuda" else 2):
        turn()
    return seconds(turn, least)


def _look(step: Step, images: int) -> float:
    known, asked = (Dataset(_noise(count), torch.arange(count) % 10, "noise", 10) for count in (images, TESTS))
    return seconds(lambda: evaluation.report(step.model.encoder, known, asked, step.pipeline, _device()), 0.0)


STAGES: dict[str, Callable[[float], list[Row]]] = {
    "augment": augmentation,
    "forward": forward,
    "step": step,
    "capture": capture,
    "epoch": epoch,
    "evaluate": evaluate,
    "lightly": lightly,
}
"""What can be measured, by name: functions of the least seconds that each call is measured for."""


def main(arguments: Sequence[str]) -> int:
    """``sslbook bench training``: print the table; exit status 1 if a bar is missed."""
    asked = parser("training", __doc__, "measure for a moment")
    asked.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} (default: all)")
    options = asked.parse_args(arguments)
    for name in options.stages:
        if name not in STAGES:
            asked.error(f"no stage {name!r}; there are {', '.join(STAGES)}")
    rows = [row for name in options.stages or STAGES for row in STAGES[name](0.2 if options.quick else 3.0)]
    return report(rows, as_json=options.json)
