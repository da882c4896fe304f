"""The ledger as a page of the book, and where it and the executed notebooks contradict each other."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bookbuild.layout import Book, find_chapters
from sslbook._check import counted, unknown
from sslchapters.intervals import Interval
from sslchapters.ledger import PAPERS, VERDICTS, Entry, executed_numbers, join, read_claims
from sslchapters.values import CROSS, NOBREAK, Criterion, Number, Value, entry_anchor, outcome

TAGS = dict(zip(VERDICTS, ("holds", "corrected", "fails", *("trend",) * 4, "open", "open", "open"), strict=True))
"""The style class of each verdict's tag, after `sslbook-verdict-`: the style sheet gives it its colour."""
CODE = re.compile(r"\b[A-C]-[A-Z]\w*")
"""How a claim's id looks."""
_BOX = re.compile(r"^`{3,}\{prf:\w+\} .* · (.+)\n:label: (\S+)$", re.MULTILINE)
_READ = (
    "Look here before you build on a theorem, a table or a figure of the three papers. "
    "The page says what became of each claim that the book checks: {} claims, {} checks. "
    "Each check links to its line in the chapter. "
    "The line also names the *nearest rivals*, which are the strongest wrong theories or the other runs of a record. "
    "It says which rivals pass, too, and which broken variants the check *rejects*. "
    "A check on a mean over seeds passes only if the whole 95% interval satisfies it. "
    "If a difference must lie between two bounds, the 90% interval is used instead."
)


def all_numbers(book: Book, scale: str) -> list[Number]:
    """The numbers of every chapter that has been executed at ``scale``."""
    return executed_numbers(book.executed(scale), [chapter.name for chapter in find_chapters(book) if chapter.runs])


def problems(entries: Sequence[Entry], numbers: Sequence[Number]) -> list[str]:
    """Where ledger and notebooks contradict each other: an id that no claim has, a verdict that no check of its chapter bears."""
    known = [entry.claim.id for entry in entries]
    lost = [number for number in numbers if number.id is not None and number.id not in known]
    found = [f"{number.chapter}: {number.name}: {unknown('id', str(number.id), known)}" for number in lost]
    for entry in entries:
        verdict = entry.claim.verdict
        if verdict != "open" and not entry.checks:
            found.append(f"{entry.claim.id}: its verdict is {verdict!r}, but no executed check carries its id")
        there, chapter = {check.chapter.removeprefix("details_") for check in entry.checks}, entry.claim.chapter
        if there and chapter.removeprefix("details_") not in there:
            found.append(
                f"{entry.claim.id}: its chapter is {chapter!r}, but its checks are in {', '.join(sorted(there))}"
            )
    return found


def stated(pages: Iterable[str]) -> dict[str, list[str]]:
    """The labels of the boxes that state each claim, by its id: those whose title ends with it, as in ``Several units · B-F1``."""
    found: dict[str, list[str]] = {}
    for page in pages:
        for codes, label in _BOX.findall(page):
            for code in CODE.findall(codes):
                found.setdefault(code, []).append(label)
    return found


