"""The notation page: every name in its code column exists, and the symbols that the chapters need are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from sslbook.book.layout import find_book
from sslbook.book.library import offered

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


def resolve(name: str) -> None:
    """Follow ``module.attribute.field`` below sslbook; dataclass fields count, though the class lacks the attribute."""
    module, *path = name.split(".")
    value = importlib.import_module(f"sslbook.{module}")
    for i, step in enumerate(path):
        if i == len(path) - 1 and step in getattr(value, "__dataclass_fields__", {}):
            return
        if not hasattr(value, step) and hasattr(value, "__path__"):
            # a module of a package that nobody has imported yet
            value = importlib.import_module(f"{value.__name__}.{step}")
        else:
            value = getattr(value, step)


def test_there_are_tables_and_every_row_was_read():
    text = PAGE.read_text(encoding="utf-8")
    found = tables(text)
    assert len(found) == text.count("{list-table}") == text.count(":name: notation-") >= 5
    assert all(table[0] == ("Symbol", "Meaning", "Code", "Shape") for table in found)
    assert sum(map(len, found)) == text.count("\n* - ")  # a malformed row would be skipped silently


@pytest.mark.parametrize("name", code_names())
def test_the_code_column_names_what_exists(name):
    resolve(name)


@pytest.mark.parametrize("name", ["connection.vect", "nowhere.vec", "connection.OpenedLayer.above"])
def test_the_check_rejects_a_name_that_does_not_exist(name):
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve(name)


def test_code_cells_hold_names_or_a_dash():
    for _, _, code, _ in rows():
        assert re.fullmatch(r"—|`[\w.]+`(, `[\w.]+`)*", code), code


@pytest.mark.parametrize("column", [0, 1])
def test_no_symbol_or_meaning_stands_twice(column):
    entries = [row[column] for row in rows()]
    assert sorted(entries) == sorted(set(entries))


def test_mathematics_is_balanced():
    for row in rows():
        for cell in row:
            assert cell.count("$") % 2 == 0, cell
            assert cell.count("{") == cell.count("}"), cell


NEEDED = [
    *(r"\mathbf x'", "$N$", "$V$", "$H$", "n_l", "W_l", r"\mathbf f_{l-1}", r"\tilde{\mathbf f}_l", "J_l", "K_l"),
    *(r"\operatorname{vec}", "V^f_l", "V^b_l", r"\kappa_l", r"\hat{\mathbf f}", r"P^\perp", "r_+", "r_{k-}", r"\tau"),
    *("r_0", r"\xi(r)", r"\mathrm{OP}_l", r"\mathrm{EV}_l", r"\mathrm{VE}_l", r"\theta", r"\sigma^2_{\mathrm{aug}}"),
]


@pytest.mark.parametrize("symbol", NEEDED)
def test_the_chapters_symbols_are_here(symbol):
    assert any(symbol in row[0] for row in rows())


def test_promised_names_lead_to_their_entries():
    pages = {name: BOOK.html / "chapters" / f"{name}.html" for name in ("notation", "library")}
    if not all(page.is_file() for page in pages.values()):
        pytest.skip("the book is not built: make book")
    notation, library = (BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser") for page in pages.values())
    links = {link.code.get_text(): link["href"] for link in notation.select("article td a[href]:has(> code)")}
    promised = {name for name in code_names() if any(f"sslbook.{name}.".startswith(f"{full}.") for full in offered())}
    assert len(promised) > 15
    assert promised - set(links) == set()
    for name, href in links.items():
        page, _, anchor = href.partition("#")
        if page.startswith("https:"):  # its source: the repository is known
            assert f"/blob/main/sslbook/{name.partition('.')[0]}" in page
        else:
            assert page == "library.html", name
            assert library.find(id=anchor), f"{name} leads to {href}, which is not there"
            assert not name.startswith("chapters.")
