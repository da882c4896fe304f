r"""What is drawn: two towers on a finite population, opened at one layer, for many random instances at once.

A population has ``N`` images with ``V`` equally likely views each, and a tower holds the activations below its layer ``l`` for
every view, ``(R, N, V, m)`` with a leading replica axis ``R``.  Everything is float64 and exact: nothing is sampled.  Beside the
towers of Section 5 of [tian2021iclr]: populations, batches, tuples, linear predictors, settings of the moving average, and the
steps by autograd that formulas must agree with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._random import Streams
from sslbook.losses import pairs as losses
from sslbook.networks.batchnorm import batch_normalize
from sslchapters import enumerated

Norm = Mapping[str, str | float | bool]
"""Keywords of :func:`sslbook.networks.batchnorm.batch_normalize`; none at all means no BatchNorm."""

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

    def connections(self, norm: Norm | None = None) -> Tensor:
        r""":math:`K_l(x) = f_{l-1} \otimes J_l^T`, ``(R, ..., m k, o)``, with the Jacobian from layer ``l``'s normalised input on.

        What stands over the BatchNorm is differentiated for each sample by itself (``norm_at = 0`` is required with ``norm``);
        that :math:`K^T vec(W) = f_L` holds where the tower is linear, not normalised, and has no ``unit``.
        """
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
    return (x.flatten(1, -2) @ matrix.mT).unflatten(1, x.shape[1:-1])


def vec(weight: Tensor) -> Tensor:
    """Stacked columns of every replica's weight: ``(R, k, m)`` to ``(R, m k)``."""
    return weight.mT.flatten(1)


def by_hand(views: Sequence[object], weight: object, *above: object) -> Tower:
    """A linear tower on written-out numbers: ``views`` nested by image, view and feature; a number alone is a 1 x 1 matrix."""

    def exact(values: object) -> Tensor:
        found = torch.as_tensor(values, dtype=torch.float64)
        return (found.view(1, 1) if found.numel() == 1 else found)[None]

    return Tower(torch.as_tensor(views, dtype=torch.float64)[None], exact(weight), tuple(exact(m) for m in above))


@dataclass(frozen=True)
class Pair:
    """An online tower and its target, on the same views ``(R, N, V, .)``."""

    online: Tower
    target: Tower

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


def population(replicas: int, *, kept: int, images: int = 8, views: int = 6, seed: int = 0) -> Tensor:
    """Inputs ``(R, N, V, 6)`` whose first ``kept`` coordinates no augmentation touches; the views of an image are centred."""
    size = 6
    g = torch.Generator().manual_seed(seed)
    noise = draw((replicas, images, views, size), g)
    noise = noise - noise.mean(2, keepdim=True)
    noise[..., :kept] = 0
    return draw((replicas, images, 1, size), g) + noise


def random_tower(x: Tensor, *, act: str = "linear", depth: int = 2, seed: int = 0) -> Tower:
    """A random tower on inputs ``(R, N, V, m)``: ``depth`` layers of six units, the first of them the opened one."""
    g = torch.Generator().manual_seed(seed)
    r, size, width = len(x), x.shape[-1], 6
    gain = 2.0 if act != "linear" else 1.0
    weight = draw((r, width, size), g, (gain / size) ** 0.5)
    above = tuple(draw((r, width, width), g, (gain / width) ** 0.5) for _ in range(depth - 1))
    return Tower(x, weight, above, act=act)


