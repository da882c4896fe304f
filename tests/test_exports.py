"""The front door: what `sslbook` and `sslbook.book` offer, what that costs, and where each name leads."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sslbook
import sslbook.book
from sslbook.exports import homes

PACKAGE = Path(sslbook.__file__).parent
OFFERED = sorted(homes(PACKAGE / "__init__.pyi"))


@pytest.mark.parametrize("package", [sslbook, sslbook.book])
def test_every_name_that_is_offered_is_there(package: object) -> None:
    stub = Path(package.__file__).with_suffix(".pyi")
    assert homes(stub)
    for name, home in homes(stub).items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)
        assert name in dir(package)


def test_the_docstring_names_what_is_offered_and_nothing_else() -> None:
    lines = re.findall(r"^    (\w+) +\S.*$", sslbook.__doc__, flags=re.MULTILINE)
    assert sorted(lines) == OFFERED
    assert 20 <= len(OFFERED) <= 40


def test_an_offered_name_is_no_module() -> None:
    """`import sslbook.x` would put the module in its place."""
    assert {path.stem for path in PACKAGE.glob("*")} & set(OFFERED) == set()


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'sslbook' has no attribute 'torch'"):
        _ = sslbook.torch
    from sslbook.operator import view_weights  # modules are imported as ever

    assert view_weights.__name__ == "sslbook.operator.view_weights"


IMPORT = """
import sys
import sslbook
heavy = {"torch", "numpy", "ast", "sslbook.operator.covariance"} & set(sys.modules)
assert not heavy, heavy
sslbook.covariance_operator
assert "sslbook.operator.covariance" in sys.modules
assert "sslbook.training" not in sys.modules, "one name must not load the others"
from sslbook import *
assert knn_accuracy.__module__ == "sslbook.training.evaluate"
"""


def test_nothing_is_loaded_before_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
