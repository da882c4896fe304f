"""What the chapters' sources owe their readers, as a lint: all pages, or those named.

``python -m tools.lint_prose`` prints ``file:line: sentence`` for each thing that is not so, and ends with 1 if there is one. It
reads sources alone: the pages in `chapters/`, the claims and the stored numbers in `data/`. `RULES` lists its rules.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import symtable
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bookbuild.cells import minutes, parts
from sslbook._check import hint
from sslchapters.data_files import read_yaml
from sslchapters.ledger import read_claims
from sslchapters.values import named

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = [Path(page["file"]).stem for part in parts(read_yaml(ROOT / "_toc.yml", dict)) for page in part["chapters"]]
KINDS = {claim.id: claim.kind for claim in read_claims(ROOT / "data/claims.yml")}
Found = Iterator[tuple[int, str]]

FENCE = re.compile(r"^\s*(?P<fence>`{3,}|~{3,}|:{3,})(?:\{(?P<name>[\w:-]+)\})?")
NO_PROSE = (
    "code-cell code-block code literalinclude raw math list-table table csv-table figure image bibliography book-map"
)
ROLE = r"\{(?P<role>glue:text|interval|least|most)\}`(?P<content>[^`]+)`"
CELL = re.compile(
    r"^```\{code-cell\}[^\n]*\n(?P<head>(?:---\n.*?^---\n|:[\w-]+:[^\n]*\n)*)\n*(?P<source>.*?)^```$", re.M | re.S
)


@dataclass
class Page:
    """A source, its lines that a reader reads as sentences, its code cells as (line, tags, source), and its stored numbers."""

    path: Path
    text: str
    sentences: list[tuple[int, str]] = field(default_factory=list)
    cells: list[tuple[int, str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Page:
        """The page in a file; sentences are lines without code, tables, options, labels and displayed formulas."""
        page = cls(path, path.read_text(encoding="utf-8"))
        stack: list[tuple[str, bool]] = []
        formula = comment = False
        header = 2 if page.text.startswith("---\n") else 0
        for number, line in enumerate(page.text.splitlines(), 1):
            if header:
                header -= line == "---"
            elif stack and re.fullmatch(rf"\s*{stack[-1][0]}+\s*", line):
                stack.pop()
            elif opens := FENCE.match(line):
                stack.append((opens["fence"], not opens["name"] or opens["name"] in NO_PROSE.split()))
            elif not any(skipped for _, skipped in stack):
                comment = "<!--" in line or comment
                inside = formula or comment or line.startswith("$$")
                formula ^= line.count("$$") % 2 == 1
                comment = comment and "-->" not in line
                if not inside and not re.match(r"\s*(\||%|:[\w-]+:|\([\w-]+\)=)", line):
                    page.sentences.append((number, re.sub(r"(?<!`)(`{2,})(?!`).+?(?<!`)\1(?!`)", "", line)))
        for cell in CELL.finditer(page.text):
            at = page.text.count("\n", 0, cell.start("source")) + 1
            page.cells.append((at, cell["head"], cell["source"].strip("\n")))
        return page

    def line(self, needle: str) -> int:
        """The line on which some text begins, or the first."""
        return self.text.count("\n", 0, max(self.text.find(needle), 0)) + 1


@functools.cache
def stored(page: str) -> dict[str, Any]:
    """The numbers of a page, as `data/expected` holds them: a number, an interval's [mean, low, high, n], None for a claim."""
    path = ROOT / "data/expected" / f"{page}.quick.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content | dict.fromkeys(content.pop("claims", "").split())


def of(page: Page, content: str) -> tuple[str, Any, bool]:
    """The name and the stored value of what stands in a role, and whether it is known."""
    other, name, _ = named(content if ":" in content.rpartition("::")[2] else f"{content}:g")
    there = stored(Path(other).stem if other else page.path.stem)
    return name, there.get(name), name in there


