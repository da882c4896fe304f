"""Enumerated augmentations: the digits as scikit-learn has them, and every view against independent code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import Tensor

from sslchapters.enumerated import brightness, digits, flips, shifts, views


def pictures(n: int = 3, channels: int = 2, height: int = 5, width: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, height, width, generator=generator, dtype=torch.float64)


def test_digits_are_those_of_scikit_learn():
    data = digits()
    assert (data.name, len(data)) == ("digits", 1797)
    assert data.pixels.shape == (1797, 1, 8, 8)
    assert data.pixels.dtype == torch.float32
    assert data.labels.dtype == torch.int64
    official = load_digits()
    np.testing.assert_array_equal(data.pixels[:, 0].numpy() * 16, official.images)
    np.testing.assert_array_equal(data.labels.numpy(), official.target)
    assert data.pixels.min() == 0
    assert data.pixels.max() == 1


def test_a_subset_is_reproducible_nested_and_without_repeats():
    small, large, other = digits(50), digits(200), digits(50, seed=1)
    assert torch.equal(small.pixels, large.pixels[:50])
    assert torch.equal(small.labels, large.labels[:50])
    assert not torch.equal(small.labels, other.labels)
    everything = digits(1797)
    assert torch.equal(everything.labels.bincount(), digits().labels.bincount())
    known = {image.numpy().tobytes(): label for image, label in zip(digits().pixels, digits().labels, strict=True)}
    assert [known[image.numpy().tobytes()] for image in large.pixels] == large.labels.tolist(), "permuted together"


@pytest.mark.parametrize("radius", [0, 1, 2])
def test_shifts_are_those_of_scipy(radius):
    x = pictures()
    got = shifts(x, radius)
    steps = range(-radius, radius + 1)
    order = [(0, 0)] + [(dy, dx) for dy in steps for dx in steps if (dy, dx) != (0, 0)]
    assert got.shape == (3, (2 * radius + 1) ** 2, 2, 5, 6)
    for k, (dy, dx) in enumerate(order):
        expected = ndimage.shift(x.numpy(), (0, 0, dy, dx), order=0, mode="constant", cval=0.0, prefilter=False)
        np.testing.assert_array_equal(got[:, k], expected)


def test_brightness_scales_clamps_and_puts_the_image_first():
    x = pictures()
    for k, level in enumerate((1.0, 0.8, 1.2)):
        np.testing.assert_array_equal(brightness(x)[:, k], np.clip(x.numpy() * level, 0, 1))


def test_views_combine_everything_with_everything():
    x = pictures(height=6)
    assert torch.equal(flips(x), torch.stack([x, x.flip(3)], 1))
    everything = views(x, [shifts, flips, brightness])
    assert everything.shape == (3, 9 * 2 * 3, 2, 6, 6)
    assert torch.equal(everything[:, 0], x)
    two = views(x, [shifts, flips])
    for s in range(9):
        for f in range(2):
            assert torch.equal(two[:, 2 * s + f], flips(shifts(x)[:, s])[:, f])
    smaller = views(x, [flips, lambda y: torch.stack([y[..., :4, :4], y[..., 2:, 2:]], 1)])
    assert torch.equal(smaller[:, 2 + 1], x.flip(3)[:, :, 2:, 2:])
    assert torch.equal(views(x, [])[:, 0], x)
