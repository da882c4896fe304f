"""Augmentation pixel by pixel: operations against Pillow's on the same images, and against other independent code.

Whole views are held against Pillow's on the audit page of the chapter on training."""

from __future__ import annotations

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_sample_images
from torch import Tensor

from sslbook.training import augment
from sslchapters.training import live

Image = pytest.importorskip("PIL.Image", reason="pip install pillow")

COUNT = 120


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    """Half noise, which has every colour, and half windows of live."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (COUNT // 2, 3, 32, 32), dtype=torch.uint8, generator=generator)
    photographs = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)
    windows = photographs.unfold(2, 32, 61).unfold(3, 32, 61).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    return torch.cat([noise, windows[torch.randperm(len(windows), generator=generator)[: COUNT // 2]]])


@pytest.fixture(scope="module")
def numbers() -> Tensor:
    return augment.draws(COUNT, seed=1, step=2, view=0)


@pytest.mark.parametrize("size", [8, 96])
def test_crop_and_resize(pixels: Tensor, numbers: Tensor, size: int) -> None:
    box = augment.boxes(numbers[:, : augment.CROP_NUMBERS], 32, 32, (0.08, 1.0), (3 / 4, 4 / 3))
    rows, columns = (augment.weights(*side, 32, size) for side in ((box.top, box.height), (box.left, box.width)))
    found = augment.resample(pixels, rows, columns)
    for image, (y, x, h, w), view in zip(pixels, torch.stack(box, 1).int().tolist(), found, strict=True):
        cut = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((x, y, x + w, y + h))
        expected = np.array(cut.resize((size, size), Image.Resampling.BILINEAR), dtype=float)
        assert np.abs(view.permute(1, 2, 0).numpy() - expected).max() < 1.01  # Pillow rounds after each side of a crop
    outside = (torch.arange(32) < box.top[:, None]) | (torch.arange(32) >= (box.top + box.height)[:, None])
    assert not ((rows > 0).any(1) & outside).any()


def test_grey_images_have_the_light_of_the_coloured(pixels: Tensor, numbers: Tensor) -> None:
    coloured, grey = (augment.apply(pixels, augment.Pipeline(32, grey=share), numbers) for share in (0.0, 1.0))
    light = torch.einsum("c,bchw->bhw", torch.tensor(augment.LUMA), coloured)[:, None].expand_as(grey)
    torch.testing.assert_close(grey, light, atol=1e-5, rtol=0)


def one_after_another(image: Tensor, order: tuple[int, ...], factors: list[float]) -> np.ndarray:
    """The jitter of one image ``(3, H, W)`` in levels as it is defined: four operations in turn, each clamped; float64."""
    x = image.double().numpy()
    for kind in order:
        f, light = factors[kind], np.tensordot(augment.LUMA, x, 1)
        if kind == augment.HUE:
            hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in x.reshape(3, -1).T / 255]
            x = 255 * np.array([colorsys.hsv_to_rgb((h + f) % 1, s, v) for h, s, v in hsv]).T.reshape(x.shape)
        else:
            x = f * x + (1 - f) * {0: 0, 1: np.floor(light.mean() + 0.5), 2: light}[kind]
        x = x.clip(0, 255)
    return x


def test_every_order_of_the_jitter_is_kept(pixels: Tensor) -> None:
    """All 24, in floating-point numbers, where only rounding may differ: hue has its place among the others."""
    some = pixels[[3, -3], :, ::5, ::5].repeat(24, 1, 1, 1)
    some[:, :, 0] = some[:, :1, 0]  # a row of greys, which have no hue
    numbers = augment.draws(len(some), 9, 0, 0)[:, augment.JITTER].clone()
    numbers[:, 0] = 0  # all of them are jittered
    numbers[:, 1] = (torch.arange(len(some)) // 2 + 0.5) / 24
    strengths = (0.8, 0.8, 0.8, 0.5)
    places, drawn = augment.order_and_factors(numbers, strengths, 0.8)
    assert places.bincount().tolist() == [2] * 24
    found = augment.jitter_(some.float(), *augment.jitter_of(numbers, strengths, 0.8)).double().numpy()
    factors = drawn.tolist()
    for image, order, by, seen in zip(some, np.repeat(augment.ORDERS, 2, axis=0).tolist(), factors, found, strict=True):
        assert np.abs(seen - one_after_another(image, order, by)).max() < 1e-2, order  # float32, levels to 255


def test_whole_views_against_pillow(pixels: Tensor) -> None:
    """All together, through `apply`, with the choices that the same numbers give; hue out, whose 8 bits later steps enlarge."""
    pipeline = augment.Pipeline(32, jitter=(0.4, 0.4, 0.4, 0.0))
    numbers = augment.draws(COUNT, 3, 0, 0)
    found = augment.apply(pixels, pipeline, numbers) * 255
    expected = live.pillow_views(pixels, pipeline, numbers)
    assert (found - expected).abs().max() < 6  # a crop, three blends that may enlarge it by up to 1.4 each, grey
    assert (found - expected).abs().mean() < 1.2


def test_a_blurred_view_is_the_view_blurred(pixels: Tensor) -> None:
    """`apply` with grey, blur, mean and deviation is scipy's blur of the view without them, where the same numbers say so."""
    sharp = augment.Pipeline(32, jitter=(0.8, 0.8, 0.8, 0.2), grey=0.5)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    soft = replace(sharp, blur=0.3, blur_sigma=(0.4, 1.6), mean=mean, std=std)
    numbers = augment.draws(COUNT, 4, 0, 0)
    levels = augment.apply(pixels, sharp, numbers).double().numpy()
    found = augment.apply(pixels, soft, numbers).double().numpy()

    views = []
    for view, row in zip(levels, numbers.double().numpy(), strict=True):
        width = 0.4 + 1.2 * row[augment.SIGMA]
        for axis in (1, 2) if row[augment.BLUR] < 0.3 else ():
            view = ndimage.gaussian_filter1d(view, width, axis=axis, mode="mirror", radius=4)
        views.append((view - np.array(mean)[:, None, None]) / np.array(std)[:, None, None])
    assert np.abs(found - np.stack(views)).max() < 1e-5  # float32
