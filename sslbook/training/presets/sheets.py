r"""A preset for every row of the papers' image tables, and the tables as cells that name them.

``sslbook train NAME`` runs one; :meth:`Preset.text` says what the paper got and how long it takes.  Settings are those of the
released code: SimCLR with Adam, no shuffling and the miscounted cosine, BYOL with SGD at a constant rate, a target that starts
from weights of its own, and a plain predictor where the released default is a symmetric one.

A :class:`Run` is a preset with what ``--set KEY=VALUE`` changes, and on disk.  Each has a folder, named by preset, seed and the
hash of the settings; a finished one is known and not made again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from sslbook._check import nearest
from sslbook.networks.siamese import Networks
from sslbook.training.objectives import arguments
from sslbook.training.run.checkpoints import DIVERGED, Row, read_result
from sslbook.training.run.settings import Settings, known_keys, with_values
from sslbook.training.run.trainer import train
from sslchapters.tables import ABLATIONS, Change, Printed, ablations, printed, unprinted

DATA = ("cifar10", "stl10")
EPOCHS = (100, 300, 500)
SECONDS = {"cifar10": 3.0, "stl10": 3.8}
"""Estimated seconds of an epoch on one H200: for CIFAR-10 what we ask of it, for STL-10 that by its arithmetic."""
TARGET = 4 / 3
"""A target tower's forward passes, beside forward and backward of the other."""

PARTS = (
    *("byol-bare", "byol-ema-only", "byol-bn-only", "byol-nopredictor"),
    *("byol-predictor-only", "byol-nobn", "byol-noema", "byol"),
)
"""Presets of Table 3's cells, in its order."""


DIGITS = Settings(
    dataset="digits",
    pipeline="digits",
    networks=Networks(width=8, projector_hidden=64, projector_out=32, channels=1),
    loss_kwargs={"temperature": 0.5},
    lr=5e-3,
    schedule="cosine",
    batch=128,
    epochs=20,
    shuffle=True,
)
SMALL = Settings(
    subset=5000,
    networks=Networks(width=16),
    loss_kwargs={"temperature": 0.5},
    lr=1e-3,  # the released rate of full runs, 0.01, learns half as much in so few steps
    schedule="constant",
    epochs=10,
    shuffle=True,
)


