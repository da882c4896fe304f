"""Runs by name, with what ``--set KEY=VALUE`` changes, and on disk.

Each has a folder, named by preset, seed and the hash of the settings; a finished one is known and not made again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sslbook.networks.siamese import Networks
from sslbook.runtime.arguments import nearest
from sslbook.training.objectives import arguments
from sslbook.training.presets.sheets import Preset, presets
from sslbook.training.run.checkpoints import DIVERGED, Row, read_result
from sslbook.training.run.settings import Settings, known_keys, with_values
from sslbook.training.run.trainer import train


@dataclass(frozen=True)
class Run:
    """Settings with the name of the preset that they come from."""

    name: str
    settings: Settings

    @property
    def title(self) -> str:
        """How one speaks of it: ``cifar10-byol seed 1``."""
        return f"{self.name} seed {self.settings.seed}"

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
        if not self.finished(root):
            train(self.settings, self.folder(root), name=self.title, **options)


def run_of(name: str, *, seed: int, epochs: int | None = None, changes: Iterable[str] = ()) -> Run:
    """The run of a preset; raises ValueError for an unknown name, with the nearest, or for changes that are not allowed.

    Fewer epochs than the preset's leave out its later probes.
    """
    settings = preset_of(name).settings
    settings = with_changes(replace(settings, epochs=epochs or settings.epochs), without("seed", changes))
    kept = tuple(epoch for epoch in settings.probes if epoch <= settings.epochs)
    return Run(name, replace(settings, seed=seed, probes=kept))


def without(name: str, changes: Iterable[str]) -> list[str]:
    """The changes; raises ValueError for one of what has an option of its own."""
    changes = list(changes)
    if any(change.partition("=")[0].strip() == name for change in changes):
        raise ValueError(f"{name} is given by --{name}, not by --set")
    return changes


def preset_of(name: str) -> Preset:
    """A preset by its name; raises ValueError with the nearest names."""
    known = presets()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {', '.join(near)}?" if near else "sslbook train --list shows them"
        raise ValueError(f"there is no preset {name!r}; {hint}")
    return known[name]


# --- settings as a command line writes them --------------------------------------------------------------------------


WHOLE = {"networks": "networks.NAME", "loss_kwargs": "NAME"}
"""Settings of which a command line sets the parts alone, and how."""


def with_changes(settings: Settings, changes: Iterable[str]) -> Settings:
    """The settings with ``key=value`` set, as ``--set`` gives them: ``lr=0.03``, ``networks.width=16``, ``temperature=0.2``.

    A value is read as JSON, or else as a word; ``none`` is nothing, and a list has commas: ``probes=100,300``.
    Raises ValueError for what is not of that form, an unknown key (with the nearest ones), or a value that is not allowed.
    """
    top: dict[str, Any] = {}
    networks: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ValueError(f"a change must be of the form key=value, got {change!r}")
        if key in WHOLE:
            raise ValueError(f"{key} can't be set as a whole: set {WHOLE[key]}=value")
        inside = key.startswith("networks.")
        (networks if inside else top)[key.removeprefix("networks.")] = _read(text)
    if networks:
        top["networks"] = with_values(settings.networks, networks, "networks.")
    return with_values(settings, top)


def values_of(settings: Settings) -> dict[str, str]:
    """Everything that :func:`with_changes` can set, as it takes it, with the present values."""
    values = {name: getattr(settings, name) for name in known_keys() if "." not in name}
    values |= {**arguments(settings.objective), **settings.loss_kwargs}
    values |= {f"networks.{f.name}": getattr(settings.networks, f.name) for f in dataclasses.fields(Networks)}
    return {name: _written(value) for name, value in values.items()}


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_written, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _read(text: str) -> Any:
    if "," in text and not text.startswith("["):
        return tuple(_read(part.strip()) for part in text.split(",") if part.strip())
    word = text.lower().replace("none", "null")
    try:
        return json.loads(word if word in ("null", "true", "false") else text)
    except json.JSONDecodeError:
        return text
