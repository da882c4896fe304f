"""Training at full size on a GPU that isn't there: no device is mixed, and no step reads back or waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import GPU, fake_gpu

from sslbook.datasets import Dataset
from sslbook.training.networks.siamese import Networks
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.runs import determinism, steps
from sslbook.training.runs.optimizers import LARS
from sslbook.training.runs.settings import OPTIMIZERS, Settings
from sslbook.training.runs.trainer import Trainer, train
from sslbook.training.views.augment import PIPELINES

BATCH = 512
BYOL = Networks(predictor=2, target="ema")
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "exact": [{}, {"weights": "clean", "over": "sum", "beta": 0.1}],
    "beta": [{"beta": 0.2}, {"beta": 0.2, "form": "printed"}],
    "byol": [{}, {"stop_gradient": False}],
}
MAY_READ = {
    "arguments.require_classes": "labels are checked once before anything is computed",
    "training.evaluate._require_labelled": "which classes occur",
    "training.evaluate.knn": "the accuracy in the end",
    "training.evaluate.linear_probe": "the accuracies after the last epoch",
    "arguments.require_finite": "one answer for all representations",
    "representations.effective_rank": "eigenvalues are checked for convergence as they are computed",
    "training.evaluate.report": "the rank, as a number",
    "training.runs.trainer.Trainer._end_epoch": "the losses of an epoch",
    "training.runs.state.check": "whether weights are finite, at the ends of epochs and before a checkpoint",
    "training.runs.trainer.Trainer._save": "a checkpoint",
}
"""Where values are read back, and why that is right; a step is none of these."""


def images(count: int, channels: int = 3, side: int = 32, *, labelled: int | None = None) -> Dataset:
    """As many images as one likes in no memory."""
    labels = torch.arange(count) % 10
    labels[count if labelled is None else labelled :] = -1
    pixels = torch.zeros(1, channels, side, side, dtype=torch.uint8).expand(count, -1, -1, -1)
    return Dataset(pixels, labels, "nothing", 10)


CIFAR10, STL10 = (images(50_000), images(10_000)), (images(105_000, side=96, labelled=5000), images(8000, side=96))


@pytest.fixture(autouse=True)
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernels are to be chosen before a capture."""
    monkeypatch.setattr(steps, "WARM", 1)


def trainer(settings: Settings, folder: Path, data: tuple[Dataset, Dataset] = CIFAR10) -> Trainer:
    return Trainer(settings, folder, data, GPU, quiet=True)


def trained(settings: Settings, folder: Path, data: tuple[Dataset, Dataset] = CIFAR10, count: int = 2) -> Trainer:
    """After ``count`` steps in which nothing was read or waited for; the weights and gradients are the device's."""
    with fake_gpu() as gpu:
        run = trainer(settings, folder, data)
        gpu.waits.clear()  # images and weights have moved, once
        for _ in range(count):
            run.advance()
        assert gpu.waits == []
        for weight in run.state.model.learning():
            assert weight.grad is not None
            assert weight.device == weight.grad.device == GPU
    assert run.state.step == count
    return run


@pytest.mark.parametrize(
    ("name", "which"), [(name, i) for name in OBJECTIVES for i in range(len(NUMBERS.get(name, [{}])))]
)
def test_a_step_of_every_objective(name: str, which: int, tmp_path: Path) -> None:
    """As ``auto`` has it on a GPU: bfloat16, in a graph."""
    numbers = NUMBERS.get(name, [{}])[which]
    settings = Settings(objective=name, numbers=numbers, networks=BYOL if name == "byol" else Networks(), batch=BATCH)
    run = trained(settings, tmp_path)
    assert run.step.precision == torch.bfloat16
    assert run.step.capture == "graph"


@pytest.mark.parametrize("name", ["info_nce", "byol"])
def test_photographs(name: str, tmp_path: Path) -> None:
    networks = replace(BYOL if name == "byol" else Networks(), stem="stl")
    settings = Settings("stl10", "train+unlabeled", pipeline="stl10", objective=name, networks=networks, batch=BATCH)
    trained(settings, tmp_path, STL10)


def test_photographs_without_classes_are_refused_before_a_step(tmp_path: Path) -> None:
    settings = Settings("stl10", "train+unlabeled", pipeline="stl10", objective="supervised_contrastive", batch=BATCH)
    with pytest.raises(
        ValueError, match="asks for the class of each image, and 100000 of the 105000 of nothing have none"
    ):
        trainer(settings, tmp_path, STL10)


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline(name: str, tmp_path: Path) -> None:
    pipeline = PIPELINES[name]
    channels = 1 if name in ("digits", "mnist") else 3
    data = tuple(images(4 * BATCH, channels, pipeline.size) for _ in range(2))
    networks = Networks(channels=channels, stem="stl" if pipeline.size > 32 else "cifar", width=8)
    trained(Settings(pipeline=name, networks=networks, batch=BATCH), tmp_path, data)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("capture", ["none", "graph"])
def test_every_optimizer(optimizer: str, capture: str, tmp_path: Path) -> None:
    settings = Settings(
        optimizer=optimizer, capture=capture, networks=Networks(width=8), batch=BATCH, precision="float32"
    )
    run = trained(settings, tmp_path)
    assert isinstance(run.state.optimizer, LARS) == (optimizer == "lars")


def test_byol_with_everything(tmp_path: Path) -> None:
    """Moving target, symmetric predictor, halves of BatchNorm, a new predictor and noise at the start of an epoch."""
    networks = replace(BYOL, projector_norm=("detach", "normal"), predictor_norm=("backward", "normal"), unbiased=True)
    settings = Settings(
        objective="byol", networks=networks, batch=BATCH, symmetric=True, reset=1, noise=0.1, shuffle=True
    )
    run = trained(settings, tmp_path)
    with fake_gpu() as gpu:
        determinism.begin_epoch(run.state.model, settings, 1)
        assert set(gpu.waits) <= {  # drawn on the host, once an epoch
            "training.networks.siamese.Siamese.blend_noise < training.runs.determinism.begin_epoch",
            "training.networks.siamese.restart < training.networks.siamese.Siamese.reset_predictor "
            "< training.runs.determinism.begin_epoch",
        }
        run.advance()


def test_a_last_batch_that_is_not_full(tmp_path: Path) -> None:
    """It passes the graph by."""
    data = images(2 * BATCH + 32), images(100)
    settings = Settings(networks=Networks(width=8), batch=BATCH, drop_last=False)
    run = trained(settings, tmp_path, data, count=3)
    assert run.per_epoch == 3


def test_a_run_reads_where_it_may(tmp_path: Path) -> None:
    """A whole run, with both looks, the linear protocol, and its checkpoint."""
    data = images(128), images(100)
    settings = Settings(networks=Networks(width=8), batch=64, epochs=1, evaluate=1)
    with fake_gpu(MAY_READ, found={"training.runs.state.check": True}) as gpu:
        result = train(settings, tmp_path, data=data, quiet=True)
    assert result.finished
    assert set(gpu.reads) == set(MAY_READ)
