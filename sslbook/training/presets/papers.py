r"""The papers' own runs by name: what each changes of the released code, in ``papers.tsv``, and a run of one on disk.

Settings are those of the released code: SimCLR with Adam, no shuffling and the miscounted cosine (`released` in
:mod:`sslbook.training.run.settings`); BYOL with SGD at a constant rate, a target that starts from weights of its own, and a plain
predictor where the released default is a symmetric one.  Each row of ``papers.tsv`` has a name, the papers' tables with a cell
for it, what it is in words, and what it changes of these two, as ``sslbook train --set`` would.

>>> presets()["cifar10-byol-nobn"].settings.networks.predictor_norm is None
True
>>> run_of("cifar10-byol", seed=3, changes=["lr=0.1"]).settings.lr
0.1
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from sslbook._check import unknown
from sslbook.networks.siamese import Networks
from sslbook.training.run.checkpoints import DIVERGED, Row, read_result
from sslbook.training.run.settings import Settings, with_values
from sslbook.training.run.trainer import train

EPOCHS = (100, 300, 500)
"""Epochs after which SimCLR's tables have a column."""
IMAGES = {"cifar10": "CIFAR-10", "stl10": "STL-10"}
SECONDS = {"cifar10": 3.0, "stl10": 3.8}
"""Estimated seconds of an epoch on one H200: for CIFAR-10 what we ask of it, for STL-10 that by its arithmetic."""
WORDS = {"none": None, "null": None, "true": True, "false": False}
"""Values that a command line writes as words, in any case."""
TARGET = 4 / 3
"""An epoch with a target tower, whose forward passes come on top, in epochs without one."""
with Path(__file__).with_name("papers.tsv").open(encoding="utf-8") as _rows:
    ROWS = list(csv.DictReader(_rows, delimiter="\t"))
"""The rows of the papers' tables on either data set: ``name``, ``tables``, ``what`` and ``changes``."""


TOWERS: dict[str, Any] = {"predictor": 2, "target": "ema", "target_init": "own"}
BYOL: dict[str, Any] = {"objective": "byol", "loss_kwargs": {}, "shuffle": True, "drop_last": False}
BYOL |= {"optimizer": "sgd", "lr": 0.03, "weight_decay": 4e-4, "schedule": "constant", "epochs": 100, "probes": (100,)}
"""What the released BYOL, but for its symmetric predictor, changes of SimCLR on the same images with the same encoder."""
TINY = Networks(width=8, projector_hidden=64, projector_out=32, channels=1)
SHORT: dict[str, Any] = {"loss_kwargs": {"temperature": 0.5}, "shuffle": True}
DIGITS = Settings(dataset="digits", pipeline="digits", networks=TINY, lr=5e-3, schedule="cosine", epochs=20, **SHORT)
# the released SGD at a rate of 0.1 ended with an effective rank of 1.4, and k-NN at 34 %
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 2e-3, "weight_decay": 0.0, "batch": 64, "ema": 0.97}
DIGITS_BYOL = replace(DIGITS, networks=replace(TINY, **TOWERS), **{**BYOL, **ADAM, "epochs": 20, "probes": ()})
# the released rate of full runs, 0.01, learns half as much in so few steps
SMALL = Settings(subset=5000, networks=Networks(width=16), lr=1e-3, schedule="constant", epochs=10, **SHORT)


