"""The whole book as one PDF: a cover, contents with page numbers, bookmarks, and every page as Chromium prints it.

What is folded on a page stays folded: code behind a bar, checks behind their badge, solutions. Links from page to page lead inside
the file.
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bs4 import BeautifulSoup
from pypdf import PdfReader, PdfWriter
from pypdf.constants import PageLabelStyle
from pypdf.generic import ArrayObject, NameObject, NullObject

from bookbuild.layout import Book
from bookbuild.render import pages
from bookbuild.search import in_letters, one_line
from bookbuild.sphinx_ext import ASSETS
from sslbook._check import InputError
from sslchapters.data_files import read_yaml


@dataclass(frozen=True)
class Printed:
    """A page of the book and the PDF that it was printed to."""

    source: Path
    reader: PdfReader

    @cached_property
    def titles(self) -> list[tuple[str, int]]:
        """The page's heading, then each of its sections, and the page, from 0, of the PDF on which it begins."""
        article = BeautifulSoup(self.source.read_text(encoding="utf-8"), "html.parser").select_one("article.bd-article")
        found: list[tuple[str, int]] = []
        for heading in article.select("h1, section > h2") if article else ():
            for link in heading.select(".headerlink"):
                link.decompose()
            in_letters(heading)
            place = self.place(str(heading.parent.get("id"))) if heading.name == "h2" and heading.parent else 0
            if place is not None:
                found.append((one_line(heading), place))
        return found

    def place(self, anchor: str) -> int | None:
        """The page, from 0, on which ``anchor`` is, if the PDF knows it."""
        destination = self.reader.named_destinations.get(f"/{anchor}")
        return None if destination is None else self.reader.get_destination_page_number(destination)


def chromium() -> str:
    """The browser that prints; raises InputError where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise InputError("no Chromium here to print with; on Debian and Ubuntu: apt-get install chromium")
    return found


def write_pdf(book: Book, target: Path, say: Callable[[str], None] = print) -> Path:
    """Print the built pages of ``book`` into ``target``; raises InputError without a browser."""
    browser = chromium()
    with tempfile.TemporaryDirectory(prefix="sslbook-") as folder:
        work, printed = Path(folder), []
        for source in [book.html / f"{name}.html" for name in pages(book.root)]:
            say(f"printing {source.stem} …")
            printed.append(Printed(source, _print(browser, source, work / f"{source.stem}.pdf")))
        config = read_yaml(book.root / "_config.yml", dict)
        title, author = str(config["title"]), str(config["author"])
        front = _page(
            browser,
            work / "front.html",
            f"""<div class="cover"><h1>{html.escape(title)}</h1>
            <p>An executable book on why self-supervised learning works</p>
            <img src="{(ASSETS / "static/sslbook/logo.svg").as_uri()}" alt=""><p>{html.escape(author)}</p></div>
            <h1>Contents</h1>{contents(printed, read_yaml(book.root / "_toc.yml", dict))}""",
        )
        writer = join(front, printed)
        numbered = writer.pages[len(front.pages) :]
        numbers = "".join(f"<div><span>{i + 1}</span></div>" for i in range(len(numbered)))
        sheets = _page(browser, work / "numbers.html", numbers)
        for page, sheet in zip(numbered, sheets.pages, strict=False):
            page.merge_page(sheet)
            page.compress_content_streams()  # merging unpacked them
        writer.set_page_label(0, len(front.pages) - 1, style=PageLabelStyle.LOWERCASE_ROMAN)
        writer.set_page_label(len(front.pages), len(writer.pages) - 1, style=PageLabelStyle.DECIMAL)
        writer.add_metadata({"/Title": title, "/Author": author})
        writer.compress_identical_objects()
        target.parent.mkdir(parents=True, exist_ok=True)
        writer.write(target)
    return target


def contents(printed: Sequence[Printed], toc: Mapping[str, Any]) -> str:
    """The table of contents as HTML; page 1 is the first behind it."""
    parts = {str(part["chapters"][0]["file"]).rpartition("/")[2]: part["caption"] for part in toc.get("parts", ())}
    rows, at = [], 1
    for one in printed:
        if caption := parts.get(one.source.stem):
            rows.append(f"<h2>{html.escape(caption)}</h2>")
        for number, (title, page) in enumerate(one.titles):
            kind = "section" if number else "chapter"
            link = f'<a href="{one.source.as_uri()}"><span>{html.escape(title)}</span><b>{at + page}</b></a>'
            rows.append(f'<p class="{kind}">{link}</p>')
        at += len(one.reader.pages)
    return "\n".join(rows)


def join(front: PdfReader, printed: Sequence[Printed]) -> PdfWriter:
    """All pages in one file, with bookmarks, and with links that lead to places in it; those to files beside the pages go."""
    writer = PdfWriter()
    writer.append(front, import_outline=False)
    first: dict[Path, int] = {}
    owners: list[Printed | None] = [None] * len(front.pages)
    for one in printed:
        at = first[one.source] = len(writer.pages)
        writer.append(one.reader, import_outline=False)
        owners += [one] * len(one.reader.pages)
        (title, _), *sections = one.titles
        chapter = writer.add_outline_item(title=title, page_number=at)
        for section, page in sections:
            writer.add_outline_item(title=section, page_number=at + page, parent=chapter)
    known = {one.source.as_uri(): one for one in printed}
    for sheet, owner in zip(writer.pages, owners, strict=True):
        for annotation in sheet.get("/Annots", ArrayObject()):
            link = annotation.get_object()
            name, (address, _, fragment) = link.get("/Dest"), str(link.get("/A", {}).get("/URI", "")).partition("#")
            if isinstance(name, str) and owner is not None:
                target, anchor = owner, name.removeprefix("/")
            elif address in known:
                target, anchor = known[address], unquote(fragment)
            else:
                if address.startswith("file:"):
                    del link["/A"]
                continue
            destination = target.reader.named_destinations.get(f"/{anchor}")
            top = destination.top if destination and destination.top is not None else NullObject()
            there = writer.pages[first[target.source] + (target.place(anchor) or 0)].indirect_reference
            link.pop("/A", None)
            link[NameObject("/Dest")] = ArrayObject([there, NameObject("/XYZ"), NullObject(), top, NullObject()])
    return writer


def _page(browser: str, source: Path, body: str) -> PdfReader:
    """Print a page of ours, with its style of `assets/pdf`: the cover with the contents, or the sheets with page numbers."""
    style = (ASSETS / "pdf" / source.with_suffix(".css").name).read_text(encoding="utf-8")
    head = f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><style>{style}</style>'
    source.write_text(f"{head}{body}</html>", encoding="utf-8")
    return _print(browser, source, source.with_suffix(".pdf"))


def _print(browser: str, source: Path, target: Path) -> PdfReader:
    """Print one page, when its scripts have no more to do."""
    flags = ["headless=new", "disable-gpu", "no-proxy-server", "no-pdf-header-footer", "virtual-time-budget=120000"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("no-sandbox")  # Chromium refuses to run as root with one
    flags += [f"user-data-dir={target.parent / 'profile'}", f"print-to-pdf={target}"]
    command = [browser, *(f"--{flag}" for flag in flags), source.as_uri()]
    target.unlink(missing_ok=True)
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if not target.is_file():
        raise InputError(f"Chromium did not print {source.name}: {run.stderr.strip()[-300:]}")
    return PdfReader(target)
