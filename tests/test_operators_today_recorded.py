"""How the network of the record ``operators-today-cifar10`` is trained, on a small one and few images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sslbook import batch_losses
from sslbook.chapters.operators_today import recorded
from sslbook.datasets import Dataset
from sslbook.training.views.pipelines import Pipeline


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int, int]]:
    """Seed, step, view and images of each view that is drawn: the images with some noise."""
    seen: list[tuple[int, int, int, int]] = []

    def view_of(pixels: Tensor, pipeline: Pipeline, *, seed: int, step: int, view: int) -> Tensor:
        assert pipeline is recorded.PIPELINES["cifar10"]
        seen.append((seed, step, view, len(pixels)))
        draw = torch.Generator().manual_seed(2 * step + view)
        return pixels.float() / 255 + 0.1 * torch.randn(pixels.shape, generator=draw)

    monkeypatch.setattr(recorded, "random_view", view_of)
    return seen


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


def images() -> Dataset:
    pixels = torch.randint(256, (200, 3, 2, 2), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return Dataset(pixels, torch.zeros(200, dtype=torch.long), "noise", 1)


def test_without_a_step_twenty_batches_are_counted(asked: list[tuple[int, int, int, int]]) -> None:
    model, before = network(), network()
    recorded._train(model, images(), 0, 3)
    assert asked == [(3, 1000 + number, view, 128) for number in range(20) for view in (0, 1)]
    assert all(a.equal(b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    assert int(model[2].num_batches_tracked) == 20  # type: ignore[arg-type]
    assert not model.training, "the statistics are held"


def test_steps_are_adams_on_nt_xent(asked: list[tuple[int, int, int, int]]) -> None:
    model, plain, data = network(), network(), images()
    recorded._train(model, data, 22, 3)
    assert [step for _, step, view, _ in asked if view == 0] == list(range(1000, 1022))
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)
    for number in range(1000, 1022):
        pixels = data.pixels[recorded._rows(data, 3, number, 128)]
        pair = [
            recorded.random_view(pixels, recorded.PIPELINES["cifar10"], seed=3, step=number, view=v) for v in (0, 1)
        ]
        z = plain(torch.stack(pair, 1).flatten(0, 1)).unflatten(0, (128, 2))
        optimizer.zero_grad()
        batch_losses.nt_xent(z, tau=0.5).backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not any(a.equal(b) for a, b in zip(model[1].parameters(), network()[1].parameters(), strict=True))
