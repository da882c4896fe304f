"""What a run does when, as functions of its settings and of the step: orders, views, rates, new predictors, noise.

Nothing here remembers anything, and every generator is made afresh from the run's seed, a purpose and a number.  So a run that
goes on after a crash sees what it would have seen, and how many processes share a batch changes nothing.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from sslbook.training.networks.siamese import Siamese
from sslbook.training.runs import distributed
from sslbook.training.runs.schedules import SCHEDULES, Length
from sslbook.training.runs.settings import Settings
from sslbook.training.views.augment import PIPELINES, draws


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """Random numbers for one purpose in one epoch: a function of its arguments, on every machine."""
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


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


def share(settings: Settings, batch: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """This process's part of a batch: numbers of images and the draws of their two views, cut from those of the whole."""
    pipeline = PIPELINES[settings.pipeline]
    parts = (batch, *(draws(pipeline, len(batch), settings.seed, step, view) for view in (0, 1)))
    mine = distributed.own_rows(len(batch))
    return parts[0][mine], parts[1][mine], parts[2][mine]


def rate_at(settings: Settings, step: int, per_epoch: int) -> float:
    """The learning rate of a step, from 0 on, in a run with so many steps an epoch."""
    return settings.rate * SCHEDULES[settings.schedule](step, Length(per_epoch, settings.epochs, settings.warmup))


def begin_epoch(model: Siamese, settings: Settings, epoch: int) -> None:
    """A new predictor, or noise in the weights, where the settings ask for it; never before the first epoch."""
    if epoch and settings.reset and epoch % settings.reset == 0:
        model.reset_predictor(generator(settings.seed, "predictor", epoch))
    if epoch and settings.noise:
        model.blend_noise(settings.noise, generator(settings.seed, "noise", epoch))
