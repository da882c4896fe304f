"""What grows: what is measured of planted directions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sslbook._random import Streams
from sslbook.images.datasets import Dataset
from sslbook.training.augment import PIPELINES, apply
from sslbook.training.run.step import Batches
from sslchapters.audit import photographs
from sslchapters.growth import dose, zero
from sslchapters.intervals import Interval


def test_planted_directions_have_their_doses_and_seeds_their_own_streams() -> None:
    data = dose.Images(Streams((0, 1), "test"))
    x = torch.cat([data.batch(600)[0].unflatten(1, (2, -1))[..., dose.PIXELS :] for _ in range(8)], 2)
    s2, u2 = torch.tensor(dose.DOSES).T
    torch.testing.assert_close((x[:, 0] * x[:, 1]).mean((0, 1))[:16], s2, rtol=0.1, atol=0.004)
    torch.testing.assert_close((x[:, 0] - x[:, 1]).square().mean((0, 1))[:16] / 2, u2, rtol=0.05, atol=0)
    for name in ("InfoNCE, τ = 0.5", "BYOL"):
        together, alone = dose.train(name, (3, 4), (2, 3)), dose.train(name, (4,), (2, 3))
        torch.testing.assert_close(together["growth"][1], alone["growth"][0], rtol=1e-4, atol=1e-6)


def test_records_hold_every_cell_and_a_linear_network_s_zero_is_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dose, "parts_folder", lambda: tmp_path)
    found = dose.doses((0, 1), (1, 2), (1, 2, 3))
    for name, shape in {"growth": (2, 2, 22), "shares": (2, 4, 4)}.items():
        assert {method: np.shape(of) for method, of in found[name].items()} == dict.fromkeys(dose.METHODS, shape)
    linear = zero.measured(range(6), "linear", batches=20)
    assert float((linear["zero"] - linear["output"]).abs().mean()) < 0.08


def test_gratings_have_unit_size_and_their_doses_and_a_probe_reads_what_is_there() -> None:
    waves = torch.cat([photographs.gratings(photographs.WAVES, 3), photographs.gratings(photographs.NEW, 3)])
    products = torch.einsum("aij,bij->ab", waves, waves) / 32**2
    torch.testing.assert_close(products, torch.eye(len(waves)), atol=1e-5, rtol=0)
    pixels = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = Dataset(pixels, torch.arange(64) % 10, "noise", 10)
    made = replace(photographs.settings("InfoNCE, τ = 0.5", 5), batch=64)
    planted, batches = photographs.Planted(images, 5), Batches(made, 64)
    coordinates = []
    for step in range(40):
        index, one, two = planted.batch(batches, step)
        plain_ = [apply(pixels[index], PIPELINES["cifar10"], drawn) for drawn in batches.at(step)[1:]]
        seen = [
            ((x - y).mean(1)[:, None] * planted.waves).mean((2, 3)) for x, y in zip((one, two), plain_, strict=True)
        ]
        coordinates.append(torch.stack(seen) / photographs.SIZE - photographs.MEAN)
    x = torch.stack(coordinates)
    doses = torch.tensor([*(photographs.DOSES[place] for place in planted.order), *photographs.CONTROLS])
    torch.testing.assert_close((x[:, 0] * x[:, 1]).mean((0, 1)), doses[:, 0], atol=0.12, rtol=0)
    torch.testing.assert_close((x[:, 0] - x[:, 1]).square().mean((0, 1)) / 2, doses[:, 1], atol=0.06, rtol=0)
    z = torch.randn(3000, 8, generator=torch.Generator().manual_seed(1))
    read = photographs.r_squared(z, torch.stack([z[:, 0] + z[:, 3], torch.randn(3000)], 1))
    assert read[0] > 0.98 > 0.1 > read[1]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.2, 0.5, "share wins"), (0.1, 0.5, "share leads"), (-0.1, 0.5, "not decided"), (-0.5, -0.1, "amount leads")],
)
def test_the_rule_is_the_committed_one(low: float, high: float, said: str) -> None:
    assert photographs.verdict([Interval((low + high) / 2, low, high, 3)] * 2) == said
