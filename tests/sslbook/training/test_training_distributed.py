"""Two processes against one: losses, gradients and BatchNorm's statistics of the same batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from distributed_cases import (
    BYOL,
    CASES,
    SINGLE,
    SMALL,
    Result,
    everything,
    images,
    in_processes,
)
from torch import Tensor, nn

from sslbook.networks.siamese import Networks, build
from sslbook.training import objectives
from sslbook.training.pretrain import pretrain
from sslbook.training.run import distributed
from sslbook.training.run.distributed import SharedBatchNorm, average_gradients, join

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone() -> dict[str, Result]:
    return everything()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Result]]:
    return in_processes(2, tmp_path_factory.mktemp("processes"))


def apart(a: Tensor, b: Tensor) -> float:
    """Relative distance of two vectors."""
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize(
    ("case", "dtype", "tolerance"),
    [*((case, torch.float64, 1e-10) for case in CASES), *((case, torch.float32, 1e-5) for case in SINGLE)],
)
def test_two_processes_do_what_one_does(
    case: str, dtype: torch.dtype, tolerance: float, alone: dict[str, Result], together: list[dict[str, Result]]
) -> None:
    wanted = alone[f"{case} {dtype}"]
    for results in together:
        for quantity, value in results[f"{case} {dtype}"].items():
            if quantity.endswith("loss"):  # a difference of distances of about 1, which may itself be next to 0
                assert abs(value - wanted[quantity]) < tolerance, quantity
            else:
                assert apart(value, wanted[quantity]) < tolerance, quantity


def test_pytorchs_own_wrapper_gives_the_same_gradient(together: list[dict[str, Result]]) -> None:
    siamese, views = build(Networks(**{**SMALL, **BYOL}), 0).double(), images(torch.float64)
    objectives.objective("byol")(siamese(views[0], views[1])).backward()
    wanted = torch.cat([w.grad.flatten() for w in siamese.parameters() if w.grad is not None])
    for results in together:
        assert apart(results["wrapped"]["gradient"], wanted) < 1e-10


def test_the_shared_layer_alone_is_pytorchs() -> None:
    theirs = nn.BatchNorm2d(4).double()
    theirs.weight.data.uniform_(generator=torch.Generator().manual_seed(1))
    x = torch.randn(5, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = SharedBatchNorm.like(hooked := nn.BatchNorm2d(4).double())
    assert ours is hooked
    ours.load_state_dict(theirs.state_dict())
    for training in (True, True, False):
        assert torch.allclose(ours.train(training)(x), theirs.train(training)(x), rtol=1e-10)
    assert all(
        torch.allclose(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    )
    with pytest.raises(ValueError, match="this layer has none"):
        SharedBatchNorm.like(nn.BatchNorm2d(4, momentum=None))


def test_an_environment_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="WORLD_SIZE is set, and RANK, MASTER_PORT not"):
        join("cpu")
    monkeypatch.setenv("MASTER_PORT", "70000")
    for rank, sentence in (
        ("x", "RANK must be a whole number, got 'x'"),
        ("0", "MASTER_PORT must be .* a port, got '70"),
    ):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=sentence):
            join("cpu")


@pytest.mark.parametrize(
    ("host", "wanted"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("host", "host")]
)
def test_an_address_may_be_of_ipv6(host: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        distributed.dist, "init_process_group", lambda *args, init_method, **more: asked.append(init_method)
    )
    numbers = {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "29500", "MASTER_ADDR": host}
    for name, value in numbers.items():
        monkeypatch.setenv(name, value)
    join("cpu")
    assert asked == [f"tcp://{wanted}:29500"]


class NormAct(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def own_forward() -> nn.Module:
    layer = nn.BatchNorm2d(3)
    layer.forward = lambda x: x.relu()  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize(
    "make", [lambda: NormAct(3), own_forward, lambda: nn.InstanceNorm2d(3, track_running_stats=True)]
)
def test_what_several_processes_cannot_share_is_refused(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "world", lambda: 2)
    net = nn.Sequential(nn.BatchNorm3d(3), make(), nn.GroupNorm(1, 3), nn.InstanceNorm2d(3))
    with pytest.raises(
        ValueError, match=rf"'1', a {type(net[1]).__name__}, would go by the statistics of its own part"
    ):
        distributed.synchronize_batchnorm(net)
    distributed.synchronize_batchnorm(net.eval())  # by running statistics
    assert isinstance(net[0], SharedBatchNorm)


def test_what_ones_own_layers_take_of_a_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="backbone must treat images one by one, but for"):
        pretrain(torch.rand(8, 1, 8, 8), nn.Sequential(nn.Flatten(), nn.Linear(64, 4), Centred()), epochs=1, batch=8)


def test_the_gradient_of_a_missing_parameter_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(ValueError, match="parameters must all have a gradient"):
        average_gradients(nn.Linear(2, 2).parameters())


def test_nobody_is_gone_before_all_have_come(together: list[dict[str, Result]]) -> None:
    """Gone, one takes an exchange from those that have not woken from it yet; who fails does not wait."""
    assert all(bool(there) for one in together for there in one["leaving"].values())
