"""Below each statement what became of the paper's claim: its verdict, with links to the ledger and, if it has one, its erratum.

The title of a box names the claims that it states, as in ``Several units · B-F1``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from sslbook.book.badges import entry_anchor
from sslbook.book.ledger import CODE, Claim, read_claims
from sslbook.book.library import append, statements
from sslbook.records import data_files


def connect(app: Sphinx) -> None:
    """Take part in the Sphinx run of the book."""
    app.connect("doctree-read", lambda app, doctree: tell(doctree, _claims()))


def tell(doctree: nodes.Element, claims: Mapping[str, Claim]) -> None:
    """Below each statement of a page, the verdict on each claim that its title names."""
    for statement in statements(doctree):
        title = statement.next_node(nodes.title)
        if named := [claims[code] for code in CODE.findall(title.astext() if title else "") if code in claims]:
            append(statement, _line(named))


def _line(claims: list[Claim]) -> nodes.paragraph:
    line = nodes.paragraph("", "In the ledger: ", classes=["sslbook-functions"])
    for number, claim in enumerate(claims):
        line += nodes.Text("; " if number else "")
        line += _link(claim.id, entry_anchor(claim.id))
        line += nodes.Text(f" {claim.verdict}")
        if claim.errata:
            line += [nodes.Text(" ("), _link("errata", claim.errata), nodes.Text(")")]
    line += nodes.Text(".")
    return line


def _link(text: str, label: str) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        "", nodes.inline("", text), refdomain="std", reftype="ref", reftarget=label, refexplicit=True, refwarn=True
    )


@functools.cache
def _claims() -> dict[str, Claim]:
    return {claim.id: claim for claim in read_claims(data_files.folder() / "claims.yml")}
