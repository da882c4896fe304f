"""The notebooks that readers open: the executed chapter's cells, and between them the page's text in Markdown and LaTeX.

Nothing is needed to read one but a Jupyter, and nothing to run it but the package, which its first code cell installs. What
the build's own tools need (glued values, papermill's records) is left out.

On the page everything is resolved: theorems have their numbers, references their words, sentences their values. So the
notebook's text is written from it, by markdownify, and not from the sources by a second parser. Sphinx is asked to leave a
mark wherever a cell of the executed notebook begins (`mark_cells`); the marks cut the page into pieces (`pieces`).
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from bs4 import BeautifulSoup, Tag
from docutils import nodes
from markdownify import ATX, MarkdownConverter
from myst_nb.sphinx_ import HideCodeCellNode
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from bookbuild.cells import PICTURE, TIME, is_code_cell
from bookbuild.execute import digest_of
from bookbuild.layout import Book, Repository, code_cells, number_cells, tags
from sslbook._check import InputError
from sslbook._files import read_text, write_text
from sslchapters.values import GLUE_PREFIX, HIDDEN_TAGS, RECORD_KEY, glue, pasted, printed, spec

NOTEBOOKS = "notebooks"
"""The folder of the built book that holds them."""
_INSTALL = """\
# Run this first: where the book's library is missing, it installs it.
try:
    from sslchapters import this_run
    import seaborn, sklearn
except ImportError:
    print("Installing sslbook, once …")
    %pip install --quiet "{requirement}" scikit-learn seaborn
    from sslchapters import this_run
"""
_ASK = """\
# Run this first: where the book's library is missing, it says how to get it.
try:
    from sslchapters import this_run
    import seaborn, sklearn
except ImportError as missing:
    how = "run %pip install 'PATH[notebooks]', where PATH is a checkout of the book, then restart the kernel"
    raise ImportError(f"this notebook needs the book's library ({missing}): {how}") from None
"""
MOVES = "*Run the cells below: the last of them shows this picture with the slider that moves it.*"
TESTS_SOLUTION = "tests-solution"
"""The tag of a cell by which the book tests a solution of its own; it is none of a reader's."""
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def reader_notebook(name: str, executed: NotebookNode, page: Sequence[Piece], requirement: str) -> NotebookNode:
    """The notebook of the chapter ``name`` for readers, from its executed one and the pieces of its page.

    ``requirement`` is what pip is asked for where the package is missing, empty if there is nothing to ask for. Raises ValueError
    if the page pastes other numbers than the source asks for.
    """
    writer = _Writer(name, executed, requirement)
    for piece in page:
        writer.add(piece)
    record = executed.metadata.get(RECORD_KEY, {})
    told = {"chapter": name, **{key: record[key] for key in ("source", "scale", "seed") if key in record}}
    return number_cells(NotebookNode(new_notebook(cells=writer.close(), metadata={**KERNEL, RECORD_KEY: told})))


