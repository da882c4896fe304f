"""How a check looks on a page: a badge that names the claims and their verdicts, and opens to all the rest.

A cell tagged ``hide-cell`` holds what the book checks and a reader of the idea need not see. Its badge is made of the lines of
its checks; behind it stand the bars, the nearest rivals, the broken variants, the reasons, and the code.
"""

from __future__ import annotations

import html
import re

from bs4 import BeautifulSoup
from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode

from sslbook.book.opening import is_code_cell

SEVERAL = 3
"""So many checks have a line each in the badge; of more it says how many there are."""
_STRIP = 'class="sslbook-check"'


def fold_checks(doctree: nodes.document) -> None:
    """Give every folded cell of a notebook's resolved document tree its badge, and set its outputs above its code."""
    for cell in doctree.findall(nodes.container):
        if not is_code_cell(cell) or "tag_hide-cell" not in cell["classes"]:
            continue
        fold = next(iter(cell.findall(HideCodeCellNode)), None)
        if fold is None:
            continue
        strips = [raw for raw in fold.findall(nodes.raw) if _STRIP in raw.astext()]
        for strip in strips:
            opened = strip.astext().replace("<details", "<details open")
            strip.parent.replace(strip, nodes.raw("", opened, format="html"))
        summary = badge([strip.astext() for strip in strips])
        begins = nodes.raw("", f'<details class="sslbook-proved"><summary>{summary}</summary>\n', format="html")
        code, outputs = fold.children[:1], fold.children[1:]
        cell.children = []
        cell += [begins, *outputs, *code, nodes.raw("", "</details>\n", format="html")]


def badge(strips: list[str]) -> str:
    """The HTML of a badge, from the strips of the checks (`sslbook.book.badges.badge`) behind it; without links or anchors."""
    if not strips:
        return '<span class="sslbook-proved-quiet">Where these numbers come from</span>'
    lines = [BeautifulSoup(strip, "html.parser").select_one(".sslbook-check-line") for strip in strips]
    found = [line for line in lines if line is not None]
    if len(found) <= SEVERAL:
        return "".join(f'<span class="sslbook-proved-check">{_line(str(line))}</span>' for line in found)
    ids = sorted({strong.get_text() for line in found for strong in line.select("strong")})
    claims = f": <strong>{html.escape(', '.join(ids))}</strong>" if ids else ""
    return f'<span class="sslbook-proved-check">{_MARK} {len(found)} checks{claims}</span>'


_MARK = '<span class="sslbook-check-mark" role="img" aria-label="check passed">✓</span>'


def _line(line: str) -> str:
    """A check's line as it stands in a badge: without link and anchor, and in words, or by one name: the claim's or its own."""
    line = re.sub(r"</?(?:a|div)\b[^>]*>", "", line)
    if "<strong>" not in line and "sslbook-check-what" not in line:
        return line
    names = "code|strong" if "sslbook-check-what" in line else "code"
    return re.sub(rf' ?<span class="sslbook-nobreak"><(?:{names})>[^<]*</(?:{names})></span>', "", line)
