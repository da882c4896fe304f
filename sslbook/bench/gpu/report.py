"""What a folder of ``sslbook gpu`` holds, as a table to read and as one small file to carry."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sslbook.bench.gpu.desk import MACHINE, SPENT, Desk
from sslbook.bench.gpu.plan import Step
from sslbook.files import atomic

ARCHIVE = "results.zip"
CARRIED = (
    MACHINE,
    SPENT,
    "done/**/*.json",
    "executed/**/*.failed.ipynb",
    "records/*.json",
    "runs/*/result.json",
    "runs/*/log.csv",
    "logs/*",
)
"""What the archive holds: all but checkpoints."""
BARS = {"A-Tab6": 60.0, "C-Tab1": 60.0}
"""Seconds that a table may take."""


def table(desk: Desk, steps: Sequence[Step]) -> str:
    """A line for each item that is done, under its step."""
    lines = []
    for step in steps:
        items = desk.done(step.name)
        lines += [f"{step.name}: {step.what}" + ("" if items else ": nothing yet")]
        lines += [f"  {name:<28} {text}" for name, values in items.items() for text in _brief(step.name, name, values)]
    return "\n".join(lines)


def _brief(step: str, item: str, values: dict[str, Any]) -> Iterator[str]:
    """What an item gave, in a line or a few."""
    if step == "tests":
        yield f"{values['passed']} passed, {values['failed']} failed, {values['skipped']} skipped"
        yield from values["failures"]
    elif step == "bench":
        for row in values["rows"]:
            value = "no number" if row["value"] is None else f"{row['value']:.4g}"
            yield f"{row['what']}: {value} {row['unit']} {row['verdict']}".rstrip()
    elif "diverged" in values:
        yield str(values["diverged"])
    elif step in ("simclr", "byol"):
        accuracy = f"linear {100 * values['linear']:.2f} % (best {100 * values['linear_best']:.2f} %)"
        yield f"{accuracy} after {values['epoch']} epochs, {values['seconds']:.0f} s"
    elif step == "chapters":
        yield from _chapter(values)
    elif step == "tables":
        seconds, bar = values["seconds"], BARS[item]
        yield f"{seconds:.0f} s (bar: {bar:.0f} s{'' if seconds <= bar else ', MISSED'})"
    else:
        ((first, *_), *_) = values["values"]["runs"].values()
        yield f"{len(first[0]['names'])} layers, {values['seconds']:.0f} s"


def wrong(desk: Desk) -> list[str]:
    """A sentence for each item that is done and not as it should be: tests that failed, chapters that came to no end."""
    failed = desk.done("tests").get("gpu", {}).get("failed", 0)
    told = [f"tests: {failed} failed"] if failed else []
    return told + [f"chapters: {name} failed" for name, values in desk.done("chapters").items() if values["error"]]


def _chapter(values: dict[str, Any]) -> Iterator[str]:
    if values["error"]:
        yield f"failed after {values['seconds']:.0f} s: {str(values['error']).strip().splitlines()[-1]}"
        return
    yield f"{values['agreed']} of {values['compared']} numbers as expected, {values['seconds']:.0f} s"
    yield from values["differences"]


def pack(desk: Desk) -> Path:
    """Write all that is worth carrying into one file in the folder, and return it."""
    target = desk.folder / ARCHIVE
    with atomic(target) as fresh, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted({path for pattern in CARRIED for path in desk.folder.glob(pattern) if path.is_file()}):
            archive.write(path, path.relative_to(desk.folder))
    return target