class _Writer:
    """The cells of a reader's notebook, as the pieces of the page come in.

    The page shows the opening's picture before the code that draws it (`bookbuild.cells`). Here a still picture does, and
    what the opening's numbers are in this run stands below the set-up, where the kernel first knows of them.
    """

    def __init__(self, name: str, executed: NotebookNode, requirement: str) -> None:
        self.name, self.executed, self.requirement = name, executed, requirement
        self.cells: list[NotebookNode] = []
        own = {cell.id for cell in code_cells(executed)}
        self.waiting = [i for i, cell in enumerate(executed.cells) if cell.id in own]
        self.glued = glue(executed)
        words = (cell.source for cell in executed.cells if cell.cell_type == "markdown")
        self.asked = list(pasted("\n\n".join(words), name))
        self.beside: list[str] = []  # of texts that no line stands below yet
        self.pictured = -1
        self.last = ""  # kind of text
        self.stage = "before"  # the first code cell; then "set-up", until there is text again; then "open"

    def add(self, piece: Piece) -> None:
        """Write one piece of the page."""
        if piece.kind == "code":
            self._code(piece.cell, folded=piece.folded)
            if self.stage == "open":
                self._this_run()
            return
        if self.stage == "set-up":
            self.stage = "open"
            self._this_run()
        if piece.kind == "picture":
            self.pictured = piece.cell
            self.cells.append(_still(self.executed.cells[piece.cell], piece.text))
        elif piece.kind in ("caption", "references"):
            self.cells.append(new_markdown_cell(piece.text))
        else:
            text = piece.text
            if piece.kind == "solution":
                title = "Solution, continued" if self.last == "solution" else "Solution"
                text = f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"
            self.cells.append(new_markdown_cell(text))
            self.last = piece.kind
        self.beside += self._specs(piece)
        if self.stage == "open" and not piece.text.endswith(":"):  # what leads to code, code follows
            self._this_run()

    def close(self) -> list[NotebookNode]:
        """All cells, the hidden ones at the end too."""
        self._code(len(self.executed.cells), folded=False)
        self._this_run()
        if left := [asked.name for asked in self.asked]:
            raise ValueError(f"{self.name}: the page lacks the numbers {', '.join(left)}")
        return self.cells

    def _code(self, upto: int, *, folded: bool) -> None:
        """The code cells that are due: those up to the one numbered ``upto``, and those behind it that the page doesn't show."""
        if self.stage == "before":
            self.stage = "set-up"
            first = _INSTALL.format(requirement=self.requirement) if self.requirement else _ASK
            self.cells.append(_folded(new_code_cell(first.rstrip())))
        while self.waiting and (
            self.waiting[0] <= upto or HIDDEN_TAGS & set(tags(self.executed.cells[self.waiting[0]]))
        ):
            index = self.waiting.pop(0)
            if TESTS_SOLUTION in tags(self.executed.cells[index]):
                continue
            cell = _code(self.executed.cells[index])
            if index == self.pictured:
                cell.outputs = []
            if folded or (self.stage == "set-up" and "parameters" not in tags(cell)):
                _folded(cell)
            self.cells.append(cell)

    def _this_run(self) -> None:
        """The cell that shows this run's values of the numbers in the text above it, if there are any."""
        if self.beside:
            lines = "".join(f"    {json.dumps(spec, ensure_ascii=False)},\n" for spec in self.beside)
            # the first line is what stands in the bar of a folded cell
            cell = new_code_cell(f"# this run's numbers beside those above\nthis_run(\n{lines})")
            self.cells.append(_folded(cell))
            self.beside = []

    def _specs(self, piece: Piece) -> Iterator[str]:
        """What `this_run` is told of the numbers of ``piece``; those of other chapters don't change here."""
        own = self.name
        for shown in piece.numbers:
            if not self.asked:
                raise ValueError(f"{own}: the page shows the number {shown}, which its source does not paste")
            chapter, name, form, role = self.asked.pop(0)
            if chapter != own:
                continue
            if (told := printed(role, name, form, self.glued)) != shown:
                raise ValueError(f"{own}: the page shows {shown} where {name} is {told}")
            yield spec(role, name, form, self.glued)


def _folded(cell: NotebookNode) -> NotebookNode:
    """Close the source: in JupyterLab and Notebook 7 by the first key, in Colab by the second."""
    cell.metadata["jupyter"] = {"source_hidden": True}
    cell.metadata["cellView"] = "form"
    return cell


_FRAME = re.compile(
    r'<img class="sslbook-frame[^"]*" src="data:(?P<kind>[^;]+);base64,(?P<content>[^"]+)"'
    r' alt="(?P<alt>[^"]*)"(?P<rest>[^>]*)>'
)


def _still(cell: NotebookNode, caption: str) -> NotebookNode:
    """A Markdown cell with what ``cell`` drew: a figure, or the first frame of a slider that a reader sees."""
    for output in cell.outputs:
        data = output.get("data", {})
        frames = [frame for frame in _FRAME.finditer(data.get("text/html", "")) if " hidden" not in frame["rest"]]
        if "image/png" in data:
            image = {"image/png": data["image/png"]}
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        elif frames:
            image, alt = {frames[0]["kind"]: frames[0]["content"]}, html.unescape(frames[0]["alt"])
        else:
            continue
        words = " ".join(alt.split()).replace("[", "(").replace("]", ")")
        below = [f"![{words}](attachment:picture)", caption, MOVES if frames else ""]
        still = new_markdown_cell("\n\n".join(filter(None, below)))
        still["attachments"] = {"picture": image}
        return NotebookNode(still)
    raise ValueError("the opening's picture has no image")


