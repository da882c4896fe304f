r"""The chapter's tables, the curves of the operators' norms, and the records of both, at the papers' sizes.

Tables 4 and 6 of [tian2020] and Table 2 of [tian2021iclr], rerun: a trial is a random tree with a random network.  Figures 13, 14
of [tian2020] and 9, 10 of [tian2021iclr]: how a part's own block of the covariance operator grows during training; the blocks are
exact, as the expectation given the root runs over all patterns of the leaves (:mod:`sslbook.trees.exact`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslbook._check import positive
from sslbook._machine import cores
from sslbook.trees import exact
from sslbook.trees.exact import TreeNetwork
from sslbook.trees.latent import LatentTree
from sslchapters import data_files
from sslchapters.hltm import runs, theory
from sslchapters.hltm.runs import BATCH, FORMULAS, STATISTICS, TreeRun
from sslchapters.records import Record, rounded
from sslchapters.sweep import Study
from sslchapters.tables import PARTS as PRINTED_PARTS
from sslchapters.tables import Filled, Printed, Table, fill, printed


def rerun(
    cells: Sequence[TreeRun],
    seeds: Sequence[int],
    latents: Sequence[str],
    epochs: Sequence[int],
    *,
    processes: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Trials of several protocols side by side: a statistic's name to ``(latents, cells, epochs, trials)``.

    epochs: after how many epochs to measure, on as many samples as an epoch has; the last one ends the training.
    processes: one a core if 0.
    """
    measure = partial(runs.best_correlations, latents=tuple(latents), samples=cells[0].epoch_size)
    found = runs.train_protocols(cells, seeds, measure, epochs, processes=processes or cores(), device=device)
    return {name: torch.stack([found[cell][name] for cell in cells]).permute(3, 0, 2, 1) for name in STATISTICS}


def _epochs_of(target: Printed) -> tuple[int, ...]:
    """After how many epochs each column of a printed table stands."""
    raw = data_files.printed_file(PRINTED_PARTS.get(target.name, (target.name, {}))[0])
    known = dict(zip(raw["columns"], raw["epochs"], strict=True))
    return tuple(known[column] for column in target.columns)


def recorded_trials(values: Mapping[str, Any], target: Printed, loss: str, statistic: str) -> Tensor:
    """What the record has of a printed table, ``(latents, lower, widths, columns, trials)``."""
    found = torch.tensor(values[loss][statistic], dtype=torch.float64)
    wanted = {**target.axes, "epochs": _epochs_of(target)}
    for axis, name in enumerate(("latents", "lower", "widths", "epochs")):
        labels = list(values[name])
        found = found.index_select(axis, torch.tensor([labels.index(label) for label in wanted[name]]))
    return found


def _filled(name: str, options: argparse.Namespace, trials: Tensor | None, **more: Any) -> Filled:
    found = {} if trials is None else {"correlation": trials}
    facts = {"loss": options.loss, "statistic": options.statistic, **more.pop("facts", {})}
    return fill(printed(name), found, {"correlation": 2}, facts=facts, **more)


def _show(name: str, record: Record | None, options: argparse.Namespace) -> Filled:
    if record is None:
        return _filled(name, options, None)
    trials = recorded_trials(record.values, printed(name), options.loss, options.statistic)
    facts = {"samples an epoch": record["samples"]}
    return _filled(name, options, trials, facts=facts, seeds=record.provenance.seeds)


def _run(name: str, options: argparse.Namespace) -> Filled:
    """Rerun a printed table: latents, lower, widths, columns, trials."""
    target, device = printed(name), options.device or "cpu"
    base = TreeRun(loss=options.loss, epoch_size=options.epoch_size or TreeRun.epoch_size)
    latents, lower, widths, _ = target.axes.values()
    cells = [replace(base, lower=low, width=width) for low in lower for width in widths]
    processes = options.processes or (cores() if device == "cpu" else 1)
    found = rerun(cells, options.seeds, latents, _epochs_of(target), processes=processes, device=device)
    trials = found[options.statistic].unflatten(1, (len(lower), len(widths)))
    return _filled(name, options, trials, facts={"samples an epoch": base.epoch_size})


