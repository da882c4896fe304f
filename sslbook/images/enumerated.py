"""Real images and enumerated augmentations, for checks where every expectation is an exact sum.

An augmentation here is a finite set of views, all equally likely: ``p_aug(.|x)`` is uniform over the
``V`` images that a function returns for ``x``.  So an average over augmentations is a mean over the
view axis, with no sampling error.

Images are ``(N, C, H, W)`` in [0, 1]; views are ``(N, V, C, H, W)``.  Where the un-augmented image is
one of the views it comes first, so that ``views[:, 0]`` is the clean batch.

Data: the handwritten digits of scikit-learn (no download), and CIFAR-10 [krizhevsky2009] and MNIST
in their official layouts below the folder that the environment variable ``SSLBOOK_DATA`` names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.images import datasets
from sslbook.runtime.arguments import require_floating, require_one_of, require_whole

Augmentation = Callable[[Tensor], Tensor]
"""Maps images ``(N, C, H, W)`` to their views ``(N, V, C, H', W')``."""


@dataclass(frozen=True)
class Images:
    """Labelled images: ``pixels (N, C, H, W)`` in [0, 1], ``labels (N,)`` int64, and the data's name."""

    pixels: Tensor
    labels: Tensor
    name: str

    def __post_init__(self) -> None:
        _require_images(self.pixels, "pixels")
        if self.labels.shape != self.pixels.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                "labels must be int64 of shape (N,), one for each of the "
                f"{len(self.pixels)} images, got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.pixels)


# ------------------------------------------------------------------------------------------ data


def digits(n: int | None = None, seed: int = 0, size: int = 8, dtype: torch.dtype = torch.float32) -> Images:
    """Handwritten digits from scikit-learn: 1797 images ``(1, 8, 8)`` with 17 grey levels k/16.

    ``n`` images are drawn without replacement by ``seed`` (a smaller ``n`` gives a prefix of a larger
    one); ``n=None`` gives all, in the data's order.  ``size`` 4 or 2 averages blocks of pixels, for
    networks small enough to be opened by hand.
    """
    if size not in (8, 4, 2):
        raise ValueError(f"size must be 8, 4 or 2, got {size}")
    levels, truth = datasets.handwritten()
    pixels = torch.from_numpy(levels).to(dtype)[:, None] / 16
    if size != 8:
        pixels = F.avg_pool2d(pixels, 8 // size)
    labels = torch.from_numpy(truth)
    keep = datasets.choose(len(labels), n, seed)
    return Images(pixels[keep], labels[keep], "digits")


def read(name: str, split: str, n: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32) -> Images:
    """CIFAR-10, 50,000 train and 10,000 test images ``(3, 32, 32)``, or MNIST, 60,000 and 10,000 of ``(1, 28, 28)``.

    `sslbook.images.datasets.load_dataset` reads and checks them, here below ``SSLBOOK_DATA`` alone; ``n`` and ``seed`` as in
    `digits`. Raises FileNotFoundError if the folder or a file is missing, ValueError if a file is truncated or altered.
    """
    require_one_of("name", name, ("cifar10", "mnist"))
    require_one_of("split", split, ("train", "test"))
    folder = os.environ.get("SSLBOOK_DATA")
    if not folder:
        layout = datasets.LAYOUTS[name][0]
        raise FileNotFoundError(
            f"{layout.title} is not here: set SSLBOOK_DATA to the folder that holds {layout.folder}/"
        )
    # chosen before the conversion, which takes four times the memory
    data = datasets.subset(datasets.load_dataset(name, split, folder=folder), n, seed)
    return Images(data.pixels.to(dtype) / 255, data.labels, data.name)


def readable(name: str) -> bool:
    """Whether the data set ``name`` ("digits", "mnist" or "cifar10") can be read here, with no download.

    Looks for files only; `read` checks what is in them.
    """
    require_one_of("name", name, ("digits", "mnist", "cifar10"))
    # not the cache folder: the book's numbers depend on what is named, and only on that
    folder = os.environ.get("SSLBOOK_DATA")
    return name == "digits" or (bool(folder) and datasets.available(name, folder=folder))


# --------------------------------------------------------------------------------- augmentations


def shifts(images: Tensor, radius: int = 1) -> Tensor:
    """Return all ``(2 radius + 1)^2`` translations by up to ``radius`` pixels, with zeros in the pixels left empty.

    The original image comes first.  The others follow in increasing order of (dy, dx), where dy > 0 moves the
    image down, and dx > 0 moves it right.  The shapes are ``(N, C, H, W) -> (N, V, C, H, W)``.
    """
    _require_images(images)
    height, width = images.shape[-2:]
    require_whole("radius", radius, least=0, most=min(height, width) - 1)
    windows = F.pad(images, (radius,) * 4).unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
    # Window (sy, sx) starts at padded pixel (sy, sx): it shows the image moved by radius - s.
    moved = windows.flip(1, 2).flatten(1, 2)
    middle = moved.shape[1] // 2
    return moved[:, [middle, *(i for i in range(moved.shape[1]) if i != middle)]]


def flips(images: Tensor, vertical: bool = False) -> Tensor:
    """The image and its mirror image (left-right); ``vertical`` adds the same two upside down.

    ``(N, C, H, W) -> (N, 2 or 4, C, H, W)``.
    """
    _require_images(images)
    mirrored = torch.stack([images, images.flip(-1)], dim=1)
    return torch.cat([mirrored, mirrored.flip(-2)], dim=1) if vertical else mirrored


def brightness(images: Tensor, levels: Sequence[float] = (1.0, 0.8, 1.2)) -> Tensor:
    """The image times each of ``levels``, clamped to [0, 1]: ``(N, C, H, W) -> (N, len(levels), C, H, W)``.

    Level 1, if it is there, is first; the others keep their order.
    """
    _require_images(images)
    given = [float(level) for level in levels]
    if not given or not all(0 <= level < float("inf") for level in given):
        raise ValueError(f"levels must be one or more finite numbers >= 0, got {list(levels)}")
    given.sort(key=lambda level: level != 1.0)  # stable: moves only level 1
    factors = torch.tensor(given, dtype=images.dtype, device=images.device)
    return (images[:, None] * factors.view(1, -1, 1, 1, 1)).clamp(0, 1)


def views(images: Tensor, augmentations: Sequence[Augmentation]) -> Tensor:
    """Every combination of the given augmentations, applied from left to right.

    The number of views is the product of theirs, with the last one varying fastest:
    ``views(x, [shifts, flips])`` holds 9 x 2 views.  Bind parameters with ``functools.partial``.  With no
    augmentation there is one view, the image.
    """
    _require_images(images)
    combined = images[:, None]
    for augment in augmentations:
        n, v = combined.shape[:2]
        finer = augment(combined.flatten(0, 1))
        if finer.ndim != 5 or len(finer) != n * v:
            raise ValueError(
                "augmentations must map (N, C, H, W) to (N, V, C, H, W), "
                f"one of them gave {tuple(finer.shape)} for N = {n * v}"
            )
        combined = finer.reshape(n, v * finer.shape[1], *finer.shape[2:])
    return combined


# ------------------------------------------------------------------------------------- bad input


def _require_images(images: Tensor, name: str = "images") -> None:
    if isinstance(images, Images):
        raise TypeError(f"{name} must be a torch tensor, got Images; pass its .pixels")
    require_floating(**{name: images})
    if images.ndim != 4:
        raise ValueError(f"{name} must have shape (N, C, H, W), got {tuple(images.shape)}")
