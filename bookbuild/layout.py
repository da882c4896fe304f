"""Where the book's files lie, where it is published, and its chapters: which there are, and what of them is code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sslbook._check import InputError, unknown
from sslchapters.data_files import read_text, read_yaml, root_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

SOURCE = Path(__file__).resolve().parents[1]
"""The source tree that this package lies in."""
PACKAGES = (SOURCE / "sslbook", SOURCE / "sslchapters")
"""The packages of which a chapter's numbers are made."""


@dataclass(frozen=True)
class Book:
    """The folders of one book.

    ``packages`` are the source packages whose modules decide, beside the chapter itself, what a chapter computes.
    ``out`` is where what is built lies: ``_build`` in the root, if none is given.
    """

    root: Path
    packages: tuple[Path, ...] = PACKAGES
    out: Path | None = None

    @property
    def chapters(self) -> Path:
        """The sources: MyST Markdown, one file a chapter."""
        return self.root / "chapters"

    @property
    def claims(self) -> Path:
        """The ledger's source."""
        return self.root / "data" / "claims.yml"

    @property
    def built(self) -> Path:
        """The folder of all that is built."""
        return self.out or self.root / "_build"

    @property
    def html(self) -> Path:
        """The built pages."""
        return self.built / "html"

    def executed(self, scale: str) -> Path:
        """The folder of the notebooks executed at ``scale``."""
        return self.built / "executed" / scale

    def expected(self, chapter: str, scale: str) -> Path:
        """The file that holds the numbers of ``chapter`` at ``scale``."""
        return self.root / "data" / "expected" / f"{chapter}.{scale}.json"

    def shown(self, path: Path) -> str:
        """``path`` as a message should name it: from the root if it lies below it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def find_book(start: Path | None = None) -> Book:
    """The book that ``start`` (default: the working folder) lies in, else the one that this package's source lies in."""
    if root := root_of(start):
        return Book(root)
    here = (start or Path.cwd()).resolve()
    raise InputError(f"no book in {here} or above it: a folder with _toc.yml and chapters/ is needed (see --root)")


class Repository(NamedTuple):
    """A repository on GitHub, the address of the pages as GitHub publishes them, and what pip is asked for: the package from the
    repository, as its bare name is anybody's. Without one all are empty, and there is no link that would lead to it."""

    url: str = ""
    site: str = ""
    requirement: str = ""

    @classmethod
    def read(cls, folder: Path) -> Repository:
        """What the `_config.yml` in ``folder`` names; raises InputError unless it is ``https://github.com/OWNER/NAME``."""
        url = str((read_yaml(folder / "_config.yml", dict).get("repository") or {}).get("url") or "")
        url = url.rstrip("/").removesuffix(".git")
        if not (found := re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)|", url)):
            raise InputError(f"repository: url: got {url!r}; https://github.com/OWNER/NAME is needed")
        return cls(url, f"https://{found[1].lower()}.github.io/{found[2]}", f"sslbook @ git+{url}") if url else cls()


@dataclass(frozen=True)
class Chapter:
    """One page of the book. ``runs`` says whether it is a notebook with code cells."""

    name: str
    path: Path
    text: str
    runs: bool

    def notebook(self) -> NotebookNode:
        """The page as a notebook without outputs, with cell ids that don't change from one reading to the next."""
        import jupytext  # of the extra `book`: the ledger does without

        return number_cells(jupytext.reads(self.text, fmt="md:myst"))


def find_chapters(book: Book) -> list[Chapter]:
    """Every page in `chapters/`, by name; but the ledger, which the build writes."""
    return [read_chapter(path) for path in sorted(book.chapters.glob("*.md")) if path.stem != "ledger"]


def read_chapter(path: Path) -> Chapter:
    """The page in the file ``path``.

    Raises InputError for a page with code cells but without the Jupytext header, which everyone would read as plain Markdown.
    """
    text = read_text(path)
    header = re.match(r"---\n(.*?)\n---\s*$", text, re.DOTALL | re.MULTILINE)
    runs = re.search(r"^(`{3,}|:{3,})\{code-cell\}", text, re.MULTILINE) is not None
    if runs and (header is None or "format_name: myst" not in header[1]):
        what = "it has code cells but no Jupytext header (format_name: myst), so they would not run"
        raise InputError(f"{path.name}: {what}")
    return Chapter(path.stem, path, text, runs)


@dataclass(frozen=True)
class Setting:
    """What a chapter is run with. ``device`` is cpu or cuda, never auto: what is keyed is what runs."""

    scale: str
    seed: int
    device: str


def choose(chapters: Iterable[Chapter], names: Sequence[str]) -> list[Chapter]:
    """The runnable chapters called ``names`` (all, if none is named); raises InputError for one that isn't there."""
    runnable = {chapter.name: chapter for chapter in chapters if chapter.runs}
    for name in names:
        if name not in runnable:
            raise unknown("chapter", name, runnable)
    return [runnable[name] for name in dict.fromkeys(names)] if names else list(runnable.values())


def words(notebook: Mapping[str, Any]) -> str:
    """The text of a notebook's Markdown cells, however it was read."""
    return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells that the author wrote: the one that sets the parameters left out."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and "injected-parameters" not in tags(cell)]


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def number_cells(notebook: NotebookNode) -> NotebookNode:
    """Give the cells ids by position: Jupytext draws new random ones each time."""
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:03d}"
    return notebook
