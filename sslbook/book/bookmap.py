"""The map of the book: a box for each chapter, its question and its time, and an arrow from what it builds on.

The directive ``book-map`` holds a line for each chapter, ``name: its question | what it builds on, by name``; numbers, titles and
times are the book's own. A wide screen gets a drawing, a narrow one and a notebook a list that says the same in words.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from sslbook.book.layout import read_yaml
from sslbook.book.reading import time_of

WIDTH, BOX, ROW = 760, 174, 122
"""Width of the drawing and of a box, and a box's height, in pixels at full size."""
_GAP = (WIDTH - 4 * BOX) // 4  # between columns
_TITLE, _QUESTION, _CAPTION = 18, 22, 23  # characters in a line
_ABOVE, _BETWEEN, _BELOW = 46, 96, 26  # a caption and an arrow; arrows and captions; an arrow between boxes of a part
_TIP = 38  # above a box: where an arrow ends that its caption stands in the way of


@dataclass(frozen=True)
class Stop:
    """A chapter on the map: its page, what is written in its box, and the pages of the chapters that it builds on."""

    page: str
    number: int
    title: str
    question: str
    time: str
    needs: tuple[str, ...] = ()

    @property
    def href(self) -> str:
        """Its address, from another chapter."""
        return f"{self.page.rpartition('/')[2]}.html"


@dataclass(frozen=True)
class Part:
    """A part of the book: ``Part I · The covariance operator`` and its chapters."""

    caption: str
    stops: tuple[Stop, ...]


