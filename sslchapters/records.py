"""Recorded full-size runs: numbers that took a GPU or an hour, with where they come from.

A record is one file, `data/results/<name>.json`. A function gives the numbers, and the command that called it writes
them (`save_record`); chapters show them (`recorded`) beside the paper's numbers and the live quick run, labelled as what
they are. None is ever filled in by hand.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sslbook._check import InputError, counted, plain, require_whole, unknown
from sslbook._files import ask_git, runs_folder, write_text
from sslbook._files import commit as source_commit
from sslbook._machine import device_name
from sslchapters import data_files


@dataclass(frozen=True)
class Provenance:
    """Provenance tells where recorded numbers come from; ``commit`` ends in ``+changes`` if the code had uncommitted changes."""

    hardware: str
    versions: Mapping[str, str]
    commit: str | None
    seeds: tuple[int, ...]
    seconds: float
    command: str
    date: str

    def __str__(self) -> str:
        """Return two lines for a caption: when, where and how long; then the command, long lists of seeds cut, and its commit."""
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        torch = f"torch {self.versions.get('torch', '?')}"
        facts = f"{self.date}, {self.hardware}, {torch}, {seeds}, {self.seconds:,.0f} s"
        command = re.sub(r"(\d+)(?: \d+){8,} (\d+)", r"\1 … \2", self.command)
        return f"{facts}\n  {command}  (commit {self._short_commit()})"

    def differences(self) -> list[str]:
        """Return a sentence for each version that differs on this machine, and one if the code was changed after the record."""
        here = versions()
        found = [
            f"{name} was {was}, and is {here[name]}"
            for name, was in self.versions.items()
            if here.get(name, was) != was
        ]
        commit = (self.commit or "").partition("+")[0]
        changed = ask_git("diff", "--name-only", commit, "--", "../sslbook", "../sslchapters") if commit else None
        if changed is None:
            return [*found, f"whether the code has changed since commit {self._short_commit()} can't be told here"]
        return [*found, *([f"the library has changed since commit {self._short_commit()}"] if changed else [])]

    def _short_commit(self) -> str:
        commit, plus, changes = (self.commit or "unknown").partition("+")
        return commit[:10] + (f", with {changes}" if plus else "")


@dataclass(frozen=True)
class Record:
    """A record holds named numbers, or nested lists and mappings of numbers, and their `Provenance`."""

    name: str
    values: Mapping[str, Any]
    provenance: Provenance

    def __repr__(self) -> str:
        return f"Record({self.name!r}; {counted(len(self.values), 'value')}: {reprlib.repr(list(self.values))})"

    def __getitem__(self, key: str) -> Any:
        """Return ``record["accuracy"]``; raises InputError, a ValueError, with the nearest names if there is none."""
        if key not in self.values:
            raise unknown(f"value of the record {self.name!r}", key, self.values)
        return self.values[key]

    def ran(self, part: str) -> Any:
        """What was run: ``"seeds"``, their number; a value of the record, of ``"epochs"`` the last; or what its settings share.

        Raises InputError, a ValueError, for what is none of these, or differs between its runs.
        """
        if part == "seeds":
            return len(self.provenance.seeds)
        if part in self.values:
            return max(self.values[part]) if isinstance(self.values[part], list) else self.values[part]
        shared = {run.get(part) for run in self.values.get("settings", {}).values()}
        if len(shared) != 1 or None in shared:
            raise InputError(f"the record {self.name!r} says no {part!r} that all of its runs share")
        return shared.pop()


def results_folder() -> Path:
    """`data/results` of the source tree that this package lies in, else the one that was installed with it."""
    return data_files.folder() / "results"


def require_source_tree() -> None:
    """Raise InputError where `data/results` belongs to an installed package, into which nothing is recorded."""
    if (folder := results_folder()).resolve().is_relative_to(data_files.PACKAGE):
        raise InputError(f"{folder} is of an installed package; to record, run sslbook in a copy of the repository")


def path_of(name: str, folder: Path | None = None) -> Path:
    """The file of the record ``name``, which may not be there; raises ValueError for a name that is no file name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(f"name: got {name!r}; allowed are letters, digits, '-', '_' and '.'")
    return (folder or results_folder()) / f"{name}.json"


def recorded(name: str, *, folder: Path | None = None) -> Record:
    """Return the record ``name``; raises InputError (a ValueError) if it is missing, ValueError if it is damaged."""
    path = path_of(name, folder)
    if not path.is_file():
        raise unknown("recorded run", name, (p.stem for p in path.parent.glob("*.json")))
    try:
        content = data_files.read_finite(path)
        origin = content["provenance"]
        seeds = tuple(require_whole("a seed", seed) for seed in origin["seeds"])
        return Record(name, {**content["values"]}, Provenance(**origin | {"seeds": seeds}))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not a recorded run ({error})") from None


def parts_folder() -> Path:
    """Where finished parts of records wait for the rest, so that recording goes on where it was stopped.

    A folder below `runs_folder` for each commit: parts that other code made are not taken. Raises InputError where the tree has
    changes, or no commit: then nobody could say what made a part.
    """
    commit = source_commit()
    if commit is None or "+" in commit:
        raise InputError(f"parts of a record are kept for a commit alone, and this tree is at {commit or 'none'}")
    return runs_folder() / "recorded" / commit[:10]


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A part of a record from its file, or made, and written there; raises ValueError, naming the file, if it is damaged."""
    if not path.is_file():
        write_text(path, json.dumps(plain(make()), allow_nan=False) + "\n")
    try:
        return {**data_files.read_finite(path)}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not a part of a record ({error}); remove it, and it is made again") from None


def save_record(
    name: str,
    values: Mapping[str, Any],
    *,
    seeds: Sequence[int],
    seconds: float,
    command: str | None = None,
    folder: Path | None = None,
) -> Path:
    """Write the record ``name``, atomically, and return its file.

    ``values`` holds numbers, strings, and lists or mappings of them; NumPy and torch values become plain ones.
    Hardware, versions, commit and date are taken from this process; ``command`` defaults to its command line.
    Raises ValueError for a name that is no file name, no seeds, or a number that is not finite.
    """
    import torch  # seconds, which who reads a record does not need

    if not len(seeds):
        raise ValueError("seeds: got none; a record says which seeds its numbers come from")
    provenance = Provenance(
        hardware=device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        versions=dict(versions()),
        commit=source_commit(),
        seeds=tuple(int(seed) for seed in seeds),
        seconds=round(float(seconds), 3),
        command=command if command is not None else " ".join(sys.argv),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    path = path_of(name, folder)
    content = {"name": name, "values": plain(values), "provenance": asdict(provenance)}
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def rounded(value: Any, decimals: int | None = None, *, digits: int | None = None) -> Any:
    """:func:`plain` numbers, also within lists and mappings, with floats of so many ``decimals``, or significant ``digits``."""
    value = plain(value)
    if isinstance(value, dict):
        return {name: rounded(part, decimals, digits=digits) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part, decimals, digits=digits) for part in value]
    if not isinstance(value, float):
        return value
    return round(value, decimals) if digits is None else float(f"{value:.{digits}g}")


@cache
def versions() -> Mapping[str, str]:
    """What computes here: the versions of Python, PyTorch, NumPy and the library."""
    import sslbook

    libraries = {name: version(name) for name in ("torch", "numpy")}
    return {"python": platform.python_version(), **libraries, "sslbook": sslbook.__version__}
