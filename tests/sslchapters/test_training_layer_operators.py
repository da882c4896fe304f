"""What weights see of a layer's operators: against the dense matrices, and along runs small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_cases import DIGITS

from sslbook.inspect.measure import settle
from sslbook.inspect.report import ALL, BETWEEN, KINDS, WITHIN
from sslbook.networks.siamese import Networks, build
from sslbook.operator.covariance import covariance_operator, intra_operator
from sslbook.operator.layer import OpenedLayer, open_layer, vec
from sslbook.training.augment import PIPELINES
from sslbook.training.evaluate import report
from sslbook.training.run.data import Batches, load_data
from sslchapters import records as store
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


def test_shares_and_outputs(views: torch.Tensor) -> None:
    net, name = layer_operators.opened(build(SMALL, 0).double()), NAMES[1]
    found = layer_operators.look_at(net, views, layers=[name], shared=[name], k=3)
    between, within = (make(net, name, views).dense() for make in (covariance_operator, intra_operator))
    leading = torch.linalg.eigh(between - (1 - 1 / 6) / 2 * within).eigenvectors[:, -3:]
    w = vec(net.get_parameter(f"{name}.weight").detach())
    share = float((leading.T @ w).square().sum() / w.square().sum())
    assert found["share"][name][0] == pytest.approx([share, share], rel=0.05)  # to a hundredth of the eigenvalues
    first = build(SMALL, 1).double().encoder.get_parameter(name[2:] + ".weight").detach()
    moved = layer_operators.look_at(net, views, first={name: first}, layers=[name], shared=[name], k=3)
    wanted = [float((leading.T @ d).square().sum() / d.square().sum()) for d in (w, vec(first))]
    assert moved["share"][name][0] == pytest.approx(wanted, rel=0.05)
    unit = torch.nn.functional.normalize(net(views.flatten(0, 1)).detach(), dim=1)
    assert found["outputs"][1] == pytest.approx(float(unit.var(0, unbiased=False).sum()), rel=1e-4)


def test_every_convolution_and_linear_layer_is_there() -> None:
    names = layer_operators.layers_of(layer_operators.opened(build(SMALL, 0)))
    assert len(names) == 20 + 2  # three of the convolutions change the shape beside a block
    assert names[0] == "0.conv1"
    assert set(layer_operators.LAYERS) - set(names) == {"1"}, "which is the classifier's"
    assert set(layer_operators.SHARED) < set(names)


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


def test_a_run_that_is_told_the_labels() -> None:
    settings = settings_of(RUNS[0], 1, SHORT)
    data = load_data(settings)[0]
    start, once, twice = (layer_operators.trained_on_labels(settings, data, epochs) for epochs in (0, 1, 1))
    assert torch.equal(start[0].conv1.weight, build(settings.networks, 1).encoder.conv1.weight)  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(start.parameters(), once.parameters(), strict=True))


def test_the_record_was_made_with_the_sizes_that_stand_in_the_code() -> None:
    made = store.recorded("training-operator")
    sizes = [getattr(layer_operators, name) for name in ("IMAGES", "VIEWS", "MORE", "LEADING")]
    assert [made[name] for name in ("images", "views", "more", "modes")] == sizes
    assert made["epochs"] == list(layer_operators.EPOCHS)


def test_each_run_is_looked_at_when_it_should_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def looked(run: layer_operators.Run, epoch: int, count: int, begin: int, **_: object) -> dict[str, object]:
        return {"at": [run.name, epoch, count, begin]}

    monkeypatch.setattr(layer_operators, "_looked", looked)

    def at(name: str, more: int) -> list[object]:
        return [look["at"] for look in layer_operators.along(name, 1, SHORT, (0, 2), 8, more, "cpu", tmp_path, {})]

    assert at("byol", 16) == [["byol", 0, 8, 0], ["byol", 2, 8, 0], ["byol", 2, 16, 8]]
    assert at(SUPERVISED, 0) == [[SUPERVISED, 0, 8, 0], [SUPERVISED, 2, 8, 0]]


def test_steps_of_a_run_that_is_told_the_labels_are_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, seen, at = settings_of(RUNS[0], 1, (*SHORT, "shuffle=true")), list[int](), Batches.at
    monkeypatch.setattr(Batches, "at", lambda self, step: seen.append(step) or at(self, step))
    layer_operators.trained_on_labels(settings, load_data(settings)[0], 2)
    assert seen == [0, 1, 2, 3]


def test_before_training_batchnorm_goes_by_the_views(tmp_path: Path) -> None:
    run, names = layer_operators.Run(RUNS[0], 1, SHORT, "cpu", tmp_path), NAMES[:1]
    found = layer_operators._looked(run, 0, 3, 0, images=4, layers=names, shared=())
    net, x = run.network(0), layer_operators.population(run.settings, 1, 4, 3)
    fresh = layer_operators.look_at(net, x, layers=names)
    settle(net, x.flatten(0, 1))
    assert found == layer_operators.look_at(net, x, layers=names) | {name: found[name] for name in ("knn", "rank")}
    assert found["mean"] != fresh["mean"]


def test_convolutions_of_a_gpu_keep_their_digits(views: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, cudnn = [], torch.backends.cudnn

    def opened(*arguments: object) -> OpenedLayer:
        flags.append((cudnn.enabled, cudnn.allow_tf32))
        return open_layer(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(layer_operators, "open_layer", opened)
    monkeypatch.setattr(cudnn, "enabled", True)
    monkeypatch.setattr(cudnn, "allow_tf32", True)
    net = layer_operators.opened(build(SMALL, 0).double())
    layer_operators.look_at(net, views, layers=NAMES[2:], probes=2)
    assert set(flags) == {(True, False)}
    assert cudnn.allow_tf32, "as before"
