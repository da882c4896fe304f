"""Recorded full-size runs: numbers that took a GPU or an hour, with where they come from.

A record is one file, `data/results/<name>.json`. The function that makes the numbers writes it (`save_record`);
chapters show it (`recorded`) beside the paper's numbers and the live quick run, labelled as what it is. None is ever
filled in by hand.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sslbook import shipped
from sslbook.arguments import unknown
from sslbook.files import write_text

RECORDERS: dict[str, str] = {
    "byol-cifar10": "sslbook.chapters.byol.recorded:cifar10_values",
    "byol-digits": "sslbook.chapters.byol.recorded:digits_values",
    "covariance-cifar10": "sslbook.chapters.covariance.step:cifar10_values",
    "emergence-two-layer": "sslbook.chapters.emergence.two_layer:two_layer_values",
    "hltm-narrow": "sslbook.chapters.hltm.recorded:narrow_values",
    "hltm-norms": "sslbook.chapters.hltm.recorded:norm_values",
    "hltm-tables": "sslbook.chapters.hltm.recorded:table_values",
    "modulation-filters": "sslbook.chapters.modulation.recorded:filter_values",
    "modulation-tables": "sslbook.chapters.modulation.recorded:table_values",
    "training-cifar10": "sslbook.chapters.training.recorded:cifar10_values",
    "training-operator": "sslbook.chapters.training.opened:operator_values",
    "training-operator-full": "sslbook.chapters.training.opened:full_values",
    "training-weights": "sslbook.chapters.training.recorded:weight_values",
}
"""What makes each record: ``module:function``, called with the seeds. Names, so that the book loads no experiments."""


@dataclass(frozen=True)
class Provenance:
    """Where recorded numbers come from; ``commit`` ends in ``+changes`` if the tree was not clean."""

    hardware: str
    versions: Mapping[str, str]
    commit: str | None
    seeds: tuple[int, ...]
    seconds: float
    command: str
    date: str

    def __str__(self) -> str:
        """Two lines for a caption: when, where and how long; then the command and the commit (ten digits of it) it ran at."""
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        torch = f"torch {self.versions.get('torch', '?')}"
        facts = f"{self.date}, {self.hardware}, {torch}, {seeds}, {self.seconds:,.0f} s"
        return f"{facts}\n  {self.command}  (commit {self._short_commit()})"

    def _short_commit(self) -> str:
        commit, plus, changes = (self.commit or "unknown").partition("+")
        return commit[:10] + (f", with {changes}" if plus else "")


@dataclass(frozen=True)
class Record:
    """Named numbers (or nested lists and mappings of numbers) and their `Provenance`."""

    name: str
    values: Mapping[str, Any]
    provenance: Provenance

    def __getitem__(self, key: str) -> Any:
        """``record["accuracy"]``; raises InputError (a ValueError) with the nearest names for one that isn't there."""
        if key not in self.values:
            raise unknown(f"value of the record {self.name!r}", key, self.values)
        return self.values[key]


def results_folder() -> Path:
    """`data/results` of the source tree that this package lies in, else the one that was installed with it."""
    return shipped.folder() / "results"


def recorded(name: str, *, folder: Path | None = None) -> Record:
    """The record ``name``; raises InputError (a ValueError) if it was never made, ValueError if its file is damaged."""
    folder = folder or results_folder()
    path = shipped.noted(folder / f"{_valid(name)}.json")
    if not path.is_file():
        raise unknown("recorded run", name, (p.stem for p in folder.glob("*.json")))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        origin = content["provenance"]
        return Record(name, content["values"], Provenance(**origin | {"seeds": tuple(origin["seeds"])}))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a recorded run ({error})") from None


def save_record(
    name: str,
    values: Mapping[str, Any],
    *,
    seeds: Sequence[int],
    seconds: float,
    command: str | None = None,
    folder: Path | None = None,
    device: str | None = None,
) -> Path:
    """Write the record ``name``, atomically, and return its file.

    ``values`` holds numbers, strings, and lists or mappings of them; NumPy and torch values become plain ones.
    Hardware, versions, commit and date are taken from this process; ``command`` defaults to its command line, and
    ``device``, whose name the hardware is, to a GPU where there is one. Raises
    ValueError for a name that is no file name, no seeds, or a number that is not finite.
    """
    if not seeds:
        raise ValueError("seeds: got none; a record says which seeds its numbers come from")
    provenance = Provenance(
        hardware=_hardware(device),
        versions={"python": platform.python_version()} | {d: version(d) for d in ("torch", "numpy")} | _own_version(),
        commit=shipped.commit(),
        seeds=tuple(int(seed) for seed in seeds),
        seconds=round(float(seconds), 3),
        command=command if command is not None else " ".join(sys.argv),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    return write_record(Record(name, plain(values), provenance), folder)


def write_record(record: Record, folder: Path | None = None) -> Path:
    """Write a record as it is, with the provenance that it has, atomically, and return its file."""
    path = (folder or results_folder()) / f"{_valid(record.name)}.json"
    content = {"name": record.name, "values": record.values, "provenance": asdict(record.provenance)}
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def plain(value: Any, where: str = "values") -> Any:
    """``value`` with NumPy and torch numbers and arrays as Python numbers and lists; says where something has no such form."""
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: got {value}; a record holds finite numbers only")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{where}: got {type(value).__name__}; numbers, strings, lists and mappings can be recorded")


def _valid(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(f"name: got {name!r}; allowed are letters, digits, '-', '_' and '.'")
    return name


def _own_version() -> dict[str, str]:
    import sslbook

    return {"sslbook": sslbook.__version__}


def _hardware(device: str | None) -> str:
    import torch

    from sslbook.machine import device_name

    return device_name(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
