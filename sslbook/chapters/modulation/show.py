"""``sslbook table C-Tab1``: a table or figure of matching scores, rerun at full size, Table 1 beside the paper's numbers."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslbook.arguments import counted, device, positive, seed
from sslbook.chapters.modulation import recorded, tables
from sslbook.chapters.modulation.scores import SCORES
from sslbook.chapters.modulation.training import run
from sslbook.machine import cores

RECORD = "modulation-tables"


def main(name: str, arguments: Sequence[str], records: Callable[[str], Any]) -> int:
    """Show the table or figure ``name``; ``records`` gives a recorded run by its name."""
    parser = argparse.ArgumentParser(
        prog=f"sslbook table {name}", description="Rerun a table or figure of matching scores at full size."
    )
    parser.add_argument("--seeds", type=seed, nargs="+", default=[1, 2, 3], metavar="N", help="seeds (default: 1 2 3)")
    parser.add_argument(
        "--variant", choices=tuple(tables.VARIANTS), default="released", help="whose experiment (default: released)"
    )
    parser.add_argument(
        "--scores",
        choices=("printed", "released", "signless"),
        default="released",
        help="whose formula (default: released, which Table 1 was made with)",
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="minibatches (default: 5000)")
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="processes (default: one a core, or one on a GPU)"
    )
    parser.add_argument("--device", type=device, default="cpu", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--recorded", action="store_true", help="show the recorded run instead of a new one")
    parser.add_argument("--json", action="store_true", help="as JSON, with every trial")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    if name == "C-Fig5":
        return _weights(options, records)
    if options.recorded:
        record = records(RECORD)
        try:
            found = {s: recorded.trials(record.values, name, options.variant, s) for s in SCORES}
        except ValueError as error:
            parser.error(f"--recorded: {error}")
        origin = f"Recorded: {record.provenance}"
    else:
        protocol = tables.VARIANTS[options.variant]
        workers = options.workers or (cores() if options.device == "cpu" else 1)
        where = counted(workers, "process") if options.device == "cpu" else options.device
        protocol = replace(protocol, steps=options.steps or protocol.steps)
        trained = run(protocol, tables.wanted_cells([name]), options.seeds, workers=workers, device=options.device)
        found = {s: tables.in_table(name, trained, s) for s in SCORES}
        count = len(tables.cells(name)) * len(dict.fromkeys(options.seeds))
        ran = f"{counted(count, 'run')} of {counted(protocol.steps, 'minibatch')}"
        origin = f"{ran}: {time.monotonic() - start:.0f} s on {where}."
    if options.json:
        print(json.dumps(as_json(name, options.variant, found), indent=2, ensure_ascii=False))
        return 0
    plus, minus = (found[f"{options.scores} {sign}"] for sign in "+-")
    print(
        f"{name} of [tian2023]; {options.variant} experiment, {options.scores} scores, {counted(plus.shape[-1], 'seed')}."
    )
    if name == "C-Tab1":
        print(f"χ+: ours | the paper's.\n\n{beside(plus)}\n\n{origin}\n{summary(plus)}")
    else:
        print(f"χ+, χ-.\n\n{block(name, plus, minus)}\n\n{origin}")
    return 0


def _weights(options: argparse.Namespace, records: Callable[[str], Any]) -> int:
    if options.recorded:
        values = records(RECORD).values
        weights, allowed = values["weights"], values["allowed"]
    else:
        weights, allowed = recorded.figure5(options.seeds[0], options.steps, options.workers or cores())
    if options.json:
        print(json.dumps({"axes": "weights[label][field][token][filter]", "weights": weights, "allowed": allowed}))
        return 0
    print("C-Fig5 of [tian2023]: each field's largest weight on each token, in units of the field's largest.")
    print("A star: a generator may fix the token there.")
    for label, fields in weights.items():
        print(f"\n{label}")
        for k, (field, marks) in enumerate(zip(fields, allowed, strict=True)):
            best = [max(row) for row in field]
            most = max(map(abs, best)) or 1.0
            shown = " ".join(
                f"{value / most:5.2f}{'*' if mark else ' '}" for value, mark in zip(best, marks, strict=True)
            )
            print(f"  R{k}  {shown}".rstrip())
    return 0


def entry(mean: Tensor, std: Tensor | None) -> str:
    """``0.35 ± 0.20``, or the mean alone where there is no spread."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def beside(trials: Tensor) -> str:
    """Table 1, a line a row, ours beside the paper's."""
    target, (mean, std) = tables.printed(), tables.spread(trials)
    lines = ["  β   P   " + "   ".join(f"{label:<27}" for label in tables.PARTS).rstrip()]
    for i, beta in enumerate(tables.BETAS):
        for j, p in enumerate(tables.PATTERNS):
            parts = []
            for c in range(len(tables.PARTS)):
                own = entry(mean[i, j, c], None if std is None else std[i, j, c])
                parts.append(f"{own:<12} | {entry(target.mean[i, j, c], target.std[i, j, c]):<12}")
            lines.append(f"{beta:>3} {p:>3}   " + "   ".join(parts).rstrip())
    return "\n".join(lines)


def block(name: str, plus: Tensor, minus: Tensor) -> str:
    """A figure's numbers: a block a curve, a line a ``P``, a column a :math:`\\beta`, both scores in each place."""
    (above, wide), (below, deep) = tables.spread(plus), tables.spread(minus)
    lines = []
    for c, label in enumerate(tables.curves(name)):
        lines += ["", f"{label:<16}" + "".join(f"β = {beta:<26}" for beta in tables.BETAS).rstrip()]
        for j, p in enumerate(tables.PATTERNS):
            parts = []
            for i in range(len(tables.BETAS)):
                at = (i, j, c)
                pair = (
                    entry(above[at], None if wide is None else wide[at]),
                    entry(below[at], None if deep is None else deep[at]),
                )
                parts.append(f"{', '.join(pair):<30}")
            lines.append(f"  P = {p:<10}" + "".join(parts).rstrip())
    return "\n".join(lines[1:])


def summary(trials: Tensor) -> str:
    """How far our means lie from the paper's, on average, by column, and where most."""
    target = tables.printed()
    gaps = (trials.mean(-1) - target.mean).abs()
    mean, errors = tables.distance(trials, target)
    i, j, c = (int(n) for n in torch.unravel_index(gaps.argmax(), gaps.shape))
    by_column = ", ".join(f"{label}: {gap:.3f}" for label, gap in zip(tables.PARTS, gaps.mean((0, 1)), strict=True))
    where = f"β = {tables.BETAS[i]}, P = {tables.PATTERNS[j]}, {list(tables.PARTS)[c]}"
    shown = "" if math.isnan(errors) else f"; {errors:.1f} standard errors in the root mean square"
    return f"Difference from the paper's means: {mean:.3f} on average ({by_column}), {gaps.max():.3f} at most ({where}){shown}."


def as_json(name: str, variant: str, found: dict[str, Tensor]) -> dict[str, Any]:
    """The table with every trial, for a program to read."""
    content: dict[str, Any] = {
        "name": name,
        "variant": variant,
        "axes": "scores[score][beta][patterns][label][seed]; printed likewise, without the last",
        "betas": tables.BETAS,
        "patterns": tables.PATTERNS,
        "labels": tuple(tables.curves(name)),
        "scores": {score: recorded.rounded(trials) for score, trials in found.items()},
    }
    if name == "C-Tab1":
        target = tables.printed()
        content["printed"] = {"mean": target.mean.tolist(), "std": target.std.tolist()}
    return content
