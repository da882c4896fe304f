"""Comparisons of two operators: against dense matrices, and where the truth is known."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import sslbook
from sslbook.operator.layer import vec

DIGITS = sslbook.load_dataset("digits", "train").pixels[:64].double() / 255
NET = nn.Sequential(nn.Flatten(), sslbook.mlp((64, 6, 4), "leaky_relu", seed=0))
SHIFTED = sslbook.shifts(DIGITS)
MIRRORED = torch.cat([SHIFTED, SHIFTED.flip(-1)], 1)


def test_what_is_kept_is_the_ratio_of_dense_quotients_on_images_that_chose_nothing() -> None:
    k = 4
    found = sslbook.compare(NET, "1.0", SHIFTED, MIRRORED, k=k)
    chose, measured = (
        [sslbook.covariance_operator(NET, "1.0", views[half::2]).dense() for views in (SHIFTED, MIRRORED)]
        for half in (0, 1)
    )
    leading = [torch.linalg.eigh(each)[1][:, -k:] for each in (*chose, *measured)]
    for which in (0, 1):
        space, a, b = leading[which], chose[which], chose[1 - which]
        values, turn = torch.linalg.eig(torch.linalg.solve(space.T @ a @ space, space.T @ b @ space))
        directions = (space @ turn.real)[:, values.real.argsort()]
        for direction, ours, share in zip(directions.T, found.directions[which], found.kept[which], strict=True):
            assert abs(float(torch.cosine_similarity(direction, vec(ours), dim=0))) == pytest.approx(1, abs=1e-3)
            own, other = (direction @ measured[at] @ direction for at in (which, 1 - which))
            total = found.total if which == 0 else 1 / found.total
            assert share.value == pytest.approx(float(other / own) / total, rel=1e-2)
            assert share.low < share.value < share.high
    overlaps = [float((one.T @ two).square().sum()) / k for one in leading[:2] for two in leading[2:]]
    assert found.ceiling == pytest.approx((overlaps[0] + overlaps[3]) / 2, abs=1e-3)
    assert found.overlap == pytest.approx((overlaps[1] + overlaps[2]) / 2, abs=1e-3)
    assert found.total == pytest.approx(float(measured[1].trace() / measured[0].trace()), rel=0.1)


def test_mirror_images_lose_what_is_odd_and_the_same_views_nothing() -> None:
    linear = nn.Sequential(nn.Flatten(), sslbook.mlp((64, 3, 2), "linear"))
    found = sslbook.compare(linear, "1.0", SHIFTED, MIRRORED, k=3)
    assert found.lost == (1, 0)
    pattern = torch.linalg.svd(found.directions[0][0]).Vh[0].reshape(8, 8)
    assert float((pattern - pattern.flip(-1)).norm() / 2) > 0.7
    assert "Of the first's 3 leading directions, the second loses 1: it keeps 0.01" in str(found)
    assert len(found.plot(image=(1, 8, 8)).axes) == 3
    same = sslbook.compare(linear, "1.0", SHIFTED, SHIFTED, k=3)
    assert same.lost == (0, 0)
    assert all(share.value == pytest.approx(1) for kept in same.kept for share in kept)
    assert same.overlap == pytest.approx(same.ceiling)


def test_two_checkpoints_share_no_more_than_their_weights() -> None:
    other = nn.Sequential(nn.Flatten(), sslbook.mlp((64, 6, 4), "leaky_relu", seed=1))
    found = sslbook.compare(NET, "1.0", SHIFTED.numpy(), SHIFTED.numpy(), other=other, k=3)
    assert found.overlap < 0.5 < found.ceiling
    larger = copy.deepcopy(NET)
    larger[1][2].weight.data *= 10
    scaled = sslbook.compare(NET, "1.0", SHIFTED, SHIFTED, other=larger, k=3)
    assert scaled.lost == (0, 0), "a scale is no loss"
    assert scaled.total == pytest.approx(100)
    assert all(share.value == pytest.approx(1) for kept in scaled.kept for share in kept)


def test_a_last_layer_has_no_few_leading_directions() -> None:
    with pytest.raises(ValueError, match=r"layer must not be the last: .* '1\.2' comes once for each output"):
        sslbook.compare(NET, "1.2", SHIFTED, MIRRORED)
