"""On a GPU that isn't there a training step of each objective and the operator mix no devices and read nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import GPU, Mixed, Read, fake_gpu
from torch import Tensor

from sslbook.experiments.training.layer_operators import opened
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import CovarianceOperator, covariance_operator
from sslbook.training import augment, objectives
from sslbook.training.augment import PIPELINES
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.run import distributed, parts
from sslbook.training.run.parts import make_parts
from sslbook.training.run.settings import OPTIMIZERS, Settings
from sslbook.training.run.trainer import Trainer, train

# --- training --------------------------------------------------------------------------------------------------------

SMALL = Networks(width=8, projector_hidden=16, projector_out=8, predictor_hidden=8)
BYOL = replace(SMALL, predictor=2, target="ema")
GREY = replace(SMALL, channels=1)
HALVES = replace(BYOL, projector_norm=("detach", "normal"), predictor_norm=("backward", "normal"), unbiased=True)
BASE = Settings(networks=SMALL, batch=32, precision="float32", capture="none")
PRINTED = {"weights": "clean", "over": "sum", "beta": 0.1}
STEPS: dict[str, Settings] = {
    **{name: replace(BASE, objective=name, networks=BYOL if name == "byol" else SMALL) for name in OBJECTIVES},
    "exact, printed": replace(BASE, objective="exact", loss_kwargs=PRINTED),
    "beta, printed": replace(BASE, objective="beta", loss_kwargs={"beta": 0.2, "form": "printed"}),
    "byol, all": replace(BASE, objective="byol", networks=HALVES, symmetric=True, reset=1, noise=0.1, shuffle=True),
    "byol, both sides learn": replace(BASE, objective="byol", networks=BYOL, loss_kwargs={"stop_gradient": False}),
    **{optimizer: replace(BASE, optimizer=optimizer) for optimizer in OPTIMIZERS},
    **{f"views of {name}": replace(BASE, pipeline=name, networks=GREY if name in ("digits", "mnist") else SMALL)
       for name in PIPELINES},
}  # fmt: skip


def images(count: int, settings: Settings) -> Dataset:
    size = PIPELINES[settings.pipeline].size
    pixels = torch.zeros(1, settings.networks.channels, size, size, dtype=torch.uint8).expand(count, -1, -1, -1)
    return Dataset(pixels, torch.arange(count) % 10, "nothing", 10)


def two_steps(settings: Settings, folder: Path) -> Trainer:
    """Nothing is read in them or waited for, once images and weights have moved."""
    with fake_gpu() as gpu:
        data = images(96, settings)
        run = Trainer(make_parts(settings, (data, data), GPU), folder, quiet=True)
        gpu.waits.clear()
        run.advance()
        run.advance()
        assert gpu.waits == []
    return run


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_every_objective_optimizer_and_pipeline(name: str, tmp_path: Path) -> None:
    run = two_steps(STEPS[name], tmp_path)
    with fake_gpu():
        for weight in run.state.model.learning():
            assert weight.grad is not None
            assert weight.device == weight.grad.device == GPU


MAY_READ = {
    "runtime.arguments.require_classes": 0,  # labels are checked once before anything is computed
    "training.evaluate._require_labelled": 0,  # which classes occur
    "training.evaluate.knn_accuracy": 0,  # the accuracy in the end
    "training.evaluate.linear_probe": 0,  # likewise
    "runtime.arguments.require_finite": 0,  # one answer for all representations
    "training.evaluate.effective_rank": 0,  # eigenvalues are checked for convergence as they are computed
    "training.evaluate.report": 0,  # the rank
    "training.run.trainer.Trainer._end_epoch": 0,  # the losses of an epoch
    "training.run.checkpoints.check": True,  # whether weights are finite, at the ends of epochs and before a checkpoint
    "training.run.trainer.Trainer._save": 0,
    "training.run.checkpoints.save_weights": 0,
}


def test_a_run_reads_where_it_may(tmp_path: Path) -> None:
    """A whole run, with both looks, the linear protocol, and its checkpoint."""
    settings = replace(BASE, epochs=1, evaluate=1)
    with fake_gpu(MAY_READ) as gpu:
        assert train(settings, tmp_path, data=(images(64, BASE), images(50, BASE)), quiet=True).finished
    assert set(gpu.reads) == set(MAY_READ)


# --- faults in a step, which the pretended device must notice --------------------------------------------------------


def after(function: Callable[..., Any], fault: Callable[[Any], object]) -> Callable[..., Any]:
    """A function that gives what the fault makes of its tensor, or the tensor itself where the fault only looks."""

    def faulty(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        changed = fault(found)
        return changed if isinstance(changed, Tensor) else found

    return faulty


view, similarity = augment._view, objectives.F.cosine_similarity
FAULTS: dict[str, tuple[object, str, object, type[Exception]]] = {
    "a loss that is logged": (objectives.F, "cosine_similarity", after(similarity, lambda x: x.mean().item()), Read),
    "a mask": (augment, "_view", after(view, lambda x: x[x.flatten(1).sum(1) > 0]), Read),
    "a table on the host": (augment, "_scaling", lambda *_: (torch.ones(3, 1, 1), torch.zeros(3, 1, 1)), Mixed),
    "a table sent": (augment, "_view", after(view, lambda x: x * torch.ones(3, 1, 1).to(x.device)), AssertionError),
    "memory that is not pinned": (parts, "to_device", lambda part, device: part.to(device), AssertionError),
    "waiting": (distributed, "own_rows", after(distributed.own_rows, lambda _: torch.cuda.synchronize()), Read),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_step_is_noticed(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, faulty, refused = FAULTS[fault]
    monkeypatch.setattr(module, name, faulty)
    with pytest.raises(refused):
        two_steps(STEPS["byol"], tmp_path)


# --- the operator ----------------------------------------------------------------------------------------------------

OPENS = {"operator.layer.open_layer": 0}
"""It asks whether the network is one that can be opened, once."""
MAKES_NUMBERS = OPENS | {
    "operator.covariance.covariance_operator": 0,  # whether an output is zero, where outputs are divided by their length
    "operator.covariance.CovarianceOperator.update": 0,  # whether the outputs are K^T vec(W), to warn where they aren't
    "operator.frozen.refuse_nonfinite": 0,
    "operator.covariance.CovarianceOperator.trace": 0,
    "operator.covariance._array": 0,  # the products that ARPACK asks for
    "operator.covariance._top_eigenpairs": 0,
    "operator.view_weights.Mixing.root": 0,  # whether the pairs' weights allow a root, and their largest
    "operator.view_weights.Mixing.symmetric": 0,
}
KINDS: dict[str, dict[str, Any]] = {
    "simple": {},
    "beta": {"beta": 0.2},
    "normalised": {"normalize": True},
    "info_nce": {"loss": "info_nce", "temperature": 0.5},
}


def operator(layer: str, kind: str = "simple") -> CovarianceOperator:
    network = opened(build(SMALL, 0).to("cuda")).double()
    views = torch.zeros(24, 4, 3, 32, 32, device="cuda", dtype=torch.float64)
    clean = {"clean": views[:, 0]} if kind == "info_nce" else {}
    return covariance_operator(network, layer, views, **KINDS[kind], **clean)


@pytest.mark.parametrize("layer", ["0.conv1", "0.layer3.0.downsample.0", "1.linears.0"])
def test_products_of_the_operator_read_nothing(layer: str) -> None:
    with fake_gpu(OPENS) as gpu:
        op = operator(layer)
        gpu.waits.clear()
        vector = torch.zeros(op.shape[0], device="cuda", dtype=torch.float64)
        for product in (op.matvec(vector), op.rmatvec(vector), op.matmat(vector[:, None].expand(-1, 3))):
            assert product.device == GPU
        assert op.apply(op.opened.weight).shape == op.exact_update().shape == op.opened.weight.shape
        assert gpu.waits == []
        with pytest.raises((Mixed, TypeError)):
            op.matvec(torch.zeros(op.shape[0], dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_operator_reads_where_it_makes_numbers(kind: str) -> None:
    with fake_gpu(MAKES_NUMBERS):
        op = operator("1.linears.1", kind)
        op.update()
        op.trace()
        assert op.apply_transpose(op.opened.weight).device == GPU
        if op.symmetric:
            assert op.top_eigenpairs(4).vectors.device == GPU
