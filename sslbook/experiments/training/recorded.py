"""The chapter's recorded runs: every objective on real images, with a small network, on a processor.

``sslbook record NAME --replace`` makes a record again, a run per core; stopped, it goes on with what is finished.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from filelock import FileLock
from scipy.special import entr
from torch.nn import functional as F

from sslbook.experiments.training.experiments import (
    BETAS,
    COURSES,
    EXACT,
    HALF,
    LONG,
    RATES,
    RUNS,
    SMALL,
    STEEPNESS,
    TRIED,
    TUNED,
    WHOLE,
    settings_of,
)
from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Siamese
from sslbook.records.store import kept, parts_folder
from sslbook.runtime.compute import cores, process_pool
from sslbook.training.evaluate import embed, nearest, report
from sslbook.training.run.parts import SUBSET_SEED, load_data
from sslbook.training.run.trainer import Result, prepared
from sslbook.training.views.augment import PIPELINES, Pipeline

Found = TypeVar("Found")

LOOKS = 2000
"""Test images that the curves are measured on; the last numbers are measured on all."""
QUERIES, NEIGHBOURS = 10, 6
PICTURED = ("info_nce", "byol")
"""Runs whose first layer and nearest neighbours are kept, for the first seed."""
CURVES = ("loss", "knn", "rank", "linear")


def run_values(
    seeds: Sequence[int],
    *,
    names: Sequence[str],
    changes: Sequence[str] = SMALL,
    processes: int | None = None,
    device: str | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """Curves, last accuracies, first layers and nearest neighbours; raises FileNotFoundError without the data.

    root: where the runs lie, to go on there if they are stopped; else they lie in a folder that goes away.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    jobs = [
        (name, seed, tuple(changes), name in PICTURED and seed == seeds[0], device, root)
        for seed in seeds
        for name in names
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


def cifar10_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Every objective of the book, for ten epochs: three quarters of an hour on two cores for three seeds."""
    return run_values(seeds, names=tuple(RUNS), root=parts_folder())


def exact_values(seeds: Sequence[int]) -> dict[str, Any]:
    """The exact loss, by what its weights look at: three quarters of an hour for ten seeds."""
    return run_values(seeds, names=tuple(EXACT), changes=HALF, root=parts_folder())


def beta_values(seeds: Sequence[int]) -> dict[str, Any]:
    """InfoNCE with more and less weight on the positive pair: half an hour for ten seeds."""
    return run_values(seeds, names=tuple(BETAS), changes=HALF, root=parts_folder())


def steepness_values(seeds: Sequence[int]) -> dict[str, Any]:
    """InfoNCE over a range of temperatures, and networks that change their loss: an hour for five seeds."""
    return run_values(seeds, names=tuple(STEEPNESS), changes=HALF, root=parts_folder())


def rate_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Four losses at four learning rates: three quarters of an hour for three seeds."""
    return run_values(seeds, names=tuple(RATES), changes=HALF, root=parts_folder())


def long_values(seeds: Sequence[int]) -> dict[str, Any]:
    """InfoNCE and more weight on the positive pair for a hundred epochs: an hour for three seeds."""
    return run_values(seeds, names=("info_nce", "beta -0.5"), changes=LONG, root=parts_folder())


def whole_values(seeds: Sequence[int]) -> dict[str, Any]:
    """Three losses on all 50,000 images for twenty epochs: an hour of a core for each run."""
    return run_values(seeds, names=("info_nce", "exact", "beta -0.5"), changes=WHOLE, root=parts_folder())


def each(function: Callable[..., Found], jobs: Sequence[tuple[Any, ...]], processes: int) -> list[Found]:
    """``function(*job)`` of all jobs, in their order; with more than one worker a process each, a job at a time."""
    if processes == 1:
        return [function(*job) for job in jobs]
    with process_pool(processes) as pool:
        return [call.result() for call in [pool.submit(function, *job) for job in jobs]]


def one(name: str, seed: int, changes: Sequence[str], pictured: bool, device: str, root: Path | None) -> dict[str, Any]:
    """One run's curves, its last numbers on all test images, and its pictures, if they aren't below ``root`` already."""
    with contextlib.ExitStack() as stack:
        place = root or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        part = _folder(place, name, seed, changes) / ("pictured.json" if pictured else "values.json")
        return kept(part, lambda: _made(name, seed, changes, pictured, device, place))


def _folder(root: Path, name: str, seed: int, changes: Sequence[str]) -> Path:
    """The run's own, by its settings; of one that begins with another's weights, below that one's."""
    after, settings = COURSES[name].after, settings_of(name, seed, changes)
    above = root if after is None else _folder(root, after, seed, changes)
    return above / f"s{seed}-{settings.hash()}-{settings.epochs}"


def _trained(name: str, seed: int, changes: Sequence[str], device: str, root: Path, looks: Dataset) -> Result:
    """The run at its end; of one that begins with another's weights, that one is made first."""
    settings, folder, after = settings_of(name, seed, changes), _folder(root, name, seed, changes), COURSES[name].after
    data = (load_data(settings)[0], looks)
    start = None if after is None else _trained(after, seed, changes, device, root, looks).model.state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(folder / "made.lock"),
        prepared(settings, folder, data=data, device=device, quiet=True, name=name) as run,
    ):
        if start is not None and run.state.step == 0:
            run.state.model.load_state_dict(start)
        return run.go()


def _made(name: str, seed: int, changes: Sequence[str], pictured: bool, device: str, root: Path) -> dict[str, Any]:
    settings = settings_of(name, seed, changes)
    known, asked = load_data(settings)
    few = datasets.subset(asked, min(LOOKS, len(asked.pixels)), SUBSET_SEED)
    result = _trained(name, seed, changes, device, root, few)
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
    queries = asked.take(first)
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


def curve(values: Mapping[str, Any], name: str, measure: str) -> np.ndarray:
    """A measure of :data:`CURVES` by look and seed, ``(looks, seeds)``, float64; nan where there is none."""
    return np.array(values["runs"][name][measure], dtype=float)


def last(values: Mapping[str, Any], name: str, measure: str) -> np.ndarray:
    """knn, linear, linear_best, rank or seconds at the end, a number a seed, on all test images."""
    return np.array(values["last"][name][measure], dtype=float)


def by_rate(values: Mapping[str, Any], measure: str) -> dict[str, np.ndarray]:
    """Last accuracies in percent of each loss of :data:`TUNED`, by rate of :data:`TRIED` and seed: ``(rates, seeds)``."""
    return {name: 100 * np.array([last(values, f"{name} at {rate:g}", measure) for rate in TRIED]) for name in TUNED}


def span(values: Mapping[str, Any], name: str) -> np.ndarray:
    """Effective rank of the embeddings at the end, the exponential of the entropy of their axes' shares; a number a seed."""
    shares = last(values, name, "axes")
    return np.asarray(np.exp(entr(shares).sum(axis=1)))
