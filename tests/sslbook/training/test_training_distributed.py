"""Two processes against one: losses, gradients and BatchNorm's statistics of the same batch."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing
from distributed_cases import CASES, Result, everything, free_port, worker
from torch import Tensor, nn

from sslbook.training.pretrain import pretrain

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone() -> dict[str, Result]:
    return everything()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Result]]:
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(worker, (2, free_port(), str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_do_what_one_does(case: str, alone: dict[str, Result], together: list[dict[str, Result]]) -> None:
    for results in together:
        for quantity, wanted in alone[
            case
        ].items():  # a loss is a difference of distances of about 1, and may be next to 0
            size = 1.0 if quantity.endswith("loss") else float(wanted.norm())
            assert float((results[case][quantity] - wanted).norm()) < 1e-10 * size, quantity


def test_every_batchnorm_goes_by_the_whole_batch(alone: dict[str, Result], together: list[dict[str, Result]]) -> None:
    """Also one with a forward of its own; and the caller's hooks see what they saw."""
    for name, wanted in alone["normalised"].items():
        parts = [results["normalised"][name] for results in together]
        found = [torch.cat(parts)] if name.endswith("gradient") else parts
        assert all(torch.allclose(part, wanted, rtol=1e-10, atol=1e-12) for part in found), name


def test_a_network_that_mixes_images_is_refused_where_processes_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="backbone must treat images one by one, but for"):
        pretrain(torch.rand(8, 1, 8, 8), nn.Sequential(nn.Flatten(), nn.Linear(64, 4), Centred()), epochs=1, batch=8)
