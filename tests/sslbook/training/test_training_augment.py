"""Augmentation as a distribution and as a function: the reference sampler, independence, determinism, bad input."""

from __future__ import annotations

import math
import random

import pytest
import torch
from scipy import stats

from sslbook.training import augment
from sslbook.training.augment import PIPELINES, Pipeline, apply, draws, plain, random_view

CIFAR = PIPELINES["cifar10"]
SAMPLES = 4000
RARE = 1e-4
"""A test of a right distribution fails this often; the seeds are fixed, so it fails never or always."""


def noise(count: int = 40, channels: int = 3, side: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)


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


def test_each_decision_of_a_view_has_a_number_of_its_own() -> None:
    jitter = range(augment.JITTER.start, augment.JITTER.stop)
    taken = [*range(augment.CROP_NUMBERS), augment.FLIP, *jitter, augment.GREY, augment.BLUR, augment.SIGMA]
    assert taken == list(range(augment.NUMBERS))


def test_boxes_have_the_reference_samplers_distribution() -> None:
    often_central, draw = Pipeline(32, scale=(0.9, 1.0)), draws(SAMPLES, seed=11, step=3, view=0)
    for pipeline, height, width in ((CIFAR, 32, 32), (often_central, 20, 60), (often_central, 60, 20)):
        stream = random.Random(7)
        boxes = augment.boxes(draw[:, : augment.CROP_NUMBERS], height, width, pipeline.scale, pipeline.ratio)
        reference = torch.tensor([choose_box(height, width, pipeline, stream) for _ in range(SAMPLES)])
        ours, theirs = (
            (h * w, w / h, top, left, (top + 0.5) / (height - h + 1), (left + 0.5) / (width - w + 1))
            for top, left, h, w in (boxes, reference.double().T)
        )
        together = (float(torch.corrcoef(torch.stack(found[2:4])).nan_to_num()[0, 1]) for found in (ours, theirs))
        assert abs(next(together) - next(together)) < 0.1, "a row and a column are drawn apart"
        for found, wanted in zip(ours, theirs, strict=True):
            assert stats.ks_2samp(found.numpy(), wanted.numpy()).pvalue > RARE, (height, width)


def test_boxes_lie_in_the_image_even_at_the_ends_of_the_numbers() -> None:
    ends = torch.tensor([0.0, 1 - 2.0**-24])
    numbers = ends[torch.randint(0, 2, (500, augment.CROP_NUMBERS), generator=torch.Generator().manual_seed(0))]
    top, left, height, width = augment.boxes(numbers, 30, 50, (0.08, 1.0), (3 / 4, 4 / 3))
    for start, length, side in ((top, height, 30), (left, width, 50)):
        assert ((start >= 0) & (length > 0) & (start + length <= side)).all()


def test_orders_are_uniform_and_factors_lie_in_their_ranges() -> None:
    numbers = draws(24_000, 0, 0, 0)[:, augment.JITTER]
    order, factors = augment.order_and_factors(numbers, (0.4, 1.5, 0.4, 0.1), 0.8)
    counts = order.bincount(minlength=24)
    assert stats.chisquare(counts.numpy()).pvalue > RARE
    assert stats.chisquare((counts * torch.linspace(0.9, 1.1, 24)).numpy()).pvalue < RARE
    idle = (factors == torch.tensor([1.0, 1.0, 1.0, 0.0])).all(1)
    assert stats.binomtest(int(idle.sum()), 24_000, 0.2).pvalue > RARE
    for column, low, high in zip(factors[~idle].T, (0.6, 0.0, 0.6, -0.1), (1.4, 2.5, 1.4, 0.1), strict=True):
        assert stats.kstest(column.numpy(), stats.uniform(low, high - low).cdf).pvalue > RARE


def test_rows_do_not_depend_on_the_batch_nor_on_how_it_is_worked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image, the rows of one process of three, other chunks, unsorted, of floating pixels: the same views, to rounding."""
    pixels, numbers = noise(300), draws(300, 0, 0, 0)
    assert torch.equal(draws(13, 0, 0, 0), numbers[:13])
    for pipeline in (CIFAR, Pipeline(32, jitter=PIPELINES["stl10"].jitter, blur=0.5)):
        whole = apply(pixels, pipeline, numbers)
        for rows in (slice(1, None, 3), slice(9, 10)):
            torch.testing.assert_close(apply(pixels[rows], pipeline, numbers[rows]), whole[rows], atol=2e-5, rtol=0)
        torch.testing.assert_close(apply(pixels.double() / 255, pipeline, numbers), whole, atol=2e-5, rtol=0)
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)  # on a GPU, and in a compiled step
            torch.testing.assert_close(apply(pixels, pipeline, numbers), whole, atol=2e-5, rtol=0)
        for chunk in (7, 128, 1000):
            with monkeypatch.context() as patch:
                patch.setattr(augment, "CHUNK", chunk)
                torch.testing.assert_close(apply(pixels, pipeline, numbers), whole, atol=2e-5, rtol=0)


def test_plain_images() -> None:
    pixels = noise(3)
    expected = pixels / 255 - torch.tensor(CIFAR.mean)[:, None, None]
    torch.testing.assert_close(plain(pixels, CIFAR), expected / torch.tensor(CIFAR.std)[:, None, None])
    torch.testing.assert_close(plain(pixels, Pipeline(20)), pixels[:, :, 6:26, 6:26] / 255)


def test_bad_input_gets_a_sentence() -> None:
    for call, message in (
        (lambda: Pipeline(32, scale=(0.0, 1.0)), "scale must be two numbers"),
        (lambda: Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.6)), "jitter must be four strengths"),
        (lambda: Pipeline(4, blur=0.5, blur_kernel=9), "less than twice the size"),
        (lambda: random_view(noise(2, 1), CIFAR), "of 3 channels"),
        (lambda: random_view(noise().float(), CIFAR), "got values from 0 to 255"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
