"""When an executed chapter is still good: a key over everything that its numbers depend on.

The key covers the chapter's code cells, every module of the library that they reach through import statements, the
recorded results, the lock file, the versions that compute, the scale, the seed, the kind of device, and whether the
downloaded images are there. The prose is not in it: a changed sentence is put beside the outputs that stand
(`sslbook.book.execute`). A module imported under a name made at run time is not seen; the library has none.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from sslbook.book.chapters import Chapter, code_cells, parse_cell, tags
from sslbook.book.layout import Book

COMPUTES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "ipython", "ipykernel")
"""Distributions whose version can change an output."""

Parts = dict[str, str]


def key_parts(book: Book, chapter: Chapter, *, scale: str, seed: int, device: str) -> Parts:
    """What the outputs of ``chapter`` depend on: a readable name and the value or digest of each part.

    ``device`` is the kind that will compute (cpu or cuda), not ``auto``.
    """
    cells = code_cells(chapter.notebook())
    sources = [cell.source for cell in cells]
    parts = {
        "its code": digest(json.dumps([[cell.source, tags(cell)] for cell in cells]).encode()),
        "the scale": scale,
        "the seed": str(seed),
        "the device": device,
        "Python": platform.python_version(),
        "the downloaded images": _images(),
        "SSLBOOK_THREADS": os.environ.get("SSLBOOK_THREADS", "1"),
    }
    for name in COMPUTES:
        parts[f"{name}'s version"] = _version(name)
    for path in imported(sources, book.packages):
        parts[book.shown(path)] = digest(path.read_bytes())
    for path in sorted([*book.results.glob("*.json"), book.root / "requirements.lock"]):
        if path.is_file():
            parts[book.shown(path)] = digest(path.read_bytes())
    return parts


def key(parts: Mapping[str, str]) -> str:
    """The content key: one digest over all parts."""
    return digest(json.dumps(dict(parts), sort_keys=True).encode())


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The names of the parts that differ, in the order of ``new``, those that are gone at the end."""
    return [name for name in [*new, *(set(old) - set(new))] if old.get(name) != new.get(name)]


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def imported(sources: list[str], packages: tuple[Path, ...]) -> list[Path]:
    """The files of ``packages`` that the cells ``sources`` import, directly or through one another.

    Every import statement counts, wherever it stands (in a function, under ``TYPE_CHECKING``); so do the
    ``__init__.py`` above an imported module, since Python runs them.
    """
    waiting = [module for source in sources for module in _imports(parse_cell(source), package="")]
    roots = {package.name: package.parent for package in packages}
    found: set[Path] = set()
    while waiting:
        module = waiting.pop()
        top = module.partition(".")[0]
        if top not in roots:
            continue
        for prefix in _prefixes(module):
            path = _file(roots[top], prefix)
            if path is not None and path not in found:
                found.add(path)
                package = prefix if path.name == "__init__.py" else prefix.rpartition(".")[0]
                waiting.extend(_imports(ast.parse(path.read_text(encoding="utf-8")), package=package))
    return sorted(found)


def _imports(tree: ast.AST, *, package: str) -> Iterator[str]:
    """The absolute names of what ``tree`` imports; of ``from a import b`` both ``a`` and ``a.b``, which may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _prefixes(module: str) -> list[str]:
    """``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    names = module.split(".")
    return [".".join(names[: i + 1]) for i in range(len(names))]


def _file(parent: Path, module: str) -> Path | None:
    """The source file of ``module``, or None if the name is not a module but something inside one."""
    stem = parent.joinpath(*module.split("."))
    for path in (stem / "__init__.py", stem.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _images() -> str:
    """The names and sizes of the data sets' files below ``SSLBOOK_DATA``: a chapter takes other images where they are."""
    folder = os.environ.get("SSLBOOK_DATA")
    files = sorted(path for path in Path(folder).glob("*/*") if path.is_file()) if folder else []
    listing = [[path.parent.name, path.name, path.stat().st_size] for path in files]
    return digest(json.dumps(listing).encode()) if listing else "none"
