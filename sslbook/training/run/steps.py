"""One minibatch: views of each image, the loss, its gradient; eagerly, compiled, or as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Outputs, Siamese, build
from sslbook.stats.replica_rng import to_device
from sslbook.training.objectives import asks_labels, objective, weighed_by
from sslbook.training.run import distributed
from sslbook.training.run.optimizers import LARS
from sslbook.training.run.settings import Settings
from sslbook.training.views.augment import PIPELINES, Pipeline, apply, plain

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
        with torch.no_grad():
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
            outputs = self.model.outputs(*seen)
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


class Own(NamedTuple):
    """What a run has of its caller's, in the place of its settings' ResNet-18 and pipeline; ``features`` counts the encoder's."""

    encoder: nn.Module
    features: int
    pipeline: Pipeline


def make_step(settings: Settings, data: Dataset, device: torch.device, own: Own | None = None) -> Step:
    """The step of a run on this process: its networks with their first weights, its objective and its augmentation.

    Raises ValueError where the objective asks for labels and an image has none.
    """
    labels = _classes(data, settings.objective) if asks_labels(settings.objective) else None
    model = build(settings.networks, settings.seed, None if own is None else own[:2]).to(device)
    width = settings.networks.width if own is None else 1  # of whose layers nothing is known
    model.to(memory_format=layout_of(width, device))  # type: ignore[call-overload]
    distributed.synchronize_batchnorm(model)
    return Step(
        model,
        objective(settings.objective, **settings.numbers),
        PIPELINES[settings.pipeline] if own is None else own.pipeline,
        data.pixels.to(device),
        batch=settings.batch // distributed.world(),
        precision=precision_of(settings.precision, device),
        capture=_capture_of(settings.capture, device, distributed.world()),
        clean=weighed_by(settings.objective, **settings.numbers) == "clean",
        labels=None if labels is None else labels.to(device),
    )


def _classes(data: Dataset, asking: str) -> Tensor:
    """A label for each image."""
    missing = int((data.labels < 0).sum())
    if missing:
        raise ValueError(
            f"objective {asking} asks for the class of each image, and {missing} of the {len(data.labels)} of {data.name} have none"
        )
    return data.labels


def make_optimizer(params: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """The run's optimiser of these parameters; SGD and Adam are fused: one kernel for all of them."""
    if settings.optimizer == "adam":
        return torch.optim.Adam(
            params, settings.rate, betas=settings.betas, weight_decay=settings.decay, fused=_fused(params)
        )
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            params, settings.rate, settings.momentum, weight_decay=settings.decay, fused=_fused(params)
        )
    return LARS(params, settings.rate, settings.momentum, settings.decay)


def _fused(params: list[nn.Parameter]) -> bool:
    return all(p.device.type in ("cuda", "cpu") and p.is_floating_point() for p in params)


def _capture_of(wanted: str, device: torch.device, processes: int) -> str:
    """What ``auto`` means here: a graph on one GPU, nothing elsewhere; raises ValueError for what this device can't do."""
    if wanted == "auto":
        return "graph" if device.type == "cuda" and processes == 1 else "none"
    if wanted in ("graph", "both") and (device.type != "cuda" or processes > 1):
        raise ValueError(f"capture must be none or compile on {device.type} with {processes} processes, got {wanted!r}")
    return wanted


def precision_of(wanted: str, device: torch.device) -> torch.dtype:
    """What ``auto`` means here: bfloat16 on a GPU, float32 elsewhere."""
    low = wanted == "bfloat16" or (wanted == "auto" and device.type == "cuda")
    return torch.bfloat16 if low else torch.float32


def layout_of(width: int, device: torch.device) -> torch.memory_format:
    """How a ResNet's maps and kernels lie in memory: channels last, except in narrow networks on a processor.

    There, channels last saves a fifth of a step, but oneDNN's gradient of a 1x1 convolution of stride 2 with fewer channels than
    a vector register has numbers writes behind its workspace: below 8 with AVX2, below 16 with AVX-512 and larger images
    (uxlfoundation/oneDNN issue 6035; seen in 3.5.3 to 3.13.3, which are PyTorch 2.5 to 2.15).  The heap is corrupted, and the
    process dies now or later.  Every such shortcut of the network has ``width`` channels or more.
    """
    narrow = device.type == "cpu" and width < 16
    return torch.contiguous_format if narrow else torch.channels_last
