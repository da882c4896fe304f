"""Files of which nobody sees or is left with half: no reader, no process killed halfway, nor after a power cut."""

from __future__ import annotations

import errno
import json
import os
import reprlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, check_output
from typing import Any, NoReturn

from sslbook._check import InputError

PART = ".part"
"""How the name ends of a file that is being written; a process that is killed leaves one, with a dot in front."""


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A temporary path beside ``target`` that replaces it when the block ends well, and is removed when it doesn't.

    Makes the folder of ``target`` if it isn't there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=PART)
    os.close(handle)
    path = Path(name)
    try:
        with naming(target):
            yield path
            path.chmod(0o644)  # mkstemp makes files that only the owner reads
            sync(path)  # before the rename: a name must not reach the disk before its content
            path.replace(target)
    finally:
        path.unlink(missing_ok=True)
    sync(target.parent)  # the rename itself


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Let an OSError that names no file, as that of a full disk, name ``place``."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(place)) from None


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed had begun to write in a folder; for who holds it alone."""
    for part in folder.glob(f".*{PART}"):
        part.unlink(missing_ok=True)


def user_path(place: str | Path) -> Path:
    """A path that a person wrote, with ``~`` as a shell reads it; raises InputError where there is no such home folder."""
    try:
        return Path(place).expanduser()
    except RuntimeError:  # neither HOME nor the system's list of users has it
        raise InputError(
            f"{place}: there is no home folder for {Path(place).parts[0]} here; write the whole path"
        ) from None


def require_file(path: Path) -> None:
    """Raise OSError, naming it, for what is no file: a pipe would be waited for, for ever."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not path.is_file():
        raise OSError(errno.EINVAL, "Not a file", str(path))


def read_bytes(path: Path) -> bytes:
    """The content of a file; raises OSError as `require_file` does."""
    require_file(path)
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The text, in UTF-8, of a file, as by `read_bytes`; raises InputError, naming it, for what is no such text.

    Every system's line ends are read as ``\\n``, and a byte order mark in front, as some editors write it, is left out.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8 ({error})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def require_writable(folder: Path, room: int = 0) -> None:
    """Raise OSError, naming it, where no file of ``room`` bytes can be made in a folder: before the work that it is to hold."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(room))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def write_bytes(target: Path, content: bytes) -> None:
    """Write ``content`` to ``target`` through `atomic`."""
    with atomic(target) as path:
        path.write_bytes(content)


def write_text(target: Path, text: str) -> None:
    """Write ``text``, in UTF-8, to ``target`` through `atomic`."""
    write_bytes(target, text.encode())


def read_finite(path: Path) -> Any:
    """What a JSON file holds; raises ValueError for one that is damaged, or has a NaN or an infinity, which JSON lacks."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no finite number")

    return json.loads(read_text(path), parse_constant=refuse)


def require_parts(held: Any, kinds: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise ValueError unless what a file holds has each part, and of its kind; TypeError where it can have no parts.

    A truth value is no number.
    """
    for name, kind in kinds.items():
        if name not in held:
            raise ValueError(f"its {name} is missing")
        if not isinstance(held[name], kind) or isinstance(held[name], bool):
            raise ValueError(f"its {name} is {reprlib.repr(held[name])}")


def sync(path: Path) -> None:
    """Bring to the disk what a file holds, or which files a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


SOURCE = Path(__file__).resolve().parent
"""The folder of this package."""


def runs_folder(given: Path | None = None) -> Path:
    """Where runs lie: the folder given, else what ``SSLBOOK_RUNS`` names, else ``runs`` in the working folder."""
    return user_path(given or os.environ.get("SSLBOOK_RUNS", "runs")).resolve()


def commit() -> str | None:
    """The commit of the source tree, if there is one and git is here to ask; ends in ``+changes`` if files differ from it.

    ``SSLBOOK_COMMIT`` overrules it, for a copy without its history.
    """
    if given := os.environ.get("SSLBOOK_COMMIT"):
        return given
    head = ask_git("rev-parse", "HEAD")
    return f"{head}+changes" if head and ask_git("status", "--porcelain", "--untracked-files=no") else head


def ask_git(*arguments: str) -> str | None:
    """What git says of the source tree; None for a package that lies deeper in a repository, or untracked: that one isn't ours."""
    env = {name: value for name, value in os.environ.items() if name.startswith("GIT_CONFIG") or name[:4] != "GIT_"}
    asked = (("rev-parse", "--show-prefix"), ("ls-files", "."), arguments)
    ask = partial(check_output, cwd=SOURCE, env=env, text=True, stderr=DEVNULL, timeout=30)
    try:
        prefix, tracked, answer = (ask(["git", *words]).strip() for words in asked)
    except (OSError, SubprocessError):
        return None
    return answer if tracked and prefix in ("", f"{SOURCE.name}/") else None