def read_lines(body: Sequence[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Question and needs of each chapter by name; raises ValueError for a line that is none."""
    found = {}
    for line in filter(str.strip, body):
        name, colon, rest = line.partition(":")
        question, _, needs = rest.partition("|")
        if not colon or not question.strip():
            raise ValueError(f"book-map: got {line!r}; 'name: question | needs' is needed")
        found[name.strip()] = (question.strip(), tuple(filter(None, (need.strip() for need in needs.split(",")))))
    return found


def parts(
    toc: Mapping[str, Any], told: Mapping[str, tuple[str, tuple[str, ...]]], known: Mapping[str, Any]
) -> list[Part]:
    """The numbered parts of ``_toc.yml``; ``known`` gives ``(title, time)`` of each page.

    Raises ValueError if a chapter of theirs is not told of, one is told of that is none, or one needs a later one.
    """
    found: list[Part] = []
    places: dict[str, str] = {}
    for part in toc["parts"]:
        stops = []
        for chapter in part["chapters"] if part.get("numbered") else ():
            page = str(chapter["file"])
            name = page.rpartition("/")[2]
            question, needs = told.get(name, ("", ()))
            if not question:
                raise ValueError(f"book-map: no line for the chapter {name}")
            if later := [need for need in needs if need not in places]:
                raise ValueError(f"book-map: {name} needs {later[0]}, which is no chapter before it")
            title, time = known[page]
            places[name] = page
            stops.append(Stop(page, len(places), title, question, time, tuple(places[need] for need in needs)))
        if stops:
            found.append(Part(str(part["caption"]), tuple(stops)))
    if strangers := sorted(set(told) - set(places)):
        raise ValueError(f"book-map: {strangers[0]} is no chapter of a numbered part")
    return found


def draw(book: Sequence[Part]) -> str:
    """The map as HTML: the drawing, and the list."""
    return f'<nav class="sslbook-map" aria-label="Map of the book">\n{_drawing(book)}\n{_listing(book)}\n</nav>'


def _listing(book: Sequence[Part]) -> str:
    numbers = {stop.page: stop.number for part in book for stop in part.stops}
    rows = []
    for part in book:
        stops = []
        for stop in part.stops:
            after = " and ".join(str(numbers[page]) for page in stop.needs)
            stops.append(
                f'<li><a href="{stop.href}">{stop.number}. {html.escape(stop.title)}</a> '
                f"<span>{html.escape(stop.question)}</span> "
                f"<small>{html.escape(stop.time)}{f' · after {after}' if after else ''}</small></li>"
            )
        rows.append(f"<li><b>{html.escape(part.caption)}</b><ul>{''.join(stops)}</ul></li>")
    return f'<ul class="sslbook-map-list">{"".join(rows)}</ul>'


def _drawing(book: Sequence[Part]) -> str:
    """The first part's boxes in a row, the others' below it, a column each."""
    places: dict[str, tuple[float, float]] = {}
    for column, stop in enumerate(book[0].stops):
        places[stop.page] = (_left(column), _ABOVE)
    below = _ABOVE + ROW + _BETWEEN
    for column, part in enumerate(book[1:]):
        for row, stop in enumerate(part.stops):
            places[stop.page] = (_left(column), below + row * (ROW + _BELOW))
    height = max(y for _, y in places.values()) + ROW + 8
    stops = {stop.page: stop for part in book for stop in part.stops}
    captions = [_caption(_left(0), _ABOVE, book[0].caption, WIDTH)]
    captions += [_caption(_left(i), below, part.caption, _CAPTION) for i, part in enumerate(book[1:])]
    arrows = [_arrow(places[need], places[stop.page]) for stop in stops.values() for need in stop.needs]
    label = "Map of the book. " + " ".join(
        f"{part.caption}: {', '.join(stop.title for stop in part.stops)}." for part in book
    )
    return (
        f'<svg class="sslbook-map-drawn" viewBox="0 0 {WIDTH} {height:.0f}" role="group" aria-label="{html.escape(label)}">'
        '<defs><marker id="sslbook-map-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="sslbook-map-tip" d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(captions)}{''.join(arrows)}{''.join(_box(stop, *places[stop.page]) for stop in stops.values())}</svg>"
    )


def _left(column: int) -> float:
    return _GAP / 2 + column * (BOX + _GAP)


def _caption(x: float, y: float, caption: str, width: int) -> str:
    lines = textwrap.wrap(caption, width)
    words = "".join(
        f'<tspan x="{x:.0f}" dy="{15 if i else 0}">{html.escape(line)}</tspan>' for i, line in enumerate(lines)
    )
    return f'<text class="sslbook-map-part" y="{y - 8 - 15 * (len(lines) - 1):.0f}">{words}</text>'


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From box to box: straight to a neighbour, over the top of a row, or down to the caption of another part."""
    (x, y), (u, v) = start, end
    a, b = x + BOX / 2, u + BOX / 2
    if y == v and u - x <= BOX + _GAP:
        path = f"M{x + BOX:.0f} {y + ROW / 2:.0f}H{u - 2:.0f}"
    elif y == v:
        path = f"M{a:.0f} {y}C{a + 30:.0f} {y - 26} {b - 30:.0f} {y - 26} {b:.0f} {v - 2}"
    elif v - y == ROW + _BELOW:
        path = f"M{a:.0f} {y + ROW}V{v - 2}"
    else:
        path = f"M{a:.0f} {y + ROW}C{a:.0f} {y + ROW + 40} {b:.0f} {y + ROW + 10} {b:.0f} {v - _TIP}"
    return f'<path class="sslbook-map-arrow" d="{path}" marker-end="url(#sslbook-map-tip)"/>'


def _box(stop: Stop, x: float, y: float) -> str:
    title = textwrap.wrap(f"{stop.number}. {stop.title}", _TITLE)
    question = textwrap.wrap(stop.question, _QUESTION)
    lines = [("sslbook-map-title", line, 17) for line in title]
    lines += [("sslbook-map-question", line, 20 if i == 0 else 15) for i, line in enumerate(question)]
    words, at = "", y + 4
    for kind, line, step in lines:
        at += step
        words += f'<text class="{kind}" x="{x + 11:.0f}" y="{at:.0f}">{html.escape(line)} </text>'
    words += f'<text class="sslbook-map-time" x="{x + 11:.0f}" y="{y + ROW - 9:.0f}">{html.escape(stop.time)}</text>'
    return f'<a href="{stop.href}"><rect x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{ROW}" rx="7"/>{words}</a>'


class _BookMap(SphinxDirective):
    """Leaves its lines where the map will stand, once all pages have titles."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            told = read_lines(list(self.content))
        except ValueError as error:
            raise self.error(str(error)) from None
        node = _Place("", told=told)
        self.set_source_info(node)
        return [node]


class _Place(nodes.General, nodes.Element):
    """Where the map will stand."""


def _set_map(app: Sphinx, doctree: nodes.document, pagename: str) -> None:
    folder = Path(app.srcdir)
    for place in list(doctree.findall(_Place)):
        toc = read_yaml(folder / "_toc.yml", dict)
        known = {
            page: (title.astext().partition(":")[0], time_of(folder / f"{page}.ipynb").brief)
            for page, title in app.env.titles.items()
            if (folder / f"{page}.ipynb").is_file()
        }
        drawn = nodes.raw("", draw(parts(toc, place["told"], known)), format="html")
        drawn.line = place.line
        place.parent.replace(place, drawn)


def connect(app: Sphinx) -> None:
    """Register the directive, and draw its map when all pages are read."""
    app.add_node(_Place)
    app.add_directive("book-map", _BookMap)
    app.connect("doctree-resolved", _set_map)
