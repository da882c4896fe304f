"""The page about the library, with an example for every promised name; and below each statement its function and its verdict."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref

import sslbook
from bookbuild.layout import find_book
from bookbuild.ledger import CODE, page, stated
from bookbuild.sphinx_ext import annotate, edit
from sslbook._check import homes
from sslchapters.ledger import Claim, read_claims

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "chapters" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NAMES = sorted(homes(Path(sslbook.__file__).with_suffix(".pyi")))


def test_each_promised_name_stands_on_the_page_once() -> None:
    assert sorted(re.findall(r"^\.\. auto\w+:: sslbook\.(\w+)$", PAGE, re.MULTILINE)) == NAMES


def test_the_examples_run() -> None:
    assert len(BLOCKS) > 5
    test = doctest.DocTestParser().get_doctest("\n".join(BLOCKS), {}, "library.md", "chapters/library.md", 0)
    said: list[str] = []
    result = doctest.DocTestRunner().run(test, out=said.append)
    assert result.attempted > 40
    assert result.failed == 0, "".join(said)


def box(title: str, label: str) -> nodes.admonition:
    content = nodes.section("", nodes.paragraph("", "A statement."))
    return nodes.admonition("", nodes.title("", title), content, label=label)


def test_a_statement_has_its_function_below_and_the_verdict_in_an_icon() -> None:
    claims = {
        "B-F1": Claim("B-F1", "B", "a statement", "hltm", "I", "fails as stated", errata="errata-x"),
        "B-F2": Claim("B-F2", "B", "a statement", "hltm", "I", "holds with the correction"),
    }
    titles = {"(Units · B-F1 and B-F2)": "thm-lucky", "(Holds · B-F2)": "thm-holds", "": "thm-weighted"}
    tree = nodes.section("", *(box(title, label) for title, label in titles.items()))
    annotate(tree, {"thm-weighted": ["operator.covariance.covariance_operator"]}, claims)
    both, holds, weighted = (
        [p.astext() for p in one.findall(nodes.paragraph) if p.astext() != "A statement."] for one in tree.children
    )
    assert [one.next_node(nodes.title).astext() for one in tree.children] == ["(Units)", "(Holds)", ""]
    assert sum("The paper's claim</span>" in raw.astext() for raw in tree.findall(nodes.raw)) == 2
    assert both == ["The paper's claims: B-F1 fails as stated (errata); B-F2 holds as corrected here; our claim holds."]
    assert holds == ["The paper's claim B-F2 holds as corrected here."]
    assert weighted == ["In the library: covariance_operator."], "a promised name needs no more than itself"
    targets = [link["reftarget"] for link in tree.findall(pending_xref)]
    theirs = ["ledger-b-f1", "errata-x", "ledger-b-f2", "ledger-b-f2"]
    assert targets == [*theirs, "sslbook.operator.covariance.covariance_operator"]


def test_every_code_in_a_title_is_a_claim_and_the_ledger_names_its_box() -> None:
    book = find_book(ROOT)
    texts = [path.read_text(encoding="utf-8") for path in sorted(book.chapters.glob("*.md"))]
    boxes, ledger = stated(texts), page(book)
    titles = "\n".join(re.findall(r"^`{3,}\{prf:\w+\} (.*)$", "\n".join(texts), re.MULTILINE))
    assert set(CODE.findall(titles)) == set(boxes)
    assert boxes.keys() <= {one.id for one in read_claims(book.claims)}
    assert all(f"{{prf:ref}}`{label}`" in ledger for labels in boxes.values() for label in labels)
    meanings = [line for line in ledger.splitlines() if line.startswith("- <span")]
    for verdict in ("holds", "fails as stated", "open"):
        (row,) = [line for line in meanings if f">{verdict}<" in line]
        assert len(row.partition(": ")[2].split()) > 4, "the ledger says what a verdict means"


def test_papers_are_cited_and_explained_arguments_stand_apart() -> None:
    lines = [
        "Theorem 3 of [tian2020].",
        "views: of ``(N, V)``.  tau, beta: numbers.",
        "It says: nothing of net.",
        "beta: again",
    ]
    edit(None, "function", "f", lambda views, tau, beta, net: None, None, lines)
    assert list(filter(None, lines)) == [
        "Theorem 3 of :cite:t:`tian2020`.",
        "**views**: of ``(N, V)``.  ",
        "**tau, beta**: numbers.",
        "It says: nothing of net.",
        "**beta**: again",
    ]
