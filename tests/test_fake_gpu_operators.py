"""The covariance operator on a GPU that isn't there: of a ResNet-18 of full width, and of the chapter's small network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_gpu import GPU, Mixed, Read, fake_gpu
from torch import Tensor, nn

from sslbook.chapters.covariance import step
from sslbook.chapters.training import layer_operators as along
from sslbook.chapters.training.layer_operators import layers_of, look_at, opened
from sslbook.connection import OpenedLayer, open_layer
from sslbook.operators import CovarianceOperator, covariance_operator, intra_operator
from sslbook.training.networks.siamese import Networks, build

OPENS = "connection.open_layer"
"""It asks whether the network is one that can be opened, once."""
MAY_READ = {
    OPENS: "whether samples depend on each other, and the like",
    "operators.covariance_operator": "whether an output is zero, where outputs are divided by their length",
    "operators.CovarianceOperator.update": "whether the outputs are K^T vec(W), to warn where they aren't",
    "guards.refuse_nonfinite": "whether samples are numbers",
    "operators.CovarianceOperator.trace": "a number",
    "eigenpairs.array": "the products that ARPACK asks for",
    "eigenpairs.top_eigenpairs": "ARPACK iterates on the processor, and LAPACK says whether it converged",
    "mixing.Mixing.root": "whether the pairs' weights allow a root, and their largest",
    "mixing.Mixing.symmetric": "whether the pairs' weights are symmetric, once",
}
KINDS = {
    "simple": {},
    "beta": {"beta": 0.2},
    "normalised": {"normalize": True},
    "info_nce": {"loss": "info_nce", "tau": 0.5},
}
LAYERS = ("0.conv1", "0.layer3.0.downsample.0", "0.layer4.1.conv2", "1.linears.0")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with fake_gpu():
        return opened(build(Networks(), 0).to("cuda"))


def views() -> Tensor:
    return torch.zeros(24, 4, 3, 32, 32, device="cuda")


def operator(network: nn.Module, layer: str, kind: str = "simple") -> CovarianceOperator:
    clean = {"clean": torch.zeros(24, 3, 32, 32, device="cuda")} if kind == "info_nce" else {}
    return covariance_operator(network, layer, views(), **KINDS[kind], **clean)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", LAYERS)
def test_products_read_nothing(network: nn.Module, layer: str) -> None:
    with fake_gpu([OPENS]) as gpu:
        op = operator(network, layer)
        vector = torch.zeros(op.shape[0], device="cuda")
        for product in (op.matvec(vector), op.rmatvec(vector), op.matmat(vector[:, None].expand(-1, 3))):
            assert product.device == GPU
            assert product.shape[0] == op.shape[0]
        assert op.apply(op.opened.weight).shape == op.exact_update().shape == op.opened.weight.shape
        assert intra_operator(network, layer, views()).matvec(vector).device == GPU
        assert gpu.waits == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_operator(network: nn.Module, kind: str) -> None:
    with fake_gpu(MAY_READ) as gpu:
        op = operator(network, "1.linears.1", kind)
        assert op.apply(op.opened.weight).device == op.apply_transpose(op.opened.weight).device == GPU
        opening = (OPENS, "guards.refuse_nonfinite")
        assert [r for r in gpu.reads if r not in opening] == ["operators.covariance_operator"] * (kind == "normalised")
        op.update()
        op.trace()
        if op.symmetric:
            assert op.top_eigenpairs(4).vectors.device == GPU


def test_numbers_are_read_where_they_are_made(network: nn.Module) -> None:
    with fake_gpu(set(MAY_READ) - {"operators.CovarianceOperator.trace"}), pytest.raises(Read, match="trace"):
        operator(network, "1.linears.1").trace()
    with fake_gpu([OPENS, "operators.CovarianceOperator.trace"]), pytest.raises(Read, match="top_eigenpairs"):
        operator(network, "1.linears.1").top_eigenpairs(4)


TOLD = "chapters.training.layer_operators._told"
"""It makes numbers of what was measured."""


def look(network: nn.Module, layers: tuple[str, ...]) -> dict[str, Any]:
    with fake_gpu([*MAY_READ, TOLD]):
        clean = torch.zeros(24, 3, 32, 32, device="cuda")
        return look_at(network, views(), clean, layers=layers, probes=2)


def test_a_look_at_a_run(network: nn.Module) -> None:
    """What ``sslbook record training-operator-full`` measures, of layers of full width."""
    assert len(look(network, LAYERS)["seen"]) == len(LAYERS)
    assert set(LAYERS) < set(layers_of(network))


def test_a_look_is_at_whole_convolutions(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU convolutions have three digits, unless they are told not to."""
    allowed: list[bool] = []

    def watched(*args: Any, **kwargs: Any) -> OpenedLayer:
        allowed.append(torch.backends.cudnn.allow_tf32)
        return open_layer(*args, **kwargs)

    monkeypatch.setattr(along, "open_layer", watched)
    look(network, LAYERS[-1:])
    assert allowed == [False, False]


def test_a_vector_of_the_host_is_refused(network: nn.Module) -> None:
    with fake_gpu([OPENS]):
        op = operator(network, "1.linears.1")
        with pytest.raises(Mixed):
            op.matvec(torch.zeros(op.shape[0]))


@pytest.mark.parametrize("loss", ["simple", "info_nce"])
def test_steps_beside_the_operator(loss: str) -> None:
    """The chapter's network in float64, with steps of SimCLR drawn on the host."""
    with fake_gpu([*MAY_READ, "chapters.covariance.step.simclr_agreement"]):
        scene = step.digits_scene(64, device="cuda")
        op = step.scene_operator(step.scene_network(scene), "2", scene, loss=loss)
        assert step.simclr_gradients(op, 16, loss=loss).device == GPU
        step.simclr_agreement(op, size=16, batches=(1, 2), loss=loss, replicates=2)


def test_a_run_of_simclr() -> None:
    """A step only sends the places of its batch."""
    reads = ("surviving_modes",)
    with fake_gpu([*MAY_READ, *(f"chapters.covariance.step.{name}" for name in reads)]) as gpu:
        scene = step.digits_scene(64, device="cuda")
        step.surviving_modes(scene)
        gpu.waits.clear()
        step.train_student(step.scene_network(scene), scene, steps=4, size=16)
        assert gpu.waits.count("chapters.covariance.step.train_student") <= 4 * 2
