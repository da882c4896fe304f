r"""A network's layers, each beside its controls.

A layer is seen through one set of directions: its covariance between images, with all views and within views.  The three
operators differ in how views are mixed alone, :math:`\mathrm{OP} = K C K^\top`, so that the fields :math:`K^\top s` of a
direction s serve them all, and every resampling of the images too: Lanczos' method asks for products with two of them,
each direction that it asks about is kept with its field, and everything else is linear algebra in the span of these directions.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sslbook
from sslbook._ambient import default_device_of, exact_convolutions, seeded, unwrapped, with_gradients
from sslbook._check import require_one_of, require_whole
from sslbook._machine import device_name
from sslbook.images.own import read_images
from sslbook.inspect.report import KINDS, NOISE, RANDOM, UNTRAINED, LayerReport, Report, Share, Size
from sslbook.losses.batch import LOSSES
from sslbook.networks.batchnorm import BatchNorm
from sslbook.operator.covariance import CovarianceOperator, relative_gap
from sslbook.operator.eigen import lanczos
from sslbook.operator.frozen import frozen
from sslbook.operator.layer import OpenedLayer, find_layer, layers_of, open_layer, unvec, vec
from sslbook.operator.view_weights import Loss, Mixing, one_number
from sslbook.training.augment import Pipeline, random_view
from sslbook.training.pretrain import simclr_views

BETWEEN, ALL, WITHIN = KINDS
PROBES, TARGETS, DRAWS, REDRAWN = 8, 8, 64, 200
"""Random signs for a trace; steps towards random targets; random directions; populations redrawn for an interval."""
LONG = 10.0
"""Seconds to go of which an inspection tells."""
NAMED = ("simple", "info_nce")
"""The losses of :data:`sslbook.losses.batch.LOSSES` by which a step may be named."""


@with_gradients
@seeded(None)
def inspect_network(
    net: nn.Module,
    images: Any,
    *,
    layers: Sequence[str] | None = None,
    pipeline: Pipeline | None = None,
    views: int = 8,
    loss: str | Loss = "simple",
    k: int = 5,
    seed: int = 0,
    untrained: nn.Module | None = None,
    device: str | None = None,
    about: Mapping[str, Any] | None = None,
) -> Report:
    r"""Measure the share of each layer's weights, and of a step, in the leading modes of its covariance operator.

    The operator is :math:`\mathbb V_x[\bar K_l(x)]` (Theorem 3 of [tian2020]).  It is corrected for the covariance
    within views that remains if there are few views (:func:`mixing_of`).  Each share has up to five
    controls.  Two use the modes of another covariance: that of all views, or that within views.  Two use another
    direction: a random one, or a step towards random targets, one for each image.  The last control is the share in an
    untrained network, in its own modes.  The intervals come from resampled images or from random draws.

    net: a network that treats its samples one by one.  A copy is measured in evaluation mode, in float32 at least.
    images: any source for :func:`~sslbook.images.own.read_images`.  views: the number for each image, at least 2.
    layers: names; by default, all linear and convolutional layers.  pipeline: the augmentation; by default, SimCLR's.
    loss: the loss of the step, which is "simple", "info_nce" or a function of the embeddings ``(N, V, n_L)``.
    untrained: the network before training.  A BatchNorm without running statistics uses those of the views.
    device: by default, that of the weights.  about: further entries of the report.  k: the number of leading modes, at most all.
    A call that will take ten seconds more says so on the standard error: how long, after each layer.

    Raises ValueError or TypeError for unusable input.  A layer that can't be measured is listed in ``refused``, with the reason.

    >>> import sslbook
    >>> net = nn.Sequential(nn.Flatten(), sslbook.mlp((64, 6, 3)).float())
    >>> report = sslbook.inspect_network(net, torch.arange(512).remainder(251).reshape(8, 1, 8, 8).byte(), views=2, k=2)
    >>> [(layer.name, layer.shape, len(layer.values)) for layer in report.layers]
    [('1.0', (6, 64), 2), ('1.2', (3, 6), 2)]
    """
    views = require_whole("views", views, least=2)
    net, untrained, data = unwrapped(net), unwrapped(untrained), read_images(images)
    names = list(layers_of(net)) if layers is None else [find_layer(net, layer)[0] for layer in layers]
    plan, place = pipeline or simclr_views(data), torch.device(device) if device else next(net.parameters()).device
    pixels, scenes = data.pixels.to(place), []
    for each in (net, untrained):
        if each is not None:
            held = frozen(each).to(place).eval().requires_grad_(True)
            drawn = [random_view(pixels, plan, seed=seed, view=view) for view in range(views)]
            population = torch.stack(drawn, dim=1).to(next(held.parameters()).dtype)
            settle(held, population.flatten(0, 1))
            scenes.append((held, population, loss_steps(held, population, loss)))
    begun = time.perf_counter()
    found: list[LayerReport] = []
    refused: dict[str, str] = {}
    for number, name in enumerate(names):
        if number and (left := (time.perf_counter() - begun) / number * (len(names) - number)) > LONG:
            print(f"layer {number + 1} of {len(names)}: {name}; {left:,.0f} s left", file=sys.stderr, flush=True)
        try:
            found.append(_layer(name, scenes, k, seed))
        except (ValueError, TypeError, RuntimeError) as error:
            refused[name] = f"{error}".partition("\n")[0]
    settings = {
        "network": type(net).__name__,
        "images": len(data),
        "image source": data.name,
        "image digest": hashlib.sha256(data.pixels.contiguous().numpy().data).hexdigest()[:16],
        "views": views,
        "pipeline": asdict(plan),
        "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__),
        "modes": k,
        "seed": seed,
        "device": device_name(place),
        "precision": str(scenes[0][1].dtype).removeprefix("torch."),
        "sslbook": sslbook.__version__,
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    return Report({**settings, **(about or {})}, tuple(found), refused)


Scene = tuple[nn.Module, Tensor, dict[str, Tensor]]
"""A network, its views, and the loss's step for each layer's weight: minus the gradient, by none of the operator's machinery."""


