r"""Eq. 11 of [tian2021iclr]: without predictor, BatchNorm and moving average, what collapses and what does not.

Then :math:`vec(\Delta W_l) = -E_x V_{x'}[K_l]\, vec(W_l)` through one tower and twice that through both.  The matrix is positive
semi-definite, so weights shrink or stay; they stay in its kernel, along whatever augmentation leaves alone.  For a single linear
layer that is the solution at every time; deeper networks are only trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sslbook.arguments import require_whole
from sslbook.chapters.byol.terms import intra, intra_matrix
from sslbook.chapters.byol.towers import Pair, Tower, draw, mean_loss, random_pair, step, vec
from sslbook.gaps import Gaps, over_instances, relative

TOPS = ("linear", "relu", "leaky_relu")


def identity_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """Eq. 11 against autograd, one tower and both, under homogeneous tops (ReLU included): relative errors."""
    tower = random_pair(count, sizes=(5, 6, 12, 8), seed=seed).online
    parts = []
    for act in TOPS:
        twin = replace(tower, act=act)
        pair, w, k = Pair(twin, twin), vec(twin.weight), twin.connections()
        predicted = -intra(k, w)
        one, both = step(pair), step(pair, both=True)
        flat = k.flatten(1, 2)[:, None]  # as if all views were one image's
        parts.append(
            {
                "one tower": relative(predicted, one),
                "both towers, doubled": relative(2 * predicted, both),
                "broken: not doubled": relative(predicted, both),
                "broken: views of all images mixed": relative(-intra(flat, w), one),
            }
        )
    return over_instances(*parts)


@dataclass(frozen=True)
class Decline:
    """A run of gradient descent: the loss, and the variance between images of the outputs averaged over views.

    loss, between: ``(T + 1, R)``.  weight: the first layer at the end, ``(R, k, m)``.
    """

    loss: Tensor
    between: Tensor
    weight: Tensor


def population(replicas: int, *, kept: int, images: int = 8, views: int = 6, seed: int = 0) -> Tensor:
    """Inputs ``(R, N, V, 6)`` whose first ``kept`` coordinates no augmentation touches; the views of an image are centred.

    Raises ValueError unless ``0 <= kept <= 6`` and the views can vary in all other directions (``N (V - 1) >= 6``).
    """
    size = 6
    require_whole("kept", kept, least=0, most=size)
    if images * (views - 1) < size:
        raise ValueError(f"images times (views - 1) must be at least size = {size}, got {images} and {views}")
    g = torch.Generator().manual_seed(seed)
    noise = draw((replicas, images, views, size), g)
    noise = noise - noise.mean(2, keepdim=True)
    noise[..., :kept] = 0
    return draw((replicas, images, 1, size), g) + noise


def random_tower(x: Tensor, *, act: str = "linear", depth: int = 2, seed: int = 0) -> Tower:
    """A random tower on inputs ``(R, N, V, m)``: ``depth`` layers of six units, the first of them the opened one."""
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    g = torch.Generator().manual_seed(seed)
    r, size, width = len(x), x.shape[-1], 6
    gain = 2.0 if act != "linear" else 1.0
    weight = draw((r, width, size), g, (gain / size) ** 0.5)
    above = tuple(draw((r, width, width), g, (gain / width) ** 0.5) for _ in range(depth - 1))
    return Tower(x, weight, above, act=act)


def descend(tower: Tower, steps: int, rate: float) -> Decline:
    """Gradient descent of all layers on the mean loss of identical towers, no gradient through the target."""
    if steps < 1 or not rate > 0:
        raise ValueError(f"steps must be at least 1 and rate positive, got {steps} and {rate}")
    leaves = [m.clone().requires_grad_(True) for m in (tower.weight, *tower.above)]
    losses, between = [], []
    for t in range(steps + 1):
        now = replace(tower, weight=leaves[0], above=tuple(leaves[1:]))
        y = now.output()
        loss = mean_loss(y, y.detach())
        losses.append(loss.detach())
        between.append(_between(y.detach()))
        if t < steps:
            for leaf, g in zip(leaves, torch.autograd.grad(loss.sum(), leaves), strict=True):
                leaf.data.sub_(rate * g)
    return Decline(torch.stack(losses), torch.stack(between), leaves[0].detach())


def _between(y: Tensor) -> Tensor:
    """Variance between images of outputs ``(R, N, V, o)`` averaged over views, ``(R,)``."""
    mean = y.mean(2)
    return (mean - mean.mean(1, keepdim=True)).square().sum(-1).mean(1)


def solved(tower: Tower, steps: int, rate: float) -> Tensor:
    r"""A single linear layer after so many steps: :math:`W (I - \alpha E_x V_{x'}[f_0])^t`, ``(R, k, m)``."""
    if tower.above or tower.act != "linear":
        raise ValueError("tower must be a single linear layer: the solution is one of a linear recurrence")
    one = replace(tower, weight=tower.weight[:, :1])  # one row's connection is its input
    decay = torch.eye(tower.weight.shape[-1], dtype=torch.float64) - rate * intra_matrix(one.connections())
    out: Tensor = tower.weight @ torch.linalg.matrix_power(decay, steps)
    return out


def solution_gaps(count: int = 100, seed: int = 0) -> Gaps:
    """:func:`solved` against :func:`descend`, and what is left along kept and other directions after many steps."""
    rate, steps = 0.1, 25
    parts = []
    for kept in (0, 2):
        tower = random_tower(population(count, kept=kept, seed=seed), depth=1, seed=seed + 1)
        found = descend(tower, steps, rate).weight
        gaps = {
            "solution": relative(solved(tower, steps, rate), found),
            "broken: solution, both towers": relative(solved(tower, steps, 2 * rate), found),
            "broken: no step": relative(tower.weight, found),
        }
        if kept:
            gaps["kept directions stay"] = relative(found[..., :kept], tower.weight[..., :kept])
        parts.append(gaps)
    return over_instances(*parts)


def left_over(kept: int, count: int = 100, seed: int = 0) -> Tensor:
    """Share of the output's variance between images that is left of a single linear layer after many steps, ``(count,)``."""
    tower = random_tower(population(count, kept=kept, seed=seed), depth=1, seed=seed + 1)
    end = replace(tower, weight=solved(tower, steps=400, rate=0.3))
    return _between(end.output()) / _between(tower.output())
