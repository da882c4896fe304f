r"""A preset for every row of the papers' image tables, and the tables as cells that name them.

``sslbook train NAME`` runs one; :meth:`Preset.text` says what the paper got and how long it takes.  Settings are those of the
released code: SimCLR with Adam, no shuffling and the miscounted cosine, BYOL with SGD at a constant rate, a target that starts
from weights of its own, and a plain predictor where the released default is a symmetric one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from sslbook import shipped
from sslbook.training.networks.heads import Norm
from sslbook.training.networks.siamese import Networks
from sslbook.training.runs.settings import Settings

DATA = ("cifar10", "stl10")
BATCHNORM: Norm = ("normal", "normal")
EPOCHS = (100, 300, 500)
RESETS = (5, 10, 20)
SECONDS = {"cifar10": 3.0, "stl10": 3.8}
"""Estimated seconds of an epoch on one H200: for CIFAR-10 what we ask of it, for STL-10 that by its arithmetic."""
TARGET = 4 / 3
"""A target tower's forward passes, beside forward and backward of the other."""

NORMS: dict[str, tuple[str, Norm]] = {
    "–": ("norm-none", ("omit", "omit")),
    "μ": ("norm-mean", ("normal", "omit")),
    "σ": ("norm-std", ("omit", "normal")),
    "μ, σ": ("norm-both", ("normal", "normal")),
    "μ̸": ("norm-xmean", ("detach", "omit")),
    "σ̸": ("norm-xstd", ("omit", "detach")),
    "μ̸, σ": ("norm-xmean-std", ("detach", "normal")),
    "μ, σ̸": ("norm-mean-xstd", ("normal", "detach")),
    "μ̸, σ̸": ("norm-xmean-xstd", ("detach", "detach")),
}
"""Table 4's columns of [tian2021iclr]: names of presets, and modes of mean and deviation; a stroke: not differentiated through."""
WIDE, NARROW, TINY = (0.01, 0.02, 0.05), (0.003, 0.005, 0.007), (0.01, 0.02, 0.03, 0.05)
PARTS: dict[str, tuple[bool, bool, bool]] = {
    "byol-bare": (False, False, False),
    "byol-ema-only": (False, False, True),
    "byol-bn-only": (False, True, False),
    "byol-nopredictor": (False, True, True),
    "byol-predictor-only": (True, False, False),
    "byol-nobn": (True, False, True),
    "byol-noema": (True, True, False),
    "byol": (True, True, True),
}
"""Table 3's cells, in its order: whether there are a predictor, BatchNorm, and a moving average."""


