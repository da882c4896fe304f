"""When an executed chapter is still good: a key over everything that its numbers depend on.

The key covers the chapter's code cells, every module of the library that they reach through import statements, the
records and printed tables that they asked for, the lock file, the versions that compute, the scale, the seed, the kind
of device, whether the downloaded images are there, and what a shell can change (`sslbook.book.kernel`): a processor that stands
in for another, and what ``PYTHONPATH`` adds. Code counts by its syntax tree: a comment or a docstring changes
nothing. Nor does the prose: a changed sentence is put beside the outputs that stand (`sslbook.book.execute`).

What was asked for is known once a chapter has run, and is kept with its key; as long as all else is the same, the same
would be asked for again. A module imported under a name made at run time is not seen; what chapters call has none but
the names that a package promises (`sslbook.exports`), and these are followed through its stub.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sslbook.book import kernel
from sslbook.book.chapters import Chapter, code_cells, parse_cell, tags
from sslbook.book.layout import Book
from sslbook.exports import homes
from sslbook.records import data_files

COMPUTES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "ipython", "ipykernel")
"""Distributions whose version can change an output."""

Parts = dict[str, str]


def key_parts(book: Book, chapter: Chapter, *, scale: str, seed: int, device: str) -> Parts:
    """What the outputs of ``chapter`` depend on, as far as it is known before it runs: a readable name, a value or digest.

    ``device`` is the kind that will compute (cpu or cuda), not ``auto``. What the chapter asks for as it runs, records and
    printed tables, joins these by `data_parts`.
    """
    cells = code_cells(chapter.notebook())
    sources = [cell.source for cell in cells]
    parts = {
        "its code": digest(json.dumps([[_cell(c.source), tags(c)] for c in cells]).encode()),
        "the scale": scale,
        "the seed": str(seed),
        "the device": device,
        "Python": platform.python_version(),
        "the downloaded images": _images(),
        "SSLBOOK_THREADS": os.environ.get("SSLBOOK_THREADS", "1"),
        "the processor": " ".join(f"{name}={os.environ[name]}" for name in kernel.PROCESSOR if name in os.environ),
        "PYTHONPATH": " ".join(_importable(folder) for folder in kernel.added_path()),
    }
    for name in COMPUTES:
        parts[f"{name}'s version"] = _version(name)
    for path in imported(sources, book.packages):
        parts[book.shown(path)] = digest(_module(path).encode())
    return parts | data_parts(book, ["requirements.lock"])


def data_parts(book: Book, names: Iterable[str]) -> Parts:
    """The digests of files of the book, by their paths from its folder; one that isn't there is part of the key, too."""
    return {name: data_files.file_digest(book.root / name) for name in names}


def key(parts: Mapping[str, str]) -> str:
    """The content key: one digest over all parts."""
    return digest(json.dumps(dict(parts), sort_keys=True).encode())


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The names of the parts that differ, in the order of ``new``, those that are gone at the end."""
    return [name for name in [*new, *(set(old) - set(new))] if old.get(name) != new.get(name)]


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _meaning(tree: ast.Module) -> str:
    """Code as what it does, without comments and places, and without the words below definitions; empty for none."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [line for line in node.body if not _is_text(line)]
    return ast.dump(tree) if tree.body else ""


def _cell(source: str) -> str:
    """What a cell does; with it whether its last value is shown, which a semicolon decides that the tree lacks."""
    meaning = _meaning(parse_cell(source))
    return meaning + ";" * source.rstrip().endswith(";") if meaning else source


def _module(path: Path) -> str:
    """What a module does: here a bare text shows nothing, but says what the name above it is."""
    tree = ast.parse(path.read_bytes())
    tree.body = [line for line in tree.body if not _is_text(line)]
    return _meaning(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


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
            if path is None:  # a name that a package offers leads to the module that defines it
                waiting.extend(_home(roots[top], prefix, found))
            elif path not in found:
                found.add(path)
                package = prefix if path.name == "__init__.py" else prefix.rpartition(".")[0]
                waiting.extend(_imports(ast.parse(path.read_bytes()), package=package))
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
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"  # import package; package.name


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


def _home(parent: Path, name: str, found: set[Path]) -> Iterator[str]:
    """The module that defines ``name``, where it is ``package.x`` and the package's stub, which joins ``found``, offers ``x``."""
    package, _, attribute = name.rpartition(".")
    stub = parent.joinpath(*package.split("."), "__init__.pyi")
    if package and stub.is_file() and attribute in homes(stub):
        found.add(stub)
        yield homes(stub)[attribute]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _importable(folder: Path) -> str:
    """What lies in a folder that Python can import: modules by name, size and time, packages by name."""
    found = sorted((path.name, path.stat()) for path in folder.glob("*.py"))
    modules = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]
    return digest(json.dumps([modules, sorted(path.parent.name for path in folder.glob("*/__init__.py"))]).encode())


def _images() -> str:
    """The names and sizes of the data sets' files below ``SSLBOOK_DATA``: a chapter takes other images where they are."""
    folder = kernel.variables().get("SSLBOOK_DATA")
    files = sorted(path for path in Path(folder).glob("*/*") if path.is_file()) if folder else []
    listing = [[path.parent.name, path.name, path.stat().st_size] for path in files]
    return digest(json.dumps(listing).encode()) if listing else "none"
