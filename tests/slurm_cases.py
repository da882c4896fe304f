"""What tests on a Slurm cluster share: the script that makes one, and patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tool_cases import tool

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "slurm.py"
PATIENCE = 300.0
"""Seconds that a busy machine may take over anything."""


slurm = tool("slurm")


def there() -> None:
    """Skip the test where Slurm is not installed, with the script's sentence."""
    try:
        slurm.programs()
    except slurm.ClusterError as error:
        pytest.skip(str(error))


def until(condition: Callable[[], Any], every: float = 0.02) -> Any:
    """The first true value of ``condition``."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s"
        time.sleep(every)
    return value
