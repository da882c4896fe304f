"""Relative errors and one verdict over many instances; a stream for each replica; cells and seeds, cut and spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sslchapters.checks import Comparison, over, relative, rounding, worst
from sslchapters.sweep import sweep


def test_a_relative_error_is_that_of_each_instance() -> None:
    reference = torch.tensor([[[3.0], [4.0]], [[0.0], [2.0]]])
    value = reference + torch.tensor([[[0.0], [1.0]], [[3.0], [4.0]]])
    assert relative(value, reference).tolist() == pytest.approx([0.2, 2.5])
    assert relative(value.numpy(), reference.numpy()).tolist() == pytest.approx([0.2, 2.5])
    with pytest.raises(ValueError, match="reference must not be zero in any instance"):
        relative(value, torch.zeros_like(value))


def test_the_largest_identity_and_the_smallest_break() -> None:
    assert rounding(3, 2.0) == 6 * 2**-52
    rows = [{"a": 1.0, "broken: b": 5.0}, {"a": 2.0, "broken: b": 3.0, "c": 0.5}]
    assert worst(rows) == {"a": 2.0, "broken: b": 3.0, "c": 0.5, "instances": 2.0}


def test_a_check_is_a_generator_of_comparisons() -> None:
    @over(lambda count, seed: range(seed, seed + count))
    def halves(number: int, unit: float = 1.0) -> Iterator[Comparison]:
        """Of odd numbers."""
        if number % 2:
            yield "twice", torch.tensor([number + 1e-3]), torch.tensor([float(number)])
            yield "broken: unit", unit / number, None

    assert halves(4, 1) == {"twice": pytest.approx(1e-3, rel=1e-3), "broken: unit": 1 / 3, "instances": 2}
    assert halves(4, 1, unit=3.0)["broken: unit"] == 1
    assert halves.__doc__ == "Of odd numbers."
    with pytest.raises(ValueError, match="no instance is left"):
        halves(1, 2)

    @over(lambda count, seed: [torch.ones(2, 2)], error=lambda a, b: float((a - b).abs().max()))
    def largest(ones: torch.Tensor) -> Iterator[Comparison]:
        yield "ones", ones, 3 * ones

    assert largest(1) == {"ones": 2, "instances": 1}


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


@pytest.mark.parametrize(("most", "processes"), [(1, 1), (2, 2), (math.inf, 1)])
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