# A number that belongs to a name and not to a run: "Section 4.1", "Python 3.11", "arXiv 2010.00578".
NAMED = (
    r"(?:Sections?|Secs?\.|§|Eqs?\.|Equations?|Theorems?|Lemmas?|Figs?\.|Figures?|Tables?|Parts?|Appendix"
    r"|Python|PyTorch|torch|CUDA|version|arXiv:?)"
)
DECIMAL = re.compile(rf"(?P<name>{NAMED}[\s~]*)?(?<![\w.])(?P<number>\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?![\w.]*\w)")
PERCENT = re.compile(r"(?<![\w.])\d[\d,]*\s?(?:%|per ?cent\b|(?:percentage )?points\b)")
CHOSEN = re.compile(r"(?i)interval|level|promise|guarantee|probability|chance|allowed|excluded")
ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|cf|vs|etc|al|resp|Eqs?|Figs?|Secs?|Thms?|Props?|Prof|Dr|St|no|approx)\.$")
SENTENCE_END = re.compile(r"[\w)*`’”\]]{2}[.!?](?=[_)’”]* +[*_(“]*[A-Z])")
BANNED = re.compile(
    r"\b(obviously|trivially|of course|simply|easily|leverages?|utili[sz]es?|crucial|in order to)\b", re.I
)
UPPER = r"at most|no more than|not more than|less than|fewer than|within|up to|below|under"
LOWER = r"at least|no less than|no fewer than|not less than|more than|above|over"
FILL = r"(?:(?:a|an|the|about|some|only|all|factor of)\s+)*"
BOUND = re.compile(rf"\b(?:{UPPER}|(?P<lower>{LOWER}))\s+{FILL}{ROLE}", re.I)


def words(page: Page) -> Found:
    """No measured number is typed, a bound is rounded to its side, a line holds one sentence, and some words say nothing."""
    for number, line in page.sentences:
        plain = re.sub(r"\$[^$]*\$", "x", re.sub(r"(\{[\w:-]+\})?(`+).*?\2", "", line))
        plain = re.sub(r"\]\([^)]*\)|<https?:[^>]*>|https?://\S+", "", plain).strip()
        typed = [match["number"] for match in DECIMAL.finditer(plain) if not match["name"]]
        typed += [] if CHOSEN.search(plain) else [match[0] for match in PERCENT.finditer(plain)]
        for told in typed:
            mend = "a measured number is pasted, as {glue:text}`name:.2f`; one that was chosen stands as code or maths"
            yield number, f"{told} is typed: {mend}"
        ends = [end for end in SENTENCE_END.finditer(plain) if not ABBREVIATIONS.search(plain[: end.end()])]
        if ends and not plain.startswith("#"):
            yield number, f"more than one sentence on the line: {plain[:60]}"
        if empty := BANNED.search(plain):
            yield number, f"“{empty[0]}” says nothing"
        for match in BOUND.finditer(line):
            right, content = "least" if match["lower"] else "most", match["content"]
            whole = isinstance(of(page, content)[1], int)  # a count, which no format rounds
            if match["role"] not in (right, "interval") and re.search(r"[eEfFgG%]$", named(content)[2]) and not whole:
                yield number, f"{match[0]} needs {{{right}}}, which rounds a bound to its side"


COMPARES = re.compile(
    r"\b(leads (?:by|with)|beats?|(?:is|are|be|ends?|stays?|nearly|and|also|about|thus|;|,) level(?! of)\b"
    r"|gain(?:s|ed)? (?:is|are|by|at|of|on|\{|\+|nothing)|points (?:above|below|more|less|better|worse)|(?:better|worse) than)\b"
)
VERDICT = re.compile(
    r"(?i)(?P<open>\b(?:no|not|none)\b[^.;,]*?\bsignificant(?:ly)?\b|\bno difference (?:is )?shown)"
    r"|\b(?:significant(?:ly)?|(?<!not )ahead|(?:is|are|was|still|slightly|points) behind)\b"
)
HELD = re.compile(r"\{(?:held|interval)\}`([^`]+)`")
TOLD = re.compile(r"\{cite|\*Ahead|no difference shown\"|we say that|claims for|fig-released")


