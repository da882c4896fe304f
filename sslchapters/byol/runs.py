r"""BYOL on small images, cell by cell of the papers' tables, and what is measured on the way.

All seeds of all cells of one kind train at once.  The loss, the optimiser and the order of things are the released code's; sizes,
augmentation and lengths are ours.  A seed draws its weights, its batches and its augmentations from streams of its own, whatever
runs beside it, and the cells of a table share them.

A replica is one run: one seed of one cell of a table.  Every parameter has a leading replica axis and images come as
``(2B, S, C, H, W)`` for ``S`` seeds, the first views before the second ones.  Replica ``r`` of ``R = S * cells`` sees the images
of seed ``r // cells``, so that cells are compared on the same weights at the start, the same batches and the same augmentations.
The convolutions are grouped ones, a group a replica; BatchNorm's statistics are each view's own, as in the released code.

A view is one geometric and one photometric transformation an image, all in a batch, simpler than the augmentation that the papers
train with: an affine map (shift, zoom, rotation, mirror) read by bilinear interpolation with zeros outside, then a gain, a gain
per colour, and grey.

Measured are probes of the representation and the sign of Theorem 8's covariance term.  Above the projector's last layer a
predictor of one layer is linear: :math:`f_L = M h` with the projector's outputs :math:`h = W z` and :math:`M = W_p`, or
:math:`W_p \operatorname{diag}(1/\sigma)` below BatchNorm, sigma a constant.  There :math:`K = z \otimes M^T`, and of Eq. 14 of
[tian2021iclr] :math:`Cov_x[\bar K, \bar K'] = Cov[\bar z, \bar z'] \otimes M^T`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook._random import Streams, to_device
from sslbook.networks.batchnorm import batch_normalize
from sslbook.training.evaluate import effective_rank
from sslbook.training.evaluate import mean_cosine as likeness
from sslchapters import enumerated as images
from sslchapters.enumerated import Images
from sslchapters.probing import ridge, standardised
from sslchapters.sweep import sweep

K = TypeVar("K", bound=Hashable)
Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of the networks: the encoder halves the image at each of its 3x3 convolutions; ``width`` is the hidden layers'."""

    size: int = 8
    colours: int = 1
    channels: tuple[int, ...] = (8, 32)
    width: int = 64
    output: int = 32


@dataclass(frozen=True)
class Norm:
    """What stands between the two layers of a head: which halves of BatchNorm (:data:`sslbook.networks.batchnorm.MODES`)."""

    mean: str = "normal"
    std: str = "normal"


NONE = Norm("omit", "omit")
SAMPLE = Norm("sample", "sample")
"""No batch statistics, as in [richemond2020]: GroupNorm with one group and standardised weights, also in the encoder."""
GROUPS = Norm("groups", "groups")
"""The first half of :data:`SAMPLE`: GroupNorm with one group, also in the encoder, and weights as they are."""
WEIGHTS = Norm("weights", "weights")
"""The other half: standardised weights, also in the encoder, and no normalisation."""
PLAIN = Norm("plain", "plain")
"""No normalisation, also in the encoder; the weights below ReLUs begin with He's variance."""
LARGE = Norm("plain", "large")
"""The same; the weights below ReLUs begin three times as large."""
STANDARDIZED, GROUPED, BARE = (SAMPLE, WEIGHTS), (SAMPLE, GROUPS), (WEIGHTS, PLAIN, LARGE)
"""Whose weights are standardised; who has group normalisation; who has neither it nor BatchNorm."""


def initial_weights(shape: Shape, seeds: Sequence[int], cells: int, predictor: int, dtype: torch.dtype) -> Parameters:
    r"""Weights of ``len(seeds) * cells`` replicas, equal over the cells of a seed; ``predictor``: its layers, 0, 1 or 2.

    As in PyTorch, weights and biases are uniform on :math:`\pm 1/\sqrt{\text{fan-in}}`.  Convolutions have no bias.
    """
    streams = Streams(seeds, "byol weights")
    drawn: Parameters = {}

    def draw(name: str, shape_: tuple[int, ...], fan_in: int) -> None:
        u = streams.uniform(shape_, torch.float64)
        drawn[name] = ((2 * u - 1) / math.sqrt(fan_in)).to(dtype).repeat_interleave(cells, 0)

    below = shape.colours
    for level, above in enumerate(shape.channels):
        draw(f"conv{level}", (above, below, 3, 3), 9 * below)
        below = above
    layers = [("projector0", shape.channels[-1], shape.width), ("projector1", shape.width, shape.output)]
    if predictor == 2:
        layers.append(("predictor0", shape.output, shape.width))
    if predictor:
        layers.append(("predictor1", shape.width if predictor == 2 else shape.output, shape.output))
    for name, fan_in, fan_out in layers:
        draw(f"{name}.weight", (fan_out, fan_in), fan_in)
        draw(f"{name}.bias", (fan_out,), fan_in)
    return drawn


