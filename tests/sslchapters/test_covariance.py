"""The bounds on the residue of Theorem 4, by hand."""

from __future__ import annotations

import pytest
import torch

from sslbook.networks.small import mlp
from sslchapters.covariance import checks


def test_bounds_by_hand() -> None:
    net = mlp((1, 1))
    net[0].weight.detach().fill_(2.0)
    clean = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    views = torch.tensor([[[1.0], [3.0]], [[1.0], [1.0]]], dtype=torch.float64)  # outputs 2, 6 and 2, 2; clean 0 and 2
    found = checks.residue(net, "0", views, clean, tau=1.0)
    # the outputs' variance is 4 and 0, their squared bias 16 and 0;
    # f(x) and f(x') are 2 apart with probability one half; M_K = 3
    assert found.printed == pytest.approx(2 * 9 * (2 * (1 * (2 + 4)) / 2 + 3 * 2))
    assert found.corrected == pytest.approx(2 * 9 / 4 * (2 * (1 * 20**0.5) / 2 + 3 * 2 + 2 * 8))
    assert found.unbiased == pytest.approx(2 * 9 / 4 * (2 * (1 * 2) / 2 + 3 * 2))