@dataclass(frozen=True)
class Preset:
    """Settings with a name, what they are in words, and the names of the papers' tables with a cell for them."""

    name: str
    what: str
    settings: Settings
    tables: tuple[str, ...] = ()

    @property
    def minutes(self) -> float:
        """The estimate of its minutes on one H200; 0 for small networks, which need no such machine."""
        if self.settings.networks.width < 64:
            return 0.0
        more = TARGET if self.settings.networks.target else 1.0
        return SECONDS.get(self.settings.dataset, 0.0) * more * self.settings.epochs / 60

    def text(self) -> str:
        """What it is, in lines: its name and words; the commands that show its tables; epochs and minutes."""
        shows = " and ".join(f"sslbook table {table}" for table in self.tables)
        lines = [f"{self.name}: {self.what}"]
        lines += [f"{shows}: the paper's accuracy, beside those of finished runs."] if shows else []
        lines += [f"{self.settings.epochs} epochs: {self.minutes:.0f} minutes on one H200."] if self.minutes else []
        return "\n  ".join(lines)


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name: three small runs, and for either data set the rows of the papers' tables.

    Made when first asked for, since each checks its settings.
    """
    digits = "on scikit-learn's digits, with a small network, in a minute"
    small = "SimCLR with InfoNCE and a small network on 5,000 images of CIFAR-10, in minutes on two CPU cores"
    found = [Preset("digits-simclr-nce", f"SimCLR with InfoNCE {digits}", DIGITS)]
    found += [Preset("digits-byol", f"BYOL {digits}", DIGITS_BYOL), Preset("cifar10-small", small, SMALL)]
    for data, title in IMAGES.items():
        split, stem, lr = ("train+unlabeled", "stl", 1e-3) if data == "stl10" else ("train", "cifar", 1e-2)
        images: dict[str, Any] = {"dataset": data, "split": split, "pipeline": data, "networks": Networks(stem=stem)}
        simclr = Settings(**images, loss_kwargs={"temperature": 0.5}, lr=lr, epochs=EPOCHS[-1], probes=EPOCHS)
        byol = replace(simclr, networks=Networks(stem=stem, **TOWERS), **BYOL)
        for row in ROWS:
            tables = [f"{table}-{data}-resnet18" if table[0] == "B" else table for table in row["tables"].split()]
            released = byol if row["name"].startswith("byol") else simclr
            settings = with_changes(released, row["changes"].split())
            found.append(Preset(f"{data}-{row['name']}", f"{row['what']}, on {title}", settings, tuple(tables)))
    return {preset.name: preset for preset in found}


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Settings with the name of the preset that they come from, and what lies of it below a folder of runs, ``root``.

    title: how one speaks of it, ``cifar10-byol seed 1``.
    slug: how its folder is called, by the name, the seed and the settings' hash: ``cifar10-byol-s1-0a1b2c3d4e``.
    """

    name: str
    settings: Settings
    title: str = field(init=False, repr=False)
    slug: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", f"{self.name} seed {self.settings.seed}")
        object.__setattr__(self, "slug", f"{self.name}-s{self.settings.seed}-{self.settings.hash()}")

    def folder(self, root: Path) -> Path:
        """Where its files lie, which are those of :mod:`sslbook.training.run.checkpoints`."""
        return root / self.slug

    def rows(self, root: Path) -> list[Row]:
        """Its rows, one an epoch, if it was ever finished, also if with fewer epochs; none otherwise."""
        return list((read_result(self.folder(root)) or {"rows": []})["rows"])

    def finished(self, root: Path) -> bool:
        """Whether a table could show it: the linear protocol was run after its last epoch and after all that ``probes`` names."""
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
    """The run of a preset with some ``key=value`` changed; fewer epochs than the preset's leave out its later probes.

    Raises ValueError for an unknown name, with the nearest, and for changes that are not allowed: ``--seed 1 --set seed=2`` would
    have to mean one of them.
    """
    if name not in presets():
        raise unknown("preset", name, presets())
    changes = list(changes)
    taken = {"seed", "epochs"} if epochs else {"seed"}
    if twice := taken & {change.partition("=")[0].strip() for change in changes}:
        raise ValueError(f"{min(twice)} is given by --{min(twice)}, not by --set")
    settings = presets()[name].settings
    settings = with_changes(replace(settings, epochs=epochs or settings.epochs), changes)
    kept = tuple(epoch for epoch in settings.probes if epoch <= settings.epochs)
    return Run(name, replace(settings, seed=seed, probes=kept))


# --- settings as a command line writes them --------------------------------------------------------------------------


def with_changes(settings: Settings, changes: Iterable[str]) -> Settings:
    """The settings with ``key=value`` set, as ``--set`` gives them: ``lr=0.03``, ``networks.width=16``, ``temperature=0.2``.

    A value is read as JSON, or else as a word; ``none`` is nothing, and a list has commas: ``probes=100,300``.
    Raises ValueError for what is not of that form, an unknown key (with the nearest ones), or a value that is not allowed.

    >>> with_changes(SMALL, ["networks.width=32", "betas=0.9,0.99"]).betas
    (0.9, 0.99)
    """
    found: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ValueError(f"a change must be of the form key=value, got {change!r}")
        if key in ("networks", "loss_kwargs"):
            raise ValueError(f"{key} can't be set as a whole, but by parts: networks.width=16, or temperature=0.2")
        values = []
        for part in [text] if text.startswith("[") else filter(str.strip, text.split(",")):
            word = part.strip()
            try:
                values.append(WORDS[word.lower()] if word.lower() in WORDS else json.loads(word))
            except json.JSONDecodeError:
                values.append(word)
        found[key] = values[0] if len(values) == 1 else tuple(values)
    return with_values(settings, found)
