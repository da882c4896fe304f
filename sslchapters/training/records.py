"""The chapter's recorded runs: every objective on real images, with a small network, on a processor.

They are presets of the papers made small, and what is changed in them, by name.
``sslbook record NAME --replace`` makes a record again, a run per core; stopped, it goes on with what is finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from scipy.special import entr
from torch import Tensor
from torch.nn import functional as F

from sslbook._machine import cores
from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Siamese
from sslbook.training.augment import PIPELINES, Pipeline
from sslbook.training.evaluate import embed, mean_cosine, nearest, report
from sslbook.training.presets.papers import presets, with_changes
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import SUBSET_SEED, load_data
from sslbook.training.run.trainer import Result, train
from sslchapters.records import kept, parts_folder
from sslchapters.sweep import Study, spread

SMALL = ("subset=5000", "networks.width=16", "epochs=10", "probes=10", "evaluate=2", "shuffle=true", "drop_last=true")
HALF = (*SMALL, "precision=bfloat16")
"""Networks that multiply in bfloat16, as on a GPU: a run takes two thirds of the time.  Views, losses and evaluation don't."""
LONG = (*HALF, "epochs=100", "probes=10,20,50,100", "evaluate=10")
WHOLE = (*HALF, "subset=none", "epochs=20", "probes=5,10,20", "evaluate=5")
SLOWER = ("lr=0.001", "schedule=constant")
"""SimCLR in so few steps."""
SIMCLR, BYOL = "cifar10-simclr-nce", "cifar10-byol"
QUICKER = ("optimizer=adam", "lr=0.001", "weight_decay=0", "batch=64", "ema=0.9")
"""BYOL in eight hundred steps, of which the released target takes 173 to come half way."""


@dataclass(frozen=True)
class Course:
    """A run: a preset, what is changed in it, and whose last weights it begins with, by name, if not with fresh ones.

    label: its short name on the page.
    """

    label: str
    changes: tuple[str, ...] = ()
    preset: str = SIMCLR
    after: str | None = None


def _simclr(label: str, *changes: str, after: str | None = None) -> Course:
    return Course(label, (*SLOWER, *changes), after=after)


def _byol(label: str, *changes: str) -> Course:
    return Course(label, (*QUICKER, *changes), BYOL)


RUNS: dict[str, Course] = {
    "info_nce": _simclr("InfoNCE"),
    "exact": _simclr("released weights", "objective=exact"),
    "exact, noise": _simclr("released weights, noise", "objective=exact", "noise=0.01"),
    "beta -0.5": _simclr("β = −0.5", "objective=beta", "beta=-0.5"),
    "beta 0.2": _simclr("β = +0.2", "objective=beta", "beta=0.2"),
    "byol": _byol("BYOL"),
    "byol, no EMA": _byol("no EMA", "networks.target=none"),
    "byol, no EMA, no stop-gradient": _byol("no stop-gradient", "networks.target=none", "stop_gradient=false"),
}
"""Every objective of the book."""
EXACT: dict[str, Course] = {
    "info_nce": RUNS["info_nce"],
    "exact": RUNS["exact"],
    "exact, further": _simclr("further views", "objective=exact", "weights=further"),
    "exact, clean": _simclr("exact", "objective=exact", "weights=clean"),
}
"""The exact loss, by what its weights look at."""
BETAS: dict[str, Course] = {name: RUNS[name] for name in ("info_nce", "beta -0.5", "beta 0.2")}
"""The weight of the positive pair."""
TEMPERATURES = (0.1, 0.5, 1.0, 2.0, 5.0)
STEEPNESS: dict[str, Course] = {
    **{f"tau {tau:g}": _simclr(f"τ = {tau:g}", f"temperature={tau}") for tau in TEMPERATURES if tau != 0.5},
    "info_nce": RUNS["info_nce"],
    "soft triplet": _simclr("soft triplet", "objective=soft_triplet"),
    "simple": _simclr("simple", "objective=simple"),
    "quadratic": _simclr("quadratic", "objective=quadratic"),
    "simple after info_nce": _simclr("InfoNCE, then simple", "objective=simple", after="info_nce"),
    "info_nce after info_nce": _simclr("InfoNCE, then InfoNCE", after="info_nce"),
    "info_nce after simple": _simclr("simple, then InfoNCE", after="simple"),
}
"""Losses that differ in how hard they push against which negatives: InfoNCE over a range of temperatures, at whose end it is the
simple loss, and networks that change their loss."""
TUNED = ("info_nce", "exact", "beta -0.5", "beta 0.2")
TRIED = (3e-4, 1e-3, 3e-3, 1e-2)
RATES: dict[str, Course] = {
    f"{name} at {rate:g}": replace(
        RUNS[name], label=f"{RUNS[name].label}, rate {rate:g}", changes=(*RUNS[name].changes, f"lr={rate}")
    )
    for name in TUNED
    for rate in TRIED
}
"""Learning rates, the same ones for each loss."""
MORE_RATES: dict[str, Course] = {
    f"{name} at {rate:g}": replace(
        course, label=f"{course.label}, rate {rate:g}", changes=(*course.changes, f"lr={rate}")
    )
    for name, course in {
        **{name: EXACT[name] for name in ("exact, clean", "exact, further")},
        **{name: STEEPNESS[name] for name in ("tau 0.1", "tau 5")},
    }.items()
    for rate in (3e-4, 3e-3)
}
"""Half a decade below and above the rate at which these were compared: other weights, and the ends of the temperatures."""
QUICK, CENTRED = "predictor_lr=10", "networks.projector_out_norm=normal,normal"
FEW = (*HALF, "subset=20000", "epochs=5", "probes=5", "evaluate=1")


