"""Which images a run learns from and is measured on, and whether its networks and views can take them."""

from __future__ import annotations

from torch import Tensor

from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.training.augment import PIPELINES, plain, random_view
from sslbook.training.objectives import weighed_by
from sslbook.training.run import distributed
from sslbook.training.run.determinism import Batches
from sslbook.training.run.settings import Settings

SUBSET_SEED = 0
"""Which images a subset holds, whatever the run's seed."""


def load_data(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """Training images, or a subset of them, and test images, as the settings name them.

    With ``download``, processes take turns: the first fetches what is missing, and the others find it there.  Raises
    FileNotFoundError, which says where they are looked for, if they are missing.
    """
    for turn in range(distributed.world()):
        if turn == distributed.rank() or not download:
            whole = datasets.load_dataset(settings.dataset, settings.split, download=download)
            tests = datasets.load_dataset(settings.dataset, "test", download=download)
        if not download:
            break
        distributed.wait_for_all()
    return whole if settings.subset is None else datasets.subset(whole, settings.subset, SUBSET_SEED), tests


def make_batches(settings: Settings, images: int) -> Batches:
    """The batches of so many images: of four views where weights are taken from two further ones."""
    views = 4 if weighed_by(settings.objective, **settings.loss_kwargs) == "further" else 2
    return Batches(images, settings.batch, settings.seed, settings.shuffle, settings.drop_last, views)


def labelled(data: Dataset, name: str = "") -> Dataset:
    """The images with a label; raises ValueError, which names them, if there is none.  Where they come first nothing is copied."""
    there = data.labels >= 0
    count = int(there.sum())
    if not count:
        raise ValueError(f"{name or data.name} must hold labelled images, by which accuracy is measured, and has none")
    keep: slice | Tensor = slice(count) if bool(there[:count].all()) else there
    return data.take(keep)


def require_fit(settings: Settings, trained: Dataset, tests: Dataset | None) -> None:
    """Raise ValueError where the run's networks or views can't take the images, before anything is written."""
    if tests is not None and trained.class_names and tests.class_names not in ((), trained.class_names):
        raise ValueError(
            f"{tests.name} must have the classes of {trained.name}, {', '.join(trained.class_names)}, got "
            f"{', '.join(tests.class_names)}: read it with classes=, the class_names of {trained.name}"
        )
    for images in (trained,) if tests is None else (trained, tests):
        count, channels = images.pixels.shape[:2]
        if not count or channels != settings.networks.channels:
            raise ValueError(
                f"{images.name} must hold images of {settings.networks.channels} channels, as networks.channels says, got "
                f"{count} of {channels}"
            )
        try:
            for view in (random_view,) if tests is None else (random_view, plain):
                view(images.pixels[:1], PIPELINES[settings.pipeline])
        except ValueError as error:
            raise ValueError(f"pipeline={settings.pipeline} is not for {images.name}: {error}") from None
