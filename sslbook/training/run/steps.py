r"""One minibatch: views of each image, the loss, its gradient; eagerly, compiled, or as a CUDA graph; and LARS [you2017]."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sslbook.networks.siamese import Outputs, Siamese
from sslbook.stats.replica_rng import to_device
from sslbook.training.views.augment import Pipeline, apply, plain

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
