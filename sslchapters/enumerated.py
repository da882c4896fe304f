"""Real images and enumerated augmentations, for checks where every expectation is an exact sum.

An augmentation here is a finite set of views, all equally likely: ``p_aug(.|x)`` is uniform over the ``V`` images that a
function returns for ``x``.  So an average over augmentations is a mean over the view axis, with no sampling error.

Images are ``(N, C, H, W)`` in [0, 1]; views are ``(N, V, C, H, W)``.  Where the un-augmented image is one of the views it comes
first, so that ``views[:, 0]`` is the clean batch.

Data: the handwritten digits of scikit-learn (no download), and CIFAR-10 [krizhevsky2009] and MNIST in their official layouts below
the folder that the environment variable ``SSLBOOK_DATA`` names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from sslbook.images import datasets
from sslbook.images.datasets import shifts as shifts
from sslchapters.instances import convnet

Augmentation = Callable[[Tensor], Tensor]
"""Maps images ``(N, C, H, W)`` to their views ``(N, V, C, H', W')``."""


@dataclass(frozen=True)
class Images:
    """Labelled images: ``pixels (N, C, H, W)`` in [0, 1], ``labels (N,)`` int64, and the data's name."""

    pixels: Tensor
    labels: Tensor
    name: str

    def __len__(self) -> int:
        return len(self.pixels)


def digits(n: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32) -> Images:
    """Handwritten digits from scikit-learn: 1797 images ``(1, 8, 8)`` with 17 grey levels k/16.

    ``n`` images are drawn without replacement by ``seed`` (a smaller ``n`` gives a prefix of a larger one); ``n=None`` gives
    all, in the data's order.

    >>> digits(3).pixels.shape
    torch.Size([3, 1, 8, 8])
    """
    levels, truth = datasets.handwritten()
    keep = datasets.choose(len(truth), n, seed)
    return Images(torch.from_numpy(levels).to(dtype)[keep, None] / 16, torch.from_numpy(truth)[keep], "digits")


def read(name: str, split: str, n: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32) -> Images:
    """CIFAR-10, 50,000 train and 10,000 test images ``(3, 32, 32)``, or MNIST, 60,000 and 10,000 of ``(1, 28, 28)``.

    `sslbook.images.datasets.load_dataset` reads and checks them, here below ``SSLBOOK_DATA`` alone: the book's numbers depend on
    what is named there, and on nothing else.  ``n`` and ``seed`` as in `digits`.  Raises FileNotFoundError if the folder or a file
    is missing, ValueError if a file is truncated or altered.
    """
    folder = os.environ.get("SSLBOOK_DATA")
    if not folder:
        raise FileNotFoundError(f"{datasets.TITLES[name]} is not here: set SSLBOOK_DATA to the folder that holds it")
    # chosen before the conversion, which takes four times the memory
    data = datasets.subset(datasets.load_dataset(name, split, folder=folder), n, seed)
    return Images(data.pixels.to(dtype) / 255, data.labels, data.name)


def readable(name: str) -> bool:
    """Whether :func:`digits` or :func:`read` finds the files of "digits", "mnist" or "cifar10"; `read` checks them."""
    folder = os.environ.get("SSLBOOK_DATA", "")
    files = datasets.MD5[name] if name != "digits" else ()
    return not files or (folder != "" and all((Path(folder).expanduser() / file).is_file() for file in files))


@dataclass(frozen=True)
class Scene:
    """A finite population of real images: ``views (N, V, C, H, W)``, un-augmented ``clean (N, C, H, W)``, ``labels (N,)``."""

    views: Tensor
    clean: Tensor
    labels: Tensor

    def to(self, device: torch.device | str) -> Scene:
        """The same population on another device."""
        return Scene(self.views.to(device), self.clean.to(device), self.labels.to(device))

    def batch(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Of ``size`` images: two different views each ``(size, 2, ...)``, and the images themselves."""
        return self.labelled_batch(size, draw)[:2]

    def labelled_batch(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the images' labels."""
        sample = torch.randperm(len(self.views), generator=draw)[:size]
        pair = torch.rand(size, self.views.shape[1], generator=draw).argsort(1)[:, :2]
        where = self.views.device
        sample, pair = sample.to(where), pair.to(where)
        return self.views[sample[:, None], pair], self.clean[sample], self.labels[sample]


def scene(data: Images, augment: Augmentation) -> Scene:
    """The images with all of their views; the mean image is subtracted."""
    mean = data.pixels.mean(0)
    return Scene(augment(data.pixels) - mean, data.pixels - mean, data.labels)


def digits_scene(samples: int = 256, radius: int = 1, seed: int = 0, device: torch.device | str = "cpu") -> Scene:
    """Handwritten digits with all translations by up to ``radius`` pixels, float64."""
    return scene(digits(samples, seed, dtype=torch.float64), partial(shifts, radius=radius)).to(device)


def scene_network(scene: Scene, seed: int = 0) -> nn.Sequential:
    """The small conv net of several experiments: two convolutions (8 and 16 channels) and a linear head of 16 outputs."""
    channels, size = scene.clean.shape[1], scene.clean.shape[2]
    return convnet((channels, 8, 16), size, 16, seed=seed).to(scene.views.device)