def _slow_start(label: str, *changes: str) -> Course:
    return Course(
        label, ("optimizer=sgd", "lr=0.03", "ema=0.9", "batch=64", "networks.target_init=copy", *changes), BYOL
    )


RECIPE: dict[str, Course] = {
    "info_nce": RUNS["info_nce"],
    "byol, plain": _slow_start("BYOL, plain"),
    "byol, predictor": _slow_start("faster predictor", QUICK),
    "byol, centred": _slow_start("BatchNorm after", CENTRED),
    "byol, both": _slow_start("both", QUICK, CENTRED),
}
"""What lets BYOL learn from its first steps: a predictor at ten times the learning rate, BatchNorm after the projector, both."""
HUNDRED: dict[str, Course] = {
    "info_nce": RUNS["info_nce"],
    "byol, growing": _slow_start("BYOL, growing average", QUICK, CENTRED, "ema_end=0.999"),
}
WORKING = (*HALF, "subset=none", "epochs=100", "probes=10,20,50,100", "evaluate=10", "schedule=cosine")
"""Networks that work: all images, a hundred epochs, with negatives and without."""
RELEASED: dict[str, Course] = {"info_nce, as released": Course("InfoNCE, as released")}
"""A run of Table 2 of [tian2020], at its own width and rate."""
COURSES: Mapping[str, Course] = RUNS | EXACT | STEEPNESS | RATES | MORE_RATES | RECIPE | HUNDRED | RELEASED


def settings_of(name: str, seed: int, changes: Sequence[str] = SMALL) -> Settings:
    """The settings of one of :data:`COURSES`, made small."""
    course = COURSES[name]
    return replace(with_changes(presets()[course.preset].settings, [*course.changes, *changes]), seed=seed)


LOOKS = 2000
"""Test images that the curves are measured on; the last numbers are measured on all."""
QUERIES, NEIGHBOURS = 10, 6
PICTURED = ("info_nce", "byol")
"""Runs whose first layer and nearest neighbours are kept, for the first seed."""
CURVES = ("loss", "knn", "linear", "rank")


def run_values(
    seeds: Sequence[int],
    *,
    names: Sequence[str],
    changes: Sequence[str] = SMALL,
    processes: int | None = None,
    device: str | None = None,
    root: Path,
) -> dict[str, Any]:
    """Curves, last accuracies, first layers and nearest neighbours; raises FileNotFoundError without the data.

    root: where the runs lie, to go on there if they are stopped.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    jobs = [
        (name, seed, tuple(changes), name in PICTURED and seed == seeds[0], device, root)
        for seed in seeds
        for name in names
    ]
    load_data(settings_of(names[0], seeds[0], changes))  # says at once if there is no data
    found = spread(one, jobs, (processes or cores()) if device == "cpu" else 1)
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


def one(name: str, seed: int, changes: Sequence[str], pictured: bool, device: str, root: Path) -> dict[str, Any]:
    """One run's curves, its last numbers on all test images, and its pictures, if they aren't below ``root`` already."""
    part = run_folder(root, name, seed, changes) / ("pictured.json" if pictured else "values.json")
    return kept(part, lambda: _made(name, seed, changes, pictured, device, root))


def run_folder(root: Path, name: str, seed: int, changes: Sequence[str]) -> Path:
    """The run's own, by its settings; of one that begins with another's weights, below that one's."""
    after, settings = COURSES[name].after, settings_of(name, seed, changes)
    above = root if after is None else run_folder(root, after, seed, changes)
    return above / f"s{seed}-{settings.hash()}-{settings.epochs}"


def _trained(name: str, seed: int, changes: Sequence[str], device: str, root: Path, looks: Dataset) -> Result:
    """The run at its end; of one that begins with another's weights, that one is made first."""
    settings, folder, after = (
        settings_of(name, seed, changes),
        run_folder(root, name, seed, changes),
        COURSES[name].after,
    )
    data = (load_data(settings)[0], looks)
    start = None if after is None else _trained(after, seed, changes, device, root, looks).model.state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "made.lock"):
        return train(settings, folder, data=data, weights=start, device=device, quiet=True, name=name)


