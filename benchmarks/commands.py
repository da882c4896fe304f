"""The commands ``sslbook bench`` and ``sslbook gpu``."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

BENCHMARKS = ("covariance", "tables", "training")


def bench(arguments: Sequence[str]) -> int:
    """Run a benchmark: covariance, tables or training."""
    parser = argparse.ArgumentParser(prog="sslbook bench", description=bench.__doc__)
    parser.add_argument("name", choices=BENCHMARKS, metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="of training: these stages (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, a moment each")
    options = parser.parse_args(arguments)
    from benchmarks import report

    return report(importlib.import_module(f"benchmarks.{options.name}").run(options))


def gpu(arguments: Sequence[str]) -> int:
    """Do all that the book wants of a GPU."""
    from benchmarks import gpu as plan

    return plan.main(arguments)
