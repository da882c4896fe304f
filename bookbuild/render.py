"""From executed notebooks to the HTML book, and to one PDF.

The notebooks are rendered as they are, with execution off: what the page shows is what the regression has read. They are
staged in a folder of their own, together with the pages that hold no code and those that are generated; Jupyter Book runs
there with every warning an error; and the finished pages take the old ones' place in one step, so that a failed build
leaves the last good book. `problems` then looks for what Sphinx does not see: numbers that are not those of the notebooks, links
of pages and of readers' notebooks that lead nowhere, ids that occur twice, and whatever a browser would fetch from elsewhere.

The PDF has a cover, contents with page numbers, bookmarks, and every page as Chromium prints it. What is folded on a page stays
folded: code behind a bar, checks behind their badge, solutions. Links from page to page lead inside the file.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pypdf import PdfReader, PdfWriter
from pypdf.constants import PageLabelStyle
from pypdf.generic import ArrayObject, DictionaryObject, FloatObject, NameObject, NullObject
from sphinx_external_toc.parsing import MalformedError, parse_toc_data

from bookbuild.execute import ANSI, variables
from bookbuild.layout import Book, find_chapters, read_chapter
from bookbuild.notebooks import LINES, NOTEBOOKS
from bookbuild.sphinx_ext import ASSETS
from sslbook._check import InputError
from sslbook._files import write_text
from sslchapters.data_files import read_source, read_yaml
from sslchapters.values import glue, parts, pasted, printed, readable, without_missing

# Jupyter Book has jsonschema compile a grammar of addresses for two seconds, which no file of ours is held to.
# And it would go on writing if we were killed.
_COMMAND = """
import sys
from sslbook._machine import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
sys.modules['rfc3987_syntax'] = None
from jupyter_book.cli.main import main
main()
"""
_PROBLEM = re.compile(r"(WARNING|ERROR|CRITICAL)\b|[Ee]rror:|Exception occurred")
_PLACE = re.compile(r"^(?P<page>\S+?)\.ipynb(?::(?P<line>\d+))?")


class RenderError(RuntimeError):
    """The book could not be rendered; the message says what is missing, or quotes Sphinx's warnings with their place."""


def build(
    executed: Path,
    out: Path,
    *,
    root: Path,
    generated: Mapping[str, str],
    notes: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    strict: bool = True,
) -> Path:
    """Render the book below `root` into the folder `out` and return its first page, `out/index.html`.

    `executed` holds one `<page>.ipynb` for each chapter with code (the file's name without `.md`); `root` holds `_config.yml`,
    `_toc.yml` and the sources; `generated` maps pages of the table of contents (`chapters/ledger`) to their Markdown.
    `notes` are what chapters' pages say of their run, in HTML: below the title, and at the foot.
    Stages into `out/../stage`, and writes Sphinx's whole output to `out/../render.log`.

    Raises RenderError if a page is missing or not executed, or, if `strict`, if Sphinx warns of anything; `out` is then untouched.
    """
    work = out.parent
    staged = stage(executed, work / "stage", root=root, generated=generated, strict=strict)
    fresh = _jupyter_book(staged, work, strict=strict)
    shutil.rmtree(fresh / "_static/vendor/fontawesome", ignore_errors=True)  # no page loads it: see sphinx_ext
    _write_index(fresh, pages(root))
    (fresh / "searchindex.js").unlink(missing_ok=True)  # Sphinx's index of pages, which nothing loads
    sources = fresh / "_sources"  # what the download buttons offer: every page's Markdown
    shutil.rmtree(sources, ignore_errors=True)
    for page in pages(root):
        (sources / page).parent.mkdir(parents=True, exist_ok=True)
        write_text(sources / f"{page}.md", generated.get(page) or read_source(root / f"{page}.md"))
    (fresh / "index.html").write_text(_front_door(root), encoding="utf-8")
    for page in [page for page in pages(root) if any(notes.get(Path(page).name, ()))]:
        top, foot = notes[Path(page).name]
        head, start, text = (
            (fresh / f"{page}.html").read_text(encoding="utf-8").partition('<article class="bd-article"')
        )
        article, end, rest = text.replace("</h1>", f"</h1>{top}", 1).rpartition("</article>")
        write_text(fresh / f"{page}.html", f"{head}{start}{article}{foot}{end}{rest}")
    old = out.with_name(out.name + ".old")  # the new pages take the old ones' place by renaming
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)
    return out / "index.html"


def pages(root: Path) -> list[str]:
    """The pages of the table of contents in reading order, without suffix: `chapters/intro`, …"""
    try:
        return list(parse_toc_data({"format": "jb-book", **read_yaml(root / "_toc.yml", dict)}))
    except MalformedError as error:
        raise InputError(f"_toc.yml: {error}") from None


def stage(executed: Path, folder: Path, *, root: Path, generated: Mapping[str, str], strict: bool = True) -> Path:
    """Gather in `folder`, made anew, what Sphinx is to read; returns `folder`. Arguments and errors as for `build`.

    Unless `strict`, a number that no chapter has produced is a dash.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("_config.yml", "_toc.yml"):
        write_text(folder / name, read_source(root / name))
    notebooks = [] if strict else [path for path in executed.glob("*.ipynb") if "." not in path.stem]
    known = {path.stem: glue(json.loads(read_source(path))) for path in notebooks}

    def shown(text: str, name: str) -> str:
        return text if strict else without_missing(text, name, known)

    missing, unexecuted = [], []
    for page in pages(root):
        target, source, notebook = folder / page, root / f"{page}.md", executed / f"{Path(page).name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        if page in generated:
            write_text(target.with_suffix(".md"), shown(generated[page], target.name))
        elif not source.exists():
            missing.append(f"{page}.md")
        elif not (chapter := read_chapter(source)).runs:
            write_text(target.with_suffix(".md"), shown(chapter.text, chapter.name))
        elif notebook.exists():
            write_text(target.with_suffix(".ipynb"), shown(read_source(notebook), chapter.name))
        else:
            unexecuted.append(target.name)
    if missing:
        raise RenderError(f"_toc.yml names pages that do not exist: {', '.join(missing)}")
    if unexecuted:
        raise RenderError(f"not executed yet: {', '.join(unexecuted)}; run: sslbook execute {' '.join(unexecuted)}")
    for source in {(root / page).parent for page in pages(root)}:  # with what their pages refer to
        target = folder / source.relative_to(root)
        others = shutil.ignore_patterns("*.md", "*.ipynb", ".*", "_*")
        shutil.copytree(source, target, ignore=others, dirs_exist_ok=True)
        for path in source.glob("*.bib"):
            write_text(target / path.name, read_source(path))
    return folder


def explain(log: str, staged: Path) -> str:
    """The problems in Sphinx's output, each with its place in the sources: page, cell and the line itself."""
    problems = []
    for line in ANSI.sub("", log).splitlines():
        line = line.replace(f"{staged}{os.sep}", "").replace(f"{staged.resolve()}{os.sep}", "")
        if _PROBLEM.search(line) and not line.startswith("WARNING: keep_going"):
            problems.append(_locate(line, staged))
    unique = list(dict.fromkeys(problems))
    return "\n".join(f"  {problem}" for problem in unique) or "\n".join(log.splitlines()[-15:])


def _locate(line: str, staged: Path) -> str:
    """A warning's line number in a notebook, `cell * 10000 + line`, turned into words and the line that it names."""
    match = _PLACE.match(line)
    if match is None or not (staged / f"{match['page']}.ipynb").exists():
        return line
    place, rest = f"{match['page']}.md", line[match.end() :]
    if match["line"] is None or int(match["line"]) < LINES:
        return place + rest
    cell, row = divmod(int(match["line"]), LINES)
    cells = json.loads((staged / f"{match['page']}.ipynb").read_text(encoding="utf-8"))["cells"]
    if cell > len(cells):
        return place + rest
    source = cells[cell - 1]["source"]
    rows = (source if isinstance(source, str) else "".join(source)).splitlines()
    quoted = rows[min(max(row, 1), len(rows)) - 1].strip() if rows else ""
    return f"{place}, cell {cell}, near “{quoted[:90]}”{rest}"


def _jupyter_book(staged: Path, work: Path, *, strict: bool) -> Path:
    """Run Jupyter Book on the staged sources; returns the folder of its HTML. strict: every warning is an error."""
    command = [sys.executable, "-c", _COMMAND, str(os.getpid())]
    command += ["build", str(staged), "--path-output", str(work / "render")]
    command += ["--all", "-n", *(["-W", "--keep-going"] if strict else [])]
    environment = {**variables(), "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    shutil.rmtree(work / "render", ignore_errors=True)
    run = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    log = work / "render.log"
    log.write_text(run.stdout + run.stderr, encoding="utf-8")
    built = work / "render" / "_build" / "html"
    if run.returncode != 0 or not built.is_dir():
        raise RenderError(
            f"Jupyter Book found problems (its whole output is in {log}):\n{explain(run.stdout + run.stderr, staged)}"
        )
    return built


def _front_door(root: Path) -> str:
    """`index.html`: leads to the first page, and says so where redirects are off."""
    first = pages(root)[0]
    title = html.escape(read_yaml(root / "_config.yml", dict).get("title", "The book"))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="_static/sslbook/logo.svg">\n'  # or browsers ask for a favicon.ico
        f'<meta http-equiv="refresh" content="0; url={first}.html">\n</head>\n'
        f'<body><main><h1>{title}</h1><p><a href="{first}.html">Open the book</a></p></main></body>\n</html>\n'
    )


_MARKDOWN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, renderer=lambda *_: "")
_CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+)['"]?((?:https?:)?//[^'")\s]+)""")


def problems(book: Book, scale: str) -> list[str]:
    """Every problem of the built pages, one sentence each; empty if there is none."""
    paths = [path for path in sorted(book.html.rglob("*.html")) if "_static" not in path.relative_to(book.html).parts]
    soups = {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in paths}
    both = soups | {path: _as_page(path) for path in sorted((book.html / NOTEBOOKS).glob("*.ipynb"))}
    found = [*_numbers(book, scale, soups), *_links(both, book.html.resolve())]
    for path, soup in both.items():
        ids = Counter(str(tag["id"]) for tag in soup.find_all(id=True))
        found += [f"{path}: the id {name!r} occurs {count} times" for name, count in ids.items() if count > 1]
        found += [f"{path}: loads {address}" for address in outside(soup)]
    for sheet in sorted(book.html.rglob("*.css")):
        found += [f"{sheet}: loads {address}" for address in _CSS_URL.findall(sheet.read_text("utf-8", "replace"))]
    return [problem.replace(f"{book.html}/", "") for problem in found]


def _as_page(notebook: Path) -> BeautifulSoup:
    """What a Jupyter shows of a reader's notebook: its text, without its formulas' source, and the HTML below its code."""
    cells = nbformat.read(notebook, as_version=4).cells
    text = (_MARKDOWN.render(cell.source) for cell in cells if cell.cell_type == "markdown")
    shown = (output.get("data", {}).get("text/html", "") for cell in cells for output in cell.get("outputs", ()))
    return BeautifulSoup("\n".join([*text, *shown]), "html.parser")


def outside(soup: BeautifulSoup) -> list[str]:
    """The addresses on other machines that a browser fetches by itself to show a page."""
    tags = [tag for tag in soup.find_all(True) if isinstance(tag, Tag)]
    values = [tag[name] for tag in tags for name in ("src", "srcset", "poster", "data") if name in tag.attrs]
    sheets = [tag for tag in tags if tag.name == "link" and "canonical" not in tag.get_attribute_list("rel")]
    values += [sheet["href"] for sheet in sheets if "href" in sheet.attrs]
    addresses = [address for value in values for address in re.split(r",\s+|\s+", str(value))]
    found = [address for address in addresses if address.startswith(("http://", "https://", "//"))]
    styled = [tag for tag in tags if tag.name == "style" or "style" in tag.attrs]
    styles = "\n".join(str(tag.get("style") or tag.get_text()) for tag in styled)
    return [*found, *_CSS_URL.findall(styles)]


