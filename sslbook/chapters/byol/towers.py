r"""Two towers on a finite population, opened at one layer, for many random instances at once (Section 5 of [tian2021iclr]).

A population has ``N`` images with ``V`` equally likely views each, and a tower holds the activations below its layer ``l`` for
every view, ``(R, N, V, m)`` with a leading replica axis ``R``.  BYOL's loss is the mean of

    r(x, x_1, x_2) = |f_L(x_1; W) - f_{L'}(x_2; W')|^2 / 2

over all images and all pairs of views, equal ones included: two independent draws (Eq. 10).  Unless told otherwise no gradient
reaches the target, ``W'``.  Everything is float64 and exact: nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.arguments import require_one_of, require_whole
from sslbook.normalization import batch_normalize

Norm = Mapping[str, str | float | bool]
"""Keywords of :func:`sslbook.normalization.batch_normalize`; none at all means no BatchNorm."""

BACKWARD: Norm = {"mean": "backward", "std": "omit"}
"""Eq. 12 by itself: the gradient is centred, the activations are not."""
FORWARD: Norm = {"mean": "detach", "std": "omit"}
"""``x - x.mean().detach()``: the activations are centred, the gradient is not."""
BOTH: Norm = {"mean": "normal", "std": "omit"}
"""``x - x.mean()``."""

_ACTIVATIONS = {"linear": lambda u: u, "relu": F.relu, "leaky_relu": lambda u: F.leaky_relu(u, 0.2), "tanh": torch.tanh}


@dataclass(frozen=True)
class Tower:
    r"""A network from layer ``l`` on.

    below: :math:`f_{l-1}`, ``(R, ..., m)``.  weight: :math:`W_l`, ``(R, k, m)``.  above: the matrices over it, bottom to top,
    ``(R, out, in)`` each; a predictor is the last.  act: the activation between layer ``l`` and the matrices.  unit: outputs
    are divided by their norm.  norm_at: BatchNorm sits on the pre-activation of layer ``l + norm_at``.
    """

    below: Tensor
    weight: Tensor
    above: tuple[Tensor, ...]
    act: str = "linear"
    unit: bool = False
    norm_at: int = 0

    def __post_init__(self) -> None:
        require_one_of("act", self.act, _ACTIVATIONS)
        if self.weight.shape[-1] != self.below.shape[-1]:
            raise ValueError(
                f"weight must read the {self.below.shape[-1]} features of below, got shape {tuple(self.weight.shape)}"
            )
        require_whole("norm_at", self.norm_at, least=0, most=len(self.above))

    def lift(self, weight: Tensor) -> Tensor:
        """Pre-activation of layer ``l``, ``(R, ..., k)``, before BatchNorm."""
        return _apply(weight, self.below)

    def climb(self, pre: Tensor, norm: Norm | None = None, batch: tuple[int, ...] | None = None) -> Tensor:
        """Output ``(R, ..., o)`` from the pre-activation; the batch is all axes between the first and the last, or ``batch``."""
        psi, batch = _ACTIVATIONS[self.act], tuple(range(1, pre.ndim - 1)) if batch is None else batch
        for i in range(len(self.above) + 1):
            pre = _apply(self.above[i - 1], psi(pre)) if i else pre
            if norm and i == self.norm_at:
                pre = batch_normalize(pre, dims=batch, **norm)  # type: ignore[arg-type]
        return F.normalize(pre, dim=-1) if self.unit else pre

    def output(self, weight: Tensor | None = None, norm: Norm | None = None) -> Tensor:
        """:math:`f_L` of every input, ``(R, ..., o)``."""
        return self.climb(self.lift(self.weight if weight is None else weight), norm)

    def top(self) -> Tensor:
        """The product of the matrices above the layer, ``(R, o, k)``: its Jacobian, if ``act`` is linear."""
        product = torch.eye(self.weight.shape[1], dtype=self.weight.dtype).expand(len(self.weight), -1, -1)
        for matrix in self.above:
            product = matrix @ product
        return product

    def connections(self, norm: Norm | None = None) -> Tensor:
        r""":math:`K_l(x) = f_{l-1} \otimes J_l^T`, ``(R, ..., m k, o)``, with the Jacobian from layer ``l``'s normalised input on.

        What stands over the BatchNorm is differentiated for each sample by itself (``norm_at = 0`` is required with ``norm``);
        that :math:`K^T vec(W) = f_L` holds where the tower is linear, not normalised, and has no ``unit``.
        """
        if norm and self.norm_at:
            raise ValueError(f"connections behind a BatchNorm need norm_at = 0, got {self.norm_at}")
        pre = self.lift(self.weight)
        if norm:
            pre = batch_normalize(pre, dims=tuple(range(1, pre.ndim - 1)), **norm)  # type: ignore[arg-type]
        leaf = pre.detach().requires_grad_(True)
        y = self.climb(leaf)
        pull = torch.eye(y.shape[-1], dtype=y.dtype).view(-1, *(1,) * (y.ndim - 1), y.shape[-1]).expand(-1, *y.shape)
        (rows,) = torch.autograd.grad(y, leaf, pull, is_grads_batched=True)
        jacobian = rows.movedim(0, -1)  # (R, ..., k, o)
        return torch.einsum("...m,...ko->...mko", self.below, jacobian).flatten(-3, -2)


def _apply(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix (R, o, i)`` on the last axis of ``x (R, ..., i)``."""
    out: Tensor = (x.flatten(1, -2) @ matrix.mT).unflatten(1, x.shape[1:-1])
    return out