def _code(cell: NotebookNode) -> NotebookNode:
    """A code cell with what the page shows of its outputs."""
    kept = NotebookNode(new_code_cell(cell.source))
    if tags(cell):
        kept.metadata["tags"] = tags(cell)
    hidden = HIDDEN_TAGS & set(tags(cell))
    if hidden or {"hide-input", "remove-input", "hide-cell"} & set(tags(cell)):
        _folded(kept)
    if hidden:  # when it is run its output is not for the page either
        kept.metadata["jupyter"]["outputs_hidden"] = True
    kept.outputs = [] if hidden else list(_outputs(cell))
    return kept


def _outputs(cell: NotebookNode) -> Iterator[NotebookNode]:
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if any(kind.startswith(GLUE_PREFIX) for kind in data):
            continue  # pasted into the text, where it is wanted
        shown = NotebookNode({**output, "metadata": {}} if "metadata" in output else dict(output))
        if "image/png" in data:  # Jupyter doesn't show a stranger's SVG, which could hold a script
            shown.data = {kind: content for kind, content in data.items() if kind != "image/svg+xml"}
        if "text/html" in data:
            shown.data = {**data, "text/html": _motionless(data["text/html"])}
        if "execution_count" in shown:
            shown.execution_count = None
        yield shown


_LATER_FRAME = re.compile(r'<img class="sslbook-frame[^>]* hidden>\n?')
_CONTROL = re.compile(r'<div class="sslbook-slider-control".*?</div>\n', re.DOTALL)
_NOTE = re.compile(r'(<p class="sslbook-slider-note">)[^<]*')
_SIZE = re.compile(r'(<img class="sslbook-frame[^>]*)width="\d+" height="\d+"')
_TO_LEDGER = re.compile(r'<a href="ledger\.html[^"]*">(.*?)</a>', re.DOTALL)


def _motionless(text: str) -> str:
    """HTML without what only a page of the book can move or reach: a slider's other frames, links to the ledger."""
    text = _CONTROL.sub("", _LATER_FRAME.sub("", text))
    text = _NOTE.sub(r"\1Run the cell to move this figure.", text)
    text = _SIZE.sub(r'\1width="580"', text)  # as wide as the other figures
    return _TO_LEDGER.sub(r"\1", text)


# --- copies of them, each of which is its reader's --------------------------------------------------------------------


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a reader's notebook so that `copy_notebooks` can tell whether it is still as it was written."""
    notebook.metadata[RECORD_KEY]["written"] = digest_of(notebook.cells)
    write_text(path, nbformat.writes(notebook))


