"""The data files that ship with the package: printed tables, recorded runs, the ledger's source."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, check_output
from typing import Any

from sslbook.runtime.atomic_io import read_text

PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """`data` of the source tree that this package lies in, else the one that was installed with it."""
    source = PACKAGE.parent / "data"
    if (source / "claims.yml").is_file():  # else it is somebody else's
        return source
    return Path(str(importlib.resources.files("sslbook.data")))


def printed_file(name: str) -> dict[str, Any]:
    """The numbers of a printed table, as `data/printed/<name>.json` has them; raises ValueError, naming those there are."""
    path = folder() / "printed" / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.json")))
        raise ValueError(f"name must be one of {known}, got {name!r}")
    content: dict[str, Any] = json.loads(read_text(path))
    return content


def commit() -> str | None:
    """The commit of the source tree, if there is one and git is here to ask; ends in ``+changes`` if files differ from it.

    ``SSLBOOK_COMMIT`` overrules it, for a copy without its history.
    """
    if given := os.environ.get("SSLBOOK_COMMIT"):
        return given
    head = _git("rev-parse", "HEAD")
    return f"{head}+changes" if head and _git("status", "--porcelain", "--untracked-files=no") else head


def changed_since(commit: str) -> bool | None:
    """Whether a file of the package differs from a commit; None where the commit, or git, is not here."""
    names = _git("diff", "--name-only", commit, "--", ".") if commit else None
    return None if names is None else bool(names)


def _git(*arguments: str) -> str | None:
    """What git says of the source tree; None for a package that lies deeper in a repository, or untracked: that one isn't ours."""
    env = {name: value for name, value in os.environ.items() if re.match("GIT_(?!CONFIG)", name) is None}
    asked = (("rev-parse", "--show-prefix"), ("ls-files", "."), arguments)
    ask = partial(check_output, cwd=PACKAGE, env=env, text=True, stderr=DEVNULL, timeout=30)
    try:
        prefix, tracked, answer = (ask(["git", *words]).strip() for words in asked)
    except (OSError, SubprocessError):
        return None
    return answer if tracked and prefix in ("", f"{PACKAGE.name}/") else None
