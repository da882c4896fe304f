"""Runs by name, with what ``--set KEY=VALUE`` changes, and on disk.

Each has a folder, named by preset, seed and the hash of the settings; a finished one is known and not made again.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sslbook.networks.siamese import Networks
from sslbook.runtime.arguments import nearest
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.presets.sheets import Cell, Preset, Sheet, presets
from sslbook.training.run.checkpoints import DIVERGED, RESULT
from sslbook.training.run.logs import Row
from sslbook.training.run.settings import Settings, known_keys, with_values


@dataclass(frozen=True)
class Run:
    """Settings with the name of the preset that they come from."""

    name: str
    settings: Settings

    def folder(self, root: Path) -> Path:
        """Where its files lie: ``cifar10-simclr-nce-s1-0a1b2c3d4e`` below ``root``."""
        return root / f"{self.name}-s{self.settings.seed}-{self.settings.hash()}"

    def rows(self, root: Path) -> list[Row]:
        """Its rows, one an epoch, if it was ever finished, also if with fewer epochs; none otherwise."""
        content = read_result(self.folder(root))
        return [] if content is None else list(content["rows"])

    def finished(self, root: Path) -> bool:
        """Whether the linear protocol was run after its last epoch and after all that ``probes`` names."""
        measured = {row["epoch"] for row in self.rows(root) if row.get("linear") is not None}
        return measured >= {self.settings.epochs, *self.settings.probes}

    def diverged(self, root: Path) -> str:
        """Where it diverged, such as ``diverged at step 12``; empty if it did not, as far as one knows."""
        path = self.folder(root) / DIVERGED
        return path.read_text(encoding="utf-8").strip() if path.is_file() and not self.finished(root) else ""

    def go(self, root: Path, **options: Any) -> None:
        """Train to the end, or on from where it stopped; nothing if it is finished.  options: of ``trainer.train``."""
        if self.finished(root):
            return
        from sslbook.training.run.trainer import train  # loads PyTorch's parts, which a list of runs does not need

        train(self.settings, self.folder(root), name=f"{self.name} seed {self.settings.seed}", **options)


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run wrote; None if there is nothing; raises ValueError, naming the file, if it is damaged."""
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content["rows"], list):
            raise TypeError("rows is no list")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the result of a run ({error}); remove it and run again") from None
    return content


def run_of(name: str, *, seed: int, epochs: int | None = None, changes: Iterable[str] = ()) -> Run:
    """The run of a preset; raises ValueError for an unknown name, with the nearest, or for changes that are not allowed.

    Fewer epochs than the preset's leave out its later probes.
    """
    preset = preset_of(name)
    settings = preset.settings
    if epochs is not None:
        settings = replace(settings, epochs=epochs)
    changes = list(changes)
    _refuse(changes, "seed")
    settings = with_changes(settings, changes)
    kept = tuple(epoch for epoch in settings.probes if epoch <= settings.epochs)
    return Run(name, replace(settings, seed=seed, probes=kept))


def _refuse(changes: Iterable[str], name: str) -> None:
    """Raise ValueError for a change of what has an option of its own."""
    if any(change.partition("=")[0].strip() == name for change in changes):
        raise ValueError(f"{name} is given by --{name}, not by --set")


def preset_of(name: str) -> Preset:
    """A preset by its name; raises ValueError with the nearest names."""
    known = presets()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {', '.join(near)}?" if near else "sslbook train --list shows them"
        raise ValueError(f"there is no preset {name!r}; {hint}")
    return known[name]


# -- settings as a command line writes them ----------------------------------------------------------------------------


def with_changes(settings: Settings, changes: Iterable[str]) -> Settings:
    """The settings with ``key=value`` set, as ``--set`` gives them: ``rate=0.03``, ``networks.width=16``, ``numbers.tau=0.2``.

    A value is read as JSON, or else as a word; ``none`` is nothing, and a list has commas: ``probes=100,300``.  Another
    objective keeps those numbers that it takes too.
    Raises ValueError for what is not of that form, an unknown key (with the nearest ones), or a value that is not allowed.
    """
    top: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {"networks": {}, "numbers": {}}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ValueError(f"a change must be of the form key=value, got {change!r}")
        room, dot, name = key.partition(".")
        if dot and room in inner:
            inner[room][name] = _read(text)
        elif key in inner:
            raise ValueError(f"{key} can't be set as a whole: set {key}.NAME=value")
        else:
            top[key] = _read(text)
    if inner["numbers"] or "objective" in top:
        taken = _taken(top.get("objective", settings.objective))
        kept = {name: value for name, value in settings.numbers.items() if name in taken}
        top["numbers"] = {**kept, **inner["numbers"]}
    if inner["networks"]:
        top["networks"] = with_values(settings.networks, inner["networks"], "networks.")
    return with_values(settings, top)


def values_of(settings: Settings) -> dict[str, str]:
    """Everything that :func:`with_changes` can set, as it takes it, with the present values."""
    defaults = {name: p.default for name, p in inspect.signature(OBJECTIVES[settings.objective]).parameters.items()}
    values = {name: getattr(settings, name) for name in known_keys() if "." not in name}
    values |= {f"numbers.{name}": value for name, value in {**defaults, **settings.numbers}.items()}
    values |= {f"networks.{f.name}": getattr(settings.networks, f.name) for f in dataclasses.fields(Networks)}
    return {name: _written(value) for name, value in values.items()}


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_written, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _taken(name: object) -> list[str]:
    """The numbers that an objective takes; none for a name that there is not, which is refused elsewhere."""
    known = isinstance(name, str) and name in OBJECTIVES
    return list(inspect.signature(OBJECTIVES[str(name)]).parameters) if known else []


