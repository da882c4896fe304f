"""What a run does when, as functions of its settings and of the step: images, orders, views, rates, new predictors, noise.

Nothing here remembers anything, and every generator is made afresh from the run's seed, a purpose and a number.  So a run that
goes on after a crash sees what it would have seen, and how many processes share a batch changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Siamese
from sslbook.training.objectives import weighed_by
from sslbook.training.run import distributed
from sslbook.training.run.schedules import SCHEDULES, Length
from sslbook.training.run.settings import Settings
from sslbook.training.views.augment import PIPELINES, draws

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
    whole = datasets.load_dataset(settings.dataset, settings.split, download=download)
    if settings.subset is not None:
        whole = datasets.subset(whole, settings.subset, SUBSET_SEED)
    return whole, datasets.load_dataset(settings.dataset, "test", download=download)


def labelled(data: Dataset) -> Dataset:
    """The images with a label; raises ValueError if there is none.  Where they come first nothing is copied."""
    there = data.labels >= 0
    count = int(there.sum())
    if not count:
        raise ValueError(
            f"{data.name} must hold images with labels, by which accuracy is measured, and these have none"
        )
    keep: slice | Tensor = slice(count) if bool(there[:count].all()) else there
    return data.take(keep)


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """Random numbers for one purpose in one epoch: a function of its arguments, on every machine."""
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """New tensors are float32, whatever the caller's default is, which is put back: weights are a function of the settings."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The common generators of PyTorch, NumPy and Python begin at ``seed``, and are put back."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 -- others' code draws from it
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(devices=list(gpus)):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002


def draw_alike(seed: int, step: int, device: torch.device) -> None:
    """Let PyTorch's common generators begin a step at a function of the seed, the step and the process."""
    chosen = generator(seed, "step", step * distributed.world() + distributed.rank()).initial_seed()
    torch.default_generator.manual_seed(chosen)
    if device.type == "cuda":
        torch.cuda.manual_seed(chosen)


def steps_per_epoch(settings: Settings, images: int) -> int:
    """Batches in an epoch; raises ValueError if there is none, or if the last can't be shared by the processes."""
    processes = distributed.world()
    if settings.batch % processes:
        raise ValueError(f"batch must be a multiple of the {processes} processes, got {settings.batch}")
    if images < settings.batch:
        raise ValueError(f"batch must be at most the {images} images there are, got {settings.batch}")
    rest = images % settings.batch
    if settings.drop_last or rest == 0:
        return images // settings.batch
    if rest % processes or rest < 2 * processes:
        raise ValueError(
            f"drop_last must be true here: the last batch of {rest} can't be shared by {processes} processes, at least 2 each"
        )
    return images // settings.batch + 1


def epoch_order(settings: Settings, images: int, epoch: int) -> Tensor:
    """The images' numbers in the order of an epoch; the same in all epochs without ``shuffle``."""
    if not settings.shuffle:
        return torch.arange(images)
    return torch.randperm(images, generator=generator(settings.seed, "order", epoch))


def share(settings: Settings, batch: Tensor, step: int) -> tuple[Tensor, ...]:
    """This process's part of a batch: numbers of images and the draws of their two views, cut from those of the whole.

    Of four views where weights are taken from two further ones.
    """
    pipeline = PIPELINES[settings.pipeline]
    views = 4 if weighed_by(settings.objective, **settings.numbers) == "further" else 2
    parts = (batch, *(draws(pipeline, len(batch), settings.seed, step, view) for view in range(views)))
    mine = distributed.own_rows(len(batch))
    return tuple(part[mine] for part in parts)


def rate_at(settings: Settings, step: int, per_epoch: int) -> float:
    """The learning rate of a step, from 0 on, in a run with so many steps an epoch."""
    return settings.rate * SCHEDULES[settings.schedule](step, Length(per_epoch, settings.epochs, settings.warmup))


def begin_epoch(model: Siamese, settings: Settings, epoch: int) -> None:
    """A new predictor, or noise in the weights, where the settings ask for it; never before the first epoch."""
    if epoch and settings.reset and epoch % settings.reset == 0:
        model.reset_predictor(generator(settings.seed, "predictor", epoch))
    if epoch and settings.noise:
        model.blend_noise(settings.noise, generator(settings.seed, "noise", epoch))
