r"""The connection: a network opened at one layer (Definition 1 of [tian2020]).

For a linear layer :math:`\tilde f_l = W_l f_{l-1}` inside any network with output :math:`f_L`,

    K_l(x) = f_{l-1}(x) \otimes J_l(x)^T,   shape (n_l n_{l-1}, n_L),   J_l = d f_L / d \tilde f_l .

Its transpose is the Jacobian of the output in the layer's weights, :math:`K_l(x)^T = \partial f_L / \partial\,
\mathrm{vec}(W_l)`, which is also how a convolution (the same weights at many positions) gets a connection.
:func:`open_layer` runs the network once and keeps what lies below; after that one product with :math:`K^T` costs one
JVP and one product with :math:`K` one VJP through the layers *above* only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from sslbook._ambient import default_settings, methods_anywhere, with_gradients
from sslbook.networks.wrappers import unwrapped, unwrapped_name
from sslbook.operator.frozen import frozen, held_still, in_full, sentences
from sslbook.operator.verify import a_few, require_batch, require_form, verify

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def vec(weight: Tensor) -> Tensor:
    r"""Stack columns: a weight ``(n_l, n_{l-1})`` (a convolution's is read as ``(out, in * taps)``) becomes ``(n_l n_{l-1},)``.

    >>> vec(torch.tensor([[1, 2], [3, 4]]))
    tensor([1, 3, 2, 4])
    """
    return weight.flatten(1).T.reshape(-1)


def unvec(vector: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """The inverse of :func:`vec` for a weight of the given shape; raises ValueError where the numbers don't fit it."""
    size = torch.Size(shape).numel()
    if vector.shape != (size,):
        raise ValueError(f"a vector of length {size} is wanted, got shape {tuple(vector.shape)}")
    return vector.reshape(-1, shape[0]).T.reshape(shape)


def find_layer(net: nn.Module, layer: str | nn.Module) -> tuple[str, Layer]:
    """The linear or convolutional layer that ``layer`` names (dotted, as in ``named_modules``) or is, with its name.

    Names are also found without what compiled or parallel wrappers put into them.  Raises ValueError, with the names that there
    are, for what is no linear or convolutional layer of the network.
    """
    layers = {name: module for name, module in net.named_modules() if isinstance(module, Layer)}
    for name, module in layers.items():
        if module is layer or (isinstance(layer, str) and unwrapped_name(name) == unwrapped_name(layer)):
            return name, module
    there = ", ".join(map(repr, layers)) or "none"
    raise ValueError(f"layer {layer!r:.60} isn't in the network; its linear and convolutional layers are {there}")


class Call(NamedTuple):
    """How the layer was called in a forward pass: its input, its weight, and its output after hooks, each with its graph."""

    below: Tensor
    weight: Tensor
    out: Tensor


@methods_anywhere
@dataclass(frozen=True, eq=False)
class OpenedLayer:
    r"""A network opened at one layer on a fixed batch of ``B`` inputs; made by :func:`open_layer`.

    weight: the layer's weight.  below: :math:`f_{l-1}`, ``(B, ...)``.  preactivation: :math:`\tilde f_l`, ``(B, ...)``.
    output: :math:`f_L`, ``(B, n_L)``.  given: the precision in which the network has the weight.

    A *direction* is a weight, or ``(k, *shape)`` of them; a *cotangent* is ``(B, n_L)``, or ``(k, B, n_L)``.  Both have the dtype
    and the device of the weight.
    """

    name: str
    module: Layer
    weight: Tensor
    below: Tensor
    preactivation: Tensor
    output: Tensor
    given: torch.dtype
    _above: Tensor  # f_L as a function of the pre-activation, its graph kept

    @property
    def size(self) -> int:
        """Number of weights, ``n_l * n_{l-1}``."""
        return self.weight.numel()

    def jvp(self, direction: Tensor) -> Tensor:
        r"""``K(x)^T vec(direction)`` for each sample: ``(B, n_L)``, or ``(k, B, n_L)``.

        The direction goes through the layer, and what comes out through the network above: as the derivative of the pull-back
        in its cotangent (:mod:`sslbook.operator.fast_double_backward`).
        """
        batched = self._batched("direction", direction, self.weight)
        layer = partial(_apply, self.module, self.below)
        tangent = vmap(layer)(direction) if batched else layer(direction)
        return _gradient(*self._pull_back, tangent, batched)

    def vjp(self, cotangent: Tensor) -> Tensor:
        r"""``sum over samples of K(x) c(x)``, in the weight's shape; ``(k, *shape)`` for several cotangents."""
        batched = self._batched("cotangent", cotangent, self.output)
        return self.layer_vjp(_gradient(self._above, self.preactivation, cotangent, batched), batched)

    def layer_vjp(self, cotangent: Tensor, batched: bool = False) -> Tensor:
        """The gradient in the weight from that in the pre-activation, ``(B, ...)``, or from several if ``batched``."""
        weight, out = self._weight_graph
        return _gradient(out, weight, cotangent, batched)

    def kernel(self, cotangent: Tensor) -> Tensor:
        r"""The layer's tangent kernel applied: :math:`K(x)^T \sum_{x'} K(x') c(x')` for each sample, ``(B, n_L)``.

        For a linear layer wider than half the batch, this goes through the inner products of the inputs, without a weight.
        """
        below = self.below
        if not (isinstance(self.module, nn.Linear) and below.ndim == 2 and len(below) < 2 * below.shape[1]):
            return self.jvp(self.vjp(cotangent))
        return _gradient(*self._pull_back, self._gram @ self.pulled_back(cotangent))

    def pulled_back(self, cotangent: Tensor) -> Tensor:
        r""":math:`J_l(x)^T c(x)` for each sample, flattened, ``(B, n_l)``; ``cotangent`` is ``(B, n_L)``."""
        return _gradient(self._above, self.preactivation, cotangent).flatten(1)

    def sample_gradients(self, cotangent: Tensor) -> Tensor:
        r"""``K(x) c(x)`` for each sample by itself, ``(B, n_l n_{l-1})``; ``cotangent`` is ``(B, n_L)``."""

        def gradient(below: Tensor, row: Tensor) -> Tensor:
            pull: Any = vjp(lambda weight: _apply(self.module, below[None], weight).flatten(), self.weight)[1]
            return vec(pull(row)[0])

        found: Tensor = vmap(gradient)(self.below, self.pulled_back(cotangent))
        return found

    def jacobian(self) -> Tensor:
        r""":math:`J_l(x)` on flattened features, ``(B, n_L, n_l)``."""
        return torch.stack([self.pulled_back(rows) for rows in self.units()], dim=1)

    def connections(self) -> Tensor:
        r"""Dense :math:`K_l(x)` for each sample, ``(B, n_l n_{l-1}, n_L)``: for small layers, and as the reference."""
        return torch.stack([self.sample_gradients(rows) for rows in self.units()], dim=-1)

    def units(self) -> list[Tensor]:
        """The cotangents that pick out one output of each sample, ``n_L`` of ``(B, n_L)``."""
        picks = torch.eye(self.output.shape[1], dtype=self.output.dtype, device=self.output.device)
        return [pick.expand(self.output.shape) for pick in picks]

    @cached_property
    def _gram(self) -> Tensor:
        return self.below @ self.below.T

    @cached_property
    def _weight_graph(self) -> tuple[Tensor, Tensor]:
        """The weight again, and the layer's output as a function of it."""
        with default_settings(gradients=True):
            weight = self.weight.clone().requires_grad_()
            return weight, _apply(self.module, self.below, weight)

    @cached_property
    def _pull_back(self) -> tuple[Tensor, Tensor]:
        """:math:`J_l^T c` with its graph, and the cotangent ``c``: linear in it, so that its derivative is the JVP."""
        with default_settings(gradients=True):
            cotangent = torch.ones_like(self.output, requires_grad=True)
            (pulled,) = torch.autograd.grad(self._above, self.preactivation, cotangent, create_graph=True)
        return pulled, cotangent

    def _batched(self, what: str, given: Tensor, like: Tensor) -> bool:
        """Whether there are several; raises ValueError for another shape."""
        if given.shape != like.shape and given.shape[1:] != like.shape:
            axes = ", ".join(map(str, like.shape))
            raise ValueError(f"{what} must have shape ({axes}) or (k, {axes}), got {tuple(given.shape)}")
        return given.ndim > like.ndim


def _apply(module: Layer, below: Tensor, weight: Tensor) -> Tensor:
    """The layer's linear action with another weight and no bias."""
    if isinstance(module, nn.Linear):
        return nn.functional.linear(below, weight)
    kind: Any = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(module, kind))
    out: Tensor = kind._conv_forward(module, below, weight, None)  # the class's: a subclass may have another
    return out


