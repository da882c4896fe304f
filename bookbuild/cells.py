"""What a notebook's cells become on a page: an opening that begins with its picture, figures with captions, folded checks.

A notebook must compute before it can show; a page need not. So the code of a chapter's opening is folded into one bar
(`open_with_picture`), which the page has at its foot (`move_set_up`).

A paragraph with a label ``fig-…`` directly below a code cell is the caption of the figure that the cell draws (`Captions`):

    (fig-survivors)=
    *What survives.*
    Left, the five largest eigenvalues …

So a slider, or a picture whose caption has formulas or pasted numbers, is a figure like any other, with a number and an anchor
for ``{numref}``. Short captions may as well stand in the metadata of the cell.

A label ``(tab-…)=`` directly above a code cell numbers the table of HTML that the cell shows; the caption is the table's own.

A cell tagged ``hide-cell`` holds what the book checks and a reader of the idea need not see. All of a section's, and the code that
its figures fold, stand behind one thin line at the section's end, which says how many checks there are; behind it stand their
values, the nearest rivals, the broken variants, the reasons, and the code (`fold_sections`).
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from bs4 import BeautifulSoup
from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

from bookbuild.layout import words
from sslchapters.data_files import read_yaml
from sslchapters.values import CROSS, MARK, RECORD_KEY, prose

PICTURE = "sslbook-picture"
"""The element that stands in the HTML before the opening's picture: ``<sslbook-picture data-cell="5"></sslbook-picture>``."""
SET_UP = "<!--set-up-->", "<!--set-up ends-->"
"""What stands in the HTML around the bar with the opening's code."""
MOVED = "sslbook-emptied"
"""The class of what is left of a cell all of which stands behind its section's line."""
_TABLE = re.compile(r"(<table\b[^>]*>)\s*<caption>(.*?)</caption>|<p><em>([^<]*)</em></p>(?=<table\b)", re.DOTALL)
_SLIDER, _FIGURE = '<div class="sslbook-slider"', '<div class="sslbook-figure"'  # as `sslchapters.plots` writes them
_CHECK = 'class="sslbook-check"'  # as `sslchapters.values` does


def is_code_cell(node: nodes.Node) -> TypeGuard[nodes.container]:
    """Whether MyST-NB made ``node`` of a code cell; its place in the executed notebook is its ``cell_index``."""
    return isinstance(node, nodes.container) and "cell_index" in node


def _is_picture(node: nodes.Element) -> bool:
    """Whether an output, or what holds it, shows a picture: an image, or the HTML of a slider or of `show`."""
    signs = (sign in raw.astext() for raw in node.findall(nodes.raw) for sign in (_SLIDER, _FIGURE))
    return node.next_node(nodes.image) is not None or any(signs)


def opening(doctree: nodes.document) -> list[nodes.Node]:
    """What stands on a page before its first section."""
    chapter = doctree.next_node(nodes.section)
    children = [] if chapter is None else chapter.children
    sections = (i for i, node in enumerate(children) if isinstance(node, nodes.section))
    return children[: next(sections, len(children))]


def open_with_picture(doctree: nodes.document) -> None:
    """Fold the code of a notebook's opening, below the first picture that its cells draw, if one does."""
    head = opening(doctree)
    cells = [node for node in head if is_code_cell(node)]
    outputs = ((cell, part) for cell in cells for part in cell.children if isinstance(part, nodes.container))
    drawn = [pair for pair in outputs if pair[1].get("nb_element") == "cell_code_output" and _is_picture(pair[1])]
    if not cells or (not drawn and not isinstance(cells[0].parent[-1], nodes.section)):
        return
    shown: list[nodes.Node] = []
    chapter, what = cells[0].parent, "the code that sets up this page"
    at = chapter.index(drawn[0][0] if drawn else cells[0])
    if not drawn:  # only the first cells, as many as stand together
        cells = [cell for place, cell in enumerate(cells) if head.index(cell) == head.index(cells[0]) + place]
    else:
        cell, picture = drawn[0]
        cells = cells[: cells.index(cell) + 1]  # what checks the picture stands below it
        cell.remove(picture)
        mark = nodes.raw("", f'<{PICTURE} data-cell="{cell["cell_index"]}"></{PICTURE}>', format="html")
        shown, what = [mark, nodes.container("", picture, classes=["cell"])], f"{what} and draws its first picture"
    bar = HideCodeCellNode(prompt_show=f"Show {what}", prompt_hide=f"Hide {what}", classes=["above-input"])
    begin, end = (nodes.raw("", sign, format="html") for sign in SET_UP)
    chapter[at:at] = [*shown, begin, nodes.container("", bar, classes=["cell", "tag_hide-input"]), end]
    for one in cells:
        chapter.remove(one)
        for own in list(one.findall(HideCodeCellNode)):
            own.parent.replace(own, own.children)
        bar += one


