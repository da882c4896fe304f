r"""A layer opened on more samples than memory holds: chunk by chunk, each run anew for each product.

Nothing is kept but the inputs, the outputs and the network's weights, so that memory grows with the chunk alone.  It is paid for
in time: a product with :math:`K` or :math:`K^T` costs a pass of the network more, and those by the JVP its pull-back too.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sslbook.operator.frozen import CANT_TAKE, FrozenNetwork
from sslbook.operator.layer import Layer, OpenedLayer, frozen_layer, open_frozen, open_layer, opened_pass, refuse_batch
from sslbook.runtime.arguments import counted, require_whole


@dataclass(frozen=True, eq=False)
class LayerInChunks:
    """A layer opened by :func:`open_in_chunks`, for a batch that is never whole in memory.

    weight, output: as in :class:`sslbook.operator.layer.OpenedLayer`.  chunk: the number of samples at once.
    """

    weight: Tensor
    output: Tensor
    chunk: int
    _frozen: FrozenNetwork
    _x: Tensor

    @property
    def name(self) -> str:
        """The layer's."""
        return self._frozen.name

    @property
    def module(self) -> Layer:
        """The layer."""
        return self._frozen.module

    @property
    def given(self) -> torch.dtype:
        """The precision in which the network has the weight."""
        return self._frozen.given

    @property
    def size(self) -> int:
        """Number of weights, ``n_l * n_{l-1}``."""
        return self.weight.numel()

    @property
    def below(self) -> Tensor:
        """:math:`f_{l-1}`, ``(B, ...)``: one pass, and memory for all samples."""
        return torch.cat(list(self._each(lambda part: part.below)))

    def jvp(self, direction: Tensor) -> Tensor:
        r"""``K(x)^T vec(direction)`` for each sample, ``(B, n_L)``; ``direction`` is a weight, or ``(k, *shape)`` of them."""
        return torch.cat(list(self._each(lambda part: part.jvp(direction))), dim=-2)

    def vjp(self, cotangent: Tensor) -> Tensor:
        r"""``sum over samples of K(x) c(x)`` in the weight's shape; ``cotangent`` is ``(B, n_L)`` or ``(k, B, n_L)``."""
        return sum(self._each(OpenedLayer.vjp, cotangent), torch.zeros_like(self.weight))

    def kernel(self, cotangent: Tensor) -> Tensor:
        r"""The layer's tangent kernel applied: :math:`K(x)^T \sum_{x'} K(x') c(x')` for each sample, ``(B, n_L)``."""
        return self.jvp(self.vjp(cotangent))

    def jacobian(self) -> Tensor:
        r""":math:`J_l(x)` on flattened features, ``(B, n_L, n_l)``."""
        return torch.cat(list(self._each(OpenedLayer.jacobian)))

    def connections(self) -> Tensor:
        r"""Dense :math:`K_l(x)` for each sample, ``(B, n_l n_{l-1}, n_L)``: for small layers."""
        return torch.cat(list(self._each(OpenedLayer.connections)))

    def sample_gradients(self, cotangent: Tensor) -> Tensor:
        r"""``K(x) c(x)`` for each sample by itself, ``(B, n_l n_{l-1})``; ``cotangent`` is ``(B, n_L)``."""
        return torch.cat(list(self._each(OpenedLayer.sample_gradients, cotangent)))

    def pulled_back(self, cotangent: Tensor) -> Tensor:
        r""":math:`J_l(x)^T c(x)` for each sample, flattened, ``(B, n_l)``; ``cotangent`` is ``(B, n_L)``."""
        return torch.cat(list(self._each(OpenedLayer.pulled_back, cotangent)))

    def _each(self, product: Callable[..., Tensor], cotangent: Tensor | None = None) -> Iterator[Tensor]:
        """What a product of the opened layer gives on each chunk, with its share of a cotangent."""
        if cotangent is not None and cotangent.shape[-2:] != self.output.shape:
            axes = ", ".join(map(str, self.output.shape))
            raise ValueError(f"cotangent must have shape ({axes}) or (k, {axes}), got {tuple(cotangent.shape)}")
        chunks = self._x.split(self.chunk)
        shares = [()] * len(chunks) if cotangent is None else zip(cotangent.split(self.chunk, dim=-2), strict=True)
        for x, share in zip(chunks, shares, strict=True):
            with torch.inference_mode(False):
                found = product(opened_pass(self._frozen, x)[0], *share)  # and all but the result is let go
            yield found


@torch.inference_mode(False)
def open_in_chunks(net: nn.Module, layer: str | nn.Module, x: Tensor, chunk: int) -> LayerInChunks:
    r"""As :func:`sslbook.operator.layer.open_layer`, with the same numbers to rounding, in the memory of ``chunk`` samples.

    Raises what that raises, TypeError for a ``chunk`` that is no whole number, ValueError for one below 2: a sample alone can't be
    seen to depend on another.
    """
    require_whole("chunk", chunk, least=2)
    frozen, x = frozen_layer(net, layer, x)
    weight = open_frozen(frozen, x[:chunk]).weight
    output = torch.cat([_looked_at(frozen, some) for some in x.split(chunk)])
    return LayerInChunks(weight, output, chunk, frozen, x)


def _looked_at(frozen: FrozenNetwork, x: Tensor) -> Tensor:
    part, _ = opened_pass(frozen, x)
    refuse_batch(part, derivative=False)
    return part.output


def open_views(net: nn.Module, layer: str | nn.Module, views: Tensor, chunk: int | None) -> OpenedLayer | LayerInChunks:
    """The layer opened on ``(N, V, ...)``, whole or in chunks; asks whether images were meant where they may have been."""
    x, shape = views.flatten(0, 1), tuple(views.shape)
    try:
        opened = open_layer(net, layer, x) if chunk is None else open_in_chunks(net, layer, x, chunk)
    except ValueError as error:
        if not str(error).startswith(CANT_TAKE):
            raise
        asked = ": did you pass images?" if views.ndim < 5 else ""
        raise ValueError(f"{error}; x is views {shape}, (samples, views, ...), as one batch{asked}") from error
    if views.ndim == 4 and shape[1] in (1, 3) and _flattens(net, layer, x[:1]):
        (n, v), alone = shape[:2], ", so that nothing is augmented (a plain PCA)" if shape[1] == 1 else ""
        warnings.warn(
            f"views {shape} are taken for {n} samples with {counted(v, 'view')} each of {shape[2:]}{alone}: did you pass images? "
            f"views are (samples, views, ...); an axis of channels, {(n, v, 1, *shape[2:])}, says that they are",
            stacklevel=3,
        )
    return opened


def _flattens(net: nn.Module, layer: str | nn.Module, x: Tensor) -> bool:
    """Whether a network reads its input as one vector, so that it may take one channel of an image for an image."""
    frozen, x = frozen_layer(net, layer, x)
    with contextlib.suppress(ValueError):
        return torch.equal(*(frozen(given, lambda call: call.out) for given in (x, x.flatten(1))))
    return False
