"""What the command line can record and show, by name: strings, so that a list of names loads no experiment."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sslbook._check import InputError, unknown

if TYPE_CHECKING:
    from sslchapters.sweep import Study

RECORDERS: dict[str, str] = {
    name: f"sslchapters.{module}"
    for module, names in {
        "audit.byol": "byol-average byol-average-cifar10 byol-batchless byol-cifar10 byol-digits"
        " byol-long-table4 byol-resets",
        "covariance.runs": "covariance-cifar10 covariance-runs",
        "emergence.runs": "emergence-two-layer",
        "growth.records": "growth-dose growth-zero",
        "audit.order": "growth-order",
        "audit.photographs": "growth-photographs",
        "audit.hltm": "hltm-narrow hltm-narrow-mixed hltm-norms hltm-norms-printed hltm-tables",
        "audit.modulation": "modulation-alone modulation-contested modulation-filters modulation-page"
        " modulation-seeds modulation-tables",
        "landscape.layers": "landscape-layer",
        "operators_today.runs": "operators-today-cifar10 operators-today-ingredients",
        "training.live": "training-digits",
        "training.layer_operators": "training-operator training-operator-full training-opened",
        "training.records": "training-beta training-cifar10 training-exact training-long training-rates"
        " training-more-rates training-steepness training-whole training-recipe training-hundred training-long-more",
    }.items()
    for name in names.split()
}
"""The module whose ``STUDIES`` declares each record of `data/results` that no table of full runs is."""

BYOL = ("B-Tab3", "B-Tab4", "B-Tab5", "B-Tab7", "B-Tab8", "B-Tab9", "B-Tab10")
TABLES: dict[str, str] = {
    name: f"sslchapters.audit.{module}"
    for module, names in (
        ("full_runs", ("A-Tab2", "A-Tab3")),
        ("hltm", ("A-Tab4", "A-Tab6", "B-Tab2")),
        ("byol", [f"{name}-{data}-convnet" for data in ("digits", "cifar10") for name in BYOL]),
        ("full_runs", [f"{name}-{data}-resnet18" for data in ("stl10", "cifar10") for name in BYOL]),
        ("modulation", ("C-Tab1", "C-Fig4", "C-Fig5", "C-Fig9", "C-Fig10", "C-Fig11")),
    )
    for name in names
}
"""The module whose ``TABLES`` declares each table: the paper's name of it, and where it is one
of several experiments, its images and its network."""
WORDS = {
    "A-Tab2": "SimCLR: exact loss against InfoNCE",
    "A-Tab3": "SimCLR: weight beta of the positive pair",
    "A-Tab4": "latent tree: units against the topmost variable",
    "A-Tab6": "latent tree: units against inner variables",
    "B-Tab2": "latent tree: units after 1 and 20 epochs",
    "B-Tab3": "BYOL: predictor, moving average (EMA), BatchNorm",
    "B-Tab4": "BYOL: halves of BatchNorm, with and without gradient",
    "B-Tab5": "BYOL: predictor reset every T epochs",
    "B-Tab7": "BYOL: one-layer predictor, no moving average",
    "B-Tab8": "BYOL: one-layer predictor, with moving average",
    "B-Tab9": "BYOL: as B-Tab8, other initial weights",
    "B-Tab10": "BYOL: two-layer predictor, with moving average",
    "C-Tab1": "modulation: versions of BatchNorm",
    "C-Fig4": "modulation: InfoNCE and quadratic loss, ReLU and linear",
    "C-Fig5": "modulation: weights in each receptive field",
    "C-Fig9": "modulation: InfoNCE, further activations",
    "C-Fig10": "modulation: quadratic loss, further activations",
    "C-Fig11": "modulation: with and without BatchNorm",
}
"""What each table of a paper compares, by the paper's name of it."""


def printed_name(name: str) -> str:
    """The paper's name of a table, without where we run it: ``B-Tab3`` of ``B-Tab3-digits-convnet``."""
    return "-".join(name.split("-")[:2])


def study(name: str) -> Study:
    """What makes the record of a name, and with which seeds; raises InputError, with the names that are meant, for another."""
    if name not in RECORDERS:
        raise unknown("recorded run", name, RECORDERS)
    found: Study = importlib.import_module(RECORDERS[name]).STUDIES[name]
    return found


def table(name: str) -> Any:
    """The declared `sslchapters.tables.Table` of a name; raises InputError, with the names that are meant, for another."""
    if kin := [known for known in TABLES if known.startswith(f"{name}-")]:
        raise InputError(f"printed table: {name} is run in several ways; name one of {', '.join(kin)}")
    if name not in TABLES:
        raise unknown("printed table", name, TABLES)
    return importlib.import_module(TABLES[name]).TABLES[name]
