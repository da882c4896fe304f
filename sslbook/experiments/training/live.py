"""Short runs for the page: every kind of network on scikit-learn's digits, looked at on the way; nothing is downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Siamese, build
from sslbook.records.store import recorded
from sslbook.training.evaluate import knn
from sslbook.training.presets.runs import run_of
from sslbook.training.run import checkpoints
from sslbook.training.run.parts import make_batches
from sslbook.training.run.settings import Settings
from sslbook.training.run.trainer import train
from sslbook.training.views.augment import PIPELINES, plain

STEADY = ("schedule=constant", "evaluate=0")
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "SimCLR": ("digits-simclr-nce", STEADY),
    "BYOL": ("digits-byol", STEADY),
    "BYOL, no predictor": ("digits-byol", (*STEADY, "networks.predictor=0")),
    "BYOL, no EMA, no stop-gradient": ("digits-byol", (*STEADY, "networks.target=none", "numbers.stop_gradient=false")),
}
"""What the page trains: the preset that each begins with, and what is changed in it."""


class Look(NamedTuple):
    """What is seen of a network on test images: see :class:`Course`."""

    knn: float
    likeness: float
    embeddings: Tensor
    features: Tensor
    known: Tensor


@dataclass(frozen=True)
class Course:
    """Runs of one kind, a column a seed, a row a look: after so many ``epochs``, the first before training.

    loss: the last epoch's mean, of nothing before the first.  knn: accuracy in [0, 1].
    likeness: mean cosine of two different test images' embeddings.
    embeddings, features: ``(looks, N, D)`` and ``(looks, N, F)`` of the test images, by the first seed's network; known:
    ``(looks, M, F)``, of the training images.
    """

    epochs: tuple[int, ...]
    loss: Tensor
    knn: Tensor
    likeness: Tensor
    embeddings: Tensor
    features: Tensor
    known: Tensor


def settings_of(name: str, seed: int, epochs: int) -> Settings:
    """The settings of one of :data:`RUNS`; raises ValueError for a name that is none of them."""
    if name not in RUNS:
        raise ValueError(f"name must be one of {', '.join(RUNS)}, got {name!r}")
    preset, changes = RUNS[name]
    return run_of(preset, seed=seed, epochs=epochs, changes=changes).settings


def course(name: str, seeds: Sequence[int], epochs: int, every: int) -> Course:
    """Train one of :data:`RUNS` for each seed, stopping to look after every so many epochs.

    A stop is a checkpoint, and what follows a resumed run: the weights are those of a run that was never stopped.
    Raises ValueError unless ``every`` divides ``epochs``.
    """
    if every < 1 or epochs % every:
        raise ValueError(f"every must divide the {epochs} epochs, got {every}")
    looks = tuple(range(0, epochs + 1, every))
    # One epoch more than is made, or the linear protocol would run at the end.
    found = [_one(settings_of(name, seed, epochs + 1), looks) for seed in seeds]
    loss = torch.tensor([[loss for loss, _ in rows] for rows in found], dtype=torch.float64).T
    numbers = {
        name: torch.tensor([[getattr(seen, name) for _, seen in rows] for rows in found], dtype=torch.float64).T
        for name in ("knn", "likeness")
    }
    pictures = {
        name: torch.stack([getattr(seen, name) for _, seen in found[0]]) for name in ("embeddings", "features", "known")
    }
    return Course(looks, loss, **numbers, **pictures)


def simclr_values(seeds: Sequence[int]) -> dict[str, object]:
    """The record ``training-digits``: the page's run of SimCLR, eight epochs, for more seeds than a page has time for.

    loss, knn, likeness: ``[seed][look]``, as :class:`Course` has them; the loss from the first epoch on.
    """
    found = course("SimCLR", seeds, epochs=8, every=2)
    values = {name: getattr(found, name).T.tolist() for name in ("loss", "knn", "likeness")}
    return {"epochs": list(found.epochs), **values, "loss": [row[1:] for row in values["loss"]]}


def with_recorded_seeds(one: Course) -> Course:
    """The same networks to look at, and the numbers of the record's seeds."""
    record = recorded("training-digits")
    knn, likeness = (torch.tensor(record[name], dtype=torch.float64).T for name in ("knn", "likeness"))
    loss = torch.tensor([[float("nan"), *row] for row in record["loss"]], dtype=torch.float64).T
    return replace(one, loss=loss, knn=knn, likeness=likeness)


def _one(settings: Settings, looks: Sequence[int]) -> list[tuple[float, Look]]:
    known, asked = (datasets.load_dataset(settings.dataset, split) for split in ("train", "test"))
    rows = [(float("nan"), look(build(settings.networks, settings.seed), settings, known, asked))]
    steps = make_batches(settings, len(known)).per_epoch
    with tempfile.TemporaryDirectory() as folder:
        for epoch in looks[1:]:
            stopped = train(
                settings, Path(folder), stop_after=epoch * steps, data=(known, asked), device="cpu", quiet=True
            )
            rows.append((stopped.rows[-1]["loss"], look(stopped.model, settings, known, asked)))
    return rows


@torch.no_grad()
def look(model: Siamese, settings: Settings, known: Dataset, asked: Dataset) -> Look:
    """The model as it is now, in evaluation mode; its own mode is put back."""
    pipeline, mode = PIPELINES[settings.pipeline], model.training
    model.eval()
    ours, theirs = (model.features(plain(part.pixels, pipeline)) for part in (asked, known))
    embeddings = F.normalize(model.projector(ours), dim=1)
    model.train(mode)
    accuracy = knn(theirs, known.labels, ours, asked.labels)
    return Look(accuracy, likeness(embeddings), embeddings, ours, theirs)


def likeness(units: Tensor) -> float:
    """Mean cosine of two different rows of unit vectors ``(N, D)``: 1 where all are one."""
    count = len(units)
    return (float(units.double().sum(0).square().sum()) - count) / (count * (count - 1))


def resumed_apart(seed: int) -> dict[str, float]:
    """Largest difference of a weight between a run and the same run stopped in the middle of an epoch and gone on with.

    "resumed": from its checkpoint.  "broken: momentum lost": from the checkpoint without what the optimiser remembers.
    """
    settings = replace(settings_of("BYOL", seed, epochs=2), drop_last=True)
    data = (datasets.subset(datasets.load_dataset("digits", "train"), 256), datasets.load_dataset("digits", "test"))
    ends = {}
    with tempfile.TemporaryDirectory() as root:
        for name in ("whole", "resumed", "broken: momentum lost"):
            folder = Path(root) / name.partition(":")[0]
            if name != "whole":
                train(settings, folder, stop_after=2, data=data, device="cpu", quiet=True)
            if name.startswith("broken"):
                content = checkpoints.latest(folder, lambda text: None)
                assert content is not None
                content["optimizer"]["state"] = {}
                checkpoints.save(folder, content["step"], content)
            ends[name] = train(settings, folder, data=data, device="cpu", quiet=True).model.state_dict()
    whole = ends.pop("whole")
    return {
        name: max(float((weights.double() - whole[key].double()).abs().max()) for key, weights in end.items())
        for name, end in ends.items()
    }
