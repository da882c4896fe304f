"""Table 1 and Figures 4, 5, 9, 10 and 11 of [tian2023] as cells to train, and how far Table 1's numbers lie from ours."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslbook.experiments.modulation.reference import ACTIVATIONS
from sslbook.experiments.modulation.runs import PRINTED, SCORES, TableCell, TokenRun, train_cells
from sslbook.records.filled import Entry, Filled, fill
from sslbook.records.printed import Printed, batchnorm_modes, printed, unprinted
from sslbook.records.store import Record, rounded
from sslbook.records.table_command import PROCESSES, Table, choice, count, processes_of

BETAS, PATTERNS, _ = printed("C-Tab1").axes.values()

PARTS = {label: batchnorm_modes(label) for label in printed("C-Tab1").columns}
"""Table 1's columns, with the modes of mean and deviation; a stroke: not differentiated through."""

ZETAS = (2.0, 5.0, 10.0)
"""Figure 11's lengths."""

NAMES = ("C-Tab1", "C-Fig4", "C-Fig9", "C-Fig10", "C-Fig11", "C-Fig5")
"""A table with printed numbers, four figures of scores, and one of weights."""

VARIANTS = {
    "released": TokenRun(),
    "released, 20 outputs": TokenRun(outputs=20),
    "released, rate of the text": TokenRun(rate=PRINTED.rate),
    "printed": PRINTED,
}
"""Which experiment: the released code's, with the options of its instructions or the default number of outputs, or the text's."""


def curves(name: str) -> dict[str, TableCell]:
    """The curves of a figure, or the columns of Table 1: what a cell is at ``P = 1`` and :math:`\\beta = 1`, by its label."""
    if name == "C-Tab1":
        return {label: TableCell(mean=mean, std=std, zeta=10.0) for label, (mean, std) in PARTS.items()}
    if name == "C-Fig4":
        kinds = {"InfoNCE": "info_nce", "quadratic loss": "quadratic"}
        return {
            f"{a}, {label}": TableCell(activation=a, loss=kind)
            for label, kind in kinds.items()
            for a in ("linear", "relu")
        }
    if name in ("C-Fig9", "C-Fig10"):
        return {
            a.replace("_", " "): TableCell(activation=a, loss="info_nce" if name == "C-Fig9" else "quadratic")
            for a in ACTIVATIONS
        }
    if name == "C-Fig11":
        plain, normed = TableCell(mean="omit", std="omit"), TableCell()
        labels = {"BN": normed, "no BN": plain}
        return {f"{label}, ζ = {z:g}": replace(cell, zeta=z) for z in ZETAS for label, cell in labels.items()}
    if name == "C-Fig5":
        return {a: TableCell(activation=a) for a in ("relu", "linear")}
    raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")


def cells(name: str) -> dict[tuple[int, int, str], TableCell]:
    """All cells of a table or figure, by :math:`\\beta`, ``P`` and label; Figure 5 has :math:`\\beta = 5` and ``P = 3`` alone."""
    sizes = [(5, 3)] if name == "C-Fig5" else [(beta, p) for beta in BETAS for p in PATTERNS]
    made = curves(name)
    return {(b, p, label): replace(cell, beta=b, patterns=p) for b, p in sizes for label, cell in made.items()}


def protocol_of(name: str, protocol: TokenRun) -> TokenRun:
    """``protocol`` with eight tokens for Figure 5, as its caption has it; unchanged for the others."""
    curves(name)  # knows the names
    return replace(protocol, tokens=8) if name == "C-Fig5" else protocol


Found = Mapping[TableCell, Mapping[str, Tensor]]


def in_table(name: str, found: Found, score: str) -> Tensor:
    """One score of what `train_cells` found, ``(betas, patterns, labels, seeds)``; Figure 5's is ``(1, 1, 2, seeds)``."""
    wanted = cells(name)
    shape = (1, 1) if name == "C-Fig5" else (len(BETAS), len(PATTERNS))
    rows: Tensor = torch.stack([found[cell][score] for cell in wanted.values()])
    return rows.view(*shape, -1, rows.shape[1])


def distance(trials: Tensor, target: Printed) -> tuple[float, float]:
    """How far Table 1's means lie from ours: the mean absolute difference, and the root mean square in standard errors.

    The errors are of both means, ours over the trials and theirs over three seeds; a printed spread of 0.00 counts as half its
    last digit.
    """
    gap, errors = _apart(trials, target.mean, _std(target), 3, trials.ndim - 1)
    return gap.item(), errors.item()


def standard_error(trials: Tensor, target: Printed) -> float:
    """The standard error of the difference of the two means, mean over the cells; NaN for one trial."""
    return _errors(trials, _std(target), 3).mean().item()


def lean(trials: Tensor, target: Printed) -> Tensor:
    """By how much ours lie above Table 1's means in each column, ``(columns,)``, the mean over its cells."""
    return _lean(trials, target.mean, trials.ndim - 1)


