"""One number of the book: what it is, what it is held to, and how it travels inside a notebook.

A number leaves a chapter as a ``display_data`` output that Jupyter Book can paste into a sentence (``{glue:text}``)
and that carries its whole record in the output's metadata. So the sentence, the regression and the ledger read the
same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

GLUE_PREFIX = "application/papermill.record/"
"""Prefix of the MIME type under which papermill and MyST-NB store a glued value."""

RECORD_KEY = "sslbook"
"""Key of the output's metadata under which the full record stands."""


@dataclass(frozen=True)
class Criterion:
    """The test that a value must pass: near an expected value, or within bounds, or both.

    ``|x - expect| <= atol + rtol |expect|`` when ``expect`` is given; ``x <= below`` and ``x >= above`` when those
    are. A number that is not finite passes no criterion.
    """

    expect: float | None = None
    rtol: float | None = None
    atol: float | None = None
    below: float | None = None
    above: float | None = None

    @property
    def asserts(self) -> bool:
        """Whether there is anything to test: a bare tolerance (as `measure` has) asserts nothing."""
        return not (self.expect is None and self.below is None and self.above is None)

    @property
    def holds_value(self) -> bool:
        """Whether a run is held to the value that another had; within bounds alone the value is free (rounding noise)."""
        return self.expect is not None or not self.asserts

    def allowed(self) -> float:
        """The largest distance from ``expect`` that passes."""
        return (self.atol or 0.0) + (self.rtol or 0.0) * abs(self.expect or 0.0)

    def passes(self, value: float) -> bool:
        """Whether ``value`` meets every part of the criterion."""
        if not math.isfinite(value):
            return False
        near = self.expect is None or (math.isfinite(self.expect) and abs(value - self.expect) <= self.allowed())
        return near and (self.below is None or value <= self.below) and (self.above is None or value >= self.above)

    def __str__(self) -> str:
        """The criterion in symbols, to be read after the value: ``≈ 0.5 ± 1e-09``, ``≤ 1e-12``."""
        parts = []
        if self.expect is not None:
            parts.append(f"≈ {short(self.expect)} ± {short(self.allowed())}")
        if self.below is not None:
            parts.append(f"≤ {short(self.below)}")
        if self.above is not None:
            parts.append(f"≥ {short(self.above)}")
        return " and ".join(parts)


@dataclass(frozen=True)
class Number:
    """A number that a chapter claimed (`claim`) or measured (`measure`), with everything that says where it comes from.

    ``seconds`` is the time from the start of the cell to the number. ``rejects`` maps each deliberately broken
    variant to the value measured on it. ``anchor`` is the id of the check's line in the page, or None if the page
    does not show it; it is not stored but read from the cell's tags.
    """

    name: str
    value: float
    id: str | None
    chapter: str
    scale: str
    seed: int
    device: str
    device_name: str
    dtype: str
    seconds: float
    versions: Mapping[str, str]
    expect: float | None = None
    rtol: float | None = None
    atol: float | None = None
    below: float | None = None
    above: float | None = None
    rejects: Mapping[str, float] = field(default_factory=dict)
    why: str | None = None
    anchor: str | None = None

    @property
    def criterion(self) -> Criterion:
        """The test that the value passed when it was claimed."""
        return Criterion(self.expect, self.rtol, self.atol, self.below, self.above)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON can hold it: a broken variant's NaN or infinity becomes a string."""
        record = asdict(self)
        del record["anchor"]
        record["versions"] = dict(self.versions)
        record["rejects"] = {k: v if math.isfinite(v) else str(v) for k, v in self.rejects.items()}
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any], *, anchor: str | None = None) -> Number:
        """The inverse of `to_json`; keys that this version does not know are ignored."""
        known = {f.name for f in fields(cls)} - {"anchor"}
        kept = {k: v for k, v in record.items() if k in known}
        kept["rejects"] = {k: float(v) for k, v in (record.get("rejects") or {}).items()}
        return cls(**kept, anchor=anchor)


def short(value: float) -> str:
    """A number for a line of text: three significant digits; whole numbers below a million in full."""
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def anchor_id(name: str) -> str:
    """The HTML id of the line that shows the number ``name``."""
    return f"check-{name}"


HIDDEN_TAGS = frozenset({"remove-cell", "remove-output", "remove_cell", "remove_output"})
"""Cell tags under which the page shows no output, and so has no line to link to."""


def numbers(notebook: Mapping[str, Any]) -> Iterator[Number]:
    """Every `Number` in an executed notebook (as parsed JSON), in the order in which the chapter produced them.

    Raises ValueError if a name occurs twice: two cells would then glue two values under one name.
    """
    seen: set[str] = set()
    for cell in notebook["cells"]:
        shown = not HIDDEN_TAGS & set(cell.get("metadata", {}).get("tags", ()))
        for output in cell.get("outputs", ()):
            record = output.get("metadata", {}).get(RECORD_KEY)
            if output.get("output_type") != "display_data" or not isinstance(record, Mapping) or "name" not in record:
                continue
            name = record["name"]
            if name in seen:
                raise ValueError(f"the number {name!r} is produced twice in one chapter; names are unique per chapter")
            seen.add(name)
            yield Number.from_json(record, anchor=anchor_id(name) if shown else None)
