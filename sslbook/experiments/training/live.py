"""Short runs for the page: every kind of network on scikit-learn's digits, looked at on the way; nothing is downloaded.

And one step of one batch by two processes of this machine, beside the same step by one.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.losses import pairs
from sslbook.networks.siamese import Networks, Siamese, build
from sslbook.records.store import recorded
from sslbook.stats.replicas import Study
from sslbook.training import objectives
from sslbook.training.augment import PIPELINES, plain
from sslbook.training.evaluate import knn_accuracy, likeness
from sslbook.training.presets.sheets import run_of
from sslbook.training.run import checkpoints, distributed
from sslbook.training.run.parts import make_batches
from sslbook.training.run.settings import Settings
from sslbook.training.run.trainer import train

STEADY = ("schedule=constant", "evaluate=0")
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "SimCLR": ("digits-simclr-nce", STEADY),
    "BYOL": ("digits-byol", STEADY),
    "BYOL, no predictor": ("digits-byol", (*STEADY, "networks.predictor=0")),
    "BYOL, no EMA, no stop-gradient": ("digits-byol", (*STEADY, "networks.target=none", "stop_gradient=false")),
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
    """The settings of one of :data:`RUNS`."""
    preset, changes = RUNS[name]
    return run_of(preset, seed=seed, epochs=epochs, changes=changes).settings


def course(name: str, seeds: Sequence[int], epochs: int, every: int) -> Course:
    """Train one of :data:`RUNS` for each seed, stopping to look after every so many epochs, of which ``epochs`` is a multiple.

    A stop is a checkpoint, and what follows a resumed run: the weights are those of a run that was never stopped.
    """
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


def _simclr_values(seeds: Sequence[int]) -> dict[str, object]:
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
    accuracy = knn_accuracy(theirs, known.labels, ours, asked.labels)
    return Look(accuracy, float(likeness(embeddings)), embeddings, ours, theirs)


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


# -- two processes ----------------------------------------------------------------------------------------------------

NETWORKS = Networks(width=4, projector_hidden=16, projector_out=8)
BATCH = 16
BROKEN = ("BatchNorm apart", "gather without gradient")


def gradient(seed: int, broken: str = "") -> Tensor:
    """The gradient of InfoNCE by all weights, float64 ``(P,)``, from this process's part of the batch, averaged over processes.

    broken: one of :data:`BROKEN`, the two mistakes that are easily made.
    """
    model = build(NETWORKS, seed).double()
    if broken != "BatchNorm apart":
        distributed.synchronize_batchnorm(model)
    draw = torch.Generator().manual_seed(seed)
    views = torch.randn(2, BATCH, 3, 16, 16, generator=draw, dtype=torch.float64)[:, distributed.own_rows(BATCH)]
    outputs = model(views[0], views[1])
    if broken == "gather without gradient":
        loss = _one_sided(outputs.z1, outputs.z2)
    else:
        loss = objectives.objective("info_nce")(outputs)
    loss.backward()
    distributed.average_gradients(model.learning())
    return torch.cat([weights.grad.flatten() for weights in model.learning() if weights.grad is not None])


def _one_sided(z1: Tensor, z2: Tensor) -> Tensor:
    """The mistake: the other process's rows come as constants."""
    whole = []
    for z in (z1, z2):
        everything = distributed.gather(z.detach())
        rows = distributed.own_rows(len(everything))
        whole.append(torch.cat([everything[: rows.start], z, everything[rows.stop :]]))
    return pairs.contrastive(whole[0], whole[1], "info_nce", temperature=0.5)


def by_processes(seed: int) -> dict[str, Tensor]:
    """Gradients by two processes over gloo: under "", right, and under each of :data:`BROKEN`."""
    processes = 2
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        spawn(_worker, (processes, port, folder, seed), nprocs=processes)
        found: dict[str, Tensor] = torch.load(Path(folder) / "found.pt", weights_only=True)
    return found


def _worker(rank: int, world: int, port: int, folder: str, seed: int) -> None:
    torch.set_num_threads(1)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    distributed.join("cpu")
    found = {broken: gradient(seed, broken) for broken in ("", *BROKEN)}
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    distributed.leave()


STUDIES = {"training-digits": Study(_simclr_values, tuple(range(8)))}
