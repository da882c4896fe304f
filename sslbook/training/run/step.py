r"""What a run computes, as functions of its seed and of the step: images and views, loss and gradients, and the optimiser's rates.

Nothing here remembers anything but an optimiser's averages.  In this order: the images, their order and the draws of their views;
a :class:`Step`, in which precision and layout, and captured or compiled; learning rates and optimisers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sslbook._ambient import anywhere, default_device_of
from sslbook._machine import has_bfloat16
from sslbook._random import to_device
from sslbook.images import datasets
from sslbook.images.datasets import Dataset
from sslbook.networks.siamese import Outputs, build
from sslbook.training.augment import PIPELINES, Pipeline, apply, draws, plain
from sslbook.training.objectives import objective, sees
from sslbook.training.run import distributed
from sslbook.training.run.settings import Settings

Views = Callable[[Tensor, torch.Generator], Tensor]
SUBSET_SEED = 0
"""Which images a subset holds, whatever the run's seed."""
LARGE = 1_000_000
"""Weights from which on bfloat16 was measured to be faster on a processor that has it: a ResNet-18 of width 20."""
GRAPHS = True
"""Whether one GPU's steps are captured as a CUDA graph, which saves the time of starting each kernel."""


# --- what a step sees ------------------------------------------------------------------------------------------------


def generator(seed: int, purpose: str, number: object) -> torch.Generator:
    """Random numbers for one purpose in one epoch or step: a function of its three arguments, on every machine.

    The seed is the first 63 bits of the SHA-256 of ``"SEED PURPOSE NUMBER"``, so that neighbouring numbers, and the order of the
    images and the weights of a new predictor in one epoch, have nothing in common.  Each is made afresh, so a run that goes on
    after a crash sees what it would have seen, and how many processes share a batch changes nothing.

    >>> seeds = [generator(0, purpose, 3).initial_seed() for purpose in ("order", "order", "noise")]
    >>> seeds[0] == seeds[1] != seeds[2]
    True
    """
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def load_data(settings: Settings, *, download: bool = False) -> tuple[Dataset, Dataset]:
    """Training images, or a subset of them, and test images, as the settings name them.

    Every seed has the same subset, and test images are never cut.  Raises FileNotFoundError, which says where
    images are looked for, if they are missing.

    >>> [len(part) for part in load_data(Settings(dataset="digits", pipeline="digits", subset=100))]
    [100, 400]
    """
    parts = (settings.split, "test")
    whole, tests = (datasets.load_dataset(settings.dataset, part, download=download) for part in parts)
    return datasets.subset(whole, settings.subset, SUBSET_SEED), tests


class Batches:
    """Which of the ``images`` a step sees, and the draws of their views; this process's part of what all of them share.

    ``per_epoch`` is the number of steps in an epoch.  Where an objective takes weights from two further views, there are four
    of each image.
    """

    def __init__(self, settings: Settings, images: int) -> None:
        """Raises ValueError if there is no batch, or one that the processes can't share."""
        self.settings, self.images = settings, images
        self.views = 4 if sees(settings.objective, **settings.loss_kwargs) == "further" else 2
        size, processes, rest = settings.batch, distributed.world(), images % settings.batch
        if size % processes or images < size:
            wanted = f"a multiple of the {processes} processes and at most the {images} images there are"
            raise ValueError(f"batch must be {wanted}, got {size}")
        if not settings.drop_last and rest and (rest % processes or rest < 2 * processes):
            raise ValueError(f"drop_last must be true here: {processes} processes can't share a last batch of {rest}")
        self.per_epoch = images // size + (not settings.drop_last and rest > 0)
        self._epoch, self._order = -1, torch.arange(images)

    def at(self, step: int) -> tuple[Tensor, ...]:
        """Numbers of images ``(B,)``, and the draws ``(B, NUMBERS)`` of each of their views, cut from those of the whole batch.

        The order is the images' own, or with ``shuffle`` a permutation by the seed and the epoch; the last one is kept.
        """
        epoch, within = divmod(step, self.per_epoch)
        seed, size = self.settings.seed, self.settings.batch
        if self.settings.shuffle and epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(self.images, generator=generator(seed, "order", epoch))
        batch = self._order[within * size : (within + 1) * size]
        whole = [batch, *(draws(len(batch), seed, step, view) for view in range(self.views))]
        return tuple(part[distributed.own_rows(len(batch))] for part in whole)


