"""``sslbook table B-Tab3``: an ablation of BYOL, rerun on small images and shown beside the paper's numbers."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslbook.arguments import counted, device, positive
from sslbook.chapters.byol import tables
from sslbook.chapters.byol.ablation import MEASURES, Protocol, Split, cifar10, digits, run
from sslbook.chapters.byol.recorded import CIFAR10, CIFAR10_IMAGES, DIGITS

DATA: dict[str, tuple[Callable[[], Split], Protocol]] = {
    "digits": (digits, DIGITS),
    "cifar10": (lambda: cifar10(CIFAR10_IMAGES), CIFAR10),
}


def main(name: str, arguments: Sequence[str], records: Callable[[str], Any]) -> int:
    """Show the table ``name``; ``records`` gives a recorded run by its name."""
    parser = argparse.ArgumentParser(
        prog=f"sslbook table {name}", description="Rerun an ablation on small images, beside the paper's numbers."
    )
    parser.add_argument("--data", choices=tuple(DATA), default="digits", help="images to train on (default: digits)")
    parser.add_argument("--trials", type=positive, default=5, metavar="N", help="seeds 0 to N - 1 (default: 5)")
    parser.add_argument("--epochs", type=positive, metavar="N", help="epochs (default: 100 on digits, 4 on CIFAR-10)")
    parser.add_argument("--device", type=device, default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--recorded", action="store_true", help="show the recorded run instead of a new one")
    parser.add_argument("--json", action="store_true", help="as JSON, with every trial")
    options = parser.parse_args(arguments)
    load, protocol = DATA[options.data]
    began = time.monotonic()
    if options.recorded:
        record = records(f"byol-{options.data}")
        if name not in record["tables"]:
            parser.error(f"--recorded: the run on {options.data} holds {', '.join(record['tables'])}, not {name}")
        found = last(record["tables"][name])
        epochs, origin = record["epochs"][-1], f"Recorded: {record.provenance}"
    else:
        protocol = tables.protocol_of(name, replace(protocol, epochs=options.epochs or protocol.epochs))
        try:
            data = load()
        except FileNotFoundError as error:
            parser.error(str(error))
        fresh = run(protocol, tables.cells(name, protocol), range(options.trials), data, device=options.device)
        found = {cell: {m: values[m][0] for m in MEASURES} for cell, values in fresh.items()}
        epochs, origin = protocol.epochs, f"{time.monotonic() - began:.0f} s on {options.device}."
    target = tables.printed(name)
    if options.json:
        print(json.dumps(as_json(target, found, options.data, epochs), indent=2, ensure_ascii=False))
        return 0
    trials = len(next(iter(found.values()))["accuracy"])
    print(f"{name}: {target.source}; theirs on STL-10 with a ResNet-18, ours on {options.data} with a small conv net.")
    print(f"{counted(trials, 'trial')} of {counted(epochs, 'epoch')}.\n\n{block(target, found)}\n\n{origin}")
    return 0


def last(cells: dict[str, dict[str, list[list[float]]]]) -> dict[str, dict[str, Tensor]]:
    """A recorded table after its last epoch: cell, measure, ``(seeds,)``."""
    return {cell: {m: torch.tensor(v[-1]).double() for m, v in measured.items()} for cell, measured in cells.items()}


def block(target: tables.Printed, found: dict[str, dict[str, Tensor]]) -> str:
    """A line a cell: the paper's accuracy, ours, and what tells a collapse."""
    wide = max(len(cell) for cell in target.cells) + 1
    lines = [f"{'':{wide}}{'paper':<9}{'ours':<9}{'rank':<5}likeness"]
    for index, cell in enumerate(target.cells):
        row, column = divmod(index, len(target.columns))
        theirs = entry(target.mean[row, column], None if target.std is None else target.std[row, column])
        ours = found[cell]
        accuracy = entry(
            100 * ours["accuracy"].mean(), 100 * ours["accuracy"].std() if len(ours["accuracy"]) > 1 else None
        )
        rank, likeness = (ours[m].mean() for m in ("rank", "likeness"))
        lines.append(f"{cell:{wide}}{theirs:<9}{accuracy:<9}{rank:<5.1f}{likeness:.3f}")
    return "\n".join(lines)


def grid(target: tables.Printed, found: dict[str, dict[str, Tensor]]) -> str:
    """The table's own shape, for many cells: in each the paper's mean accuracy, a bar, and ours."""
    ours = 100 * tables.in_table(target.name, {cell: found[cell]["accuracy"] for cell in target.cells}).mean(2)
    wide = max(len(row) for row in target.rows) + 2
    lines = [" " * wide + "".join(f"{column:<14}" for column in target.columns).rstrip()]
    for name, theirs, row in zip(target.rows, target.mean, ours, strict=True):
        lines.append(f"{name:<{wide}}" + "".join(f"{a:.1f} | {b:<7.1f}" for a, b in zip(theirs, row)).rstrip())
    return "\n".join(lines)


def entry(mean: Tensor, std: Tensor | None) -> str:
    """``78.1±0.3``, or the mean alone where there is no spread; without spaces, so that a line fits a phone."""
    return f"{mean:.1f}" if std is None else f"{mean:.1f}±{std:.1f}"


def as_json(target: tables.Printed, found: dict[str, dict[str, Tensor]], data: str, epochs: int) -> dict[str, Any]:
    """The table with every trial, for a program to read."""
    return {
        "name": target.name,
        "source": target.source,
        "data": data,
        "epochs": epochs,
        "cells": {cell: {m: values.tolist() for m, values in found[cell].items()} for cell in target.cells},
        "printed": {
            "rows": target.rows,
            "columns": target.columns,
            "mean": target.mean.tolist(),
            "std": None if target.std is None else target.std.tolist(),
        },
    }
