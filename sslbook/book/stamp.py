"""Whether the built pages still are what their inputs give: if so, rendering and checking them again would change nothing."""

from __future__ import annotations

import ast
import json
from importlib.metadata import distributions
from pathlib import Path

from sslbook.book.cache import digest
from sslbook.book.layout import PACKAGE, Book
from sslbook.exports import homes
from sslbook.runtime.atomic_io import read_text, write_text


def fingerprint(book: Book, scale: str, generated: dict[str, str]) -> str:
    """A digest of what the pages are made of: notebooks, sources, configuration, generated pages, the renderer, its packages,
    the functions that theorems name, and the definitions of the names that the library promises, with their docstrings.
    """
    files = [
        book.root / "_config.yml",
        book.root / "_toc.yml",
        book.root / "data/functions.yml",
        *book.notebooks(scale),
    ]
    for folder in (book.chapters, PACKAGE / "book"):
        files += sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    content = {str(path): digest(path.read_bytes()) for path in files if path.is_file()}
    packages = sorted({f"{d.name} {d.version}" for d in distributions()})
    return digest(json.dumps([content, generated, packages, _promised()], sort_keys=True).encode())


def _promised() -> list[str]:
    """The definitions that the page of the library is made of."""
    found = []
    for name, module in sorted(homes(PACKAGE / "__init__.pyi").items()):
        path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        nodes = ast.parse(path.read_bytes()).body
        found += [ast.dump(node) for node in nodes if getattr(node, "name", None) == name]
    return found


def is_current(book: Book, mark: str) -> bool:
    """Whether the pages were built from what ``mark`` stands for, passed their checks, and lie there untouched."""
    try:
        return bool(json.loads(read_text(_file(book))) == {"inputs": mark, "pages": _listing(book)})
    except (OSError, ValueError):
        return False


def set_current(book: Book, mark: str) -> None:
    """Remember that the pages, as they lie there, are good."""
    write_text(_file(book), json.dumps({"inputs": mark, "pages": _listing(book)}))


def _file(book: Book) -> Path:
    return book.html.with_suffix(".stamp.json")


def _listing(book: Book) -> str:
    """A digest of the names, sizes and times of the built files."""
    files = [(str(path.relative_to(book.html)), path.stat()) for path in sorted(book.html.rglob("*")) if path.is_file()]
    return digest(json.dumps([[name, stat.st_size, stat.st_mtime_ns] for name, stat in files]).encode())
