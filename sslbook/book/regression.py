"""Hold every number of the executed chapters to the number that stood there before.

`data/expected/<chapter>.<scale>.json` lists, by name, each number of a chapter and what it is held to. A number that
moved beyond its tolerance, a test that was changed, a number that is new and one that is gone are all problems: a
book's numbers change only on purpose, by ``sslbook execute --update-expected``.

What a number is held to follows from how the chapter reports it:

- claimed near an expected value, or measured: to its stored value, within its own ``rtol`` and ``atol``;
- claimed within bounds: to the bounds alone (the value is rounding noise, and differs from machine to machine).

Where `spread` has measured how far a value moves from machine to machine, ``within`` stands beside it and takes the
tolerance's place on a processor; then the values of its rivals and broken variants are held as well, each within its own.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sslbook.book.layout import SCALES, Book
from sslbook.book.values import Criterion, Number, numbers
from sslbook.runtime.arguments import InputError
from sslbook.runtime.atomic_io import read_finite, write_text
from sslbook.runtime.compute import environment
from sslbook.stats.intervals import Interval

if TYPE_CHECKING:
    from sslbook.book.execute import Setting
    from sslbook.book.layout import Chapter

SEED = 0
"""The seed whose numbers are held; a run with another seed is not compared."""

_TEST = ("expect", "rtol", "atol", "below", "above")


def command(chapter: str, scale: str) -> str:
    """What to run if a change is meant."""
    return f"sslbook execute {chapter} --scale {scale} --update-expected"


def read_numbers(book: Book, chapter: str, scale: str) -> list[Number]:
    """The numbers of an executed chapter; raises FileNotFoundError if it is not executed, InputError for a name given twice."""
    notebook = json.loads((book.executed(scale) / f"{chapter}.ipynb").read_text(encoding="utf-8"))
    try:
        return list(numbers(notebook))
    except ValueError as error:
        raise InputError(f"{chapter} ({scale}): {error}") from None


def compare(book: Book, chapter: str, scale: str) -> tuple[int, list[str]]:
    """How many numbers an executed chapter has, and a sentence for each that is not as expected; without a file each is new."""
    found = read_numbers(book, chapter, scale)
    return len(found), differences(found, read_expected(book.expected(chapter, scale)))


def differences(found: Sequence[Number], held: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One sentence for each number of ``found`` and ``held`` on which the two don't agree."""
    problems = []
    for number in found:
        if number.name not in held:
            problems.append(f"{number.name}: new, with the value {number.value!r}; nothing is expected of it yet")
        elif problem := _difference(number, held[number.name]):
            problems.append(f"{number.name}: {problem}")
    gone = held.keys() - {number.name for number in found}
    for name in [name for name in held if name in gone]:
        what = repr(held[name]["value"]) if "value" in held[name] else str(_test(held[name]))
        problems.append(f"{name}: missing; it was held to {what}")
    return problems


def _difference(number: Number, entry: Mapping[str, Any]) -> str:
    """What is wrong with one number, or an empty string."""
    if number.id != entry.get("id"):
        return f"belongs to {number.id or 'no claim'}; expected {entry.get('id') or 'no claim'}"
    test = _test(entry)
    for part in ("rtol", "atol", "below", "above"):
        now, then = getattr(number, part), getattr(test, part)
        if now != then:
            return f"{part} is {now!r}; expected {then!r}"
    if (number.expect is None) != (test.expect is None):
        return f"expect is {number.expect!r}; expected {test.expect!r}"
    if number.expect is not None and not Criterion(test.expect, test.rtol, test.atol).passes(number.expect):
        return f"its theory value moved: expect is {number.expect!r}; expected {test.expect!r}"
    on_cpu = number.device == "cpu"
    if test.holds_value:
        stated = replace(test, expect=entry["value"]).allowed()
        if problem := _moved(number.value, entry["value"], entry.get("within", stated) if on_cpu else stated):
            return problem
    elif not test.passes(number.value):
        return f"{number.value!r} is not {test}"
    return _others_differ(number, entry["others"]) if on_cpu and "others" in entry else ""


def _test(entry: Mapping[str, Any]) -> Criterion:
    return Criterion(**{part: entry.get(part) for part in _TEST})


