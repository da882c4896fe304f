"""Table 1 and Figures 4, 5 and 9 to 13 of [tian2023]: shown and run, how far Table 1 lies from ours, and the records."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbook._check import positive
from sslbook._machine import cores
from sslchapters.enumerated import digits, read, readable
from sslchapters.modulation import runs
from sslchapters.modulation.records import BETAS, CURVES, PATTERNS, alone_values, cells, page_values, recorded_trials
from sslchapters.records import Record, parts_folder, rounded
from sslchapters.sweep import Study
from sslchapters.tables import Entry, Filled, Table, fill, printed, unprinted

NAMES = tuple(CURVES)
"""A table with printed numbers, four figures of scores, and one of weights."""

VARIANTS = {
    "released": runs.TokenRun(),
    "released, 20 outputs": runs.TokenRun(outputs=20),
    "released, rate of the text": runs.TokenRun(rate=runs.PRINTED.rate),
    "printed": runs.PRINTED,
}
"""Which experiment: the released code's, with the options of its instructions or the default number of outputs, or the text's."""


Cells = Mapping[tuple[int, int, str], runs.TableCell]


def in_table(cells: Cells, found: Mapping[runs.TableCell, Mapping[str, Tensor]], score: str) -> Tensor:
    """One score of what `train_cells` found, in the axes of ``cells``: ``(betas, patterns, labels, seeds)``."""
    shape = [len({key[axis] for key in cells}) for axis in range(3)]
    rows = torch.stack([found[cell][score] for cell in cells.values()])
    return rows.view(*shape, -1)


def distance(trials: Tensor, mean: Tensor, std: Tensor, draws: int = 0) -> dict[str, Tensor]:
    """How far printed means lie from those of ``trials (..., seeds)``, over the axes of the table, which follow ``draws`` others.

    ``gaps`` is the mean absolute difference; ``errors`` the root mean square in standard errors of both means, ours over the
    trials and theirs over three seeds, whose mean is ``error``; a printed spread of 0.00 counts as half its last digit.  ``leans``:
    by how much ours lie above theirs in each column.
    """
    over, gap = tuple(range(draws, trials.ndim - 1)), trials.mean(-1) - mean
    error = (trials.var(-1) / trials.shape[-1] + std.clamp_min(0.005).square() / 3).sqrt()
    found = {
        "gaps": gap.abs().mean(over),
        "errors": (gap / error).square().mean(over).sqrt(),
        "error": error.mean(over),
    }
    return found | {"leans": gap.mean(over[:-1])}


def chance(trials: Tensor, mean: Tensor, std: Tensor, draws: int, seed: int) -> dict[str, Tensor]:
    """:func:`distance` where nothing but chance differs, with ``draws`` along the first axis.

    Ours and theirs are drawn from one normal distribution a cell, with the printed mean and the mean of the two variances;
    theirs are rounded as the table is.  A seed is drawn for the whole table, since its cells share sequences and initial
    weights: their correlation is that along each axis of the table, as :func:`shared` finds it, multiplied.  Errors that are
    estimated from three seeds make the second number larger than 1.
    """
    draw = torch.Generator().manual_seed(seed)
    scale = ((trials.var(-1) + std.square()) / 2).sqrt()[..., None]
    roots = [torch.linalg.cholesky(correlation) for correlation in shared(trials)]

    def drawn(count: int) -> Tensor:
        noise = torch.randn(draws, *trials.shape[:-1], count, generator=draw, dtype=trials.dtype)
        for axis, root in enumerate(roots, 1):
            noise = torch.tensordot(root, noise, ([1], [axis])).movedim(0, axis)
        return mean[..., None] + scale * noise

    own, theirs = drawn(trials.shape[-1]), drawn(3)
    rounded_mean, rounded_std = (part.mul(100).round() / 100 for part in (theirs.mean(-1), theirs.std(-1)))
    return distance(own, rounded_mean, rounded_std, draws=1)


def shared(trials: Tensor) -> list[Tensor]:
    """How deviations from a cell's mean are correlated along each axis of ``trials (…, seeds)``, all others and seeds pooled."""
    apart = trials - trials.mean(-1, keepdim=True)
    return [torch.corrcoef(apart.movedim(axis, 0).flatten(1)) for axis in range(trials.ndim - 1)]


DIGITS = 4
"""Decimals of what is recorded."""


def _figure5(seed: int, steps: int, processes: int = 1) -> tuple[dict[str, Any], Any]:
    """Figure 5's weights by activation, ``[field][token][filter]``, and which tokens the generators may fix, ``[field][token]``;
    of eight tokens, as its caption has it."""
    wanted = cells("C-Fig5")
    protocol = runs.TokenRun(tokens=8, steps=steps)
    found = runs.train_cells(protocol, list(wanted.values()), [seed], processes=processes, keep=True)
    weights = {label: rounded(found[cell]["weights"][0], DIGITS) for (_, _, label), cell in wanted.items()}
    return weights, next(iter(found.values()))["allowed"][0].tolist()


