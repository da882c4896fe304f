"""What a run is made of, read off its settings here and nowhere else: data, networks, step, optimiser, schedule, looks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sslbook._ambient import beside
from sslbook._machine import has_bfloat16
from sslbook._random import to_device
from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Outputs, Siamese, build
from sslbook.training import evaluate
from sslbook.training.augment import PIPELINES, Pipeline, apply, plain, random_view
from sslbook.training.objectives import asks_labels, objective, weighed_by
from sslbook.training.run import distributed
from sslbook.training.run.determinism import Batches
from sslbook.training.run.settings import SCHEDULES, Length, Settings

SUBSET_SEED = 0
"""Which images a subset holds, whatever the run's seed."""
LARGE = 1_000_000
"""Weights from which on bfloat16 was measured to be faster on a processor that has it: a ResNet-18 of width 20."""


class Own(NamedTuple):
    """What a run has of its caller's, in the place of its settings' ResNet-18 and pipeline; ``features`` counts the encoder's."""

    encoder: nn.Module
    features: int
    pipeline: Pipeline


@dataclass(frozen=True)
class Looks:
    """When a run looks at its representations, and at those of which images: of the labelled ones, whom they are shown beside.

    interval: epochs between two looks at k-NN accuracy and rank, 0 for none.  probes: epochs after which the linear protocol runs.
    """

    shown: tuple[Dataset, Dataset] | None
    interval: int | None
    probes: frozenset[int]

    def probe(self, epoch: int) -> bool:
        """Whether the linear protocol runs after this epoch."""
        return self.shown is not None and epoch in self.probes

    def due(self, epoch: int) -> bool:
        """Whether any look is taken after this epoch."""
        return self.shown is not None and (bool(self.interval and epoch % self.interval == 0) or self.probe(epoch))


@dataclass(frozen=True)
class Parts:
    """All that a trainer needs.  rate, ema: the learning rate of a step, from 0 on, and the target's average in it.

    own: the network is the caller's, whose dropout draws from common generators.
    """

    settings: Settings
    device: torch.device
    data: Dataset
    step: Step
    optimizer: torch.optim.Optimizer
    batches: Batches
    rate: Callable[[int], float]
    ema: Callable[[int], float]
    looks: Looks
    own: Own | None

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.batches.per_epoch * self.settings.epochs


def make_parts(
    settings: Settings, data: tuple[Dataset, Dataset | None], device: torch.device, own: Own | None = None
) -> Parts:
    """The parts of a run on this process; raises ValueError for settings that can't be run on these images or this device."""
    trained, tests = data
    if own is None:
        _require_fit(settings, trained, tests)
    # the neighbours, which the linear protocol learns from too, and whom it asks; without these nothing is looked at
    shown = None if tests is None else (labelled(trained), tests)
    interval = settings.evaluate
    if interval is None and shown is not None:
        interval = evaluate.epochs_between(len(trained), sum(map(len, shown)))
    batches = make_batches(settings, len(trained))
    step = _make_step(settings, trained, device, own)
    return Parts(
        settings,
        device,
        trained,
        step,
        make_optimizer(settings, step.model.learning(), step.model.predictor),
        batches,
        make_rate(settings, batches.per_epoch),
        make_ema(settings, batches.per_epoch),
        Looks(shown, interval, frozenset({settings.epochs, *settings.probes})),
        own,
    )


# --- data ------------------------------------------------------------------------------------------------------------


