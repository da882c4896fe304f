"""Correlations from samples: the centred one against NumPy, what raw sums in float32 make of them, and the largest there is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hltm_cases import correlation
from torch import Tensor

from sslbook.chapters.hltm import statistics
from sslbook.chapters.hltm.statistics import CentredCorrelation, RawCorrelation
from sslbook.trees import latent as trees


def data(seed: int, count: int, mean: float = 0.0) -> tuple[Tensor, Tensor]:
    """Latents ``(2, 3, count)`` in {0, 1} and units ``(2, 3, 4, count)`` of unit spread about ``mean``."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.randint(0, 2, (2, 3, count), generator=draw).double()
    noise = torch.randn(2, 3, 4, count, generator=draw, dtype=torch.float64)
    share = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64)[:, None]
    return z, noise + share * z[:, :, None] + mean


def by_numpy(z: Tensor, f: Tensor) -> Tensor:
    found = torch.empty(f.shape[:3], dtype=torch.float64)
    for r, node, unit in np.ndindex(*f.shape[:3]):
        found[r, node, unit] = np.corrcoef(z[r, node].numpy(), f[r, node, unit].numpy())[0, 1]
    return found


@pytest.mark.parametrize("mean", [0.0, -3.0, 1e4, 1e8])
@pytest.mark.parametrize("sizes", [[1000], [1, 2, 500, 497], [999, 1], [128] * 7 + [104]])
def test_centred_agrees_with_numpy_whatever_the_blocks(mean: float, sizes: list[int]) -> None:
    z, f = data(len(sizes), 1000, mean)
    found = CentredCorrelation()
    for part_z, part_f in zip(z.split(sizes, -1), f.split(sizes, -1), strict=True):
        found.add(part_z, part_f)
    assert found.count == 1000
    assert (found.result() - by_numpy(z, f)).abs().max() < 1e-12 * max(1, abs(mean))


def test_centred_of_booleans_and_float32() -> None:
    z, f = data(0, 512, 1e4)
    found = CentredCorrelation()
    found.add(z.bool(), f.float())
    assert (found.result() - by_numpy(z, f.float().double())).abs().max() < 1e-11


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.3, -7.1, 1e6])
def test_centred_takes_constant_units_and_latents_as_uncorrelated(dtype: torch.dtype, value: float) -> None:
    z, f = data(1, 400)
    f[:, :, 1] = value
    f[:, :, 2] = value * (
        1 + torch.finfo(dtype).eps * torch.randint(0, 2, f[:, :, 2].shape)
    )  # constant but for rounding
    z[:, 2] = 1.0
    found = CentredCorrelation()
    for part_z, part_f in zip(z.split(150, -1), f.to(dtype).split(150, -1), strict=True):
        found.add(part_z, part_f)
    corr = found.result()
    assert corr.isfinite().all()
    assert corr[:, :, 1:3].abs().max() == 0
    assert corr[:, 2].abs().max() == 0
    assert corr[:, :2, [0, 3]].abs().min() > 0.01


def raw_by_hand(z: Tensor, f: Tensor, batch: int) -> Tensor:
    """Straightforwardly, one replica, node and unit after the other: float32 sums of each minibatch, added up in float32."""
    found = torch.empty(f.shape[:3])
    for r, node, unit in np.ndindex(*f.shape[:3]):
        total = torch.zeros(5)
        for a, b in zip(z[r, node].float().split(batch), f[r, node, unit].float().split(batch), strict=True):
            total += torch.stack([a.sum(), b.sum(), (a * a).sum(), (b * b).sum(), (a * b).sum()])
        mean_z, mean_f, zz, ff, zf = total / z.shape[-1]
        cov = zf - mean_z * mean_f
        norms = (zz - mean_z**2).clamp_min(0).sqrt() * (ff - mean_f**2).clamp_min(0).sqrt()
        small = bool(norms < 1e-6) and bool(cov.abs() < 1e-6)
        found[r, node, unit] = 0.0 if small else (cov / norms).clamp(-1, 1)
    return found


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_raw_is_what_raw_sums_give(mean: float) -> None:
    z, f = data(2, 1280, mean)
    found = RawCorrelation()
    for part_z, part_f in zip(z.split(640, -1), f.split(640, -1), strict=True):
        found.add(part_z.bool(), part_f.float())
    assert found.count == 1280
    assert found.result().dtype == torch.float32
    assert (found.result() - raw_by_hand(z, f, 128)).abs().max() < 1e-5
    assert (found.result() - by_numpy(z, f)).abs().max() < 1e-4


def test_raw_finds_correlations_of_a_constant_unit() -> None:
    """The fault: what rounding leaves of E[f^2] - E[f]^2 passes for a variance, and likewise for the covariance."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randint(0, 2, (1, 1, 64_000), generator=draw)
    values = torch.arange(1, 65) * 0.1
    f = values[None, None, :, None].expand(1, 1, 64, 64_000)
    raw, centred = RawCorrelation(), CentredCorrelation()
    for part_z, part_f in zip(z.split(3200, -1), f.split(3200, -1), strict=True):
        raw.add(part_z, part_f)
        centred.add(part_z, part_f)
    corr = raw.result()[0, 0].abs()
    assert centred.result().abs().max() == 0
    assert (corr > 0.05).sum() >= 5, "constant units"
    assert corr.isfinite().all()


def test_the_best_linear_unit() -> None:
    """One leaf: its own correlation.  Two: no unit on a circle of directions is better, and the best of them is as good."""
    alone = trees.symmetric_binary([torch.tensor([[0.7], [-0.4]], dtype=torch.float64)], root_polarity=0.0)
    assert statistics.best_linear(alone).tolist() == pytest.approx([0.7, 0.4])
    tree = trees.random_categorical([5, 6], (2, 2), (2,))
    assignments, chance = trees.joint(tree)
    angle = torch.linspace(0, math.pi, 20_001, dtype=torch.float64)
    units = torch.stack([angle.cos(), angle.sin()], 1) @ assignments[-1][0].double()
    for found, p in zip(statistics.best_linear(tree), chance, strict=True):
        tried = correlation(assignments[0][0, 0].double(), units, p).abs()
        assert float(tried.max()) <= float(found) + 1e-12
        assert float(tried.max()) == pytest.approx(float(found), abs=1e-7)


def test_the_best_linear_unit_where_leaves_repeat_each_other() -> None:
    tree = trees.symmetric_binary([torch.tensor([[1.0, 1.0]]).double()])
    assert float(statistics.best_linear(tree)) == pytest.approx(1)
