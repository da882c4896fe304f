r"""The connection: a network opened at one layer (Definition 1 of [tian2020]).

For a linear layer :math:`\tilde f_l = W_l f_{l-1}` inside any network with output :math:`f_L`,

    K_l(x) = f_{l-1}(x) \otimes J_l(x)^T,   shape (n_l n_{l-1}, n_L),   J_l = d f_L / d \tilde f_l .

Its transpose is the Jacobian of the output in the layer's weights, :math:`K_l(x)^T = \partial f_L / \partial\,
\mathrm{vec}(W_l)`, which is also how a convolution (the same weights at many positions) gets a connection.
:func:`open_layer` runs the network once and keeps what lies below; after that one product with :math:`K^T` costs one
JVP and one product with :math:`K` one VJP through the layers *above* only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sslbook.arguments import nearest

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


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
    for name, module in candidates.items():
        if name == layer or module is layer:
            return name, module
    found = dict(net.named_modules()).get(layer) if isinstance(layer, str) else layer
    names = ", ".join(repr(name) for name in candidates) or "none"
    if found is not None:
        raise TypeError(
            f"layer must be linear or convolutional and part of the network, got {type(found).__name__}; there are {names}"
        )
    near = nearest(layer, candidates)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"layer {layer!r} isn't in the network{hint}; its linear and convolutional layers are {names}")


def _refuse_coupling(net: nn.Module) -> None:
    """K(x) must be a function of one sample: BatchNorm and dropout in training mode are not."""
    for name, module in net.named_modules():
        coupled = isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        )
        rate = {nn.modules.dropout._DropoutNd: "p", nn.MultiheadAttention: "dropout", nn.RNNBase: "dropout"}
        random = isinstance(module, nn.RReLU) or any(
            isinstance(module, kind) and getattr(module, key) > 0 for kind, key in rate.items()
        )
        if coupled or (random and module.training):
            raise ValueError(
                f"{type(module).__name__} {name!r} is in training mode, so an output depends on the other samples or on chance; "
                "call net.eval() first"
            )


def _layer_map(module: Layer, below: Tensor, weight: Tensor) -> Tensor:
    """The layer's linear action with another weight and no bias."""
    if isinstance(module, nn.Linear):
        return nn.functional.linear(below, weight)
    out: Tensor = module._conv_forward(below, weight, None)
    return out


class _Conv(torch.autograd.Function):
    """A convolution whose pull-back to the input is written as a transposed convolution.

    PyTorch's double backward of a convolution also forms the weight's gradient, wanted or not: two thirds of the time of a JVP.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.size, ctx.geometry = inputs[0].shape[2:], inputs[3:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.geometry
        # the strides may not reach the last rows of the input: output_padding gives them back
        rest = [
            n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, m, k, s, p, d in zip(
                ctx.size, grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
            )
        ]
        pulled = torch.convolution(grad, weight, None, stride, padding, dilation, True, rest, groups)
        return pulled, None, None, None, None, None, None


class _PlainConvolutions(TorchFunctionMode):
    """Sends every convolution of a forward pass through :class:`_Conv`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        axes = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}.get(func)
        call = dict(zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, strict=False))
        call |= kwargs or {}
        if axes is None or isinstance(call.get("padding"), str) or call["input"].ndim != axes + 2:
            return func(*args, **(kwargs or {}))

        def full(value: int | Sequence[int]) -> list[int]:
            return [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)

        geometry = [full(call.get(key, default)) for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))]
        return _Conv.apply(call["input"], call["weight"], call.get("bias"), *geometry, call.get("groups", 1))