def move_set_up(body: str) -> str:
    """A page's HTML with the bar of the opening's code at its foot; the reader's notebook, made before, keeps its order."""
    begin, end = map(re.escape, SET_UP)
    if found := re.search(f"{begin}(.*?){end}", body, re.DOTALL):
        body = body.replace(found[0], "")
        at = body.rindex("</section>")
        body = body[:at] + found[1] + body[at:]
    return body


class CodeTable(nodes.General, nodes.Element):
    """A numbered table around the output of a code cell; its ``caption`` is text."""

    @staticmethod
    def open(writer: Any, node: nodes.Element) -> None:
        """Write the number and the caption above the table."""
        writer.body.append(writer.starttag(node, "figure") + "<figcaption><p>")
        writer.add_fignumber(node)
        writer.body.append(f'<span class="caption-text">{html.escape(node["caption"])}</span>')
        writer.add_permalink_ref(node, "Link to this table")
        writer.body.append("</p></figcaption>")


class Captions(SphinxTransform):
    """Set each caption into its figure, and number each table with a label.

    A caption without a picture and a label without a table are warnings.
    """

    default_priority = 500  # labels have found their paragraphs (260), and Sphinx has not collected them (850)

    def apply(self, **kwargs: Any) -> None:
        """Change the document."""
        for paragraph in list(self.document.findall(nodes.paragraph)):
            if label := next((name for name in paragraph["names"] if name.startswith("fig-")), None):
                before = paragraph.parent.children[: paragraph.parent.index(paragraph)]
                above = [node for node in before if not isinstance(node, (nodes.target, nodes.comment))]
                if pictures := [node for cell in above[-1:] for node in _outputs(cell) if _is_picture(node)]:
                    self._set(paragraph, pictures[-1])
                else:
                    wrong = f"{label}: no code cell with a picture stands directly above it"
                    self.document.reporter.warning(wrong, base_node=paragraph)
        for cell in [node for node in self.document.findall(nodes.container) if is_code_cell(node)]:
            if label := next((name for name in cell["names"] if name.startswith("tab-")), None):
                self._number(cell, label)

    def _set(self, paragraph: nodes.paragraph, picture: nodes.Element) -> None:
        """Wrap ``picture`` in a figure with the words and the label of ``paragraph``, which goes."""
        parent = paragraph.parent
        before = [node for node in parent.children[: parent.index(paragraph)] if not isinstance(node, nodes.comment)]
        for done in [*(label for label in before[-1:] if isinstance(label, nodes.target)), paragraph]:
            parent.remove(done)
        caption = nodes.caption(paragraph.rawsource, "", *paragraph.children)
        caption.source, caption.line = paragraph.source, paragraph.line
        figure = nodes.figure("", ids=paragraph["ids"], names=paragraph["names"])
        figure.source, figure.line = picture.source, picture.line
        picture.parent.replace(picture, figure)
        figure += [picture, caption]
        for name in figure["ids"]:
            self.document.ids[name] = figure

    def _number(self, cell: nodes.container, label: str) -> None:
        """Wrap the table that ``cell`` shows in one with the label and the caption of the table."""
        for output in _outputs(cell):
            for raw in output.findall(nodes.raw):
                if caption := _TABLE.search(raw.astext()):
                    words = html.unescape(caption[2] or caption[3])
                    table = CodeTable("", ids=cell["ids"], names=cell["names"], caption=words)
                    table.source, table.line = cell.source, cell.line
                    cell["ids"], cell["names"] = [], []
                    for name in table["ids"]:
                        self.document.ids[name] = table
                    bare = raw.astext().replace(caption[0], caption[1] or "", 1)
                    raw.parent.replace(raw, nodes.raw("", bare, format="html"))
                    output.parent.replace(output, table)
                    table += output
                    return
        self.document.reporter.warning(f"{label}: the code cell below it shows no table with a caption", base_node=cell)


