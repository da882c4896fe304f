"""The notation page: every name in its code column exists, and symbols are defined in sight where a reader first meets them.

A symbol's head (``\\mathrm{OP}_l`` of ``\\mathrm{OP}_l = …``) counts as met in the first block of the book, in reading order, that
has it in a formula; a block is a paragraph, a list item or a box, with the formulas set between its lines. In sight is a
definition that says so: a word such as "let", "write", "is the", "called", a bold term, or the symbol before an equals sign, in
that block or the one after it. ``python tests/book/test_notation.py`` lists where each symbol is first met.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup

from bookbuild.cells import parts
from bookbuild.layout import find_book
from bookbuild.sphinx_ext import exists, offered

BOOK = find_book(Path(__file__).resolve().parents[2])
PAGE = Path(__file__).parents[2] / "chapters" / "notation.md"
TABLE = re.compile(r"^```\{list-table\}.*?^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\* - (.*)\n  - (.*)\n  - (.*)\n  - (.*)$", re.MULTILINE)


def tables(text: str) -> list[list[tuple[str, ...]]]:
    return [ROW.findall(block) for block in TABLE.findall(text)]


def rows() -> list[tuple[str, ...]]:
    return [row for table in tables(PAGE.read_text(encoding="utf-8")) for row in table[1:]]


def code_names() -> list[str]:
    return sorted({name for _, _, code, _ in rows() for name in re.findall(r"`([^`]+)`", code)})


def test_there_are_tables_and_every_row_was_read():
    text = PAGE.read_text(encoding="utf-8")
    found = tables(text)
    assert len(found) == text.count("{list-table}") == text.count(":name: notation-") >= 5
    assert all(table[0] == ("Symbol", "Meaning", "Code", "Shape") for table in found)
    assert sum(map(len, found)) == text.count("\n* - ")  # a malformed row would be skipped silently


def test_the_code_column_names_what_exists():
    assert [
        name for name in code_names() if not exists(name if name.startswith("sslchapters.") else f"sslbook.{name}")
    ] == []


def test_code_cells_hold_names_or_a_dash():
    for _, _, code, _ in rows():
        assert re.fullmatch(r"—|`[\w.]+`(, `[\w.]+`)*", code), code


@pytest.mark.parametrize("column", [0, 1])
def test_no_symbol_or_meaning_stands_twice(column):
    entries = [row[column] for row in rows()]
    assert sorted(entries) == sorted(set(entries))


@pytest.mark.built
def test_promised_names_lead_to_their_entries():
    pages = [BOOK.html / "chapters" / f"{name}.html" for name in ("notation", "library")]
    notation, library = (BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser") for page in pages)
    links = {link.code.get_text(): link["href"] for link in notation.select("article td a[href]:has(> code)")}
    promised = {name for name in code_names() if any(f"sslbook.{name}.".startswith(f"{full}.") for full in offered())}
    assert len(promised) > 15
    assert promised - set(links) == set()
    for name, href in links.items():
        page, _, anchor = href.partition("#")
        assert page == "library.html", name
        assert library.find(id=anchor), f"{name} leads to {href}, which is not there"


CUES = re.compile(
    r"\b(?:let|write|writes|call|called|calls|define[sd]?|denotes?|where|put|fix|means|stands? for)\b|\b(?:for|with) x (?:the|a)\b"
    r"|x is |is x|are x|\b(?:the|an?|its) [\w -]+ x |\*\*[^*]+\*\*",
    re.IGNORECASE,
)
"""Words that say what something is; ``x`` stands for a formula."""
EXCEPTIONS = {
    r"\alpha_{ij}": "Chapter 3 compares its weights with those of Chapter 8, by name and with a link, in one sentence",
}
"""Why a symbol is met before it is defined."""


def normal(formula: str) -> str:
    """Without what changes nothing: spaces, thin spaces, braces around one letter, sizes."""
    formula = re.sub(r"\\(?:,|;|!|quad|left|right|bigl?|bigr?|Bigl?|Bigr?)(?![a-zA-Z])", "", formula)
    formula = re.sub(r"\\([a-zA-Z]+)\s+(?=[a-zA-Z])", r"\\\1{}", formula)
    formula = re.sub(r"\\([a-z]+)(?:\{\}([a-zA-Z])(?![a-zA-Z])|\{([a-zA-Z])\})", r"\\\1{\2\3}", formula)
    formula = re.sub(r"([_^])\{([a-zA-Z0-9])\}", r"\1\2", formula)
    return re.sub(r"\s+|\{\}", "", formula)


def heads() -> list[str]:
    """The symbols that a search can tell from others: with an index, a hat or a name of several letters, not one plain letter."""
    found = []
    for symbol, *_ in rows():
        for formula in re.findall(r"\$([^$]+)\$", symbol):
            head = re.split(r"=|\\sim|\\in\b|\\ge\b|\\le\b|>|<|\(|\[|\\mid", formula)[0].strip()
            plain = normal(head)
            if re.search(r"[_^\\]", plain) and not re.fullmatch(r"\\[a-zA-Z]+|\\(?:mathbf|mathbb)\{[a-zA-Z]\}", plain):
                found.append(plain)
    return sorted(set(found) - {""})


def blocks(text: str) -> list[str]:
    """Paragraphs with the display formulas that belong to them; code cells left out."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^(`{3,})\{code-cell\}.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\n+(\$\$.*?\$\$)[^\n]*\n+", lambda match: f"\n{match[1]}\n", text, flags=re.DOTALL)
    return [block for block in re.split(r"\n\s*\n|\n(?=- |\d+\. |#)", text) if block.strip()]


