"""What the command line can record and show, by name: strings, so that a list of names loads no experiment."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sslbook.runtime.arguments import InputError, unknown


@dataclass(frozen=True)
class Recorder:
    """What makes a record: ``module:function`` below `sslbook.experiments`, called with seeds, and those that it is made with."""

    maker: str
    seeds: tuple[int, ...]

    def __call__(self, seeds: tuple[int, ...]) -> dict[str, Any]:
        """The values of the record for these seeds."""
        module, _, function = self.maker.partition(":")
        make: Callable[[tuple[int, ...]], dict[str, Any]] = getattr(_experiment(module), function)
        return make(seeds)


RECORDERS: dict[str, Recorder] = {
    "byol-average": Recorder("byol.records:average_values", tuple(range(10))),
    "byol-average-cifar10": Recorder("byol.records:average_cifar10_values", (0, 1, 2)),
    "byol-cifar10": Recorder("byol.records:cifar10_values", (0, 1, 2, 3, 4)),
    "byol-digits": Recorder("byol.records:digits_values", (0, 1, 2, 3, 4)),
    "byol-resets": Recorder("byol.records:resets_values", (0, 1, 2, 3, 4)),
    "covariance-cifar10": Recorder("covariance.runs:cifar10_values", (0, 1, 2)),
    "emergence-two-layer": Recorder("emergence.runs:two_layer_values", tuple(range(30))),
    "hltm-narrow": Recorder("hltm.records:narrow_values", tuple(range(1, 41))),
    "hltm-norms": Recorder("hltm.records:norm_values", tuple(range(1, 31))),
    "hltm-norms-printed": Recorder("hltm.records:printed_norm_values", tuple(range(1, 31))),
    "hltm-tables": Recorder("hltm.records:table_values", tuple(range(1, 11))),
    "modulation-contested": Recorder("modulation.records:contested_values", tuple(range(4, 16))),
    "modulation-filters": Recorder("modulation.records:filter_values", (1, 2, 3)),
    "modulation-seeds": Recorder("modulation.records:seed_values", (4,)),
    "modulation-tables": Recorder("modulation.records:table_values", (1, 2, 3)),
    "operators-today-cifar10": Recorder("operators_today.runs:cifar10_values", (1, 2, 3)),
    "training-beta": Recorder("training.recorded:beta_values", tuple(range(1, 11))),
    "training-cifar10": Recorder("training.recorded:cifar10_values", (1, 2, 3)),
    "training-digits": Recorder("training.live:simclr_values", tuple(range(8))),
    "training-exact": Recorder("training.recorded:exact_values", tuple(range(1, 11))),
    "training-long": Recorder("training.recorded:long_values", (1, 2, 3)),
    "training-operator": Recorder("training.layer_operators:operator_values", (1, 2, 3)),
    "training-operator-full": Recorder("training.layer_operators:full_values", (1,)),
    "training-rates": Recorder("training.recorded:rate_values", (1, 2, 3)),
    "training-steepness": Recorder("training.recorded:steepness_values", (1, 2, 3, 4, 5)),
    "training-whole": Recorder("training.recorded:whole_values", (1,)),
}
"""What makes each record of `data/results` that no table of full runs is."""

BYOL = ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")
TABLES: dict[str, str] = {
    **dict.fromkeys(("A-Tab2", "A-Tab3"), "sslbook.training.presets.tables"),
    **dict.fromkeys(("A-Tab4", "A-Tab6", "B-Tab2"), "sslbook.experiments.hltm.tables"),
    **dict.fromkeys(
        (f"{name}-{data}-convnet" for data in ("digits", "cifar10") for name in BYOL), "sslbook.experiments.byol.tables"
    ),
    **dict.fromkeys(
        (f"{name}-{data}-resnet18" for data in ("stl10", "cifar10") for name in BYOL), "sslbook.training.presets.tables"
    ),
    **dict.fromkeys(
        ("C-Tab1", "C-Fig4", "C-Fig5", "C-Fig9", "C-Fig10", "C-Fig11"), "sslbook.experiments.modulation.tables"
    ),
}
"""The module whose ``TABLES`` declares each table: the paper's name of it, and where it is one
of several experiments, its images and its network."""


def table(name: str) -> Any:
    """The declared `sslbook.records.table_command.Table` of a name; raises InputError, with the names that are meant, for
    another."""
    if kin := [known for known in TABLES if known.startswith(f"{name}-")]:
        raise InputError(f"printed table: {name} is run in several ways; name one of {', '.join(kin)}")
    if name not in TABLES:
        raise unknown("printed table", name, TABLES)
    return importlib.import_module(TABLES[name]).TABLES[name]


def _experiment(module: str) -> Any:
    return importlib.import_module(f"sslbook.experiments.{module}")