def _outputs(cell: nodes.Node) -> list[nodes.container]:
    """What a cell has shown, each output with all forms that it has."""
    return [node for node in cell.findall(nodes.container) if node.get("nb_element") == "mime_bundle"]


def fold_sections(doctree: nodes.document) -> None:
    """Gather the checks and the folded code of each section of a notebook's resolved tree behind one line at the section's end.

    They keep their order; a check stands above its code. Where a cell stood an empty one is left, which tells the reader's
    notebook where its code belongs. A cell in a solution keeps its own bar.
    """
    chapter = doctree.next_node(nodes.section)
    if chapter is None:
        return
    sections = [node for node in chapter.children if isinstance(node, nodes.section)]
    for section in [*sections, chapter]:
        cells = [cell for cell in section.findall(nodes.container) if is_code_cell(cell)]
        folded = [part for cell in cells if isinstance(cell.parent, nodes.section) for part in _taken(cell)]
        if not folded:
            continue
        checks = [raw.astext() for node in folded for raw in node.findall(nodes.raw) if _CHECK in raw.astext()]
        raised = any("traceback" in text["classes"] for node in folded for text in node.findall(nodes.literal_block))
        said = f'<span class="sslbook-check-failed">{CROSS} a cell failed</span>' if raised else summary(checks)
        opens = " open" if "sslbook-check-failed" in said else ""
        begins = nodes.raw("", f'<details class="sslbook-proved"{opens}><summary>{said}</summary>\n', format="html")
        line = nodes.container("", begins, *folded, nodes.raw("", "</details>\n", format="html"), classes=["cell"])
        section.insert(section.index(sections[0]) if section is chapter and sections else len(section), line)


def _taken(cell: nodes.container) -> list[nodes.Node]:
    """What a cell folds, taken out of it: its code, and of a cell of checks first what it has shown."""
    fold = cell.next_node(HideCodeCellNode)
    if fold is None:
        return []
    parts = [*fold.children[1:], fold.children[0]] if "tag_hide-cell" in cell["classes"] else list(fold.children)
    for check in [raw for part in parts for raw in part.findall(nodes.raw) if _CHECK in raw.astext()]:
        opened = check.astext().replace("<details", "<details open")
        check.parent.replace(check, nodes.raw("", opened, format="html"))
    cell.remove(fold)
    if not cell.children:
        cell["classes"].append(MOVED)
    return parts


def summary(checks: list[str]) -> str:
    """The HTML of a section's line, from that of the checks (`sslchapters.values.badge`) behind it: how many there are."""
    lines = [line for check in checks for line in BeautifulSoup(check, "html.parser").select(".sslbook-check-line")]
    if not lines:
        return "The code"
    many = f"{len(lines)} check" + "s" * (len(lines) > 1)
    if failed := sum(line.select_one(".sslbook-check-failed") is not None for line in lines):
        return f'<span class="sslbook-check-failed">{CROSS} {failed} of {many} failed</span>'
    return f"{MARK} {many} and the code"


# --- the map of the book, a box for each chapter, which says what it builds on; and how long each chapter takes ---
#
# The directive ``book-map`` holds a line for each chapter, ``name: its question | what it builds on, by name``; numbers, titles
# and times are the book's own. It becomes a list, which a wide screen lays out as a grid: a column for each part but the first.

