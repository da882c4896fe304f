"""The ledger: every claim of the papers, its verdict, and the checks that stand behind it; and what each number is held to.

`data/claims.yml` says what is owed and what the verdict is; the executed notebooks say what was checked. Here the two
are joined, for the command line (`as_json`) and for the reader (`page`), and held against each other (`problems`).

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
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sslbook.book.layout import SCALES, Book, Chapter, Setting, find_chapters, read_yaml
from sslbook.book.values import NOBREAK, Criterion, Number, Value, entry_anchor, numbers, outcome
from sslbook.runtime.arguments import InputError, counted, unknown
from sslbook.runtime.atomic_io import read_finite, write_text
from sslbook.runtime.compute import environment
from sslbook.stats.intervals import Interval

KINDS = {"I": "identity", "B": "bound", "L": "limit", "D": "dynamics", "T": "table or figure"}

VERDICTS: Mapping[str, str] = {
    "holds": "the claim is right as the paper states it",
    "holds with the correction": "the claim is right once a factor, sign or hypothesis is corrected; both versions are computed",
    "fails as stated": "a counterexample shows that the claim, or a part of it, is false",
    "trend holds, numbers differ": "our runs show the trend of a table or figure, but are smaller or follow another protocol",
    "trend holds, no numbers to compare": "our runs show the trend of a figure without numbers; the note says where it fails",
    "trend not seen": "our runs are smaller than a table's, or follow another protocol, and do not show its trend",
    "undecided": "our runs are smaller than a table's, or follow another protocol, and do not decide whether its trend holds",
    "beyond the papers": "no claim of theirs: the book measured it",
    "open": "no run of the claim's size has been made; the note says what smaller runs show",
}
"""What a claim can come to, and what each word means."""

TAGS = dict(
    zip(VERDICTS, ("holds", "corrected", "fails", "trend", "trend", "trend", "open", "open", "open"), strict=True)
)
"""The style class of each verdict's tag, after `sslbook-verdict-`: the style sheet gives it its colour."""

PAPERS = {"A": "tian2020", "B": "tian2021iclr", "C": "tian2023"}
"""What the first letter of an id stands for: keys of the bibliography."""


@dataclass(frozen=True)
class Claim:
    """One line of `data/claims.yml`; ``errata`` is the label of its entry in the errata, if it has one."""

    id: str
    paper: str
    statement: str
    chapter: str
    kind: str
    verdict: str
    note: str = ""
    errata: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"{self.id}: kind: got {self.kind!r}; allowed are {', '.join(KINDS)}")
        if self.verdict not in VERDICTS:
            raise InputError(f"{self.id}: verdict: got {self.verdict!r}; allowed are {'; '.join(VERDICTS)}")


@dataclass(frozen=True)
class Entry:
    """A claim with the numbers that carry its id, in the order of the book: checks first, then plain measurements."""

    claim: Claim
    numbers: tuple[Number, ...] = ()

    @property
    def checks(self) -> tuple[Number, ...]:
        """The numbers that assert something."""
        return tuple(number for number in self.numbers if number.criterion.asserts)


