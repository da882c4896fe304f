"""What a run draws, as functions of its seed and of the epoch or step: orders of images, views, new predictors, noise.

Nothing here remembers anything, and every generator is made afresh from the run's seed, a purpose and a number.  So a run that
goes on after a crash sees what it would have seen, and how many processes share a batch changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sslbook.training.augment import draws
from sslbook.training.run import distributed


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """Random numbers for one purpose in one epoch: a function of its arguments, on every machine."""
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def draw_alike(seed: int, step: int, device: torch.device) -> None:
    """Let PyTorch's common generators begin a step at a function of the seed, the step and the process."""
    chosen = generator(seed, "step", step * distributed.world() + distributed.rank()).initial_seed()
    torch.default_generator.manual_seed(chosen)
    if device.type == "cuda":
        torch.cuda.manual_seed(chosen)


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
        if self.size % processes:
            raise ValueError(f"batch must be a multiple of the {processes} processes, got {self.size}")
        if self.images < self.size:
            raise ValueError(f"batch must be at most the {self.images} images there are, got {self.size}")
        if not self.drop_last and rest and (rest % processes or rest < 2 * processes):
            raise ValueError(
                f"drop_last must be true here: the last batch of {rest} can't be shared by {processes} processes, "
                "at least 2 each"
            )

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
