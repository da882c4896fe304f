"""What a run sees, as functions of its seed and of the epoch or step: images, their order, the draws of their views.

Nothing here remembers anything, and every generator is made afresh from the run's seed, a purpose and a number.  So a run that
goes on after a crash sees what it would have seen, and how many processes share a batch changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.training.augment import PIPELINES, draws, plain, random_view
from sslbook.training.objectives import weighed_by
from sslbook.training.run import distributed
from sslbook.training.run.settings import Settings

SUBSET_SEED = 0
"""Which images a subset holds, whatever the run's seed."""


def load_data(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """Training images, or a subset of them, and test images, as the settings name them.

    With ``download``, processes take turns: the first fetches what is missing, and the others find it there.  Raises
    FileNotFoundError, which says where they are looked for, if they are missing.
    """
    for turn in range(distributed.world() if download else 1):
        if turn == distributed.rank() or not download:
            whole = datasets.load_dataset(settings.dataset, settings.split, download=download)
            tests = datasets.load_dataset(settings.dataset, "test", download=download)
        if download:
            distributed.wait_for_all()
    return whole if settings.subset is None else datasets.subset(whole, settings.subset, SUBSET_SEED), tests


def labelled(data: Dataset, name: str = "") -> Dataset:
    """The images with a label; raises ValueError, which names them, if there is none.  Where they come first nothing is copied."""
    there = data.labels >= 0
    if not (count := int(there.sum())):
        raise ValueError(f"{name or data.name} must hold labelled images, by which accuracy is measured, and has none")
    keep: slice | Tensor = slice(count) if bool(there[:count].all()) else there
    return data.take(keep)


def require_fit(settings: Settings, trained: Dataset, tests: Dataset | None) -> None:
    """Raise ValueError where the run's networks or views can't take the images, before anything is written."""
    if tests is not None and trained.class_names and tests.class_names not in ((), trained.class_names):
        names = [", ".join(images.class_names) for images in (trained, tests)]
        raise ValueError(f"{tests.name} must have the classes of {trained.name}, {names[0]}, got {names[1]}")
    for images in (trained,) if tests is None else (trained, tests):
        if images.pixels.shape[1] != settings.networks.channels:
            wanted = f"images of {settings.networks.channels} channels, as networks.channels says"
            raise ValueError(f"{images.name} must hold {wanted}, got {images.pixels.shape[1]}")
        for view in (random_view,) if tests is None else (random_view, plain):
            view(images.pixels[:1], PIPELINES[settings.pipeline])


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """Random numbers for one purpose in one epoch: a function of its arguments, on every machine."""
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@dataclass(frozen=True)
class Batches:
    """Which of so many images a step sees, and the draws of their views; this process's part of what all of them share.

    size: of all processes' batch.  shuffle: a new order every epoch; else the images' own.  drop_last: without a last batch that
    is not full.  views: of each image.  Raises ValueError if there is no batch, or one that can't be shared by the processes.
    """

    images: int
    size: int
    seed: int
    shuffle: bool = False
    drop_last: bool = True
    views: int = 2

    def __post_init__(self) -> None:
        processes, rest = distributed.world(), self.images % self.size
        if self.size % processes or self.images < self.size:
            wanted = f"a multiple of the {processes} processes and at most the {self.images} images there are"
            raise ValueError(f"batch must be {wanted}, got {self.size}")
        if not self.drop_last and rest and (rest % processes or rest < 2 * processes):
            raise ValueError(f"drop_last must be true here: {processes} processes can't share a last batch of {rest}")

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""
        return self.images // self.size + (not self.drop_last and self.images % self.size > 0)

    def order(self, epoch: int) -> Tensor:
        """The images' numbers in the order of an epoch."""
        return _permutation(self.images, self.seed, epoch) if self.shuffle else torch.arange(self.images)

    def at(self, step: int) -> tuple[Tensor, ...]:
        """Numbers of images, and the draws of each of their views, cut from those of the whole batch."""
        epoch, within = divmod(step, self.per_epoch)
        batch = self.order(epoch)[within * self.size : (within + 1) * self.size]
        parts = (batch, *(draws(len(batch), self.seed, step, view) for view in range(self.views)))
        mine = distributed.own_rows(len(batch))
        return tuple(part[mine] for part in parts)


@lru_cache(maxsize=1)
def _permutation(images: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(images, generator=generator(seed, "order", epoch))


def make_batches(settings: Settings, images: int) -> Batches:
    """The batches of so many images: of four views where weights are taken from two further ones."""
    views = 4 if weighed_by(settings.objective, **settings.loss_kwargs) == "further" else 2
    return Batches(images, settings.batch, settings.seed, settings.shuffle, settings.drop_last, views)
