"""Images: the data as it is on disk, what is refused, and every view against independent code."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import Tensor

from sslbook.images import datasets
from sslbook.images.enumerated import Images, brightness, digits, flips, read, readable, shifts, views


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
    # pixels and labels are permuted together
    known = {image.numpy().tobytes(): int(label) for image, label in zip(*_pair(digits()), strict=True)}
    assert all(known[image.numpy().tobytes()] == label for image, label in zip(*_pair(large), strict=True))


def _pair(data: Images) -> tuple[Tensor, Tensor]:
    return data.pixels, data.labels


def python2_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """With Python 2's ``str`` for keys and content, as the official files have it: other opcodes than those of bytes."""
    content = pickle.dumps({b"labels": labels, b"data": pixels}, protocol=3)
    size = struct.pack("<i", pixels.size)
    for ours, theirs in ((b"C\6labels", b"U\6labels"), (b"C\4data", b"U\4data"), (b"B" + size, b"T" + size)):
        assert content.count(ours) == 1
        content = content.replace(ours, theirs)
    return content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.fixture
def fake_cifar10(tmp_path, monkeypatch) -> Path:
    """A folder in the official layout with four images a file, and the md5 table to match."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for i, name in enumerate(datasets.CIFAR10_MD5):
        pixels = np.random.default_rng(i).integers(0, 256, (4, 3072), dtype=np.uint8)
        content = python2_batch(pixels, [i, 1, 2, 9])
        (folder / name).write_bytes(content)
        monkeypatch.setitem(datasets.CIFAR10_MD5, name, hashlib.md5(content).hexdigest())
    monkeypatch.setenv("SSLBOOK_DATA", str(tmp_path))
    return folder


def test_cifar10_reads_the_official_layout(fake_cifar10):
    assert readable("cifar10")
    train, test = read("cifar10", "train"), read("cifar10", "test", dtype=torch.float64)
    assert (train.name, test.name) == ("cifar10-train", "cifar10-test")
    assert train.pixels.shape == (20, 3, 32, 32)
    assert train.labels.tolist() == [label for i in range(5) for label in (i, 1, 2, 9)]
    raw = np.random.default_rng(5).integers(0, 256, (4, 3072), dtype=np.uint8)
    # A row is the red, green and blue planes, each in row-major order.
    np.testing.assert_array_equal(test.pixels[2, 1, 3, 4].item(), raw[2, 1024 + 3 * 32 + 4] / 255)
    np.testing.assert_array_equal(test.pixels.numpy(), raw.reshape(4, 3, 32, 32) / 255)
    some = read("cifar10", "train", n=7, seed=3)
    assert torch.equal(some.pixels, read("cifar10", "train", n=20, seed=3).pixels[:7])


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_unpickling_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"asks for (posix|nt)\.mkdir; only NumPy arrays may be in it"):
        datasets._cifar10_batch(pickle.dumps({"data": Harmful()}, protocol=2))
    assert not Path("harm").exists()
    pickle.loads(pickle.dumps(Harmful(), protocol=2))  # what would have happened
    assert Path("harm").exists()


needs_cifar10 = pytest.mark.skipif(
    not readable("cifar10"), reason="set SSLBOOK_DATA to a folder that holds cifar-10-batches-py"
)


@needs_cifar10
def test_the_real_test_images():
    data = read("cifar10", "test")
    assert data.pixels.shape == (10_000, 3, 32, 32)
    assert data.labels.bincount().tolist() == [1000] * 10
    assert data.labels[:4].tolist() == [3, 8, 8, 0]  # cat, ship, ship, airplane
    assert 0 <= data.pixels.min() < data.pixels.max() <= 1
    # The channels' own means: a wrong order of the planes would permute them.
    mean = data.pixels.mean((0, 2, 3), dtype=torch.float64)
    torch.testing.assert_close(mean, torch.tensor([0.4942, 0.4851, 0.4504], dtype=torch.float64), atol=1e-4, rtol=0)


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
