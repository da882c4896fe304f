"""The notebooks that readers open: the executed chapter's cells, and between them the page's text in Markdown and LaTeX.

Nothing is needed to read one but a Jupyter, and nothing to run it but the package, which its first code cell installs. What
the build's own tools need (glued values, papermill's records) is left out.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from sslbook.book.execute import digest_of
from sslbook.book.layout import Book, Repository, code_cells, number_cells, tags
from sslbook.book.plain import Piece
from sslbook.book.values import GLUE_PREFIX, HIDDEN_TAGS, RECORD_KEY, glue, pasted, printed, spec
from sslbook.runtime.arguments import InputError
from sslbook.runtime.atomic_io import read_text, write_text

NOTEBOOKS = "notebooks"
"""The folder of the built book that holds them."""
_MARK = "written"
_INSTALL = """\
# Run this first: where the book's library is missing, it installs it.
try:
    from sslbook.book import this_run
    import seaborn, sklearn
except ImportError:
    print("Installing sslbook, once …")
    %pip install --quiet "{requirement}" scikit-learn seaborn
    from sslbook.book import this_run  # if this fails: pip install '.[notebooks]' in a copy of the book, then restart the kernel
"""
_ASK = """\
# Run this first: where the book's library is missing, it says how to get it.
try:
    from sslbook.book import this_run
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

    The page shows the opening's picture before the code that draws it (`sslbook.book.cells`). Here a still picture does, and
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
    notebook.metadata[RECORD_KEY][_MARK] = digest_of(notebook.cells)
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
        return bool(notebook.metadata[RECORD_KEY][_MARK] == digest_of(notebook.cells))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def lab_command(folder: Path) -> list[str]:
    """The command that opens JupyterLab on ``folder``."""
    options = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyter", "lab", f"--notebook-dir={folder}", *options]
