"""Hold every number of the executed chapters to the number that stood there before.

`data/expected/<chapter>.<scale>.json` lists, by name, each number of a chapter and what it is held to. A number that
moved beyond its tolerance, a test that was changed, a number that is new and one that is gone are all problems: a
book's numbers change only on purpose, by ``sslbook execute --update-expected``.

What a number is held to follows from how the chapter reports it:

- claimed near an expected value, or measured: to its stored value, within its own ``rtol`` and ``atol``;
- claimed within bounds: to the bounds alone (the value is rounding noise, and differs from machine to machine).

Where `sslbook.book.spread` has measured how far a value moves from machine to machine, ``within`` stands beside it and takes the
tolerance's place on a processor; then the values of its rivals and broken variants are held as well, each within its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sslbook.book.layout import SCALES, Book
from sslbook.book.values import Criterion, Number, numbers
from sslbook.runtime.arguments import InputError
from sslbook.runtime.atomic_io import read_finite, write_text
from sslbook.stats.intervals import Interval

SEED = 0
"""The seed whose numbers are held; a run with another seed is not compared."""

_TEST = ("expect", "rtol", "atol", "below", "above")


@dataclass(frozen=True)
class Comparison:
    """A chapter against its expected file: how many numbers were compared, and one sentence for each that does not agree."""

    chapter: str
    scale: str
    compared: int
    problems: tuple[str, ...]

    @property
    def command(self) -> str:
        """What to run if the change is meant."""
        return f"sslbook execute {self.chapter} --scale {self.scale} --update-expected"


def read_numbers(book: Book, chapter: str, scale: str) -> list[Number]:
    """The numbers of an executed chapter; raises FileNotFoundError if it is not executed, InputError for a name given twice."""
    notebook = json.loads((book.executed(scale) / f"{chapter}.ipynb").read_text(encoding="utf-8"))
    try:
        return list(numbers(notebook))
    except ValueError as error:
        raise InputError(f"{chapter} ({scale}): {error}") from None


def compare(book: Book, chapter: str, scale: str) -> Comparison:
    """Compare an executed chapter with its expected file; a missing file holds no numbers, so that each number is new."""
    found = read_numbers(book, chapter, scale)
    held = read_expected(book.expected(chapter, scale))
    return Comparison(chapter, scale, len(found), tuple(differences(found, held)))


def differences(found: Sequence[Number], held: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One sentence for each number of ``found`` and ``held`` on which the two don't agree."""
    problems = []
    for number in found:
        if number.name not in held:
            problems.append(f"{number.name}: new, with the value {number.value!r}; nothing is expected of it yet")
        elif problem := _difference(number, held[number.name]):
            problems.append(f"{number.name}: {problem}")
    names = {number.name for number in found}
    problems += [
        f"{name}: missing; it was held to {_held_to(entry)}" for name, entry in held.items() if name not in names
    ]
    return problems


def _difference(number: Number, entry: Mapping[str, Any]) -> str:
    """What is wrong with one number, or an empty string."""
    if number.id != entry.get("id"):
        return f"belongs to {number.id or 'no claim'}; expected {entry.get('id') or 'no claim'}"
    test = Criterion(**{part: entry.get(part) for part in _TEST})
    for part in ("rtol", "atol", "below", "above"):
        now, then = getattr(number, part), getattr(test, part)
        if now != then:
            return f"{part} is {now!r}; expected {then!r}"
    tolerance = Criterion(rtol=test.rtol, atol=test.atol)
    if (number.expect is None) != (test.expect is None):
        return f"expect is {number.expect!r}; expected {test.expect!r}"
    if number.expect is not None and test.expect is not None and not _near(number.expect, test.expect, tolerance):
        return f"its theory value moved: expect is {number.expect!r}; expected {test.expect!r}"
    if test.holds_value:
        measured = entry.get("within") if number.device == "cpu" else None
        if (problem := _moved(number.value, float(entry["value"]), tolerance, measured)) is not None:
            return problem
    elif not test.passes(number.value):
        return f"{number.value!r} is not {test}"
    return _others_differ(number, entry) if number.device == "cpu" else ""


def _others_differ(number: Number, entry: Mapping[str, Any]) -> str:
    """What is wrong with the values of a check's rivals and broken variants, or an empty string."""
    held, found = entry.get("others"), others(number)
    if held is None:
        return ""
    if set(held) != set(found):
        return f"its rivals and broken variants are {_listed(found)}; expected {_listed(held)}"
    for what, (value, within) in held.items():
        problem = _moved(found[what], value, Criterion(), within) if math.isfinite(value) else None
        if problem is not None:
            return f"{what!r} {problem}"
    return ""