MAP = "book-map"
TIME = "sslbook-time"
"""The class of the line at the end of a chapter's first box."""
_BOX = re.compile(r"^(`{3,})\{prf:.*?^\1$", re.MULTILINE | re.DOTALL)
_NO_WORDS = re.compile(r"(\{[\w:-]+\})?`.*?`|\$\$[^$]*\$\$|\]\(.*?\)|^\s*([:|]|\([\w-]+\)=).*$", re.MULTILINE)


def minutes(text: str) -> int:
    """How long a page's source takes to read: 180 words a minute, half as fast in examples, theorems and proofs.

    Each displayed formula of these takes half a minute more.
    """
    boxes = "\n".join(box[0] for box in _BOX.finditer(text))
    # a formula is a word
    said = [re.sub(r"\$[^$]*\$", " x ", _NO_WORDS.sub(" ", prose(part))) for part in (text, boxes)]
    words = sum(len(re.findall(r"[^\W_][\w’'-]*", part)) for part in said)
    return max(1, round(words / 180 + boxes.count("$$") / 4))


@functools.lru_cache(maxsize=64)
def time_of(notebook: Path) -> str:
    """How long a chapter takes to read and took to run: ``31 min to read · runs in 60 s``, of its executed notebook."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    seconds = content["metadata"].get(RECORD_KEY, {}).get("seconds", 0)
    step = 5 if seconds > 20 else 1  # so that it comes out again
    runs = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{max(1, step * round(seconds / step))} s"
    return f"{minutes(words(content))} min to read" + (f" · runs in {runs}" if seconds else "")


def parts(toc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of ``_toc.yml`` that hold the book's chapters, captioned ``Part …``; audits and appendices are others."""
    return [part for part in toc["parts"] if part["caption"].startswith("Part")]


def book_map(toc: Mapping[str, Any], lines: Iterable[str], known: Mapping[str, tuple[str, str]]) -> str:
    """The map as HTML, a list of parts that hold lists of chapters.

    toc: what ``_toc.yml`` holds. known: title and time of each page.
    Raises KeyError if a chapter has no line, or builds on one that is not before it.
    """
    told = {line.partition(":")[0].strip(): line.partition(":")[2] for line in lines if line.strip()}
    numbers: dict[str, int] = {}
    rows = ""
    for part in parts(toc):
        boxes = ""
        for chapter in part["chapters"]:
            page = str(chapter["file"])
            name, (title, time) = page.rpartition("/")[2], known[page]
            question, _, built_on = told[name].partition("|")
            needs = [str(numbers[need]) for need in built_on.replace(",", " ").split()]
            numbers[name] = number = len(numbers) + 1
            after = f" · after {' and '.join(needs)}" if needs else ""
            boxes += (
                f'<li><a href="{name}.html">{number}. {html.escape(title)}</a> <span>{html.escape(question.strip())}</span> '
                f"<small>{html.escape(time.replace(' to read', ''))}{after}</small></li>"
            )
        rows += f"<li><b>{html.escape(part['caption'])}</b><ul>{boxes}</ul></li>"
    return f'<nav class="sslbook-map" aria-label="Map of the book"><ul>{rows}</ul></nav>'


class BookMap(SphinxDirective):
    """Leaves its lines where the map will stand, once all pages have titles."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The lines."""
        return [nodes.raw("", "\n".join(self.content), format=MAP)]


def set_map(app: Sphinx, doctree: nodes.document, pagename: str) -> None:
    """Put the map where its directive stands."""
    folder = Path(app.srcdir)
    for place in [raw for raw in doctree.findall(nodes.raw) if raw["format"] == MAP]:
        known = {
            page: (title.astext().partition(":")[0], time_of(folder / f"{page}.ipynb"))
            for page, title in app.env.titles.items()
            if (folder / f"{page}.ipynb").is_file()
        }
        drawn = book_map(read_yaml(folder / "_toc.yml", dict), place.astext().splitlines(), known)
        place.parent.replace(place, nodes.raw("", drawn, format="html"))
