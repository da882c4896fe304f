"""What a page says of itself to search engines and to whoever posts a link to it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from docutils import nodes

from sslbook.book.reading import LINE
from sslbook.book.searching import readable

PICTURE = "_static/sslbook/social.png"
"""The picture beside a posted link, 1200 × 630, drawn by tools/make_cover.py."""
SIZE = (1200, 630)
LONGEST = 160
"""Characters of a description: what result pages show."""
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z“])")


def description(doctree: nodes.document) -> str:
    """What a page is about, in its own words: as many sentences of its first box as fit, else of its first paragraph."""
    box = next(iter(doctree.findall(nodes.admonition)), None)
    first = None if box is None or _before(box) else _paragraph(box)
    first = first or next((p for p in doctree.findall(nodes.paragraph) if len(p.astext().split()) > 8), None)
    return "" if first is None else _shortened(_words(first))


def head(*, title: str, book: str, page: str, about: str, site: str) -> str:
    """The lines for a page's head. Addresses are absolute or of no use, so those need a ``site``."""
    told = [("name", "description", about), ("property", "og:description", about)] if about else []
    told += [
        ("property", "og:title", title),
        ("property", "og:site_name", book),
        ("property", "og:type", "article" if title != book else "website"),
        ("name", "twitter:card", "summary_large_image" if site else "summary"),
    ]
    lines = []
    if site:
        address = f"{site}/{page}.html"
        picture = "Handwritten digits, what their augmented views share, and what tells them apart"
        told += [("property", "og:url", address), ("property", "og:image", f"{site}/{PICTURE}")]
        told += [("property", "og:image:width", str(SIZE[0])), ("property", "og:image:height", str(SIZE[1]))]
        told += [("property", "og:image:alt", picture)]
        lines.append(f'<link rel="canonical" href="{html.escape(address)}">')
    lines += [f'<meta {kind}="{name}" content="{html.escape(value)}">' for kind, name, value in told]
    return "\n    " + "\n    ".join(lines) + "\n"


def sitemap(site: str, pages: Iterable[str]) -> str:
    """The book's `sitemap.xml`."""
    rows = "".join(f"  <url><loc>{html.escape(f'{site}/{page}.html')}</loc></url>\n" for page in pages)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{rows}</urlset>\n'
    )


def _before(box: nodes.Element) -> bool:
    """Whether ``box`` belongs to a later section: the first box of a page may be a theorem."""
    depth = 0
    parent = box.parent
    while parent is not None:
        depth += isinstance(parent, nodes.section)
        parent = parent.parent
    return depth != 1


def _paragraph(box: nodes.Element) -> nodes.paragraph | None:
    found = (child for child in box.children if isinstance(child, nodes.paragraph) and LINE not in child["classes"])
    return next(found, None)


def _words(paragraph: nodes.Element) -> str:
    """Its text, formulas as letters."""
    said = ""
    for leaf in paragraph.findall(nodes.Text):
        said += readable(leaf.astext()) if isinstance(leaf.parent, (nodes.math, nodes.math_block)) else leaf.astext()
    return " ".join(said.split())


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    said = ""
    for sentence in _SENTENCE.split(text):
        if len(said) + len(sentence) >= LONGEST:
            break
        said += f" {sentence}"
    return said.strip() or text[: LONGEST - 1].rpartition(" ")[0].rstrip(",;:") + "…"