def _read(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "," in text and not text.startswith("["):
        return tuple(_read(part.strip()) for part in text.split(",") if part.strip())
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


# -- tables of runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A cell of a table with what we have of it: accuracies of the linear protocol, one a seed, as shares of 1.

    epochs: after how many, which may be fewer than the cell's.  unchanged: the runs are the preset's own.
    diverged: a sentence for each seed whose run came to no end.  recorded: some are of a record, not of runs that are here.
    """

    cell: Cell
    epochs: int
    best: list[float]
    final: list[float]
    unchanged: bool
    diverged: tuple[str, ...]
    recorded: bool

    @property
    def whole(self) -> bool:
        """Whether it is after as many epochs as the table's."""
        return self.epochs == self.cell.epochs


def runs_of(sheet: Sheet, seeds: Sequence[int], *, epochs: int | None = None, changes: Sequence[str] = ()) -> list[Run]:
    """The runs that a table needs, each once: to the last column that it is for, or to ``epochs``."""
    _refuse(changes, "epochs")
    longest: dict[str, int] = {}
    for cell in sheet.cells:
        longest[cell.preset] = max(cell.epochs, longest.get(cell.preset, 0))
    most = {name: min(epochs or last, last) for name, last in longest.items()}
    return [run_of(name, seed=seed, epochs=last, changes=changes) for seed in seeds for name, last in most.items()]


def lines(
    sheet: Sheet,
    seeds: Sequence[int],
    root: Path,
    *,
    epochs: int | None = None,
    changes: Sequence[str] = (),
    recorded: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Line]:
    """The table's cells with what finished runs have of them; a run that is not here by its rows in ``recorded``, if it is there.

    recorded: the ``runs`` of a record, as :func:`origins` gave them.
    With fewer epochs than the table's first column, that column is shown after as many as there are, and says so.
    """
    runs = runs_of(sheet, seeds, epochs=epochs, changes=changes)
    rows = {(run.name, run.settings.seed): run.rows(root) for run in runs}
    known = {(run.name, run.settings.seed): (recorded or {}).get(run.folder(root).name, {}) for run in runs}
    wild = {at: run.diverged(root) or known[at].get("diverged", "") for at, run in zip(known, runs, strict=True)}
    same = {run.name: run.settings.hash() == preset_of(run.name).settings.hash() for run in runs}
    first: dict[str, int] = {}
    for cell in sheet.cells:
        first[cell.preset] = min(cell.epochs, first.get(cell.preset, cell.epochs))
    found = []
    for cell in sheet.cells:
        at = min(epochs or cell.epochs, cell.epochs) if cell.epochs == first[cell.preset] else cell.epochs
        here = [_at(rows[cell.preset, seed], at) for seed in seeds]
        there = [_at(known[cell.preset, seed].get("rows", []), at) for seed in seeds]
        mine = [row for own, kept in zip(here, there, strict=True) if (row := own or kept)]
        best, final = [row["linear_best"] for row in mine], [row["linear"] for row in mine]
        lost = tuple(text for seed in seeds if (text := wild[cell.preset, seed]))
        only_recorded = any(kept and not own for own, kept in zip(here, there, strict=True))
        found.append(Line(cell, at, best, final, same[cell.preset], lost, only_recorded))
    return found


def _at(rows: Sequence[Row], epoch: int) -> Row | None:
    """The row after so many epochs, if the linear protocol was run there."""
    return next((row for row in rows if row["epoch"] == epoch and row.get("linear") is not None), None)


def recorded_values(sheet: Sheet, runs: Mapping[str, Mapping[str, Any]], **chosen: Any) -> dict[str, Any]:
    """What a record of a table holds: its accuracies, and ``runs``, where each comes from and its own, by :func:`origins`.

    chosen: ``epochs`` and ``changes`` of the runs, as for :func:`lines`.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        found = lines(sheet, seeds_of(runs), Path(nowhere), recorded=runs, **chosen)
    cells = [{"cell": row.cell.label, "epochs": row.epochs, "best": row.best, "final": row.final} for row in found]
    return {"cells": cells, "runs": dict(runs)}


def seeds_of(runs: Mapping[str, Mapping[str, Any]]) -> tuple[int, ...]:
    """The seeds of a record's runs."""
    return tuple(sorted({run["seed"] for run in runs.values()}))


def origins(runs: Sequence[Run], root: Path) -> dict[str, dict[str, Any]]:
    """By the names of their folders, what a record keeps of runs: :data:`ORIGIN` and probed rows; of one that diverged, where."""
    kept = {}
    for run in runs:
        content = read_result(run.folder(root))
        if content is not None:
            rows = [{name: row[name] for name in PROBED} for row in content["rows"] if row.get("linear") is not None]
            kept[run.folder(root).name] = {name: content.get(name) for name in ORIGIN} | {"rows": rows}
        elif text := run.diverged(root):
            kept[run.folder(root).name] = {"seed": run.settings.seed, "diverged": text, "rows": []}
    return kept


def united(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The runs of two records; of a run in both all rows, the newer where both have an epoch, the rest as the longer says."""
    return {**old, **new, **{name: _united(old[name], new[name]) for name in old.keys() & new.keys()}}


def _united(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    rows = {row["epoch"]: row for part in (old, new) for row in part["rows"]}
    longer = max((new, old), key=lambda part: max((row["epoch"] for row in part["rows"]), default=-1))
    return {**longer, "rows": [rows[epoch] for epoch in sorted(rows)]}


ORIGIN = ("seed", "seconds", "device", "torch", "sslbook", "commit", "precision", "capture", "processes")
"""What a record keeps of each run's ``result.json``."""
PROBED = ("epoch", "linear", "linear_best")
"""And of each of its rows that has an accuracy of the linear protocol."""