def _lean(trials: Tensor, mean: Tensor, cells: int) -> Tensor:
    return (trials.mean(-1) - mean).mean(tuple(range(-cells, -1)))


@dataclass(frozen=True)
class Chance:
    """What a perfect reproduction would have, ``(draws,)`` each: the two numbers of :func:`distance`, and the largest absolute
    value of :func:`lean`."""

    gaps: Tensor
    errors: Tensor
    leans: Tensor


def chance(trials: Tensor, target: Printed, draws: int, seed: int, seeds: int = 3) -> Chance:
    """How far Table 1 lies from ours where nothing but chance differs.

    Ours and theirs are drawn from one normal distribution a cell, with the printed mean and the mean of the two variances;
    theirs are rounded as the table is.  A seed is drawn for the whole table, since its cells share sequences and initial
    weights: their correlation is that along each axis of the table, as :func:`shared` finds it, multiplied.  Errors that are
    estimated from three seeds make the second number larger than 1.
    """
    draw = torch.Generator().manual_seed(seed)
    scale = ((trials.var(-1) + _std(target).square()) / 2).sqrt()[..., None]
    roots = [torch.linalg.cholesky(correlation) for correlation in shared(trials)]

    def drawn(count: int) -> Tensor:
        noise = torch.randn(draws, *trials.shape[:-1], count, generator=draw, dtype=trials.dtype)
        for axis, root in enumerate(roots, 1):
            noise = torch.tensordot(root, noise, ([1], [axis])).movedim(0, axis)
        return target.mean[..., None] + scale * noise

    own, theirs = drawn(trials.shape[-1]), drawn(seeds)
    mean, std = (part.mul(100).round() / 100 for part in (theirs.mean(-1), theirs.std(-1)))
    cells = trials.ndim - 1
    return Chance(*_apart(own, mean, std, seeds, cells), _lean(own, mean, cells).abs().amax(-1))


def shared(trials: Tensor) -> list[Tensor]:
    """How cells that differ along one axis of a table are correlated over seeds, a matrix for each axis of ``trials (…, seeds)``.

    Of the deviations from each cell's mean, all other axes and the seeds pooled.
    """
    apart = trials - trials.mean(-1, keepdim=True)
    return [torch.corrcoef(apart.movedim(axis, 0).flatten(1)) for axis in range(trials.ndim - 1)]


def _std(target: Printed) -> Tensor:
    assert target.std is not None  # Table 1 has them
    return target.std


def _errors(trials: Tensor, std: Tensor, seeds: int) -> Tensor:
    own = trials.std(-1) if trials.shape[-1] > 1 else torch.full(trials.shape[:-1], torch.nan, dtype=trials.dtype)
    return (own.square() / trials.shape[-1] + std.clamp_min(0.005).square() / seeds).sqrt()


def _apart(trials: Tensor, mean: Tensor, std: Tensor, seeds: int, cells: int) -> tuple[Tensor, Tensor]:
    """:func:`distance` over the last ``cells`` axes of the means."""
    gap, over = (trials.mean(-1) - mean).abs(), tuple(range(-cells, 0))
    return gap.mean(over), (gap / _errors(trials, std, seeds)).square().mean(over).sqrt()


def wanted_cells(names: Sequence[str]) -> list[TableCell]:
    """The cells of several tables, each once."""
    return list(dict.fromkeys(cell for name in names for cell in cells(name).values()))


def recorded_trials(values: Mapping[str, Any] | Record, name: str, variant: str, score: str) -> Tensor:
    """One table of the record, ``(betas, patterns, labels, seeds)``; raises ValueError, naming the variants there are."""
    kept = values["tables"].get(name, {})
    if variant not in kept:
        raise ValueError(f"variant must be one of {', '.join(kept) or 'none'} for {name}, got {variant!r}")
    return torch.tensor(kept[variant][score], dtype=torch.float64)


def all_trials(first: Mapping[str, Any] | Record, more: Mapping[str, Any] | Record, name: str, score: str) -> Tensor:
    """One table of both records, ``(betas, patterns, labels, seeds)``: what ``more`` has of it, the first seeds before its own."""
    rest = torch.tensor(more["tables"][name][score], dtype=torch.float64)
    own = recorded_trials(first, name, "released", score)
    places = [[own_axis.index(value) for value in more[axis][name]] for axis, own_axis in _axes(first).items()]
    return torch.cat([own[places[0]][:, places[1]], rest], -1)


def _axes(values: Mapping[str, Any] | Record) -> dict[str, list[int]]:
    return {axis: list(values[axis]) for axis in ("betas", "patterns")}


DIGITS = 4
"""Decimals of what is recorded."""


