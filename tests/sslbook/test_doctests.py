"""Examples in docstrings print what they say."""

import doctest
import importlib

import pytest

MODULES = (
    *("operator.covariance", "operator.eigen", "operator.layer", "operator.view_weights", "inspect.measure"),
    *("losses.pairs", "losses.batch", "networks.batchnorm", "networks.siamese", "networks.small", "_ambient"),
    *("trees.exact", "trees.latent"),
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"sslbook.{name}"), optionflags=doctest.ELLIPSIS)
    assert found.attempted or name == "losses.batch"
    assert not found.failed
