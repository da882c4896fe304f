"""What the search page searches: the text of each section of each page, as a reader sees it.

Sphinx's own index knows pages, not sections, and fetches a page to show an excerpt of its source, which a browser refuses on
``file://``. Ours is one script with the sections' text, and `search.js`, which ranks them; both work from a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

INDEX = "_static/sslbook/sections.js"
"""The script, in the built book, that holds the sections."""

_ARTICLE = re.compile(r'<article class="bd-article".*?</article>', re.DOTALL)
_HEAVY = re.compile(
    r'"data:[^"]*"|<div class="highlight-[^"]*">.*?</pre></div>\n?</div>|<table class="sslbook-check.*?</table>',
    re.DOTALL,
)
_LEFT_OUT = ".headerlink, script, style, svg, .cell, .solution, .sslbook-map, .sslbook-time, dl.py, .tabbed-set"
_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Sigma Gamma Delta Theta Lambda varepsilon ell infty le ge times cdot in to approx neq pm top lVert rVert"
)
_LETTERS = dict(zip(_NAMES.split(), "αβγδεζηθκλμνξπρστφχψωΣΓΔΘΛεℓ∞≤≥×·∈→≈≠±⊤‖‖", strict=True))
_LOOKS = r"\\(?:mathbf|mathrm|mathbb|mathcal|operatorname|text|boldsymbol|left|right|!|,|;|quad)\b ?"


@dataclass(frozen=True)
class Section:
    """A section without what is below it: where it is, the page's title, its own, those of its boxes, and its words."""

    page: str
    anchor: str
    chapter: str
    title: str
    boxes: str
    text: str


def write(html: Path, pages: Iterable[str]) -> Path:
    """Write the script with the sections of the built ``pages`` in the folder ``html``; returns its path."""
    texts = {page: (html / f"{page}.html").read_text(encoding="utf-8") for page in pages}
    found = [asdict(section) for page, text in texts.items() for section in sections(page, text)]
    rows = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    target = html / INDEX
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"window.sslbookSections = {rows};\n", encoding="utf-8")
    return target


def sections(page: str, text: str) -> Iterator[Section]:
    """The sections of a page's HTML, in order."""
    article = _ARTICLE.search(text)
    top = None if article is None else BeautifulSoup(_HEAVY.sub("", article[0]), "html.parser").find("section")
    if not isinstance(top, Tag):
        return
    for cell in top.select(".cell:has(figcaption)"):  # a caption is text, unlike what else a cell shows
        cell.insert_after(*cell.select("figcaption"))
    for unwanted in top.select(_LEFT_OUT):
        unwanted.decompose()
    for formula in top.select(".math"):
        formula.replace_with(NavigableString(("" if formula.name == "span" else " ") + readable(formula.get_text())))
    chapter, found = _heading(top), []
    for section in reversed([top, *top.find_all("section")]):  # the inner ones first: they leave their place empty
        if not (title := _heading(section)) or not section.get("id"):
            continue  # a theorem's body is a section, too
        boxes = " · ".join(_words(box) for box in section.select(".admonition-title"))
        heading = section.find(["h1", "h2", "h3", "h4"], recursive=False)
        if isinstance(heading, Tag):
            heading.extract()
        found.append(Section(page, str(section["id"]), chapter, title, boxes, _words(section)))
        section.clear()
    yield from reversed(found)


def readable(formula: str) -> str:
    """A formula in letters, if it is a small one: ``β`` for ``\\(\\beta\\)``; else an ellipsis."""
    inner = re.sub(r"\\[()\[\]]", "", formula)
    inner = re.sub(_LOOKS, "", inner)
    inner = re.sub(r"\\([A-Za-z]+)", lambda name: _LETTERS.get(name[1], name[0]), inner)
    inner = re.sub(r"[{}~]|\\[,;!\s]", "", inner)
    inner = re.sub(r"\^([′⊤*]|\\?prime)", r"\1", inner).replace("^2", "²")
    short = " ".join(inner.split())
    return "…" if "\\" in short or "&" in short or len(short) > 40 else short


def _heading(section: Tag) -> str:
    heading = section.find(["h1", "h2", "h3", "h4"], recursive=False)
    return _words(heading) if isinstance(heading, Tag) else ""


def _words(tag: Tag) -> str:
    return " ".join(tag.get_text().split())