@torch.no_grad()
def settle(net: nn.Module, views: Tensor) -> None:
    """Let a BatchNorm that has counted no batch take its statistics from the views ``(B, ...)``; another keeps them.

    An untrained network's running statistics of 0 and 1 would be no normalisation.  Momentum 1 takes those of this batch alone.
    """
    norms = [part for part in net.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm | BatchNorm)]
    fresh = [part for part in norms if part.running_mean is not None and not bool(part.running_mean.any())]
    before = [part.momentum for part in fresh]
    for part in fresh:
        part.train().momentum = 1.0
    if fresh:
        with default_device_of(views):
            net(views)
    for part, momentum in zip(fresh, before, strict=True):
        part.eval().momentum = momentum


def loss_steps(net: nn.Module, views: Tensor, loss: str | Loss) -> dict[str, Tensor]:
    r"""Minus the gradient of a loss on the embeddings of views ``(N, V, ...)`` in each layer's weight that is its own, by name.

    ``"simple"`` is :math:`E r_+ - E r_-`, :math:`r = \|a - b\|^2 / 2`, over all pairs of different views, which are moments.
    ``"info_nce"`` is SimCLR's at temperature 0.5 of pairs of views: the first and the second, the third and the fourth, …
    """

    def value(z: Tensor) -> Tensor:
        (n, v), mean = z.shape[:2], z.mean(1)
        if callable(loss):
            return loss(z)
        if loss == "info_nce":
            return LOSSES[loss](z[:, : v // 2 * 2].unflatten(1, (-1, 2)).movedim(1, 0), temperature=0.5).mean()
        within, between = (z - mean[:, None]).square().sum() / (n * v), (mean - mean.mean(0)).square().sum() / n
        return within / (v - 1) - n / (n - 1) * between

    if isinstance(loss, str):
        require_one_of("loss", loss, NAMED)
    net.zero_grad()
    with default_device_of(views):
        output = net(views.flatten(0, 1))
    one_number(value, output.flatten(1).unflatten(0, views.shape[:2])).backward()
    weights = {name: find_layer(net, name)[1].weight for name in layers_of(net)}
    return {name: -held.grad.detach() for name, held in weights.items() if held.is_leaf and held.grad is not None}


@exact_convolutions()
def _layer(name: str, scenes: Sequence[Scene], k: int, seed: int) -> LayerReport:
    r"""Measure one layer of the network, and of the untrained one where there are two ``scenes``, with all controls.

    Random directions and targets are drawn with ``seed + 1``; their shares are means, with the interval of 95 % of the draws.
    Raises ValueError where the weights or the step are zero, which has no direction, and where the weights are computed from
    others (pruned, parametrised), which are what a step moves.
    """
    looks, shares, population = [], {}, (scenes[0][1].shape[0], scenes[0][1].shape[1])
    for number, (net, views, steps) in enumerate(scenes):
        opened = open_layer(net, name, views.flatten(0, 1))
        step, weight = steps.get(name), find_layer(net, name)[1].weight
        if step is None or not bool(step.any()) or not bool(weight.any()):
            raise ValueError(f"the weights of layer {name!r} must be parameters, not zero, and moved by the step")
        k = min(k, weight.numel())
        looks.append(look(opened, population, k, (BETWEEN,) if number else (BETWEEN, WITHIN), seed))
        directions = torch.stack([vec(weight.detach()), vec(step)], dim=1).cpu().double()
        for kind in (BETWEEN,) if number else KINDS:
            shares[UNTRAINED if number else kind] = redrawn(looks[-1], kind, k, directions, seed)
    here, opened = looks[0], looks[0].opened

    draw = torch.Generator().manual_seed(seed + 1)
    signs = torch.randn(opened.weight.numel(), DRAWS, generator=draw, dtype=torch.float32)
    random, noise = (
        Share(float(drawn.mean()), *drawn.quantile(torch.tensor([0.025, 0.975]).to(drawn)).tolist())
        for drawn in (here.share(BETWEEN, k, signs), here.share(BETWEEN, k, towards_targets(here, draw)))
    )

    # On all weights: a product may leave the span of the directions, which the search has missed then.
    values, turn = here.modes(BETWEEN, k)
    op = CovarianceOperator(opened, population, mixing_of(BETWEEN, *population))
    pairs = zip(values, (here.basis @ turn).T, strict=True)
    gaps = [(op.matvec(v.to(opened.weight)).double() - value * v).norm() for value, v in pairs]
    return LayerReport(
        name,
        type(opened.module).__name__,
        tuple(opened.weight.shape),
        tuple(values.tolist()),
        float(torch.linalg.eigvalsh(here.matrices(BETWEEN))[0]),
        opened.copies,
        float(torch.stack(gaps).max() / values[0]),
        sizes(here, PROBES, seed),
        {**{kind: weights for kind, (weights, _) in shares.items()}, RANDOM: random},
        {**{kind: step for kind, (_, step) in shares.items()}, NOISE: noise, RANDOM: random},
        relative_gap(opened.jvp(opened.weight), opened.output),
    )


def redrawn(seen: Seen, kind: str, k: int, directions: Tensor, seed: int) -> list[Share]:
    """Return each direction's share in the leading modes, and where it lies when the images are drawn anew, with replacement.

    This is the bootstrap's interval of 95 %, of 200 draws: between the quantiles 0.025 and 0.975 of their shares.  The directions,
    ``(size, n)``, stay as they are, and modes are sought among the directions that were asked about.  So it tells of other images
    only: neither of other views of them, nor of another training.
    """
    again = torch.cat([seen.share(kind, k, directions, part) for part in redraws(seen.population[0], seed).split(50)])
    ends = again.quantile(torch.tensor([0.025, 0.975]).to(again), dim=0)
    return [Share(*numbers) for numbers in torch.cat([seen.share(kind, k, directions)[None], ends]).T.tolist()]


def redraws(count: int, seed: int) -> Tensor:
    """Return the share of each of ``count`` images in 200 populations drawn from them with replacement, ``(200, count)``."""
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=REDRAWN)
    return torch.from_numpy(drawn / count)


def towards_targets(seen: Seen, draw: torch.Generator) -> Tensor:
    r"""Return steps towards random targets, one an image: ``(size, TARGETS)``.

    A target is Gaussian, less the mean over the images, and the step :math:`\sum_i \bar K_i t_i`, a regression's first.
    """
    opened, (count, views) = seen.opened, seen.population
    shape = (TARGETS, count, 1, opened.output.shape[1])
    targets = torch.randn(shape, generator=draw, dtype=torch.float32).to(opened.output)
    targets -= targets.mean(1, keepdim=True)
    return torch.stack(
        [vec(opened.vjp(target.expand(-1, views, -1).flatten(0, 1))).double() for target in targets], dim=1
    ).cpu()


# --- a layer through a set of directions ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seen:
    """A layer through ``m`` orthonormal directions.

    opened: the network opened at the layer on ``N V`` views.  population: ``(N, V)``.  basis: ``(size, m)``, float64.
    fields: what the outputs do along each, ``(N, V, n_L, m)``, float64.
    """

    opened: OpenedLayer
    population: tuple[int, int]
    basis: Tensor
    fields: Tensor

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Each image's mean field ``(N, n_L, m)``, and the second moments of it and within its views, ``(N, m, m)``.

        All three operators, and those of every resampling of the images, are sums of these.
        """
        mean = self.fields.mean(1)
        off = (self.fields - mean[:, None]).flatten(1, 2)
        return mean, mean.mT @ mean, off.mT @ off / self.population[1]

    def matrices(self, kind: str, shares: Tensor | None = None) -> Tensor:
        """Return the operator of one of :data:`KINDS` between the directions, ``(m, m)``.

        shares: of each image in the population, ``(B, N)``, which add up to 1, for ``(B, m, m)``; all equal if not given.
        """
        (count, views), (mean, moments, within) = self.population, self._parts
        p = mean.new_full((1, count), 1 / count) if shares is None else shares.to(mean)
        middle = torch.tensordot(p, mean, 1)
        inside = torch.tensordot(p, within, 1) * views / (views - 1)
        outside = torch.tensordot(p, moments, 1) - middle.mT @ middle
        noise = torch.tensordot(p - p.square(), within, 1) / (views - 1)
        whole = {BETWEEN: outside - noise, ALL: outside + inside - inside / views, WITHIN: inside}[kind]
        return whole[0] if shares is None else whole

    def modes(self, kind: str, k: int, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the ``k`` leading eigenvalues, ``(..., k)``, and vectors in the directions' coordinates, ``(..., m, k)``.

        kind, shares: as in :meth:`matrices`.  Vectors of the weights are ``basis`` times these.
        """
        values, vectors = torch.linalg.eigh(self.matrices(kind, shares))
        return values.flip(-1)[..., :k], vectors.flip(-1)[..., :k]

    def share(self, kind: str, k: int, directions: Tensor, shares: Tensor | None = None) -> Tensor:
        r"""Return :math:`\|P x\|^2 / \|x\|^2` of directions ``(size, n)`` in the leading ``k`` modes: ``(n,)``, or ``(B, n)``.

        ``P`` projects onto the modes of :meth:`modes`; a direction outside of the basis has its whole length in the denominator.
        """
        x = directions.to(self.basis)
        turn = self.modes(kind, k, shares)[1]
        return (turn.mT @ (self.basis.T @ x)).square().sum(-2) / x.square().sum(0)


def mixing_of(kind: str, count: int, views: int) -> Mixing:
    r"""Return the matrix C of one of :data:`KINDS` on ``(count, views)``: what :meth:`Seen.matrices` is with equal shares.

    With V views an image, :math:`\mathbb V_x` of the mean over views holds :math:`1/V` of the covariance within views.  Leaving
    out the pairs of a view with itself takes it away, without bias over the draws of the views:

    .. math::  \widehat{\mathbb V}_x = \mathbb V_i[\bar K_i] - \frac{1 - 1/N}{V - 1} \, E_i \mathbb V_v[K_{iv}] ,

    which is also what the simple loss over all pairs of *different* views moves along: its step is :math:`2N/(N-1)` times
    :math:`\widehat{\mathbb V}_x \operatorname{vec}(W)`.  WITHIN is the unbiased one, over ``views - 1``.
    """
    return {
        BETWEEN: Mixing(intra=-(1 - 1 / count) / (views - 1)),
        ALL: Mixing(intra=1.0),
        WITHIN: Mixing(inter=0.0, intra=views / (views - 1)),
    }[kind]


def look(
    opened: OpenedLayer, population: tuple[int, int], k: int, kinds: tuple[str, ...] = (BETWEEN, WITHIN), seed: int = 0
) -> Seen:
    """Return the layer through all directions that the search for the leading ``k`` modes of the ``kinds`` has asked about.

    A small layer is seen through all its weights.  Directions are made orthonormal, without those that are nearly in the span of
    the others: they would bring rounding.  Raises ValueError where one of the ``kinds`` is zero but for rounding: it has no modes.
    """
    weight, asked, found = opened.weight, [], []

    def field(vector: Tensor) -> Tensor:
        u: Tensor = opened.jvp(unvec(vector.to(weight), weight.shape)).unflatten(0, population)
        asked.append(vector.to(weight))
        found.append(u)
        return u

    if (size := weight.numel()) <= 48:
        for unit in torch.eye(size):
            field(unit)
    else:  # where images are drawn, a hundredth of an eigenvalue is far below what other images would change
        for kind in kinds:
            mixing = mixing_of(kind, *population)
            product = lambda v, c=mixing: vec(opened.vjp(c(field(v)).flatten(0, 1))).double()  # noqa: E731
            lanczos(product, weight.double(), min(k, size - 2), tol=1e-2, seed=seed, restarts=4)
    vectors = torch.stack(asked, dim=1).double()
    fields = torch.stack(found, dim=-1).double()
    length = vectors.norm(dim=0)
    vectors, fields = vectors / length, fields / length
    values, turn = torch.linalg.eigh(vectors.T @ vectors)
    kept = values > 1e-4 * values.max()
    turn = turn[:, kept] / values[kept].sqrt()
    seen = Seen(opened, population, vectors @ turn, fields @ turn)
    least = max((100 * torch.finfo(weight.dtype).eps) ** 2, 1e-14)  # of the mean square: rounding doesn't vary
    for kind in kinds:
        if bool(seen.matrices(kind).abs().max() <= least * seen.fields.square().sum(2).mean((0, 1)).max()):
            raise ValueError(f"what the outputs do as this layer's weights move must vary {kind}, and it does not")
    return seen


def sizes(seen: Seen, probes: int, seed: int) -> dict[str, Size]:
    r"""Return the size of each of :data:`KINDS`: exact along the directions, and by random signs beside them, a JVP each.

    Hutchinson's estimate: :math:`\operatorname{tr} A = E[z^\top A z]` of signs ``z``, and :math:`\|A\|_F^2 = E[(z^\top A z')^2]` of
    two of them.  One field of a sign serves all three operators and their squares.  Errors are the jackknife's, over the probes: 0
    where the directions are all there are.
    """
    opened, m, found = seen.opened, seen.basis.shape[1], {}
    if m < opened.weight.numel():
        draw = torch.Generator().manual_seed(seed)
        signs = torch.randint(0, 2, (opened.weight.numel(), probes), generator=draw).to(seen.basis) * 2 - 1
        rest = signs - seen.basis @ (seen.basis.T @ signs)
        shape = opened.weight.shape
        rows = [opened.jvp(unvec(z, shape)).unflatten(0, seen.population) for z in rest.T.to(opened.weight)]
        basis, fields = torch.cat([seen.basis, rest], 1), torch.stack(rows, dim=-1).to(seen.fields)
        seen = Seen(opened, seen.population, basis, torch.cat([seen.fields, fields], dim=-1))
    for kind in KINDS:
        matrix = seen.matrices(kind)
        inside, across, beside = matrix[:m, :m], matrix[:m, m:].square().sum(0), matrix[m:, m:]
        n, off = len(beside), beside.square() - beside.square().diagonal().diag()
        keep = torch.cat([matrix.new_ones(1, n), 1 - torch.eye(n).to(matrix)])  # all probes, then the jackknife's
        kept = keep.sum(1).clamp_min(1)
        trace = inside.trace() + keep @ beside.diagonal() / kept
        pairs = (keep @ off * keep).sum(1) / (kept * (kept - 1)).clamp_min(1)
        rank = trace.square() / (inside.square().sum() + 2 * keep @ across / kept + pairs)
        errors = [float(((n - 1) * each[1:].var(correction=0)).sqrt()) if n else 0.0 for each in (trace, rank)]
        found[kind] = Size(float(trace[0]), errors[0], float(rank[0]), errors[1])
    return found