@dataclass(frozen=True, eq=False)
class OpenedLayer:
    r"""A network opened at one layer on a fixed batch of ``B`` inputs; made by :func:`open_layer`.

    weight: the layer's weight, detached.  below: :math:`f_{l-1}`, ``(B, ...)``.  preactivation: :math:`\tilde f_l`, ``(B, ...)``.
    output: :math:`f_L`, ``(B, n_L)``, detached.
    """

    name: str
    module: Layer
    weight: Tensor
    below: Tensor
    preactivation: Tensor
    output: Tensor
    _leaf: Tensor  # the weight again, and the layer's output as a function of it
    _lifted: Tensor
    _graph: Tensor  # f_L as a function of the pre-activation, its graph kept
    _dummy: Tensor  # zero cotangent; _pullback is linear in it, so its derivative in it is the JVP
    _pullback: Tensor

    @property
    def size(self) -> int:
        """Number of weights, ``n_l * n_{l-1}``."""
        return self.weight.numel()

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
        down = self._above_vjp(cotangent, batched)
        (out,) = torch.autograd.grad(self._lifted, self._leaf, down, retain_graph=True, is_grads_batched=batched)
        return out

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
        if cotangent.shape != self.output.shape:
            raise ValueError(f"cotangent must have shape {tuple(self.output.shape)}, got {tuple(cotangent.shape)}")
        down = self._above_vjp(cotangent, batched=False)
        out: Tensor = vmap(self._sample_pull)(self.below, down)
        return out

    def pulled_back(self, cotangent: Tensor) -> Tensor:
        r""":math:`J_l(x)^T c(x)` for each sample, flattened, ``(B, n_l)``; ``cotangent`` is ``(B, n_L)``."""
        self._check(cotangent, self.output.shape, "cotangent")
        return self._above_vjp(cotangent, batched=False).flatten(1)

    def _sample_pull(self, below: Tensor, row: Tensor) -> Tensor:
        """One sample's gradient in the weight, as a vector, from its gradient in the pre-activation."""
        pull: Callable[[Tensor], tuple[Tensor]] = vjp(
            lambda w: _layer_map(self.module, below[None], w)[0], self.weight
        )[1]
        return vec(pull(row)[0])

    def _above_jvp(self, tangent: Tensor, batched: bool) -> Tensor:
        (out,) = torch.autograd.grad(self._pullback, self._dummy, tangent, retain_graph=True, is_grads_batched=batched)
        return out

    def _above_vjp(self, cotangent: Tensor, batched: bool) -> Tensor:
        (down,) = torch.autograd.grad(
            self._graph, self.preactivation, cotangent, retain_graph=True, is_grads_batched=batched
        )
        return down

    def _check(self, given: Tensor, wanted: torch.Size, what: str) -> None:
        if given.shape != wanted and given.shape[1:] != wanted:
            axes = ", ".join(map(str, wanted))
            raise ValueError(f"{what} must have shape ({axes}) or (k, {axes}), got {tuple(given.shape)}")
        if given.dtype != self.weight.dtype:
            raise TypeError(f"{what} must be {self.weight.dtype} like the layer's weight, got {given.dtype}")


def open_layer(net: nn.Module, layer: str | nn.Module, x: Tensor) -> OpenedLayer:
    r"""Run ``net`` once on ``x`` (``(B, ...)``) and keep what :math:`K_l` needs.

    ``layer`` names any ``nn.Linear`` or ``nn.Conv1d/2d/3d`` of any ``torch.nn`` network.  The JVP through the upper layers is
    taken as the derivative of the (linear) pull-back in its cotangent, on a graph recorded once: no forward pass is repeated.

    Raises ValueError if the layer isn't there, is applied more than once, shares its weight with another, or if samples influence
    each other (BatchNorm in training mode, dropout); TypeError if it is neither linear nor convolutional.
    """
    name, module = find_layer(net, layer)
    _refuse_coupling(net)
    sharing = [
        other for other, m in net.named_modules() if m is not module and getattr(m, "weight", 0) is module.weight
    ]
    if sharing:
        raise ValueError(f"layer {name!r} must have a weight of its own, it shares it with {sharing[0]!r}")
    calls: list[tuple[Tensor, int, Tensor]] = []

    def cut(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], out: Tensor) -> Tensor:
        below = (args[0] if args else kwargs["input"]).detach()
        calls.append((below, below._version, out.detach().requires_grad_(True)))
        return calls[-1][2].clone()  # a node of its own, which the modules above may change in place

    frozen = {key: value.detach() for key, value in [*net.named_parameters(), *net.named_buffers()]}
    handle = module.register_forward_hook(cut, with_kwargs=True)
    try:
        # the fused attention kernels can't be differentiated twice
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), _PlainConvolutions():
            output = functional_call(net, frozen, (x.detach(),))
    finally:
        handle.remove()
    if len(calls) != 1:
        raise ValueError(f"layer {name!r} must be applied once in a forward pass, it was applied {len(calls)} times")
    below, version, preactivation = calls[0]
    if below._version != version:
        raise ValueError(f"the input of layer {name!r} is changed in place further up: use inplace=False there")
    if not isinstance(output, Tensor):
        raise TypeError(f"net must return one tensor, got {type(output).__name__}")
    batches = [t.shape[0] if t.ndim else 0 for t in (x, below, output)]
    if len(set(batches)) != 1:
        raise ValueError(
            "the first axis must be the batch throughout: {} inputs, {} at the layer, {} out".format(*batches)
        )
    if not output.requires_grad:
        raise ValueError(f"the output doesn't depend on layer {name!r} in a way that can be differentiated")
    with torch.enable_grad():
        graph = output.reshape(len(output), -1)
        dummy = torch.zeros_like(graph, requires_grad=True)
        (pullback,) = torch.autograd.grad(graph, preactivation, dummy, create_graph=True)
        leaf = module.weight.detach().requires_grad_(True)
        lifted = _layer_map(module, below, leaf)
    return OpenedLayer(
        name,
        module,
        module.weight.detach(),
        below,
        preactivation,
        graph.detach(),
        _leaf=leaf,
        _lifted=lifted,
        _graph=graph,
        _dummy=dummy,
        _pullback=pullback,
    )


def connection(net: nn.Module, layer: str | nn.Module, x: Tensor) -> Tensor:
    r"""Dense connections :math:`K_l(x)` of a batch, ``(B, n_l n_{l-1}, n_L)``: ``open_layer(net, layer, x).connections()``."""
    return open_layer(net, layer, x).connections()
