"""What Sphinx does not check of its own pages: glued numbers, links and anchors, what loads from elsewhere, what is refused."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

from sslbook.book.chapters import find_chapters
from sslbook.book.layout import Book
from sslbook.book.typeset import ROLES, parts, printed
from sslbook.book.values import GLUE_PREFIX

_ROLE = re.compile(rf"\{{({'|'.join(ROLES)})\}}`([^`]+)`")
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n.*?^(?P=fence)`*~*[ \t]*$", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"(?<!`)(`{2,})(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_CODE_DIRECTIVES = ("{code", "{literalinclude", "{sourcecode", "{raw", "{math")

_LOADS = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "track": ("src",),
    "object": ("data",),
    "input": ("src",),
}
"""Attributes whose address a browser fetches by itself; ``link`` depends on its ``rel`` (`_LINK_LOADS`)."""

_LINK_LOADS = frozenset({"stylesheet", "icon", "shortcut", "apple-touch-icon", "manifest"})
_LINK_LOADS |= {"preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}
_CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+)['"]?((?:https?:)?//[^'")\s]+)""")


@dataclass(frozen=True)
class Page:
    """One HTML file of the book."""

    path: Path

    @cached_property
    def soup(self) -> BeautifulSoup:
        """The parsed page."""
        return BeautifulSoup(self.path.read_text(encoding="utf-8"), "html.parser")

    @cached_property
    def anchors(self) -> set[str]:
        """Everything that a fragment can point to."""
        found = {str(tag["id"]) for tag in self.soup.find_all(id=True)}
        return found | {str(tag["name"]) for tag in self.soup.find_all("a", attrs={"name": True})}


def check_html(book: Book, scale: str, out: Path) -> list[str]:
    """Every problem of the built pages in ``out``, one sentence each; empty if there is none."""
    pages = {path: Page(path) for path in sorted(out.rglob("*.html")) if "_static" not in path.relative_to(out).parts}
    problems = [*glued(book, scale, pages), *links(pages, out), *_external(pages.values()), *_refused(pages.values())]
    for sheet in sorted(out.rglob("*.css")):
        addresses = _CSS_URL.findall(sheet.read_text(encoding="utf-8", errors="replace"))
        problems += [f"{sheet.relative_to(out)}: loads {address}" for address in addresses]
    return [problem.replace(f"{out}/", "") for problem in problems]


def glued(book: Book, scale: str, pages: Mapping[Path, Page]) -> Iterator[str]:
    """Each number that a source pastes into its prose must stand in its page, formatted and typeset, and no other may."""
    values = {path.stem: glue(json.loads(path.read_text(encoding="utf-8"))) for path in book.notebooks(scale)}
    for chapter in find_chapters(book):
        page = next((page for path, page in pages.items() if path.stem == chapter.name), None)
        if page is None:
            continue
        wanted: Counter[str] = Counter()
        for name, key, form, role in pasted(chapter.text, chapter.name):
            there = values.get(name, {})
            if missing := [part for part in parts(role, key) if part not in there]:
                yield f"{page.path}: {{{role}}} names {missing[0]!r}, which {name} does not produce"
            else:
                wanted[printed(role, key, form, there)] += 1
        shown = Counter(span.get_text() for span in page.soup.select("article span.pasted-text"))
        for text in wanted - shown:
            yield f"{page.path}: the number {text} of its source is not in the page"
        for text in set(shown) - set(wanted):
            yield f"{page.path}: it shows the number {text}, which its source does not paste"


def glue(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """The glued values of an executed notebook by name."""
    values = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            text = output.get("data", {}).get(f"{GLUE_PREFIX}text/plain")
            if name is not None and text is not None:
                values[name] = ast.literal_eval(text if isinstance(text, str) else "".join(text))
    return values


class Pasted(NamedTuple):
    """A number in a chapter's prose: of which chapter, which, and how the role prints it."""

    chapter: str
    name: str
    form: str
    role: str = "glue:text"


def pasted(text: str, own: str) -> Iterator[Pasted]:
    """Each role that pastes a number into the prose of the chapter ``own``, in order, but not of those in code."""
    for role, content in _ROLE.findall(prose(text)):
        page, name, form = named(content)
        yield Pasted(Path(page).stem if page else own, name, form, role)


def named(content: str) -> tuple[str, str, str]:
    """``(page, name, format)`` of what stands in a role: ``name``, ``name:.1f`` or ``page.md::name:.1f``."""
    key, colon, form = content.rpartition(":")
    if not colon or key.endswith(":"):  # no format: `name` or `page.md::name`
        key, form = content, "s"
    page, found, name = key.partition("::")
    return (page, name, form) if found else ("", key, form)


def prose(text: str) -> str:
    """MyST Markdown without its code cells, code blocks, literals and comments; the content of other directives stays."""

    def keep(match: re.Match[str]) -> str:
        info = match["info"].strip()
        inner = match[0].partition("\n")[2].rpartition("\n")[0]
        return f"\n{prose(inner)}\n" if info.startswith("{") and not info.startswith(_CODE_DIRECTIVES) else "\n"

    text = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    return _LITERAL.sub("", _FENCE.sub(keep, text))


def links(pages: Mapping[Path, Page], out: Path) -> Iterator[str]:
    """Internal addresses that lead nowhere: a file that is not there, an anchor that the page does not have."""
    for page in pages.values():
        for address in sorted(set(_addresses(page.soup))):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            if not target.exists():
                yield f"{page.path}: {address} leads to no file"
            elif not target.is_relative_to(out.resolve()) and parts.path:
                yield f"{page.path}: {address} leads out of the book"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{page.path}: {address} names an anchor that {target.name} does not have"


def _addresses(soup: BeautifulSoup) -> Iterator[str]:
    for tag in soup.select("a[href], link[href], img[src], script[src]"):
        yield str(tag["href" if tag.name in ("a", "link") else "src"])


def _external(pages: Iterable[Page]) -> Iterator[str]:
    """Addresses outside the book that a browser would fetch by itself when it shows a page."""
    for page in pages:
        for name, attributes in _LOADS.items():
            for tag in page.soup.find_all(name):
                for attribute in attributes:
                    for address in re.split(r",\s+|\s+", str(tag.get(attribute, ""))):
                        if _is_external(address):
                            yield f"{page.path}: <{name}> loads {address}"
        for tag in page.soup.find_all("link"):
            if _LINK_LOADS & set(tag.get("rel") or ()) and _is_external(str(tag.get("href", ""))):
                yield f"{page.path}: <link> loads {tag['href']}"
        for style in [*page.soup.find_all("style"), *page.soup.find_all(style=True)]:
            text = style.get_text() if style.name == "style" else str(style["style"])
            yield from (f"{page.path}: a style loads {address}" for address in _CSS_URL.findall(text))


def _refused(pages: Iterable[Page]) -> Iterator[str]:
    """Scripts in attributes, which the page's own policy refuses (`policy`), and pages without one."""
    for page in pages:
        if page.soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"}) is None:
            yield f"{page.path}: has no Content-Security-Policy"
        for tag in page.soup.find_all(True):
            for name in (name for name in tag.attrs if name.startswith("on")):
                yield f"{page.path}: <{tag.name} {name}> is refused by the page's policy; let a script listen instead"
            if str(tag.get("href", "")).strip().lower().startswith("javascript:"):
                yield f"{page.path}: <{tag.name}> leads to a script, which the page's policy refuses"


def _is_external(address: str) -> bool:
    return address.startswith(("http://", "https://", "//"))
