"""The map of the book, a box for each chapter and an arrow from what it builds on; and how long each chapter takes.

The directive ``book-map`` holds a line for each chapter, ``name: its question | what it builds on, by name``; numbers, titles and
times are the book's own. It becomes a list, which a wide screen lays out as boxes over a drawing of the arrows.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from sslbook.book.cells import opening
from sslbook.book.layout import read_yaml
from sslbook.book.values import RECORD_KEY, prose

TIME = "sslbook-time"
"""The class of the line at the end of a chapter's first box."""
WIDTH, BOX, ROW = 760, 174, 122
"""Width of the map and of a box, and a box's height, in pixels at full size; `book.css` has them, too."""
_GAP = (WIDTH - 4 * BOX) // 4  # between columns
_ABOVE, _BETWEEN, _BELOW = 46, 96, 26  # a caption and an arrow; arrows and captions; an arrow between boxes of a part
_TIP = 38  # above a box: where an arrow ends that its caption stands in the way of

_BOX = re.compile(r"^(`{3,})\{prf:.*?^\1$", re.MULTILINE | re.DOTALL)
_NO_WORDS = re.compile(r"(\{[\w:-]+\})?`.*?`|\$\$[^$]*\$\$|\]\(.*?\)|^\s*([:|]|\([\w-]+\)=).*$", re.MULTILINE)


def minutes(text: str) -> int:
    """How long a page's source takes to read: 180 words a minute, half as fast in examples, theorems and proofs.

    Each displayed formula of these takes half a minute more.
    """
    boxes = "\n".join(box[0] for box in _BOX.finditer(text))
    return max(1, round((_words(text) + _words(boxes)) / 180 + boxes.count("$$") / 4))


def _words(text: str) -> int:
    said = re.sub(r"\$[^$]*\$", " x ", _NO_WORDS.sub(" ", prose(text)))  # an inline formula is a word
    return len(re.findall(r"[^\W_][\w’'-]*", said))


@functools.lru_cache(maxsize=64)
def time_of(notebook: Path) -> str:
    """How long a chapter takes to read and took to run: ``31 min to read · runs in 60 s``, of its executed notebook."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    text = "\n\n".join("".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "markdown")
    seconds = content["metadata"].get(RECORD_KEY, {}).get("seconds", 0)
    step = 5 if seconds > 20 else 1  # so that it comes out again
    runs = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{max(1, step * round(seconds / step))} s"
    return f"{minutes(text)} min to read" + (f" · runs in {runs}" if seconds else "")


def tell_time(doctree: nodes.document, time: str) -> None:
    """Set a chapter's time at the end of the first box of its opening, if it has one."""
    for box in [node for node in opening(doctree) if isinstance(node, nodes.admonition)][:1]:
        box += nodes.paragraph("", time, classes=[TIME])


@dataclass(frozen=True)
class Stop:
    """A chapter on the map: what is written in its box, and the names of the chapters that it builds on."""

    name: str
    number: int
    title: str
    question: str
    time: str
    needs: tuple[str, ...] = ()