def formulas(block: str) -> str:
    """All that stands in dollars in a block, normalised, apart from each other."""
    found = re.findall(r"\$\$(.*?)\$\$|\$([^$]+)\$", block, flags=re.DOTALL)
    return " ; ".join(normal(display or inline) for display, inline in found)


def has(symbol: str, block: str) -> bool:
    """Whether a formula of ``block`` has ``symbol``, and not a longer one that begins like it."""
    ends = r"(?![a-zA-Z0-9'])" if symbol[-1].isalnum() else ""
    return re.search(re.escape(symbol) + ends, formulas(block)) is not None


def defined(symbol: str, seen: str) -> bool:
    """Whether a stretch of text says what ``symbol`` is."""
    if re.search(re.escape(symbol) + r"(?:\([^)]*\))?(?::=|=|\\in)", formulas(seen)):
        return True
    return CUES.search(re.sub(r"\$\$.*?\$\$|\$[^$]+\$", " x ", seen, flags=re.DOTALL).replace("  ", " ")) is not None


def first_met(sources: list[tuple[str, str]]) -> Iterator[tuple[str, str, str, bool]]:
    """``(symbol, page, block, defined there)`` for each symbol that a page has, at its first place in the book."""
    found = [(page, block) for page, text in sources for block in blocks(text)]
    for symbol in heads():
        for i, (page, block) in enumerate(found):
            if has(symbol, block):
                seen = "\n".join(text for _, text in found[i : i + 2])
                yield symbol, page, block, defined(symbol, seen)
                break


def chapters() -> list[tuple[str, str]]:
    """The chapters in reading order."""
    toc = yaml.safe_load((BOOK.root / "_toc.yml").read_text(encoding="utf-8"))
    numbered = [str(chapter["file"]) for part in parts(toc) for chapter in part["chapters"]]
    return [(page, (BOOK.root / f"{page}.md").read_text(encoding="utf-8")) for page in numbered]


def test_symbols_are_defined_where_they_are_first_met() -> None:
    met = list(first_met(chapters()))
    assert len(met) > 100, "most symbols of the page are met"
    late = {symbol: f"{page}: {' '.join(block.split())[:200]}" for symbol, page, block, known in met if not known}
    assert {symbol: where for symbol, where in late.items() if symbol not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(heads()), "an exception for a symbol that is none"


if __name__ == "__main__":
    for symbol, page, block, known in first_met(chapters()):
        if not known or "--all" in sys.argv:
            print(f"{'  ' if known else '? '}{symbol:32} {page.rpartition('/')[2]:16} {' '.join(block.split())[:150]}")
    print(len(heads()), "symbols;", sorted(set(heads()) - {s for s, *_ in first_met(chapters())}), "in no chapter")
