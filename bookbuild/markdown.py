"""A page's HTML in pieces of Markdown with LaTeX, one for each stretch between code cells: the text of a reader's notebook.

On the page everything is resolved: theorems have their numbers, references their words, sentences their values. So the notebook's
text is written from it, by markdownify, and not from the sources by a second parser. Sphinx is asked to leave a mark wherever a
cell of the executed notebook begins (`mark_cells`); the marks cut the page into pieces (`pieces`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bs4 import BeautifulSoup, Tag
from docutils import nodes
from markdownify import ATX, MarkdownConverter
from myst_nb.sphinx_ import HideCodeCellNode

from bookbuild.canvas import CANVAS
from bookbuild.cells import MOVED, PICTURE, TIME, is_code_cell

MARK = "sslbook-cell"
"""The element that stands in the HTML where a cell begins: ``<sslbook-cell data-cell="7"></sslbook-cell>``."""

_MARKS = re.compile(rf'<({MARK}|{PICTURE}) data-cell="\d+"></\1>\n?')
_EMPTY = re.compile(rf'<div class="[^"]*\b{MOVED}\b[^"]*">\s*</div>\n?')
LINES = 10000
"""MyST-NB counts a notebook's lines as this many times the cell's number, from 1, plus the line."""
# cells: most of a page
_CODE = re.compile(r'<div class="highlight-ipython3 notranslate">.*?</pre></div>\n?</div>', re.DOTALL)
_CUT = re.compile(r"\ue000(\w+):(\d*)\ue001")
_NUMBER = re.compile("\ue002(.*?)\ue003", re.DOTALL)


@dataclass(frozen=True)
class Piece:
    """A stretch of a page, at most a section long.

    ``kind`` is ``text`` or ``solution`` (Markdown of the cell ``cell`` of the executed notebook), ``code`` (that cell itself),
    ``picture`` (what that cell of the opening shows, with its caption), ``caption`` (of the figure above) or ``references``.
    ``numbers`` are the values pasted into the text, as they are printed, in their order. ``folded`` marks a solution's code.
    """

    kind: str
    cell: int
    text: str
    numbers: tuple[str, ...] = ()
    folded: bool = False


def mark_cells(doctree: nodes.document) -> None:
    """Put a mark before the first block of every cell, in the resolved document tree of a notebook."""
    last, waiting = -1, doctree.children[::-1]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, nodes.Element) or isinstance(node, (nodes.title, nodes.target, nodes.comment)):
            continue
        if is_code_cell(node):
            begins = int(node["cell_index"])
        else:
            # the picture and the set-up have no text of their own
            wrapper = isinstance(node, (nodes.container, HideCodeCellNode))
            lines = (inner.line or 0 for inner in node.findall(nodes.Element) if not wrapper)
            begins = next((line // LINES - 1 for line in lines if line >= LINES), last)
            if next(iter(node.findall(is_code_cell)), None) is not None:
                waiting += node.children[::-1]  # a section, the folded set-up, a solution with code
        if is_code_cell(node) or begins != last:
            last, mark = begins, nodes.raw("", f'<{MARK} data-cell="{begins}"></{MARK}>', format="html")
            node.parent.insert(node.parent.index(node), mark)


def without_marks(body: str) -> str:
    """The HTML as it is published."""
    return _EMPTY.sub("", _MARKS.sub("", body))


def pieces(body: str, names: Sequence[str], site: str = "") -> list[Piece]:
    """The pieces of a page's HTML, in order; a code cell is a piece without text, of the kind ``code``.

    ``names`` are the chapters that have notebooks, ``site`` is the published book's address, if it has one: other links lead there.
    """
    text = _Plain(names, site).convert(_CODE.sub("", body))
    cuts = list(_CUT.finditer(text))
    found: list[Piece] = []
    current, inside = -1, False

    def add(kind: str, cell: int, words: str, folded: bool = False) -> None:
        numbers = tuple(match[1] for match in _NUMBER.finditer(words))
        found.append(Piece(kind, cell, _NUMBER.sub(r"\1", words), numbers, folded))

    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        part = text[cut.end() : following.start() if following else len(text)].strip()
        kind, cell = cut[1], int(cut[2] or -1)
        if kind in ("text", "solution", "end"):
            current = cell if kind == "text" else current
            inside = kind == "solution" or (inside and kind == "text")
            for section in filter(str.strip, part.split("\ue006")):
                add("solution" if inside else "text", current, section.strip())
        else:
            add(kind, cell, part, inside)
    return found


class _Plain(MarkdownConverter):
    """What the book's HTML has beyond ordinary HTML: formulas, boxes, folded solutions, marks."""

    def __init__(self, names: Sequence[str], site: str) -> None:
        marks: dict[str, Any] = {"bullets": "-", "sub_symbol": "<sub>", "sup_symbol": "<sup>"}
        super().__init__(heading_style=ATX, escape_misc=False, code_language_callback=_language, **marks)
        self.names, self.site = names, site
        self.cited: dict[str, str] = {}
        self.linked: set[str] = set()

    def convert_soup(self, soup: BeautifulSoup) -> str:
        """The Markdown, with an anchor for whatever a link may lead to: an entry of a list has its own, a table one before it."""
        for summary in soup.select("summary"):
            if summary.parent is not None:
                summary.parent["title"] = summary.get_text()
            summary.decompose()
        for anchor in soup.select(".headerlink"):
            anchor.decompose()
        self.linked = {str(link["href"])[1:] for link in soup.select("a[href^='#']")}
        for el in soup.select("[id]:not(div, figure, p, section, span)"):  # those set theirs themselves
            if self._anchor(el):
                anchor = soup.new_tag("span", id=str(el["id"]))
                el.insert(0, anchor) if el.name in _INSIDE else el.insert_before(anchor)
        return str(super().convert_soup(soup))

    def _anchor(self, el: Tag) -> str:
        """What a link to ``el`` leads to; ids that come by themselves have none but where the page has such a link."""
        name = str(el.get("id") or "")
        by_itself = el.name == "section" or _AUTOMATIC.match(name)
        return f'<a id="{name}"></a>' if name and (name in self.linked or not by_itself) else ""

    # -- where cells begin ------------------------------------------------------------------------------------------

    def convert_sslbook_cell(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        code = el.find_next_sibling()
        kind = "code" if code is not None and "cell" in code.get_attribute_list("class") else "text"
        return f"\n\n\ue000{kind}:{el['data-cell']}\ue001\n\n"

    def convert_sslbook_picture(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f"\n\n\ue000picture:{el['data-cell']}\ue001\n\n"

    # -- blocks -----------------------------------------------------------------------------------------------------

    def convert_div(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        kinds = set(el.get_attribute_list("class"))
        anchor = self._anchor(el)
        if "cell" in kinds:
            return text if el.find(MARK) is not None else self._caption(el)
        if "math" in kinds:
            return f"\n\n{anchor}{chr(10) if anchor else ''}{self._display(el)}\n\n"
        if CANVAS in kinds:
            still = el.find("img")
            return f"\n\n*{still['alt'] if still else ''} {' '.join(p.get_text() for p in el.select('p'))}*\n\n"
        if "solution" in kinds:
            return f"\n\n\ue000solution:\ue001\n\n{anchor}{text.strip()}\n\n\ue000end:\ue001\n\n"
        if "exercise" in kinds:
            return f"\n\n{anchor}{_titled(el, text)}\n\n"
        if "proof-text" in kinds:
            return f"\n\n{anchor}{text.strip()} ∎\n\n"
        if "dropdown" in kinds:
            title = el.find("p", class_="admonition-title")
            return f"\n\n{anchor}{fold(title.get_text() if title else 'More', text)}"
        if "admonition" in kinds:
            box = "\n".join(f"> {line}".rstrip() for line in _titled(el, text).strip().splitlines())
            return f"\n\n{anchor}\n\n{box}\n\n" if anchor else f"\n\n{box}\n\n"
        if "citation" in kinds:
            return f'\n\n- <a id="ref-{el["id"]}"></a>{" ".join(text.split())}\n\n'
        return f"\n\n{anchor}{super().convert_div(el, text, parent_tags)}"  # type: ignore[misc]

    def convert_section(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        begins = "\ue006" if el.find(["h1", "h2", "h3", "h4"], recursive=False) else ""
        anchored = f"{self._anchor(el)}\n\n{text.strip()}".strip()
        return f"\n\n{begins}{anchored}\n\n"

    def convert_p(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        kinds = el.get_attribute_list("class")
        if "admonition-title" in kinds or TIME in kinds:
            return ""  # a box sets its own title; the time is the page's: no word of the source stands behind it
        return str(super().convert_p(el, f"{self._anchor(el)}{text}", parent_tags))  # type: ignore[misc]

    def convert_figure(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f"\n\n{self._anchor(el)}{text.strip()}\n\n"

    def convert_details(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return text if el.find(MARK) is not None else fold(str(el["title"]), text)  # the first is the folded set-up

    def _caption(self, cell: Tag) -> str:
        """The code cell itself is the executed notebook's; here its figure's caption, which is the page's."""
        words = (self.process_tag(caption, parent_tags=set()) for caption in cell.select("figcaption p"))  # type: ignore[attr-defined]
        captions = [str(one).strip() for one in words]
        anchors = "".join(self._anchor(figure) for figure in cell.select("figure[id]"))
        before = cell.find_previous_sibling()
        cut = "" if before is not None and before.name == PICTURE else "\ue000caption:\ue001\n\n"
        return f"\n\n{cut}{anchors}{' '.join(captions)}\n\n" if captions or anchors else ""

    def _display(self, el: Tag) -> str:
        tag = el.find("span", class_="eqno")
        number = "" if tag is None else tag.get_text().strip(" ()")
        formula = "".join(str(s) for s in el.find_all(string=True, recursive=False)).strip()
        formula = formula.removeprefix(r"\[").removesuffix(r"\]").strip()
        inner = re.fullmatch(
            r"\\begin\{split\}\s*(\\begin\{aligned\}.*\\end\{aligned\})\s*\\end\{split\}", formula, re.DOTALL
        )
        formula = inner[1] if inner else formula
        # broken for phones: `formulas.js` joins it, too
        formula = re.sub(r"\s*\\\\\s*&\s*(?:\\q?quad\s*)+", " ", formula)
        lines = ["$$", formula, *([rf"\tag{{{number}}}"] if number else []), "$$"]
        # in a box or a list the marks before each line would become part of the formula
        plain = {"proof-text", "solution", "exercise", "dropdown"}
        kinds = (set(parent.get_attribute_list("class")) for parent in el.parents)
        boxed = el.find_parent(["li", "td"]) is not None or any("admonition" in k and not k & plain for k in kinds)
        return " ".join(" ".join(lines).split()) if boxed else "\n".join(lines)

    # -- inside a line ----------------------------------------------------------------------------------------------

    def convert_span(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        kinds = el.get_attribute_list("class")
        if "math" in kinds:
            formula = el.get_text().strip().removeprefix(r"\(").removesuffix(r"\)").strip()
            formula = " ".join(formula.split())
            if parent_tags & {"td", "th"}:
                formula = formula.replace(r"\|", r"\Vert ").replace("|", r"\vert ")
            return f"${formula}$"
        if "pasted-text" in kinds:
            return f"\ue002{text}\ue003"
        if "caption-number" in kinds:
            return f"**{text.strip()}** "
        return f"{self._anchor(el)}{text}"

    def convert_a(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        href = str(el.get("href", ""))
        citation = el.find_parent(class_="bibtex-citation")
        if citation is not None and el.get("title"):
            label = "ref-" + href.partition("#")[2]
            whole = citation.get_text() if len(citation.find_all("a")) == 1 else el.get_text()
            key = " ".join(re.sub(r"[][]", "", whole).split())
            self.cited[label] = f"**{key}.** {_ARXIV.sub(_LINKED, str(el['title']))}"
            return f"[{text}](#{label})"
        if el.find_parent(class_="label") is not None:
            return text  # a label leads back to where one was
        if self.site and not _ANYWHERE.match(href):
            href = f"{self.site}/chapters/{href}"
        file, hash, fragment = href.partition("#")
        if file.removesuffix(".html") in self.names:
            href = f"{file.removesuffix('.html')}.ipynb{hash}{fragment}"
        return f"[{text}]({href})" if _ANYWHERE.match(href) or ".ipynb" in href else text  # what a notebook can reach

    def convert_caption(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f"{text.strip()}\n\n"

    def convert__document_(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        if self.cited and el.select_one(".citation") is None:
            entries = "\n".join(
                f'- <a id="{label}"></a>{title}'
                for label, title in sorted(self.cited.items(), key=lambda item: item[1])
            )
            text += f"\n\n\ue000references:\ue001\n\n## References\n\n{entries}\n"
        return text


_ANYWHERE = re.compile("#|https?://|mailto:")
_ARXIV = re.compile(r"(?<!/)\barXiv:(\d{4}\.\d{4,5})")
_LINKED = r"[arXiv:\1](https://arxiv.org/abs/\1)"
_INSIDE = {"caption", "dd", "dt", "li", "td", "th", "tr"}
_AUTOMATIC = re.compile(r"proof\b|check-|exercise-content|solution-content|id\d+$|chapters/")


def _language(pre: Tag) -> str:
    """What code is written in; empty for a terminal's."""
    box = pre.find_parent("div", class_=re.compile("^highlight-"))
    return "" if box is None else box.get_attribute_list("class")[0].removeprefix("highlight-").replace("default", "")


def _titled(el: Tag, text: str) -> str:
    """A box's text after its title in bold, the number apart from the name: ``**Theorem 2.1** (Covariance operator)``."""
    title = el.find("p", class_="admonition-title")
    words = "" if title is None else re.sub(r"\\\((.*?)\\\)", r"$\1$", " ".join(title.get_text().split()))
    number = None if title is None else title.find(class_="caption-number")
    bold = " ".join(number.get_text().split()) if number else words
    rest = words.removeprefix(bold).strip()
    return f"**{bold}**{' ' + rest if rest else ''}\n\n{text.strip()}"


def fold(title: str, text: str) -> str:
    """A box that opens, as Markdown with the HTML that Jupyter knows."""
    return f"\n\n<details>\n<summary>{title.strip()}</summary>\n\n{text.strip()}\n\n</details>\n\n"
