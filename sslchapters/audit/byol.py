r"""Tables 3, 4, 5 and 7 to 10 of [tian2021iclr] on small images: filled, shown by ``sslbook table`` and on pages, and recorded."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from sslbook._check import positive
from sslbook.training.run.distributed import join
from sslchapters.byol import runs
from sslchapters.byol.records import DIGITS, EMA, NAMES, after, cells, filled
from sslchapters.byol.runs import Ablation, Recipe, Split, train_ablations
from sslchapters.records import Record, parts_folder, rounded
from sslchapters.sweep import Study
from sslchapters.tables import Filled, Table, listing

CIFAR10 = Recipe(
    shape=runs.Shape(size=32, colours=3, channels=(16, 32, 64), width=128, output=64),
    augmentation=runs.Augmentation(shift=0.15, zoom=0.25, rotation=0.0, gain=0.3, tint=0.2, grey=0.2, mirror=True),
    epochs=4,
    batch=128,
)
CIFAR10_IMAGES = 20_000
"""Training images: four epochs of them take a CPU half an hour for all cells and five seeds."""
SLOWER = 2 / 3
"""Table 10's learning rate, as a share of the other tables' (0.02 and 0.03 in the paper)."""
IMAGES: dict[str, tuple[Callable[[], Split], Recipe]] = {
    "digits": (runs.digits, DIGITS),
    "cifar10": (lambda: runs.cifar10(CIFAR10_IMAGES), CIFAR10),
}


def protocol_of(name: str, protocol: Recipe) -> Recipe:
    """``protocol`` with the learning rate of the table: Table 10's is smaller than the others'."""
    return replace(protocol, rate=protocol.rate * SLOWER) if name == "B-Tab10" else protocol


# ---------------------------------------------------------------------------------------------------------------------
# The tables of ``sslbook table``


def _show(name: str, record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return filled(name, {})
    epochs = list(record["epochs"])
    epoch = options.epochs or epochs[-1]
    if epoch not in epochs:
        raise ValueError(f"--epochs: the record holds {', '.join(map(str, epochs))}, got {epoch}; --run runs others")
    shown = filled(name, after(record["tables"][name], epochs.index(epoch)))
    return replace(shown, facts={"epochs": epoch}, seeds=record.provenance.seeds)


def _run(name: str, data: str, options: argparse.Namespace) -> Filled:
    load, protocol = IMAGES[data]
    protocol = protocol_of(name, replace(protocol, epochs=options.epochs or protocol.epochs))
    fresh = train_ablations(protocol, cells(name, protocol), options.seeds, load(), device=options.device or "cpu")
    found = {cell: {m: values[m][0] for m in runs.MEASURES} for cell, values in fresh.items()}
    return replace(filled(name, found), facts={"epochs": protocol.epochs})


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=positive, metavar="N", help="after so many epochs (default: the last)")


MEASURED = (
    "paper, accuracy: of a linear probe in percent, mean and deviation. rank: effective rank of the encoder's features."
    " likeness: mean cosine between the projector's outputs for different images."
)
RESET = "T: epochs after which the predictor is drawn anew. 0.01, [0, 0.01]: range of its weights, within ±0.01 or as given."
LEGENDS = dict.fromkeys(NAMES, RESET) | {
    "B-Tab3": "P: predictor. EMA: moving average. BN: BatchNorm in projector and predictor. –: none of them.",
    "B-Tab4": "μ: BatchNorm subtracts the mean. σ: it divides by the deviation. μ̸, σ̸: the same without their gradient. –: neither.",
}
RECORDED = {("B-Tab3", "cifar10"), *((name, "digits") for name in NAMES)}
TABLES = {
    f"{name}-{data}-convnet": Table(
        f"{name}-{data}-convnet",
        f"Theirs on STL-10 with a ResNet-18, ours on {data} with a small conv net",
        f"byol-{data}" if (name, data) in RECORDED else "",
        (0, 1, 2, 3, 4),
        show=partial(_show, name),
        run=partial(_run, name, data),
        options=_options,
        layout=listing,
        legend=f"{LEGENDS[name]} {MEASURED}",
    )
    for data in IMAGES
    for name in NAMES
}


# ---------------------------------------------------------------------------------------------------------------------
# The records

DIGITS_MOMENTS = (0, 5, 10, 20, 50, 100)


def digits_values(seeds: Sequence[int]) -> dict[str, Any]:
    """All tables, the released code's symmetric predictor, and averages against learning rates, on handwritten digits."""
    data = runs.digits()
    wanted = {name: cells(name, DIGITS) for name in NAMES}
    found: dict[tuple[str, str], dict[str, Tensor]] = {}
    for recipe in dict.fromkeys(protocol_of(name, DIGITS) for name in NAMES):  # what tables share is trained once
        some = {(n, label): c for n in NAMES if protocol_of(n, DIGITS) == recipe for label, c in wanted[n].items()}
        found |= train_ablations(recipe, some, seeds, data, at=DIGITS_MOMENTS)
    symmetric = {name: Ablation(2, ema, symmetric=True) for name, ema in (("P, BN", 0.0), ("P, EMA, BN", EMA))}
    averages = {f"{ema:g}": Ablation(2, ema) for ema in (0.0, 0.9, 0.97, 0.99, 0.996)}
    return {
        "axes": "tables[name][cell][measure][epoch][seed]",
        "epochs": DIGITS_MOMENTS,
        "tables": {name: {label: rounded(found[name, label], 5) for label in wanted[name]} for name in NAMES},
        "symmetric": _final(DIGITS, symmetric, seeds, data),
        "rates": {
            f"{rate:g}": _final(replace(DIGITS, rate=rate), averages, seeds, data) for rate in (0.03, 0.1, 0.3, 1.0)
        },
    }  # rates[rate][average][measure][seed]


