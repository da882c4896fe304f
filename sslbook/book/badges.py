"""How a passed check looks: one compact line, as text and as HTML, and the anchors that tie page and ledger together."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable

from sslbook.book.typeset import typeset
from sslbook.book.values import Number, Value, anchor_id, short

NOBREAK = "\u00a0"
MARK = '<span class="sslbook-check-mark" role="img" aria-label="check passed">✓</span>'


def line(number: Number) -> str:
    """A passed claim as one line of text: ``✓ A-Thm1  thm1-gap = 3.1e-16 ≤ 1e-12 · rejects: sign flipped (1.4)``."""
    identity = f"{number.id}  " if number.id else ""
    words = f"{number.what}: " if number.what else ""
    said = f"✓ {words}{identity}{number.name} = {short(number.result, *number.bars)} {number.criterion}"
    for kind, others in (("nearest rivals", number.rivals), ("rejects", number.rejects)):
        if others:
            said += f" · {kind}: " + ", ".join(f"{what} ({short(bad, *number.bars)})" for what, bad in others.items())
    return said


def badge(number: Number) -> str:
    """The same as HTML: a line that carries the anchor to which the ledger links, its rivals, folded what it rejects, and why.

    It has no style but its classes, and reads without them. Nothing that belongs together (an id, a name, a number with its
    relation) is broken between two lines. While the book is built, ``SSLBOOK_LEDGER`` holds the address of the ledger's page
    and the id links to its entry there.
    """
    identity = ""
    if number.id:
        identity = f"<strong>{html.escape(number.id)}</strong>"
        if ledger := os.environ.get("SSLBOOK_LEDGER"):
            identity = f'<a href="{html.escape(ledger)}#{entry_anchor(number.id)}">{identity}</a>'
    names = _whole(filter(None, (identity, f"<code>{html.escape(number.name)}</code>")))
    shown = _whole(map(html.escape, outcome(number)))
    what = f'<span class="sslbook-check-what">{html.escape(number.what or "")}</span>'
    said = [what, *shown, *names] if number.what else [*names, *shown]  # the names that the book has for it come last
    line = " ".join([*_whole([MARK]), *said])
    return (
        f'<div class="sslbook-check" id="{html.escape(anchor_id(number.name))}">'
        f'<div class="sslbook-check-line">{line}</div>{_rivals(number)}{_rejects(number)}{_why(number)}</div>'
    )


def _whole(words: Iterable[str]) -> list[str]:
    """Words of HTML, none of which is broken between two lines."""
    return [f'<span class="sslbook-nobreak">{word}</span>' for word in words]


def outcome(number: Number) -> list[str]:
    """Value and criterion in typographic form, in parts that belong together: ``["= 3.1 × 10⁻¹⁶", "≤ 10⁻¹²"]``."""
    value = f"={NOBREAK}{typeset(short(number.result, *number.bars)).replace(' ', NOBREAK)}"
    criterion = number.criterion
    if not criterion.asserts:
        return [value]
    if number.value == number.expect and criterion.allowed() == 0:
        return [f"{value}, exactly"]
    parts = typeset(str(criterion)).replace(" ", NOBREAK).split(f"{NOBREAK}and{NOBREAK}")
    return [value, parts[0], *(f"and{NOBREAK}{part}" for part in parts[1:])]


def _rivals(number: Number) -> str:
    """The wrong theories that come nearest and the value of each, in a small table that stands open."""
    if not number.rivals:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(what)}</th><td>{_value(bad, number)}</td></tr>'
        for what, bad in number.rivals.items()
    )
    caption = "nearest rival" if len(number.rivals) == 1 else "nearest rivals"
    return f'<table class="sslbook-check-rivals"><caption>{caption}</caption><tbody>{rows}</tbody></table>'


def _rejects(number: Number) -> str:
    """The broken variants and the value measured on each, in a disclosure that is closed at first."""
    if not number.rejects:
        return ""
    variants = "".join(f"<li>{html.escape(what)}: {_value(bad, number)}</li>" for what, bad in number.rejects.items())
    count = "one broken variant" if len(number.rejects) == 1 else f"{len(number.rejects)} broken variants"
    return f'<details class="sslbook-check-rejects"><summary>rejects {count}</summary><ul>{variants}</ul></details>'


def _why(number: Number) -> str:
    """The reason for the criterion."""
    return f'<div class="sslbook-check-why">{html.escape(number.why)}</div>' if number.why else ""


def _value(value: Value, number: Number) -> str:
    return f'<span class="sslbook-nobreak">{html.escape(typeset(short(value, *number.bars)))}</span>'


def entry_anchor(id: str) -> str:
    """The anchor of a claim's entry in the ledger's page."""
    return "ledger-" + re.sub(r"[^a-z0-9]+", "-", id.lower())
