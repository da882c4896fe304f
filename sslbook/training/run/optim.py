r"""Optimisers, and what a step's learning rate and target average are.

Both are pure functions of the step: what a run has done doesn't matter, so a resumed one has nothing to restore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sslbook.training.run.settings import Settings

STEADY = 10
"""Epochs before the released schedule begins to fall."""
FACTOR = "factor"
"""The key of an optimiser's group under which a multiple of the learning rate stands, where it is not 1."""


def learning_rate(settings: Settings, step: int, per_epoch: int) -> float:
    r"""The learning rate of a step, from 0 on, in a run with ``per_epoch`` steps an epoch.

    It is ``settings.lr`` times a factor:

    - constant: 1, as the released BYOL has it.
    - cosine: SimCLR's.  It grows as :math:`(s+1)/w` over the :math:`w` steps of the warm-up, then falls as
      :math:`\frac12(1 + \cos\pi\frac{s - w}{S - w})` over the rest of the run's :math:`S` steps.
    - released: the released SimCLR's, :math:`\frac12(1 + \cos\pi t/T)` with :math:`t` epochs after the first ten plus one.
      Its half period :math:`T` is the number of *batches in an epoch*, though it moves once an epoch: on CIFAR-10 with batches
      of 128, :math:`T = 390`, the rate reaches 0 in epoch 401 and rises after it; on STL-10 it never gets there.  It does not
      depend on the length of the run, so a run of 100 epochs is the beginning of one of 500.
    """
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "released":
        return settings.lr * _falling(max(0, step // per_epoch - STEADY), per_epoch)
    warm, total = settings.warmup * per_epoch, settings.epochs * per_epoch
    return settings.lr * ((step + 1) / warm if step < warm else _falling(step - warm, total - warm))


def target_average(settings: Settings, step: int, per_epoch: int) -> float:
    r"""The target's :math:`\gamma_\text{ema}` in a step: steady, or :math:`e - (e - s)\frac12(1 + \cos\pi k/K)` from s to e."""
    if settings.ema_end is None:
        return settings.ema
    return settings.ema_end - (settings.ema_end - settings.ema) * _falling(step, settings.epochs * per_epoch)


def _falling(done: int, total: int) -> float:
    """Half a wave of the cosine, from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * done / total))


def make_optimizer(
    settings: Settings, params: list[nn.Parameter], predictor: nn.Module | None = None
) -> torch.optim.Optimizer:
    """The run's optimiser of ``params``; those of ``predictor`` among them get ``predictor_lr`` times the rate.

    SGD and Adam are fused, one kernel for all tensors.  Each group's multiple of the rate, if it has one, stands in it under
    :data:`FACTOR`, and the loop sets ``group["lr"]`` before each step.
    """
    groups: list[dict[str, Any]] = [{"params": params}]
    if predictor is not None and settings.predictor_lr != 1:
        quick = set(predictor.parameters())
        groups = [{"params": [w for w in params if (w in quick) == inside]} for inside in (False, True)]
        groups[1][FACTOR] = settings.predictor_lr
    lr, decay = settings.lr, settings.weight_decay
    fused = all(p.device.type in ("cuda", "cpu") and p.is_floating_point() for p in params)
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr, betas=settings.betas, weight_decay=decay, fused=fused)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr, settings.momentum, weight_decay=decay, fused=fused)
    return LARS(groups, lr, settings.momentum, decay)


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
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 1e-3
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step for every tensor that has a gradient; nothing is read back from the device.  There is no ``closure``."""
        for group in self.param_groups:
            trust, decay = group["trust"], group["weight_decay"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                update: Tensor = weight.grad
                if weight.ndim > 1:
                    size, slope = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(update)
                    rate = trust * size / (slope + decay * size)
                    rate = torch.where((size > 0) & (slope > 0), rate, torch.ones_like(rate))
                    update = rate * update.add(weight, alpha=decay)
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                state["momentum_buffer"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
                weight.sub_(state["momentum_buffer"])
