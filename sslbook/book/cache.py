"""When what was built is still good: what a chapter's numbers depend on, and a mark of what the pages are made of.

A chapter depends on its code cells, every module of the library that they reach through import statements, all recorded runs
and printed tables, the lock file, the versions that compute, the scale, the seed, the kind of device, whether the downloaded
images are there, and what a shell can change (`sslbook.book.kernel`): a processor that stands in for another, and what
``PYTHONPATH`` adds. A module counts by its syntax tree: a comment or a docstring changes nothing. Nor does the prose: a changed
sentence is put beside the outputs that stand (`sslbook.book.execute`).

A module imported under a name made at run time is not seen; what chapters call has none but the names that a package promises
(`sslbook.exports`), and these are followed through its stub.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions, version
from pathlib import Path

from sslbook.book import kernel
from sslbook.book.layout import PACKAGE, Book, Chapter, code_cells, parse_cell, tags
from sslbook.exports import homes
from sslbook.runtime.atomic_io import read_text, write_text

COMPUTES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "ipython", "ipykernel")
"""Distributions whose version can change an output."""


def key_parts(book: Book, chapter: Chapter, *, scale: str, seed: int, device: str) -> dict[str, str]:
    """What the outputs of ``chapter`` depend on: a readable name, and a value or digest.

    ``device`` is the kind that will compute (cpu or cuda), not ``auto``.
    """
    cells = code_cells(chapter.notebook())
    records = sorted((*book.results.glob("*.json"), *book.results.with_name("printed").glob("*.json")))
    return {
        "its code": digest_of([[_cell(cell.source), tags(cell)] for cell in cells]),
        "the scale": scale,
        "the seed": str(seed),
        "the device": device,
        "Python": platform.python_version(),
        **{f"{name}'s version": version(name) for name in COMPUTES},
        "the downloaded images": _images(kernel.variables().get("SSLBOOK_DATA")),
        "SSLBOOK_THREADS": os.environ.get("SSLBOOK_THREADS", "1"),
        "the processor": " ".join(f"{name}={os.environ[name]}" for name in kernel.PROCESSOR if name in os.environ),
        "PYTHONPATH": " ".join(_listing(folder, "*.py", "*/__init__.py") for folder in kernel.added_path()),
        "the lock file": _content([book.root / "requirements.lock"]),
        "recorded runs and printed tables": _content(records),
        **{book.shown(path): does for path, does in reached([cell.source for cell in cells], book.packages).items()},
    }


def reached(sources: Iterable[str], packages: Iterable[Path]) -> dict[Path, str]:
    """The modules of ``packages`` that the cells ``sources`` import, directly or through one another, and digests of their code.

    Every import statement counts, wherever it stands (in a function, under ``TYPE_CHECKING``); so do the ``__init__.py`` above
    an imported module, since Python runs them. In a package a module is imported by its whole name.
    """
    modules = {}
    for package in packages:
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            modules[".".join(parts).removesuffix(".__init__")] = path
    found: dict[Path, str] = {}
    seen: set[str] = set()
    waiting = [name for source in sources for name in _imports(parse_cell(source))]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        above, _, offered = name.rpartition(".")
        if name in modules:
            names, found[modules[name]] = _module(modules[name].read_bytes())
            waiting += names
        elif above in modules and (stub := modules[above].with_suffix(".pyi")).is_file() and offered in homes(stub):
            waiting.append(homes(stub)[offered])  # a name that a package offers leads to the module that defines it
        if above:
            waiting.append(above)
    return found


@functools.cache
def _module(code: bytes) -> tuple[tuple[str, ...], str]:
    """What a module imports, and a digest of what it does: its syntax tree without the words below definitions."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [
                line for line in node.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ]
    return tuple(_imports(tree)), digest(ast.dump(tree).encode())


def _imports(tree: ast.AST) -> Iterator[str]:
    """The names of what ``tree`` imports; of ``from a import b`` both ``a`` and ``a.b``, which may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"  # import package; package.name


def _cell(source: str) -> str:
    """What a cell does; with it whether its last value is shown, which a semicolon decides that the tree lacks."""
    tree = parse_cell(source)
    return ast.dump(tree) + ";" * source.rstrip().endswith(";") if tree.body else source


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of what JSON can hold."""
    return digest(json.dumps(value, sort_keys=True).encode())


def _content(files: Iterable[Path]) -> str:
    """A digest of the names and contents of files, as far as they are there."""
    return digest_of([[path.name, digest(path.read_bytes())] for path in files if path.is_file()])


def _listing(folder: Path, *patterns: str) -> str:
    """A digest of the names, sizes and times of a folder's files."""
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    return digest_of([[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files])


def _images(folder: str | None) -> str:
    """The names and sizes of the data sets' files: a chapter takes other images where they are."""
    files = sorted(path for path in Path(folder).glob("*/*") if path.is_file()) if folder else []
    return digest_of([[path.parent.name, path.name, path.stat().st_size] for path in files])


def pages_mark(book: Book, scale: str, generated: dict[str, str]) -> str:
    """A digest of what the pages are made of: notebooks, sources, configuration, generated pages, all packages."""
    files = [*(book.root / name for name in ("_config.yml", "_toc.yml", "data/functions.yml")), *book.notebooks(scale)]
    for folder in (book.chapters, PACKAGE):
        files += sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return digest_of([_content(files), generated, sorted({f"{d.name} {d.version}" for d in distributions()})])


def pages_are(book: Book, mark: str) -> bool:
    """Whether the pages were built from what ``mark`` stands for, passed their checks, and lie there untouched."""
    try:
        return bool(json.loads(read_text(_stamp(book))) == {"inputs": mark, "pages": _listing(book.html, "**/*")})
    except (OSError, ValueError):
        return False


def stamp_pages(book: Book, mark: str) -> None:
    """Remember that the pages, as they lie there, are good."""
    write_text(_stamp(book), json.dumps({"inputs": mark, "pages": _listing(book.html, "**/*")}))


def _stamp(book: Book) -> Path:
    return book.html.with_suffix(".stamp.json")