def read_claims(path: Path) -> list[Claim]:
    """The claims in file order. Raises InputError for a missing or unknown field, kind or verdict, or an id given twice."""
    claims = []
    for row in read_yaml(path, list):
        try:
            told = {"note": ""} | row
            claims.append(Claim(**told | {"note": re.sub(r"\{held\}`[^`]*`", "", told["note"])}))  # what a test reads
        except TypeError as error:
            told = row.get("id", row) if isinstance(row, dict) else row
            raise InputError(f"{path.name}: {told}: {error}") from None
    twice = [id for id, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise InputError(f"{path.name}: given twice: {', '.join(twice)}")
    return claims


def all_numbers(book: Book, scale: str) -> list[Number]:
    """The numbers of every chapter that has been executed at ``scale``."""
    names = [chapter.name for chapter in find_chapters(book) if chapter.runs]
    done = [name for name in names if (book.executed(scale) / f"{name}.ipynb").exists()]
    return [number for name in done for number in read_numbers(book, name, scale)]


def join(claims: Iterable[Claim], numbers: Sequence[Number]) -> list[Entry]:
    """Each claim with its numbers."""
    entries = []
    for claim in claims:
        own = [number for number in numbers if number.id == claim.id and number.part_of is None]
        own.sort(key=lambda number: not number.criterion.asserts)  # stable: the book's order within each kind
        entries.append(Entry(claim, tuple(own)))
    return entries


def problems(entries: Sequence[Entry], numbers: Sequence[Number]) -> list[str]:
    """Where ledger and notebooks contradict each other: an id that no claim has, a verdict that no check stands behind."""
    known = [entry.claim.id for entry in entries]
    found = [
        f"{number.chapter}: {number.name}: {unknown('id', number.id, known)}"
        for number in numbers
        if number.id is not None and number.id not in known
    ]
    return found + [
        f"{entry.claim.id}: its verdict is {entry.claim.verdict!r}, but no executed check carries its id"
        for entry in entries
        if entry.claim.verdict != "open" and not entry.checks
    ]


def as_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """One object for each claim. ``value`` … ``seconds`` are its first check's (null without one); ``checks`` lists all."""
    objects = []
    for entry in entries:
        said = {part: value for part, value in asdict(entry.claim).items() if part not in ("note", "errata")}
        checks = [_check_object(number) for number in entry.numbers]
        parts = ("scale", "value", "expected", "tolerance", "device", "seconds")
        first = {part: checks[0][part] if checks else None for part in parts}
        objects.append({**said, **first, "note": entry.claim.note or None, "checks": checks})
    return objects


def _check_object(number: Number) -> dict[str, Any]:
    """``expected`` is the expected value, or the bound if there is one only; ``tolerance`` says what was tested, in symbols."""
    bounds = [bound for bound in (number.below, number.above) if bound is not None]
    stored = number.to_json()
    test = ("expect", "rtol", "atol", "below", "above", "low", "high", "n", "rivals", "rejects", "why", "dtype")
    return {
        **{part: stored[part] for part in ("name", "scale", "value")},
        "expected": number.expect if number.expect is not None else bounds[0] if len(bounds) == 1 else None,
        "tolerance": str(number.criterion) or None,
        **{part: stored[part] for part in ("device", "seconds", *test)},
    }


def page(book: Book, scale: str = "quick") -> str:
    """The ledger as a page of the book, in MyST Markdown: a summary by verdict, then each chapter's claims with their checks.

    It is made of paragraphs and lists, not of a wide table, so that it reads on a phone; a chapter's open claims are folded.
    Raises InputError as `read_claims` does.
    """
    numbers = all_numbers(book, scale)
    entries = join(read_claims(book.claims), numbers)
    chapters = [chapter for chapter in find_chapters(book) if chapter.runs]
    titles = {chapter.name: chapter.title for chapter in chapters}
    boxes = stated(chapter.text for chapter in chapters)
    lines = ["# Ledger", "", *_summary(entries, numbers, scale), ""]
    for name in dict.fromkeys(entry.claim.chapter for entry in entries):
        own = [entry for entry in entries if entry.claim.chapter == name]
        lines += [f"## {titles.get(name) or name.replace('_', ' ').capitalize()}", ""]
        lines += [f"{{doc}}`Read the chapter <{name}>`." if name in titles else "The chapter is not written yet.", ""]
        lines += [line for entry in own if entry.claim.verdict != "open" for line in _entry(entry, boxes)]
        if still := [entry for entry in own if entry.claim.verdict == "open"]:
            what = "One open claim" if len(still) == 1 else f"{len(still)} open claims"
            lines += [f'<details class="sslbook-fold"><summary>{what}</summary>', ""]  # Markdown goes on inside it
            lines += [*(line for entry in still for line in _entry(entry, boxes)), "</details>", ""]
    return "\n".join(lines)


def stated(pages: Iterable[str]) -> dict[str, list[str]]:
    """The labels of the boxes that state each claim, by its id: those whose title ends with it, as in ``Several units · B-F1``."""
    found: dict[str, list[str]] = {}
    for page in pages:
        for codes, label in _BOX.findall(page):
            for code in CODE.findall(codes):
                found.setdefault(code, []).append(label)
    return found


_BOX = re.compile(r"^`{3,}\{prf:\w+\} .* · (.+)\n:label: (\S+)$", re.MULTILINE)
CODE = re.compile(r"\b[A-C]-[A-Z]\w*")
"""How a claim's id looks."""


def _summary(entries: Sequence[Entry], numbers: Sequence[Number], scale: str) -> list[str]:
    counts = Counter(entry.claim.verdict for entry in entries)
    machines = sorted({f"{number.device_name}, torch {number.versions.get('torch', '?')}" for number in numbers})
    checks = sum(len(entry.checks) for entry in entries)
    letters = sorted({entry.claim.paper for entry in entries} & set(PAPERS))
    papers = ", ".join(f"**{letter}** is {{cite:t}}`{PAPERS[letter]}`" for letter in letters)
    made = f"These numbers come from the book's own run at the scale `{scale}`"
    return [
        "Look here before you build on a theorem, a table or a figure of the three papers. "
        f"The page says what became of each claim that the book checks: {len(entries)} claims, {checks} checks. "
        "Each check links to the line on which it passed. "
        "The line also names the *nearest rivals* (the strongest wrong theories, or the other runs of a record), "
        "those among them that pass too, and the broken variants that the check *rejects*. "
        "A check on a mean over seeds passes only if the whole 95% interval satisfies it. "
        "If a difference must lie between two bounds, the 90% interval is used instead.",
        f"{made} on {'; '.join(_plain(machine) for machine in machines)}." if machines else "Nothing is executed yet.",
        "",
        f"An id begins with the paper that makes the claim: {papers}. "
        "Some steps are printed for one of two networks (*towers*); this counts as a fault only if the claim is about the step.",
        "",
        *(f"- {_tag(verdict)} {counts[verdict]}: {meaning}." for verdict, meaning in VERDICTS.items()),
    ]


def _tag(verdict: str) -> str:
    return f'<span class="sslbook-verdict sslbook-verdict-{TAGS[verdict]}">{verdict}</span>'


def _entry(entry: Entry, boxes: Mapping[str, Sequence[str]]) -> list[str]:
    claim = entry.claim
    here = ", ".join(f"{{prf:ref}}`{label}`" for label in boxes.get(claim.id, ()))
    lines = [
        f"({entry_anchor(claim.id)})=",
        "{.sslbook-entry}",
        f"**{claim.id}** {_tag(claim.verdict)}\\",
        _words(claim.statement) + (f" ({here})" if here else ""),
    ]
    if claim.note:
        errata = f" ({{ref}}`errata <{claim.errata}>`)" if claim.errata else ""
        lines += ["", f"Note: {_words(claim.note)}{errata}"]
    elif claim.errata:
        lines += ["", f"See the {{ref}}`errata <{claim.errata}>`."]
    if entry.numbers:
        checks = [_check(number) for number in entry.numbers]
        begin = f'<details class="sslbook-checked"><summary>{counted(len(checks), "check")}</summary>'
        lines += ["", begin, "", "{.sslbook-checks}", *checks, "", "</details>"]
    return [*lines, ""]


def _check(number: Number) -> str:
    """One check as a list item: what was compared, as a link to where it passed, and the result with its bar."""
    address = f"{number.chapter}.html" + (f"#{number.anchor}" if number.anchor else "")
    result = _plain(" ".join(outcome(number))) + ("" if number.criterion.asserts else " (measured)")
    shown = _plain(number.what) if number.what else f"<code>{number.name}</code>"
    return f'- <a href="{address}">{shown}</a> {result}'


def _words(text: str) -> str:
    """A statement as Markdown: ``K_l``, ``f_{l-1}`` and ``x^t`` with index and exponent; no line breaks at a relation."""
    html = {"_": "sub", "^": "sup"}
    text = re.sub(r" ([<>=≤≥≠≈]) ", f"{NOBREAK}\\1{NOBREAK}", text)
    parts = re.split(r"(?<=\S)([_^])(\{[^{}]*\}|[^\Wᵀ²³]+)", text)
    words = _plain(parts[0])
    for mark, index, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        words += f"<{html[mark]}>{_plain(index.strip('{}'))}</{html[mark]}>{_plain(rest)}"
    return words


def _plain(text: str) -> str:
    """Text that Markdown shows as it is; what stands between backticks is code."""
    return re.sub(r"(`[^`]+`)|([\\`*_<>\[\]$|{}])", lambda found: found[1] or "\\" + found[2], text)


# --- margins: a bar that stands far from the value would not notice if something went wrong; one that a rival nearly reaches
# says little of the theory ---------------------------------------------------------------------------------------------

LOOSE = 100.0
"""A bar that is more than this many times what is measured is counted as loose; one of ten times is what a bar should be."""


@dataclass(frozen=True)
class Margin:
    """A check's two margins, as factors.

    ``bar`` is how many times what was measured its bar is (an error of 2e-15 under a bar of 1e-12: 500); 1 for a check that
    allows no error. ``rival`` is how many times the bar the nearest rival or reject has (an error of 0.5 under that bar: 5e11);
    just above 1 it nearly passes. ``nearest`` names it; infinity and an empty name where the check has neither.
    """

    number: Number
    bar: float
    rival: float
    nearest: str

    @property
    def place(self) -> float:
        """Where the bar stands on the way from the value (0) to the nearest rival (1), in orders of magnitude."""
        near, far = math.log(max(self.bar, 1.0)), math.log(max(self.rival, 1.0))
        return 1.0 if near + far == 0 else near / (near + far) if math.isfinite(far) else 0.0


def margins(numbers: Iterable[Number]) -> list[Margin]:
    """The margins of all checks among ``numbers``, the loosest bar first."""
    found = []
    for number in numbers:
        if number.criterion.asserts and number.part_of is None:
            others, test = {**number.rivals, **number.rejects}, number.criterion
            missed = {what: _times(test, value) for what, value in others.items() if not test.passes(value)}
            nearest = min(missed, key=lambda what: missed[what], default="")
            reached = _times(number.criterion, number.result)
            bar = 1 / reached if reached else math.inf
            found.append(Margin(number, bar, missed.get(nearest, math.inf), nearest))
    return sorted(found, key=lambda margin: (-margin.bar, margin.rival))


def _times(test: Criterion, value: Value) -> float:
    """What is measured in units of what is allowed: at most 1 if it passes; of an interval its worse end.

    Of several conditions the tightest counts. A bound that is zero, or of another sign than the value, has no factor: there
    it is the distance from the bound in units of the larger of the two, on the right side of 1.
    """
    if isinstance(value, Interval):
        return max(_times(test, value.low), _times(test, value.high))
    if not math.isfinite(value):
        return math.inf
    shares = []
    if test.expect is not None:
        off, allowed = abs(value - test.expect), test.allowed()
        resolution = sys.float_info.epsilon * max(abs(test.expect), sys.float_info.min)
        shares.append((1.0 if off == 0 else math.inf) if allowed == 0 else max(off, min(resolution, allowed)) / allowed)
    if test.below is not None:
        shares.append(_share(value, test.below))
    if test.above is not None:
        shares.append(_share(-value, -test.above))
    return max(shares)


def _share(value: float, bound: float) -> float:
    """``value / bound`` for an upper bound, of negative numbers its inverse: below 1 where ``value < bound``."""
    if value == bound:
        return 1.0
    if bound > 0 and value >= 0:
        return max(value, min(sys.float_info.epsilon, bound)) / bound
    if bound < 0 and value < 0:
        return bound / value
    size = max(abs(value), abs(bound))
    return 1 / (1 + (bound - value) / size) if value < bound else 1 + (value - bound) / size


def margin_lines(found: Sequence[Margin], most: int) -> list[str]:
    """The first margins as lines: how many times the measured the bar is, how far the nearest rival misses; then the loose bars."""
    lines = ["bar/value  rival/bar  check"]
    for margin in found[:most]:
        number, near = margin.number, f"  nearest: {margin.nearest}" if margin.nearest else ""
        who = f"{number.chapter}: {number.name}" + (f" ({number.id})" if number.id else "")
        lines.append(f"{margin.bar:9.3g}  {margin.rival:9.3g}  {who} {number.criterion}{near}")
    counts = {margin.number.chapter: 0 for margin in found}
    for margin in found:
        counts[margin.number.chapter] += margin.bar > LOOSE
    told = ", ".join(f"{chapter} {count}" for chapter, count in counts.items()) or "nothing is executed yet"
    return [*lines, f"Bars of more than {LOOSE:.0f} times what is measured: {told}"]


# --- every number held to the number that stood there before -----------------------------------------------------------

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


def may_move(value: float, machines: Sequence[float], seeds: Sequence[float], stated: float = math.inf) -> float:
    """How far a value may be off, rounded up to two digits, by what it is on the other machines and with other seeds.

    Rounding leaves most numbers where they are: ten times what the machines differed by, and never less than the last digits.
    One that rounding moves by more than a millionth (a network trained for hundreds of steps) it may move as far as another
    seed does, by four standard deviations over the seeds, but no farther than the chapter itself lets it (``stated``), or than
    three times what the machines differed by: they are draws of it, and their largest difference is no bound of a size that is
    known.
    """
    drift = max((abs(there - value) for there in machines), default=0.0)
    allowed = max(SAFE * drift, LAST_DIGITS * abs(value), NOTHING)
    if drift > CHAOTIC * abs(value) and drift > NOTHING and len(seeds) > 1:
        allowed = max(AGAIN * drift, min(DEVIATIONS * statistics.stdev(seeds), stated))
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
        held["within"] = may_move(number.value, there, elsewhere, stated)
    others = {}
    for what, value in _others(number).items():
        there, elsewhere = ([_others(n)[what] for n in same if what in _others(n)] for same in here)
        others[what] = [value, may_move(value, there, elsewhere)]
    return held | ({"others": others} if others else {})
