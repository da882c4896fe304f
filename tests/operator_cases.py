"""Every kind of operator of one layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator


def operators(net: nn.Module, layer: str, views: Tensor, clean: Tensor) -> Iterator[tuple[str, CovarianceOperator]]:
    """Every kind of operator of one layer; the l2-normalised ones only where no output is zero.

    Temperatures are the mean distance of the samples: at a fixed one, large outputs would underflow the weights.
    """
    with torch.no_grad():
        y = net(clean).flatten(1)
        alive = all(bool(f.any(dim=1).all()) for f in (y, net(views.flatten(0, 1)).flatten(1)))
    tau = float((y[:, None] - y[None]).square().sum(-1).mean()) / 2 or 1.0
    yield "simple", covariance_operator(net, layer, views)
    yield "beta < 0", covariance_operator(net, layer, views, beta=-0.7)
    yield "beta > 0", covariance_operator(net, layer, views, beta=0.7)
    yield "intra", intra_operator(net, layer, views)
    yield (
        "soft_triplet",
        covariance_operator(net, layer, views, loss="soft_triplet", temperature=tau, margin=0.4 * tau, clean=clean),
    )
    yield "info_nce", covariance_operator(net, layer, views, loss="info_nce", temperature=tau, clean=clean)
    if alive:
        yield "l2", covariance_operator(net, layer, views, normalize=True)
        yield (
            "l2, info_nce",
            covariance_operator(net, layer, views, loss="info_nce", temperature=0.5, clean=clean, normalize=True),
        )