def verdicts(page: Page) -> Found:
    """A comparison names the interval that bears it out, printed or in ``{held}`name, name` ``, and the interval does."""
    for place, (number, line) in enumerate(page.sentences):
        beside = " ".join(text for _, text in page.sentences[max(place - 1, 0) : place + 2])
        if (match := COMPARES.search(line)) and re.search(ROLE, line) and not HELD.search(beside):
            yield number, f"“{match[0]}” names no interval, nor does the sentence beside it"
        if (match := VERDICT.search(line)) and not TOLD.search(line):
            names = [name for content in HELD.findall(line) for name in content.split(", ")]
            if not names:
                yield number, f"“{match[0]}” names no interval"
            for name, value, known in (of(page, name) for name in names):
                if not known:
                    yield number, f"{name} is not measured"
                elif isinstance(value, list):  # what a claim is about, its own test holds
                    neutral = float(" from 1" in line)  # of a ratio
                    if (value[1] <= neutral <= value[2]) != bool(match["open"]):
                        yield number, f"{name} denies “{match[0]}”"


def claims(page: Page) -> Found:
    """A claim of kind D or T, or about a recorded run, names a rival."""
    recorded = {name for _, _, source in page.cells for name in re.findall(r"^(\w+) = recorded\(", source, re.M)}
    for line, _, source in page.cells:
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "claim" and len(call.args) > 1:
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                kind = KINDS.get(str(getattr(given.get("id"), "value", "")), "")
                uses = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)} & recorded
                if (kind in ("D", "T") or uses) and not {"rivals", "of", None} & given.keys():
                    why = f"of kind {kind}" if kind else f"about the record {min(uses)}"
                    yield line + call.lineno - 1, f"a claim {why} names no rival: {ast.unparse(call.args[0])}"


CLOSING = ["What else is known", "In practice", "Exercises", "Takeaways"]
KINDS_OF_EXERCISE = ("Warm-up", "Implementation", "Proof", "Find the error", "Prediction", "Project")
TITLE = re.compile(rf"({'|'.join(KINDS_OF_EXERCISE)}) · [^★]+ ★{{1,3}}")
LONGEST, MINUTES, SLIDERS = 20, 60, 2
# A stub and the check in cells that a reader sees, a folded hint, a folded solution; behind it the proof that both can be had.
# An exercise that asks for a number has a box instead, which refuses wrong numbers when the page is executed.
IN_ORDER = re.compile(
    r"^:label: (?P<label>\S+)$.*?`(?P<name>\w+)\(.*?"
    r"^```\{code-cell\} ipython3\n(?!:tags:).*?def (?P=name)\(.*?raise NotImplementedError.*?check\(.*?"
    r"Hint\n:class: dropdown.*?^````\{solution-start\} (?P=label)\n:class: dropdown\n"
    r"(?P<solution>.*?(?:def (?P=name)\(|(?P=name) =).*?)^````\{solution-end\}.*?"
    r"\[remove-cell, tests-solution\]\n(?P<proof>.*?assert check\(.*?assert not check\(.*?)^```$",
    re.M | re.S,
)
ASKED = re.compile(
    r"^:label: (?P<label>\S+)$.*?^ask\(.*?Hint\n:class: dropdown.*?^````\{solution-start\} (?P=label)\n:class: dropdown\n",
    re.M | re.S,
)


def cells(page: Page) -> Found:
    """Cells are short, and fences are fences."""
    for fence in re.finditer(r"^`{3,}\{[\w:-]+\}[^\n`]*`", page.text, re.M):
        yield page.line(fence[0]), "a backtick in the first line of a fence, which is no fence then"
    for line, head, source in page.cells:
        code = re.sub(r"^(?:from .+ )?import (?:\([^)]*\)|.*)\n", "", source, flags=re.M)
        folded = re.search(r"hide-cell|hide-input|remove-", head)
        if len(code.splitlines()) > LONGEST and not folded:
            yield line, f"a cell of {len(code.splitlines())} lines"