def vec(weight: Tensor) -> Tensor:
    """Stacked columns of every replica's weight: ``(R, k, m)`` to ``(R, m k)``."""
    return weight.mT.flatten(1)


def by_hand(views: Sequence[object], weight: object, *above: object) -> Tower:
    """A linear tower on numbers that are written out: ``views`` nested by image, view and feature, matrices as nested lists.

    One replica; a number by itself is a matrix of one row and one column.
    """

    def exact(values: object) -> Tensor:
        found = torch.as_tensor(values, dtype=torch.float64)
        return (found.view(1, 1) if found.numel() == 1 else found)[None]

    return Tower(torch.as_tensor(views, dtype=torch.float64)[None], exact(weight), tuple(exact(m) for m in above))


@dataclass(frozen=True)
class Pair:
    """An online tower and its target, on the same views ``(R, N, V, .)``."""

    online: Tower
    target: Tower

    def __post_init__(self) -> None:
        one, two = self.online.below.shape[:-1], self.target.below.shape[:-1]
        if one != two or len(one) != 3:
            raise ValueError(f"both towers must see views (R, N, V, .), got leading axes {tuple(one)} and {tuple(two)}")

    def changed(self, **online: object) -> Pair:
        """The same pair with other fields of both towers, such as ``act="relu"``."""
        return Pair(replace(self.online, **online), replace(self.target, **online))  # type: ignore[arg-type]


def draw(shape: tuple[int, ...], generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """Gaussian numbers in float64."""
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def random_pair(
    replicas: int = 100,
    *,
    images: int = 4,
    views: int = 3,
    sizes: tuple[int, int, int, int] = (5, 6, 4, 3),
    predictor: Tensor | None = None,
    shared: bool = False,
    seed: int = 0,
) -> Pair:
    r"""Random populations under two towers of different weights: a ReLU layer, then layer ``l``, then matrices.

    ``sizes`` are the inputs, the units below, those of layer ``l`` and the outputs.  The layer below is nonlinear, as Theorem 8
    allows.  Online there is a predictor on top, ``(R, o, o)``, random unless given.  shared: the target has the online tower's
    weights (no moving average); the predictor stays the online tower's own.
    """
    if min(replicas, images, views, *sizes) < 1:
        raise ValueError(
            f"replicas, images, views and sizes must be at least 1, got {replicas}, {images}, {views}, {sizes}"
        )
    g = torch.Generator().manual_seed(seed)
    inputs, m, k, o = sizes
    x = draw((replicas, images, 1, inputs), g) + draw((replicas, images, views, inputs), g, 0.7) + 0.3

    def base() -> Tower:
        below = F.relu(_apply(draw((replicas, m, inputs), g, inputs**-0.5), x))
        return Tower(below, draw((replicas, k, m), g, m**-0.5), (draw((replicas, o, k), g, k**-0.5),))

    target = base()
    online = target if shared else base()
    top = draw((replicas, o, o), g, o**-0.5) if predictor is None else predictor
    return Pair(replace(online, above=(*online.above, top)), target)


def mean_loss(y: Tensor, t: Tensor) -> Tensor:
    r"""Mean of r over images and pairs of views, ``(R,)``, from outputs ``(R, N, V, o)``: :math:`E|y_1 - t_2|^2 / 2`."""
    return 0.5 * (y[:, :, :, None] - t[:, :, None]).square().sum(-1).flatten(1).mean(1)


def step(pair: Pair, norm: Norm | None = None, *, target_norm: Norm | None = None, both: bool = False) -> Tensor:
    r"""Minus the gradient of the mean loss in :math:`W_l`, by autograd, ``(R, m k)``.

    The target's BatchNorm is the online one's unless ``target_norm`` is given.  both: the gradient flows through the target as
    well, whose layer then has to have the same weights.
    """
    leaf = pair.online.weight.clone().requires_grad_(True)
    y = pair.online.output(leaf, norm)
    t = pair.target.output(leaf if both else None, norm if target_norm is None else target_norm)
    (gradient,) = torch.autograd.grad(mean_loss(y, t).sum(), leaf)
    return vec(-gradient)


def step_matrix(pair: Pair, norm: Norm | None = None, *, both: bool = False) -> Tensor:
    r"""The matrix that takes :math:`vec(W_l)` to :func:`step`, where both towers have these weights, ``(R, m k, m k)``.

    Column j is autograd's step at the j-th unit vector; the step has to be linear in the weights: linear tops, BatchNorm with
    the mean alone, no scaling of the outputs.
    """
    r, k, m = pair.online.weight.shape
    if pair.target.weight.shape != pair.online.weight.shape:
        raise ValueError(
            f"both towers must have weights of one shape, got {(r, k, m)} and {tuple(pair.target.weight.shape)}"
        )
    units = torch.eye(m * k, dtype=pair.online.weight.dtype).unflatten(1, (m, k)).mT.repeat(r, 1, 1)

    def spread(t: Tower) -> Tower:
        below, *above = (x.repeat_interleave(m * k, 0) for x in (t.below, *t.above))
        return replace(t, below=below, weight=units, above=tuple(above))

    out: Tensor = step(Pair(spread(pair.online), spread(pair.target)), norm, both=both).unflatten(0, (r, m * k)).mT
    return out
