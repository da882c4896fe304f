"""What weights see of a layer's operators: against the dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sslbook.inspect.report import ALL, BETWEEN, KINDS, WITHIN
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import covariance_operator, intra_operator
from sslbook.operator.layer import vec
from sslchapters.training import layer_operators

SMALL = Networks(width=2, projector_hidden=6, projector_out=4, channels=1)
NAMES = ("0.layer2.0.conv1", "0.layer4.1.conv2", "1.linears.0")


@pytest.fixture(scope="module")
def views() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 1, 8, 8, generator=draw, dtype=torch.float64)


def test_what_weights_see_is_what_the_matrices_say(views: torch.Tensor) -> None:
    models = [build(SMALL, seed).double() for seed in (0, 1)]
    net, other = (torch.nn.Sequential(model.encoder, model.projector).eval() for model in models)
    first = {name: other.get_parameter(f"{name}.weight").detach() for name in NAMES}
    found = layer_operators.look_at(net, views, first=first, layers=NAMES, fewer=[2], probes=400)
    few = layer_operators.look_at(net, views[:, :2], first=first, layers=NAMES, probes=2)
    assert np.array(found["fewer"]["2"]) == pytest.approx(np.array(few["seen"]), rel=2e-5)
    for i, name in enumerate(NAMES):
        between, within = (make(net, name, views).dense() for make in (covariance_operator, intra_operator))
        matrices = {
            BETWEEN: between - (1 - 1 / 6) / 2 * within,
            ALL: between + within,
            WITHIN: 1.5 * within,
        }
        w = vec(net.get_parameter(f"{name}.weight").detach())
        for j, operator in enumerate(KINDS):
            seen = [float(d @ matrices[operator] @ d / d.square().sum()) for d in (w, vec(first[name]))]
            assert found["seen"][i][j] == pytest.approx(seen, rel=6e-5)
            off = abs(found["mean"][i][j] - float(matrices[operator].trace()) / len(w))
            assert off < 5 * 2**0.5 * float(matrices[operator].norm()) / len(w) / 400**0.5  # of so many random signs
        assert found["sizes"][i] == len(w)
