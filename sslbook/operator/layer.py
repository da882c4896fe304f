r"""The connection: a network opened at one layer (Definition 1 of [tian2020]).

For a linear layer :math:`\tilde f_l = W_l f_{l-1}` inside any network with output :math:`f_L`,

    K_l(x) = f_{l-1}(x) \otimes J_l(x)^T,   shape (n_l n_{l-1}, n_L),   J_l = d f_L / d \tilde f_l .

Its transpose is the Jacobian of the output in the layer's weights, :math:`K_l(x)^T = \partial f_L / \partial\,
\mathrm{vec}(W_l)`, which is also how a convolution (the same weights at many positions) gets a connection.
:func:`open_layer` runs the network once and keeps what lies below; after that one product with :math:`K^T` costs one
JVP and one product with :math:`K` one VJP through the layers *above* only.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from sslbook._ambient import methods_anywhere, plainly, with_gradients
from sslbook._check import counted, nearest, require_whole, unwrapped, unwrapped_name
from sslbook.operator.frozen import (
    CANT_TAKE,
    DTYPES,
    EVAL,
    Call,
    FrozenNetwork,
    freeze,
    has_half,
    in_full,
    refuse_nonfinite,
    sentences,
    shares_with,
)
from sslbook.operator.frozen import (
    Layer as Layer,
)

BY_BATCH = f"if that is BatchNorm in training mode, {EVAL}"


def vec(weight: Tensor) -> Tensor:
    r"""Stack columns: a weight ``(n_l, n_{l-1})`` (a convolution's is read as ``(out, in * taps)``) becomes ``(n_l n_{l-1},)``."""
    return weight.flatten(1).T.reshape(-1)


def unvec(vector: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Inverse of :func:`vec` for a weight of the given shape."""
    rows = shape[0]
    if vector.ndim != 1 or vector.numel() != torch.Size(shape).numel():
        raise ValueError(f"a vector of length {torch.Size(shape).numel()} is wanted, got shape {tuple(vector.shape)}")
    return vector.reshape(-1, rows).T.reshape(shape)


def find_layer(net: nn.Module, layer: str | nn.Module) -> tuple[str, Layer]:
    """The linear or convolutional layer that ``layer`` names (dotted, as in ``named_modules``) or is, with its name."""
    candidates = {name: m for name, m in net.named_modules() if isinstance(m, Layer)}
    if isinstance(layer, str) and layer not in candidates:  # but for what compiled or parallel wrappers put into a name
        layer = {unwrapped_name(name): name for name in candidates}.get(unwrapped_name(layer), layer)
    for name, module in candidates.items():
        if name == layer or module is layer:
            return name, module
    found = dict(net.named_modules()).get(layer) if isinstance(layer, str) else layer
    offered = _offered(net)
    names = ", ".join(map(repr, offered)) or "none"
    if found is not None:
        raise TypeError(
            f"layer must be linear or convolutional and part of the network, got {type(found).__name__}; there are {names}"
        )
    near = nearest(layer, offered)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"layer {layer!r} isn't in the network{hint}; its linear and convolutional layers are {names}")


def _offered(net: nn.Module) -> list[str]:
    """The layers that can be opened, as far as can be told without a pass: attention reads its projection's weight by itself."""
    read = [m.out_proj for m in net.modules() if isinstance(m, nn.MultiheadAttention)]
    layers = [(name, m) for name, m in net.named_modules() if isinstance(m, Layer) and m not in read]
    return [name for name, m in layers if shares_with(net, m) is None]


def _layer_map(module: Layer, below: Tensor, weight: Tensor) -> Tensor:
    """The layer's linear action with another weight and no bias."""
    if isinstance(module, nn.Linear):
        return nn.functional.linear(below, weight)
    kind: Any = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(module, kind))
    out: Tensor = kind._conv_forward(module, below, weight, None)  # a subclass may have another
    return out


def _pull(output: Tensor, point: Tensor, cotangent: Tensor, batched: bool) -> Tensor:
    """The gradient in ``point``, its graph kept."""
    (down,) = torch.autograd.grad(output, point, cotangent, retain_graph=True, is_grads_batched=batched)
    return down


@dataclass(frozen=True, eq=False)
class _Layer:
    """weight, output, given: as in :class:`OpenedLayer`."""

    name: str
    module: Layer
    weight: Tensor
    output: Tensor
    given: torch.dtype

    @property
    def size(self) -> int:
        """Number of weights, ``n_l * n_{l-1}``."""
        return self.weight.numel()

    def _check(self, given: Tensor, wanted: torch.Size, what: str) -> None:
        if given.shape != wanted and given.shape[1:] != wanted:
            axes = ", ".join(map(str, wanted))
            raise ValueError(f"{what} must have shape ({axes}) or (k, {axes}), got {tuple(given.shape)}")
        kind, other = (f"{tensor.dtype} on {tensor.device}" for tensor in (self.weight, given))
        if other != kind:
            raise TypeError(f"{what} must be {kind} like the layer's weight, got {other}")


@methods_anywhere
@dataclass(frozen=True, eq=False)
class OpenedLayer(_Layer):
    r"""A network opened at one layer on a fixed batch of ``B`` inputs; made by :func:`open_layer`.

    weight: the layer's weight, detached.  below: :math:`f_{l-1}`, ``(B, ...)``.  preactivation: :math:`\tilde f_l`, ``(B, ...)``.
    output: :math:`f_L`, ``(B, n_L)``, detached.  given: the precision in which the network has the weight.
    """

    below: Tensor
    preactivation: Tensor
    _leaf: Tensor  # the weight again, and the layer's output as a function of it
    _lifted: Tensor
    _graph: Tensor  # f_L as a function of the pre-activation, its graph kept

    def jvp(self, direction: Tensor) -> Tensor:
        r"""``K(x)^T vec(direction)`` for each sample, ``(B, n_L)``; ``direction`` is a weight, or ``(k, *shape)`` of them."""
        self._check(direction, self.weight.shape, "direction")
        if direction.ndim == self.weight.ndim:
            return self._above_jvp(_layer_map(self.module, self.below, direction), batched=False)
        lifted = vmap(lambda w: _layer_map(self.module, self.below, w))(direction)
        return self._above_jvp(lifted, batched=True)

    def vjp(self, cotangent: Tensor) -> Tensor:
        r"""``sum over samples of K(x) c(x)`` in the weight's shape; ``cotangent`` is ``(B, n_L)`` or ``(k, B, n_L)``."""
        self._check(cotangent, self.output.shape, "cotangent")
        batched = cotangent.ndim == self.output.ndim + 1
        return _pull(self._lifted, self._leaf, self._above_vjp(cotangent, batched), batched)

    def kernel(self, cotangent: Tensor) -> Tensor:
        r"""The layer's tangent kernel applied: :math:`K(x)^T \sum_{x'} K(x') c(x')` for each sample, ``(B, n_L)``.

        For a linear layer wider than half the batch through the inner products of what lies below, without forming a weight.
        """
        below = self.below
        if not (isinstance(self.module, nn.Linear) and below.ndim == 2 and len(below) < 2 * below.shape[1]):
            return self.jvp(self.vjp(cotangent))
        return self._above_jvp(self._gram @ self.pulled_back(cotangent), batched=False)

    @cached_property
    def _gram(self) -> Tensor:
        return self.below @ self.below.T

    def jacobian(self) -> Tensor:
        r""":math:`J_l(x)` on flattened features, ``(B, n_L, n_l)``."""
        eye = torch.eye(self.output.shape[1], dtype=self.output.dtype, device=self.output.device)
        rows = self._above_vjp(eye[:, None, :].expand(-1, *self.output.shape), batched=True)
        return rows.flatten(2).movedim(0, 1)

    def connections(self) -> Tensor:
        r"""Dense :math:`K_l(x)` for each sample, ``(B, n_l n_{l-1}, n_L)``: for small layers, and as the reference."""
        jacobian = self.jacobian().unflatten(2, self.preactivation.shape[1:])

        def one(below: Tensor, rows: Tensor) -> Tensor:
            return vmap(lambda row: self._sample_pull(below, row))(rows).T

        out: Tensor = vmap(one)(self.below, jacobian)
        return out

    def sample_gradients(self, cotangent: Tensor) -> Tensor:
        r"""``K(x) c(x)`` for each sample by itself, ``(B, n_l n_{l-1})``; ``cotangent`` is ``(B, n_L)``."""
        down = self._above_vjp(cotangent, batched=False)
        out: Tensor = vmap(self._sample_pull)(self.below, down)
        return out

    def pulled_back(self, cotangent: Tensor) -> Tensor:
        r""":math:`J_l(x)^T c(x)` for each sample, flattened, ``(B, n_l)``; ``cotangent`` is ``(B, n_L)``."""
        return self._above_vjp(cotangent, batched=False).flatten(1)

    def _sample_pull(self, below: Tensor, row: Tensor) -> Tensor:
        """One sample's gradient in the weight, as a vector, from its gradient in the pre-activation."""
        pull: Callable[[Tensor], tuple[Tensor]] = vjp(
            lambda w: _layer_map(self.module, below[None], w)[0], self.weight
        )[1]
        return vec(pull(row)[0])

    @cached_property
    def _transpose(self) -> tuple[Tensor, Tensor]:
        """A cotangent, of some samples alone, and its pull-back: linear in it, so that its derivative in it is the JVP."""
        with plainly(gradients=True), sentences(_no_derivative(self.name)):
            # zero for about half of the samples, in no regular order
            rows = torch.arange(len(self._graph), device=self._graph.device) * 0.6180339887 % 1 < 0.5
            cotangent = (rows[:, None] * _generic(self._graph)).requires_grad_()
            (pulled,) = torch.autograd.grad(self._graph, self.preactivation, cotangent, create_graph=True)
        return cotangent, pulled

    def _above_jvp(self, tangent: Tensor, batched: bool) -> Tensor:
        cotangent, pulled = self._transpose
        return _pull(pulled, cotangent, tangent, batched)

    def _above_vjp(self, cotangent: Tensor, batched: bool) -> Tensor:
        return _pull(self._graph, self.preactivation, cotangent, batched)


@with_gradients
def open_layer(net: nn.Module, layer: str | nn.Module, x: Tensor) -> OpenedLayer:
    r"""Run ``net`` once on ``x`` (``(B, ...)``) and keep what :math:`K_l` needs.

    ``layer`` names any ``nn.Linear`` or ``nn.Conv1d/2d/3d`` of any ``torch.nn`` network, float32 or float64; one in half precision
    is opened as the same weights in float32.  What is opened is the network as it is now: it may be trained on.  The JVP through
    the upper layers is taken as the derivative of the (linear) pull-back in its cotangent, on a graph recorded once: no forward
    pass is repeated.

    Raises ValueError if the layer isn't there, is applied more than once, uses its weight otherwise than a layer of its kind does,
    or shares it; if samples influence each other (BatchNorm in training mode) or chance does; if a number isn't finite, or torch
    can't run or differentiate the network; TypeError for what is no such layer, network or batch.
    """
    return _open_frozen(*_frozen_layer(net, layer, x))


def require_dense(what: str, given: object, axes: str) -> None:
    """Raise TypeError for what is no dense tensor."""
    if not isinstance(given, Tensor) or given.layout != torch.strided:
        kind = str(given.layout).removeprefix("torch.") if isinstance(given, Tensor) else type(given).__name__
        raise TypeError(f"{what} must be a dense torch tensor ({axes}), got {kind}")


def _frozen_layer(net: nn.Module, layer: str | nn.Module, x: Tensor) -> tuple[FrozenNetwork, Tensor]:
    """The network frozen for its layer, and a copy of the batch; raises as :func:`open_layer`, but for what is computed."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    require_dense("x", x, "inputs, ...")
    if not x.ndim or not x.numel():
        raise ValueError(f"x must have shape (B, ...) with at least one input, got {tuple(x.shape)}")
    if x.device.type == "meta":
        raise ValueError("x is on the device meta, where there are no numbers")
    net = unwrapped(net)
    frozen = freeze(net, *find_layer(net, layer))
    refuse_nonfinite("x", x)
    return frozen, (in_full(x.detach()) if has_half(net) else x.detach()).clone()


def _open_frozen(frozen: FrozenNetwork, x: Tensor) -> OpenedLayer:
    """The layer opened on ``x``, when all guards have passed."""
    opened, _ = _opened_pass(frozen, x)
    _refuse_batch(opened)
    few = _probe_samples(x)
    try:
        part, call = _opened_pass(frozen, few)
    except ValueError as error:
        raise ValueError(
            f"net must take any part of a batch, it failed on {len(few)} of {len(x)} samples: {error}"
        ) from error
    _refuse_part(part, call, frozen, _probe_samples(opened.output))
    return opened


def _opened_pass(frozen: FrozenNetwork, x: Tensor) -> tuple[OpenedLayer, Call]:
    """One pass of the network, cut at the layer."""
    name, module = frozen.name, frozen.module
    calls: list[tuple[Call, int, Tensor]] = []

    def cut(call: Call) -> Tensor:
        calls.append((call, call.below._version, call.out.detach().requires_grad_(True)))
        return calls[-1][2].clone()  # a node of its own, which the modules above may change in place

    output = frozen(x, cut)
    if len(calls) != 1:
        used = not calls and isinstance(output, Tensor) and output.requires_grad
        raise ValueError(
            f"layer {name!r} must be applied once in a forward pass, it was applied {len(calls)} times"
            + (_uncalled(frozen) if used else "")
        )
    call, version, preactivation = calls[0]
    weight, below = call.weight.detach(), call.below.detach()
    if below._version != version:
        raise ValueError(f"the input of layer {name!r} is changed in place further up: use inplace=False there")
    if call.below.requires_grad or not call.weight.requires_grad:
        raise ValueError(f"the weight of layer {name!r} must be a parameter that is used there alone")
    if not isinstance(output, Tensor):
        raise TypeError(f"net must return one tensor, got {type(output).__name__}")
    dtypes = {tensor.dtype for tensor in (below, weight, preactivation, output)}
    if dtypes != {weight.dtype} or weight.dtype not in DTYPES:
        raise TypeError(
            f"layer {name!r} and all above it must be of float32 or of float64, got {sorted(map(str, dtypes))}"
        )
    batches = [t.shape[0] if t.ndim else 0 for t in (x, below, output)]
    if len(set(batches)) != 1:
        raise ValueError(
            "the first axis must be the batch throughout: {} inputs, {} at the layer, {} out".format(*batches)
        )
    if not output.requires_grad:
        raise ValueError(f"the output doesn't depend on layer {name!r} in a way that can be differentiated")
    with sentences(_other_map(name, module)):
        graph = output.reshape(len(output), -1)
        leaf = call.weight.detach().requires_grad_(True)
        lifted = _layer_map(module, below, leaf)
    if lifted.shape != preactivation.shape:
        raise ValueError(_other_map(name, module))
    own = (name, module, weight, graph.detach(), frozen.given)
    return OpenedLayer(*own, below, preactivation, leaf, lifted, graph), call


def _uncalled(frozen: FrozenNetwork) -> str:
    """Who uses a weight whose layer isn't called, and what there is to open."""
    parent = frozen.name.rpartition(".")[0]
    user = type(frozen.net.get_submodule(parent)).__name__ + (f" {parent!r}" if parent else "")
    others = ", ".join(repr(name) for name in _offered(frozen.net) if name != frozen.name) or "none"
    return f": {user} uses its weight without calling it; to open there are {others}"


def connection(net: nn.Module, layer: str | nn.Module, x: Tensor) -> Tensor:
    r"""Dense connections :math:`K_l(x)` of a batch, ``(B, n_l n_{l-1}, n_L)``: ``open_layer(net, layer, x).connections()``."""
    return open_layer(net, layer, x).connections()


# --- what it must not be silent about: few networks without a connection look it, so what they compute decides ----------


def _refuse_batch(opened: OpenedLayer, *, derivative: bool = True) -> None:
    """Raise ValueError where a number isn't finite, or a sample's output depends on another sample's pre-activation.

    derivative: whether that is asked too, for which the output is pulled back.
    """
    layer = f"of layer {opened.name!r}"
    for what, tensor in (("weight", opened.weight), ("input", opened.below), ("output", opened.preactivation)):
        refuse_nonfinite(f"the {what} {layer}", tensor)
    refuse_nonfinite("the output of net", opened.output)
    if derivative:
        cotangent, pulled = opened._transpose
        refuse_nonfinite(f"the derivative of net in the output {layer}", pulled)
        if bool(((pulled.flatten(1) != 0).any(1) & (cotangent == 0).all(1)).any()):
            raise ValueError(f"an output of net depends on the layer's output for other samples; {BY_BATCH}")


def _generic(like: Tensor) -> Tensor:
    """Numbers in that shape without a pattern: what two different linear maps would agree on by chance only."""
    phases = torch.arange(1, like.numel() + 1, dtype=like.dtype, device=like.device).square()
    return (0.7 * phases).cos().reshape(like.shape)


def _probe_samples(x: Tensor) -> Tensor:
    """At most four rows, the last first; fewer than there are, but for a single one."""
    return x[:: max(2, -(-len(x) // 4))].flip(0)


def _refuse_part(part: OpenedLayer, call: Call, frozen: FrozenNetwork, expected: Tensor) -> None:
    r"""Raise ValueError where a handful of samples, opened by themselves, show what the whole batch hides.

    expected: their outputs among the whole batch.
    """
    eps = torch.finfo(part.output.dtype).eps
    # The size of a batch changes the order of sums, by some eps each, and layers amplify it: half of the digits are far above
    # that, and far below what the batch's own statistics change
    if bool((part.output - expected).abs().max() > math.sqrt(eps) * expected.abs().max()):
        raise ValueError(f"an output of net changes with the other samples of its batch; {BY_BATCH}")
    with sentences(_no_derivative(frozen.name)):
        # the derivative of the layer's output in its weight must be that of a plain layer of its kind, on the same input
        rounding = 8 * eps * math.sqrt(call.out.numel() / len(part.weight))  # of sums of as many terms, in any order
        cotangent = _generic(call.out)
        (real,) = torch.autograd.grad(call.out, call.weight, cotangent, allow_unused=True)
        (plain,) = torch.autograd.grad(part._lifted, part._leaf, cotangent, retain_graph=True)
        if real is None or bool((real - plain).abs().max() > rounding * plain.abs().max()):
            raise ValueError(_other_map(part.name, part.module))
        leaves = [call.weight, *(tensor for tensor in frozen.tensors.values() if tensor.requires_grad)]
        used = torch.autograd.grad(part._graph, leaves, _generic(part.output), retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in used):
            raise ValueError(f"the weight of layer {frozen.name!r} must be used there alone, it's used further up too")
        cotangent, direction = _generic(part.output), _generic(part.weight)
        image, pulled = part.jvp(direction).double(), part.vjp(cotangent).double()  # float32 has no squares of 1e-30
        gap = (image * cotangent).sum() - (pulled * direction).sum()
    if bool(gap.abs() > math.sqrt(eps) * image.norm() * cotangent.double().norm()):
        raise ValueError(f"the derivatives of net above layer {frozen.name!r} aren't linear (do hooks change them?)")


def _no_derivative(name: str) -> str:
    """The beginning of the sentence for a network that torch can't differentiate, or not twice."""
    return f"net can't be differentiated twice above layer {name!r}"


def _other_map(name: str, module: nn.Module) -> str:
    """The sentence for a layer that isn't one."""
    kind = next(k for k in type(module).__mro__ if k.__module__.startswith("torch.nn.modules"))
    return (
        f"layer {name!r} must hand on its weight applied to its input, as {kind.__name__} does: its output's derivative in the "
        "weight is another one (a forward of its own, or a hook)"
    )


# --- a layer opened on more samples than memory holds: chunk by chunk, each run anew for each product --------------------
#
# Nothing is kept but the inputs, the outputs and the network's weights, so that memory grows with the chunk alone.  It is paid
# for in time: a product with K or K^T costs a pass of the network more, and those by the JVP its pull-back too.


@methods_anywhere
@dataclass(frozen=True, eq=False)
class LayerInChunks(_Layer):
    """A layer opened by :func:`open_in_chunks`, for a batch that is never whole in memory: ``chunk`` samples at once."""

    chunk: int
    _frozen: FrozenNetwork
    _x: Tensor

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
        chunks = self._x.split(self.chunk)
        shares: Iterable[tuple[Tensor, ...]] = [()] * len(chunks)
        if cotangent is not None:
            self._check(cotangent, self.output.shape, "cotangent")
            shares = zip(cotangent.split(self.chunk, dim=-2), strict=True)
        for x, share in zip(chunks, shares, strict=True):
            with plainly(gradients=True):
                found = product(_opened_pass(self._frozen, x)[0], *share)  # and all but the result is let go
            yield found


@with_gradients
def open_in_chunks(net: nn.Module, layer: str | nn.Module, x: Tensor, chunk: int) -> LayerInChunks:
    r"""As :func:`open_layer`, with the same numbers to rounding, in the memory of ``chunk`` samples.

    Raises what that raises, TypeError for a ``chunk`` that is no whole number, ValueError for one below 2: a sample alone can't be
    seen to depend on another.
    """
    chunk = require_whole("chunk", chunk, least=2)
    frozen, x = _frozen_layer(net, layer, x)
    weight, outputs = _open_frozen(frozen, x[:chunk]).weight, []
    for some in x.split(chunk):
        part, _ = _opened_pass(frozen, some)
        _refuse_batch(part, derivative=False)
        outputs.append(part.output)
        del part  # before the next one is made
    return LayerInChunks(frozen.name, frozen.module, weight, torch.cat(outputs), frozen.given, chunk, frozen, x)


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
            stacklevel=4,
        )
    return opened


def _flattens(net: nn.Module, layer: str | nn.Module, x: Tensor) -> bool:
    """Whether a network reads its input as one vector, so that it may take one channel of an image for an image."""
    frozen, x = _frozen_layer(net, layer, x)
    with contextlib.suppress(ValueError):
        return torch.equal(*(frozen(given, lambda call: call.out) for given in (x, x.flatten(1))))
    return False
