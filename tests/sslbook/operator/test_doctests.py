"""Examples in docstrings print what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["operator.covariance", "operator.eigen", "operator.layer", "operator.view_weights", "inspect.measure"]
)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"sslbook.{name}"), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed
