r"""BYOL on small images, cell by cell of the papers' tables: all seeds of all cells of one kind train at once.

The loss, the optimiser and the order of things are the released code's; sizes, augmentation and lengths are ours.
A seed draws its weights, its batches and its augmentations from streams of its own, whatever runs beside it, and the
cells of a table share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sslbook import images
from sslbook.chapters.byol import siamese
from sslbook.chapters.byol.probe import likeness, linear_probe
from sslbook.chapters.byol.siamese import Norm, Parameters, Shape
from sslbook.chapters.byol.views import NUMBERS, Augmentation, augment
from sslbook.images import Images
from sslbook.representations import effective_rank
from sslbook.streams import Streams, to_device

MEASURES = ("accuracy", "rank", "likeness")
"""Of the frozen encoder: linear probe and effective rank; of the projector: mean cosine between different images."""


@dataclass(frozen=True)
class Cell:
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

    def __post_init__(self) -> None:
        if self.predictor not in (0, 1, 2):
            raise ValueError(f"predictor must be 0, 1 or 2 layers, got {self.predictor}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be at least 0 and below 1, got {self.ema}")
        if self.reset < 0:
            raise ValueError(f"reset must be a number of epochs, 0 for never, got {self.reset}")
        if self.span is not None and not self.span[0] < self.span[1]:
            raise ValueError(f"span must be two numbers in increasing order, got {self.span}")
        if not self.predictor and (self.reset or self.span or self.symmetric):
            raise ValueError("reset, span and symmetric speak of a predictor, and there is none")

    @property
    def kind(self) -> Cell:
        """The cell without what may differ between replicas of a batch: cells of one kind train at once."""
        return replace(self, ema=0.5 if self.ema else 0.0, span=None)  # whether there is an average, not which


@dataclass(frozen=True)
class Protocol:
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

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch < 2:
            raise ValueError(f"epochs must be at least 0 and batch at least 2, got {self.epochs} and {self.batch}")
        if not self.rate > 0 or not 0 <= self.momentum < 1 or self.decay < 0:
            raise ValueError(f"rate > 0, 0 <= momentum < 1 and decay >= 0 are asked for, got {self}")


@dataclass(frozen=True)
class Split:
    """Images to train on, without their labels, and to test on."""

    train: Images
    test: Images


def digits(test: int = 400) -> Split:
    """Scikit-learn's digits, shuffled once and for all; the last ``test`` of them are for testing."""
    everything = images.digits(1797)
    if not 0 < test < len(everything):
        raise ValueError(f"test must be between 1 and {len(everything) - 1}, got {test}")
    cut = len(everything) - test
    pixels, labels = everything.pixels, everything.labels
    return Split(Images(pixels[:cut], labels[:cut], "digits"), Images(pixels[cut:], labels[cut:], "digits"))


def cifar10(train: int) -> Split:
    """So many images of CIFAR-10, and all of its test images; raises FileNotFoundError where it is not to be had."""
    return Split(images.read("cifar10", "train", train), images.read("cifar10", "test"))


@dataclass(frozen=True)
class State:
    """Networks in the middle of their training: replicas by seed, then by cell; no target where it is the online network."""

    kind: Cell
    online: Parameters
    target: Parameters | None
    seeds: int


Measure = Callable[[State, Split], dict[str, Tensor]]
"""What is measured at a moment, each ``(seeds * cells,)``."""


def measure(state: State, data: Split) -> dict[str, Tensor]:
    """:data:`MEASURES` on clean images, each ``(seeds * cells,)``."""
    train, test = features(state, data)
    labels, truth = (part.labels.to(train.device) for part in (data.train, data.test))
    outputs = siamese.project(state.online, train, state.kind.projector, views=1)
    values = (linear_probe(train, labels, test, truth), effective_rank(train), likeness(outputs))
    return dict(zip(MEASURES, values, strict=True))


def features(state: State, data: Split) -> tuple[Tensor, Tensor]:
    """Representations ``(R, N, features)`` of the images to train on and of those to test on."""
    train, test = (_features(state.online, part.pixels, state.seeds) for part in (data.train, data.test))
    return train, test