@dataclass(frozen=True)
class Cell:
    """One number of a table: which preset after how many epochs, and what the paper prints, in percent (None: nothing)."""

    label: str
    preset: str
    epochs: int
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class Sheet:
    """A printed table as cells to run, row by row."""

    name: str
    target: Printed
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Preset:
    """A run with a name; ``cells``: the numbers of the paper that it is for, by table."""

    name: str
    what: str
    settings: Settings
    cells: tuple[tuple[str, Cell], ...] = field(default=())

    @property
    def minutes(self) -> float:
        """The estimate of its minutes on one H200; 0 for the presets that need none."""
        if self.settings.networks.width < 64:
            return 0.0
        more = TARGET if self.settings.networks.target else 1.0
        return SECONDS.get(self.settings.dataset, 0.0) * more * self.settings.epochs / 60

    def notes(self) -> list[str]:
        """Where the released code can be read in another way, or differs from this."""
        networks, notes = self.settings.networks, []
        if networks.predictor_range is not None and not self.settings.reset:
            notes.append("The released code gives the predictor this range only where it also draws it anew")
            notes[-1] += " (rand_pred_n_epoch > 0), which the table does not say: --set reset=10 is that reading."
        if self.settings.objective == "byol" and networks.target is None:
            notes.append("The released code without EMA keeps a target tower with m = 0 and first weights of its own,")
            notes[-1] += " which is another run in its first step only."
        return notes

    def text(self) -> str:
        """What it is, the accuracy to expect, and the time."""
        lines = [f"{self.name}: {self.what}"]
        for table, cell in self.cells:
            if cell.mean is not None:
                spread = f" ± {cell.std:.2f}" if cell.std is not None else ""
                lines.append(f"  {table}: {cell.mean:.2f}{spread} % after {cell.epochs} epochs ({cell.label})")
        if not any(cell.mean is not None for _, cell in self.cells):
            lines.append("  The papers print no accuracy for it.")
        lines += [f"  {note}" for note in self.notes()]
        if self.minutes:
            lines.append(f"  {self.settings.epochs} epochs: estimated at {self.minutes:.0f} minutes on one H200.")
        return "\n".join(lines)


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name, those of the tables with their cells."""
    made = {name: Preset(name, what, settings) for name, what, settings in _all()}
    for sheet in sheets().values():
        for cell in sheet.cells:
            preset = made[cell.preset]
            made[cell.preset] = replace(preset, cells=(*preset.cells, (sheet.name, cell)))
    return made


def _all() -> Iterator[tuple[str, str, Settings]]:
    yield "digits-simclr-nce", "SimCLR with InfoNCE on scikit-learn's digits, with a small network, in a minute", DIGITS
    yield (
        "digits-byol",
        "BYOL on scikit-learn's digits, with a small network, in a minute",
        # Adam, because the released SGD at a rate of 0.1 ended with an effective rank of 1.4, and k-NN at 34 %.
        replace(_byol(DIGITS, lr=2e-3), optimizer="adam", weight_decay=0.0, batch=64, ema=0.97),
    )
    yield (
        "cifar10-small",
        "SimCLR with InfoNCE and a small network on 5,000 images of CIFAR-10, in minutes on two CPU cores",
        SMALL,
    )
    for data in DATA:
        for slug, what, settings in (*_simclr(data), *_ablations(data)):
            yield f"{data}-{slug}", f"{what}, on {_title(data)}", settings


def simclr_settings(data: str) -> Settings:
    """The released SimCLR, after 100, 300 and 500 epochs; on STL-10 with its unlabelled images."""
    stl = data == "stl10"
    return Settings(
        dataset=data,
        split="train+unlabeled" if stl else "train",
        pipeline=data,
        networks=Networks(stem="stl" if stl else "cifar"),
        loss_kwargs={"temperature": 0.5},
        lr=1e-3 if stl else 1e-2,
        epochs=EPOCHS[-1],
        probes=EPOCHS,
    )


def _simclr(data: str) -> Iterator[tuple[str, str, Settings]]:
    base = simclr_settings(data)
    exact = replace(base, objective="exact")
    yield "simclr-nce", "SimCLR with InfoNCE", base
    yield "simclr-exact", "SimCLR with the exact covariance loss", exact
    yield (
        "simclr-exact-noise",
        "SimCLR with the exact covariance loss and weight noise of 0.01",
        replace(exact, noise=0.01),
    )
    for beta, slug in ((-0.5, "minus-0.5"), (0.2, "plus-0.2")):
        settings = replace(base, objective="beta", loss_kwargs={"temperature": 0.5, "beta": beta})
        yield f"simclr-beta-{slug}", f"SimCLR with the positive pair's weight changed by β = {beta:+g}", settings


def _byol(base: Settings, lr: float) -> Settings:
    return replace(
        base,
        networks=replace(base.networks, predictor=2, target="ema", target_init="own"),
        objective="byol",
        loss_kwargs={},
        optimizer="sgd",
        lr=lr,
        weight_decay=4e-4,
        schedule="constant",
        shuffle=True,
        drop_last=False,
    )


def _ablations(data: str) -> Iterator[tuple[str, str, Settings]]:
    """Tables 3 to 10 of [tian2021iclr]; a cell that stands in two of them is one preset."""
    seen: set[str] = set()
    # The released BYOL, but for the symmetric predictor: 100 epochs; on STL-10 with its unlabelled images.
    base = replace(_byol(simclr_settings(data), lr=0.03), epochs=100, probes=(100,))
    for name in ABLATIONS:
        for label, change in ablations(name).items():
            slug = _slug(name, label, change)
            if slug not in seen:
                yield slug, _what(name, change), _changed(base, name, change)
            seen.add(slug)


def _changed(base: Settings, name: str, change: Change) -> Settings:
    networks = replace(
        base.networks,
        predictor=change.predictor,
        target="ema" if change.ema else None,
        projector_norm=change.projector,
        predictor_norm=change.head,
        predictor_range=change.span,
        unbiased=name == "B-Tab4",
    )
    return replace(base, networks=networks, reset=change.reset, lr=0.02 if name == "B-Tab10" else base.lr)


def _slug(name: str, label: str, change: Change) -> str:
    """The name of a cell's preset, without the data."""
    end = change.span[1] if change.span else 0.0
    if name == "B-Tab3":
        return PARTS[list(ablations(name)).index(label)]
    if name == "B-Tab4" and change.projector is not None:
        modes = zip(("mean", "std"), change.projector, strict=True)
        parts = "-".join("x" * (mode == "detach") + part for part, mode in modes if mode != "omit")
        return f"byol-norm-{ {'': 'none', 'mean-std': 'both'}.get(parts, parts) }"
    if name == "B-Tab5":
        return f"byol-reset-{change.reset}" if change.reset else "byol"
    if name == "B-Tab10":
        return f"byol-small-{end:g}-reset-{change.reset}"
    return f"byol{'' if change.ema else '-noema'}-linear{'' if change.head else '-nobn'}-{end:g}"


