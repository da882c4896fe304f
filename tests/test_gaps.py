"""One verdict over many instances."""

from __future__ import annotations

import math

import pytest

from sslbook.gaps import worst


def test_the_largest_identity_and_the_smallest_break() -> None:
    rows = [{"a": 1.0, "broken: b": 5.0}, {"a": 2.0, "broken: b": 3.0, "c": 0.5}]
    assert worst(rows) == {"a": 2.0, "broken: b": 3.0, "c": 0.5, "instances": 2.0}


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("name", ["a", "broken: b"])
def test_nan_is_no_verdict(name: str, at: int) -> None:
    rows = [{"a": 1.0, "broken: b": 5.0}, {"a": 2.0, "broken: b": 3.0}]
    rows[at][name] = math.nan
    with pytest.raises(ValueError, match=f"the gap '{name}' of an instance is not a number"):
        worst(rows)


def test_no_instance_is_no_verdict() -> None:
    with pytest.raises(ValueError, match="no instance is left"):
        worst([])
