"""Relative errors, and one verdict over many instances."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sslbook.stats import checks
from sslbook.stats.checks import Comparison, over, over_instances, relative, relative_gap, worst


def test_a_relative_error_is_that_of_each_instance() -> None:
    reference = torch.tensor([[[3.0], [4.0]], [[0.0], [2.0]]])
    value = reference + torch.tensor([[[0.0], [1.0]], [[3.0], [4.0]]])
    assert relative(value, reference).tolist() == pytest.approx([0.2, 2.5])
    assert relative(value.numpy(), reference.numpy()).tolist() == pytest.approx([0.2, 2.5])
    with pytest.raises(ValueError, match="reference must not be zero in any instance"):
        relative(value, torch.zeros_like(value))


def test_a_relative_gap_is_in_the_batch_s_scale() -> None:
    reference, value = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert relative_gap(value, reference) == pytest.approx(0.2)  # against the largest item, not the item's own zero
    assert relative_gap(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0])) == pytest.approx(1.0)


@pytest.mark.parametrize("error", [relative, relative_gap])
def test_shapes_that_differ_are_not_compared(error) -> None:
    with pytest.raises(ValueError, match=r"value and reference must have one shape, got \(2, 1\) and \(2, 3\)"):
        error(torch.ones(2, 1), torch.ones(2, 3))


def test_the_largest_identity_and_the_smallest_break() -> None:
    rows = [{"a": 1.0, "broken: b": 5.0}, {"a": 2.0, "broken: b": 3.0, "c": 0.5}]
    assert worst(rows) == {"a": 2.0, "broken: b": 3.0, "c": 0.5, "instances": 2.0}


def test_parts_are_instances_after_instances() -> None:
    parts = ({"a": torch.tensor([1.0, 4.0]), "broken: b": torch.tensor([5.0, 7.0])}, {"a": np.array([2.0])})
    assert over_instances(*parts) == {"a": 4.0, "broken: b": 5.0, "instances": 3.0}
    with pytest.raises(ValueError, match=r"each part must have one number of instances, got \[1, 2\]"):
        over_instances({"a": torch.ones(2), "b": torch.ones(1)})


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("name", ["a", "broken: b"])
def test_nan_is_no_verdict(name: str, at: int) -> None:
    rows = [{"a": 1.0, "broken: b": 5.0}, {"a": 2.0, "broken: b": 3.0}]
    rows[at][name] = math.nan
    with pytest.raises(ValueError, match=f"the gap '{name}' of an instance is not a number"):
        worst(rows)


def test_no_instance_is_no_verdict() -> None:
    for nothing in (lambda: worst([]), over_instances, lambda: over_instances({"a": torch.ones(0)})):
        with pytest.raises(ValueError, match="no instance is left"):
            nothing()


def test_a_vector_is_one_row() -> None:
    assert relative_gap(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0])) == pytest.approx(2**0.5)


def test_a_check_is_a_generator_of_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", made := {})

    @over(lambda count, seed: range(seed, seed + count), unit=(1.0, 3.0))
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
    assert [name.rpartition(", ")[2] for name in made] == ["1.0", "3.0"]
    assert [check(1, 1)["broken: unit"] for check in made.values()] == [1, 3]

    @over(lambda count, seed: [torch.ones(2, 2)], error=lambda a, b: float((a - b).abs().max()))
    def largest(ones: torch.Tensor) -> Iterator[Comparison]:
        yield "ones", ones, 3 * ones

    assert largest(1) == {"ones": 2, "instances": 1}
