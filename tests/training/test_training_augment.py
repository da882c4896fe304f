"""Augmentation as a distribution and as a function: the reference sampler, independence, determinism, bad input."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from scipy import stats
from torch._dynamo.backends.common import aot_autograd

from sslbook.training.views import augment, crops
from sslbook.training.views.augment import NUMBERS, PIPELINES, Pipeline, apply, draws, plain, random_view

CIFAR = PIPELINES["cifar10"]
SAMPLES = 4000
RARE = 1e-4
"""A test of a right distribution fails this often; the seeds are fixed, so it fails never or always."""


def noise(count: int = 40, channels: int = 3, side: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)


# -- distributions ------------------------------------------------------------------------------------------------------


def boxes(pipeline: Pipeline, height: int, width: int, view: int = 0) -> np.ndarray:
    numbers = draws(SAMPLES, seed=11, step=3, view=view)
    found = crops.boxes(numbers[:, : crops.CROP_NUMBERS], height, width, pipeline.scale, pipeline.ratio)
    return torch.stack(found, 1).numpy()


SAMPLERS = {
    "square": (CIFAR, 32, 32),
    "large": (PIPELINES["stl10"], 96, 96),
    "oblong, often central": (Pipeline(32, scale=(0.9, 1.0)), 20, 60),
}


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


@pytest.mark.parametrize("name", SAMPLERS)
def test_boxes_have_the_reference_samplers_distribution(name: str) -> None:
    pipeline, height, width = SAMPLERS[name]
    mine = statistics_of(boxes(pipeline, height, width), height, width)
    stream = random.Random(7)
    reference = np.array([choose_box(height, width, pipeline, stream) for _ in range(SAMPLES)], float)
    theirs = statistics_of(reference, height, width)
    for key, values in mine.items():
        assert stats.ks_2samp(values, theirs[key]).pvalue > RARE, key


def statistics_of(boxes: np.ndarray, height: int, width: int) -> dict[str, np.ndarray]:
    top, left, h, w = boxes.T
    middle = {"row": (top + 0.5) / (height - h + 1), "column": (left + 0.5) / (width - w + 1)}
    return {"area": h * w, "ratio": w / h, "top": top, "left": left, **middle}


def test_a_box_that_never_fits_is_central() -> None:
    found = boxes(Pipeline(32, scale=(1.0, 1.0), ratio=(2.0, 2.0)), 32, 32)
    assert (found == [8, 0, 16, 32]).all()
    found = boxes(Pipeline(32, scale=(1.0, 1.0), ratio=(0.5, 0.5)), 32, 32)
    assert (found == [0, 8, 32, 16]).all()
    assert crops.central(32, 32, (0.75, 1.5)) == (32, 32)


def test_boxes_lie_in_the_image_even_at_the_ends_of_the_numbers() -> None:
    ends = torch.tensor([0.0, 1 - 2.0**-24])
    numbers = ends[torch.randint(0, 2, (500, crops.CROP_NUMBERS), generator=torch.Generator().manual_seed(0))]
    top, left, height, width = crops.boxes(numbers, 30, 50, (0.08, 1.0), (3 / 4, 4 / 3))
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 30).all()
    assert (left + width <= 50).all()
    assert (height > 0).all()
    assert (width > 0).all()


def test_orders_are_uniform_and_factors_lie_in_their_ranges() -> None:
    numbers = draws(24_000, 0, 0, 0)[:, augment.JITTER]
    counts = augment.order_of(numbers).bincount(minlength=24)
    assert stats.chisquare(counts.numpy()).pvalue > RARE
    assert stats.chisquare((counts * torch.linspace(0.9, 1.1, 24)).numpy()).pvalue < RARE
    factors = augment.factors_of(numbers, (0.4, 1.5, 0.4, 0.1), 0.8)
    idle = (factors == torch.tensor([1.0, 1.0, 1.0, 0.0])).all(1)
    assert stats.binomtest(int(idle.sum()), 24_000, 0.2).pvalue > RARE
    for column, low, high in zip(factors[~idle].T, (0.6, 0.0, 0.6, -0.1), (1.4, 2.5, 1.4, 0.1), strict=True):
        assert stats.kstest(column.numpy(), stats.uniform(low, high - low).cdf).pvalue > RARE


def test_flips_greys_and_blurs_come_as_often_as_asked_and_widths_are_uniform() -> None:
    pipeline = Pipeline(32, flip=0.3, grey=0.15, blur=0.4, blur_sigma=(0.3, 1.7))
    plan = augment._plan(draws(SAMPLES, 2, 0, 0), pipeline, 32, 32)
    middle, beside = plan.kernels[:, 4].double(), plan.kernels[:, 5].double()
    blurred = beside > 0  # a single tap where nothing is blurred
    for chosen, probability in ((plan.mirror, 0.3), (plan.grey, 0.15), (blurred, 0.4)):
        assert stats.binomtest(int(chosen.sum()), SAMPLES, probability).pvalue > RARE
        assert stats.binomtest(int(chosen.sum()), SAMPLES, 1 - probability).pvalue < RARE
    widths = (-0.5 / (beside / middle)[blurred].log()).sqrt().numpy()  # beside / middle = exp(-1 / (2 sigma^2))
    assert stats.kstest(widths, stats.uniform(0.3, 1.4).cdf).pvalue > RARE
    assert stats.kstest(widths, stats.uniform(0.1, 1.9).cdf).pvalue < RARE


def test_every_number_is_uniform_and_independent_of_the_others() -> None:
    first, second = (draws(SAMPLES, 1, 0, view).double().numpy() for view in (0, 1))
    assert min(stats.kstest(column, "uniform").pvalue for column in first.T) > RARE
    later = draws(SAMPLES, 1, 1, 0).double().numpy()
    columns = np.concatenate([first, second, later, first[np.r_[1:SAMPLES, 0]]], 1)  # views, steps, neighbours
    correlation = np.corrcoef(columns.T) - np.eye(4 * NUMBERS)
    pairs = 4 * NUMBERS * (4 * NUMBERS - 1) / 2
    limit = stats.norm.isf(RARE / pairs / 2) / np.sqrt(SAMPLES)
    assert np.abs(correlation).max() < limit


# -- a function of its numbers --------------------------------------------------------------------------------------------


def test_views_are_a_function_of_seed_step_and_view() -> None:
    pixels = noise()
    one = apply(pixels, CIFAR, draws(40, 7, 100, 1))
    torch.manual_seed(123)
    np.random.seed(5)  # noqa: NPY002  (which must not matter)
    assert torch.equal(one, apply(pixels, CIFAR, draws(40, 7, 100, 1)))
    for other in ((8, 100, 1), (7, 101, 1), (7, 100, 0)):
        assert not torch.equal(one, apply(pixels, CIFAR, draws(40, *other)))


def test_rows_do_not_depend_on_the_batch() -> None:
    """A smaller batch, the rows of one process of three, another chunk: the same views."""
    pixels, pipeline = noise(), PIPELINES["stl10"]
    pipeline = Pipeline(32, jitter=pipeline.jitter, blur=0.5)
    numbers = draws(40, 0, 0, 0)
    assert torch.equal(draws(13, 0, 0, 0), numbers[:13])
    whole = apply(pixels, pipeline, numbers)
    torch.testing.assert_close(apply(pixels[1::3], pipeline, numbers[1::3]), whole[1::3], atol=1e-6, rtol=0)
    torch.testing.assert_close(apply(pixels[9:10], pipeline, numbers[9:10]), whole[9:10], atol=1e-6, rtol=0)


def test_the_sorted_way_is_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, numbers = noise(300), draws(300, 0, 0, 0)
    plan = augment._plan(numbers, CIFAR, 32, 32)
    straight = augment._view(pixels, CIFAR, plan)
    for chunk in (7, 128, 1000):
        monkeypatch.setattr(augment, "CHUNK", chunk)
        torch.testing.assert_close(apply(pixels, CIFAR, numbers), straight, atol=2e-6, rtol=0)


def test_nothing_stops_a_graph() -> None:
    """The way that devices take is one graph: no shape and no branch depends on data, and no table is copied anew in each call."""
    pipeline = replace(CIFAR, blur=0.5)
    pixels, numbers = noise(8), draws(8, 0, 0, 0)
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, inputs: list) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    way = partial(apply, pipeline=pipeline)
    compiled = torch.compile(way, backend=aot_autograd(fw_compiler=kept), fullgraph=True)
    torch.testing.assert_close(compiled(pixels, draws=numbers), way(pixels, draws=numbers), atol=2e-6, rtol=0)
    nodes = [(node.op, str(node.target)) for graph in graphs for node in graph.graph.nodes]
    assert sum(name == "aten.bmm.default" for _, name in nodes) == 4, "two for the crop, two for the blur"
    assert not [name for kind, name in nodes if kind == "get_attr" or "lift_fresh" in name]


def test_floating_pixels_are_levels_over_255() -> None:
    pixels, numbers = noise(), draws(40, 0, 0, 0)
    torch.testing.assert_close(
        apply(pixels.double() / 255, CIFAR, numbers), apply(pixels, CIFAR, numbers), atol=1e-5, rtol=0
    )


def test_autocast_does_not_reach_in() -> None:
    pixels, numbers = noise(), draws(40, 0, 0, 0)
    expected = apply(pixels, CIFAR, numbers)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(apply(pixels, CIFAR, numbers), expected)


@pytest.mark.parametrize("default", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1, 1 / 255], ids=["bytes", "shares"])
@pytest.mark.parametrize("name", [*PIPELINES, "all steps"])
def test_views_are_float32_whatever_is_made_by_default(name: str, scale: float, default: torch.dtype) -> None:
    """Bit for bit, on the way of processors and on that of devices."""
    pipeline = {**PIPELINES, "all steps": replace(CIFAR, blur=0.5)}[name]
    pixels = noise(4, 1 if name in ("digits", "mnist") else 3, pipeline.size)
    pixels = pixels if scale == 1 else pixels * scale

    def made() -> list[torch.Tensor]:
        numbers = draws(4, 0, 0, 0)
        plan = augment._plan(numbers, pipeline, *pixels.shape[2:])
        direct = augment._view(pixels, pipeline, plan)
        return [
            numbers,
            direct,
            apply(pixels, pipeline, numbers),
            random_view(pixels, pipeline),
            plain(pixels, pipeline),
        ]

    expected = made()
    torch.set_default_dtype(default)
    try:
        found = made()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {part.dtype for part in found} == {torch.float32}
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_makes_views(name: str) -> None:
    pipeline = PIPELINES[name]
    channels = 1 if name in ("digits", "mnist") else 3
    pixels = noise(6, channels, pipeline.size)
    view = apply(pixels, pipeline, draws(6, 0, 0, 0))
    assert view.shape == (6, channels, pipeline.size, pipeline.size)
    assert view.dtype == torch.float32
    assert view.isfinite().all()
    if not pipeline.mean:
        assert view.min() >= 0
        assert view.max() <= 1 + 1e-6
    idle = Pipeline(pipeline.size, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, grey=0.0)
    torch.testing.assert_close(apply(pixels, idle, draws(6, 0, 0, 0)), pixels / 255, atol=1e-6, rtol=0)


def test_pixels_stay_as_they_are() -> None:
    for pixels in (noise(), noise() / 255):
        before = pixels.clone()
        apply(pixels, CIFAR, draws(40, 0, 0, 0))
        assert torch.equal(pixels, before)


def test_plain_images() -> None:
    pixels = noise(3)
    expected = pixels / 255 - torch.tensor(CIFAR.mean)[:, None, None]
    torch.testing.assert_close(plain(pixels, CIFAR), expected / torch.tensor(CIFAR.std)[:, None, None])
    torch.testing.assert_close(plain(pixels, Pipeline(20)), pixels[:, :, 6:26, 6:26] / 255)


# -- bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Pipeline(0), "size must be at least 1, got 0"),
        (lambda: Pipeline(32, scale=(0.0, 1.0)), r"scale must be two numbers above 0 .* at most 1, got \(0.0, 1.0\)"),
        (lambda: Pipeline(32, ratio=(1.0, math.inf)), "ratio must be a tuple of finite numbers"),
        (lambda: Pipeline(32, flip=1.5), "flip must be between 0 and 1, got 1.5"),
        (lambda: Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.6)), "jitter must be four strengths .* at most 0.5, got"),
        (lambda: Pipeline(4, blur=0.5, blur_kernel=9), "less than twice the size 4, got 9"),
        (lambda: Pipeline(32, mean=(0.5,)), "mean and std must have one number a channel"),
        (lambda: draws(1, -1, 0, 0), "seed must be at least 0, got -1"),
        (lambda: apply(noise(), CIFAR, draws(39, 0, 0, 0)), r"draws must be \(40, \d+\), a row an image, got \(39"),
        (lambda: apply(noise(2, 2), CIFAR, draws(2, 0, 0, 0)), "of 1 or 3 channels, got"),
        (lambda: apply(noise(2, 1), CIFAR, draws(2, 0, 0, 0)), "pixels must have 3 channels, as mean has, got 1"),
        (lambda: random_view(noise().float(), CIFAR), r"floating in \[0, 1\], got values from 0 to 255"),
        (lambda: plain(torch.full((1, 3, 32, 32), torch.nan), CIFAR), "got values from nan to nan"),
        (lambda: random_view(noise(), "cifar10"), "pipeline must be a Pipeline, such as"),  # type: ignore[arg-type]
        (lambda: plain(noise(1, 3, 20), CIFAR), "pixels must be at least 32 by 32, got 20 by 20"),
    ],
)
def test_bad_input_gets_a_sentence(call, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_pipeline_comes_back_from_json() -> None:
    read = Pipeline(**json.loads(json.dumps(asdict(CIFAR))))
    assert read == CIFAR
    assert hash(read) == hash(CIFAR)
    pixels, numbers = noise(3), draws(3, 0, 0, 0)
    assert apply(pixels, read, numbers).equal(apply(pixels, CIFAR, numbers))
