"""The chapter's recorded runs: every objective on real images, with a small network, on a processor.

They are presets of the papers made small, and what is changed in them, by name.
``sslbook record NAME --replace`` makes a record again, a run per core; stopped, it goes on with what is finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from sslbook.training.augment import PIPELINES
from sslbook.training.evaluate import embed, mean_cosine, report
from sslbook.training.papers import presets, with_changes
from sslbook.training.run.settings import Settings
from sslbook.training.run.step import SUBSET_SEED, load_data
from sslbook.training.run.trainer import Result, train
from sslchapters.records import kept, parts_folder, rounded
from sslchapters.sweep import Study, spread
from sslchapters.tables import as_html

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
    "exact": _simclr("same-view weights", "objective=exact"),
    "exact, noise": _simclr("same-view weights, noise", "objective=exact", "noise=0.01"),
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
    "exact, further": _simclr("other-view weights", "objective=exact", "weights=further"),
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


def _at_rates(courses: Mapping[str, Course], rates: Iterable[float]) -> dict[str, Course]:
    return {
        f"{name} at {rate:g}": replace(
            course, label=f"{course.label}, rate {rate:g}", changes=(*course.changes, f"lr={rate}")
        )
        for name, course in courses.items()
        for rate in rates
    }


RATES = _at_rates({name: RUNS[name] for name in TUNED}, TRIED)
"""Learning rates, the same ones for each loss."""
COMPARED = {name: (EXACT | STEEPNESS)[name] for name in ("exact, clean", "exact, further", "tau 0.1", "tau 5")}
MORE_RATES = _at_rates(COMPARED, (3e-4, 3e-3))
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


@dataclass(frozen=True)
class Run:
    """A run of one of :data:`COURSES`, made small, and the folder below which it lies."""

    name: str
    seed: int
    changes: tuple[str, ...]
    device: str
    root: Path

    @property
    def settings(self) -> Settings:
        """Those of its course, changed."""
        return settings_of(self.name, self.seed, self.changes)

    @property
    def before(self) -> Run | None:
        """The run with whose last weights this one begins."""
        after = COURSES[self.name].after
        return None if after is None else replace(self, name=after)

    @property
    def folder(self) -> Path:
        """The run's own, by its settings; of one that begins with another's weights, below that one's."""
        above = self.root if self.before is None else self.before.folder
        return above / f"s{self.seed}-{self.settings.hash()}-{self.settings.epochs}"

    def trained(self, looks: Dataset) -> Result:
        """The run at its end; the one whose weights it begins with is made first."""
        start = None if self.before is None else self.before.trained(looks).model.state_dict()
        data = (load_data(self.settings)[0], looks)
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "made.lock"):
            return train(
                self.settings, self.folder, data=data, weights=start, device=self.device, quiet=True, name=self.name
            )


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
    runs = [Run(name, seed, tuple(changes), device, root) for seed in seeds for name in names]
    jobs = [(run, run.name in PICTURED and run.seed == seeds[0]) for run in runs]
    base = runs[0].settings
    load_data(base)  # says at once if there is no data
    found = spread(one, jobs, (processes or cores()) if device == "cpu" else 1)
    by_job = {(run.name, run.seed): values for run, values in zip(runs, found, strict=True)}
    values: dict[str, Any] = {
        "axes": "runs[name][measure][epoch][seed], last[name][measure][seed], pictures[name]",
        "epochs": found[0]["epochs"],
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


def one(run: Run, pictured: bool) -> dict[str, Any]:
    """One run's curves, its last numbers on all test images, and its pictures, if they aren't below its root already."""
    return kept(run.folder / ("pictured.json" if pictured else "values.json"), partial(_made, run, pictured))


def _made(run: Run, pictured: bool) -> dict[str, Any]:
    settings = run.settings
    known, asked = load_data(settings)
    few = datasets.subset(asked, min(LOOKS, len(asked.pixels)), SUBSET_SEED)
    result = run.trained(few)
    pipeline = PIPELINES[settings.pipeline]
    last = report(result.model.encoder, known, asked, pipeline, run.device, linear=True, seed=run.seed)
    model = result.model.eval()
    ends = F.normalize(embed(lambda x: model.projector(model.encoder(x)), few, pipeline, run.device), dim=1).double()
    values: dict[str, Any] = {m: rounded([row.get(m) for row in result.rows], 4) for m in CURVES}
    values["epochs"] = [row["epoch"] for row in result.rows]
    values["last"] = {
        "knn": round(last["knn"], 4),
        "linear": last["linear"],
        "linear_best": last["linear_best"],
        "rank": round(last["rank"], 3),
        "axes": rounded(spectrum(ends), 5),
        "likeness": round(float(mean_cosine(ends)), 4),
    }
    if pictured:
        values["pictures"] = pictures(result, known, asked, run.device)
    return values


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
    kin = (F.normalize(near, dim=1) @ F.normalize(far, dim=1).T).topk(NEIGHBOURS, dim=1).indices.cpu()
    whole = len(datasets.load_dataset(settings.dataset, settings.split).pixels)
    place = datasets.choose(whole, settings.subset, SUBSET_SEED)
    kernel = next(weights for weights in model.encoder.parameters() if weights.ndim == 4)
    return {
        "filters": rounded(kernel.detach(), 3),
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


def span(values: Mapping[str, Any], name: str) -> np.ndarray:
    """Effective rank of the embeddings at the end, the exponential of the entropy of their axes' shares; a number a seed."""
    shares = last(values, name, "axes")
    return np.asarray(np.exp(entr(shares).sum(axis=1)))


def accuracies(values: Mapping[str, Any], caption: str, names: Sequence[str] | None = None) -> Any:
    """A line a run, of a record's or those with ``names``: k-NN and linear accuracy at the end, mean and
    deviation over seeds if there are several, mean rank, and mean span."""

    def percent(name: str, measure: str) -> str:
        numbers = 100 * last(values, name, measure)
        spread = f" ±\N{NO-BREAK SPACE}{numbers.std(ddof=1):.1f}" if len(numbers) > 1 else ""
        return f"{numbers.mean():.1f}{spread}"

    rows = [
        (
            COURSES[name].label,
            percent(name, "knn"),
            percent(name, "linear"),
            f"{last(values, name, 'rank').mean():.1f}",
            *([f"{span(values, name).mean():.1f}"] if "axes" in found else []),
        )
        for name, found in ((name, values["last"][name]) for name in names or values["last"])
    ]
    heads = ("trained with", "k-NN, %", "linear, %", "rank", "embeddings' rank")
    return as_html(caption, heads[: len(rows[0])], rows)


def _study(names: Iterable[str], seeds: Iterable[int], changes: Sequence[str] = HALF) -> Study:
    return Study(
        lambda seeds: run_values(seeds, names=tuple(names), changes=changes, root=parts_folder()), tuple(seeds)
    )


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