DIGITS = Settings(
    dataset="digits",
    pipeline="digits",
    networks=Networks(width=8, projector_hidden=64, projector_out=32, channels=1),
    numbers={"tau": 0.5},
    rate=5e-3,
    schedule="cosine",
    batch=128,
    epochs=20,
    shuffle=True,
)
SMALL = Settings(
    subset=5000,
    networks=Networks(width=16),
    numbers={"tau": 0.5},
    rate=1e-3,  # the released rate of full runs, 0.01, learns half as much in so few steps
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
    """A printed table as cells to run."""

    name: str
    source: str
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
        """What it is, the command, the accuracy to expect, and the time."""
        lines = [f"{self.name}: {self.what}", f"  sslbook train {self.name} --seed 1"]
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
        replace(_byol(DIGITS, rate=2e-3), optimizer="adam", decay=0.0, batch=64, ema=0.97),
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
        numbers={"tau": 0.5},
        rate=1e-3 if stl else 1e-2,
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
        settings = replace(base, objective="beta", numbers={"tau": 0.5, "beta": beta})
        yield f"simclr-beta-{slug}", f"SimCLR with the positive pair's weight changed by β = {beta:+g}", settings


def byol_settings(data: str) -> Settings:
    """The released BYOL, but for the symmetric predictor: 100 epochs; on STL-10 with its unlabelled images."""
    return replace(_byol(simclr_settings(data), rate=0.03), epochs=100, probes=(100,))


def _byol(base: Settings, rate: float) -> Settings:
    return replace(
        base,
        networks=replace(base.networks, predictor=2, target="ema", target_init="own"),
        objective="byol",
        numbers={},
        optimizer="sgd",
        rate=rate,
        decay=4e-4,
        schedule="constant",
        shuffle=True,
        drop_last=False,
    )


def _ablations(data: str) -> Iterator[tuple[str, str, Settings]]:
    """Tables 3 to 10 of [tian2021iclr]."""
    base = byol_settings(data)
    for slug, (predictor, norm, ema) in PARTS.items():
        networks = _with(base.networks, norm=BATCHNORM if norm else None, predictor=2 * predictor, ema=ema)
        missing = [name for name, there in (("predictor", predictor), ("BatchNorm", norm), ("EMA", ema)) if not there]
        what = f"BYOL without {' and '.join(missing)}" if missing else "BYOL"
        yield slug, what, replace(base, networks=networks)
    for column, (slug, modes) in NORMS.items():
        networks = replace(_with(base.networks, norm=modes), unbiased=True)
        yield f"byol-{slug}", f"BYOL with BatchNorm's parts {column}", replace(base, networks=networks)
    for epochs in RESETS:
        yield f"byol-reset-{epochs}", f"BYOL with a new predictor every {epochs} epochs", replace(base, reset=epochs)
    for ema, reset, ends in ((False, 0, WIDE), (True, 10, (*NARROW, *WIDE))):
        for norm in (True, False):
            for end in ends:
                networks = _with(base.networks, predictor=1, ema=ema)
                networks = replace(networks, predictor_norm=BATCHNORM if norm else None, predictor_range=(0.0, end))
                what = f"BYOL with a linear predictor on [0, {end:g}], {'with' if norm else 'without'} BatchNorm in it"
                what += ", new every 10 epochs" if reset else ", without EMA"
                yield _linear_slug(ema, norm, end), what, replace(base, networks=networks, reset=reset)
    for reset in (3, *RESETS):
        for end in TINY:
            networks = replace(base.networks, predictor_range=(-end, end))
            what = f"BYOL with a predictor on ±{end:g}, new every {reset} epochs"
            yield f"byol-small-{end:g}-reset-{reset}", what, replace(base, networks=networks, reset=reset, rate=0.02)


def _with(networks: Networks, norm: Norm | None = BATCHNORM, predictor: int = 2, ema: bool = True) -> Networks:
    return replace(
        networks, projector_norm=norm, predictor_norm=norm, predictor=predictor, target="ema" if ema else None
    )


def _linear_slug(ema: bool, norm: bool, end: float) -> str:
    return f"byol{'' if ema else '-noema'}-linear{'' if norm else '-nobn'}-{end:g}"


def _title(data: str) -> str:
    return {"cifar10": "CIFAR-10", "stl10": "STL-10"}[data]


# -- tables -----------------------------------------------------------------------------------------------------------


@cache
def sheets() -> Mapping[str, Sheet]:
    """The tables by name: A-Tab2, A-Tab3, and each of B's on STL-10, where the paper has it, and on CIFAR-10."""
    second = ("simclr-exact", "simclr-exact-noise", "simclr-nce")
    third = ("simclr-beta-minus-0.5", "simclr-beta-plus-0.2")
    made = [_by_epochs("A-Tab2", second), _by_epochs("A-Tab3", third)]
    wide, narrow = ([(norm, end) for norm in (True, False) for end in ends] for ends in (WIDE, NARROW))
    slugs: dict[str, Sequence[str]] = {
        "B-Tab3": tuple(PARTS),
        "B-Tab4": [f"byol-{slug}" for slug, _ in NORMS.values()],
        "B-Tab5": ["byol", *(f"byol-reset-{epochs}" for epochs in RESETS)],
        "B-Tab7": [_linear_slug(False, norm, end) for norm, end in wide],
        "B-Tab8": [_linear_slug(True, norm, end) for norm, end in narrow],
        "B-Tab9": [_linear_slug(True, norm, end) for norm, end in wide],
        "B-Tab10": [f"byol-small-{end:g}-reset-{reset}" for reset in (3, *RESETS) for end in TINY],
    }
    made += [_flat(name, data, slugs[name]) for data in ("stl10", "cifar10") for name in slugs]
    return {sheet.name: sheet for sheet in made}


def _by_epochs(name: str, slugs: Sequence[str]) -> Sheet:
    """A table with a row a preset, CIFAR-10 before STL-10, and a column a number of epochs."""
    raw, cells = shipped.printed(name), []
    runs = [f"{data}-{slug}" for data in DATA for slug in slugs]
    for row, (label, run) in enumerate(zip(raw["rows"], runs, strict=True)):
        for column, epochs in enumerate(EPOCHS):
            mean, std = raw["mean"][row][column], raw["std"][row][column]
            cells.append(Cell(f"{label}; {epochs} epochs", run, epochs, mean, std))
    return Sheet(name, raw["source"], tuple(cells))


def _flat(name: str, data: str, slugs: Sequence[str]) -> Sheet:
    """A table with a preset a cell; the paper's numbers are those on STL-10."""
    raw = shipped.printed(name)
    rows = 1 if name == "B-Tab5" else len(raw["rows"])  # Table 5's second row is on ImageNet
    labels = [c if rows == 1 else f"{r}; {c}" for r in raw["rows"][:rows] for c in raw["columns"]]
    means = [value for row in raw["mean"][:rows] for value in row]
    stds = [value for row in raw["std"][:rows] for value in row] if raw["std"] else [None] * len(means)
    here = data == "stl10"
    cells = tuple(
        Cell(label, f"{data}-{slug}", raw["epochs"], mean if here else None, std if here else None)
        for label, slug, mean, std in zip(labels, slugs, means, stds, strict=True)
    )
    source = raw["source"] + ("" if here else f", which is on STL-10; here on {_title(data)}, where nothing is printed")
    return Sheet(f"{name}-{data}", source, cells)
