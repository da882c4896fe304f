"""What the chapters' sources promise: no outputs, short cells, numbers that come from a run, one sentence a line."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jupytext
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from bookbuild import regression
from bookbuild.cells import parts
from bookbuild.layout import Book
from sslchapters.data_files import read_yaml
from sslchapters.ledger import read_claims
from sslchapters.values import prose

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in (ROOT / "chapters").glob("*.md") if path.stem != "ledger")  # the build writes that one
NOTEBOOKS = [path for path in PAGES if "{code-cell}" in path.read_text(encoding="utf-8")]
CHAPTERS = {Path(page["file"]).stem for part in parts(read_yaml(ROOT / "_toc.yml", dict)) for page in part["chapters"]}
LONGEST_CELL = 20

# A number that belongs to a name and not to a run: "Section 4.1", "Python 3.11", "arXiv 2010.00578".
NAMED = (
    r"(?:Sections?|Secs?\.|§|Eqs?\.|Equations?|Theorems?|Lemmas?|Figs?\.|Figures?|Tables?|Parts?|Appendix"
    r"|Python|PyTorch|torch|CUDA|version|arXiv:?)"
)
DECIMAL = re.compile(rf"(?P<name>{NAMED}[\s~]*)?(?<![\w.])(?P<number>\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?![\w.]*\w)")


DATA = r"^(`{3,}|:{3,})\{(?:list-table|table|csv-table|figure|image|bibliography|toctree|book-map)\}.*?^\1"


def sentences(text: str) -> Iterator[str]:
    """The lines that a reader reads as sentences: without code, maths, roles, tables, and where links lead."""
    text = re.sub(r"\A---\n.*?\n---\n|<!--.*?-->|\$\$.*?\$\$", "", text, flags=re.DOTALL)
    for line in prose(re.sub(DATA, "", text, flags=re.MULTILINE | re.DOTALL)).splitlines():
        if not re.match(r"\s*(\||:[\w-]+:|\([\w-]+\)=)", line):
            line = re.sub(r"(\{[\w:-]+\})?(`+).*?\2", "", line)
            line = re.sub(r"\$[^$]*\$", "x", line)
            yield re.sub(r"\]\([^)]*\)|<https?:[^>]*>|https?://\S+", "", line).strip()


def typed_decimals(text: str) -> list[str]:
    """Decimals that somebody typed into a sentence; a measured one is `{glue:text}`, a chosen one is code or maths."""
    found = [(match, line) for line in sentences(text) for match in DECIMAL.finditer(line)]
    return [f"{match['number']} in: {line}" for match, line in found if not match["name"]]


ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|cf|vs|etc|al|resp|Eqs?|Figs?|Secs?|Thms?|Props?|Prof|Dr|St|no|approx)\.$")
# A bold run-in heading ("**Shapes.** They are …") may share its line.
SENTENCE_END = re.compile(r"[\w)*`’”\]]{2}[.!?](?=[_)’”]* +[*_(“]*[A-Z])")


def crowded_lines(text: str) -> list[str]:
    """Lines that hold more than one sentence: they make a diff say more than what changed."""
    found = []
    for line in sentences(text):
        ends = [match for match in SENTENCE_END.finditer(line) if not ABBREVIATIONS.search(line[: match.end()])]
        if ends and not line.startswith("#"):
            found.append(line)
    return found


def code_cells(text: str) -> list[str]:
    return [cell.source for cell in jupytext.reads(text, fmt="md:myst").cells if cell.cell_type == "code"]


def long_cells(text: str) -> list[str]:
    """Cells of too many lines; what a set-up imports is not counted."""
    imports = re.compile(r"^(?:from .+ )?import (?:\([^)]*\)|.*)\n", re.MULTILINE)
    return [source for source in code_cells(text) if len(imports.sub("", source).splitlines()) > LONGEST_CELL]


def claimed_ids(text: str) -> set[str]:
    """The claim ids that a chapter's code gives to `claim` and `measure`, also in a loop over literals named ``id``."""
    found = set()
    for source in code_cells(text):
        tree = ast.parse(TransformerManager().transform_cell(source))
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "id" and isinstance(node.value, ast.Constant):
                found.add(str(node.value.value))
    return found - {"None"}


