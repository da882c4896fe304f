"""Effective rank: exact on axes and lines, nothing where nothing varies."""

from __future__ import annotations

import pytest
import torch

from sslbook.representations import effective_rank

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
