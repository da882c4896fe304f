"""Cells x seeds: however they are cut, spread and stopped, each replica is what it is alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sslbook.stats.sweep import sweep

CELLS, SEEDS = ["b2", "a1", "a3", "b2"], [5, 2, 5]
Replicas = Sequence[tuple[str, int]]


def trained(replicas: Replicas, log: list[list[tuple[str, int]]] | None = None) -> dict[str, Tensor]:
    """Of each replica a number that is its own, and the number with its root."""
    if log is not None:
        log.append(list(replicas))
    numbers = torch.tensor([10.0 * int(cell[1:]) + seed for cell, seed in replicas])
    return {"number": numbers, "both": torch.stack([numbers, numbers.sqrt()], 1)}


def kind(cell: str) -> str:
    return cell[0]


@pytest.mark.parametrize("most", [1, 2, 3, math.inf])
@pytest.mark.parametrize("processes", [1, 2])
def test_how_replicas_are_cut_and_spread_changes_nothing(most: float, processes: int) -> None:
    found = sweep(trained, CELLS, SEEDS, alike=kind, most=lambda cell: most, processes=processes)
    assert list(found) == ["b2", "a1", "a3"]
    assert found["a3"]["number"].tolist() == [35, 32, 35]
    assert found["b2"]["both"].flatten().tolist() == pytest.approx([25, 5, 22, 22**0.5, 25, 5])


def test_chunks_hold_one_kind_and_come_the_longest_first() -> None:
    log: list[list[tuple[str, int]]] = []
    sweep(partial(trained, log=log), CELLS, SEEDS, alike=kind, most=lambda cell: 3)
    assert log == [[("b2", 5), ("b2", 2)], [("a1", 5), ("a1", 2)], [("a3", 5), ("a3", 2)]]
    log.clear()
    sweep(partial(trained, log=log), CELLS, SEEDS, alike=kind, cost=lambda cell: 1 + 9 * (kind(cell) == "b"))
    assert [len(chunk) for chunk in log] == [2, 4]


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    log: list[list[tuple[str, int]]] = []
    make = partial(sweep, partial(trained, log=log), CELLS, alike=kind, most=lambda cell: 2, keep=tmp_path / "parts")
    whole = make(SEEDS)
    assert len(log) == len(list((tmp_path / "parts").iterdir())) == 3
    next((tmp_path / "parts").iterdir()).unlink()
    again = make(SEEDS)
    assert len(log) == 4
    for cell, found in whole.items():
        assert all(again[cell][name].equal(values) for name, values in found.items())
