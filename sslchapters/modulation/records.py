"""Table 1 and Figures 4, 5 and 9 to 13 of [tian2023]: cells to train, how far Table 1 lies from ours, and the records."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslbook._machine import cores
from sslchapters.enumerated import Images
from sslchapters.modulation.instances import ACTIVATIONS, patch_images
from sslchapters.modulation.runs import (
    PRINTED,
    SCORES,
    PatchRun,
    TableCell,
    TokenRun,
    likeness,
    living,
    mean_of,
    roughness,
    scores,
    train_cells,
    train_course,
    train_filters,
    world_of,
)
from sslchapters.records import Record, parts_folder, rounded
from sslchapters.sweep import Study
from sslchapters.tables import (
    PROCESSES,
    Entry,
    Filled,
    Printed,
    Table,
    batchnorm_modes,
    choice,
    count,
    fill,
    printed,
    processes_of,
    unprinted,
)

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
    assert name == "C-Fig5"
    return {a: TableCell(activation=a) for a in ("relu", "linear")}


def cells(name: str) -> dict[tuple[int, int, str], TableCell]:
    """All cells of a table or figure, by :math:`\\beta`, ``P`` and label; Figure 5 has :math:`\\beta = 5` and ``P = 3`` alone."""
    sizes = [(5, 3)] if name == "C-Fig5" else [(beta, p) for beta in BETAS for p in PATTERNS]
    made = curves(name)
    return {(b, p, label): replace(cell, beta=b, patterns=p) for b, p in sizes for label, cell in made.items()}


Found = Mapping[TableCell, Mapping[str, Tensor]]


def in_table(cells: Mapping[tuple[int, int, str], TableCell], found: Found, score: str) -> Tensor:
    """One score of what `train_cells` found, in the axes of ``cells``: ``(betas, patterns, labels, seeds)``."""
    shape = [len({key[axis] for key in cells}) for axis in range(3)]
    rows = torch.stack([found[cell][score] for cell in cells.values()])
    return rows.view(*shape, -1)


def distance(trials: Tensor, target: Printed) -> tuple[float, float]:
    """How far Table 1's means lie from ours: the mean absolute difference, and the root mean square in standard errors.

    The errors are of both means, ours over the trials and theirs over three seeds; a printed spread of 0.00 counts as half its
    last digit.
    """
    gap, errors = _apart(trials, target.mean, _std(target), trials.ndim - 1)
    return gap.item(), errors.item()


def standard_error(trials: Tensor, target: Printed) -> float:
    """The standard error of the difference of the two means, mean over the cells; NaN for one trial."""
    return _errors(trials, _std(target)).mean().item()


def lean(trials: Tensor, target: Printed) -> Tensor:
    """By how much ours lie above Table 1's means in each column, ``(columns,)``, the mean over its cells."""
    return _lean(trials, target.mean, trials.ndim - 1)


def _lean(trials: Tensor, mean: Tensor, cells: int) -> Tensor:
    return (trials.mean(-1) - mean).mean(tuple(range(-cells, -1)))