def named_ids(text: str) -> set[str]:
    """The claim ids that a page names anywhere: A-Thm3, B-Tab10, C-Eq2, A-5.1a."""
    return set(
        re.findall(r"(?<![\w-])[ABC]-(?:(?:Thm|Lem|Def|Cor|Eq|Fig|Tab)\d+|5\.\d[a-z]|[A-Z]{2,4}\b|F\d|B5)", text)
    )


def ledger_ids() -> set[str]:
    return {claim.id for claim in read_claims(Book(ROOT).claims)}


def page(name: Path) -> str:
    return name.stem


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_no_number_is_typed_by_hand(path: Path) -> None:
    assert typed_decimals(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_a_line_holds_one_sentence(path: Path) -> None:
    assert crowded_lines(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_every_claim_that_is_named_is_in_the_ledger(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert (claimed_ids(text) | named_ids(text)) - ledger_ids() == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=page)
def test_cells_are_short(path: Path) -> None:
    assert long_cells(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=page)
def test_jupytext_will_not_rewrite_the_source(path: Path) -> None:
    """A chapter is stored as Jupytext writes it, so that an editor that goes through it changes nothing but what was edited."""
    text = path.read_text(encoding="utf-8")
    header = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # Jupytext adds its own version there
    assert header.sub("", jupytext.writes(jupytext.reads(text, fmt="md:myst"), fmt="md:myst")) == header.sub("", text)


def test_no_output_is_committed() -> None:
    """Sources in MyST hold no outputs; a committed .ipynb could."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing is committed here")
    listed = subprocess.run(
        ["git", "ls-files", "*.ipynb", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [name for name in listed.stdout.split() if name.endswith(".ipynb")] == []
    assert [path.name for path in PAGES if "data:image/" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("path", sorted((ROOT / "data/expected").glob("*.paper.json")), ids=lambda path: path.name)
def test_both_scales_hold_the_same_numbers(path: Path) -> None:
    assert regression.left_out(Book(ROOT), path.name.partition(".")[0], "quick") == []


IN_ORDER = re.compile(
    r"^:label: (?P<label>\S+)$.*?`(?P<name>\w+)\(.*?"  # its words ask for a function
    r"^```\{code-cell\} ipython3\n(?!:tags:).*?def (?P=name)\(.*?raise NotImplementedError.*?check\(.*?"
    r"Hint\n:class: dropdown.*?^````\{solution-start\} (?P=label)\n:class: dropdown\n"
    r"(?P<solution>.*?(?:def (?P=name)\(|(?P=name) =).*?)^````\{solution-end\}.*?"
    r"\[remove-cell, tests-solution\]\n(?P<proof>.*?assert check\(.*?assert not check\(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
"""A stub and the check in cells that a reader sees, a folded hint, a folded solution; behind it the proof that both can be had."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=page)
def test_exercises_can_be_worked_in(path: Path) -> None:
    for part in re.split(r"^```\{exercise\}", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        exercise = IN_ORDER.search(part)
        assert exercise, part[:200]
        assert not re.search(r"\b(check|claim|measure)\(|\bassert\b", exercise["solution"]), "it checks itself"
        assert not re.search(r"\b(claim|measure)\(", exercise["proof"]), "a number that readers' notebooks would lack"


def _cells(text: str) -> list[str]:
    return re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_what_a_chapter_reports_is_no_value_of_its_cell() -> None:
    """`claim`, `measure` and `check` return what they have shown already; a semicolon keeps a notebook from showing it again."""
    ends = re.compile(r"^(claim|measure|check)\((?:(?!^\w).)*\)$", re.MULTILINE | re.DOTALL)
    for path in NOTEBOOKS:
        for cell in _cells(path.read_text(encoding="utf-8")):
            last = list(ends.finditer(cell.rstrip()))
            assert not last or last[-1].end() < len(cell.rstrip()), f"{path.name}: {cell}"
