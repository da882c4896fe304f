"""Networks in half precision, and images and kernels in another order in memory."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslbook.losses import batch
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator
from sslbook.stats.checks import relative_gap

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
LOSSES: dict[str, dict[str, Any]] = {
    "simple": {},
    "one negative": {"loss": "info_nce", "tau": 0.5, "normalize": True},
    "all negatives": {"loss": "nt_xent", "tau": 0.5},
    "in chunks": {"chunk": 4},
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.GELU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def images() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    clean = torch.randn(5, 3, 9, 9, generator=draw)
    return clean[:, None] + 0.5 * torch.randn(5, 2, 3, 9, 9, generator=draw), clean


def operator(net: nn.Module, views: Tensor, clean: Tensor, layer: str = "3", **loss: Any) -> CovarianceOperator:
    more = {"clean": clean} if loss.get("loss") == "info_nce" else {}
    return covariance_operator(net, layer, views, **loss, **more)


@HALF
@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_is_the_same_weights_in_float32(dtype: torch.dtype, loss: str) -> None:
    net = network().to(dtype)
    views, clean = (part.to(dtype) for part in images())
    found = operator(net, views, clean, **LOSSES[loss])
    whole = operator(copy.deepcopy(net).float(), views.float(), clean.float(), **LOSSES[loss])
    assert found.dtype == torch.float32
    assert torch.equal(found.dense(), whole.dense())
    assert torch.equal(found.exact_update(), whole.exact_update())
    assert f"torch.float32 of weights given in {dtype}" in repr(found)
    assert "given" not in repr(whole)
    assert {part.dtype for part in net.parameters()} == {dtype}
    assert torch.equal(operator(net, views.float(), clean.float(), **LOSSES[loss]).dense(), found.dense())


@HALF
def test_a_part_in_half_precision(dtype: torch.dtype) -> None:
    """Large networks keep their normalisations in float32."""
    net = network()
    for part in (net[0], net[3], net[7]):
        part.to(dtype)
    views, _ = images()
    found = intra_operator(net, "0", views.to(dtype))
    assert torch.equal(found.dense(), intra_operator(copy.deepcopy(net).float(), "0", views.to(dtype).float()).dense())


@pytest.mark.parametrize("which", ["images", "network", "both"])
@pytest.mark.parametrize("layer", ["0", "3", "7"])
def test_channels_last_is_the_same_operator(which: str, layer: str) -> None:
    net, views = network().double(), images()[0].double()
    loss = partial(batch.nt_xent, tau=0.5)
    plain = covariance_operator(net, layer, views, loss=loss)
    if which != "images":
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if which != "network":
        flat = views.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        views = flat.unflatten(0, views.shape[:2])
        assert views.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    found = covariance_operator(net, layer, views, loss=loss)
    assert relative_gap(found.dense(), plain.dense()) < 1e-13
    assert relative_gap(found.exact_update(), plain.exact_update()) < 1e-12
    direction = torch.randn(plain.opened.weight.shape, generator=torch.Generator().manual_seed(2)).double()
    assert relative_gap(found.apply(direction), plain.apply(direction)) < 1e-13
    assert relative_gap(found.matmat(torch.eye(len(found.dense())).double()), plain.dense()) < 1e-12
