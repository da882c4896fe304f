"""The readers' notebooks in JupyterLab, and the way back: what is edited and saved there changes the chapter's source.

A notebook shows the text as the page has it, and the source has roles and directives where the notebook has words. So an edit
is carried over as version control carries one from a branch to another, word by word: by a merge of the text as it was written,
the text as it was saved, and the source. What stands for a role or a directive can't be edited in the notebook;
the hook says which words these were, and leaves the source of that cell as it is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from sslbook.arguments import InputError
from sslbook.book.chapters import Chapter
from sslbook.book.layout import Book, find_book
from sslbook.book.notebooks import made, origin
from sslbook.book.repository import Repository
from sslbook.book.sphinx_ext import NOTEBOOKS
from sslbook.files import write_text

WRITTEN = ".written"
"""The folder beside the notebooks that keeps them, and their chapters' sources, as they were when the notebooks were written."""

_HEADER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_short = partial(textwrap.shorten, width=62, placeholder=" …")
_TOKEN = re.compile(r"\s+|\w+|[^\w\s]")


def copy_notebooks(book: Book, folder: Path) -> list[Path]:
    """Copy the built notebooks into ``folder``, with a `requirements.txt` for whoever has no `sslbook`; returns the notebooks.

    Raises InputError if the book is not built.
    """
    built = sorted((book.html / NOTEBOOKS).glob("*.ipynb"))
    if not built:
        raise InputError("the notebooks are not built; run: sslbook build")
    folder.mkdir(parents=True, exist_ok=True)
    copied = [Path(shutil.copy(path, folder / path.name)) for path in built]
    requirement = Repository.read(book.root).requirement.strip('"')
    kernel = "ipykernel>=6.29,<7.3  # 7.4 prints a warning whenever a kernel starts"
    write_text(folder / "requirements.txt", f"{requirement}\n{kernel}\nipywidgets>=8.1,<9\njupyterlab>=4.2,<5\n")
    return copied


def lay_out(book: Book) -> Path:
    """Put fresh copies of the notebooks into `_build/lab`, and what `saved` compares them with; returns that folder."""
    folder = book.built / "lab"
    copy_notebooks(book, folder)
    for path in copy_notebooks(book, folder / WRITTEN):
        source = (book.chapters / f"{path.stem}.md").read_text(encoding="utf-8")
        _Kept(source, source, []).write(path)
    return folder


@dataclass
class _Kept:
    """A chapter's ``source`` when its notebook was written, what the last save made of it, and the edits refused so far."""

    source: str
    last: str
    refused: list[str]

    @classmethod
    def read(cls, written: Path) -> _Kept:
        return cls(**json.loads(written.with_suffix(".json").read_text(encoding="utf-8")))

    def write(self, written: Path) -> None:
        write_text(written.with_suffix(".json"), json.dumps(asdict(self), ensure_ascii=False))


def start(book: Book, arguments: Sequence[str]) -> int:
    """Open JupyterLab on fresh copies of the notebooks, in `_build/lab`; returns its exit status when it is closed."""
    folder = lay_out(book)
    options = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    environment = {**os.environ, "SSLBOOK_ROOT": str(book.root)}
    return subprocess.run([*command(folder), *options, *arguments], env=environment, check=False).returncode


def command(folder: Path) -> list[str]:
    """The command that opens JupyterLab on ``folder``, with the hook; ``SSLBOOK_ROOT`` tells that where the book is."""
    hook = "--FileContentsManager.post_save_hook=sslbook.book.lab.saved"
    return [sys.executable, "-m", "jupyter", "lab", f"--notebook-dir={folder}", hook]


def saved(model: dict[str, Any], os_path: str, contents_manager: Any, **_: Any) -> None:
    """Jupyter's hook after a file is saved: carry what was edited in a chapter's notebook into the chapter's source.

    Whatever was saved before, the edits are those since the notebook was written, and go into the source as it was then.
    Raises InputError, which JupyterLab shows, if the source was changed elsewhere in the meantime, and once for each edit that
    can't be carried over.
    """
    path = Path(os_path)
    written = path.parent / WRITTEN / path.name
    if model.get("type") != "notebook" or not written.exists():
        return
    book = find_book(Path(os.environ["SSLBOOK_ROOT"]))
    file = book.chapters / f"{path.stem}.md"
    kept, shown = _Kept.read(written), book.shown(file)
    before, after = (nbformat.read(p, as_version=4) for p in (written, path))
    text, refused = carried(Chapter(path.stem, file, kept.source, runs=True), before, after)
    if text != kept.last:
        if file.read_text(encoding="utf-8") != kept.last:
            raise InputError(
                f"{shown} was changed elsewhere since the notebook was written, and stays as it is; run: make lab"
            )
        write_text(file, text)
        contents_manager.log.info("%s: changed by what was edited in the notebook", shown)
    new = [problem for problem in refused if problem not in kept.refused]
    _Kept(kept.source, text, refused).write(written)
    if new:
        raise InputError(f"{shown} was not changed where the notebook says: {'; '.join(new)}")