def _options(parser: argparse.ArgumentParser) -> None:
    def epoch(text: str) -> int:
        if not text.isdigit() or int(text) < BATCH or int(text) % BATCH:
            raise argparse.ArgumentTypeError(f"{text!r} is not a positive multiple of the minibatch, {BATCH}")
        return int(text)

    parser.add_argument("--loss", choices=FORMULAS, default=FORMULAS[-1], help="whose formula (default: released)")
    parser.add_argument(
        "--statistic", choices=STATISTICS, default=STATISTICS[0], help="how correlations are taken (default: exact)"
    )
    parser.add_argument("--processes", type=positive, metavar="N", help="processes at once (default: one a core)")
    parser.add_argument("--epoch-size", type=epoch, metavar="N", help="samples an epoch (default: 64000)")


TITLE, SEEDS = "Normalised correlation of latent variables with the best unit of their part", tuple(range(1, 11))
LEGEND = (
    "s: the root; s101: the variable that right, left, right lead to from it. U[a, b]: range of the polarities."
    " units: in each part of the network. a±b: mean and deviation over seeds."
)
TABLES = {
    name: Table(name, TITLE, "hltm-tables", SEEDS, partial(_show, name), partial(_run, name), _options, legend=LEGEND)
    for name in ("A-Tab4", "A-Tab6", "B-Tab2")
}


@dataclass(frozen=True)
class Column:
    """Printed means and standard deviations of some cells, ``(latents, lower)``, over so many trials."""

    mean: Tensor
    std: Tensor
    trials: int


def distance(own: Tensor, column: Column) -> Tensor:
    """Root mean square distance of the means of ``own``, ``(latents, lower, trials)``, from a column, in standard errors."""
    error = own.var(-1) / own.shape[-1] + column.std.square() / column.trials
    return ((own.mean(-1) - column.mean).square() / error).mean().sqrt()


def chance_of_column(own: Tensor, column: Column, draws: int, seed: int) -> float:
    """How often trials drawn from ``own`` in the column's place lie at least as far from the rest as the column does.

    The same trials are drawn for all cells, because the cells of a trial share a tree and a network; a score that took
    them for independent would reject too often.
    """
    observed, generator, far = distance(own, column), torch.Generator().manual_seed(seed), 0
    for _ in range(draws):
        order = torch.randperm(own.shape[-1], generator=generator)
        drawn, rest = own[..., order[: column.trials]], own[..., order[column.trials :]]
        far += bool(distance(rest, Column(drawn.mean(-1), drawn.std(-1), column.trials)) >= observed)
    return far / draws


PARTS = ("s0", "s1", "s010", "s1010")
"""The children of the root, and the two lower parts of Figure 10: left-right-left and right-left-right-left."""

NORM_EPOCHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 20, 30, 40, 50)

BASE = TreeRun(depth=5, lower=0.8, width=10)

FACTORS: Mapping[str, tuple[float, ...]] = {"depth": (3, 4, 5), "lower": (0.7, 0.8, 0.9), "width": (2, 5, 10)}
"""What the figures vary; one factor at a time, the others as in :data:`BASE` (the papers don't say)."""


def operator_norms(tree: LatentTree, net: TreeNetwork, seeds: Sequence[int], epoch: int) -> dict[str, Tensor]:
    r"""Frobenius norms of :math:`\mathrm{OP}_\mu`, the diagonal block of its layer's operator, for :data:`PARTS`, ``(R,)`` each.

    ``s0`` is the norm as defined, ``s0 released`` that of the released code, ``s0 weights`` the norm of the part's weights,
    ``s0 children`` that of the covariance of Theorem 6, of what the part reads: :math:`o_\mu \lVert a_\mu \rVert^2`.
    Parts that a shallow tree lacks are left out.
    """
    listed = exact.list_parts(tree, net)
    found: dict[str, Tensor] = {}
    for name in PARTS:
        if len(name) - 1 >= tree.depth:
            continue
        connection = theory.expected_connection(tree, net, listed, name)
        depth, index = theory.place(tree, name)
        found[name] = theory.operator_norm(tree, connection).cpu()
        found[f"{name} released"] = theory.operator_norm(tree, connection, "units").cpu()
        found[f"{name} weights"] = torch.linalg.matrix_norm(net.weights[depth][:, index].double()).cpu()
        read = theory.means_given_root(tree, listed, depth)[:, index : index + 1]
        found[f"{name} children"] = torch.linalg.matrix_norm(theory.covariance_over_root(tree, read))[:, 0].cpu()
    return found


def norm_cells() -> dict[str, TreeRun]:
    """The seven protocols of the figures, by name (``depth 3``, ``lower 0.7``, ``width 2``, ``base`` ...)."""
    varied: list[tuple[str, Any]] = [(factor, value) for factor, values in FACTORS.items() for value in values]
    found = {f"{factor} {value}": replace(BASE, **{factor: value}) for factor, value in varied}
    return {"base": BASE} | {name: protocol for name, protocol in found.items() if protocol != BASE}