def teaching(page: Page) -> Found:
    """A chapter: an example before each theorem, sliders, its time, its last sections."""
    if page.path.stem not in CHAPTERS:
        return
    text, first = page.text, page.text.partition("\n## ")[0]
    if minutes(text) > MINUTES:
        yield 1, f"{minutes(text)} minutes to read"
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        boxes = re.findall(r"^`{3,}\{prf:(example|theorem)\}", section, flags=re.M)
        if "theorem" in boxes and boxes[0] != "example":
            yield page.line(f"## {section}"), "no example by hand before the section's theorem"
    for proof in re.finditer(r"^`{3,}\{prf:proof\}", text, flags=re.M):
        if not text[: proof.start()].rstrip().rpartition("\n\n")[2].startswith("*Idea:*"):
            yield text.count("\n", 0, proof.start()) + 1, "no line that begins *Idea:* before the proof"
    if len(re.findall(r"^slider\(", text, flags=re.M)) < SLIDERS:
        yield 1, f"fewer than {SLIDERS} sliders"
    if (closing := [name for name in re.findall(r"^## (.+)$", text, flags=re.M) if name in CLOSING]) != CLOSING:
        yield 1, f"its last sections are {', '.join(closing)}, not {', '.join(CLOSING)}"
    if "**Before this:**" not in first:
        yield 1, "the first box lacks **Before this:**"


def exercises(page: Page) -> Found:
    """Exercises can be worked in; a chapter has one of every kind, with stars, two wrong answers, and without others' cells."""
    parts = re.findall(r"^```\{exercise\}.*?(?=^```\{exercise\}|^## |\Z)", page.text, re.M | re.S)
    if not parts:
        return
    chapter = page.path.stem in CHAPTERS
    titles = [part.partition("\n")[0].removeprefix("```{exercise} ") for part in parts]
    missing = [kind for kind in KINDS_OF_EXERCISE if not any(title.startswith(f"{kind} · ") for title in titles)]
    if chapter and missing:
        yield page.line("## Exercises"), f"no exercise of the kinds {', '.join(missing)}"
    made, used = zip(*map(_names, parts), strict=True)
    before = _names(page.text.partition("\n## Exercises")[0])[0]
    for place, (part, title) in enumerate(zip(parts, titles, strict=True)):
        line, worked, boxed = page.line(part), IN_ORDER.search(part), ASKED.search(part)
        if not (worked or boxed):
            yield line, f"an exercise lacks its stub or box, hint, solution, or the cell that tests it: {title}"
        if worked and re.search(r"\b(claim|measure)\(|\bassert\b", worked["solution"]):
            yield line, f"its solution claims or asserts: {title}"
        if chapter and not TITLE.fullmatch(title):
            yield line, f"its title must be a kind, words and one to three stars, as “Proof · All is lost ★★”: {title}"
        if chapter and not boxed and part.count("assert not check(") < 2:
            yield line, f"fewer than two wrong answers are rejected: {title}"
        borrowed = used[place] & (set().union(*made[:place], *made[place + 1 :]) - made[place] - before)
        if chapter and borrowed:
            yield line, f"its cells need those of another exercise, for {', '.join(sorted(borrowed))}: {title}"


def _names(text: str) -> tuple[set[str], set[str]]:
    """The names that the cells of a text make, and those that they use and Python would look for among a notebook's."""
    made, used = set(), set()
    for cell in CELL.finditer(text):
        tables = [symtable.symtable(cell["source"], "cell", "exec")]
        made |= {name.get_name() for name in tables[0].get_symbols() if name.is_assigned() or name.is_imported()}
        while tables:
            table = tables.pop()
            tables += table.get_children()
            outside = [name for name in table.get_symbols() if name.is_global() or table.get_type() == "module"]
            used |= {name.get_name() for name in outside if name.is_referenced()}
    return made, used


RULES = (words, verdicts, claims, cells, teaching, exercises)


def main(names: list[str]) -> int:
    """Print what each page owes; returns the exit status."""
    paths = [ROOT / "chapters" / f"{name}.md" for name in names] or sorted((ROOT / "chapters").rglob("*.md"))
    if wrong := [path.stem for path in paths if not path.is_file()]:
        raise SystemExit(f"there is no chapter {wrong[0]!r}; {hint(wrong[0], CHAPTERS)}")
    owed = 0
    for path in [path for path in paths if path.stem != "ledger"]:  # the build writes that one
        page = Page.read(path)
        found = sorted({finding for rule in RULES for finding in rule(page)})
        print(*(f"{path.relative_to(ROOT)}:{line}: {sentence}\n" for line, sentence in found), sep="", end="")
        owed += len(found)
    return 1 if owed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