def parts(toc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of ``_toc.yml`` that hold the book's chapters, captioned ``Part …``; audits and appendices are others."""
    return [part for part in toc["parts"] if part["caption"].startswith("Part")]


def stops(toc: Mapping[str, Any], lines: Iterable[str], known: Mapping[str, tuple[str, str]]) -> dict[str, list[Stop]]:
    """The chapters of each part, by its caption; ``known`` gives ``(title, time)`` of each page.

    Raises ValueError if a chapter of theirs has no line, a line is of none, or a chapter needs a later one.
    """
    told = {}
    for line in filter(str.strip, lines):
        name, _, rest = line.partition(":")
        question, _, built_on = rest.partition("|")
        told[name.strip()] = question.strip(), tuple(built_on.replace(",", " ").split())
    found: dict[str, list[Stop]] = {}
    numbers: dict[str, int] = {}
    for part in parts(toc):
        for chapter in part["chapters"]:
            name = str(chapter["file"]).rpartition("/")[2]
            question, needs = told.pop(name, ("", ()))
            if not question or not set(needs) <= set(numbers):
                raise ValueError(f"book-map: {name} needs a line, 'name: question | chapters before it'")
            numbers[name] = len(numbers) + 1
            title, time = known[str(chapter["file"])]
            found.setdefault(str(part["caption"]), []).append(Stop(name, numbers[name], title, question, time, needs))
    if told:
        raise ValueError(f"book-map: no part has a chapter {next(iter(told))}")
    return found


def draw(book: Mapping[str, list[Stop]]) -> str:
    """The map as HTML: the first part's boxes in a row, the others' below it, a column each."""
    below = _ABOVE + ROW + _BETWEEN
    places: dict[str, tuple[int, int]] = {}
    for column, part in enumerate(book.values()):
        for k, stop in enumerate(part):
            places[stop.name] = (_left(column - 1), below + k * (ROW + _BELOW)) if column else (_left(k), _ABOVE)
    numbers = {stop.name: stop.number for part in book.values() for stop in part}
    rows, arrows = "", ""
    for caption, part in book.items():
        boxes = ""
        for stop in part:
            x, y = places[stop.name]
            after = " and ".join(str(numbers[need]) for need in stop.needs)
            boxes += (
                f'<li style="--x:{x};--y:{y}"><a href="{stop.name}.html">{stop.number}. {html.escape(stop.title)}</a> '
                f"<span>{html.escape(stop.question)}</span> <small>{html.escape(stop.time.replace(' to read', ''))}"
                f"{f'<span> · after {after}</span>' if after else ''}</small></li>"
            )
            arrows += "".join(_arrow(places[need], places[stop.name]) for need in stop.needs)
        x, y = places[part[0].name]
        rows += f'<li><b style="--x:{x};--y:{y}">{html.escape(caption)}</b><ul>{boxes}</ul></li>'
    height = max(y for _, y in places.values()) + ROW + 8
    return (
        f'<nav class="sslbook-map" aria-label="Map of the book"><svg viewBox="0 0 {WIDTH} {height}" aria-hidden="true">'
        '<defs><marker id="sslbook-map-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>{arrows}</svg>\n<ul>{rows}</ul></nav>'
    )


def _left(column: int) -> int:
    return _GAP // 2 + column * (BOX + _GAP)


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """From box to box: straight to a neighbour, over the top of a row, or down to the caption of another part."""
    (x, y), (u, v) = start, end
    a, b = x + BOX // 2, u + BOX // 2
    if y == v and u - x <= BOX + _GAP:
        path = f"M{x + BOX} {y + ROW // 2}H{u - 2}"
    elif y == v:
        path = f"M{a} {y}C{a + 30} {y - 26} {b - 30} {y - 26} {b} {v - 2}"
    elif v - y == ROW + _BELOW:
        path = f"M{a} {y + ROW}V{v - 2}"
    else:
        path = f"M{a} {y + ROW}C{a} {y + ROW + 40} {b} {y + ROW + 10} {b} {v - _TIP}"
    return f'<path class="sslbook-map-arrow" d="{path}" marker-end="url(#sslbook-map-tip)"/>'


class _BookMap(SphinxDirective):
    """Leaves its lines where the map will stand, once all pages have titles."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        place = _Place("", lines=list(self.content))
        self.set_source_info(place)
        return [place]


class _Place(nodes.General, nodes.Element):
    """Where the map will stand."""


def _set_map(app: Sphinx, doctree: nodes.document, pagename: str) -> None:
    folder = Path(app.srcdir)
    for place in list(doctree.findall(_Place)):
        known = {
            page: (title.astext().partition(":")[0], time_of(folder / f"{page}.ipynb"))
            for page, title in app.env.titles.items()
            if (folder / f"{page}.ipynb").is_file()
        }
        drawn = nodes.raw("", draw(stops(read_yaml(folder / "_toc.yml", dict), place["lines"], known)), format="html")
        drawn.line = place.line
        place.parent.replace(place, drawn)


def connect(app: Sphinx) -> None:
    """Register the directive, and draw its map when all pages are read."""
    app.add_node(_Place)
    app.add_directive("book-map", _BookMap)
    app.connect("doctree-resolved", _set_map)
