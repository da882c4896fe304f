"""Examples in docstrings print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for package in ("sslbook", "sslchapters") for path in sorted((ROOT / package).rglob("*.py"))]
MODULES = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in FILES if ">>> " in f.read_text("utf-8")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed
