"""From executed notebooks to the HTML book.

The notebooks are rendered as they are, with execution off: what the page shows is what the regression has read. They are
staged in a folder of their own, together with the pages that hold no code and those that are generated; Jupyter Book runs
there with every warning an error; and the finished pages take the old ones' place in one step, so that a failed build
leaves the last good book. `problems` then looks for what Sphinx does not see: numbers that are not those of the notebooks, links
in HTML that lead nowhere, and whatever a browser would fetch from elsewhere.
"""

from __future__ import annotations

import errno
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from sslbook.book.chapters import find_chapters, read_chapter
from sslbook.book.kernel import variables
from sslbook.book.layout import Book, read_yaml
from sslbook.book.plain import LINES
from sslbook.book.sphinx_ext import DOWNLOADS
from sslbook.book.typeset import glue, parts, pasted, printed, readable
from sslbook.runtime.atomic_io import read_source, write_text

# Jupyter Book has jsonschema compile a grammar of addresses for two seconds, which no file of ours is held to.
# And it would go on writing if we were killed.
_COMMAND = """
import sys
from sslbook.runtime.compute import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
sys.modules['rfc3987_syntax'] = None
from jupyter_book.cli.main import main
main()
"""
_ERRNO = re.compile(r"\[Errno (?P<code>\d+)\] (?P<what>[^:'\n\x1b]+)(: '(?P<path>[^'\n]+)')?")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
"""Errors of a full disk, or of a folder that can't be written: no fault of the book's."""
_PROBLEM = re.compile(r"(WARNING|ERROR|CRITICAL)\b|[Ee]rror:|Exception occurred")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r"^(?P<page>\S+?)\.ipynb(?::(?P<line>\d+))?")


class RenderError(RuntimeError):
    """The book could not be rendered; the message says what is missing, or quotes Sphinx's warnings with their place."""


def build(executed: Path, out: Path, *, root: Path, generated: Mapping[str, str]) -> Path:
    """Render the book below `root` into the folder `out` and return its first page, `out/index.html`.

    `executed` holds one `<page>.ipynb` for each chapter with code (the file's name without `.md`); `root` holds `_config.yml`,
    `_toc.yml` and the sources; `generated` maps pages of the table of contents (`chapters/ledger`) to their Markdown.
    Stages into `out/../stage`, and writes Sphinx's whole output to `out/../render.log`.

    Raises RenderError if a page is missing or not executed, or if Sphinx warns of anything; `out` is then untouched.
    """
    work = out.parent
    staged = stage(executed, work / "stage", root=root, generated=generated)
    fresh = _jupyter_book(staged, work)
    shutil.rmtree(fresh / "_static/vendor/fontawesome", ignore_errors=True)  # no page loads it: see sphinx_ext
    _write_index(fresh, pages(root))
    (fresh / "searchindex.js").unlink(missing_ok=True)  # Sphinx's index of pages, which nothing loads
    shutil.rmtree(fresh / DOWNLOADS, ignore_errors=True)
    for page in pages(root):  # what the download buttons offer: every page's Markdown
        (fresh / DOWNLOADS / page).parent.mkdir(parents=True, exist_ok=True)
        text = generated.get(page) or read_source(root / f"{page}.md")
        write_text(fresh / DOWNLOADS / f"{page}.md", text)
    (fresh / "index.html").write_text(_front_door(root), encoding="utf-8")
    old = out.with_name(out.name + ".old")  # the new pages take the old ones' place by renaming
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)
    return out / "index.html"


def pages(root: Path) -> list[str]:
    """The pages of the table of contents in reading order, without suffix: `chapters/intro`, …"""
    toc = read_yaml(root / "_toc.yml", dict)

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, Mapping):
            own = node.get("root") or node.get("file")  # stands before what is below it, whatever the order of the keys
            if own:
                yield str(own).removesuffix(".md").removesuffix(".ipynb")
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for item in node:
                yield from walk(item)

    return list(walk(toc))


def stage(executed: Path, folder: Path, *, root: Path, generated: Mapping[str, str]) -> Path:
    """Gather in `folder`, made anew, what Sphinx is to read; returns `folder`. Arguments and errors as for `build`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("_config.yml", "_toc.yml"):
        write_text(folder / name, read_source(root / name))
    missing, unexecuted = [], []
    for page in pages(root):
        target, source, notebook = folder / page, root / f"{page}.md", executed / f"{Path(page).name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        if page in generated:
            target.with_suffix(".md").write_text(generated[page], encoding="utf-8")
        elif not source.exists():
            missing.append(f"{page}.md")
        elif not (chapter := read_chapter(source)).runs:
            write_text(target.with_suffix(".md"), chapter.text)
        elif notebook.exists():
            shutil.copy(notebook, target.with_suffix(".ipynb"))
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
    for line in _ANSI.sub("", log).splitlines():
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


def _jupyter_book(staged: Path, work: Path) -> Path:
    """Run Jupyter Book on the staged sources; returns the folder of its HTML."""
    command = [sys.executable, "-c", _COMMAND, str(os.getpid())]
    command += ["build", str(staged), "--path-output", str(work / "render")]
    command += ["--all", "-W", "-n", "--keep-going"]
    environment = {**variables(), "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    shutil.rmtree(work / "render", ignore_errors=True)
    run = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    log = work / "render.log"
    for found in _ERRNO.finditer(run.stdout + run.stderr):
        if int(found["code"]) in _UNWRITABLE:
            raise OSError(int(found["code"]), found["what"], found["path"] or str(work / "render"))
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


_CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+)['"]?((?:https?:)?//[^'")\s]+)""")


def problems(book: Book, scale: str) -> list[str]:
    """Every problem of the built pages, one sentence each; empty if there is none."""
    paths = [path for path in sorted(book.html.rglob("*.html")) if "_static" not in path.relative_to(book.html).parts]
    soups = {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in paths}
    found = [*_numbers(book, scale, soups), *_links(soups, book.html.resolve())]
    found += [f"{path}: loads {address}" for path, soup in soups.items() for address in outside(soup)]
    for sheet in sorted(book.html.rglob("*.css")):
        found += [f"{sheet}: loads {address}" for address in _CSS_URL.findall(sheet.read_text("utf-8", "replace"))]
    return [problem.replace(f"{book.html}/", "") for problem in found]


def outside(soup: BeautifulSoup) -> list[str]:
    """The addresses on other machines that a browser fetches by itself to show a page."""
    values = [tag[name] for name in ("src", "srcset", "poster", "data") for tag in soup.select(f"[{name}]")]
    values += [link["href"] for link in soup.select("link[href]:not([rel=canonical])")]
    addresses = [address for value in values for address in re.split(r",\s+|\s+", str(value))]
    found = [address for address in addresses if address.startswith(("http://", "https://", "//"))]
    styles = "\n".join(str(tag.get("style") or tag.get_text()) for tag in soup.select("style, [style]"))
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
        tags = soup.select("a[href], link[href], img[src], script[src]")
        for address in sorted({str(tag.get("href") or tag.get("src")) for tag in tags}):
            there = urlsplit(address)
            if there.scheme or there.netloc:
                continue
            target = (path.parent / unquote(there.path) if there.path else path).resolve()
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


def _heading(section: Tag) -> str:
    heading = section.find(["h1", "h2", "h3", "h4"], recursive=False)
    return _words(heading) if isinstance(heading, Tag) else ""


def _words(tag: Tag) -> str:
    return " ".join(tag.get_text().split())