def _others_differ(number: Number, held: Mapping[str, tuple[float, float]]) -> str:
    """What is wrong with the values of a check's rivals and broken variants, or an empty string."""
    found = _others(number)
    if held.keys() != found.keys():
        there, wanted = (", ".join(sorted(names)) or "none" for names in (found, held))
        return f"its rivals and broken variants are {there}; expected {wanted}"
    for what, (value, within) in held.items():
        if problem := _moved(found[what], value, within):
            return f"{what!r} {problem}"
    return ""


def _others(number: Number) -> dict[str, float]:
    """The value of each rival and broken variant of a check, as far as it is finite; of an interval its mean."""
    found = {**number.rivals, **number.rejects}
    means = {what: value.mean if isinstance(value, Interval) else value for what, value in found.items()}
    return {what: value for what, value in means.items() if math.isfinite(value)}


def _moved(value: float, stored: float, allowed: float) -> str:
    """How far a value is off, if that is further than is allowed."""
    if abs(value - stored) <= allowed:
        return ""
    off = abs(value - stored) if math.isfinite(value) else value
    return f"moved to {value!r}; expected {stored!r} ± {allowed:.3g} (off by {off:.3g})"


def read_expected(path: Path) -> dict[str, dict[str, Any]]:
    """The numbers of an expected file by name; empty if there is none. Raises InputError for a file that can't be read."""
    if not path.exists():
        return {}
    try:
        held: dict[str, dict[str, Any]] = dict(read_finite(path)["numbers"])
        for name, found in held.items():
            given = [found.get(part, 0.0) for part in ("value", "within", *_TEST)]
            for value, within in found.get("others", {}).values():
                given += [value, within]
            is_number = all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in given)
            if not is_number or not isinstance(found.get("id"), (str, type(None))):
                raise ValueError(f"{name} is {found}")
            if "value" not in found and _test(found).holds_value:
                raise ValueError(f"{name} must have a value, or bounds alone")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a file of expected numbers ({error})") from None
    return held


def entry(number: Number) -> dict[str, Any]:
    """What the expected file says of a number; bounds stand without the value, which they make free."""
    held: dict[str, Any] = {"id": number.id}
    if number.criterion.holds_value:
        held["value"] = number.value
    return held | {part: getattr(number, part) for part in _TEST if getattr(number, part) is not None}


def update(book: Book, chapter: str, scale: str) -> list[str]:
    """Rewrite the expected file so that the executed chapter agrees with it; returns the differences that this accepted.

    Entries that agree stay as they are, so that noise within the tolerance makes no diff.
    """
    found, path = read_numbers(book, chapter, scale), book.expected(chapter, scale)
    held = read_expected(path)
    accepted = differences(found, held)
    if accepted or not path.exists():
        kept = {n.name: held[n.name] for n in found if n.name in held and not _difference(n, held[n.name])}
        _write(path, chapter, scale, {n.name: kept.get(n.name, entry(n)) for n in found})
    return accepted


def _write(path: Path, chapter: str, scale: str, held: Mapping[str, Any]) -> None:
    content = {"chapter": chapter, "scale": scale, "seed": SEED, "numbers": held}
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
            told = f"{book.shown(path)} has others, or for other claims: {', '.join(apart)}"
            said.append(f"{told}; {command(chapter, other)}")
    return said


# --- how far numbers move when nothing is wrong ----------------------------------------------------------------------

MACHINES: Mapping[str, Mapping[str, str]] = {
    "AVX2 at most": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"},
    "no AVX": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    "two threads": {"SSLBOOK_THREADS": "2"},
}
"""Other machines, as far as this one can stand in for them: names and environment variables of oneDNN, PyTorch's own kernels, MKL
(PyTorch's matrices) and OpenBLAS (NumPy's and SciPy's)."""
SAFE, AGAIN, DEVIATIONS = 10.0, 3.0, 4.0
CHAOTIC = 1e-6
"""Relative change between machines from which on a number is taken to be as free as with another seed."""
APART = 100
"""From seed to seed: a chapter that trains networks with its seed and the next few shares none of them with itself."""
LAST_DIGITS, NOTHING = 1e-8, 1e-12
"""The least tolerance, relative and absolute: the rounding of a library that none of the machines has."""


