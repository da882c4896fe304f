r"""The covariance operator beside the neural tangent kernel: two Gram matrices of the same connections (A-NTK)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sslbook.connection import Layer, connection
from sslbook.gaps import relative_gap
from sslbook.networks import mlp
from sslbook.operators import covariance_operator


@dataclass(frozen=True)
class KernelComparison:
    """One layer's covariance operator beside neural tangent kernels, on ``samples`` points with ``views`` views each.

    operator_*, kernel_*: of the layer, on the samples' first views; centred_rank: of the layer's kernel, averaged over views and
    centred over samples.  network_*: of the whole network's kernel.  Ranks at a relative cut of 1e-10.
    spectrum_gap: relative gap between the eigenvalues of the operator and of that averaged and centred kernel over N.
    uncentred_gap, unaveraged_gap: the same without centring, and with first views in place of averages.
    """

    operator_size: int
    operator_rank: int
    kernel_size: int
    kernel_rank: int
    centred_rank: int
    network_size: int
    network_rank: int
    spectrum_gap: float
    uncentred_gap: float
    unaveraged_gap: float


def kernel_comparison(samples: int, *, widths: tuple[int, ...] = (5, 6, 4, 2), seed: int = 0) -> KernelComparison:
    r"""Compare :math:`V_x[\bar K_l]` (``n x n``) with kernels :math:`K_l(x)^T K_l(x')` (``N n_L x N n_L``) of a ReLU network."""
    layer, views = "2", 3
    net = mlp(widths, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, widths[0], generator=draw, dtype=torch.float64)
    x = x + 0.3 * torch.randn(samples, views, widths[0], generator=draw, dtype=torch.float64)
    k = {
        name: connection(net, name, x.flatten(0, 1)).unflatten(0, (samples, views))
        for name, module in net.named_children()
        if isinstance(module, Layer)
    }
    first, mean = k[layer][:, 0], k[layer].mean(1)
    operator = torch.linalg.eigvalsh(covariance_operator(net, layer, x).dense())
    kernel, centred = _kernel(first), _kernel(mean - mean.mean(0))
    network = _kernel(torch.cat([each[:, 0] for each in k.values()], 1))

    def gap(values: Tensor) -> float:
        count = min(len(operator), len(values))
        return relative_gap(_leading(operator, count), _leading(values / samples, count))

    return KernelComparison(
        operator_size=len(operator),
        operator_rank=_rank(operator),
        kernel_size=len(kernel),
        kernel_rank=_rank(kernel),
        centred_rank=_rank(centred),
        network_size=len(network),
        network_rank=_rank(network),
        spectrum_gap=gap(centred),
        uncentred_gap=gap(_kernel(mean)),
        unaveraged_gap=gap(_kernel(first - first.mean(0))),
    )


def _kernel(k: Tensor) -> Tensor:
    """Eigenvalues of the kernel of connections ``(N, n, n_L)``, ascending."""
    rows = k.movedim(2, 1).flatten(0, 1)
    values: Tensor = torch.linalg.eigvalsh(rows @ rows.T)
    return values


def _leading(values: Tensor, count: int) -> Tensor:
    return values.flip(0)[:count]


def _rank(values: Tensor) -> int:
    return int((values > 1e-10 * values.max()).sum())
