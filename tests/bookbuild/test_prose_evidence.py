"""What the chapters' sentences claim: bounds that stay true when printed, comparisons with an interval, claims with a rival.

A test that fails prints its list, and so does ``python tests/book/test_prose_evidence.py [CHAPTER …]``, where the book is built.
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

from bookbuild import ledger
from bookbuild.layout import Book, parse_cell
from sslchapters.data_files import read_yaml
from sslchapters.values import bound, glue, named, prose

BOOK = Book(Path(__file__).resolve().parents[2])
PAGES = sorted(path.stem for path in BOOK.chapters.glob("*.md") if path.stem != "ledger")

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
    """The numbers of the chapter's execution by name; a page without code has none."""
    executed = BOOK.executed("quick") / f"{chapter}.ipynb"
    return glue(json.loads(executed.read_text(encoding="utf-8"))) if executed.exists() else {}


def as_number(text: str) -> float:
    text = text.replace(",", "")
    return float(text[:-1] + "e-2") if text.endswith("%") else float(text)


def contradicted(chapter: str) -> list[str]:
    """Bounds that are printed on the other side of their own unrounded value."""
    found = []
    for line, role, content, lower in said_bounds(source(chapter)):
        page, name, form = named(content)
        there = values(Path(page).stem if page else chapter)
        if name not in there or role == "interval":
            continue
        value = there[name]
        text = format(float(value), form) if role == "glue:text" else bound(value, form, role)
        slack = 1e-6 * abs(value)  # single precision
        if not (as_number(text) <= value + slack if lower else as_number(text) >= value - slack):
            found.append(f"{name} is {value!r}, printed as {text}, in: {line}")
    return found


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
    notes = [str(claim.get("note", "")) for claim in read_yaml(BOOK.claims, list) if claim["chapter"] == chapter]
    sentences = [sentence for note in notes for sentence in re.split(r"(?<=[.!?`]) (?=[A-Z])", note)]  # of the ledger
    found, lines = [], [*prose(source(chapter)).splitlines(), *sentences]
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


REAL = re.compile(r"recorded$|load_dataset|digits|cifar|mnist|photo|pictures", re.IGNORECASE)
"""Names by which a chapter gets at a recorded run or at real images."""
RECORDED = re.compile(r"recorded$")


def without_rivals(chapter: str) -> list[str]:
    """Claims of kind D or T, and claims whose value comes from a recorded run or real images, that name no rival."""
    kinds = {claim.id: claim.kind for claim in ledger.read_claims(BOOK.claims)}
    found, real = [], set[str]()
    for cell in jupytext.reads(source(chapter), fmt="md:myst").cells:
        if cell.cell_type != "code":
            continue
        for statement in parse_cell(cell.source).body:
            real |= _made_of(statement, real)
            for call in ast.walk(statement):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "claim"):
                    continue
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                identity = given.get("id")
                kind = kinds.get(str(identity.value), "") if isinstance(identity, ast.Constant) else ""
                seen = kind in ("D", "T") or any(_is_real(value, real) for value in call.args[1:2])
                if seen and not {"rivals", "of", None} & given.keys():
                    name = ast.unparse(call.args[0]) if call.args else "claim()"
                    found.append(f"{name} ({f'kind {kind}' if kind else 'recorded, or real images'})")
    return found


MEASURES = "costs rows f ranks share change value found near beyond gaps soon worst_of worse last"
"""Mappings by what was measured, or from one run: nothing in them is another run of a record."""


def left_out(chapter: str) -> list[str]:
    """Claims about one run of a record, by its name, that leave other runs of it out: ``claim(name, runs, of="this one")``."""
    found, made = [], set[str]()
    for cell in jupytext.reads(source(chapter), fmt="md:myst").cells:
        for statement in parse_cell(cell.source).body if cell.cell_type == "code" else ():
            made |= _made_of(statement, made, RECORDED)
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "claim":
                    items = (node for node in ast.walk(call.args[1]) if isinstance(node, ast.Subscript))
                    runs = {ast.unparse(item.value) for item in items if _by_name(item)} & made - {*MEASURES.split()}
                    if runs and not any(keyword.arg == "of" for keyword in call.keywords):
                        found.append(f"{ast.unparse(call.args[0])} leaves out others of {', '.join(sorted(runs))}")
    return found