def _numbers(book: Book, scale: str, soups: Mapping[Path, BeautifulSoup]) -> Iterator[str]:
    """Each number that a source pastes into its prose must stand in its page, formatted and typeset, and no other may."""
    values = {path.stem: glue(json.loads(path.read_text(encoding="utf-8"))) for path in book.notebooks(scale)}
    for chapter in find_chapters(book):
        path = next((path for path in soups if path.stem == chapter.name), None)
        if path is None:
            continue
        wanted: Counter[str] = Counter()
        for name, key, form, role in pasted(chapter.text, chapter.name):
            there = values.get(name, {})
            if missing := [part for part in parts(role, key) if part not in there]:
                yield f"{path}: {{{role}}} names {missing[0]!r}, which {name} does not produce"
            else:
                wanted[printed(role, key, form, there)] += 1
        shown = Counter(span.get_text() for span in soups[path].select("article span.pasted-text"))
        for text in wanted - shown:
            yield f"{path}: the number {text} of its source is not in the page"
        for text in set(shown) - set(wanted):
            yield f"{path}: it shows the number {text}, which its source does not paste"


def _links(soups: Mapping[Path, BeautifulSoup], out: Path) -> Iterator[str]:
    """Internal addresses that lead nowhere: a file that is not there, an anchor that the page does not have."""
    anchors = {path.resolve(): {str(tag["id"]) for tag in soup.find_all(id=True)} for path, soup in soups.items()}
    for path, soup in soups.items():
        tags = [tag for tag in soup.find_all(["a", "link", "img", "script"]) if tag.get("href") or tag.get("src")]
        for address in sorted({str(tag.get("href") or tag.get("src")) for tag in tags}):
            try:
                there = urlsplit(address)
                target = (path.parent / unquote(there.path) if there.path else path).resolve()
            except ValueError as error:  # brackets in a host's name, a null byte in a path
                yield f"{path}: {address} is no address: {error}"
                continue
            if there.scheme or there.netloc:
                continue
            if not target.exists() or not target.is_relative_to(out):
                yield f"{path}: {address} leads to no file of the book"
            elif there.fragment and target in anchors and unquote(there.fragment) not in anchors[target]:
                yield f"{path}: {address} names an anchor that {target.name} does not have"


# --- what the search page searches: the text of each section of each page, as a reader sees it -------------------------
#
# Sphinx's own index knows pages, not sections, and fetches a page to show an excerpt of its source, which a browser refuses on
# ``file://``. Ours is one script with the sections' text, and `search.js`, which ranks them; both work from a folder.

INDEX = "_static/sslbook/sections.js"
"""The script, in the built book, that holds the sections."""

_ARTICLE = re.compile(r'<article class="bd-article".*?</article>', re.DOTALL)
_HEAVY = re.compile(
    r'"data:[^"]*"|<div class="highlight-[^"]*">.*?</pre></div>\n?</div>|<table class="sslbook-check.*?</table>',
    re.DOTALL,
)
_LEFT_OUT = ".headerlink, script, style, svg, .cell, .solution, .sslbook-map, .sslbook-time, dl.py, .tabbed-set"


@dataclass(frozen=True)
class Section:
    """A section without what is below it: where it is, the page's title, its own, those of its boxes, and its words."""

    page: str
    anchor: str
    chapter: str
    title: str
    boxes: str
    text: str


def _write_index(html: Path, pages: Iterable[str]) -> Path:
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
    _in_letters(top)
    found: list[Section] = []
    for section in reversed([top, *top.find_all("section")]):  # the inner ones first: they leave their place empty
        heading = section.find(["h1", "h2", "h3", "h4"], recursive=False)
        if not isinstance(heading, Tag) or not section.get("id"):
            continue  # a theorem's body is a section, too
        boxes = " · ".join(_words(box) for box in section.select(".admonition-title"))
        title = _words(heading.extract())
        found.insert(0, Section(page, str(section["id"]), "", title, boxes, _words(section)))
        section.clear()
    yield from (replace(section, chapter=found[0].title) for section in found)


def _in_letters(tag: Tag) -> None:
    """Put small formulas in letters, others as an ellipsis."""
    for formula in tag.select(".math"):
        formula.replace_with(NavigableString(("" if formula.name == "span" else " ") + readable(formula.get_text())))


