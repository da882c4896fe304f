"""Effective rank: exact on axes and lines, nothing where nothing varies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sslbook.stats.metrics import effective_rank

f64 = torch.float64


def test_equal_variances_count_one_each() -> None:
    x = torch.randn(1, 500, 6, dtype=f64, generator=torch.Generator().manual_seed(0))
    axes = torch.linalg.qr(x - x.mean(1, keepdim=True)).Q  # centred and orthonormal: six equal variances
    assert effective_rank(axes).item() == pytest.approx(6, rel=1e-12)
    assert effective_rank(axes * torch.tensor([1.0, 1, 1, 0, 0, 0])).item() == pytest.approx(3, rel=1e-12)
    assert effective_rank(axes[0]).shape == ()


def test_unequal_variances_by_singular_values() -> None:
    x = torch.randn(3, 50, 8, dtype=f64, generator=torch.Generator().manual_seed(1)) * torch.arange(1.0, 9, dtype=f64)
    shares = torch.linalg.svdvals(x - x.mean(1, keepdim=True)).square()
    shares /= shares.sum(1, keepdim=True)
    assert torch.allclose(effective_rank(x), (-(shares * shares.log()).sum(1)).exp(), rtol=1e-12)
    assert not torch.allclose(
        effective_rank(x), effective_rank(x + 3 * torch.arange(50.0, dtype=f64)[:, None]), rtol=1e-2
    )


def test_a_line_is_one_and_a_point_nothing() -> None:
    line = torch.outer(torch.arange(20.0, dtype=f64), torch.tensor([1.0, 2, 3], dtype=f64))[None]
    assert effective_rank(line + 5).item() == pytest.approx(1, rel=1e-9)
    assert effective_rank(torch.full((1, 10, 3), 0.7)).item() == 0


def last_places(dtype: torch.dtype) -> torch.Tensor:
    """64 constant features of 500 images, but for noise of one unit of the last place."""
    generator = torch.Generator().manual_seed(3)
    constant = torch.rand(64, generator=generator, dtype=f64).to(dtype)
    up, down = (torch.nextafter(constant, torch.full((), end, dtype=dtype)) for end in (torch.inf, -torch.inf))
    which = torch.randint(0, 3, (500, 64), generator=generator)
    return torch.stack([down, constant, up]).gather(0, which)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_last_places_of_a_constant_have_no_rank(dtype: torch.dtype) -> None:
    noise = last_places(dtype)
    assert (noise != noise[0]).any()
    assert effective_rank(noise).item() == 0
    assert effective_rank(noise, resolution=0).item() == (0 if dtype is f64 else pytest.approx(39.2, abs=1))
    varied = noise + 1e-4 * torch.randn(500, 64, generator=torch.Generator().manual_seed(4), dtype=dtype)
    assert effective_rank(varied).item() > 55, "what is a thousand times the last place counts"


def test_the_resolution_of_coarser_numbers_can_be_told() -> None:
    spread = torch.randn(500, 64, generator=torch.Generator().manual_seed(4))
    rounded = (1 + 2**-9 * spread).bfloat16()
    assert (rounded != rounded[0]).any()
    assert effective_rank(rounded).item() == 0, "by their type"
    assert effective_rank(rounded.float()).item() > 30, "which a cast hides"
    assert effective_rank(rounded.float(), resolution=2 * torch.finfo(torch.bfloat16).eps).item() == 0
    healthy = 1 + 0.1 * spread
    assert effective_rank(healthy, resolution=2 * torch.finfo(torch.bfloat16).eps).equal(effective_rank(healthy))


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_no_scale_is_too_small_or_too_large(scale: float) -> None:
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert effective_rank(scale * features).item() == pytest.approx(effective_rank(features).item(), rel=1e-13)


def test_diverged_features_are_refused() -> None:
    features = torch.randn(2, 10, 3, generator=torch.Generator().manual_seed(0))
    features[0, 1, 2], features[1, 4, 0], features[1, 4, 1] = torch.nan, torch.inf, torch.nan
    with pytest.raises(ValueError, match="features must be finite numbers, got 2 of 20 rows that are not: the network"):
        effective_rank(features)


@pytest.mark.parametrize(
    ("features", "error", "sentence"),
    [
        (torch.zeros(5, 3).numpy(), TypeError, "features must be a torch tensor, got ndarray"),
        (torch.zeros(5, 3, dtype=torch.uint8), TypeError, "features must have a floating dtype, got torch.uint8"),
        (torch.zeros(5), ValueError, r"features must be \(\.\.\., N, F\), each at least 1, got \(5,\)"),
        (torch.zeros(0, 3), ValueError, r"each at least 1, got \(0, 3\)"),
    ],
)
def test_what_are_no_features_is_refused(features: Any, error: type, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        effective_rank(features)


def test_a_dead_network_has_no_rank() -> None:
    assert effective_rank(torch.zeros(1, 10, 3)).item() == 0
