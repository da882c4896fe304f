"""What the chapters' sentences claim: bounds that stay true when printed, comparisons with an interval, claims with a rival.

A test that fails prints its list, and so does ``python tests/book/test_prose_evidence.py [CHAPTER …]``.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
import pytest

from sslbook.book import ledger
from sslbook.book.chapters import parse_cell
from sslbook.book.layout import Book
from sslbook.book.regression import read_expected
from sslbook.book.typeset import glue, named, prose

BOOK = Book(Path(__file__).resolve().parents[2])
PAGES = sorted(path.stem for path in BOOK.chapters.glob("*.md") if path.stem != "ledger")

# --- bounds ----------------------------------------------------------------------------------------------------------

ROLE = r"\{(?P<role>glue:text|interval|least|most)\}`(?P<content>[^`]+)`"
UPPER = r"at most|no more than|not more than|less than|fewer than|within|up to|below|under"
LOWER = r"at least|no less than|no fewer than|not less than|more than|above|over"
FILL = r"(?:(?:a|an|the|about|some|only|all|factor of)\s+)*"
BEFORE = re.compile(rf"\b(?:(?P<upper>{UPPER})|(?P<lower>{LOWER}))\s+{FILL}{ROLE}", re.IGNORECASE)
AFTER = re.compile(
    rf"{ROLE}%?(?:\s+(?:times|points))?\s+(?:(?P<upper>or less|or fewer|at most)|(?P<lower>or more|at least))\b"
)
ROUNDS = re.compile(r"[eEfFgG%]$")
NUMBER = re.sub(r"\?P<\w+>", "?:", ROLE)
AGREES = re.compile(rf"\bto {NUMBER}(?:(?:,| and|, and) {NUMBER})*")
"""How far things agree, where it is said in powers of ten: bounds, too."""


def said_bounds(text: str) -> Iterator[tuple[str, str, str, bool]]:
    """``(line, role, content, whether it is a lower bound)`` of each number that a sentence calls a bound, and that is rounded."""
    for line in prose(text).splitlines():
        for match in (*BEFORE.finditer(line), *AFTER.finditer(line)):
            if ROUNDS.search(named(match["content"])[2]):
                yield line.strip(), match["role"], match["content"], match["lower"] is not None
        for match in (number for run in AGREES.finditer(line) for number in re.finditer(ROLE, run[0])):
            if match["content"].endswith("e"):
                yield line.strip(), match["role"], match["content"], False


def rounded_to_nearest(chapter: str) -> list[str]:
    """Bounds in plain ``{glue:text}``, and bounds in the role of the other side."""
    right = {True: "least", False: "most"}
    return [
        f"{{{role}}}`{content}`, which needs {{{right[lower]}}}, in: {line}"
        for line, role, content, lower in said_bounds(source(chapter))
        if role not in (right[lower], "interval") and not _whole(chapter, content)
    ]


def _whole(chapter: str, content: str) -> bool:
    """Whether the number is a count, which no format rounds."""
    page, name, _ = named(content)
    return isinstance(values(Path(page).stem if page else chapter).get(name), int)


@functools.cache
def values(chapter: str) -> dict[str, float]:
    """The chapter's numbers by name: of its execution, where there is one, else those that the expected file holds."""
    executed = BOOK.executed("quick") / f"{chapter}.ipynb"
    if executed.exists():
        return glue(json.loads(executed.read_text(encoding="utf-8")))
    held = read_expected(BOOK.expected(chapter, "quick"))
    return {name: entry["value"] for name, entry in held.items() if "value" in entry}


# --- comparisons -----------------------------------------------------------------------------------------------------

COMPARES = re.compile(
    r"\b(leads (?:by|with)|beats?|(?:is|are|be|ends?|stays?|nearly|and|also|about|thus|;|,) level(?! of)\b"
    r"|gain(?:s|ed)? (?:is|are|by|at|of|on|\{|\+|nothing)|points (?:above|below|more|less|better|worse)|(?:better|worse) than)\b"
)
"""Words that say of a number what an interval must bear out: there, or in the sentence beside."""
VERDICT = re.compile(
    r"(?P<open>\b(?:no|not|none)\b[^.;,]*?\bsignificant(?:ly)?\b|\bno difference (?:is )?shown)"
    r"|\b(?:significant(?:ly)?|(?<!not )ahead|(?:is|are|was|still|slightly|points) behind)\b",
    re.IGNORECASE,
)
HELD = re.compile(r"\{(?:held|interval)\}`([^`]+)`")
TOLD = re.compile(r"\{cite|\*Ahead|no difference shown\"|we say that|claims for|fig-released")
"""What others found, and what the words mean."""


def typed_verdicts(chapter: str) -> list[str]:
    """Verdicts whose sentence names no interval, printed or in ``{held}`name, name` ``, and verdicts that their intervals deny."""
    found = []
    lines = prose(source(chapter)).splitlines()
    for place, line in enumerate(lines):
        beside = " ".join(lines[max(place - 1, 0) : place + 2])
        if (match := COMPARES.search(line)) and re.search(ROLE, line) and not HELD.search(beside):
            found.append(f"“{match[0]}” names no interval, nor the sentence beside it, in: {line.strip()}")
        match = VERDICT.search(line)
        if match is None or TOLD.search(line):
            continue
        names = [name for content in HELD.findall(line) for name in content.split(", ")]
        if not names:
            found.append(f"“{match[0]}” names no interval, in: {line.strip()}")
        for whole in names:
            page, name, _ = named(whole if ":" in whole.rpartition("::")[2] else f"{whole}:g")
            there = values(Path(page).stem if page else chapter)
            neutral = float(" from 1" in line)  # of a ratio
            if f"{name}-low" not in there:
                if name not in there:  # a claim's own assertion holds it
                    found.append(f"{name} is not measured, in: {line.strip()}")
            elif (there[f"{name}-low"] <= neutral <= there[f"{name}-high"]) != bool(match["open"]):
                found.append(f"{name} denies “{match[0]}” in: {line.strip()}")
    return found


# --- rivals ----------------------------------------------------------------------------------------------------------


def without_rivals(chapter: str) -> list[str]:
    """Claims of kind D or T that name no rival."""
    kinds = {claim.id: claim.kind for claim in ledger.read_claims(BOOK.claims)}
    found = []
    for cell in jupytext.reads(source(chapter), fmt="md:myst").cells:
        for call in ast.walk(parse_cell(cell.source)) if cell.cell_type == "code" else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "claim":
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                kind = kinds.get(getattr(given.get("id"), "value", None))
                if kind in ("D", "T") and not {"rivals", None} & set(given):
                    found.append(f"{ast.unparse(call.args[0])} (kind {kind})")
    return found


# --- the tests -------------------------------------------------------------------------------------------------------

LINTS = {f.__name__: f for f in (rounded_to_nearest, typed_verdicts, without_rivals)}


def source(chapter: str) -> str:
    return (BOOK.chapters / f"{chapter}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("chapter", PAGES)
@pytest.mark.parametrize("lint", LINTS)
def test_a_chapter_claims_what_it_can_show(lint: str, chapter: str) -> None:
    found = LINTS[lint](chapter)
    assert not found, "\n".join([LINTS[lint].__doc__ or "", *found])


if __name__ == "__main__":
    for lint in LINTS.values():
        print(lint.__doc__)
        for chapter in sys.argv[1:] or PAGES:
            for finding in lint(chapter):
                print(f"  {chapter}: {finding}")
