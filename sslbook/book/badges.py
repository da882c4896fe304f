"""How a passed check looks: one compact line, as text and as HTML, and the anchors that tie page and ledger together."""

from __future__ import annotations

import html
import os
import re

from sslbook.book.values import Number, anchor_id, short


def line(number: Number) -> str:
    """A passed claim as one line of text: ``✓ A-Thm1  thm1-gap = 3.1e-16 ≤ 1e-12 · rejects: sign flipped (1.4)``."""
    rejects = ", ".join(f"{what} ({short(bad)})" for what, bad in number.rejects.items())
    identity = f"{number.id}  " if number.id else ""
    return f"✓ {identity}{number.name} = {short(number.value)} {number.criterion}" + (
        f" · rejects: {rejects}" if rejects else ""
    )


def badge(number: Number) -> str:
    """The same line as HTML: it carries the anchor that the ledger links to, and no style but its class ``sslbook-check``.

    While the book is built, ``SSLBOOK_LEDGER`` holds the address of the ledger's page and the id links to its entry
    there.
    """
    ledger = os.environ.get("SSLBOOK_LEDGER")
    identity = ""
    if number.id:
        identity = f"<strong>{html.escape(number.id)}</strong> "
        if ledger:
            identity = f'<a href="{html.escape(ledger)}#{entry_anchor(number.id)}">{identity.strip()}</a> '
    rejects = ""
    if number.rejects:
        variants = ", ".join(f"{html.escape(what)} ({html.escape(short(bad))})" for what, bad in number.rejects.items())
        rejects = f' <span class="sslbook-check-rejects">· rejects: {variants}</span>'
    return (
        f'<div class="sslbook-check" id="{html.escape(anchor_id(number.name))}">'
        '<span class="sslbook-check-mark" role="img" aria-label="check passed">✓</span> '
        f"{identity}<code>{html.escape(number.name)}</code> = {html.escape(short(number.value))} "
        f"{html.escape(str(number.criterion))}{rejects}</div>"
    )


def entry_anchor(id: str) -> str:
    """The anchor of a claim's entry in the ledger's page."""
    return "ledger-" + re.sub(r"[^a-z0-9]+", "-", id.lower())