def load_data(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """Training images, or a subset of them, and test images."""
    whole = datasets.load_dataset(settings.dataset, settings.split, download=download)
    if settings.subset is not None:
        whole = datasets.subset(whole, settings.subset, SUBSET_SEED)
    return whole, datasets.load_dataset(settings.dataset, "test", download=download)


def images_of(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """:func:`load_data` of several processes; one of each machine downloads, while the others wait."""
    if download:
        for downloads in (
            distributed.rank() == 0,
            distributed.rank() != 0 and os.environ.get("LOCAL_RANK", "0") == "0",
        ):
            if downloads:
                load_data(settings, download=True)  # the second time on another machine, unless the folder is shared
            distributed.wait_for_all()
    return load_data(settings)


def labelled(data: Dataset, name: str = "") -> Dataset:
    """The images with a label; raises ValueError, which names them, if there is none.  Where they come first nothing is copied."""
    there = data.labels >= 0
    count = int(there.sum())
    if not count:
        raise ValueError(f"{name or data.name} must hold labelled images, by which accuracy is measured, and has none")
    keep: slice | Tensor = slice(count) if bool(there[:count].all()) else there
    return data.take(keep)


def _require_fit(settings: Settings, trained: Dataset, shown: Dataset | None) -> None:
    """Raise ValueError where the networks or the pipeline can't take the images, before anything is written."""
    pipeline, ours = PIPELINES[settings.pipeline], settings.networks.channels
    plainly = [] if shown is None else [(trained, plain), (shown, plain)]
    if shown is not None and trained.class_names and shown.class_names not in ((), trained.class_names):
        raise ValueError(
            f"{shown.name} must have the classes of {trained.name}, {', '.join(trained.class_names)}, got "
            f"{', '.join(shown.class_names)}: read it with classes=, the class_names of {trained.name}"
        )
    for images, view in [(trained, random_view), *plainly]:
        count, channels = images.pixels.shape[:2]
        if not count:
            raise ValueError(f"{images.name} must hold one image or more, got none")
        if ours != channels:
            raise ValueError(f"networks.channels must be {channels}, as the images of {images.name} have, got {ours}")
        try:
            view(images.pixels[:1], pipeline)
        except ValueError as error:
            raise ValueError(f"pipeline={settings.pipeline} is not for {images.name}: {error}") from None


def make_batches(settings: Settings, images: int) -> Batches:
    """The batches of so many images: of four views where weights are taken from two further ones."""
    views = 4 if weighed_by(settings.objective, **settings.loss_kwargs) == "further" else 2
    return Batches(images, settings.batch, settings.seed, settings.shuffle, settings.drop_last, views)


# --- networks and optimiser ------------------------------------------------------------------------------------------


def _make_step(settings: Settings, data: Dataset, device: torch.device, own: Own | None) -> Step:
    """Networks with their first weights, objective and augmentation; raises ValueError where labels are asked for and missing."""
    labels = data.labels if asks_labels(settings.objective) else None
    if labels is not None and (missing := int((labels < 0).sum())):
        raise ValueError(
            f"objective {settings.objective} asks for the class of each image, and {missing} of the {len(labels)} of "
            f"{data.name} have none"
        )
    model = build(settings.networks, settings.seed, None if own is None else own[:2]).to(device)
    width = settings.networks.width if own is None else 1  # of whose layers nothing is known
    model.to(memory_format=layout_of(width, device))  # type: ignore[call-overload]
    distributed.synchronize_batchnorm(model)
    return Step(
        model,
        objective(settings.objective, **settings.loss_kwargs),
        PIPELINES[settings.pipeline] if own is None else own.pipeline,
        data.pixels.to(device),
        batch=settings.batch // distributed.world(),
        precision=precision_of(settings.precision, device, sum(p.numel() for p in model.encoder.parameters())),
        capture=_capture_of(settings.capture, device, distributed.world()),
        clean=weighed_by(settings.objective, **settings.loss_kwargs) == "clean",
        labels=None if labels is None else labels.to(device),
    )


FACTOR = "factor"
"""The key of an optimiser's group under which a multiple of the learning rate stands, where it is not 1."""


def make_optimizer(
    settings: Settings, params: list[nn.Parameter], predictor: nn.Module | None = None
) -> torch.optim.Optimizer:
    """The run's optimiser of these parameters, the predictor's among them; SGD and Adam are fused: one kernel for all of them."""
    lr, decay = settings.lr, settings.weight_decay
    fused = all(p.device.type in ("cuda", "cpu") and p.is_floating_point() for p in params)
    groups: list[dict[str, Any]] = [{"params": params}]
    if predictor is not None and settings.predictor_lr != 1:
        quick = set(predictor.parameters())
        groups = [{"params": [w for w in params if (w in quick) == inside]} for inside in (False, True)]
        groups[1][FACTOR] = settings.predictor_lr
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr, betas=settings.betas, weight_decay=decay, fused=fused)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr, settings.momentum, weight_decay=decay, fused=fused)
    return LARS(groups, lr, settings.momentum, decay)


def make_rate(settings: Settings, per_epoch: int) -> Callable[[int], float]:
    """The learning rate of a step, from 0 on, in a run with so many steps an epoch."""
    factor, length = SCHEDULES[settings.schedule], Length(per_epoch, settings.epochs, settings.warmup)
    return lambda step: settings.lr * factor(step, length)


def make_ema(settings: Settings, per_epoch: int) -> Callable[[int], float]:
    r"""The target's average in a step: steady, or :math:`e - (e - s)\frac12(1 + \cos\pi k/K)` from :math:`s` to :math:`e`."""
    start, end = settings.ema, settings.ema if settings.ema_end is None else settings.ema_end
    length = Length(per_epoch, settings.epochs)
    return lambda step: end - (end - start) * SCHEDULES["cosine"](step, length)


def _capture_of(wanted: str, device: torch.device, processes: int) -> str:
    """What ``auto`` means here: a graph on one GPU, nothing elsewhere; raises ValueError for what this device can't do."""
    if wanted == "auto":
        return "graph" if device.type == "cuda" and processes == 1 else "none"
    if wanted in ("graph", "both") and (device.type != "cuda" or processes > 1):
        raise ValueError(f"capture must be none or compile on {device.type} with {processes} processes, got {wanted!r}")
    return wanted