def _made(name: str, seed: int, changes: Sequence[str], pictured: bool, device: str, root: Path) -> dict[str, Any]:
    settings = settings_of(name, seed, changes)
    known, asked = load_data(settings)
    few = datasets.subset(asked, min(LOOKS, len(asked.pixels)), SUBSET_SEED)
    result = _trained(name, seed, changes, device, root, few)
    pipeline = PIPELINES[settings.pipeline]
    last = report(result.model.encoder, known, asked, pipeline, device, linear=True, seed=seed)
    ends = unit_embeddings(result.model, few, pipeline, device)
    values: dict[str, Any] = {m: [row.get(m) for row in result.rows] for m in CURVES}
    values = {m: [None if v is None else round(v, 4) for v in column] for m, column in values.items()}
    values["epochs"] = [row["epoch"] for row in result.rows]
    values["last"] = {
        "knn": round(last["knn"], 4),
        "linear": last["linear"],
        "linear_best": last["linear_best"],
        "rank": round(last["rank"], 3),
        "axes": [round(share, 5) for share in spectrum(ends)],
        "likeness": round(float(mean_cosine(ends)), 4),
    }
    if pictured:
        values["pictures"] = pictures(result, known, asked, device)
    return values


def unit_embeddings(model: Siamese, images: Dataset, pipeline: Pipeline, device: str) -> Tensor:
    """What the projector gives for each image, in evaluation mode, normalised: ``(N, d)``, float64."""
    model.eval()
    return F.normalize(embed(lambda x: model.projector(model.encoder(x)), images, pipeline, device), dim=1).double()


def spectrum(embeddings: Tensor) -> list[float]:
    """Shares of their variance by principal axis, the largest first."""
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
    near, far = (embed(model.encoder, part, pipeline, device) for part in (queries, known))
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
    """knn, linear, linear_best or rank at the end, a number a seed, on all test images."""
    return np.array(values["last"][name][measure], dtype=float)


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Records of the same runs with other seeds as one: curves, and what :func:`last` and :func:`span` need."""
    first, ends_of = parts[0], ("knn", "linear", "rank", "axes")
    runs = {n: {m: np.concatenate([curve(p, n, m) for p in parts], 1) for m in CURVES} for n in first["runs"]}
    ends = {n: {m: np.concatenate([last(p, n, m) for p in parts]) for m in ends_of} for n in first["runs"]}
    return {"epochs": first["epochs"], "images": first["images"], "runs": runs, "last": ends}


def by_rate(values: Mapping[str, Any], measure: str) -> dict[str, np.ndarray]:
    """Last accuracies in percent of each loss of :data:`TUNED`, by rate of :data:`TRIED` and seed: ``(rates, seeds)``."""
    return {name: 100 * np.array([last(values, f"{name} at {rate:g}", measure) for rate in TRIED]) for name in TUNED}


def span(values: Mapping[str, Any], name: str) -> np.ndarray:
    """Effective rank of the embeddings at the end, the exponential of the entropy of their axes' shares; a number a seed."""
    shares = last(values, name, "axes")
    return np.asarray(np.exp(entr(shares).sum(axis=1)))


def _study(names: Iterable[str], seeds: Iterable[int], changes: Sequence[str] = HALF) -> Study:
    def values(seeds: Sequence[int]) -> dict[str, Any]:
        return run_values(seeds, names=tuple(names), changes=changes, root=parts_folder())

    return Study(values, tuple(seeds))


STUDIES = {  # with what they take on two cores
    "training-cifar10": _study(RUNS, (1, 2, 3), SMALL),  # three quarters of an hour
    "training-exact": _study(EXACT, range(1, 11)),  # as long
    "training-beta": _study(BETAS, range(1, 11)),  # half an hour
    "training-steepness": _study(STEEPNESS, range(1, 6)),  # an hour
    "training-rates": _study(RATES, (1, 2, 3)),  # three quarters of an hour
    "training-more-rates": _study(MORE_RATES, (1, 2, 3)),  # forty minutes
    "training-long": _study(("info_nce", "beta -0.5"), (1, 2, 3), LONG),  # an hour
    "training-long-more": _study(("info_nce", "beta -0.5"), (4, 5, 6), LONG),  # three seeds more
    "training-recipe": _study(RECIPE, (1, 2, 3), FEW),  # an hour and a half
    "training-hundred": _study(HUNDRED, (1,), WORKING),  # more than seven hours
    "training-whole": _study(("info_nce", "exact", "beta -0.5"), (1,), WHOLE),  # an hour of a core for each run
}
