"""Files of which nobody sees or is left with half: no reader, no process killed halfway, nor after a power cut."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, check_output

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
        yield path
        path.chmod(0o644)  # mkstemp makes files that only the owner reads
        sync(path)  # before the rename: a name must not reach the disk before its content
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)
    sync(target.parent)  # the rename itself


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed had begun to write in a folder, by the ending :data:`PART`.

    For who holds the folder alone: what another process is writing there would be lost.
    """
    for part in folder.glob(f".*{PART}"):
        part.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write ``text``, in UTF-8, to ``target`` through :func:`atomic`."""
    with atomic(target) as path:
        path.write_bytes(text.encode())


def sync(path: Path) -> None:
    """Bring to the disk what a file holds, or which files a folder has.

    After a power cut a file that was renamed but not synced may have its new name and no content.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


SOURCE = Path(__file__).resolve().parent
"""The folder of this package."""


def runs_folder(given: Path | None = None) -> Path:
    """Where runs lie: the folder given, else what ``SSLBOOK_RUNS`` names, else ``runs`` in the working folder.

    As an absolute path, since a process of a run may have another working folder.
    """
    return Path(given or os.environ.get("SSLBOOK_RUNS", "runs")).expanduser().resolve()


def commit() -> str | None:
    """The commit of the source tree, if there is one and git is here to ask; ends in ``+changes`` if files differ from it.

    ``SSLBOOK_COMMIT`` overrules it, for a copy without its history.  It is the whole hash; of the files,
    only those count that git tracks: a new one that nobody has added yet is no change.
    """
    if given := os.environ.get("SSLBOOK_COMMIT"):
        return given
    head = ask_git("rev-parse", "HEAD")
    return f"{head}+changes" if head and ask_git("status", "--porcelain", "--untracked-files=no") else head


def ask_git(*arguments: str) -> str | None:
    """What git says of the source tree; None where there is no git, or the package is not this repository's own.

    A package that lies deeper in a repository, as in somebody's .venv, or that it doesn't track, isn't: its commit would name
    another program.  Variables of git that a hook sets, which name another repository, are left out.
    """
    env = {name: value for name, value in os.environ.items() if name.startswith("GIT_CONFIG") or name[:4] != "GIT_"}
    asked = (("rev-parse", "--show-prefix"), ("ls-files", "."), arguments)
    ask = partial(check_output, cwd=SOURCE, env=env, text=True, stderr=DEVNULL, timeout=30)
    try:
        prefix, tracked, answer = (ask(["git", *words]).strip() for words in asked)
    except (OSError, SubprocessError):
        return None
    return answer if tracked and prefix in ("", f"{SOURCE.name}/") else None