def _gradient(output: Tensor, point: Tensor, cotangent: Tensor, batched: bool = False) -> Tensor:
    (found,) = torch.autograd.grad(output, point, cotangent, retain_graph=True, is_grads_batched=batched)
    return found


@with_gradients
def open_layer(net: nn.Module, layer: str | nn.Module, x: Tensor) -> OpenedLayer:
    r"""Run ``net`` once on ``x``, ``(B, ...)``, and keep what :math:`K_l` needs.

    layer: the name of any ``nn.Linear`` or ``nn.Conv1d/2d/3d`` of any ``torch.nn`` network in float32 or float64, or the layer
    itself.  A network in half precision is opened as the same weights in float32.  What is opened is a copy of the network as it
    is now, so that it may be trained on.

    Raises ValueError or TypeError for a layer that isn't there, and for each network of :mod:`sslbook.operator.verify`: products
    would be wrong and look right.
    """
    if not isinstance(net := unwrapped(net), nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    require_batch("x", x, 1, "inputs, ...")
    name, module = find_layer(net, layer)
    net, x, given = frozen(net), in_full(x.detach()), module.weight.dtype
    for key, weight in net.get_submodule(name).named_parameters():
        weight.requires_grad_("bias" not in key)
    opened, _ = _open(net, name, x, given)
    with sentences("net must take any part of a batch, and fails on some samples", (ValueError,)):
        part, call = _open(net, name, a_few(x), given)
    verify(opened, part, call)
    return opened


def _open(net: nn.Module, name: str, x: Tensor, given: torch.dtype) -> tuple[OpenedLayer, Call]:
    """One pass of a frozen network that is cut at the layer: what is above sees the pre-activation as a new variable."""
    module, calls, cuts = net.get_submodule(name), [], []
    assert isinstance(module, Layer)

    def cut(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], out: Tensor) -> Tensor:
        below = args[0] if args else kwargs["input"]
        calls.append(Call(below, module.weight, out))
        cuts.append(out.detach().requires_grad_())
        return cuts[-1].clone()

    handle = module.register_forward_hook(cut, with_kwargs=True)
    try:
        with held_still(x), sentences(f"net can't take x of shape {tuple(x.shape)} and {x.dtype}", (Exception,)):
            output = net(x.clone())
    finally:
        handle.remove()
    require_form(name, calls, x, output)
    below, weight, _ = calls[0]
    above = output.reshape(len(output), -1)
    opened = OpenedLayer(name, module, weight.detach(), below.detach(), cuts[0], above.detach(), given, above)
    return opened, calls[0]


def connection(net: nn.Module, layer: str | nn.Module, x: Tensor) -> Tensor:
    r"""Dense connections :math:`K_l(x)` of a batch, ``(B, n_l n_{l-1}, n_L)``: ``open_layer(net, layer, x).connections()``."""
    return open_layer(net, layer, x).connections()