def carried(chapter: Chapter, before: NotebookNode, after: NotebookNode) -> tuple[str, list[str]]:
    """The text of ``chapter`` after the edits that lead from ``before`` to ``after``, and the edits that it can't take.

    ``before`` is the notebook that was written from that text. Cells that are gone go, and new ones stand behind the one that
    they follow; cells that were moved or became of another kind are refused. Without an edit the text comes back as it was,
    byte for byte.
    """
    source = chapter.notebook()
    old, new = _by_place(before), _by_place(after)
    refused = _refused_of_made(before, after)
    if [place for place in old if place in new] != [place for place in new if place in old]:
        refused.append("cells were moved; move them there")
    changed = False
    cells: list[NotebookNode] = []
    added = _added(after)
    for place, cell in enumerate(source.cells):
        if place in old and place not in new:
            changed = True
        else:
            if any(ours.cell_type != cell.cell_type for ours in new.get(place, ())):
                refused.append(f"“{_short(cell.source)}” became a cell of another kind")
            elif place in old and (ours := [c.source for c in new[place]]) != (
                theirs := [c.source for c in old[place]]
            ):
                merged, problem = (
                    ("\n\n".join(ours), "")
                    if cell.cell_type == "code"
                    else _merged(_unfolded(theirs), _unfolded(ours), cell.source)
                )
                refused += [problem] if problem else []
                changed = changed or merged != cell.source
                cell.source = merged
            cells.append(cell)
        for extra in added.get(place, []):
            changed = True
            cells.append(extra)
    if not changed:
        return chapter.text, refused
    source.cells = [*added.get(-1, []), *cells]
    text = _HEADER.sub("", jupytext.writes(source, fmt="md:myst"))  # Jupytext adds its version to the header
    return "".join(match[0] for match in _HEADER.finditer(chapter.text)) + text, refused


def _by_place(notebook: NotebookNode) -> dict[int, list[NotebookNode]]:
    """The cells of a notebook by the cell of the source that they show."""
    found: dict[int, list[NotebookNode]] = {}
    for cell in notebook.cells:
        if (place := origin(cell)) is not None:
            found.setdefault(place, []).append(cell)
    return found


def _added(notebook: NotebookNode) -> dict[int, list[NotebookNode]]:
    """The reader's own cells, by the cell of the source that they follow (-1: none); empty ones are none."""
    found: dict[int, list[NotebookNode]] = {}
    place = -1
    for cell in notebook.cells:
        if origin(cell) is not None:
            place = max(place, origin(cell) or 0)
        elif not made(cell) and cell.source.strip():
            kept = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
            found.setdefault(place, []).append(kept(cell.source))
    return found


def _refused_of_made(before: NotebookNode, after: NotebookNode) -> list[str]:
    """Edits of what the build made: captions and references, whose words stand elsewhere."""
    old = {cell.id: cell.source for cell in before.cells if made(cell)}
    return [
        f"“{_short(cell.source)}” is not text of its own there"
        for cell in after.cells
        if made(cell) and old.get(cell.id, cell.source) != cell.source
    ]


def _unfolded(texts: Sequence[str]) -> str:
    """The texts that one cell of the source has become, in one; without the tags that fold a solution."""
    return re.sub(r"</?details>|<summary>Solution(, continued)?</summary>", "", "\n\n".join(texts))


def _merged(before: str, after: str, source: str) -> tuple[str, str]:
    """``source`` with the edits from ``before`` to ``after``; and if it can't have them all, a sentence, and it stays as it is."""
    old, new, words = (_TOKEN.findall(text) for text in (before, after, source))
    at = {
        block.a + k: block.b + k
        for block in SequenceMatcher(None, old, words, autojunk=False).get_matching_blocks()
        for k in range(block.size)
    }
    edits = []
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if j > i:  # these words go: they must stand in the source, side by side
            first, last = at.get(i, -1), at.get(j - 1, -1)
            known = first >= 0 and [at.get(t) for t in range(i, j)] == list(range(first, last + 1))
        else:  # nothing goes: the source must have the word before, or the one behind
            first = at[i - 1] + 1 if i - 1 in at else at.get(i, -1)
            last, known = first - 1, first >= 0
        if not known:
            lost = "".join(old[i:j]).strip() or "".join(new[k:m]).strip()
            return source, f"at “{_short(lost)}” the source has a role or a directive; edit it there"
        edits.append((first, last + 1, new[k:m]))
    for first, end, put in reversed(edits):
        words[first:end] = put
    return "".join(words), ""