def all_batches(images: int, views: int, size: int, *, distinct: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Every batch of ``size`` images with two independent views each; ``distinct`` images, or drawn with repetition.

    They are equally likely: which image, which view online and which at the target, ``(M, B)`` each.
    """
    ways = views ** (2 * size)
    draws = list(
        itertools.combinations(range(images), size) if distinct else itertools.product(range(images), repeat=size)
    )
    image = torch.tensor(draws).repeat_interleave(ways, 0)
    code = torch.arange(ways)[:, None] // views ** torch.arange(2 * size) % views
    first, second = code.repeat(len(draws), 1).chunk(2, dim=1)
    return image, first, second


def contrastive_tower(count: int = 100, *, act: str = "linear", unit: bool = False, seed: int = 0) -> Tower:
    """One random tower with two matrices on top, three images with two views each."""
    return random_pair(count, images=3, views=2, sizes=(5, 6, 12, 8), seed=seed).changed(act=act, unit=unit).online


PREDICTORS = ("scalar", "symmetric", "random", "positive")
"""beta I with beta in (0, 1); symmetric with eigenvalues in (0, 1); Gaussian entries; uniform positive entries."""


def random_predictors(kind: str, replicas: int, size: int, *, scale: float = 0.3, seed: int = 0) -> Tensor:
    """Random predictors ``(R, size, size)`` of one of :data:`PREDICTORS`.

    scale says how small "small" is: entries of standard deviation ``scale / sqrt(size)`` (so that lengths are multiplied by
    about ``scale``), or uniform up to ``2 scale / size`` (so that the leading eigenvalue is about ``scale``).  The first two
    kinds ignore it.
    """
    g = torch.Generator().manual_seed(seed)
    uniform = torch.rand(replicas, size, size, generator=g, dtype=torch.float64)
    if kind == "positive":
        return uniform * 2 * scale / size
    if kind == "random":
        return draw((replicas, size, size), g, scale * size**-0.5)
    values = uniform[:, 0].clamp(0.02, 0.98)
    if kind == "scalar":
        return torch.diag_embed(values[:, :1].expand(-1, size))
    basis = torch.linalg.qr(draw((replicas, size, size), g))[0]
    return basis @ torch.diag_embed(values) @ basis.mT


def shared_pair(predictor: Tensor, *, images: int = 4, wide: bool = False, seed: int = 0) -> Pair:
    """A random population under one network and its copy with a predictor; ``wide``: outputs that fill their space."""
    r, o, _ = predictor.shape
    sizes = (32, 64, 64, o) if wide else (5, 6, 4, o)
    return random_pair(r, images=images, sizes=sizes, predictor=predictor, shared=True, seed=seed)


def random_settings(count: int, seed: int = 0, *, smallest: float = -0.9) -> tuple[Tensor, Tensor, Tensor]:
    """``count`` draws of alpha and eta from (0.05, 1) and of lambda from (``smallest``, 3)."""
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(3, count, generator=g, dtype=torch.float64)
    return 0.05 + 0.95 * u[0], 0.05 + 0.95 * u[1], smallest + (3 - smallest) * u[2]


# --- Steps by autograd, and what many of them lead to: what the formulas must agree with -----------------------------


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
    units = torch.eye(m * k, dtype=pair.online.weight.dtype).unflatten(1, (m, k)).mT.repeat(r, 1, 1)

    def spread(t: Tower) -> Tower:
        below, *above = (x.repeat_interleave(m * k, 0) for x in (t.below, *t.above))
        return replace(t, below=below, weight=units, above=tuple(above))

    return step(Pair(spread(pair.online), spread(pair.target)), norm, both=both).unflatten(0, (r, m * k)).mT


def descend(tower: Tower, steps: int, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient descent of all layers on the mean loss of identical towers, no gradient through the target.

    The loss and the variance between images of the outputs averaged over views, ``(T + 1, R)`` each, and the first layer at the
    end, ``(R, k, m)``.
    """
    leaves = [m.clone().requires_grad_(True) for m in (tower.weight, *tower.above)]
    losses, between = [], []
    for t in range(steps + 1):
        y = replace(tower, weight=leaves[0], above=tuple(leaves[1:])).output()
        loss = mean_loss(y, y.detach())
        losses.append(loss.detach())
        between.append(variance_between(y.detach()))
        if t < steps:
            for leaf, g in zip(leaves, torch.autograd.grad(loss.sum(), leaves), strict=True):
                leaf.data.sub_(rate * g)
    return torch.stack(losses), torch.stack(between), leaves[0].detach()


def variance_between(y: Tensor) -> Tensor:
    """Variance between images of outputs ``(R, N, V, o)`` averaged over views, ``(R,)``."""
    mean = y.mean(2)
    return (mean - mean.mean(1, keepdim=True)).square().sum(-1).mean(1)


def batch_step(pair: Pair, batches: tuple[Tensor, Tensor, Tensor], norm: Norm) -> Tensor:
    """The mean of the steps of all batches, each with statistics of its own, by autograd, ``(R, m k)``."""
    leaf, (image, first, second) = pair.online.weight.clone().requires_grad_(True), batches

    def outputs(tower: Tower, weight: Tensor, view: Tensor) -> Tensor:
        seen = replace(tower, below=tower.below[:, image, view])  # (R, M, B, m)
        return seen.climb(seen.lift(weight), norm, (2,))

    y, t = outputs(pair.online, leaf, first), outputs(pair.target, pair.target.weight, second).detach()
    loss = 0.5 * (y - t).square().sum(-1).flatten(1).mean(1)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return vec(-gradient)


TUPLE_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "simple": losses.simple,
    "soft_triplet": partial(losses.soft_triplet, temperature=0.5, margin=0.3),
    "info_nce": partial(losses.info_nce, temperature=0.5),
}
"""The three losses of the corollary."""

