"""What the search page searches: the text of each section of each page, as a reader sees it, and each entry of the library's.

Sphinx's own index knows pages, not sections, and fetches a page to show an excerpt of its source, which a browser refuses on
``file://``. Ours is one script with the sections' text, and `search.js`, which ranks them; both work from a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from sslbook._files import write_text
from sslchapters.values import readable

_ARTICLE = re.compile(r'<article class="bd-article".*?</article>', re.DOTALL)
_HEAVY = re.compile(
    r'"data:[^"]*"|<div class="highlight-[^"]*">.*?</pre></div>\n?</div>|<table class="sslbook-check.*?</table>',
    re.DOTALL,
)
_LEFT_OUT = ".headerlink, script, style, svg, .cell, .solution, .sslbook-map, .sslbook-time, .tabbed-set"


def write_index(html: Path, pages: Iterable[str]) -> None:
    """Write the script with the sections of the built ``pages`` into the built book in the folder ``html``."""
    texts = {page: (html / f"{page}.html").read_text(encoding="utf-8") for page in pages}
    found = [section for page, text in texts.items() for section in sections(page, text)]
    rows = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    write_text(html / "_static/sslbook/sections.js", f"window.sslbookSections = {rows};\n")


def sections(page: str, text: str) -> list[dict[str, str]]:
    """The sections of a page's HTML, in order: captions are text, code and what cells show are not.

    Of each, without what is below it: where it is, the page's title, its own, those of its boxes, and its words. The entry of a
    public name is one, too: its title is the name, ``pretrain`` or ``EigenPairs.plot``, its boxes the parameters.
    """
    article = _ARTICLE.search(text)
    top = None if article is None else BeautifulSoup(_HEAVY.sub("", article[0]), "html.parser").find("section")
    if not isinstance(top, Tag):
        return []
    found: list[dict[str, str]] = []
    entries: list[dict[str, str]] = []

    def row(anchor: str, title: str, boxes: str, text: str) -> dict[str, str]:
        return {"page": page, "anchor": anchor, "chapter": chapter, "title": title, "boxes": boxes, "text": text}

    for cell in top.select(".cell:has(figcaption)"):
        cell.insert_after(*cell.select("figcaption"))
    for unwanted in top.select(_LEFT_OUT):
        unwanted.decompose()
    in_letters(top)
    heading = top.find("h1")
    chapter = one_line(heading) if isinstance(heading, Tag) else ""
    for block in reversed(top.select("dl.py:has(> dt[id])")):  # the members first
        entry, body = block.select("dt[id]")[0], block.find("dd")
        anchor = str(entry["id"])
        parameters = " ".join(dict.fromkeys(name.get_text() for name in entry.select(".sig-param > .n:first-child")))
        name = re.sub(r"^([a-z_]+\.)+(?=[A-Z]|\w+$)", "", anchor)
        entries.insert(0, row(anchor, name, parameters, one_line(body) if isinstance(body, Tag) else ""))
        block.decompose()
    for section in reversed([top, *top.find_all("section")]):  # the inner ones first: they leave their place empty
        heading = section.find(["h1", "h2", "h3", "h4"], recursive=False)
        if not isinstance(heading, Tag) or not section.get("id"):
            continue  # a theorem's body is a section, too
        boxes = " · ".join(one_line(box) for box in section.select(".admonition-title"))
        title = one_line(heading.extract())
        found.insert(0, row(str(section["id"]), title, boxes, one_line(section)))
        section.clear()
    return found + entries


def in_letters(tag: Tag) -> None:
    """Put small formulas below a tag in letters, others as an ellipsis."""
    for formula in tag.select(".math"):
        formula.replace_with(NavigableString(("" if formula.name == "span" else " ") + readable(formula.get_text())))


def one_line(tag: Tag) -> str:
    """The text of a tag on one line."""
    return " ".join(tag.get_text().split())