def run(
    protocol: Protocol,
    cells: Mapping[str, Cell],
    seeds: Sequence[int],
    data: Split,
    *,
    at: Sequence[int] | None = None,
    measure: Measure = measure,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> dict[str, dict[str, Tensor]]:
    """Train every cell on every seed; for each cell, whatever ``measure`` gives as ``(len(at), len(seeds))`` float64.

    at: epochs after which to measure; after the last one if not given.  Cells of one kind run as one batch.
    measure: :data:`MEASURES` unless given; where a predictor is drawn anew at that moment, it sees the one before.
    """
    moments = (protocol.epochs,) if at is None else tuple(at)
    if not moments or list(moments) != sorted(set(moments)) or moments[0] < 0 or moments[-1] > protocol.epochs:
        raise ValueError(f"at must be increasing epochs between 0 and {protocol.epochs}, got {list(moments)}")
    if len(data.train) < protocol.batch:
        raise ValueError(f"batch must be at most the {len(data.train)} training images, got {protocol.batch}")
    found: dict[str, dict[str, Tensor]] = {}
    for kind in dict.fromkeys(cell.kind for cell in cells.values()):
        names = [name for name, cell in cells.items() if cell.kind == kind]
        batch = [cells[name] for name in names]
        measured = _train(protocol, batch, seeds, data, moments, measure, dtype=dtype, device=torch.device(device))
        for index, name in enumerate(names):
            found[name] = {m: torch.stack([now[m][:, index] for now in measured]) for m in measured[0]}
    return {name: found[name] for name in cells}


def _train(
    protocol: Protocol,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    data: Split,
    at: Sequence[int],
    measure: Measure,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> list[dict[str, Tensor]]:
    kind = cells[0]
    online = siamese.initial(protocol.shape, seeds, len(cells), kind.predictor, dtype)
    streams = Streams(seeds, "byol predictor")
    _draw_predictor(online, cells, streams, [cell.span is not None for cell in cells])
    online = {name: w.to(device).requires_grad_() for name, w in online.items()}
    target = {name: w.detach().clone() for name, w in online.items()} if kind.ema else None
    keep = torch.tensor([cell.ema for cell in cells], dtype=dtype, device=device).repeat(len(seeds))
    velocity = [torch.zeros_like(w) for w in online.values()]
    measured = []
    for epoch, batches in enumerate(_epochs(protocol, data.train.pixels.to(device, dtype), seeds)):
        if epoch in at:
            measured.append(_measured(measure, State(kind, online, target, len(seeds)), data))
        if epoch == at[-1]:
            break
        if kind.reset and epoch and epoch % kind.reset == 0:
            with torch.no_grad():
                _draw_predictor(online, cells, streams, [True] * len(cells))
        for views in batches:
            _step(protocol, kind, online, target, keep, velocity, views)
    return measured


def _epochs(protocol: Protocol, pixels: Tensor, seeds: Sequence[int]) -> Iterator[Iterator[Tensor]]:
    """Minibatches ``(2 batch, S, C, H, W)`` epoch by epoch, each seed in its own order; what doesn't fill a batch is left out."""
    streams = Streams(seeds, "byol views")

    def batches() -> Iterator[Tensor]:
        order = to_device(streams.uniform((len(pixels),)).argsort(1), pixels.device)
        for chosen in order.split(protocol.batch, 1):
            if chosen.shape[1] == protocol.batch:
                u = to_device(streams.uniform((2 * protocol.batch, NUMBERS)).flatten(0, 1), pixels.device)
                both = augment(pixels[chosen.repeat(1, 2)].flatten(0, 1), u, protocol.augmentation)
                yield both.unflatten(0, (len(seeds), -1)).transpose(0, 1)

    while True:
        yield batches()


def _step(
    protocol: Protocol,
    kind: Cell,
    online: Parameters,
    target: Parameters | None,
    keep: Tensor,
    velocity: list[Tensor],
    views: Tensor,
) -> None:
    """One step, in place: gradient, momentum, the symmetric predictor, and the moving average."""
    weights = list(online.values())
    projected = siamese.project(online, siamese.encode(online, views), kind.projector)
    predicted = siamese.predict(online, projected, kind.head)
    with torch.no_grad():
        goal = projected if target is None else siamese.project(target, siamese.encode(target, views), kind.projector)
    gradient = torch.autograd.grad(siamese.loss(predicted, goal.detach()).sum(), weights)
    with torch.no_grad():
        torch._foreach_mul_(velocity, protocol.momentum)
        torch._foreach_add_(velocity, gradient)
        torch._foreach_add_(velocity, weights, alpha=protocol.decay)
        torch._foreach_add_(weights, velocity, alpha=-protocol.rate)
        if kind.symmetric:
            _symmetrize(online)
        if target is not None:
            for name, w in online.items():
                target[name].lerp_(w, (1 - keep).view(-1, *(1,) * (w.ndim - 1)))


def _symmetrize(weights: Parameters) -> None:
    first, second = weights.get("predictor0.weight"), weights["predictor1.weight"]
    mean = (second + (second if first is None else first).mT) / 2
    second.copy_(mean)
    if first is not None:
        first.copy_(mean.mT)


def _draw_predictor(weights: Parameters, cells: Sequence[Cell], streams: Streams, which: Sequence[bool]) -> None:
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


@torch.no_grad()
def _measured(measure: Measure, state: State, data: Split) -> dict[str, Tensor]:
    """What is measured, each ``(S, cells)``, on the CPU."""
    return {name: value.view(state.seeds, -1).cpu() for name, value in measure(state, data).items()}


CHUNK = 2000
"""Clean images that are encoded together, normalised by their own statistics."""


def _features(weights: Parameters, pixels: Tensor, seeds: int) -> Tensor:
    """Representations ``(R, N, features)`` of ``(N, C, H, W)``."""
    like = weights["conv0"]
    parts = pixels.to(like)[:, None].expand(-1, seeds, -1, -1, -1).chunk(math.ceil(len(pixels) / CHUNK))
    return torch.cat([siamese.encode(weights, part, views=1) for part in parts], 1)