def encode(weights: Mapping[str, Tensor], images: Tensor, norm: Norm, views: int = 2) -> Tensor:
    """Images ``(N, S, C, H, W)`` to representations ``(R, N, features)``: convolution, BatchNorm, ReLU; at the end, the mean.

    views: ``N`` is so many batches, one after the other, and each is normalised by its own statistics.
    norm: the projector's; where that is :data:`GROUPED` or :data:`BARE`, it takes BatchNorm's place here too.
    """
    count, seeds = images.shape[:2]
    maps, groups = images.flatten(1, 2), seeds
    level = 0
    while (kernel := weights.get(f"conv{level}")) is not None:
        replicas, channels = kernel.shape[:2]
        kernel = _standardized(kernel) if norm in STANDARDIZED else kernel
        maps = F.conv2d(maps, kernel.flatten(0, 1), stride=2, padding=1, groups=groups)
        if norm in GROUPED:
            maps = F.group_norm(maps, replicas)
        elif norm not in BARE:
            maps = torch.cat([F.batch_norm(part, None, None, training=True) for part in maps.chunk(views)])
        maps = maps.relu()
        groups, level = replicas, level + 1
    return maps.view(count, replicas, channels, -1).mean(3).transpose(0, 1)


def _standardized(weight: Tensor) -> Tensor:
    """Each output's weights ``(R, outputs, ...)`` with mean 0 and variance one over their number."""
    rows = weight.flatten(2)
    return F.layer_norm(rows, rows.shape[2:]).div(rows.shape[2] ** 0.5).view_as(weight)


def linear(weights: Mapping[str, Tensor], name: str, x: Tensor, norm: Norm = NONE) -> Tensor:
    """``(R, N, inputs) -> (R, N, outputs)``; ``norm``: what stands above it."""
    weight = weights[f"{name}.weight"]
    weight = _standardized(weight) if norm in STANDARDIZED else weight
    return torch.baddbmm(weights[f"{name}.bias"][:, None], x, weight.mT)


def normalize(x: Tensor, norm: Norm, views: int = 2) -> Tensor:
    """The halves of BatchNorm over each view's batch, ``(R, N, n)``; unbiased variance, as the released code has it."""
    if norm in GROUPED:
        return F.layer_norm(x, x.shape[2:])
    if norm in BARE:
        return x
    split = x.unflatten(1, (views, -1))
    return batch_normalize(split, mean=norm.mean, std=norm.std, dims=2, unbiased=True).flatten(1, 2)


def project(weights: Mapping[str, Tensor], features: Tensor, norm: Norm, views: int = 2) -> Tensor:
    """Linear, BatchNorm, ReLU, linear: ``(R, N, features) -> (R, N, output)``."""
    return linear(weights, "projector1", normalize(linear(weights, "projector0", features, norm), norm, views).relu())


def predict(weights: Mapping[str, Tensor], projected: Tensor, norm: Norm) -> Tensor:
    """The same with two layers; BatchNorm and linear with one; the identity without a predictor."""
    if "predictor0.weight" in weights:
        return linear(weights, "predictor1", normalize(linear(weights, "predictor0", projected, norm), norm).relu())
    if "predictor1.weight" in weights:
        return linear(weights, "predictor1", normalize(projected, norm))
    return projected


def _byol_loss(predicted: Tensor, target: Tensor) -> Tensor:
    r"""Each replica's :math:`-2\cos(p_1, t_2) - 2\cos(p_2, t_1)`, averaged over the batch: ``(R, 2B, n) -> (R,)``, in [-4, 4]."""
    crossed = torch.cat(target.chunk(2, 1)[::-1], 1)
    return -4 * F.cosine_similarity(predicted, crossed, dim=2).mean(1)


NUMBERS = 10
"""Uniform random numbers that one view takes."""


