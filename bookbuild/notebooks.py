"""The notebooks that readers open: the executed chapter's cells, and between them the page's text in Markdown and LaTeX.

Nothing is needed to read one but a Jupyter, and nothing to run it but the package, which its first code cell installs. What
the build's own tools need (glued values, records of the execution) is left out.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from bookbuild.execute import digest_of
from bookbuild.layout import Book, Repository, code_cells, number_cells, tags, words
from bookbuild.markdown import Piece, fold
from sslbook._check import InputError
from sslbook._files import write_text
from sslchapters.data_files import read_text
from sslchapters.values import GLUE_PREFIX, HIDDEN_TAGS, RECORD_KEY, ROLES, glue, numbers, pasted, printed, spec

STRICT = "\nstrict = False  # True: a number that is off by more than it may be is an error, at the end"
BESIDE, SUM = "this run's numbers beside those above", "what this run has otherwise, and how many exercises are done"
MOVES = "*Run the cells below: the last of them shows this picture with the slider that moves it.*"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def reader_notebook(
    name: str,
    executed: NotebookNode,
    page: Sequence[Piece],
    requirement: str,
    following: str,
    formats: Mapping[tuple[str, str], str],
) -> NotebookNode:
    """The notebook of the chapter ``name`` for readers, from its executed one and the pieces of its page.

    ``requirement`` is what pip is asked for where the package is missing, ``following`` a link to the next notebook (both may be
    empty), ``formats`` how other pages print its numbers, by chapter and name. Raises ValueError if the page pastes other numbers
    than the source asks for.
    """
    writer = _Writer(name, executed, requirement)
    for piece in page:
        writer.add(piece)
    writer.code(len(executed.cells), folded=False)  # the hidden ones at the end
    writer.this_run()
    said = {asked.name for asked in pasted(words(executed), name) if asked.chapter == name}
    silent = [one for one in numbers(executed) if not (one.criterion.asserts or one.part_of or one.name in said)]
    writer.beside = [
        spec("interval" if one.n else ROLES[0], one.name, formats.get((name, one.name), "g"), writer.glued)
        for one in silent
    ]
    writer.this_run(SUM, "sum_up")
    if following:
        writer.cells.append(new_markdown_cell(f"Next: {following}"))
    if left := [asked.name for asked in writer.asked]:
        raise ValueError(f"{name}: the page lacks the numbers {', '.join(left)}")
    record = executed.metadata.get(RECORD_KEY, {})
    told = {"chapter": name, **{key: record[key] for key in ("source", "scale", "seed") if key in record}}
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}, RECORD_KEY: told}
    return number_cells(NotebookNode(new_notebook(cells=writer.cells, metadata=metadata)))


class _Writer:
    """The cells of a reader's notebook, as the pieces of the page come in.

    The page shows the opening's picture before the code that draws it (`bookbuild.cells`). Here a still picture does, and
    what the opening's numbers are in this run stands below the set-up, where the kernel first knows of them.
    """

    def __init__(self, name: str, executed: NotebookNode, requirement: str) -> None:
        self.name, self.executed = name, executed
        self.first = _asset("install" if requirement else "ask").replace("{requirement}", requirement).rstrip()
        self.cells: list[NotebookNode] = []
        own = {cell.id for cell in code_cells(executed)}
        self.waiting = [i for i, cell in enumerate(executed.cells) if cell.id in own]
        self.glued = glue(executed)
        self.asked = list(pasted(words(executed), name))
        self.beside: list[str] = []  # of texts that no line stands below yet
        self.pictured = -1
        self.last = ""  # kind of text
        self.stage = "before"  # the first code cell; then "set-up", until there is text again; then "open"

    def add(self, piece: Piece) -> None:
        """Write one piece of the page."""
        if piece.kind == "code":
            self.code(piece.cell, folded=piece.folded)
            if self.stage == "open":
                self.this_run()
            return
        if self.stage == "set-up":
            self.stage = "open"
            self.this_run()
        if piece.kind == "picture":
            self.pictured = piece.cell
            self.cells.append(_still(self.executed.cells[piece.cell], piece.text))
        elif piece.kind == "solution":
            title = "Solution, continued" if self.last == "solution" else "Solution"
            self.cells.append(new_markdown_cell(fold(title, piece.text).strip()))
        else:
            self.cells.append(new_markdown_cell(piece.text))
        if piece.kind in ("text", "solution"):
            self.last = piece.kind
        for shown in piece.numbers:
            if not self.asked:
                raise ValueError(f"{self.name}: the page shows the number {shown}, which its source does not paste")
            chapter, name, form, role = self.asked.pop(0)
            if chapter == self.name:  # those of others don't change here
                if (told := printed(role, name, form, self.glued)) != shown:
                    raise ValueError(f"{self.name}: the page shows {shown} where {name} is {told}")
                self.beside.append(spec(role, name, form, self.glued))
        if self.stage == "open" and not piece.text.endswith(":"):  # what leads to code, code follows
            self.this_run()

    def code(self, upto: int, *, folded: bool) -> None:
        """The code cells that are due: those up to the one numbered ``upto``, and those behind it that the page doesn't show.

        Each with what the page shows of its outputs; a cell that the page folds or hides has its source closed.
        """
        if self.stage == "before":
            self.stage = "set-up"
            self.cells.append(_folded(new_code_cell(self.first)))
        while self.waiting:
            of = self.executed.cells[self.waiting[0]]
            names = set(tags(of))
            hidden = HIDDEN_TAGS & names
            if self.waiting[0] > upto and not hidden:
                break
            index = self.waiting.pop(0)
            if "tests-solution" in names:  # by which the book tests one of its own; it is none of a reader's
                continue
            cell = NotebookNode(new_code_cell(of.source + (STRICT if "parameters" in names else "")))
            if names:
                cell.metadata["tags"] = tags(of)
            opening = self.stage == "set-up" and "parameters" not in names
            if folded or hidden or opening or {"hide-input", "remove-input", "hide-cell"} & names:
                _folded(cell)
            if hidden:  # when it is run its output is not for the page either
                cell.metadata["jupyter"]["outputs_hidden"] = True
            elif index != self.pictured:
                cell.outputs = list(_outputs(of))
            self.cells.append(cell)

    def this_run(self, what: str = BESIDE, call: str = "this_run") -> None:
        """The cell that shows this run's values of the numbers in the text above it, if there are any, or at the end a sum."""
        if self.beside or what != BESIDE:
            lines = "".join(f"    {json.dumps(spec, ensure_ascii=False)},\n" for spec in self.beside)
            # the first line is what stands in the bar of a folded cell
            cell = new_code_cell(f"# {what}\n{call}(\n{lines})" if lines else f"# {what}\n{call}()")
            self.cells.append(_folded(cell))
            self.beside = []


