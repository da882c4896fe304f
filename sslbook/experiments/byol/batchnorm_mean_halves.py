r"""What Theorem 8 leaves out: the two halves of subtracting the mean, in a small BYOL on handwritten digits.

Encoder and predictor have two layers each, all linear unless asked otherwise, with biases, and a BatchNorm (mean only) between
the layers of each.  There is no moving average.  If the outputs of the linear network are compared as they are, "forward only" and
"both" take the same steps: the biases start at zero, so over a batch the outputs of both towers have mean zero, the biases get no
gradient, and it stays so.  If the outputs are scaled to length 1 first, as BYOL does, the gradients no longer add up to zero over a
batch, and then a common shift of all outputs is the quickest way to make the loss small; Eq. 12 bars it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.experiments.byol.instances import BACKWARD, BOTH, FORWARD, Norm
from sslbook.images import enumerated
from sslbook.networks.batchnorm import batch_normalize
from sslbook.stats.replicas import Streams

HALVES: dict[str, Norm] = {
    "none": {"mean": "omit", "std": "omit"},
    "forward only": FORWARD,
    "backward only": BACKWARD,
    "both": BOTH,
}
"""Which halves of the mean act."""


@dataclass(frozen=True)
class Plan:
    """Sizes and settings; ``unit``: outputs scaled to length 1 before they are compared.  act: linear, or relu."""

    hidden: int = 32
    outputs: int = 16
    unit: bool = True
    act: str = "linear"
    bias: bool = True
    batch: int = 64
    rate: float = 0.1
    momentum: float = 0.9


@dataclass(frozen=True)
class HalvesRun:
    r"""Moments of a run: ``steps (T,)``; ``loss``, ``spread`` and ``common`` are ``(T, R)``; ``outputs (T, R, N, o)``, scaled.

    spread: :math:`1 - \|E_x \hat f\|^2` of the scaled outputs of all images, 0 if they all point one way, 1 if they balance.
    common: share of the squared gradients at the encoder's output that all members of the batch have in common,
    :math:`\|\sum_i g_i\|^2 / (B \sum_i \|g_i\|^2)`.  weights: all parameters at the end, ``(R, number)``.
    """

    steps: tuple[int, ...]
    loss: Tensor
    spread: Tensor
    common: Tensor
    outputs: Tensor
    weights: Tensor


def digit_views(count: int = 600) -> tuple[Tensor, Tensor]:
    """Digits with shifts by up to one pixel as views, centred, ``(N, 9, 64)``, the image itself first; and their labels."""
    data = enumerated.digits(count, 0)
    views = enumerated.shifts(data.pixels, 1).flatten(2)
    return views - views.mean((0, 1)), data.labels


def train_halves(
    half: str, seeds: Sequence[int], views: Tensor, plan: Plan | None = None, *, steps: int = 150, every: int = 25
) -> HalvesRun:
    """Train one small BYOL a seed, all at once, with the given half of BatchNorm; measured every ``every`` steps."""
    plan = plan or Plan()
    weights, batches = Streams(seeds, "weights"), Streams(seeds, "batches")
    network = _Network(plan, HALVES[half], _initial(plan, views.shape[-1], weights))
    optimizer = torch.optim.SGD(network.parameters, lr=plan.rate, momentum=plan.momentum)
    rows: list[tuple[Tensor, ...]] = []
    for t in range(steps + 1):
        chosen = batches.uniform((len(views),)).argsort(1)[:, : plan.batch]
        which = (batches.uniform((2, plan.batch)) * views.shape[1]).long()
        one, two = views[chosen, which[:, 0]], views[chosen, which[:, 1]]
        y = network.encode(one), network.encode(two)
        for output in y:
            output.retain_grad()
        target = [output.detach() for output in y]
        loss = network.distance(network.predict(y[0]), target[1]) + network.distance(network.predict(y[1]), target[0])
        optimizer.zero_grad()
        loss.sum().backward()
        if t % every == 0:
            rows.append((loss.detach(), *network.look(views[:, 0]), _common(y[0].grad)))
        if t < steps:
            optimizer.step()
    loss, spread, outputs, common = (torch.stack(column) for column in zip(*rows, strict=True))
    flat = torch.cat([p.detach().flatten(1) for p in network.parameters], 1)
    return HalvesRun(tuple(range(0, steps + 1, every)), loss, spread, common, outputs, flat)


def _initial(plan: Plan, inputs: int, weights: Streams) -> list[Tensor]:
    sizes = (
        (inputs, plan.hidden),
        (plan.hidden, plan.outputs),
        (plan.outputs, plan.hidden),
        (plan.hidden, plan.outputs),
    )
    gain = 1.0 if plan.act == "linear" else 2.0
    found: list[Tensor] = []
    for fan_in, fan_out in sizes:
        found += [
            weights.normal((fan_out, fan_in), torch.float32) * (gain / fan_in) ** 0.5,
            torch.zeros(len(weights), 1, fan_out),
        ]
    return found


class _Network:
    """Encoder (first two layers) and predictor (last two), a replica along the first axis."""

    def __init__(self, plan: Plan, norm: Norm, initial: list[Tensor]) -> None:
        self.plan, self.norm, self.layers = plan, norm, initial
        self.parameters = [p for i, p in enumerate(initial) if plan.bias or i % 2 == 0]
        for p in self.parameters:
            p.requires_grad_(True)

    def _block(self, x: Tensor, first: int) -> Tensor:
        w1, b1, w2, b2 = self.layers[first : first + 4]
        z = batch_normalize(x @ w1.mT + b1, dims=1, **self.norm)  # type: ignore[arg-type]
        return (z if self.plan.act == "linear" else z.relu()) @ w2.mT + b2

    def encode(self, x: Tensor) -> Tensor:
        return self._block(x, 0)

    def predict(self, y: Tensor) -> Tensor:
        return self._block(y, 4)

    def distance(self, p: Tensor, t: Tensor) -> Tensor:
        if self.plan.unit:
            p, t = F.normalize(p, dim=-1), F.normalize(t, dim=-1)
        return 0.5 * (p - t).square().sum(-1).mean(1)

    @torch.no_grad()
    def look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Spread, and the scaled outputs."""
        scaled = F.normalize(self.encode(x.expand(len(self.layers[0]), -1, -1)), dim=-1)
        return 1 - scaled.mean(1).square().sum(-1), scaled


def _common(g: Tensor | None) -> Tensor:
    assert g is not None  # for the type checker: backward has filled it
    return g.sum(1).square().sum(-1) / (g.shape[1] * g.square().sum((1, 2)))
