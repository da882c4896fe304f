"""A step: views, networks, objective and gradients, in which precision and layout, and captured or compiled; then the optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

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
        if self._graph is None:  # capture forward and backward; what the passes before it do to BatchNorm is put back
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
        for held, new in zip(self._inputs, inputs, strict=True):
            held.copy_(new)
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


def make_step(
    settings: Settings,
    data: Dataset,
    device: torch.device,
    backbone: tuple[nn.Module, int] | None = None,
    pipeline: Pipeline | None = None,
) -> Step:
    """The step of a run on this process: networks with their first weights, objective, augmentation and images on the device.

    backbone, pipeline: the caller's own encoder with its number of features, and augmentation, in the place of the settings'.
    The precision ``auto`` is bfloat16 on a GPU, and on a processor that multiplies in it for a million weights or more: the
    book's small networks stay in float32, so that their numbers are the same on every processor.
    Raises ValueError where labels are asked for and missing, and for a ``capture`` that this device can't do.
    """
    labels = data.labels if asks_labels(settings.objective) else None
    if labels is not None and (missing := int((labels < 0).sum())):
        without = f"{missing} of the {len(labels)} of {data.name} have none"
        raise ValueError(f"objective {settings.objective} asks for the class of each image, and {without}")
    one_gpu = device.type == "cuda" and distributed.world() == 1
    capture = settings.capture if settings.capture != "auto" else "graph" if one_gpu else "none"
    if capture in ("graph", "both") and not one_gpu:
        where = f"{device.type} with {distributed.world()} processes"
        raise ValueError(f"capture must be none or compile on {where}, got {capture!r}")
    model = build(settings.networks, settings.seed, backbone).to(device)
    width = settings.networks.width if backbone is None else 1  # of whose layers nothing is known
    model.to(memory_format=layout_of(width, device))  # type: ignore[call-overload]
    distributed.share_batchnorm(model)
    weights = weighed_by(settings.objective, **settings.loss_kwargs)
    many = sum(part.numel() for part in model.encoder.parameters()) >= LARGE
    low = settings.precision == "auto" and (device.type == "cuda" or (many and has_bfloat16()))
    return Step(
        model,
        objective(settings.objective, **settings.loss_kwargs),
        pipeline or PIPELINES[settings.pipeline],
        data.pixels.to(device),
        batch=settings.batch // distributed.world(),
        precision=torch.bfloat16 if low or settings.precision == "bfloat16" else torch.float32,
        capture=capture,
        clean=weights == "clean",
        labels=None if labels is None else labels.to(device),
    )


def layout_of(width: int, device: torch.device) -> torch.memory_format:
    """How a ResNet's maps and kernels lie in memory: channels last, except in narrow networks on a processor.

    There, channels last saves a fifth of a step, but oneDNN's gradient of a 1x1 convolution of stride 2 with fewer channels than
    a vector register has numbers writes behind its workspace: below 8 with AVX2, below 16 with AVX-512 and larger images
    (uxlfoundation/oneDNN issue 6035; seen in 3.5.3 to 3.13.3, which are PyTorch 2.5 to 2.15).  The heap is corrupted, and the
    process dies now or later.  Every such shortcut of the network has ``width`` channels or more.
    """
    narrow = device.type == "cpu" and width < 16
    return torch.contiguous_format if narrow else torch.channels_last


# --- what is done with the gradients; rates and averages are functions of the step, so a resumed run restores none ------

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