@dataclass(frozen=True)
class Augmentation:
    """How far each part goes; a part is uniform between plus and minus its number.

    shift: share of the image's side.  zoom: share of its size.  rotation: radians.  gain: share of the brightness;
    tint: the same for each colour alone.  grey: the probability that the colours are averaged; mirror: left-right with 1/2.
    """

    shift: float = 0.12
    zoom: float = 0.1
    rotation: float = 0.1
    gain: float = 0.1
    tint: float = 0.0
    grey: float = 0.0
    mirror: bool = False


def augment(images: Tensor, u: Tensor, augmentation: Augmentation) -> Tensor:
    """One view of each image: ``images (N, C, H, W)``, uniform numbers ``u (N, NUMBERS)`` in [0, 1)."""
    v = (2 * u - 1).to(images)
    angle, size = augmentation.rotation * v[:, 0], 1 + augmentation.zoom * v[:, 1]
    side = (v[:, 9].sign() if augmentation.mirror else torch.ones_like(angle)) * size
    moved = 2 * augmentation.shift * v[:, 2:4]  # the image spans -1 to 1
    rows = (
        torch.stack([side * angle.cos(), -size * angle.sin(), moved[:, 0]], 1),
        torch.stack([side * angle.sin(), size * angle.cos(), moved[:, 1]], 1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    seen = F.grid_sample(images, grid, align_corners=False)
    colours = images.shape[1]
    if augmentation.tint:
        seen = seen * (1 + augmentation.tint * v[:, 5 : 5 + colours, None, None])
    if augmentation.grey:
        grey = (u[:, 8] < augmentation.grey).to(seen)[:, None, None, None]
        seen = torch.lerp(seen, seen.mean(1, keepdim=True).expand_as(seen), grey)
    return seen * (1 + augmentation.gain * v[:, 4, None, None, None])


MEASURES = ("accuracy", "rank", "likeness")
"""Of the frozen encoder: linear probe and effective rank; of the projector: mean cosine between different images."""


@dataclass(frozen=True)
class Ablation:
    r"""One cell of a table.

    predictor: its layers, 0 to 2.  ema: :math:`\gamma_{\text{ema}}` of the target; 0 makes the target the online network itself.
    projector, head: what normalises inside the projector and the predictor.  reset: the predictor is drawn anew whenever so
    many epochs are over; 0 for never.  span: the predictor's weights are uniform on it, at the start and after a reset; if
    not given, as PyTorch draws them at the start, and Xavier's after a reset.  symmetric: after each step the predictor's
    two layers (or its one) are averaged with each other's transpose, as the released code does by default.
    """

    predictor: int = 2
    ema: float = 0.0
    projector: Norm = field(default_factory=Norm)
    head: Norm = field(default_factory=Norm)
    reset: int = 0
    span: tuple[float, float] | None = None
    symmetric: bool = False

    @property
    def kind(self) -> Ablation:
        """The cell without what may differ between replicas of a batch: cells of one kind train at once."""
        return replace(self, ema=0.5 if self.ema else 0.0, span=None)  # whether there is an average, not which


@dataclass(frozen=True)
class Recipe:
    """Networks, augmentation and optimiser: stochastic gradient descent with momentum and weight decay at a constant rate.

    The sizes given are those for the digits; momentum, decay and the 100 epochs are the papers'.
    """

    shape: Shape = field(default_factory=Shape)
    augmentation: Augmentation = field(default_factory=Augmentation)
    epochs: int = 100
    batch: int = 64
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 4e-4


@dataclass(frozen=True)
class Split:
    """Images to train on, without their labels, and to test on."""

    train: Images
    test: Images


def digits(test: int = 400) -> Split:
    """Scikit-learn's digits, shuffled once and for all; the last ``test`` of them are for testing."""
    everything = images.digits(1797)
    cut = len(everything) - test
    pixels, labels = everything.pixels, everything.labels
    return Split(Images(pixels[:cut], labels[:cut], "digits"), Images(pixels[cut:], labels[cut:], "digits"))


def cifar10(train: int) -> Split:
    """So many images of CIFAR-10, and all of its test images; raises FileNotFoundError where it is not to be had."""
    return Split(images.read("cifar10", "train", train), images.read("cifar10", "test"))


@dataclass(frozen=True)
class State:
    """Networks in the middle of their training: replicas by seed, then by cell; no target where it is the online network."""

    kind: Ablation
    online: Parameters
    target: Parameters | None
    seeds: int
    augmentation: Augmentation = Augmentation()


Measure = Callable[[State, Split], dict[str, Tensor]]
"""What is measured at a moment, each ``(seeds * cells,)``."""


def measure(state: State, data: Split, few: Sequence[int] = ()) -> dict[str, Tensor]:
    """:data:`MEASURES` on clean images, each ``(seeds * cells,)``; and the accuracy with ``few`` labels a class."""
    norm = state.kind.projector
    train, test = (features(state.online, part.pixels, state.seeds, norm) for part in (data.train, data.test))
    labels, truth = (part.labels.to(train.device) for part in (data.train, data.test))
    outputs = project(state.online, train, norm, views=1)
    values = (linear_probe(train, labels, test, truth), effective_rank(train), likeness(outputs))
    harder = {f"labels {count}": few_labels(train, labels, test, truth, count) for count in few}
    return dict(zip(MEASURES, values, strict=True)) | harder


def train_ablations(
    protocol: Recipe,
    cells: Mapping[K, Ablation],
    seeds: Sequence[int],
    data: Split,
    *,
    at: Sequence[int] | None = None,
    measure: Measure = measure,
    alone: bool = False,
    parts: Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> dict[K, dict[str, Tensor]]:
    """Train every cell on every seed; for each cell, whatever ``measure`` gives as ``(len(at), len(seeds))`` float64.

    at: epochs after which to measure; after the last one if not given.
    measure: :data:`MEASURES` unless given; where a predictor is drawn anew at that moment, it sees the one before.
    alone: a cell and a seed at a time; else cells of one kind run as one batch.  parts: see :func:`sslchapters.sweep.sweep`.
    """
    moments = (protocol.epochs,) if at is None else tuple(at)
    train = partial(_train_chunk, protocol, data, moments, measure, dtype=dtype, device=torch.device(device))
    kind, chunk = (lambda cell: cell.kind), (lambda cell: 1 if alone else math.inf)
    found = sweep(train, list(cells.values()), seeds, alike=kind, most=chunk, keep=parts)
    return {name: {m: values.T for m, values in found[cell].items()} for name, cell in cells.items()}


def _train_chunk(
    protocol: Recipe,
    data: Split,
    at: Sequence[int],
    measure: Measure,
    replicas: Sequence[tuple[Ablation, int]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Cells of one kind, each with all of the seeds: what is measured, ``(cells * seeds, len(at))``."""
    cells, seeds = (list(dict.fromkeys(part)) for part in zip(*replicas, strict=True))
    kind = cells[0]
    online = initial_weights(protocol.shape, seeds, len(cells), kind.predictor, dtype)
    streams = Streams(seeds, "byol predictor")
    if kind.projector in (PLAIN, LARGE):  # uniform on +-1/sqrt(fan in) has a sixth of He's variance
        for name in online:
            if name.startswith("conv") or name.endswith("0.weight"):
                online[name] *= 6**0.5 * (3 if kind.projector == LARGE else 1)
    _draw_predictor(online, cells, streams, [cell.span is not None for cell in cells])
    online = {name: w.to(device).requires_grad_() for name, w in online.items()}
    target = {name: w.detach().clone() for name, w in online.items()} if kind.ema else None
    state = State(kind, online, target, len(seeds), protocol.augmentation)
    keep = torch.tensor([cell.ema for cell in cells], dtype=dtype, device=device).repeat(len(seeds))
    velocity = [torch.zeros_like(w) for w in online.values()]
    measured, pixels, drawn = [], data.train.pixels.to(device, dtype), Streams(seeds, "byol views")
    for epoch in range(at[-1] + 1):
        if epoch in at:
            with torch.no_grad():
                now = measure(state, data)
            measured.append({name: value.view(len(seeds), -1).cpu() for name, value in now.items()})
        if epoch == at[-1]:
            break
        if kind.reset and epoch and epoch % kind.reset == 0:
            with torch.no_grad():
                _draw_predictor(online, cells, streams, [True] * len(cells))
        for views in _batches(protocol, pixels, drawn):
            _step(protocol, state, keep, velocity, views)
    return {m: torch.stack([now[m] for now in measured]).permute(2, 1, 0).flatten(0, 1) for m in measured[0]}


def _batches(protocol: Recipe, pixels: Tensor, streams: Streams) -> Iterator[Tensor]:
    """Minibatches ``(2 batch, S, C, H, W)`` of an epoch, each seed in its own order; what doesn't fill a batch is left out."""
    order = to_device(streams.uniform((len(pixels),)).argsort(1), pixels.device)
    for chosen in order.split(protocol.batch, 1):
        if chosen.shape[1] == protocol.batch:
            u = to_device(streams.uniform((2 * protocol.batch, NUMBERS)).flatten(0, 1), pixels.device)
            both = augment(pixels[chosen.repeat(1, 2)].flatten(0, 1), u, protocol.augmentation)
            yield both.unflatten(0, (len(order), -1)).transpose(0, 1)


def _step(protocol: Recipe, state: State, keep: Tensor, velocity: list[Tensor], views: Tensor) -> None:
    """One step, in place: gradient, momentum, the symmetric predictor, and the moving average."""
    kind, online, target = state.kind, state.online, state.target
    weights = list(online.values())
    projected = project(online, encode(online, views, kind.projector), kind.projector)
    predicted = predict(online, projected, kind.head)
    with torch.no_grad():
        goal = projected if target is None else project(target, encode(target, views, kind.projector), kind.projector)
    gradient = torch.autograd.grad(_byol_loss(predicted, goal.detach()).sum(), weights)
    with torch.no_grad():
        torch._foreach_mul_(velocity, protocol.momentum)
        torch._foreach_add_(velocity, gradient)
        torch._foreach_add_(velocity, weights, alpha=protocol.decay)
        torch._foreach_add_(weights, velocity, alpha=-protocol.rate)
        if kind.symmetric:
            first, second = online.get("predictor0.weight"), online["predictor1.weight"]
            mean = (second + (second if first is None else first).mT) / 2
            second.copy_(mean)
            if first is not None:
                first.copy_(mean.mT)
        if target is not None:
            for name, w in online.items():
                target[name].lerp_(w, (1 - keep).view(-1, *(1,) * (w.ndim - 1)))


def _draw_predictor(weights: Parameters, cells: Sequence[Ablation], streams: Streams, which: Sequence[bool]) -> None:
    """New predictors for ``which`` cells: uniform on the cell's span, else on Xavier's, and no bias.

    All cells take their numbers, so that the next ones are the same whatever runs beside a cell.  The momentum stays, as in the
    released code.
    """
    for name in ("predictor0", "predictor1"):
        if f"{name}.weight" not in weights:
            continue
        w, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        u = streams.uniform(w.shape[1:]).to(w).repeat_interleave(len(cells), 0)
        xavier = math.sqrt(6 / (w.shape[1] + w.shape[2]))
        spans = torch.tensor([cell.span or (-xavier, xavier) for cell in cells]).to(w)
        low, high = (end.repeat(len(streams))[:, None, None] for end in spans.unbind(1))
        chosen = torch.tensor(which, device=w.device).repeat(len(streams))
        w.copy_(torch.where(chosen[:, None, None], low + (high - low) * u, w))
        bias[chosen] = 0


def features(weights: Parameters, pixels: Tensor, seeds: int, norm: Norm) -> Tensor:
    """Representations ``(R, N, features)`` of ``(N, C, H, W)``; 2000 images at a time are normalised by their own statistics."""
    like = weights["conv0"]
    parts = pixels.to(like)[:, None].expand(-1, seeds, -1, -1, -1).chunk(math.ceil(len(pixels) / 2000))
    return torch.cat([encode(weights, part, norm, views=1) for part in parts], 1)


def linear_probe(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> Tensor:
    """Accuracy ``(R,)`` on the test images of the best linear map, by least squares, from features to classes.

    train ``(R, N, F)``, test ``(R, M, F)``: standardised as in the released code; targets are centred indicators of the classes.
    """
    wanted = F.one_hot(labels).double()
    shares = wanted.mean(0)
    scores = ridge(train, wanted - shares, test, penalty=1e-3) + shares
    return (scores.argmax(2) == truth).double().mean(1)


def few_labels(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor, count: int, draws: int = 20) -> Tensor:
    """Accuracy ``(R,)`` on the test images with ``count`` labels a class: the nearest of the classes' means.

    Features are standardised by all training images, for which no label is needed; the mean over ``draws`` choices of the
    labelled images, the same for every replica.  A probe that every representation passes tells none apart; this one is harder.
    """
    x, y = standardised(train, test)
    generator = torch.Generator().manual_seed(0)
    members = [(labels.cpu() == c).nonzero()[:, 0] for c in labels.unique()]
    right = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for _ in range(draws):
        chosen = [m[torch.randperm(len(m), generator=generator)[:count]].to(x.device) for m in members]
        means = torch.stack([x[:, some].mean(1) for some in chosen], 1)
        scores = y @ means.mT - means.square().sum(2)[:, None] / 2
        right += (scores.argmax(2) == truth).double().mean(1)
    return right / draws


probes = partial(measure, few=(1, 5))
"""The usual measures, and the accuracy with one and five labels a class."""

IMAGES, VIEWS = 256, 4
"""What the terms are taken over: so many images, so many views of each."""

DIRECTIONS = 12
"""Of the covariance of the hidden units, so many axes are kept where the term's eigenvalues are counted."""


def probes_and_definite(state: State, data: Split) -> dict[str, Tensor]:
    """The same, and for predictors of one layer `definite` over views."""
    pixels = data.train.pixels[:IMAGES]
    u = Streams([0], "byol terms").uniform((len(pixels) * VIEWS, NUMBERS))[0]
    views = augment(pixels.to(torch.float32).repeat_interleave(VIEWS, 0), u, state.augmentation)
    return probes(state, data) | {"definite": definite(state, views)}


def common_gradient(state: State, data: Split) -> dict[str, Tensor]:
    r"""The usual measures and ``common``, the share of the squared gradients at the encoder's output that a batch has in common.

    :math:`\lVert \sum_i g_i \rVert^2 / (B \sum_i \lVert g_i \rVert^2)` over :data:`IMAGES` images; the two views, each of which
    is normalised by itself, count alike.
    """
    pixels, target, norm = data.train.pixels[:IMAGES], state.target or state.online, state.kind.projector
    u = Streams([0], "byol common").uniform((2 * len(pixels), NUMBERS))[0]
    views = augment(pixels.to(torch.float32).repeat(2, 1, 1, 1), u, state.augmentation)
    views = views.to(target["conv0"])[:, None].expand(-1, state.seeds, -1, -1, -1)
    goal = project(target, encode(target, views, norm), norm).detach()
    with torch.enable_grad():
        seen = encode(state.online, views, norm).detach().requires_grad_()
        predicted = predict(state.online, project(state.online, seen, norm), state.kind.head)
        (gradient,) = torch.autograd.grad(_byol_loss(predicted, goal).sum(), seen)
    g = gradient.double().unflatten(1, (2, -1))
    common = g.sum(2).square().sum(2) / (g.shape[2] * g.square().sum((2, 3)))
    return measure(state, data) | {"common": common.mean(1)}


def definite(state: State, views: Tensor) -> Tensor:
    r"""How definite Theorem 8's covariance term is, ``(R,)``: the positive eigenvalues' share of all eigenvalues' sizes.

    views: ``(N * VIEWS, C, H, W)``, image by image.  Of the symmetric part of the term's matrix, restricted to the `DIRECTIONS` in
    which the hidden units vary most.  Its two means over views are taken over different views, so that it has no part of what
    varies within an image.
    """
    norm, hidden, halves = state.kind.projector, [], []
    for weights in (state.online, state.target or state.online):
        shown = views.to(weights["conv0"])[:, None].expand(-1, state.seeds, -1, -1, -1)
        layer = linear(weights, "projector0", encode(weights, shown, norm, views=1), norm)
        hidden.append(normalize(layer, norm, views=1).relu().double().unflatten(1, (-1, VIEWS)))  # (R, N, VIEWS, n)
        means = torch.stack([part.mean(2) for part in hidden[-1].chunk(2, 2)])  # independent given the image
        halves.append(means - means.mean(2, keepdim=True))
    (left, right), (left_target, right_target), z = *halves, hidden[0]
    top = state.online["predictor1.weight"]
    if state.kind.head != NONE:
        h = linear(state.online, "projector1", z.flatten(1, 2).to(top)).double()
        top = top * (h.var(1) + 1e-5).rsqrt()[:, None]  # BatchNorm's own addition to the variance
    covariance = (left.mT @ right_target + right.mT @ left_target) / (2 * z.shape[1])
    axes = torch.linalg.eigh((covariance + covariance.mT) / 2).eigenvectors[..., -DIRECTIONS:]
    small = axes.mT @ covariance @ axes
    whole = torch.stack([torch.kron(a, b.mT.contiguous()) for a, b in zip(small, top.double(), strict=True)])
    values = torch.linalg.eigvalsh((whole + whole.mT) / 2)
    return values.clamp(min=0).sum(1) / values.abs().sum(1).clamp(min=1e-300)
