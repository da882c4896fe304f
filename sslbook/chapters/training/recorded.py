"""The chapter's recorded runs: every objective on 5,000 real images, with a small network, on a processor.

``sslbook record training-cifar10 --seeds 1 2 3`` makes them again: a run per core, three quarters of an hour on two, and
``sslbook record training-weights --seeds 1 2 3`` those that differ in whom they push away: half an hour.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.special import entr
from torch.nn import functional as F

from sslbook import datasets
from sslbook.chapters.training.presets import presets
from sslbook.chapters.training.runs import with_changes
from sslbook.datasets import Dataset
from sslbook.machine import cores, process_pool
from sslbook.training.evaluate import embed, nearest, report
from sslbook.training.networks.siamese import Siamese
from sslbook.training.runs.determinism import SUBSET_SEED, load_data
from sslbook.training.runs.settings import Settings
from sslbook.training.runs.trainer import Result, train
from sslbook.training.views.augment import PIPELINES
from sslbook.training.views.pipelines import Pipeline

Found = TypeVar("Found")

SMALL = ("subset=5000", "networks.width=16", "epochs=10", "probes=10", "evaluate=2", "shuffle=true", "drop_last=true")
SLOWER = ("rate=0.001", "schedule=constant")
"""SimCLR in so few steps."""
SIMCLR, BYOL = "cifar10-simclr-nce", "cifar10-byol"
QUICKER = ("optimizer=adam", "rate=0.001", "decay=0", "batch=64", "ema=0.9")
"""BYOL in so few steps: the released optimiser and target hardly move in eight hundred."""
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "info_nce": (SIMCLR, SLOWER),
    "exact": (SIMCLR, (*SLOWER, "objective=exact")),
    "exact, noise": (SIMCLR, (*SLOWER, "objective=exact", "noise=0.01")),
    "beta -0.5": (SIMCLR, (*SLOWER, "objective=beta", "numbers.beta=-0.5")),
    "beta 0.2": (SIMCLR, (*SLOWER, "objective=beta", "numbers.beta=0.2")),
    "byol": (BYOL, QUICKER),
    "byol, no EMA": (BYOL, (*QUICKER, "networks.target=none")),
    "byol, no EMA, no stop-gradient": (
        BYOL,
        (*QUICKER, "networks.target=none", "numbers.stop_gradient=false"),
    ),
}
"""What is compared: the preset that each begins with, and what is changed in it."""
WEIGHTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "info_nce": RUNS["info_nce"],
    "exact": RUNS["exact"],
    "exact, clean": (SIMCLR, (*SLOWER, "objective=exact", "numbers.weights=clean")),
    "soft triplet": (SIMCLR, (*SLOWER, "objective=triplet")),
    "simple": (SIMCLR, (*SLOWER, "objective=simple")),
    "quadratic": (SIMCLR, (*SLOWER, "objective=quadratic")),
}
"""The same, for losses that differ in how hard they push against which negatives."""
LOOKS = 2000
"""Test images that the curves are measured on; the last numbers are measured on all."""
QUERIES, NEIGHBOURS = 10, 6
PICTURED = ("info_nce", "byol")
"""Runs whose first layer and nearest neighbours are kept, for the first seed."""
CURVES = ("loss", "knn", "rank")


def settings_of(name: str, seed: int, changes: Sequence[str] = SMALL) -> Settings:
    """The settings of one of :data:`RUNS` or :data:`WEIGHTS`, made small."""
    preset, more = (RUNS | WEIGHTS)[name]
    return replace(with_changes(presets()[preset].settings, [*more, *changes]), seed=seed)


def cifar10_values(
    seeds: Sequence[int],
    *,
    changes: Sequence[str] = SMALL,
    names: Sequence[str] = tuple(RUNS),
    processes: int | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Curves, last accuracies, first layers and nearest neighbours; raises FileNotFoundError without the data."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    jobs = [
        (name, seed, tuple(changes), name in PICTURED and seed == seeds[0], device) for name in names for seed in seeds
    ]
    load_data(settings_of(names[0], seeds[0], changes))  # says at once if there is no data
    found = each(one, jobs, (processes or cores()) if device == "cpu" else 1)
    by_job = {(name, seed): values for (name, seed, *_), values in zip(jobs, found, strict=True)}
    base = settings_of(names[0], seeds[0], changes)
    values: dict[str, Any] = {
        "axes": "runs[name][measure][epoch][seed], last[name][measure][seed], pictures[name]",
        "epochs": by_job[names[0], seeds[0]]["epochs"],
        "images": base.subset,
        "width": base.networks.width,
        "settings": {name: settings_of(name, seeds[0], changes).as_json() for name in names},
        "runs": {},
        "last": {},
        "pictures": {},
    }
    for name in names:
        mine = [by_job[name, seed] for seed in seeds]
        values["runs"][name] = {m: [list(row) for row in zip(*(part[m] for part in mine))] for m in CURVES}
        values["last"][name] = {m: [part["last"][m] for part in mine] for m in mine[0]["last"]}
        if "pictures" in mine[0]:
            values["pictures"][name] = mine[0]["pictures"]
    return values


def each(function: Callable[..., Found], jobs: Sequence[tuple[Any, ...]], processes: int) -> list[Found]:
    """``function(*job)`` of all jobs, in their order; with more than one worker a process each, a job at a time."""
    if processes == 1:
        return [function(*job) for job in jobs]
    with process_pool(processes) as pool:
        return [call.result() for call in [pool.submit(function, *job) for job in jobs]]


def weight_values(
    seeds: Sequence[int], *, changes: Sequence[str] = SMALL, processes: int | None = None
) -> dict[str, Any]:
    """The same for :data:`WEIGHTS`."""
    return cifar10_values(seeds, changes=changes, names=tuple(WEIGHTS), processes=processes)


def one(name: str, seed: int, changes: Sequence[str], pictured: bool, device: str) -> dict[str, Any]:
    """One run in a folder that goes away: its curves, its last numbers on all test images, and its pictures."""
    settings = settings_of(name, seed, changes)
    known, asked = load_data(settings)
    few = datasets.subset(asked, min(LOOKS, len(asked.pixels)), SUBSET_SEED)
    with tempfile.TemporaryDirectory() as folder:
        result = train(settings, Path(folder), data=(known, few), device=device, quiet=True, name=name)
    pipeline = PIPELINES[settings.pipeline]
    last = report(result.model, known, asked, pipeline, device, linear=True, seed=seed)
    values: dict[str, Any] = {m: [row.get(m) for row in result.rows] for m in CURVES}
    values = {m: [None if v is None else round(v, 4) for v in column] for m, column in values.items()}
    values["epochs"] = [row["epoch"] for row in result.rows]
    values["last"] = {
        "knn": round(last.knn, 4),
        "linear": last.linear_final,
        "linear_best": last.linear_best,
        "rank": round(last.rank, 3),
        "axes": [round(share, 5) for share in axes(result.model, few, pipeline, device)],
        "seconds": round(result.rows[-1]["seconds"], 1),
    }
    if pictured:
        values["pictures"] = pictures(result, known, asked, device)
    return values


def axes(model: Siamese, images: Dataset, pipeline: Pipeline, device: str) -> list[float]:
    """Shares of the variance of the normalised embeddings along their principal axes, the largest first: what the loss has used."""
    model.eval()
    embeddings = F.normalize(
        embed(lambda x: model.projector(model.features(x)), images, pipeline, device), dim=1
    ).double()
    variances = torch.linalg.svdvals(embeddings - embeddings.mean(0)).square()
    return list((variances / variances.sum()).tolist())


def pictures(result: Result, known: Dataset, asked: Dataset, device: str) -> dict[str, Any]:
    """First-layer filters ``(width, C, k, k)``, and for a test image of each class the nearest training images.

    Images are named by their places in the whole official files, so that whoever has them can show them.
    """
    settings, model = result.settings, result.model.eval()
    pipeline = PIPELINES[settings.pipeline]
    first = [int((asked.labels == label).nonzero()[0]) for label in range(min(QUERIES, asked.classes))]
    queries = replace(asked, pixels=asked.pixels[first], labels=asked.labels[first])
    near, far = (embed(model.features, part, pipeline, device) for part in (queries, known))
    kin = nearest(far, near, NEIGHBOURS).cpu()
    whole = len(datasets.load_dataset(settings.dataset, settings.split).pixels)
    place = datasets.choose(whole, settings.subset, SUBSET_SEED)
    kernel = next(weights for weights in model.encoder.parameters() if weights.ndim == 4)
    return {
        "filters": [[[[round(v, 3) for v in row] for row in c] for c in f] for f in kernel.detach().cpu().tolist()],
        "queries": first,
        "query_labels": queries.labels.tolist(),
        "neighbours": place[kin].tolist(),
        "neighbour_labels": known.labels[kin].tolist(),
    }


# -- as the page shows it ---------------------------------------------------------------------------------------------

LABELS = {
    "info_nce": "InfoNCE",
    "exact": "exact",
    "exact, clean": "exact, clean",
    "soft triplet": "soft triplet",
    "simple": "simple",
    "quadratic": "quadratic",
    "exact, noise": "exact, noise",
    "beta -0.5": "β = −0.5",
    "beta 0.2": "β = +0.2",
    "byol": "BYOL",
    "byol, no EMA": "no EMA",
    "byol, no EMA, no stop-gradient": "no stop-gradient",
}
"""Short names of the runs."""


def curve(values: Mapping[str, Any], name: str, measure: str) -> np.ndarray:
    """A measure of :data:`CURVES` by look and seed, ``(looks, seeds)``, float64; nan where there is none."""
    return np.array(values["runs"][name][measure], dtype=float)


def last(values: Mapping[str, Any], name: str, measure: str) -> np.ndarray:
    """knn, linear, linear_best, rank or seconds at the end, a number a seed, on all test images."""
    return np.array(values["last"][name][measure], dtype=float)


def span(values: Mapping[str, Any], name: str) -> np.ndarray:
    """Effective rank of the embeddings at the end, the exponential of the entropy of their axes' shares; a number a seed."""
    shares = last(values, name, "axes")
    return np.asarray(np.exp(entr(shares).sum(axis=1)))


def block(values: Mapping[str, Any]) -> str:
    """A line a run: k-NN and linear accuracy at the end, in percent, mean and deviation over seeds; mean rank, and mean span."""
    wide = max(map(len, LABELS.values())) + 2
    spans = "axes" in next(iter(values["last"].values()))
    lines = [f"{'':{wide}}{'k-NN':<10}{'linear':<10}{'rank':<6}{'span' if spans else ''}".rstrip()]
    for name in values["last"]:
        shown = (100 * last(values, name, measure) for measure in ("knn", "linear"))
        cells = [f"{x.mean():.1f}±{x.std(ddof=1):.1f}".ljust(10) for x in shown]
        cells.append(f"{last(values, name, 'rank').mean():<6.1f}")
        cells.append(f"{span(values, name).mean():.1f}" if spans else "")
        lines.append(f"{LABELS[name]:<{wide}}{''.join(cells)}".rstrip())
    return "\n".join(lines)