# --- What Theorem 8 leaves out: the two halves of subtracting the mean, in a small BYOL on handwritten digits --------
#
# Encoder and predictor have two layers each, all linear unless asked otherwise, with biases, and a BatchNorm (mean only) between
# the layers of each.  There is no moving average.  If the outputs of the linear network are compared as they are, "forward only"
# and "both" take the same steps: the biases start at zero, so over a batch the outputs of both towers have mean zero, the biases
# get no gradient, and it stays so.  If the outputs are scaled to length 1 first, as BYOL does, the gradients no longer add up to
# zero over a batch, and then a common shift of all outputs is the quickest way to make the loss small; Eq. 12 bars it.

HALVES: dict[str, Norm] = {
    "none": {"mean": "omit", "std": "omit"},
    "forward only": FORWARD,
    "backward only": BACKWARD,
    "both": BOTH,
}
"""Which halves of the mean act."""


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
    half: str, seeds: Sequence[int], views: Tensor, *, hidden: int = 32, outputs: int = 16, unit: bool = True,
    act: str = "linear", bias: bool = True, rate: float = 0.1, steps: int = 150, every: int = 25,
) -> HalvesRun:  # fmt: skip
    """Train one small BYOL a seed, all at once, with the given half of BatchNorm; measured every ``every`` steps.

    unit: outputs are scaled to length 1 before they are compared.  act: linear, or relu.
    """
    weights, batches = Streams(seeds, "weights"), Streams(seeds, "batches")
    gain = 1.0 if act == "linear" else 2.0
    layers: list[Tensor] = []  # weights and biases of the encoder's two layers and the predictor's two
    for fan_in, fan_out in itertools.pairwise((views.shape[-1], *(hidden, outputs) * 2)):
        layers.append(weights.normal((fan_out, fan_in), torch.float32) * (gain / fan_in) ** 0.5)
        layers.append(torch.zeros(len(seeds), 1, fan_out))
    parameters = [p.requires_grad_(True) for p in layers[:: 1 if bias else 2]]
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)

    def through(x: Tensor, first: int) -> Tensor:
        w1, b1, w2, b2 = layers[first : first + 4]
        z = batch_normalize(x @ w1.mT + b1, dims=1, **HALVES[half])  # type: ignore[arg-type]
        return (z if act == "linear" else z.relu()) @ w2.mT + b2

    def distance(p: Tensor, t: Tensor) -> Tensor:
        if unit:
            p, t = F.normalize(p, dim=-1), F.normalize(t, dim=-1)
        return 0.5 * (p - t).square().sum(-1).mean(1)

    rows: list[tuple[Tensor, ...]] = []
    for t in range(steps + 1):
        chosen = batches.uniform((len(views),)).argsort(1)[:, :64]
        which = (batches.uniform((2, 64)) * views.shape[1]).long()
        one, two = (through(views[chosen, which[:, k]], 0) for k in (0, 1))
        one.retain_grad()
        loss = distance(through(one, 4), two.detach()) + distance(through(two, 4), one.detach())
        optimizer.zero_grad()
        loss.sum().backward()
        if t % every == 0:
            with torch.no_grad():
                scaled = F.normalize(through(views[:, 0].expand(len(seeds), -1, -1), 0), dim=-1)
            g = one.grad
            assert g is not None  # for the type checker: backward has filled it
            common = g.sum(1).square().sum(-1) / (g.shape[1] * g.square().sum((1, 2)))
            rows.append((loss.detach(), 1 - scaled.mean(1).square().sum(-1), common, scaled))
        if t < steps:
            optimizer.step()
    found, spread, common, ends = (torch.stack(column) for column in zip(*rows, strict=True))
    flat = torch.cat([p.detach().flatten(1) for p in parameters], 1)
    return HalvesRun(tuple(range(0, steps + 1, every)), found, spread, common, ends, flat)