@dataclass(frozen=True)
class Moved:
    """A value as it is held, on the other machines, and with other seeds; and how far off the chapter itself lets it be."""

    value: float
    machines: Sequence[float]
    seeds: Sequence[float]
    stated: float = math.inf

    @property
    def within(self) -> float:
        """How far the value may be off; rounded up to two digits.

        Rounding leaves most numbers where they are: ten times what the machines differed by, and never less than the last digits.
        One that rounding moves by more than a millionth (a network trained for hundreds of steps) it may move as far as another
        seed does, by four standard deviations over the seeds, but no farther than the chapter lets it, or than three times what
        the machines differed by: they are draws of it, and their largest difference is no bound of a size that is known.
        """
        drift = max((abs(there - self.value) for there in self.machines), default=0.0)
        allowed = max(SAFE * drift, LAST_DIGITS * abs(self.value), NOTHING)
        if drift > CHAOTIC * abs(self.value) and drift > NOTHING and len(self.seeds) > 1:
            allowed = max(AGAIN * drift, min(DEVIATIONS * statistics.stdev(self.seeds), self.stated))
        step = 10.0 ** (math.floor(math.log10(allowed)) - 1)
        return float(f"{math.ceil(allowed / step - 1e-6) * step:.2g}")


def spread(book: Book, chapter: Chapter, setting: Setting, seeds: int, say: Callable[[str], None]) -> list[str]:
    """Execute a chapter as other machines would, and with other seeds, and write to its expected file how far off numbers may be.

    The runs are kept below ``_build/spread``, so that the command goes on where it was stopped. Returns a sentence for each run
    that came to no end, and for each check that another seed fails: what this chapter says is then true of seed 0.
    """
    from sslbook.book.execute import execute  # of the extra `book`: the ledger does without

    here = read_numbers(book, chapter.name, setting.scale)
    machines: list[list[Number]] = []
    others: list[list[Number]] = []
    said: list[str] = []
    runs = [(name, SEED, variables, machines) for name, variables in MACHINES.items()]
    runs += [(f"seed {seed}", seed, {}, others) for seed in range(SEED + APART, SEED + APART * (seeds + 1), APART)]
    for name, seed, variables, found in runs:
        say(f"running  {chapter.name}: {name} …")
        there = replace(book, out=book.root / "_build/spread" / name.replace(" ", "-"))
        with environment(variables):
            run = replace(setting, seed=seed, lenient=True)
            outcome = execute(there, [chapter], run, jobs=1, say=lambda line: None)[0]
        if outcome.status == "failed":
            said.append(f"{name}: it came to no end: {outcome.error.strip().splitlines()[-1]}")
            continue
        found.append(read_numbers(there, chapter.name, setting.scale))
        failed = [n.name for n in found[-1] if n.criterion.asserts and not n.criterion.passes(n.result)]
        said += [f"{name}: {', '.join(failed)} would fail"] if failed else []
    held = {number.name: _with_tolerances(number, machines, others) for number in here}
    _write(book.expected(chapter.name, setting.scale), chapter.name, setting.scale, held)
    return said


def _with_tolerances(
    number: Number, machines: Sequence[Sequence[Number]], seeds: Sequence[Sequence[Number]]
) -> dict[str, Any]:
    """The entry of a number with how far it, its rivals and its broken variants may be off.

    Its value is this run's: one that was held before, and has moved within its tolerance since, would pass for a machine's drift.
    """
    here = [[n for found in runs for n in found if n.name == number.name] for runs in (machines, seeds)]
    held = entry(number)
    if "value" in held:
        there, elsewhere = ([n.value for n in same if math.isfinite(n.value)] for same in here)
        stated = Criterion(number.value, number.rtol, number.atol).allowed()
        held["within"] = Moved(number.value, there, elsewhere, stated).within
    others = {}
    for what, value in _others(number).items():
        there, elsewhere = ([_others(n)[what] for n in same if what in _others(n)] for same in here)
        others[what] = [value, Moved(value, there, elsewhere).within]
    return held | ({"others": others} if others else {})
