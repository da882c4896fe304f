"""Cells x seeds: cut into chunks, spread over processes, kept as they are finished, and joined.

A replica is one cell with one seed.  If all shared one generator, the numbers that a replica gets would depend on how many others
run beside it; with streams of its own (`sslbook._random.Streams`) it draws what it would draw alone, however replicas are cut.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from sslbook._check import require_whole
from sslbook._files import atomic
from sslbook._machine import MMAP_THRESHOLD, TRIM_THRESHOLD, end_with_parent

C = TypeVar("C", bound=Hashable)
Found = Mapping[str, Tensor]

WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD),
}
"""One thread, and an allocator that suits a training step."""


def sweep(
    train: Callable[[Sequence[tuple[C, int]]], Found],
    cells: Sequence[C],
    seeds: Sequence[int],
    *,
    alike: Callable[[C], Hashable],
    most: Callable[[C], float] = lambda cell: float("inf"),
    cost: Callable[[C], float] = lambda cell: 1.0,
    processes: int = 1,
    keep: Path | None = None,
) -> dict[C, dict[str, Tensor]]:
    """For each cell what ``train`` measures of its replicas, ``(seeds, ...)``.

    train: of a chunk of (cell, seed), cell by cell, what is measured by name, ``(replicas, ...)`` each; with several ``processes``
        it is sent to them.
    alike: cells of which it is the same train side by side; ``most`` replicas of a cell make a chunk.
    cost: of a replica, for the longest chunks to come first.
    keep: a folder where a finished chunk is a file, and not made again.
    """
    kinds: dict[Hashable, list[tuple[C, int]]] = {}
    for cell in dict.fromkeys(cells):
        kinds.setdefault(alike(cell), []).extend((cell, seed) for seed in dict.fromkeys(seeds))
    chunks: list[list[tuple[C, int]]] = []
    for replicas in kinds.values():
        least = min(-(-processes // len(kinds)), len(replicas))
        pieces = max(least, -int(-len(replicas) // max(most(replicas[0][0]), 1)))
        edges = [len(replicas) * piece // pieces for piece in range(pieces + 1)]
        chunks += [replicas[start:end] for start, end in itertools.pairwise(edges)]
    chunks.sort(key=lambda chunk: -len(chunk) * cost(chunk[0][0]))
    measured = spread(partial(_kept, train, keep), [(chunk,) for chunk in chunks], processes)
    found = {
        replica: {name: values[place] for name, values in of_chunk.items()}
        for chunk, of_chunk in zip(chunks, measured, strict=True)
        for place, replica in enumerate(chunk)
    }
    return {
        cell: {name: torch.stack([found[cell, seed][name] for seed in seeds]) for name in found[cell, seeds[0]]}
        for cell in dict.fromkeys(cells)
    }


def _kept(
    train: Callable[[Sequence[tuple[C, int]]], Found], keep: Path | None, chunk: Sequence[tuple[C, int]]
) -> Found:
    if keep is None:
        return train(chunk)
    path = keep / f"{hashlib.sha256(repr(chunk).encode()).hexdigest()[:16]}.pt"
    if not path.is_file():
        with atomic(path) as part:
            torch.save(dict(train(chunk)), part)
    return torch.load(path, weights_only=True)


T = TypeVar("T")


def spread(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int) -> list[T]:
    """``function(*job)`` of all jobs, in their order; with more than one worker a process each, a job at a time.

    Workers have the :data:`WORKER_ENVIRONMENT`, and end with this process.  Raises ValueError for none of them.
    """
    if require_whole("processes", processes, least=1) == 1:
        return [function(*job) for job in jobs]
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    with patch.dict(os.environ, WORKER_ENVIRONMENT), pool:
        return [call.result() for call in [pool.submit(function, *job) for job in jobs]]


def _begin_worker() -> None:
    end_with_parent()
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Study:
    """A record that is declared: what makes its values from seeds, and those that it is made with."""

    values: Callable[[tuple[int, ...]], dict[str, Any]]
    seeds: tuple[int, ...]