def _words(tag: Tag) -> str:
    """The text of a tag on one line."""
    return " ".join(tag.get_text().split())


# --- the whole book as one PDF -----------------------------------------------------------------------------------------

SECONDS = 300
"""The longest that Chromium may take for one page."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_TITLE = re.compile(r"<h1>(.*?)</h1>", re.DOTALL)
_SECTION = re.compile(r'<section id="([^"]+)">\s*(?:<span id="[^"]*"></span>\s*)*<h2>(.*?)</h2>', re.DOTALL)
_FRONT = """@page { size: A4; margin: 16mm 20mm 18mm } @page :first { margin: 0 }
body { font-family: 'DejaVu Sans', sans-serif; color: #222; margin: 0 }
.cover { height: 290mm; break-after: page; text-align: center }
.cover h1 { font-size: 34pt; padding-top: 75mm; color: #0a5f94; margin: 0 20mm }
.cover p { font-size: 14pt; margin: 8mm 25mm } .cover img { width: 120mm; margin-top: 12mm }
h2 { font-size: 11pt; color: #5b6270; margin: 5mm 0 1mm; break-after: avoid }
p { margin: 0; font-size: 9pt; line-height: 1.35 } p.section a { padding-left: 6mm; color: #444 }
p.chapter { font-weight: bold; margin-top: 1.6mm; break-after: avoid }
p.section b { font-weight: normal }
a { color: #222; text-decoration: none; display: flex; justify-content: space-between; gap: 4mm }"""
_SHEETS = """@page { size: A4; margin: 0 } body { margin: 0; font: 9pt 'DejaVu Sans', sans-serif; color: #555 }
div { height: 296mm; break-after: page; position: relative }
span { position: absolute; bottom: 8mm; width: 100%; text-align: center }"""


@dataclass(frozen=True)
class Printed:
    """A page of the book and the PDF that it was printed to."""

    source: Path
    pdf: Path

    @cached_property
    def reader(self) -> PdfReader:
        """The PDF, read."""
        return PdfReader(self.pdf)

    @cached_property
    def title(self) -> str:
        """The page's heading."""
        found = _TITLE.search(self._article)
        return _plain(found[1]) if found else self.source.stem

    @cached_property
    def sections(self) -> list[tuple[str, int]]:
        """Title and page, from 0, of each section that its contents name."""
        found = [(_plain(title), self.place(anchor)) for anchor, title in _SECTION.findall(self._article)]
        return [(title, page) for title, page in found if page is not None]

    def place(self, anchor: str) -> int | None:
        """The page, from 0, on which ``anchor`` is, if the PDF knows it."""
        destination = self.reader.named_destinations.get(f"/{anchor}")
        return None if destination is None else self.reader.get_destination_page_number(destination)

    @cached_property
    def _article(self) -> str:
        return self.source.read_text(encoding="utf-8").partition('<article class="bd-article"')[2]


def chromium() -> str:
    """The browser that prints; raises InputError where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise InputError("no Chromium here to print with; on Debian and Ubuntu: apt-get install chromium")
    return found


def write_pdf(book: Book, target: Path, say: Callable[[str], None] = print) -> Path:
    """Print the built pages of ``book`` into ``target``; raises InputError without a built book or a browser."""
    browser = chromium()
    sources = [book.html / f"{name}.html" for name in pages(book.root)]
    if missing := [source.name for source in sources if not source.is_file()]:
        raise InputError(f"{missing[0]} is not built: make book")
    with tempfile.TemporaryDirectory(prefix="sslbook-") as folder:
        work, printed = Path(folder), []
        for source in sources:
            say(f"printing {source.stem} …")
            printed.append(Printed(source, _print(browser, source, work / f"{source.stem}.pdf")))
        config = read_yaml(book.root / "_config.yml", dict)
        title, author = str(config["title"]), str(config["author"])
        cover = (
            f'<div class="cover"><h1>{html.escape(title)}</h1>'
            "<p>An executable book on why self-supervised learning works</p>"
            f'<img src="{(ASSETS / "static/sslbook/logo.svg").as_uri()}" alt=""><p>{html.escape(author)}</p></div>'
        )
        listed = contents(printed, read_yaml(book.root / "_toc.yml", dict))
        front = _page(browser, work / "front.html", f"<style>{_FRONT}</style>{cover}<h1>Contents</h1>{listed}")
        writer = join(front, printed)
        numbered = writer.pages[len(front.pages) :]
        numbers = "".join(f"<div><span>{i + 1}</span></div>" for i in range(len(numbered)))
        sheets = _page(browser, work / "numbers.html", f"<style>{_SHEETS}</style>{numbers}")
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
        for kind, title, page in [("chapter", one.title, 0), *(("section", *section) for section in one.sections)]:
            link = f'<a href="{one.source.as_uri()}"><span>{html.escape(title)}</span><b>{at + page}</b></a>'
            rows.append(f'<p class="{kind}">{link}</p>')
        at += len(one.reader.pages)
    return "\n".join(rows)


def join(front: PdfReader, printed: Sequence[Printed]) -> PdfWriter:
    """All pages in one, with bookmarks and with links that lead inside it."""
    writer = PdfWriter()
    writer.append(front, import_outline=False)
    first: dict[str, int] = {}
    owners: list[Printed | None] = [None] * len(front.pages)
    for one in printed:
        at = first[one.source.as_uri()] = len(writer.pages)
        writer.append(one.pdf, import_outline=False)
        owners += [one] * len(one.reader.pages)
        chapter = writer.add_outline_item(title=one.title, page_number=at)
        for title, page in one.sections:
            writer.add_outline_item(title=title, page_number=at + page, parent=chapter)
    known = {one.source.as_uri(): one for one in printed}
    for sheet, owner in zip(writer.pages, owners, strict=True):
        for annotation in sheet.get("/Annots", ArrayObject()):
            _lead_inside(writer, annotation.get_object(), owner, known, first)
    return writer


def _lead_inside(
    writer: PdfWriter,
    link: DictionaryObject,
    owner: Printed | None,
    known: Mapping[str, Printed],
    first: Mapping[str, int],
) -> None:
    """Let a link to another page of the book, or to a place on its own, lead to a page of the file."""
    name = link.get("/Dest")
    address = str(link.get("/A", {}).get("/URI", ""))
    if isinstance(name, str) and owner is not None:
        target, anchor = owner, name.removeprefix("/")
    elif address.partition("#")[0] in known:
        target, anchor = known[address.partition("#")[0]], unquote(address.partition("#")[2])
    else:
        if address.startswith("file:"):
            del link["/A"]  # what lies beside the pages is not in the file
        return
    page = first[target.source.as_uri()] + (target.place(anchor) or 0)
    destination = target.reader.named_destinations.get(f"/{anchor}")
    height = None if destination is None else destination.top
    top = FloatObject(float(height)) if isinstance(height, (int, float)) else NullObject()
    place = [writer.pages[page].indirect_reference, NameObject("/XYZ"), NullObject(), top, NullObject()]
    link.pop("/A", None)
    link[NameObject("/Dest")] = ArrayObject(place)


def _page(browser: str, source: Path, body: str) -> PdfReader:
    source.write_text(f'<!DOCTYPE html><html lang="en"><meta charset="utf-8">{body}</html>', encoding="utf-8")
    return PdfReader(_print(browser, source, source.with_suffix(".pdf")))


def _print(browser: str, source: Path, target: Path) -> Path:
    """Print one page, when its scripts have no more to do."""
    flags = ["headless=new", "disable-gpu", "no-proxy-server", "no-pdf-header-footer", "virtual-time-budget=120000"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("no-sandbox")  # Chromium refuses to run as root with one
    flags += [f"user-data-dir={target.parent / 'profile'}", f"print-to-pdf={target}"]
    command = [browser, *(f"--{flag}" for flag in flags), source.as_uri()]
    target.unlink(missing_ok=True)
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if not target.is_file():
        raise InputError(f"Chromium did not print {source.name}: {run.stderr.strip()[-300:]}")
    return target


def _plain(heading: str) -> str:
    soup = BeautifulSoup(heading, "html.parser")
    for link in soup.select(".headerlink"):
        link.decompose()
    _in_letters(soup)
    return _words(soup)
