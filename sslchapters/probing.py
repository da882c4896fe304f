"""Many networks at once: small ones that InfoNCE trains side by side, and linear probes of any in closed form.

Of a probe there is nothing to tune, and nothing is chosen on what is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.losses.batch import info_nce


def start(networks: int, inputs: int, seed: int) -> list[Tensor]:
    """Layers of 64, 64 and 16 outputs as `torch.nn.Linear` begins: for each, ``(networks, out, in)`` and ``(networks, 1, out)``."""
    draw, sizes = torch.Generator().manual_seed(seed), ((64, inputs), (64, 64), (16, 64))
    shapes = ((shape, below) for out, below in sizes for shape in ((networks, out, below), (networks, 1, out)))
    return [(2 * torch.rand(shape, generator=draw) - 1) / below**0.5 for shape, below in shapes]


def layers(weights: Sequence[Tensor], x: Tensor, phi: Callable[[Tensor], Tensor] = torch.relu) -> list[Tensor]:
    """Pre-activations of all layers for the inputs ``(networks, N, in)``, with the activation ``phi`` between layers."""
    found: list[Tensor] = []
    for matrix, bias in zip(weights[::2], weights[1::2], strict=True):
        found.append(torch.baddbmm(bias, phi(found[-1]) if found else x, matrix.mT))
    return found


def trained(views: Tensor, seed: int, phi: Callable[[Tensor], Tensor] = torch.relu, networks: int = 8) -> list[Tensor]:
    """Weights after 300 steps of InfoNCE on 64 images of ``views (N, V, ...)``; each network draws its own images and views."""
    weights, draw = start(networks, views[0, 0].numel(), seed), torch.Generator().manual_seed(seed + 1)
    for _ in range(300):
        image = torch.randint(len(views), (networks, 1, 64), generator=draw)
        view = torch.randint(views.shape[1], (networks, 2, 64), generator=draw)
        weights = [part.detach().requires_grad_() for part in weights]
        z = layers(weights, views[image, view].flatten(3).flatten(1, 2), phi)[-1].unflatten(1, (2, 64)).transpose(1, 2)
        slopes = torch.autograd.grad(info_nce(z, temperature=0.5).sum(), weights)
        weights = [part - 0.3 * slope for part, slope in zip(weights, slopes, strict=True)]
    return [part.detach() for part in weights]


def standardised(known: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Features ``(..., N, F)`` and ``(..., M, F)`` in float64, both by the means and deviations of the known ones."""
    centre, spread = known.double().mean(-2, keepdim=True), known.double().std(-2, keepdim=True).clamp(min=1e-12)
    return (known.double() - centre) / spread, (asked.double() - centre) / spread


def ridge(known: Tensor, targets: Tensor, asked: Tensor, penalty: float = 0.01) -> Tensor:
    """Predictions ``(..., M, T)`` for ``asked``, by ridge regression on `standardised` features and a constant, float64.

    known ``(..., N, F)``, targets ``(N, T)``, asked ``(..., M, F)``.  The penalty stands beside the features' mean square of 1.
    """
    x, y = (F.pad(part, (0, 1), value=1.0) for part in standardised(known, asked))
    gram = x.mT @ x / len(targets) + penalty * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return y @ torch.linalg.solve(gram, x.mT @ targets.double() / len(targets))
