"""A step up to its gradients: views, networks, objective; in which precision and layout, and captured or compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sslbook._ambient import default_device_of
from sslbook._machine import has_bfloat16
from sslbook._random import to_device
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Outputs, Siamese, build
from sslbook.training.augment import PIPELINES, Pipeline, apply, plain
from sslbook.training.objectives import asks_labels, objective, weighed_by
from sslbook.training.run import distributed
from sslbook.training.run.settings import Settings

LARGE = 1_000_000
"""Weights from which on bfloat16 was measured to be faster on a processor that has it: a ResNet-18 of width 20."""
WARM = 3
"""Forward and backward passes before a graph is captured, so that libraries have chosen their kernels."""


class Step:
    """Loss and gradients of a minibatch: ``step(index, one, two)``, with the draws of further views if weights are taken from them.

    model: the networks.  objective: a function of :class:`Outputs`.  pipeline: the augmentation.
    pixels: all images, uint8 ``(N, C, H, W)``, on the device where they are trained on.
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

    def loss(self, index: Tensor, *draws: Tensor) -> Tensor:
        """The objective of the views of the images ``index`` that ``draws`` say, and of all processes' such images."""
        pixels = self.pixels[index]
        # outside of autocast, which would round the crops
        views = [apply(pixels, self.pipeline, drawn) for drawn in draws]
        if self.clean:
            views.append(plain(pixels, self.pipeline))
        low = self.precision != torch.float32
        # A graph must hold the casts of the weights too, so they are not kept from one pass to the next.
        with torch.autocast(pixels.device.type, self.precision, enabled=low, cache_enabled=False):
            outputs: Outputs = self.model(*views)
        if self.labels is not None:
            outputs = outputs._replace(labels=self.labels[index])
        return self.objective(distributed.gather_outputs(outputs))

    def __call__(self, index: Tensor, *draws: Tensor) -> Tensor:
        """Gradients into the parameters, and the loss."""
        inputs = tuple(to_device(part, self.pixels.device) for part in (index, *draws))
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
        """A step as PyTorch runs it, operation by operation."""
        for parameter in self.model.parameters():
            parameter.grad = None
        with default_device_of(self.pixels):
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


def make_step(
    settings: Settings,
    data: Dataset,
    device: torch.device,
    backbone: tuple[nn.Module, int] | None = None,
    pipeline: Pipeline | None = None,
) -> Step:
    """The step of a run on this process: networks with their first weights, objective, augmentation and images on the device.

    backbone, pipeline: the caller's own encoder with its number of features, and augmentation, in the place of the settings'.
    Raises ValueError where labels are asked for and missing, and for a ``capture`` that this device can't do.
    """
    labels = data.labels if asks_labels(settings.objective) else None
    if labels is not None and (missing := int((labels < 0).sum())):
        raise ValueError(
            f"objective {settings.objective} asks for the class of each image, and {missing} of the {len(labels)} of "
            f"{data.name} have none"
        )
    one_gpu = device.type == "cuda" and distributed.world() == 1
    capture = settings.capture if settings.capture != "auto" else "graph" if one_gpu else "none"
    if capture in ("graph", "both") and not one_gpu:
        raise ValueError(
            f"capture must be none or compile on {device.type} with {distributed.world()} processes, got {capture!r}"
        )
    model = build(settings.networks, settings.seed, backbone).to(device)
    width = settings.networks.width if backbone is None else 1  # of whose layers nothing is known
    model.to(memory_format=layout_of(width, device))  # type: ignore[call-overload]
    distributed.share_batchnorm(model)
    weights = weighed_by(settings.objective, **settings.loss_kwargs)
    return Step(
        model,
        objective(settings.objective, **settings.loss_kwargs),
        pipeline or PIPELINES[settings.pipeline],
        data.pixels.to(device),
        batch=settings.batch // distributed.world(),
        precision=precision_of(settings.precision, device, sum(p.numel() for p in model.encoder.parameters())),
        capture=capture,
        clean=weights == "clean",
        labels=None if labels is None else labels.to(device),
    )


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
