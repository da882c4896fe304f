"""Table 1 and Figures 4, 5 and 9 to 11 of [tian2023] as cells to train; what records hold of them; the networks of the page."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslchapters.modulation.instances import ACTIVATIONS
from sslchapters.modulation.runs import TableCell, TokenRun, scores, train_course, world_of
from sslchapters.records import Record, recorded
from sslchapters.tables import batchnorm_modes, printed

BETAS, PATTERNS, _ = printed("C-Tab1").axes.values()

PARTS = {label: batchnorm_modes(label) for label in printed("C-Tab1").columns}
"""Table 1's columns, with the modes of mean and deviation; a stroke: not differentiated through."""

ZETAS = (2.0, 5.0, 10.0)
"""Figure 11's lengths."""

CURVES = {
    "C-Tab1": {label: TableCell(mean=mean, std=std, zeta=10.0) for label, (mean, std) in PARTS.items()},
    "C-Fig4": {
        f"{a}, {label}": TableCell(activation=a, loss=kind)
        for label, kind in {"InfoNCE": "info_nce", "quadratic loss": "quadratic"}.items()
        for a in ("linear", "relu")
    },
    "C-Fig9": {a.replace("_", " "): TableCell(activation=a) for a in ACTIVATIONS},
    "C-Fig10": {a.replace("_", " "): TableCell(activation=a, loss="quadratic") for a in ACTIVATIONS},
    "C-Fig11": {
        f"{label}, ζ = {z:g}": TableCell(mean=mean, std=std, zeta=z)
        for z in ZETAS
        for label, (mean, std) in {"BN": ("normal", "detach"), "no BN": ("omit", "omit")}.items()
    },
    "C-Fig5": {a: TableCell(activation=a) for a in ("relu", "linear")},
}
"""The curves of a figure, and the columns of Table 1: what a cell is at ``P = 1`` and :math:`\\beta = 1`, by its label."""


def cells(name: str) -> dict[tuple[int, int, str], TableCell]:
    """All cells of a table or figure, by :math:`\\beta`, ``P`` and label; Figure 5 has :math:`\\beta = 5` and ``P = 3`` alone."""
    sizes = [(5, 3)] if name == "C-Fig5" else [(beta, p) for beta in BETAS for p in PATTERNS]
    return {(b, p, label): replace(cell, beta=b, patterns=p) for b, p in sizes for label, cell in CURVES[name].items()}


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


def many_seeds(contested: Mapping[str, Any] | Record, name: str, p: int, first: Tensor) -> Tensor:
    """Curves with the seeds of ``contested`` behind those of ``first``, at betas of 2, 5 and 10: ``(betas, curves, seeds)``."""
    rest = torch.tensor(contested["tables"][name], dtype=torch.float64)
    labels = [list(CURVES[name]).index(label) for label in contested["labels"][name]]
    return torch.cat([first[1:, PATTERNS.index(p), labels], rest], -1)


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


def page_networks(
    scale: str, first: int
) -> tuple[tuple[int, ...], dict[str, slice], dict[int, dict[str, Tensor]], dict[str, Any]]:
    """The trained networks of the chapter and its details, recorded at ``quick`` and else trained, with seeds from ``first`` on.

    The moments, in minibatches; by kind, the slice of its networks; by moment and score, a number a network; and `page_values`.
    """
    quick = scale == "quick"
    moments = (0, 30, 100, 300, 600, 1000, 1500, 2000, 3000, *(() if quick else (5000,)))
    seeds, counts = range(first, first + 12), (12, 8, 6, 6, 6)
    found: Any = recorded("modulation-page") if quick else page_values(seeds, counts=counts, moments=moments)
    edges = [0, *itertools.accumulate(found["counts"])]
    group = {kind: slice(*edges[i : i + 2]) for i, kind in enumerate(KINDS)}
    score = {
        moment: {name: torch.as_tensor(values, dtype=torch.float64) for name, values in each.items()}
        for moment, each in zip(moments, found["scores"], strict=True)
    }
    return moments, group, score, found


def alone_values(seeds: Sequence[int], *, steps: int = 3000) -> dict[str, Any]:
    """The first place of a world, and its fifteen ReLU filters, trained by itself, as on the page: ``before`` and ``after``,
    ``[score][seed]``."""
    protocol, replicas = TokenRun(steps=steps), [(KINDS["ReLU"], seed) for seed in seeds]
    cut = world_of(protocol, replicas).place(0)
    ends, _ = train_course(replace(protocol, fields=1, fixed=1), replicas, [0, steps], world=cut)
    before, after = (scores(state.weights.double(), cut) for state in ends)
    return {"before": before, "after": after, "steps": steps}
