"""``sslbook table A-Tab6``: a printed table of correlations, rerun at full size and shown beside the paper's numbers."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sslbook.arguments import counted, device, positive
from sslbook.chapters.hltm import recorded, tables
from sslbook.chapters.hltm.statistics import RawCorrelation
from sslbook.chapters.hltm.training import LOSSES, Protocol
from sslbook.machine import cores

RECORD = "hltm-tables"
CELL = 25
"""Characters of ``0.35 ± 0.20 | 0.35 ± 0.20``."""


def main(name: str, arguments: Sequence[str], records: Callable[[str], Any]) -> int:
    """Show the table ``name``; ``records`` gives a recorded run by its name."""
    parser = argparse.ArgumentParser(
        prog=f"sslbook table {name}", description="Rerun a printed table at full size, beside the paper's numbers."
    )
    parser.add_argument("--trials", type=positive, default=10, metavar="N", help="seeds 1 to N (default: 10)")
    parser.add_argument("--loss", choices=LOSSES, default="released", help="whose formula (default: released)")
    parser.add_argument(
        "--statistic", choices=tables.STATISTICS, default="exact", help="how correlations are taken (default: exact)"
    )
    parser.add_argument(
        "--epoch-size", type=_epoch, metavar="N", help="samples an epoch and a measurement (default: 64000)"
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="processes (default: one a core, or one on a GPU)"
    )
    parser.add_argument("--device", type=device, default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--recorded", action="store_true", help="show the recorded run instead of a new one")
    parser.add_argument("--json", action="store_true", help="as JSON, with every trial")
    options = parser.parse_args(arguments)
    target, start = tables.printed(name), time.monotonic()
    if options.recorded:
        record = records(RECORD)
        trials = recorded.trials(record.values, target, options.loss, options.statistic)
        size, origin = record.values["samples"], f"Recorded: {record.provenance}"
    else:
        base = Protocol(loss=options.loss, epoch_size=options.epoch_size or Protocol.epoch_size)
        seeds, workers = range(1, options.trials + 1), options.workers or (cores() if options.device == "cpu" else 1)
        where = counted(workers, "process") if options.device == "cpu" else options.device
        found = tables.table(name, seeds, workers=workers, base=base, device=options.device)
        trials, size = found[options.statistic], base.epoch_size
        origin = f"{time.monotonic() - start:.0f} s on {where}."
    if options.json:
        print(json.dumps(as_json(name, target, trials, options.loss, options.statistic), indent=2))
        return 0
    count = f"{trials.shape[-1]} trial{'s' if trials.shape[-1] > 1 else ''}"
    print(f"{name}: {target.source}.")
    print(
        f"{count}, loss {options.loss}, statistic {options.statistic}, {size:,} samples an epoch; ours | the paper's."
    )
    print(f"{blocks(target, trials)}\n\n{origin}\n{summary(target, trials)}")
    return 0


def blocks(target: tables.Printed, trials: Tensor) -> str:
    """One block a latent variable and width: a line a range of polarities, a column an epoch."""
    mean, std = tables.spread(trials)
    lines = []
    for i, latent in enumerate(target.latents):
        for k, width in enumerate(target.widths):
            head = f"{latent}, {width} units"
            lines += ["", f"{head:<14}" + "   ".join(f"{column:<{CELL}}" for column in target.columns).rstrip()]
            for j, lower in enumerate(target.lower):
                cells = []
                for e in range(len(target.columns)):
                    at = (i, j, k, e)
                    theirs = entry(target.mean[at], None if target.std is None else target.std[at])
                    cells.append(f"{entry(mean[at], std[at]):<11} | {theirs}")
                lines.append(f"  U[{lower:g}, 1]   " + "   ".join(f"{cell:<{CELL}}" for cell in cells).rstrip())
    return "\n".join(lines)


def entry(mean: Tensor, std: Tensor | None) -> str:
    """``0.35 ± 0.20``, or the mean alone if there is no spread."""
    return f"{mean:.2f}" if std is None or math.isnan(std) else f"{mean:.2f} ± {std:.2f}"


def summary(target: tables.Printed, trials: Tensor) -> str:
    """How far our means lie from the paper's, on average and where most; by column."""
    gaps = (tables.spread(trials)[0] - target.mean).abs()
    i, j, k, e = (int(n) for n in torch.unravel_index(gaps.argmax(), gaps.shape))
    where = f"{target.latents[i]}, U[{target.lower[j]:g}, 1], {target.widths[k]} units, {target.columns[e]}"
    by_column = ", ".join(f"{name} {gap:.3f}" for name, gap in zip(target.columns, gaps.mean((0, 1, 2)), strict=True))
    return f"Difference from the paper's means: {gaps.mean():.3f} on average ({by_column}), {gaps.max():.3f} at most ({where})."


def as_json(name: str, target: tables.Printed, trials: Tensor, loss: str, statistic: str) -> dict[str, Any]:
    """The table with every trial, for a program to read."""
    return {
        "name": name,
        "source": target.source,
        "loss": loss,
        "statistic": statistic,
        "axes": "trials[latent][lower][width][column][trial]; printed likewise, without the last",
        "latents": target.latents,
        "lower": target.lower,
        "widths": target.widths,
        "columns": target.columns,
        "epochs": target.epochs,
        "trials": recorded.rounded(trials, 5),
        "printed": {"mean": target.mean.tolist(), "std": None if target.std is None else target.std.tolist()},
    }


def _epoch(text: str) -> int:
    batch = RawCorrelation.batch
    if not text.isdigit() or int(text) < batch or int(text) % batch:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive multiple of the minibatch, {batch}")
    return int(text)
