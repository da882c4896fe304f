"""A stream of random numbers for each replica, and numbers of the CPU on another device."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def to_device(drawn: Tensor, device: torch.device | str) -> Tensor:
    """Numbers of the CPU, on the device, without waiting for it; what they were drawn into can be drawn into again.

    They go through pinned memory: a copy from pageable memory waits until the device has done all that it was asked before.
    drawn: of any shape and dtype, which the result has too; on the CPU the result is ``drawn`` itself, and shares its memory.

    >>> to_device(torch.ones(2), "cpu")
    tensor([1., 1.])
    """
    place = torch.device(device)
    if place.type == "cuda" and drawn.device.type == "cpu":
        return drawn.pin_memory().to(place, non_blocking=True)
    return drawn.to(place)


class Streams:
    """Independent generators, one a seed; every draw has shape ``(len(seeds), *shape)``.

    purpose: keeps apart the streams that one seed needs for different things (its data, its weights).  A replica draws what
    it would draw alone, whatever others there are.

    >>> Streams([3, 4]).normal((2,)).equal(torch.cat([Streams([seed]).normal((2,)) for seed in (3, 4)]))
    True
    """

    def __init__(self, seeds: Sequence[int], purpose: str = "") -> None:
        words = list(purpose.encode())
        self._generators = [np.random.Generator(np.random.SFC64([operator.index(seed), *words])) for seed in seeds]

    def __len__(self) -> int:
        return len(self._generators)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        r"""Uniform numbers on [0, 1), ``(R, *shape)`` on the CPU, by the R seeds.

        out: a contiguous tensor of that shape to draw into, whose dtype then counts.  The numbers are multiples of :math:`2^{-24}`
        in float32 and of :math:`2^{-53}` in float64, so that 0 may come and 1 can't.

        >>> Streams([3, 4, 5]).uniform((2, 8)).shape
        torch.Size([3, 2, 8])
        """
        drawn = torch.empty(len(self), *shape, dtype=dtype) if out is None else out
        for generator, row in zip(self._generators, drawn.numpy(), strict=True):
            generator.random(dtype=row.dtype, out=row)
        return drawn

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Standard normal numbers, ``(R, *shape)`` on the CPU, by the R seeds: mean 0 and variance 1."""
        drawn = torch.empty(len(self), *shape, dtype=dtype)
        for generator, row in zip(self._generators, drawn.numpy(), strict=True):
            generator.standard_normal(dtype=row.dtype, out=row)
        return drawn