def chance(trials: Tensor, target: Printed, draws: int, seed: int) -> dict[str, Tensor]:
    """How far Table 1 lies from ours where nothing but chance differs, ``(draws,)`` each.

    ``gaps`` and ``errors`` are the two numbers of :func:`distance`, ``leans`` the largest absolute value of :func:`lean`.
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

    own, theirs = drawn(trials.shape[-1]), drawn(3)
    mean, std = (part.mul(100).round() / 100 for part in (theirs.mean(-1), theirs.std(-1)))
    cells = trials.ndim - 1
    gaps, errors = _apart(own, mean, std, cells)
    return {"gaps": gaps, "errors": errors, "leans": _lean(own, mean, cells).abs().amax(-1)}


def shared(trials: Tensor) -> list[Tensor]:
    """How cells that differ along one axis of a table are correlated over seeds, a matrix for each axis of ``trials (…, seeds)``.

    Of the deviations from each cell's mean, all other axes and the seeds pooled.
    """
    apart = trials - trials.mean(-1, keepdim=True)
    return [torch.corrcoef(apart.movedim(axis, 0).flatten(1)) for axis in range(trials.ndim - 1)]


def _std(target: Printed) -> Tensor:
    assert target.std is not None  # Table 1 has them
    return target.std


def _errors(trials: Tensor, std: Tensor) -> Tensor:
    own = trials.std(-1) if trials.shape[-1] > 1 else torch.full(trials.shape[:-1], torch.nan, dtype=trials.dtype)
    return (own.square() / trials.shape[-1] + std.clamp_min(0.005).square() / 3).sqrt()


def _apart(trials: Tensor, mean: Tensor, std: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """:func:`distance` over the last ``cells`` axes of the means."""
    gap, over = (trials.mean(-1) - mean).abs(), tuple(range(-cells, 0))
    return gap.mean(over), (gap / _errors(trials, std)).square().mean(over).sqrt()


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
    places = [[list(first[axis]).index(value) for value in more[axis][name]] for axis in ("betas", "patterns")]
    return torch.cat([own[places[0]][:, places[1]], rest], -1)


DIGITS = 4
"""Decimals of what is recorded."""


def _figure5(seed: int, steps: int, processes: int = 1) -> tuple[dict[str, Any], Any]:
    """Figure 5's weights by activation, ``[field][token][filter]``, and which tokens the generators may fix, ``[field][token]``;
    of eight tokens, as its caption has it."""
    wanted = cells("C-Fig5")
    protocol = TokenRun(tokens=8, steps=steps)
    found = train_cells(protocol, list(wanted.values()), [seed], processes=processes, keep=True)
    weights = {label: rounded(found[cell]["weights"][0], DIGITS) for (_, _, label), cell in wanted.items()}
    return weights, next(iter(found.values()))["allowed"][0].tolist()


# ---------------------------------------------------------------------------------------------------------------------
# The tables of ``sslbook table``


def _filled(name: str, options: argparse.Namespace, found: Mapping[str, Tensor], **more: Any) -> Filled:
    measures = [f"{options.scores} +", *[f"{options.scores} -"] * (name != "C-Tab1")]
    facts = {"experiment": options.variant, "scores": options.scores, **more.pop("facts", {})}
    axes = {"betas": BETAS, "patterns": PATTERNS, "columns": tuple(curves(name))}
    target = unprinted(name, f"Figure {name.removeprefix('C-Fig')} of [tian2023]", axes)
    return fill(printed(name) if name == "C-Tab1" else target, found, dict.fromkeys(measures, 2), facts=facts, **more)


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
    found = {score: in_table(cells(name), trained, score) for score in SCORES}
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
        Entry((label, field, token), found={"largest": [max(row) / size], "filters": row}, note="*" * mark)
        for label, of_fields in weights.items()
        for field, rows, marks in zip(fields, of_fields, allowed, strict=True)
        for size in [max(abs(max(row)) for row in rows) or 1.0]
        for token, row, mark in zip(tokens, rows, marks, strict=True)
    ]
    axes = {"activations": tuple(weights), "fields": fields, "tokens": tokens}
    return Filled("C-Fig5", "Figure 5 of [tian2023]", axes, tuple(entries), {"largest": 2}, **more)


def _recall_weights(record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return Filled("C-Fig5", "Figure 5 of [tian2023]", {"tokens": ()}, (), {"largest": 2})
    return _weights(record["weights"], record["allowed"], seeds=record.provenance.seeds[:1])


def _run_weights(options: argparse.Namespace) -> Filled:
    if len(options.seeds) > 1:
        raise ValueError(f"--seeds: one is asked for, got {' '.join(map(str, options.seeds))}")
    return _weights(*_figure5(options.seeds[0], options.steps or TokenRun.steps, processes_of(options)))


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

# ---------------------------------------------------------------------------------------------------------------------
# The records

FIGURES = ("C-Fig4", "C-Fig9", "C-Fig10", "C-Fig11")


def table_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Table 1 in all of :data:`VARIANTS`, the figures as the released code has them, and Figure 5's weights of the first seed."""
    values: dict[str, Any] = {
        "axes": "tables[name][variant][score][beta][patterns][label][seed]; weights[label][field][token][filter]",
        "betas": BETAS,
        "patterns": PATTERNS,
        "labels": {name: tuple(curves(name)) for name in NAMES},
        "tables": {},
        "seconds": {},
    }
    for variant, protocol in VARIANTS.items():
        chosen = [name for name in NAMES if name == "C-Tab1" or (name in FIGURES and variant == "released")]
        begun = time.monotonic()
        found = train_cells(protocol, wanted_cells(chosen), seeds, processes=cores())
        for name in chosen:
            table = {score: rounded(in_table(cells(name), found, score), DIGITS) for score in SCORES}
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
    every = list(dict.fromkeys(cell for some in wanted.values() for cell in some.values()))
    folder = parts_folder() / "modulation-seeds"
    found = train_cells(VARIANTS["released"], every, seeds, processes=cores(), parts=folder)
    return {
        "axes": "tables[name][score][beta][patterns][label][seed]",
        "betas": {name: BETAS[name in WIDE :] for name in wanted},
        "patterns": {name: PATTERNS[name in WIDE :] for name in wanted},
        "tables": {
            name: {score: rounded(in_table(some, found, score), DIGITS) for score in SCORES}
            for name, some in wanted.items()
        },
    }


CONTESTED = {
    "C-Fig10": (3, ("linear", "relu", "quadratic")),
    "C-Fig11": (1, ("BN, ζ = 10", "no BN, ζ = 10")),
}
"""Figures with the ``P`` and the curves that few seeds leave open, each for :math:`\\beta > 1`."""