def others(number: Number) -> dict[str, float]:
    """The value of each rival and broken variant of a check; of an interval its mean."""
    return {
        what: value.mean if isinstance(value, Interval) else value
        for what, value in {**number.rivals, **number.rejects}.items()
    }


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _near(value: float, reference: float, tolerance: Criterion) -> bool:
    return Criterion(reference, tolerance.rtol, tolerance.atol).passes(value)


def _moved(value: float, stored: float, tolerance: Criterion, within: float | None) -> str | None:
    """How far a value is off, if that is further than ``within``, or where that is not measured than its tolerance allows."""
    allowed = Criterion(stored, tolerance.rtol, tolerance.atol).allowed() if within is None else within
    if abs(value - stored) <= allowed:
        return None
    off = abs(value - stored) if math.isfinite(value) else value
    return f"moved to {value!r}; expected {stored!r} ± {allowed:.3g} (off by {off:.3g})"


def _held_to(entry: Mapping[str, Any]) -> str:
    if "value" in entry:
        return repr(entry["value"])
    return str(Criterion(**{part: entry.get(part) for part in _TEST}))


def read_expected(path: Path) -> dict[str, dict[str, Any]]:
    """The numbers of an expected file by name; empty if there is none. Raises InputError for a file that can't be read."""
    if not path.exists():
        return {}
    try:
        held = read_finite(path)["numbers"]
        for name, found in held.items():
            _require_entry(name, found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a file of expected numbers ({error})") from None
    return dict(held)


def _require_entry(name: str, found: Any) -> None:
    """Raise ValueError unless an entry is what `entry` makes: an id or null, numbers, and what the others are and may be."""
    if not isinstance(found, dict):
        raise ValueError(f"{name} has no entry but {found!r}")
    for part in ("value", "within", *_TEST):
        given = found.get(part, 0.0)
        if not _is_number(given):
            raise ValueError(f"{part} of {name} is no number but {given!r}")
    if "value" not in found and Criterion(**{part: found.get(part) for part in _TEST}).holds_value:
        raise ValueError(f"{name} must have a value, or bounds alone, got {', '.join(map(repr, found)) or 'nothing'}")
    if not isinstance(found.get("id"), (str, type(None))):
        raise ValueError(f"id of {name} is no name but {found['id']!r}")
    others = found.get("others", {})
    if not isinstance(others, dict):
        raise ValueError(f"others of {name} are no values by name but {others!r}")
    for what, pair in others.items():
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))):
            raise ValueError(f"{what!r} of {name} is no value and its tolerance but {pair!r}")


def _is_number(given: object) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def entry(number: Number) -> dict[str, Any]:
    """What the expected file says of a number; bounds stand without the value, which they make free."""
    held: dict[str, Any] = {"id": number.id}
    if number.criterion.holds_value:
        held["value"] = number.value
    return held | {part: getattr(number, part) for part in _TEST if getattr(number, part) is not None}


def update(book: Book, chapter: str, scale: str) -> list[str]:
    """Rewrite the expected file so that the executed chapter agrees with it; returns the differences that this accepted."""
    return accept(book, chapter, scale, read_numbers(book, chapter, scale))


def accept(book: Book, chapter: str, scale: str, found: Sequence[Number]) -> list[str]:
    """Rewrite the expected file so that ``found`` agrees with it; returns the differences that this accepted.

    Entries that agree stay as they are, so that noise within the tolerance makes no diff.
    """
    path = book.expected(chapter, scale)
    held = read_expected(path)
    accepted = differences(found, held)
    if accepted or not path.exists():
        kept = {n.name: held[n.name] for n in found if n.name in held and not _difference(n, held[n.name])}
        content = {
            "chapter": chapter,
            "scale": scale,
            "seed": SEED,
            "numbers": {n.name: kept.get(n.name, entry(n)) for n in found},
        }
        write(path, content)
    return accepted


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write an expected file."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def left_out(book: Book, chapter: str, scale: str) -> list[str]:
    """Where the expected files of the other scales differ in names or claims: a sentence each, with the command that mends it."""
    here = {name: held.get("id") for name, held in read_expected(book.expected(chapter, scale)).items()}
    said = []
    for other in SCALES:
        path = book.expected(chapter, other)
        there = {name: held.get("id") for name, held in read_expected(path).items()}
        apart = sorted(name for name in here.keys() | there.keys() if here.get(name, "") != there.get(name, ""))
        if path.exists() and apart:
            command = Comparison(chapter, other, 0, ()).command
            said.append(f"{book.shown(path)} has others, or for other claims: {', '.join(apart)}; {command}")
    return said
