"""Numbers that are held to what stood there before, where nothing else says what they should be.

A broken variant must be far off, but by how much no theorem says, and a change of the variant itself would go unnoticed.
So its value is kept in `held.json`, as those of the chapters are in `data/expected`.
``SSLBOOK_HOLD=1 pytest -n0 tests/test_….py`` writes it anew.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("held.json")
WITHIN = 1e-6
"""Relative. On processors that stand in for others (AVX2 at most, no AVX, two threads) the values move by less than 1e-9."""
ROUNDING = 1e-8
_calls: Counter[str] = Counter()


def hold(values: Mapping[str, float], within: float = WITHIN) -> None:
    """Compare numbers with those that this call of this test had before, all but what may be rounding.

    within: for what is computed in single precision, some thousand times its epsilon.
    """
    values = {name: value for name, value in values.items() if abs(value) > ROUNDING}
    path, _, name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
    test = f"{Path(path).name}::{name}"
    _calls[test] += 1
    key = test if _calls[test] == 1 else f"{test} {_calls[test]}"
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if os.environ.get("SSLBOOK_HOLD"):
        known[key] = {name: float(f"{value:.10g}") for name, value in values.items()}
        FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert key in known, f"nothing is held for it yet: SSLBOOK_HOLD=1 pytest -n0 '{path}::{name}'"
    assert dict(values) == pytest.approx(known[key], rel=within, abs=0), "it was otherwise before"
