"""The operator on the layers of a ResNet: against the dense matrix, and along a run small enough for a test."""

from __future__ import annotations

import json

import pytest
import torch
from training_cases import DIGITS

from sslbook.chapters.training import layer_operators
from sslbook.connection import vec
from sslbook.operators import covariance_operator
from sslbook.records import plain
from sslbook.training.networks.siamese import Networks, build

SMALL = Networks(width=2, projector_hidden=6, projector_out=4, channels=1)
SHORT = (*DIGITS, "epochs=3", "probes=3", "evaluate=0")


@pytest.fixture(scope="module")
def views() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 1, 8, 8, generator=draw, dtype=torch.float64)


def test_modes_are_those_of_the_matrix(views: torch.Tensor) -> None:
    net = layer_operators.opened(build(SMALL, 0).double())
    names = ("0.layer2.0.conv1", "0.layer4.1.conv2", "1.linears.0")
    found = layer_operators.modes(net, views, 3, names, tol=1e-10, probes=400)
    for i, name in enumerate(names):
        matrix = covariance_operator(net, name, views).dense()
        values, vectors = torch.linalg.eigh(matrix)
        weight = vec(dict(net.named_modules())[name].weight.detach())
        share = (vectors[:, -3:].T @ weight).square().sum() / weight.square().sum()
        torch.testing.assert_close(found.values[i], values.flip(0)[:3], rtol=1e-8, atol=0)
        torch.testing.assert_close(found.share[i], share, rtol=1e-6, atol=1e-12)
        off = abs(float(found.trace[i] / matrix.trace()) - 1)
        assert off < 4 * float(found.error[i]) < 0.2  # 400 random signs
        seen = float(weight @ matrix @ weight / weight.square().sum()) / float(matrix.trace()) * len(weight)
        assert float(found.gain[i]) == pytest.approx(seen, rel=0.1)
    assert float(found.residual.max()) < 1e-6


def test_every_convolution_and_linear_layer_is_there() -> None:
    names = layer_operators.layers_of(layer_operators.opened(build(SMALL, 0)))
    assert len(names) == 20 + 2  # three of the convolutions change the shape beside a block
    assert names[0] == "0.conv1"
    assert names[-1] == "1.linears.1"


def test_the_record_can_be_made() -> None:
    values = plain(layer_operators.operator_values([1], changes=SHORT, epochs=(0, 2), images=4, processes=1))
    json.dumps(values, allow_nan=False)
    assert values["epochs"] == [0, 2]
    layers = len(values["names"])
    assert all(len(values[name][0][1]) == layers for name in layer_operators.MEASURED)
    assert len(values["values"][0][0][0]) == layer_operators.LEADING
    assert values["gain"][0][0] != values["gain"][0][1], "the run has moved the weights"
