"""The book's machinery: what chapters call, and what executes, holds and renders them.

Chapters need only the names below. They are loaded when they are first used, so that tools which read executed
notebooks (the regression, the ledger) pay neither for torch nor for matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# The names are spelled twice on purpose: type checkers and the execution cache (which follows import statements, see
# `sslbook.book.cache`) read this block; Python reads the table below it.
if TYPE_CHECKING:
    from sslbook.book.claims import Run, begin, claim, measure
    from sslbook.book.exercises import check
    from sslbook.book.live import this_run
    from sslbook.book.widgets import show, slider
    from sslbook.records import Record, recorded, save_record

__all__ = [
    "Record",
    "Run",
    "begin",
    "check",
    "claim",
    "measure",
    "recorded",
    "save_record",
    "show",
    "slider",
    "this_run",
]

_HOME = {
    "Run": "sslbook.book.claims",
    "begin": "sslbook.book.claims",
    "claim": "sslbook.book.claims",
    "measure": "sslbook.book.claims",
    "check": "sslbook.book.exercises",
    "Record": "sslbook.records",
    "recorded": "sslbook.records",
    "save_record": "sslbook.records",
    "show": "sslbook.book.widgets",
    "slider": "sslbook.book.widgets",
    "this_run": "sslbook.book.live",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
