"""Where the book is, and the data files that ship with it: printed tables, recorded runs, the ledger's source."""

from __future__ import annotations

import argparse
import errno
import importlib.resources
import json
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from sslbook._check import InputError

PACKAGE = Path(__file__).resolve().parent
ROOT = "the book's folder (default: the one around the working folder)"
"""What ``--root`` is, for a command's help."""


def _is_book(folder: Path) -> bool:
    return (folder / "_toc.yml").is_file() and (folder / "chapters").is_dir()


def root_of(start: Path | None = None) -> Path | None:
    """The book that ``start`` (default: the working folder) lies in, else the one that this package's source lies in, if any."""
    here = (start or Path.cwd()).resolve()
    return next(filter(_is_book, (here, *here.parents, PACKAGE.parent)), None)


def book_folder(text: str) -> Path:
    """A command's ``--root``; raises what argparse turns into a sentence for a folder without a book."""
    folder = Path(text).resolve()
    if not _is_book(folder):
        raise argparse.ArgumentTypeError(f"{text}: a folder with _toc.yml and chapters/ is needed")
    return folder


def folder() -> Path:
    """`data` of the source tree that this package lies in, else the one that was installed with it."""
    source = PACKAGE.parent / "data"
    if (source / "claims.yml").is_file():  # else it is somebody else's
        return source
    return Path(str(importlib.resources.files("sslchapters.data")))


def printed_file(name: str) -> dict[str, Any]:
    """The numbers of a printed table, as `data/printed/<name>.json` has them; raises ValueError, naming those there are."""
    path = folder() / "printed" / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.json")))
        raise ValueError(f"name must be one of {known}, got {name!r}")
    return json.loads(read_text(path))


def read_text(path: Path) -> str:
    """The text, in UTF-8, of a file; raises InputError, naming it, for what is no such text, and OSError for what is no file.

    Every system's line ends are read as ``\\n``, and a byte order mark in front, as some editors write it, is left out.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for, for ever
        raise OSError(errno.EINVAL, "Not a file", str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8 ({error})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_yaml(path: Path, kind: type) -> Any:
    """What a file of the book holds; raises InputError, naming it, for what is no YAML of a ``kind``, list or dict."""
    import yaml

    text = read_text(path)
    try:
        content = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, kind):
        raise InputError(f"{path}: a {kind.__name__} is needed, and it holds a {type(content).__name__}")
    return content


def read_finite(path: Path) -> Any:
    """What a JSON file holds; raises ValueError for one that is damaged, or has a NaN or an infinity, which JSON lacks."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no finite number")

    return json.loads(read_text(path), parse_constant=refuse)


def require_writable(folder: Path, room: int = 0) -> None:
    """Raise OSError, naming it, where no file of ``room`` bytes can be made in a folder: before the work that it is to hold."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(room))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