def _filled(name: str, options: argparse.Namespace, found: Mapping[str, Tensor], **more: Any) -> Filled:
    measures = [f"{options.scores} +", *[f"{options.scores} -"] * (name != "C-Tab1")]
    facts = {"experiment": options.variant, "scores": options.scores, **more.pop("facts", {})}
    axes = {"betas": BETAS, "patterns": PATTERNS, "columns": tuple(CURVES[name])}
    figure = f"Figure {name.removeprefix('C-Fig')} of [tian2023]"
    target = printed(name) if name == "C-Tab1" else unprinted(name, figure, axes)
    trials = found.get(measures[0], torch.empty(0))
    chosen = options.seeds and not options.run  # a choice of seeds has other errors, and one seed has none
    if target.std is not None and trials.shape[-1] > 1 and not chosen:
        errors = distance(trials, target.mean, target.std)["errors"].item()
        facts |= {"root mean square difference in standard errors": round(errors, 1)}
    return fill(target, found, dict.fromkeys(measures, 2), facts=facts, **more)


def _show(name: str, record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return _filled(name, options, {})
    found = {score: recorded_trials(record, name, options.variant, score) for score in runs.SCORES}
    return _filled(name, options, found, seeds=record.provenance.seeds)


def _processes(options: argparse.Namespace) -> int:
    return int(options.processes or (cores() if options.device in (None, "cpu") else 1))


def _run(name: str, options: argparse.Namespace) -> Filled:
    protocol = VARIANTS[options.variant]
    protocol = replace(protocol, steps=options.steps or protocol.steps)
    device, processes = options.device or "cpu", _processes(options)
    trained = runs.train_cells(protocol, list(cells(name).values()), options.seeds, processes=processes, device=device)
    found = {score: in_table(cells(name), trained, score) for score in runs.SCORES}
    return _filled(name, options, found, facts={"minibatches": protocol.steps})


def _weights(weights: Mapping[str, Any], allowed: Sequence[Sequence[bool]], **more: Any) -> Filled:
    """Figure 5: each field's largest weight on each token, and a star where a generator may fix it."""
    fields, tokens = (tuple(f"{sign}{i}" for i in range(n)) for sign, n in (("R", len(allowed)), ("", len(allowed[0]))))
    entries = [
        Entry((label, field, token), found={"largest": [max(row) / size], "filters": row}, note="*" * mark)
        for label, of_fields in weights.items()
        for field, rows, marks in zip(fields, of_fields, allowed, strict=True)
        for size in [max(abs(max(row)) for row in rows) or 1.0]
        for token, row, mark in zip(tokens, rows, marks, strict=True)
    ]
    axes = {"activations": tuple(weights), "fields": fields, "tokens": tokens}
    return Filled("C-Fig5", "Figure 5 of [tian2023]", axes, tuple(entries), {"largest": 2}, **more)


def _show_weights(record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return Filled("C-Fig5", "Figure 5 of [tian2023]", {"tokens": ()}, (), {"largest": 2})
    return _weights(record["weights"], record["allowed"], seeds=record.provenance.seeds[:1])


def _run_weights(options: argparse.Namespace) -> Filled:
    if len(options.seeds) > 1:
        raise ValueError(f"--seeds: one is asked for, got {' '.join(map(str, options.seeds))}")
    return _weights(*_figure5(options.seeds[0], options.steps or runs.TokenRun.steps, _processes(options)))


def _size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=positive, metavar="N", help="processes at once (default: one a core)")
    parser.add_argument("--steps", type=positive, metavar="N", help="minibatches (default: 5000)")


def _options(parser: argparse.ArgumentParser) -> None:
    _size(parser)
    known = ", ".join(map(repr, VARIANTS))
    help = f"whose experiment: {known} (default: released)"
    parser.add_argument("--variant", choices=VARIANTS, default="released", metavar="NAME", help=help)
    help = "whose formula, released as in Table 1 (default: released)"
    parser.add_argument("--scores", choices=("released", "printed", "signless"), default="released", help=help)


RECORD, SEEDS = "modulation-tables", (1, 2, 3)
TABLES = {
    name: Table(name, title, RECORD, SEEDS, partial(_show, name), partial(_run, name), _options)
    for name in NAMES
    if name != "C-Fig5"
    for title in ["Matching scores χ+" + (" and χ-" if name != "C-Tab1" else "")]
}
title = (
    "Each field's largest weight on each token, in units of the field's; a star: a generator may fix the token there"
)
TABLES["C-Fig5"] = Table("C-Fig5", title, RECORD, SEEDS[:1], _show_weights, _run_weights, _size)

FIGURES = ("C-Fig4", "C-Fig9", "C-Fig10", "C-Fig11")


def _trained(
    protocol: runs.TokenRun, wanted: Mapping[str, Cells], seeds: Sequence[int], parts: Path | None = None
) -> Any:
    """Tables trained together: ``[name][score][beta][patterns][label][seed]``."""
    every = [cell for some in wanted.values() for cell in some.values()]
    found = runs.train_cells(protocol, every, seeds, processes=cores(), parts=parts)
    return {
        name: {score: rounded(in_table(some, found, score), DIGITS) for score in runs.SCORES}
        for name, some in wanted.items()
    }


def table_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Table 1 in all of :data:`VARIANTS`, the figures as the released code has them, and Figure 5's weights of the first seed."""
    values: dict[str, Any] = {
        "axes": "tables[name][variant][score][beta][patterns][label][seed]; weights[label][field][token][filter]",
        "betas": BETAS,
        "patterns": PATTERNS,
        "labels": {name: tuple(CURVES[name]) for name in NAMES},
        "tables": {},
        "seconds": {},
    }
    for variant, protocol in VARIANTS.items():
        begun, chosen = time.monotonic(), ("C-Tab1", *(FIGURES if variant == "released" else ()))
        for name, table in _trained(protocol, {name: cells(name) for name in chosen}, seeds).items():
            values["tables"].setdefault(name, {})[variant] = table
        values["seconds"][variant] = round(time.monotonic() - begun, 1)
    values["weights"], values["allowed"] = _figure5(seeds[0], VARIANTS["released"].steps, cores())
    return values


WIDE = ("C-Fig9", "C-Fig10")
"""Figures that `seed_values` trains with spare filters and several patterns alone, where activations are compared."""


def seed_values(seeds: Sequence[int]) -> dict[str, Any]:
    """More seeds of what the chapter compares, as the released code has it: Table 1, Figure 11, and Figures 9 and 10 for
    :math:`\\beta > 1` and ``P > 1``.

    Finished chunks are kept in `sslchapters.records.parts_folder`, and not made again.
    """
    wanted = {
        name: {key: cell for key, cell in cells(name).items() if name not in WIDE or min(key[:2]) > 1}
        for name in ("C-Tab1", "C-Fig11", *WIDE)
    }
    return {
        "axes": "tables[name][score][beta][patterns][label][seed]",
        "betas": {name: BETAS[name in WIDE :] for name in wanted},
        "patterns": {name: PATTERNS[name in WIDE :] for name in wanted},
        "tables": _trained(VARIANTS["released"], wanted, seeds, parts_folder() / "modulation-seeds"),
    }


CONTESTED = {
    "C-Fig10": (3, ("linear", "relu", "quadratic")),
    "C-Fig11": (1, ("BN, ζ = 10", "no BN, ζ = 10")),
}
r"""Figures with the ``P`` and the curves that few seeds leave open, each for :math:`\beta > 1`."""


def contested_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Many seeds of what few leave open, :data:`CONTESTED`, scored as the released code does."""
    wanted = {
        name: {key: cell for key, cell in cells(name).items() if key[0] > 1 and key[1] == p and key[2] in labels}
        for name, (p, labels) in CONTESTED.items()
    }
    tables = _trained(VARIANTS["released"], wanted, seeds)
    return {
        "axes": "tables[name][beta][label][seed]",
        "betas": BETAS[1:],
        "patterns": {name: patterns for name, (patterns, _) in CONTESTED.items()},
        "labels": {name: labels for name, (_, labels) in CONTESTED.items()},
        "tables": {name: [of_beta[0] for of_beta in table["released +"]] for name, table in tables.items()},
    }


def filter_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Figures 12 and 13: filters of image quarters without and with random crops, how many live, how rough and how alike
    these are.

    ``filters[figure][field][filter][row][column]``; ``living[figure][seed]`` is a share of all filters, ``roughness`` and
    ``likeness`` likewise are means over the living ones, before training under ``untrained``.  Kept are the ten longest
    filters of each field, of the first seed.
    """
    data, steps = read("mnist", "train") if readable("mnist") else digits(), 50_000
    values: dict[str, Any] = {"data": data.name, "images": len(data), "steps": steps}
    values |= {name: {} for name in ("filters", "living", "roughness", "likeness")}
    for figure, strength in {"untrained": 0.0, "C-Fig12": 0.0, "C-Fig13": 0.5}.items():
        found = runs.train_filters(data, strength, 1 if figure == "untrained" else steps, list(seeds)).double()
        alive = runs.living(found)
        rough = torch.where(alive, runs.roughness(found), torch.nan).flatten(1).nanmean(1)
        values["living"][figure] = rounded(alive.double().mean((1, 2)), DIGITS)
        values["roughness"][figure] = rounded(rough, DIGITS)
        values["likeness"][figure] = rounded(runs.likeness(found, alive), DIGITS)
        if figure != "untrained":
            longest = found[0].flatten(2).norm(dim=2).argsort(1, descending=True)[:, :10]
            kept = torch.stack([w[i] for w, i in zip(found[0], longest, strict=True)])
            values["filters"][figure] = rounded(kept, DIGITS)
    return values


STUDIES = {
    "modulation-alone": Study(alone_values, tuple(range(31, 51))),
    "modulation-contested": Study(contested_values, tuple(range(4, 16))),
    "modulation-filters": Study(filter_values, (1, 2, 3)),
    "modulation-page": Study(page_values, tuple(range(11, 17))),
    "modulation-seeds": Study(seed_values, (4,)),
    "modulation-tables": Study(table_values, (1, 2, 3)),
}
