"""What a chapter owes a reader who wants to learn from it: the idea in sight, exercises of three levels, something to move.

``python tests/book/test_teaching.py NAME`` lists what a chapter still owes.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
import pytest
from test_prose import CHAPTERS, NOTEBOOKS, page

from bookbuild.cells import minutes
from bookbuild.execute import execute
from bookbuild.layout import Setting, choose, find_chapters, parse_cell

OWING = [path for path in NOTEBOOKS if path.stem in CHAPTERS]
FOLDED = {"hide-input", "hide-cell", "remove-cell", "remove-input", "parameters"}
BOOKKEEPING = {"claim", "measure", "begin"}
CLOSING = ["What else is known", "In practice", "Exercises", "Takeaways"]
LEVELS = ("Warm-up", "Implementation", "Exploration")
MEDIAN, WIDEST, SHARE = 8, 88, 0.1
MINUTES = 60
EXERCISES, SLIDERS = 5, 2


def shown(text: str) -> list[str]:
    """The code that a page shows unasked: what is neither folded nor in the opening, whose code is one folded bar."""
    found, opening = [], True
    for cell in jupytext.reads(text, fmt="md:myst").cells:
        if cell.cell_type == "markdown":
            opening = opening and re.search(r"^## ", cell.source, flags=re.MULTILINE) is None
        elif not opening and not FOLDED & set(cell.metadata.get("tags", ())):
            found.append(cell.source)
    return found


def bookkeeping(source: str) -> int:
    """Lines of a cell that assert, measure or import, and explain nothing."""
    lines: set[int] = set()
    for node in parse_cell(source).body:
        called = {getattr(call.func, "id", "") for call in ast.walk(node) if isinstance(call, ast.Call)}
        if isinstance(node, (ast.Import, ast.ImportFrom)) or BOOKKEEPING & called:
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def exercises(text: str) -> dict[str, str]:
    """Title by text of each exercise with all that belongs to it."""
    parts = re.split(r"^```\{exercise\} ?", text, flags=re.MULTILINE)[1:]
    return {part: part.partition("\n")[0] for part in parts}


def unexemplified(text: str) -> list[str]:
    """Sections with a theorem and no example worked by hand before it."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        boxes = re.findall(r"^`{3,}\{prf:(example|theorem)\}", section, flags=re.MULTILINE)
        if "theorem" in boxes and boxes[0] != "example":
            found.append(section.partition("\n")[0])
    return found


def owed(text: str) -> Iterator[str]:
    """What a chapter lacks, in words."""
    code = shown(text)
    lines = [line for source in code for line in source.splitlines() if line.strip()]
    kept = sum(map(bookkeeping, code))
    if kept > SHARE * len(lines):
        yield f"{kept} of {len(lines)} visible lines of code are bookkeeping"
    if code and statistics.median(len(source.splitlines()) for source in code) > MEDIAN:
        yield f"half of its visible cells have more than {MEDIAN} lines"
    yield from (f"a line of {len(line)} characters: {line.strip()}" for line in lines if len(line) > WIDEST)
    if minutes(text) > MINUTES:
        yield f"{minutes(text):.0f} minutes to read"
    yield from (f"no example by hand before the theorem of: {section}" for section in unexemplified(text))
    tasks = exercises(text)
    if len(tasks) < EXERCISES:
        yield f"{len(tasks)} exercises"
    yield from (f"no exercise of the level {level}" for level in LEVELS if not _of_level(tasks, level))
    for part, title in tasks.items():
        if not title.startswith(tuple(f"{level} · " for level in LEVELS)):
            yield f"an exercise without a level: {title}"
        if part.count("assert not check(") < 2:
            yield f"fewer than two wrong answers are rejected: {title}"
    for proof in re.finditer(r"^`{3,}\{prf:proof\}", text, flags=re.MULTILINE):
        if not text[: proof.start()].rstrip().rpartition("\n\n")[2].startswith("*Idea:*"):
            yield f"no line that begins *Idea:* before the proof: {text[proof.end() :].strip().partition(chr(10))[0][:70]}"
    if len(re.findall(r"^slider\(", text, flags=re.MULTILINE)) < SLIDERS:
        yield "fewer than two sliders"
    closing = [name for name in re.findall(r"^## (.+)$", text, flags=re.MULTILINE) if name in CLOSING]
    if closing != CLOSING:
        yield f"its last sections are {', '.join(closing)}, not {', '.join(CLOSING)}"
    yield from (
        f"the first box lacks {word}" for word in ("**Before this:**",) if word not in text.partition("\n## ")[0]
    )


def _of_level(tasks: dict[str, str], level: str) -> list[str]:
    return [title for title in tasks.values() if title.startswith(f"{level} · ")]


@pytest.mark.parametrize("path", OWING, ids=page)
def test_a_chapter_owes_its_reader_nothing(path: Path) -> None:
    assert list(owed(path.read_text(encoding="utf-8"))) == []


def test_the_template_runs_and_lacks_only_what_its_author_adds(write_book) -> None:
    text = (Path(__file__).parents[2] / "tools/chapter_template.md").read_text(encoding="utf-8")
    book = write_book(template="")
    (book.chapters / "template.md").write_text(text, encoding="utf-8")
    (outcome,) = execute(book, choose(find_chapters(book), []), Setting("quick", 0, "cpu", 60), say=lambda line: None)
    assert outcome.error == ""
    assert set(owed(text)) <= {
        "1 exercises",
        "fewer than two sliders",
        "no exercise of the level Implementation",
        "no exercise of the level Exploration",
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or [path.stem for path in OWING]:
        path = Path(__file__).resolve().parents[2] / "chapters" / f"{name}.md"
        print(f"{name}: {minutes(path.read_text(encoding='utf-8')):.0f} minutes to read")
        for problem in owed(path.read_text(encoding="utf-8")):
            print(f"  {problem}")
