"""A long record in parts: each is kept on the disk as soon as it is there, and one that was stopped goes on with the others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sslbook.data_files import commit
from sslbook.files import write_text
from sslbook.records import rounded

DIGITS = 6


def folder(record: str, at: str | None) -> Path | None:
    """``recorded/<record>/<commit>`` below the folder of runs; None for code that no commit has, whose parts nothing keeps."""
    if at is None or at.endswith("+changes"):
        return None
    return Path(os.environ.get("SSLBOOK_RUNS", "runs")).expanduser().resolve() / "recorded" / record / at[:12]


def part(record: str, name: str, make: Callable[[], Any]) -> Any:
    """What ``make`` returns, rounded and plain, from the disk if this commit has made this part before."""
    place = folder(record, commit())
    path = place and place / f"{name}.json"
    if path is not None and path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    values = rounded(make(), digits=DIGITS)
    if path is not None:
        write_text(path, json.dumps(values, allow_nan=False))
        print(f"{record}: {name} is done", flush=True)
    return values
