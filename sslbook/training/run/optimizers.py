r"""LARS [you2017] after its formula, and the learning rate of an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    r"""Layer-wise adaptive rates: each weight's step is in proportion to the weight's own length [you2017, Algorithm 1].

    With gradient :math:`g` and weights :math:`w` of one tensor, rate :math:`\gamma`, momentum :math:`m`, decay :math:`\beta`:

    .. math::

        \lambda = \eta\,\frac{\|w\|}{\|g\| + \beta\|w\|}, \qquad
        v \leftarrow m v + \gamma\lambda\,(g + \beta w), \qquad w \leftarrow w - v .

    Tensors with at most one axis (biases, BatchNorm's scales) have :math:`\lambda = 1` and no decay, as SimCLR has it; so has, but
    for the decay, a tensor where :math:`\|w\|` or :math:`\|g\|` is 0.  trust: :math:`\eta`.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step for every tensor that has a gradient; nothing is read back from the device."""
        if closure is not None:
            raise ValueError("closure is not supported: call backward first")
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                update = self._scaled(weight, weight.grad, group)
                state["momentum_buffer"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
                weight.sub_(state["momentum_buffer"])

    @staticmethod
    def _scaled(weight: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
        if weight.ndim <= 1:
            return grad
        decay = group["weight_decay"]
        size, slope = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(grad)
        rate = group["trust"] * size / (slope + decay * size)
        rate = torch.where((size > 0) & (slope > 0), rate, torch.ones_like(rate))
        return rate * grad.add(weight, alpha=decay)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate
