"""Two processes against one: losses, gradients and BatchNorm's statistics of the same batch."""

from __future__ import annotations

import pytest
import torch
from distributed_cases import CASES, SINGLE, Result, everything, in_processes, normalised
from torch import Tensor, nn

from sslbook.training.pretrain import pretrain
from sslbook.training.run import distributed
from sslbook.training.run.distributed import average_gradients, join

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


@pytest.mark.parametrize("case", CASES)
def test_two_processes_do_what_one_does(case: str, alone: dict[str, Result], together: list[dict[str, Result]]) -> None:
    kinds = [(torch.float64, 1e-10), *[(torch.float32, 1e-5)] * (case in SINGLE)]
    for dtype, tolerance in kinds:
        wanted = alone[f"{case} {dtype}"]
        for results in together:
            for quantity, value in results[f"{case} {dtype}"].items():
                if quantity.endswith("loss"):  # a difference of distances of about 1, which may itself be next to 0
                    assert abs(value - wanted[quantity]) < tolerance, quantity
                else:
                    assert apart(value, wanted[quantity]) < tolerance, quantity


def test_every_batchnorm_goes_by_the_whole_batch(together: list[dict[str, Result]]) -> None:
    """Also one with a forward of its own; and the caller's hooks see what they saw."""
    for name, wanted in normalised().items():
        parts = [results["normalised"][name] for results in together]
        found = [torch.cat(parts)] if name.endswith("gradient") else parts
        assert all(torch.allclose(part, wanted, rtol=1e-10, atol=1e-12) for part in found), name


def test_what_the_processes_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    with monkeypatch.context() as patch:
        patch.setattr(distributed, "world", lambda: 2)
        with pytest.raises(ValueError, match="parameters must all have a gradient"):
            average_gradients(nn.Linear(2, 2).parameters())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK expected, but not set"):
        join("cpu")
    with pytest.raises(ValueError, match="backbone must treat images one by one, but for"):
        pretrain(torch.rand(8, 1, 8, 8), nn.Sequential(nn.Flatten(), nn.Linear(64, 4), Centred()), epochs=1, batch=8)


def test_nobody_is_gone_before_all_have_come(together: list[dict[str, Result]]) -> None:
    """Gone, one takes an exchange from those that have not woken from it yet; who fails does not wait."""
    assert all(bool(there) for one in together for there in one["leaving"].values())