def curves(
    protocols: Mapping[str, TreeRun], seeds: Sequence[int], epochs: Sequence[int] = NORM_EPOCHS, *, processes: int = 2
) -> dict[str, dict[str, Tensor]]:
    """For each protocol, the norms over training: a part's name to ``(epochs, R)``."""
    found = runs.train_protocols(list(protocols.values()), seeds, operator_norms, epochs, processes=processes)
    return {name: {part: of.T for part, of in found[protocol].items()} for name, protocol in protocols.items()}


LATENTS = ("s", "s0", "s1", "s101", "s0111")
NARROW = LATENTS[:3]
LOWER = (0.7, 0.8, 0.9)
WIDTHS = (2, 5, 10)
UNTRAINED = 200
EPOCHS = (0, 1, 20, 49, 50)
"""What the three printed tables show, together; ``converged`` is after 49 epochs in the released experiments, 50 in the text."""


def table_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Trials for :data:`FORMULAS` x :data:`STATISTICS`, as nested lists whose axes are named under ``axes``."""
    base = [TreeRun(lower=lower, width=width) for lower in LOWER for width in WIDTHS]
    means = torch.stack([runs.untrained(cell, range(1, UNTRAINED + 1), LATENTS).mean(0) for cell in base])
    means = means.unflatten(0, (len(LOWER), len(WIDTHS))).permute(2, 0, 1)  # before training, over the population
    values: dict[str, Any] = {
        "axes": "values[loss][statistic][latent][lower][width][epoch][trial]",
        "latents": LATENTS,
        "lower": LOWER,
        "widths": WIDTHS,
        "epochs": EPOCHS,
        "samples": TreeRun.epoch_size,
        "untrained": {"trials": UNTRAINED, "mean": rounded(means, 5)},
        "seconds": {},
    }
    for loss in FORMULAS:
        start = time.monotonic()
        found = rerun([replace(cell, loss=loss) for cell in base], seeds, latents=LATENTS, epochs=EPOCHS)
        values[loss] = {
            statistic: rounded(trials.unflatten(1, (len(LOWER), len(WIDTHS))), 5) for statistic, trials in found.items()
        }
        values["seconds"][loss] = round(time.monotonic() - start, 1)
    return values


def narrow_values(
    seeds: Sequence[int], *, losses: Sequence[str] = FORMULAS, epochs: Sequence[int] = (0, 1, 20, 49)
) -> dict[str, Any]:
    """The narrowest networks again with as many trials as there are ``seeds``: ten say little where one in three dies.

    The root and its two children, :data:`NARROW`: latents x lower x epochs x trials.
    """
    values: dict[str, Any] = {
        "axes": "values[loss][statistic][latent][lower][epoch][trial]",
        "latents": NARROW,
        "lower": LOWER,
        "epochs": tuple(epochs),
    }
    for loss in losses:
        cells = [TreeRun(width=min(WIDTHS), loss=loss, lower=lower) for lower in LOWER]
        found = rerun(cells, seeds, latents=NARROW, epochs=epochs)
        values[loss] = {statistic: rounded(trials, 5) for statistic, trials in found.items()}
    return values


def norm_values(seeds: Sequence[int], protocols: Mapping[str, TreeRun]) -> dict[str, Any]:
    """For each protocol a norm's name to its values, epochs x seeds, to six significant digits."""
    found = curves(protocols, seeds, NORM_EPOCHS, processes=cores())
    cells = {cell: {part: rounded(norm, digits=6) for part, norm in parts.items()} for cell, parts in found.items()}
    return {"axes": "cells[cell][norm][epoch][seed]", "epochs": NORM_EPOCHS, "cells": cells}


PRINTED_LOSS = {f"width {width:g}": replace(BASE, loss="printed", width=int(width)) for width in FACTORS["width"]}
"""Every width of the figures under the loss as printed: :data:`BASE` has the released one."""
STUDIES = {
    "hltm-tables": Study(table_values, SEEDS),
    "hltm-narrow": Study(narrow_values, tuple(range(1, 41))),
    "hltm-narrow-mixed": Study(partial(narrow_values, losses=runs.MIXED, epochs=(0, 1, 20)), tuple(range(1, 41))),
    "hltm-norms": Study(partial(norm_values, protocols=norm_cells()), tuple(range(1, 31))),
    "hltm-norms-printed": Study(partial(norm_values, protocols=PRINTED_LOSS), tuple(range(1, 31))),
}