def _by_name(item: ast.Subscript) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(item.slice))


def _made_of(statement: ast.stmt, real: set[str], by: re.Pattern[str] = REAL) -> set[str]:
    """The names that a statement makes of what is recorded or real."""
    made = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts, origin = targets, node.value
        elif isinstance(node, ast.For | ast.comprehension):
            parts, origin = [node.target], node.iter
        elif isinstance(node, ast.FunctionDef):
            if any(_is_real(inner, real, by) for inner in node.body):
                made.add(node.name)
            continue
        else:
            continue
        if _is_real(origin, real | made, by):
            made |= {name.id for part in parts for name in ast.walk(part) if isinstance(name, ast.Name)}
    return made


def _is_real(node: ast.AST, real: set[str], by: re.Pattern[str] = REAL) -> bool:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    called = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return bool(names & real) or any(by.search(name) for name in names | called)


OF_NUMBERS = {f.__name__: f for f in (rounded_to_nearest, contradicted, typed_verdicts)}
OF_TEXT = {f.__name__: f for f in (without_rivals, left_out)}


def source(chapter: str) -> str:
    return (BOOK.chapters / f"{chapter}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("chapter", PAGES)
@pytest.mark.parametrize("lint", [*OF_TEXT, *(pytest.param(name, marks=pytest.mark.built) for name in OF_NUMBERS)])
def test_a_chapter_claims_what_it_can_show(lint: str, chapter: str) -> None:
    told = (OF_TEXT | OF_NUMBERS)[lint]
    found = told(chapter)
    assert not found, "\n".join([told.__doc__ or "", *found])


PLANTED = """
It is at least {glue:text}`x:.2f`, and up to {most}`x:.1f`; more than {least}`x:.1f` is fine, at least {glue:text}`n:d` of them too.
Both agree to {most}`x:.1e` and {glue:text}`x:.0e`.

BYOL leads by {glue:text}`gain:.1f` points.

SimCLR beats it by {glue:text}`gain:.1f`, {interval}`gain:.1f`.
It is ahead.
Others are ahead ({held}`gain, gone`), and nothing is significant.
No difference is shown ({held}`gain`, {held}`near`).
It is significantly better ({held}`near`).

```{code-cell} ipython3
record = recorded("a")
table = {row: record[row] for row in rows}
claim("a", table["x"], id=None, above=0)
claim("b", table["x"], id=None, above=0, rivals={"untrained": -1.0})
claim("c", exact, id="A-Thm3", below=1e-12, rejects={"sign": 1.0})
claim("d", exact, id="B-Tab7", above=0, rejects={"sign": -1.0})
claim("e", table, of="x", id=None, above=0)
```
"""


VALUES = {"x": 0.9965, "n": 5, "gain": 1.0, "gain-low": 0.5, "gain-high": 1.5, "near-low": -0.5, "near-high": 0.5}


def test_what_is_not_shown_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "source", lambda chapter: PLANTED)
    monkeypatch.setattr(sys.modules[__name__], "values", lambda chapter: VALUES)
    found = [line.partition(", which")[0] for line in rounded_to_nearest("any")]
    assert found == ["{glue:text}`x:.2f`", "{glue:text}`x:.0e`"]
    assert [line.partition(", in")[0] for line in contradicted("any")] == ["x is 0.9965, printed as 1.00"]
    assert [re.split(r",? in:", line)[0] for line in typed_verdicts("any")] == [
        "“leads by” names no interval, nor the sentence beside it",
        "“ahead” names no interval",
        "gone is not measured",
        "gain denies “No difference is shown”",
        "near denies “significantly”",
    ]
    assert without_rivals("any") == ["'a' (recorded, or real images)", "'d' (kind T)"]
    assert left_out("any") == [f"{name!r} leaves out others of table" for name in "ab"]


if __name__ == "__main__":
    for lint in (OF_TEXT | OF_NUMBERS).values():
        print(lint.__doc__)
        for chapter in sys.argv[1:] or PAGES:
            for finding in lint(chapter):
                print(f"  {chapter}: {finding}")