def page(book: Book, scale: str = "quick") -> str:
    """The ledger as a page of the book, in MyST Markdown: a summary by verdict, then each chapter's claims with their checks.

    It is made of paragraphs and lists, not of a wide table, so that it reads on a phone; a chapter's open claims are folded.
    Raises InputError as `read_claims` does.
    """
    numbers = all_numbers(book, scale)
    entries = join(read_claims(book.claims), numbers)
    chapters = {chapter.name: chapter for chapter in find_chapters(book) if chapter.runs}
    boxes = stated(chapter.text for chapter in chapters.values())

    counts = Counter(entry.claim.verdict for entry in entries)
    machines = sorted({f"{number.device_name}, torch {number.versions.get('torch', '?')}" for number in numbers})
    made = f"These numbers come from the book's own run at the scale `{scale}` on {_plain('; '.join(machines))}."
    letters = sorted({entry.claim.paper for entry in entries} & set(PAPERS))
    papers = ", ".join(f"**{letter}** is {{cite:t}}`{PAPERS[letter]}`" for letter in letters)
    lines = [
        "# Ledger",
        "",
        _READ.format(len(entries), sum(len(entry.checks) for entry in entries)),
        made if machines else "Nothing is executed yet.",
        "",
        f"An id begins with the paper that makes the claim: {papers}. "
        "Some steps are printed for one of two networks (*towers*). We call that a fault only if the claim is about the step.",
        "",
        *(f"- {_tag(verdict)} {counts[verdict]}: {meaning}." for verdict, meaning in VERDICTS.items()),
        "",
    ]
    for name in dict.fromkeys(entry.claim.chapter for entry in entries):
        own = [entry for entry in entries if entry.claim.chapter == name]
        still = [entry for entry in own if entry.claim.verdict == "open"]
        found = re.search(r"^# +(.+?)\s*$", chapters[name].text, re.MULTILINE) if name in chapters else None
        lines += [f"## {found[1] if found else name.replace('_', ' ').capitalize()}", ""]
        lines += [f"{{doc}}`Read the chapter <{name}>`." if found else "The chapter is not written yet.", ""]
        lines += [line for entry in own if entry not in still for line in _entry(entry, boxes)]
        if still:
            what = "One open claim" if len(still) == 1 else f"{len(still)} open claims"
            lines += [f'<details class="sslbook-fold"><summary>{what}</summary>', ""]  # Markdown goes on inside it
            lines += [*(line for entry in still for line in _entry(entry, boxes)), "</details>", ""]
    return "\n".join(lines)


def _tag(verdict: str) -> str:
    return f'<span class="sslbook-verdict sslbook-verdict-{TAGS[verdict]}">{verdict}</span>'


def _entry(entry: Entry, boxes: Mapping[str, Sequence[str]]) -> list[str]:
    """A claim, its note, and its checks: what was compared, as a link to where it passed, and the result with its bar."""
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
        summary = f"<summary>{counted(len(entry.numbers), 'check')}</summary>"
        lines += ["", f'<details class="sslbook-checked">{summary}', "", "{.sslbook-checks}"]
        for number in entry.numbers:
            address = f"{number.chapter}.html" + (f"#{number.anchor}" if number.anchor else "")
            result = _plain(" ".join(outcome(number))) + ("" if number.criterion.asserts else " (measured)")
            result += f" {CROSS} fails in this run" if number.failure else ""
            shown = _plain(number.what) if number.what else f"<code>{number.name}</code>"
            lines.append(f'- <a href="{address}">{shown}</a> {result}')
        lines += ["", "</details>"]
    return [*lines, ""]


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


def margins(numbers: Iterable[Number]) -> list[tuple[float, str, Number]]:
    """How many times a check's bar its nearest rival or broken variant has, and which that is: the nearest first.

    An error of 0.5 under a bar of 1e-12 has 5e11 times it; just above 1 it nearly passes.
    """
    found = []
    for number in numbers:
        others, test = {**number.rivals, **number.rejects}, number.criterion
        missed = {what: _times(test, value) for what, value in others.items() if not test.passes(value)}
        if test.asserts and number.part_of is None and missed:
            nearest = min(missed, key=lambda what: missed[what])
            found.append((missed[nearest], nearest, number))
    return sorted(found, key=lambda each: each[0])


def _times(test: Criterion, value: Value) -> float:
    """What is measured in units of what is allowed: more than 1 if it fails; of an interval its worse end, of conditions the worst.

    A bound that is zero, or of another sign than the value, has no factor: there it is the distance from the bound in units of
    the larger of the two.
    """
    if isinstance(value, Interval):
        return max(_times(test, value.low), _times(test, value.high))
    if not math.isfinite(value):
        return math.inf
    shares = []
    if test.expect is not None and (off := abs(value - test.expect)):
        shares.append(off / test.allowed() if test.allowed() else math.inf)
    for bound, sign in ((test.below, 1), (test.above, -1)):
        if bound is not None and sign * bound > 0 and sign * value > 0:
            shares.append(value / bound)
        elif bound is not None:
            shares.append(1 + sign * (value - bound) / (max(abs(value), abs(bound)) or 1))
    return max(shares, default=0.0)
