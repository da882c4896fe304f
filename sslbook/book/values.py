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

from sslbook.stats.intervals import Interval

GLUE_PREFIX = "application/papermill.record/"
"""Prefix of the MIME type under which papermill and MyST-NB store a glued value."""

RECORD_KEY = "sslbook"
"""Key of the output's metadata under which the full record stands."""


Value = float | Interval
"""What a check is of: one number, or an estimate with the ends of its interval."""


@dataclass(frozen=True)
class Criterion:
    """The test that a value must pass: near an expected value, or within bounds, or both.

    ``|x - expect| <= atol + rtol |expect|`` when ``expect`` is given; ``x <= below`` and ``x >= above`` when those
    are. A number that is not finite passes no criterion; an `Interval` passes only if the whole of it does.
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

    def passes(self, value: Value) -> bool:
        """Whether ``value`` meets every part of the criterion."""
        if isinstance(value, Interval):
            return self.passes(value.low) and self.passes(value.high)
        if not math.isfinite(value):
            return False
        near = self.expect is None or (math.isfinite(self.expect) and abs(value - self.expect) <= self.allowed())
        return near and (self.below is None or value <= self.below) and (self.above is None or value >= self.above)

    def __str__(self) -> str:
        """The criterion in symbols, to be read after the value: ``≈ 0.5 ± 1e-09``, ``≤ 1e-12``."""
        parts = []
        if self.expect is not None:
            ends = (self.expect - self.allowed(), self.expect + self.allowed())
            parts.append(f"≈ {short(self.expect, *ends)} ± {short(self.allowed())}")
        if self.below is not None:
            parts.append(f"≤ {short(self.below)}")
        if self.above is not None:
            parts.append(f"≥ {short(self.above)}")
        return " and ".join(parts)


@dataclass(frozen=True)
class Number:
    """A number that a chapter claimed (`claim`) or measured (`measure`), with everything that says where it comes from.

    ``what`` says in words what was measured. ``seconds`` is the time from the start of the cell to the number.
    ``rejects`` maps each deliberately broken variant to the value measured on it, ``rivals`` each wrong theory. An
    estimate with an interval is four numbers: its mean, which has ``low``, ``high`` and ``n`` too, and three more that
    are each ``part_of`` it. ``anchor`` is the id of the check's line in the page, or None if the page does not show it;
    it is not stored but read from the cell's tags.
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
    rejects: Mapping[str, Value] = field(default_factory=dict)
    why: str | None = None
    what: str | None = None
    rivals: Mapping[str, Value] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    n: int | None = None
    part_of: str | None = None
    anchor: str | None = None

    @property
    def criterion(self) -> Criterion:
        """The test that the value passed when it was claimed."""
        return Criterion(self.expect, self.rtol, self.atol, self.below, self.above)

    @property
    def bars(self) -> list[float]:
        """What a value must not cross, as the criterion has it: the bounds, and the ends of what is near enough."""
        test = self.criterion
        ends = [] if test.expect is None else [test.expect - test.allowed(), test.expect + test.allowed()]
        return ends + [bound for bound in (test.below, test.above) if bound is not None]

    @property
    def result(self) -> Value:
        """What was claimed or measured: the value, or the whole interval."""
        if self.low is None or self.high is None or self.n is None:
            return self.value
        return Interval(self.value, self.low, self.high, self.n)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON can hold it: a broken variant's NaN or infinity becomes a string, an interval an object."""
        record = asdict(self)
        del record["anchor"]
        record["versions"] = dict(self.versions)
        for part in ("rejects", "rivals"):
            for what, value in getattr(self, part).items():
                if not isinstance(value, Interval) and not math.isfinite(value):
                    record[part][what] = str(value)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any], *, anchor: str | None = None) -> Number:
        """The inverse of `to_json`; keys that this version does not know are ignored."""
        known = {f.name for f in fields(cls)} - {"anchor"}
        kept = {k: v for k, v in record.items() if k in known}
        # Jupyter makes a string of a number that is not finite.
        kept |= {k: float(kept[k]) for k in ("value", "low", "high") if isinstance(kept.get(k), str)}
        for part in ("rejects", "rivals"):
            kept[part] = {
                what: Interval(**v) if isinstance(v, Mapping) else float(v)
                for what, v in (record.get(part) or {}).items()
            }
        return cls(**kept, anchor=anchor)


def short(value: Value, *bounds: float) -> str:
    """A number for a line of text: three significant digits; whole numbers below a million in full; an interval in brackets.

    More digits where three would say what is not so: that the number is whole, or on another side of one of ``bounds``.
    """
    if isinstance(value, Interval):
        low, high = short(value.low, *bounds), short(value.high, *bounds)
        return f"{short(value.mean, *bounds)} ({low} to {high}, n = {value.n})"
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    for digits in range(3, 17):
        text = f"{value:.{digits}g}"
        shown = float(text)
        whole = digits < 6 and abs(value) < 1e5 and shown.is_integer()
        if not whole and all((shown > b) == (value > b) and (shown < b) == (value < b) for b in bounds):
            return text
    return repr(value)


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
