"""Below a statement stands what became of the claim that its title names, and the ledger names the statement."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docutils import nodes
from sphinx import addnodes

from sslbook.book.layout import find_book
from sslbook.book.ledger import CODE, Claim, page, read_claims, stated
from sslbook.book.statements import tell

BOOK = find_book(Path(__file__).resolve().parents[2])
BOX = "```{{prf:theorem}} {title}\n:label: {label}\n\nA statement.\n```\n"


def claim(id: str, verdict: str, errata: str = "") -> Claim:
    return Claim(id, id[0], "a statement", "hltm", "I", verdict, errata=errata)


def box(title: str, label: str = "thm-one") -> nodes.section:
    document = nodes.section()
    statement = nodes.admonition("", nodes.title("", title), nodes.section("", nodes.paragraph("", "A statement.")))
    statement["label"] = label
    document += statement
    return document


def test_the_claims_of_a_box_are_those_at_the_end_of_its_title() -> None:
    pages = [
        BOX.format(title="Several units · B-F1", label="thm-units") + BOX.format(title="No code", label="thm-none"),
        BOX.format(title="Two at once · C-Lem6 and C-Cor3", label="thm-bn")
        + BOX.format(title="One more · B-F1", label="thm-one"),
    ]
    assert stated(pages) == {"B-F1": ["thm-units", "thm-one"], "C-Lem6": ["thm-bn"], "C-Cor3": ["thm-bn"]}


def test_a_statement_says_its_verdict_and_leads_to_ledger_and_errata() -> None:
    claims = {"B-F1": claim("B-F1", "fails as stated", "errata-x"), "B-F2": claim("B-F2", "holds")}
    found = box("(Several units · B-F1 and B-F2)")
    tell(found, claims)
    (line,) = [p for p in found.findall(nodes.paragraph) if "sslbook-functions" in p["classes"]]
    assert line.astext() == "In the ledger: B-F1 fails as stated (errata); B-F2 holds."
    targets = [link["reftarget"] for link in line.findall(addnodes.pending_xref)]
    assert targets == ["ledger-b-f1", "errata-x", "ledger-b-f2"]
    silent = box("(A lemma of ours)")
    tell(silent, claims)
    assert "ledger" not in silent.astext()


def test_every_code_in_a_title_is_a_claim_and_the_ledger_names_its_box() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(BOOK.chapters.glob("*.md"))]
    boxes = stated(texts)
    titles = "\n".join(re.findall(r"^`{3,}\{prf:\w+\} (.*)$", "\n".join(texts), re.MULTILINE))
    assert set(CODE.findall(titles)) == set(boxes)
    assert boxes.keys() <= {one.id for one in read_claims(BOOK.claims)}
    ledger = page(BOOK)
    for labels in boxes.values():
        for label in labels:
            assert f"{{prf:ref}}`{label}`" in ledger


@pytest.mark.parametrize("verdict", ["holds", "fails as stated", "open"])
def test_the_ledger_says_what_a_verdict_means(verdict: str) -> None:
    (row,) = [line for line in page(BOOK).splitlines() if line.startswith("- <span") and f">{verdict}<" in line]
    assert len(row.partition(": ")[2].split()) > 4