def _what(name: str, change: Change) -> str:
    """What a cell's preset is, in words."""
    end = change.span[1] if change.span else 0.0
    if name == "B-Tab3":
        parts = (("predictor", change.predictor), ("BatchNorm", change.head), ("EMA", change.ema))
        missing = [part for part, there in parts if not there]
        return f"BYOL without {' and '.join(missing)}" if missing else "BYOL"
    if name == "B-Tab4" and change.projector:
        modes = zip(("mean", "deviation"), change.projector, strict=True)
        taken = [part + " (detached)" * (mode == "detach") for part, mode in modes if mode != "omit"]
        return f"BYOL, BatchNorm by {' and '.join(taken) or 'neither mean nor deviation'}"
    if name == "B-Tab5":
        return f"BYOL with a new predictor every {change.reset} epochs"
    if name == "B-Tab10":
        return f"BYOL with a predictor on ±{end:g}, new every {change.reset} epochs"
    what = f"BYOL with a linear predictor on [0, {end:g}], {'with' if change.head else 'without'} BatchNorm in it"
    return what + (f", new every {change.reset} epochs" if change.reset else ", without EMA")


def _title(data: str) -> str:
    return {"cifar10": "CIFAR-10", "stl10": "STL-10"}[data]


# -- tables -----------------------------------------------------------------------------------------------------------


NETWORK = "resnet18"


@cache
def sheets() -> Mapping[str, Sheet]:
    """The tables by name: A-Tab2, A-Tab3, and each of B's on STL-10, where the paper has it, and on CIFAR-10."""
    second = ("simclr-exact", "simclr-exact-noise", "simclr-nce")
    third = ("simclr-beta-minus-0.5", "simclr-beta-plus-0.2")
    made = [_by_epochs("A-Tab2", second), _by_epochs("A-Tab3", third)]
    made += [_ablation(name, data) for data in ("stl10", "cifar10") for name in ABLATIONS]
    return {sheet.name: sheet for sheet in made}


def _by_epochs(name: str, slugs: Sequence[str]) -> Sheet:
    """A table with a row a preset, CIFAR-10 before STL-10, and a column a number of epochs."""
    target = printed(name)
    runs = [f"{data}-{slug}" for data in DATA for slug in slugs]
    return _sheet(name, target, [(run, epochs) for run in runs for epochs in EPOCHS])


def _ablation(name: str, data: str) -> Sheet:
    """A table with a preset a cell, after a hundred epochs; the paper's numbers are those on STL-10."""
    target, long = printed(name), f"{name}-{data}-{NETWORK}"
    if data != "stl10":
        source = f"{target.source}, which is on STL-10; here on {_title(data)}, where nothing is printed"
        target = unprinted(long, source, target.axes)
    return _sheet(long, target, [(f"{data}-{_slug(name, *cell)}", EPOCHS[0]) for cell in ablations(name).items()])


def _sheet(name: str, target: Printed, runs: Sequence[tuple[str, int]]) -> Sheet:
    cells = zip(target.cells, runs, target.numbers(), strict=True)
    return Sheet(name, target, tuple(Cell(label, *run, *numbers) for label, run, numbers in cells))


# -- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Settings with the name of the preset that they come from."""

    name: str
    settings: Settings

    @property
    def title(self) -> str:
        """How one speaks of it: ``cifar10-byol seed 1``."""
        return f"{self.name} seed {self.settings.seed}"

    @cached_property  # a table asks for it a dozen times
    def slug(self) -> str:
        """What names it: ``cifar10-simclr-nce-s1-0a1b2c3d4e``."""
        return f"{self.name}-s{self.settings.seed}-{self.settings.hash()}"

    def folder(self, root: Path) -> Path:
        """Where its files lie."""
        return root / self.slug

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