# --- what it does with them ------------------------------------------------------------------------------------------


class Step:
    """Loss and gradients of a minibatch, ``step(index, one, two)``, on this process; and what they are made of.

    Calling it with images' numbers ``(B,)`` and the draws ``(B, NUMBERS)`` of their two views, or four where weights are taken from
    two further ones, leaves the gradients in the parameters and gives the loss, a scalar on the device that the next call may
    overwrite.  Nothing is read back.

    model: the networks, with their first weights.  pixels: all images, uint8 ``(N, C, H, W)``, on the device where they are trained
    on.  labels: their classes ``(N,)``, if the objective asks for those.
    """

    def __init__(
        self,
        settings: Settings,
        data: Dataset,
        device: torch.device,
        backbone: tuple[nn.Module, int] | None = None,
        pipeline: Pipeline | None = None,
        own_views: Views | None = None,
        own_loss: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Build the networks and bring them and the images to the device.

        backbone, pipeline: the caller's own encoder with its number of features, and augmentation, in the place of the settings'.
        own_views, own_loss: see ``train``; no graph is captured of these.

        The networks multiply in the settings' precision, under autocast; views and loss stay in float32.  ``auto`` is bfloat16 on a
        GPU, and on a processor that multiplies in it for a million weights or more: the book's small networks stay in float32, so
        that their numbers are the same on every processor.
        Raises ValueError where labels are asked for and missing.
        """
        seen = sees(settings.objective, **settings.loss_kwargs)
        if seen == "labels" and (missing := int((data.labels < 0).sum())):
            without = f"{missing} of the {len(data)} of {data.name} have none"
            raise ValueError(f"objective {settings.objective} asks for the class of each image, and {without}")
        self.clean, self.labels = seen == "clean", data.labels.to(device) if seen == "labels" else None
        self.pixels, self.batch = data.pixels.to(device), settings.batch // distributed.world()
        self.pipeline, self.own_views = pipeline or PIPELINES[settings.pipeline], own_views
        self.objective = objective(settings.objective, **settings.loss_kwargs)
        if own_loss is not None:
            self.objective = anywhere(lambda outputs: own_loss(torch.stack(outputs[:2], dim=1)))

        self.model = build(settings.networks, settings.seed, backbone).to(device)
        width = settings.networks.width if backbone is None else 1  # of whose layers nothing is known
        self.model.to(memory_format=layout_of(width, device))  # type: ignore[call-overload]
        distributed.share_batchnorm(self.model)
        many = sum(part.numel() for part in self.model.encoder.parameters()) >= LARGE
        low = settings.precision == "auto" and (device.type == "cuda" or (many and has_bfloat16()))
        self.precision = torch.bfloat16 if low or settings.precision == "bfloat16" else torch.float32
        one_gpu = device.type == "cuda" and distributed.world() == 1
        self.captured = GRAPHS and one_gpu and own_views is None and own_loss is None
        self._graph: torch.cuda.CUDAGraph | None = None

    def view(self, pixels: Tensor, drawn: Tensor) -> Tensor:
        """One view of each image, bytes ``(B, C, H, W)`` to float32 ``(B, C, size, size)``, as its draws ``(B, NUMBERS)`` say.

        The caller's function gets pixels in [0, 1], and a generator on the processor that depends on the first image's draws.
        So it differs from step to step, from view to view and from process to process, and is the same in a run that goes on.
        """
        if self.own_views is None:
            return apply(pixels, self.pipeline, drawn)
        return self.own_views(pixels.float() / 255, generator(0, "view", drawn[0].tolist()))

    def gradients(self, index: Tensor, *draws: Tensor) -> Tensor:
        """A step as PyTorch runs it: new gradients in the parameters, and the loss without its graph.

        The loss is the objective of the views of the images ``index`` that ``draws`` say, and of all processes' such images.
        Views are made outside of autocast, which would round the crops.  A graph must hold the casts of the weights too, so these
        are not kept from one pass to the next.
        """
        for parameter in self.model.parameters():
            parameter.grad = None
        with default_device_of(self.pixels):
            pixels = self.pixels[index]
            views = [self.view(pixels, drawn) for drawn in draws]
            if self.clean:
                views.append(plain(pixels, self.pipeline))
            low = self.precision != torch.float32
            with torch.autocast(pixels.device.type, self.precision, enabled=low, cache_enabled=False):
                outputs: Outputs = self.model(*views)
            if self.labels is not None:
                outputs = outputs._replace(labels=self.labels[index])
            loss = self.objective(distributed.gather_outputs(outputs))
        loss.backward()
        return loss.detach()

    def __call__(self, index: Tensor, *draws: Tensor) -> Tensor:
        """Gradients into the parameters, and the loss: operation by operation, or by the graph that the first call captures.

        A last batch that is not full is never the graph's.  What the passes before the capture do to BatchNorm is put back.
        """
        inputs = tuple(to_device(part, self.pixels.device) for part in (index, *draws))
        if not self.captured or len(index) != self.batch:
            return self.gradients(*inputs)
        if self._graph is None:
            before = [buffer.clone() for buffer in self.model.buffers()]
            self._inputs = tuple(part.clone() for part in inputs)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # so that libraries have chosen their kernels
                    self.gradients(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            for parameter in self.model.parameters():
                parameter.grad = None  # so that the gradients come to lie in the graph's own memory
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = self.gradients(*self._inputs)
            self._gradients = [(p, p.grad) for p in self.model.parameters() if p.grad is not None]
            for buffer, old in zip(self.model.buffers(), before, strict=True):
                buffer.copy_(old)
        for held, new in zip(self._inputs, inputs, strict=True):
            held.copy_(new)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._graph.replay()
        return self._result


def layout_of(width: int, device: torch.device) -> torch.memory_format:
    """How a ResNet's maps and kernels lie in memory: channels last, except in narrow networks on a processor.

    There, channels last saves a fifth of a step, but oneDNN's gradient of a 1x1 convolution of stride 2 with fewer channels than
    a vector register has numbers writes behind its workspace: below 8 with AVX2, below 16 with AVX-512 and larger images
    (uxlfoundation/oneDNN issue 6035; seen in 3.5.3 to 3.13.3, which are PyTorch 2.5 to 2.15).  The heap is corrupted, and the
    process dies now or later.  Every such shortcut of the network has ``width`` channels or more.

    >>> layout_of(8, torch.device("cpu")), layout_of(64, torch.device("cpu"))
    (torch.contiguous_format, torch.channels_last)
    """
    narrow = device.type == "cpu" and width < 16
    return torch.contiguous_format if narrow else torch.channels_last


# --- what is done with the gradients; rates are functions of the step, so a resumed run restores none ------------------

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
        done, half = max(0, step // per_epoch - STEADY), per_epoch
    else:
        warm, total = settings.warmup * per_epoch, settings.epochs * per_epoch
        if step < warm:
            return settings.lr * ((step + 1) / warm)
        done, half = step - warm, total - warm
    return settings.lr * (0.5 * (1 + math.cos(math.pi * done / half)))


def make_optimizer(
    settings: Settings, params: list[nn.Parameter], predictor: nn.Module | None = None
) -> torch.optim.Optimizer:
    """The run's optimiser of ``params``; those of ``predictor`` among them get ``predictor_lr`` times the rate.

    SGD, Adam and AdamW are fused, one kernel for all tensors.  Each group's multiple of the rate, if it has one, stands in it under
    :data:`FACTOR`, and the loop sets ``group["lr"]`` before each step.
    """
    groups: list[dict[str, Any]] = [{"params": params}]
    if predictor is not None and settings.predictor_lr != 1:
        quick = set(predictor.parameters())
        groups = [{"params": [w for w in params if (w in quick) == inside]} for inside in (False, True)]
        groups[1][FACTOR] = settings.predictor_lr
    fused = all(p.device.type in ("cuda", "cpu") and p.is_floating_point() for p in params)
    usual: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": fused}
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, **usual)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, betas=settings.betas, **usual)