def _asset(name: str) -> str:
    """The first cell of a notebook, which installs the library or asks for it, or what all notebooks need, as pip reads it."""
    return (Path(__file__).parent / f"assets/notebooks/{name}.txt").read_text(encoding="utf-8")


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


# What only a page of the book can move or reach: a slider's other frames and control, links to the ledger.
_MOTIONLESS = (
    (re.compile(r'<img class="sslbook-frame[^>]* hidden>\n?'), ""),
    (re.compile(r'<div class="sslbook-slider-control".*?</div>\n', re.DOTALL), ""),
    (re.compile(r'(<p class="sslbook-slider-note">)[^<]*'), r"\1Run the cell to move this figure."),
    (re.compile(r'(<img class="sslbook-frame[^>]*)width="\d+" height="\d+"'), r'\1width="580"'),  # as the other figures
    (re.compile(r'<a href="ledger\.html[^"]*">(.*?)</a>', re.DOTALL), r"\1"),
)


def _outputs(cell: NotebookNode) -> Iterator[NotebookNode]:
    """What a reader's notebook shows of a cell's outputs."""
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if any(kind.startswith(GLUE_PREFIX) for kind in data):
            continue  # pasted into the text, where it is wanted
        shown = NotebookNode({**output, "metadata": {}} if "metadata" in output else dict(output))
        if "image/png" in data:  # Jupyter doesn't show a stranger's SVG, which could hold a script
            shown.data = {kind: content for kind, content in data.items() if kind != "image/svg+xml"}
        if text := data.get("text/html"):
            for pattern, instead in _MOTIONLESS:
                text = pattern.sub(instead, text)
            shown.data = {**data, "text/html": text}
        if "execution_count" in shown:
            shown.execution_count = None
        yield shown


def copy_notebooks(book: Book, folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy the built notebooks into ``folder``, with a `requirements.txt` for whoever has no `sslbook`.

    Returns the copies, and the files that are left as they were: a copy is replaced only where it still is as a build wrote it, by
    the digest in its metadata. Raises InputError if the book is not built.
    """
    built = sorted((book.html / "notebooks").glob("*.ipynb"))
    if not built:
        raise InputError("the notebooks are not built; run: sslbook build")
    requirement = Repository.read(book.root).requirement
    by_hand = "# sslbook itself: pip install 'PATH[notebooks]', of a checkout of the book"
    write_text(folder / "requirements.txt", _asset("requirements").replace("{}", requirement or by_hand))
    copies, kept = [folder / path.name for path in built], []
    for path, copy in zip(built, copies, strict=True):
        try:
            notebook = nbformat.reads(read_text(copy), as_version=4) if copy.exists() else None
            touched = notebook is not None and notebook.metadata[RECORD_KEY]["written"] != digest_of(notebook.cells)
        except (ValueError, KeyError, TypeError, AttributeError):  # another's, or what can't be read
            touched = True
        if touched:
            kept.append(copy)
        else:
            shutil.copy(path, copy)
    return copies, kept


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a reader's notebook so that `copy_notebooks` can tell whether it is still as it was written."""
    notebook.metadata[RECORD_KEY]["written"] = digest_of(notebook.cells)
    write_text(path, nbformat.writes(notebook))


def lab_command(folder: Path) -> list[str]:
    """The command that opens JupyterLab on ``folder``: at the introduction, whose map leads to each chapter."""
    options = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    options.append("--LabApp.default_url=/lab/tree/intro.ipynb")
    return [sys.executable, "-m", "jupyter", "lab", f"--notebook-dir={folder}", *options]