def precision_of(wanted: str, device: torch.device, weights: int) -> torch.dtype:
    """What ``auto`` means here: bfloat16 on a GPU, and on a processor that multiplies in it for a million weights or more.

    The book's small networks stay in float32, so that their numbers are the same on every processor.
    """
    quick = device.type == "cuda" or (weights >= LARGE and has_bfloat16())
    return torch.bfloat16 if wanted == "bfloat16" or (wanted == "auto" and quick) else torch.float32


def layout_of(width: int, device: torch.device) -> torch.memory_format:
    """How a ResNet's maps and kernels lie in memory: channels last, except in narrow networks on a processor.

    There, channels last saves a fifth of a step, but oneDNN's gradient of a 1x1 convolution of stride 2 with fewer channels than
    a vector register has numbers writes behind its workspace: below 8 with AVX2, below 16 with AVX-512 and larger images
    (uxlfoundation/oneDNN issue 6035; seen in 3.5.3 to 3.13.3, which are PyTorch 2.5 to 2.15).  The heap is corrupted, and the
    process dies now or later.  Every such shortcut of the network has ``width`` channels or more.
    """
    narrow = device.type == "cpu" and width < 16
    return torch.contiguous_format if narrow else torch.channels_last


# --- a step ----------------------------------------------------------------------------------------------------------


WARM = 3
"""Forward and backward passes before a graph is captured, so that libraries have chosen their kernels."""


class Step:
    """Loss and gradients of a minibatch: ``step(index, one, two)``, with the draws of further views if weights are taken from them.

    pixels: all images, uint8 ``(N, C, H, W)``, where they are trained on.  objective: of :class:`Outputs`.
    precision: the type in which the networks multiply, under autocast; views and loss stay in float32.
    capture: ``none``, ``graph``, ``compile`` or ``both``; a graph is of ``batch`` images.
    clean: the objective asks for the un-augmented images too.  labels: the images' classes ``(N,)``, if it asks for those.

    Calling it with images' numbers ``(B,)`` and the two views' draws ``(B, NUMBERS)`` leaves the gradients in the parameters and
    gives the loss, a scalar on the device that the next call may overwrite.  Nothing is read back.
    """

    def __init__(
        self,
        model: Siamese,
        objective: Callable[[Outputs], Tensor],
        pipeline: Pipeline,
        pixels: Tensor,
        *,
        batch: int,
        precision: torch.dtype = torch.float32,
        capture: str = "none",
        clean: bool = False,
        labels: Tensor | None = None,
    ) -> None:
        self.model, self.objective, self.pipeline = model, objective, pipeline
        self.pixels, self.precision, self.capture, self.clean = pixels, precision, capture, clean
        self.batch, self.labels = batch, labels
        self._loss = torch.compile(self.loss) if capture in ("compile", "both") else self.loss
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...]
        self._result: Tensor

    def views(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """One view of each image, outside of autocast, which would round the crops; the first kernel gives it its layout."""
        return apply(pixels, self.pipeline, draws)

    def loss(self, index: Tensor, *draws: Tensor) -> Tensor:
        """The objective of two views of the images ``index``."""
        pixels = self.pixels[index]
        seen = [self.views(pixels, drawn) for drawn in draws]
        if self.clean:
            seen.append(plain(pixels, self.pipeline))
        low = self.precision != torch.float32
        # A graph must hold the casts of the weights too, so they are not kept from one pass to the next.
        with torch.autocast(pixels.device.type, self.precision, enabled=low, cache_enabled=False):
            outputs = self.model(*seen)
        if self.labels is not None:
            outputs = outputs._replace(labels=self.labels[index])
        return self.objective(outputs)

    def __call__(self, index: Tensor, *draws: Tensor) -> Tensor:
        """Gradients into the parameters, and the loss."""
        device = self.pixels.device
        inputs = tuple(to_device(part, device) for part in (index, *draws))
        if self.capture not in ("graph", "both") or len(index) != self.batch:  # a last batch that is not full
            return self._backward(*inputs)
        if self._graph is None:
            self._record(*inputs)
        for held, new in zip(self._inputs, inputs, strict=True):
            held.copy_(new)
        assert self._graph is not None
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._graph.replay()
        return self._result

    def _backward(self, *inputs: Tensor) -> Tensor:
        for parameter in self.model.parameters():
            parameter.grad = None
        with beside(self.pixels):
            loss = self._loss(*inputs)
        loss.backward()
        return loss.detach()

    def _record(self, *inputs: Tensor) -> None:
        """Capture forward and backward; the passes before it move BatchNorm's running statistics, so they are put back."""
        before = [buffer.clone() for buffer in self.model.buffers()]
        self._inputs = tuple(part.clone() for part in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self._backward(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        for parameter in self.model.parameters():
            parameter.grad = None  # so that the gradients come to lie in the graph's own memory
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = self._backward(*self._inputs)
        self._gradients = [(p, p.grad) for p in self.model.parameters() if p.grad is not None]
        for buffer, old in zip(self.model.buffers(), before, strict=True):
            buffer.copy_(old)


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