LONG_MOMENTS = (0, 5, 10, 20, 50, 100, 200, 400)
LONG = {"B-Tab4": ("σ", "–", "σ̸", "μ̸", "μ"), "B-Tab3": ("BN", "EMA, BN", "–", "EMA", "P", "P, EMA")}
LONG["B-Tab4"] += ("μ, σ", "μ, σ̸", "μ̸, σ", "μ̸, σ̸")
"""Of Table 4 all cells, the first ones first; of Table 3 those that collapse in the shorter runs."""


def long_values(table: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Cells of a table on the digits for four times as long."""
    recipe, parts = replace(DIGITS, epochs=LONG_MOMENTS[-1]), parts_folder() / "byol-long"
    some = {cell: cells(table, recipe)[cell] for cell in LONG[table]}
    found = train_ablations(recipe, some, seeds, runs.digits(), at=LONG_MOMENTS, parts=parts)
    return {"axes": "cells[cell][measure][epoch][seed]", "epochs": LONG_MOMENTS, "cells": rounded(found, 5)}


def cifar10_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Table 3's eight cells on CIFAR-10, on the GPU if there is one; raises FileNotFoundError without the data."""
    data = runs.cifar10(CIFAR10_IMAGES)
    at = [0, CIFAR10.epochs // 2, CIFAR10.epochs]
    found = train_ablations(CIFAR10, cells("B-Tab3", CIFAR10), seeds, data, at=at, device=str(join(None)))
    return {
        "axes": "tables[name][cell][measure][epoch][seed]",
        "epochs": at,
        "images": len(data.train),
        "batch": CIFAR10.batch,
        "tables": {"B-Tab3": rounded(found, 5)},
    }


def _final(protocol: Recipe, some: Mapping[str, Ablation], seeds: Sequence[int], data: Split) -> dict[str, Any]:
    found = rounded(train_ablations(protocol, some, seeds, data), 5)
    return {name: {m: values[0] for m, values in measured.items()} for name, measured in found.items()}


RESETS = {"never": (0, (0, 10, 50, 100, 200)), "T = 50": (50, (0, 50, 100))}
"""Epochs of the digits, 21 steps each, between resets: 50 are 1,050 steps.  The papers' ten epochs of STL-10 are some 8,200, which
are 390 of the digits': in a run of so few steps that is never.  And after which to measure, before the reset of that moment."""


def resets_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Tables 8 and 9 with resets by steps, and without; how definite Theorem 8's covariance is along each run."""
    data, parts = runs.digits(), parts_folder() / "byol-resets"
    tabled = {label: cell for name in ("B-Tab8", "B-Tab9") for label, cell in cells(name, DIGITS).items()}
    found: dict[str, Any] = {}
    for name, (reset, at) in RESETS.items():
        some = {label: replace(cell, reset=reset) for label, cell in tabled.items()}
        how = partial(train_ablations, measure=runs.probes_and_definite, parts=parts)
        found[name] = rounded(how(DIGITS, some, seeds, data, at=at), digits=6)
    return {
        "axes": "runs[resets][cell][measure][moment][seed]",
        "epochs": {name: list(at) for name, (_, at) in RESETS.items()},
        "steps": len(data.train) // DIGITS.batch,
        "runs": found,
    }


def average_values(images: str, at: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
    """Predictor and BatchNorm with and without a moving average.

    CIFAR-10's 40 epochs take three quarters of an hour of one core, a cell and a seed at a time.
    """
    load, protocol = IMAGES[images]
    data, some = load(), {f"{ema:g}": Ablation(2, ema) for ema in (0.0, 0.97, 0.996)}
    how: dict[str, Any] = {"measure": runs.probes, "parts": parts_folder() / f"byol-average-{images}"}
    how |= {"alone": True, "device": str(join(None))} if images == "cifar10" else {}
    found = rounded(train_ablations(protocol, some, seeds, data, at=at, **how), digits=6)
    values = {"axes": "averages[average][measure][epoch][seed]", "epochs": list(at), "averages": found}
    return values | ({"images": len(data.train), "batch": protocol.batch} if images == "cifar10" else {})


BATCHLESS = {"BatchNorm": Ablation(2, EMA), "GroupNorm": Ablation(2, EMA, runs.SAMPLE, runs.SAMPLE)}
BATCHLESS |= {
    "GroupNorm, no predictor": Ablation(0, EMA, runs.SAMPLE, runs.SAMPLE),
    "no norm": Ablation(2, EMA, runs.PLAIN, runs.PLAIN),
}
"""Networks without batch statistics in any layer, beside one with BatchNorm in all."""
HALVES = {"group normalisation alone": Ablation(2, EMA, runs.GROUPS, runs.GROUPS)}
HALVES |= {
    "standardised weights alone": Ablation(2, EMA, runs.WEIGHTS, runs.WEIGHTS),
    "no norm, larger": Ablation(2, EMA, runs.LARGE, runs.LARGE),
}
"""What the second of them has both of, and networks without either that begin with larger weights."""

BATCHLESS_AT = (0, 20, 50, 100, 200)


def batchless_values(some: Mapping[str, Ablation], seeds: Sequence[int]) -> dict[str, Any]:
    """:data:`BATCHLESS` or :data:`HALVES` on the digits, at the learning rate of the other records and at a smaller one."""
    data, parts, found = runs.digits(), parts_folder() / "byol-batchless", {}
    for rate in (0.03, 0.1):
        recipe, place = replace(DIGITS, rate=rate), parts / f"{rate:g}"
        found[f"{rate:g}"] = rounded(train_ablations(recipe, some, seeds, data, at=BATCHLESS_AT, parts=place), 5)
    return {"axes": "runs[rate][cell][measure][epoch][seed]", "epochs": list(BATCHLESS_AT), "runs": found}


STUDIES = {
    "byol-batchless": Study(partial(batchless_values, BATCHLESS), tuple(range(8))),
    "byol-average": Study(partial(average_values, "digits", DIGITS_MOMENTS), tuple(range(10))),
    "byol-average-cifar10": Study(partial(average_values, "cifar10", (0, 2, 5, 10, 20, 40)), (0, 1, 2)),
    "byol-cifar10": Study(cifar10_values, (0, 1, 2, 3, 4)),
    "byol-digits": Study(digits_values, (0, 1, 2, 3, 4)),
    "byol-halves": Study(partial(batchless_values, HALVES), tuple(range(8))),
    "byol-long-table3": Study(partial(long_values, "B-Tab3"), tuple(range(5, 10))),
    "byol-long-table4": Study(partial(long_values, "B-Tab4"), tuple(range(5, 10))),
    "byol-resets": Study(resets_values, (0, 1, 2, 3, 4)),
}