def figure5(seed: int, steps: int | None, processes: int = 1) -> tuple[dict[str, Any], Any]:
    """Figure 5's weights by activation, ``[field][token][filter]``, and which tokens the generators may fix, ``[field][token]``."""
    protocol = protocol_of("C-Fig5", VARIANTS["released"])
    protocol = protocol if steps is None else replace(protocol, steps=steps)
    wanted = cells("C-Fig5")
    found = train_cells(protocol, list(wanted.values()), [seed], processes=processes, keep=True)
    weights = {label: rounded(found[cell]["weights"][0], DIGITS) for (_, _, label), cell in wanted.items()}
    first = next(iter(wanted.values()))
    return weights, found[first]["allowed"][0].tolist()


# ---------------------------------------------------------------------------------------------------------------------
# The tables of ``sslbook table``


def _target(name: str) -> Printed:
    if name == "C-Tab1":
        return printed(name)
    axes = {"betas": BETAS, "patterns": PATTERNS, "columns": tuple(curves(name))}
    return unprinted(name, f"Figure {name.removeprefix('C-Fig')} of [tian2023]", axes)


def _filled(name: str, options: argparse.Namespace, found: Mapping[str, Tensor], **more: Any) -> Filled:
    measures = [f"{options.scores} +", *[f"{options.scores} -"] * (name != "C-Tab1")]
    facts = {"experiment": options.variant, "scores": options.scores, **more.pop("facts", {})}
    return fill(_target(name), found, dict.fromkeys(measures, 2), facts=facts, **more)


def _recall(name: str, record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return _filled(name, options, {})
    found = {score: recorded_trials(record, name, options.variant, score) for score in SCORES}
    facts = {} if options.seeds else _errors_of(name, options, found)  # a choice of seeds has other errors
    return _filled(name, options, found, seeds=record.provenance.seeds, facts=facts)


def _run(name: str, options: argparse.Namespace) -> Filled:
    protocol = VARIANTS[options.variant]
    protocol = replace(protocol, steps=options.steps or protocol.steps)
    device = options.device or "cpu"
    trained = train_cells(protocol, wanted_cells([name]), options.seeds, processes=processes_of(options), device=device)
    found = {score: in_table(name, trained, score) for score in SCORES}
    facts = {"minibatches": protocol.steps, **_errors_of(name, options, found)}
    return _filled(name, options, found, facts=facts)


def _errors_of(name: str, options: argparse.Namespace, found: Mapping[str, Tensor]) -> dict[str, float]:
    """How far Table 1 lies from ours, where there are seeds enough to say."""
    errors = distance(found[f"{options.scores} +"], printed(name))[1] if name == "C-Tab1" else math.nan
    return {} if math.isnan(errors) else {"root mean square difference in standard errors": round(errors, 1)}


def _weights(weights: Mapping[str, Any], allowed: Sequence[Sequence[bool]], **more: Any) -> Filled:
    """Figure 5: each field's largest weight on each token, and a star where a generator may fix it."""
    fields, tokens = (tuple(f"{sign}{i}" for i in range(n)) for sign, n in (("R", len(allowed)), ("", len(allowed[0]))))
    entries = [
        Entry((label, field, token), found={"largest": [max(row) / _largest(rows)], "filters": row}, note="*" * mark)
        for label, of_fields in weights.items()
        for field, rows, marks in zip(fields, of_fields, allowed, strict=True)
        for token, row, mark in zip(tokens, rows, marks, strict=True)
    ]
    axes = {"activations": tuple(weights), "fields": fields, "tokens": tokens}
    return Filled("C-Fig5", "Figure 5 of [tian2023]", axes, tuple(entries), {"largest": 2}, **more)


def _largest(rows: Sequence[Sequence[float]]) -> float:
    return max(abs(max(row)) for row in rows) or 1.0


def _recall_weights(record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return Filled("C-Fig5", "Figure 5 of [tian2023]", {"tokens": ()}, (), {"largest": 2})
    return _weights(record["weights"], record["allowed"], seeds=record.provenance.seeds[:1])


def _run_weights(options: argparse.Namespace) -> Filled:
    if len(options.seeds) > 1:
        raise ValueError(f"--seeds: one is asked for, got {' '.join(map(str, options.seeds))}")
    return _weights(*figure5(options.seeds[0], options.steps, processes_of(options)))


STEPS = count("--steps", "minibatches (default: 5000)", running=True)

OPTIONS = (
    PROCESSES,
    STEPS,
    choice("--variant", "whose experiment", *VARIANTS),
    choice("--scores", "whose formula, released as in Table 1", "released", "printed", "signless"),
)

RECORD, SEEDS = "modulation-tables", (1, 2, 3)

TABLES = {
    name: Table(name, title, RECORD, SEEDS, partial(_recall, name), partial(_run, name), OPTIONS)
    for name in NAMES
    if name != "C-Fig5"
    for title in ["Matching scores χ+" + (" and χ-" if name != "C-Tab1" else "")]
}

STARRED = (
    "Each field's largest weight on each token, in units of the field's; a star: a generator may fix the token there"
)

TABLES["C-Fig5"] = Table("C-Fig5", STARRED, RECORD, SEEDS[:1], _recall_weights, _run_weights, (PROCESSES, STEPS))