def contested_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Many seeds of what few leave open, :data:`CONTESTED`, scored as the released code does."""
    wanted = {
        name: [cells(name)[beta, patterns, label] for beta in BETAS[1:] for label in labels]
        for name, (patterns, labels) in CONTESTED.items()
    }
    every = [cell for some in wanted.values() for cell in some]
    found = train_cells(VARIANTS["released"], every, seeds, processes=cores())
    return {
        "axes": "tables[name][beta][label][seed]",
        "betas": BETAS[1:],
        "patterns": {name: patterns for name, (patterns, _) in CONTESTED.items()},
        "labels": {name: labels for name, (_, labels) in CONTESTED.items()},
        "tables": {
            name: rounded(
                torch.stack([found[cell]["released +"] for cell in some]).unflatten(0, (-1, len(labels))), DIGITS
            )
            for (name, some), (_, labels) in zip(wanted.items(), CONTESTED.values(), strict=True)
        },
    }


KINDS = {
    "ReLU": TableCell(3, 5),
    "linear": TableCell(3, 5, activation="linear"),
    "constant": TableCell(3, 5, activation="linear", loss="quadratic"),
    "BN": TableCell(3, 5, zeta=10.0),
    "no BN": TableCell(3, 5, mean="omit", std="omit", zeta=10.0),
}
"""Networks that the page compares, all of fifteen filters for three tokens."""


def page_values(
    seeds: Sequence[int],
    *,
    counts: Sequence[int] = (6, 4, 4, 4, 4),
    moments: Sequence[int] = (0, 30, 100, 300, 600, 1000, 1500, 2000, 3000),
) -> dict[str, Any]:
    """The networks of :data:`KINDS` after so many minibatches, each kind with the first ``counts`` seeds:
    ``scores[moment][score][network]``, and at the end, a number a network each, the ``share`` of the largest eigenvalue of S, and
    that of the filters that are ``dead``."""
    replicas = [(cell, seed) for cell, count in zip(KINDS.values(), counts, strict=True) for seed in seeds[:count]]
    states, world = train_course(TokenRun(steps=moments[-1]), replicas, moments)
    linear = torch.tensor([cell.activation == "linear" for cell, _ in replicas])
    spectra = torch.linalg.svdvals(states[-1].top.double().flatten(1, 2)).square()  # of S
    return {
        "moments": moments,
        "counts": counts,
        "scores": [scores(state.weights.double(), world, linear) for state in states],
        "share": spectra[:, 0] / spectra.sum(1),
        "dead": (states[-1].weights <= 0).all(2).double().mean((1, 2)),
    }


def alone_values(seeds: Sequence[int], *, steps: int = 3000) -> dict[str, Any]:
    """The first place of a world, and its fifteen ReLU filters, trained by itself, as on the page: ``before`` and ``after``,
    ``[score][seed]``."""
    protocol, replicas = TokenRun(steps=steps), [(KINDS["ReLU"], seed) for seed in seeds]
    cut = world_of(protocol, replicas).place(0)
    ends, _ = train_course(replace(protocol, fields=1, fixed=1), replicas, [0, steps], world=cut)
    before, after = (scores(state.weights.double(), cut) for state in ends)
    return {"before": before, "after": after, "steps": steps}


STRENGTHS = {"C-Fig12": 0.0, "C-Fig13": 0.5}

KEPT = 10
"""Filters of each field that a record keeps, the longest of the first seed; the measures are of all that live."""


def filter_values(
    seeds: Sequence[int], *, protocol: PatchRun | None = None, data: Images | None = None
) -> dict[str, Any]:
    """Figures 12 and 13: filters of image quarters without and with random crops, how many live, how rough and how alike
    these are.

    ``filters[figure][field][filter][row][column]``; ``living[figure][seed]`` is a share of all filters, ``roughness`` and
    ``likeness`` likewise are means over the living ones, before training under ``untrained``.
    """
    protocol, data = protocol or PatchRun(), data or patch_images()
    values: dict[str, Any] = {"data": data.name, "images": len(data), "steps": protocol.steps, "filters": {}}
    for name in ("living", "roughness", "likeness"):
        values[name] = {}
    for figure, strength in {"untrained": 0.0, **STRENGTHS}.items():
        steps = 1 if figure == "untrained" else protocol.steps
        found = train_filters(data, replace(protocol, strength=strength, steps=steps), list(seeds)).double()
        alive = living(found)
        values["living"][figure] = rounded(alive.double().mean((1, 2)), DIGITS)
        values["roughness"][figure] = rounded(mean_of(roughness(found), alive), DIGITS)
        values["likeness"][figure] = rounded(likeness(found, alive), DIGITS)
        if figure != "untrained":
            longest = found[0].flatten(2).norm(dim=2).argsort(1, descending=True)[:, :KEPT]
            values["filters"][figure] = rounded(
                torch.stack([w[i] for w, i in zip(found[0], longest, strict=True)]), DIGITS
            )
    return values


STUDIES = {
    "modulation-alone": Study(alone_values, tuple(range(31, 51))),
    "modulation-contested": Study(contested_values, tuple(range(4, 16))),
    "modulation-filters": Study(filter_values, (1, 2, 3)),
    "modulation-page": Study(page_values, tuple(range(11, 17))),
    "modulation-seeds": Study(seed_values, (4,)),
    "modulation-tables": Study(table_values, (1, 2, 3)),
}
