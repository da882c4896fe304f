"""What weights see of a layer's operators: against the dense matrices, and along runs small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_cases import DIGITS

from sslbook.inspect.report import ALL, BETWEEN, KINDS, WITHIN
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import covariance_operator, intra_operator
from sslbook.operator.layer import vec
from sslbook.training.augment import PIPELINES
from sslbook.training.evaluate import report
from sslbook.training.run.step import load_data
from sslchapters.training import layer_operators
from sslchapters.training.layer_operators import RUNS, SUPERVISED
from sslchapters.training.records import settings_of

SMALL = Networks(width=2, projector_hidden=6, projector_out=4, channels=1)
SHORT = (*DIGITS, "epochs=3", "probes=3", "evaluate=0")
NAMES = ("0.layer2.0.conv1", "0.layer4.1.conv2", "1.linears.0")
FEW = {"changes": SHORT, "images": 4, "views": 3, "layers": NAMES, "shared": NAMES[1:2], "processes": 1}


@pytest.fixture(scope="module")
def views() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 1, 8, 8, generator=draw, dtype=torch.float64)


def test_what_weights_see_is_what_the_matrices_say(views: torch.Tensor) -> None:
    net, other = (layer_operators.opened(build(SMALL, seed).double()) for seed in (0, 1))
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


def test_the_record_can_be_made_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = layer_operators.run_values([1], names=(RUNS[0], SUPERVISED), epochs=(0, 2), more=4, root=tmp_path, **FEW)  # type: ignore[arg-type]
    json.dumps(made, allow_nan=False)
    looks = made["runs"][RUNS[0]][0]
    assert len(looks) == 3, "the last one with more views"
    assert len(made["runs"][SUPERVISED][0]) == 2
    assert looks[0]["names"] == list(NAMES)
    assert looks[0]["seen"][0][0][0] != looks[1]["seen"][0][0][0], "the run has moved the weights"
    alone = report(
        build(settings_of(RUNS[0], 1, SHORT).networks, 1).encoder,
        *load_data(settings_of(RUNS[0], 1, SHORT)),
        PIPELINES["digits"],
        "cpu",
    )
    assert (looks[0]["knn"], looks[0]["rank"]) == (round(alone["knn"], 4), round(alone["rank"], 3))
    assert looks[1]["seen"][0][0][1] != looks[0]["seen"][0][0][1], "the first weights see another operator"
    other = layer_operators.run_values([2], names=RUNS[:1], epochs=(2,), more=0, network=1, root=tmp_path, **FEW)  # type: ignore[arg-type]
    assert other["runs"][RUNS[0]][0][0]["knn"] == looks[1]["knn"], "the same network"
    assert other["runs"][RUNS[0]][0][0]["seen"] != looks[1]["seen"], "other images"

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("a look that lies there is made again")

    monkeypatch.setattr(layer_operators, "look_at", never)
    again = layer_operators.run_values([1], names=(RUNS[0], SUPERVISED), epochs=(0, 2), more=4, root=tmp_path, **FEW)  # type: ignore[arg-type]
    assert again == made
    with pytest.raises(ValueError, match="past the 2 of this run"):
        layer_operators.run_values([1], names=RUNS[:1], epochs=(1,), more=0, root=tmp_path, **FEW)  # type: ignore[arg-type]