def copy_notebooks(book: Book, folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy the built notebooks into ``folder``, with a `requirements.txt` for whoever has no `sslbook`.

    Returns the copies, and the files that are left as they were: another one comes in its place only where a copy still is as
    the build wrote it. Raises InputError if the book is not built.
    """
    built = sorted((book.html / NOTEBOOKS).glob("*.ipynb"))
    if not built:
        raise InputError("the notebooks are not built; run: sslbook build")
    folder.mkdir(parents=True, exist_ok=True)
    copies = [folder / path.name for path in built]
    kept = [copy for copy in copies if copy.exists() and not _as_written(copy)]
    for path, copy in zip(built, copies, strict=True):
        if copy not in kept:
            shutil.copy(path, copy)
    by_hand = "# sslbook itself: pip install 'PATH[notebooks]', of a checkout of the book"
    requirement = Repository.read(book.root).requirement or by_hand
    kernel = "ipykernel>=6.29,<7.3  # 7.4 prints a warning whenever a kernel starts"
    shown = "ipywidgets>=8.1,<9\njupyterlab>=4.2,<5\nscikit-learn>=1.4,<2\nseaborn>=0.13.2,<0.14"
    needed, list_ = f"{requirement}\n{kernel}\n{shown}\n", folder / "requirements.txt"
    if list_.exists() and read_text(list_) != needed:
        return copies, [*kept, list_]
    write_text(list_, needed)
    return copies, kept


def _as_written(path: Path) -> bool:
    """Whether a copy has the cells that the build gave it, their outputs too; what can't be read has not."""
    try:
        notebook = nbformat.reads(read_text(path), as_version=4)
        return bool(notebook.metadata[RECORD_KEY]["written"] == digest_of(notebook.cells))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def lab_command(folder: Path) -> list[str]:
    """The command that opens JupyterLab on ``folder``."""
    options = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyter", "lab", f"--notebook-dir={folder}", *options]


# --- a page in pieces of Markdown --------------------------------------------------------------------------------------

MARK = "sslbook-cell"
"""The element that stands in the HTML where a cell begins: ``<sslbook-cell data-cell="7"></sslbook-cell>``."""

_MARKS = re.compile(rf'<({MARK}|{PICTURE}) data-cell="\d+"></\1>\n?')
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
    last = -1

    def visit(parent: nodes.Element) -> None:
        nonlocal last
        for node in list(parent.children):
            if not isinstance(node, nodes.Element) or isinstance(node, (nodes.title, nodes.target, nodes.comment)):
                continue
            if is_code_cell(node):
                last = int(node["cell_index"])
                parent.insert(parent.index(node), _mark(last))
                continue
            # the picture and the set-up have no text of their own
            wrapper = isinstance(node, (nodes.container, HideCodeCellNode))
            lines = (inner.line or 0 for inner in node.findall(nodes.Element) if not wrapper)
            begins = next((line // LINES - 1 for line in lines if line >= LINES), None)
            if begins is not None and begins != last:
                last = begins
                parent.insert(parent.index(node), _mark(begins))
            if next(iter(node.findall(is_code_cell)), None) is not None:
                visit(node)  # a section, the folded set-up, a solution with code

    visit(doctree)


def _mark(cell: int) -> nodes.raw:
    return nodes.raw("", f'<{MARK} data-cell="{cell}"></{MARK}>', format="html")


def without_marks(body: str) -> str:
    """The HTML as it is published."""
    return _MARKS.sub("", body)


def pieces(body: str, links: Links) -> list[Piece]:
    """The pieces of a page's HTML, in order; a code cell is a piece without text, of the kind ``code``."""
    text = _Plain(links).convert(_CODE.sub("", body))
    cuts = list(_CUT.finditer(text))
    found: list[Piece] = []
    current, inside = -1, False
    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        part = text[cut.end() : following.start() if following else len(text)].strip()
        kind, cell = cut[1], int(cut[2] or -1)
        if kind in ("text", "solution", "end"):
            current = cell if kind == "text" else current
            inside = kind == "solution" or (inside and kind == "text")
            sections = [section.strip() for section in part.split("\ue006")]
            found += [_piece("solution" if inside else "text", current, section) for section in sections if section]
        else:
            found.append(_piece(kind, cell, part, inside))
    return found


def _piece(kind: str, cell: int, text: str, folded: bool = False) -> Piece:
    return Piece(kind, cell, _NUMBER.sub(r"\1", text), tuple(match[1] for match in _NUMBER.finditer(text)), folded)


@dataclass(frozen=True)
class Links:
    """Where a link of the page leads in the notebook: ``site`` is the published book's address, if it has one."""

    notebooks: Sequence[str]
    site: str = ""

    def __call__(self, href: str) -> str | None:
        """The address in the notebook of the page's ``href``; None if a notebook can't reach it."""
        if href.startswith(("#", "http://", "https://", "mailto:")):
            return href
        file, hash, fragment = href.partition("#")
        name = file.removesuffix(".html")
        if self.site:
            return f"{self.site.rstrip('/')}/chapters/{file}{hash}{fragment}"
        return f"{name}.ipynb{hash}{fragment}" if name in self.notebooks else None


class _Plain(MarkdownConverter):
    """What the book's HTML has beyond ordinary HTML: formulas, boxes, folded solutions, marks."""

    def __init__(self, links: Links) -> None:
        super().__init__(heading_style=ATX, bullets="-", sub_symbol="<sub>", sup_symbol="<sup>", escape_misc=False)
        self.links = links
        self.cited: dict[str, str] = {}
        self.linked: set[str] = set()

    def convert_soup(self, soup: BeautifulSoup) -> str:
        """The Markdown, with an anchor for whatever a link may lead to: an entry of a list has its own, a table one before it."""
        self.linked = {str(link["href"])[1:] for link in soup.select("a[href^='#']:not(.headerlink)")}
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
        if "solution" in kinds:
            return f"\n\n\ue000solution:\ue001\n\n{anchor}{text.strip()}\n\n\ue000end:\ue001\n\n"
        if "exercise" in kinds:
            return f"\n\n{anchor}{_titled(el, text)}\n\n"
        if "proof-text" in kinds:
            return f"\n\n{anchor}{text.strip()} ∎\n\n"
        if "dropdown" in kinds:
            title = el.find("p", class_="admonition-title")
            return f"\n\n{anchor}{_fold(title.get_text() if title else 'More', text)}"
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
        if el.find(MARK) is not None:
            return text  # the folded set-up
        summary = el.find("summary")
        return _fold(summary.get_text() if summary else "More", text)

    def convert_summary(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return ""

    convert_svg = convert_summary  # the map's drawing; the list beside it says the same

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        box = el.find_parent("div", class_=re.compile("^highlight-"))
        language = "" if box is None else box.get_attribute_list("class")[0].removeprefix("highlight-")
        return f"\n\n```{language.replace('default', '')}\n{el.get_text().strip(chr(10))}\n```\n\n"

    def _caption(self, cell: Tag) -> str:
        """The code cell itself is the executed notebook's; here its figure's caption, which is the page's."""
        words = (self.process_tag(caption, parent_tags=set()) for caption in cell.select("figcaption p"))  # type: ignore[attr-defined]
        captions = [str(one).strip() for one in words]
        anchors = "".join(self._anchor(figure) for figure in cell.select("figure[id]"))
        cut = "" if cell.find_previous_sibling(PICTURE) is not None else "\ue000caption:\ue001\n\n"
        return f"\n\n{cut}{anchors}{' '.join(captions)}\n\n" if captions or anchors else ""

    def _display(self, el: Tag) -> str:
        tag = el.find("span", class_="eqno")
        number = "" if tag is None else tag.get_text().removesuffix("#").strip(" ()")
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
        if "headerlink" in el.get_attribute_list("class"):
            return ""
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
        target = self.links(href)
        return f"[{text}]({target})" if target else text

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


_ARXIV = re.compile(r"(?<!/)\barXiv:(\d{4}\.\d{4,5})")
_LINKED = r"[arXiv:\1](https://arxiv.org/abs/\1)"
_INSIDE = {"caption", "dd", "dt", "li", "td", "th", "tr"}
_AUTOMATIC = re.compile(r"proof\b|check-|exercise-content|solution-content|id\d+$|chapters/")


def _titled(el: Tag, text: str) -> str:
    """A box's text after its title in bold, the number apart from the name: ``**Theorem 2.1** (Covariance operator)``."""
    title = el.find("p", class_="admonition-title")
    words = "" if title is None else _words_of(title)
    number = None if title is None else title.find(class_="caption-number")
    bold = " ".join(number.get_text().split()) if number else words
    rest = words.removeprefix(bold).strip()
    return f"**{bold}**{' ' + rest if rest else ''}\n\n{text.strip()}"


def _words_of(el: Tag) -> str:
    """The text of a title on one line, its formulas in dollars."""
    return re.sub(r"\\\((.*?)\\\)", r"$\1$", " ".join(el.get_text().split()))


def _fold(title: str, text: str) -> str:
    return f"\n\n<details>\n<summary>{title.strip()}</summary>\n\n{text.strip()}\n\n</details>\n\n"
