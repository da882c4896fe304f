"""The commands ``sslbook bench`` and ``sslbook gpu``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from sslbook._check import unknown

BENCHMARKS = ("covariance", "tables", "training")


def bench(arguments: Sequence[str]) -> int:
    """Run a benchmark: covariance, tables or training."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: sslbook bench NAME [--quick] [--json], with one of {', '.join(BENCHMARKS)}")
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    return int(importlib.import_module(f"benchmarks.{name}").main(rest) or 0)


def gpu(arguments: Sequence[str]) -> int:
    """Do all that the book wants of a GPU."""
    from benchmarks import gpu as plan

    return int(plan.main(arguments))
