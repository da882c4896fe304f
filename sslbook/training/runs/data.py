"""What a run learns from, and what it is judged by: the images that its settings name."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from sslbook import datasets
from sslbook.datasets import Dataset
from sslbook.training.runs import distributed
from sslbook.training.runs.settings import Settings

SUBSET_SEED = 0
"""Which images a subset holds, whatever the run's seed."""


def images_of(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """:func:`load_data` of several processes; one of each machine downloads, while the others wait."""
    if download:
        for downloads in (distributed.rank() == 0, distributed.rank() != 0 and distributed.first_here()):
            if downloads:
                load_data(settings, download=True)  # the second time on another machine, unless the folder is shared
            distributed.wait_for_all()
    return load_data(settings)


def load_data(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """Training images, or a subset of them, and test images."""
    whole = datasets.load(settings.dataset, settings.split, download=download)
    if settings.subset is not None:
        whole = datasets.subset(whole, settings.subset, SUBSET_SEED)
    return whole, datasets.load(settings.dataset, "test", download=download)


def labelled(data: Dataset) -> Dataset:
    """The images with a label; raises ValueError if there is none.  Where they come first nothing is copied."""
    there = data.labels >= 0
    count = int(there.sum())
    if not count:
        raise ValueError(
            f"{data.name} must hold images with labels, by which accuracy is measured, and these have none"
        )
    keep: slice | Tensor = slice(count) if bool(there[:count].all()) else there
    return replace(data, pixels=data.pixels[keep], labels=data.labels[keep])
