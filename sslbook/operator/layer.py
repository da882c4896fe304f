r"""The connection: a network opened at one layer (Definition 1 of [tian2020]).

For a linear layer :math:`\tilde f_l = W_l f_{l-1}` inside any network with output :math:`f_L`,

    K_l(x) = f_{l-1}(x) \otimes J_l(x)^T,   shape (n_l n_{l-1}, n_L),   J_l = d f_L / d \tilde f_l .

Its transpose is the Jacobian of the output in the layer's weights, :math:`K_l(x)^T = \partial f_L / \partial\,
\mathrm{vec}(W_l)`, which is also how a convolution (the same weights at many positions) gets a connection.
:func:`open_layer` runs the network once and keeps what lies below; after that one product with :math:`K^T` costs one
JVP and one product with :math:`K` one VJP through the layers *above* only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from sslbook._ambient import default_settings, methods_anywhere, unwrapped, unwrapped_name, with_gradients
from sslbook.operator.frozen import frozen, held_still, in_full, sentences

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def vec(weight: Tensor) -> Tensor:
    r"""Stack columns: a weight ``(n_l, n_{l-1})`` (a convolution's is read as ``(out, in * taps)``) becomes ``(n_l n_{l-1},)``.

    >>> vec(torch.tensor([[1, 2], [3, 4]]))
    tensor([1, 3, 2, 4])
    """
    return weight.flatten(1).T.reshape(-1)


def unvec(vector: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Return the inverse of :func:`vec` for a weight of the given shape.

    An eigenvector so becomes a matrix with a row for each output of the layer, or a convolution's ``(out, in, *kernel)``.

    >>> unvec(torch.tensor([1, 3, 2, 4]), (2, 2))
    tensor([[1, 2],
            [3, 4]])
    """
    return vector.reshape(-1, shape[0]).T.reshape(shape)


def layers_of(net: nn.Module) -> dict[str, Layer]:
    """Return all layers of a network that have an operator, by name, in the order in which they are registered.

    They are the linear and convolutional ones, but not an attention's ``out_proj``, whose weights the attention uses by itself.

    >>> list(layers_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.TransformerEncoderLayer(8, 2))))
    ['0', '2.linear1', '2.linear2']
    """
    within = {id(part.out_proj) for part in net.modules() if isinstance(part, nn.MultiheadAttention)}
    return {name: part for name, part in net.named_modules() if isinstance(part, Layer) and id(part) not in within}


def find_layer(net: nn.Module, layer: str | nn.Module) -> tuple[str, Layer]:
    """Return the linear or convolutional layer that ``layer`` names (dotted, as in ``named_modules``) or is, with its name.

    Names are also found without what compiled or parallel wrappers put into them.  Raises ValueError, with the names that there
    are, for all that isn't one of :func:`layers_of`.
    """
    layers = layers_of(net)
    for name, part in layers.items():
        if part is layer or (isinstance(layer, str) and unwrapped_name(name) == unwrapped_name(layer)):
            return name, part
    there = ", ".join(map(repr, layers)) or "none"
    raise ValueError(f"layer {layer!r:.60} must be linear or convolutional and called as a module, one of {there}")


@methods_anywhere
@dataclass(frozen=True, eq=False)
class OpenedLayer:
    r"""A network opened at one layer on a fixed batch of ``B`` inputs; made by :func:`open_layer`.

    weight: the layer's weight.  below: :math:`f_{l-1}`, ``(B, ...)``.  preactivation: :math:`\tilde f_l`, ``(B, ...)``.
    output: :math:`f_L`, ``(B, n_L)``.  given: the precision in which the network has the weight.  copies: how often each
    eigenvalue comes: once an output channel where the layer is the last, :math:`K = f \otimes 1`; else 1.

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
    copies: int
    _above: Tensor  # f_L as a function of the pre-activation, its graph kept

    def jvp(self, direction: Tensor) -> Tensor:
        r"""Return ``K(x)^T vec(direction)`` for each sample, ``(B, n_L)`` or ``(k, B, n_L)``: how the outputs move with the weight.

        The direction goes through the layer, :math:`D f_{l-1}`, and what comes out through the network above: as the derivative
        of the pull-back in its cotangent (:mod:`sslbook.operator.frozen`).
        """
        layer, several = partial(_apply, self.module, self.below), direction.ndim > self.weight.ndim
        tangent = vmap(layer)(direction) if several else layer(direction)
        pulled, cotangent = self._pull_back
        (moved,) = torch.autograd.grad(pulled, cotangent, tangent, retain_graph=True, is_grads_batched=several)
        return moved

    def vjp(self, cotangent: Tensor) -> Tensor:
        r"""Return :math:`\sum_x K_l(x) c(x)` over the samples, in the weight's shape; ``(k, *shape)`` for several cotangents.

        The cotangent is pulled back through the network above, :math:`J_l(x)^T c(x)`, and then through the layer.  Of
        :math:`c = \partial L / \partial f_L` it is the gradient of a loss in the weight, of whatever the samples are weighed by.
        It is the transpose of :meth:`jvp`, :math:`\langle K c, D \rangle = \sum_x \langle c(x), K(x)^T D \rangle`: what
        :func:`verify` tests a network by.
        """
        several = cotangent.ndim > self.output.ndim
        for output, point in ((self._above, self.preactivation), self._layer):
            (cotangent,) = torch.autograd.grad(output, point, cotangent, retain_graph=True, is_grads_batched=several)
        return cotangent

    def kernel(self) -> Callable[[Tensor], Tensor]:
        r"""Return the product with the layer's tangent kernel, :math:`K(x)^T \sum_{x'} K(x') c(x')`, a function of ``c (B, n_L)``.

        That is a VJP and a JVP.  In a linear layer with more than half as many inputs as there are samples, it goes through the
        inner products of the inputs instead, without a weight: :math:`K(x)^T K(x') = \langle f(x), f(x') \rangle J(x) J(x')^T`.
        The kernel is symmetric and positive semidefinite, with the nonzero eigenvalues of :math:`\sum_x K(x) K(x)^T`.
        """
        below = self.below
        if not (isinstance(self.module, nn.Linear) and below.ndim == 2 and len(below) < 2 * below.shape[1]):
            return lambda cotangent: self.jvp(self.vjp(cotangent))
        gram, (pulled, point) = below @ below.T, self._pull_back
        return lambda c: torch.autograd.grad(pulled, point, gram @ self.pulled_back(c), retain_graph=True)[0]

    def pulled_back(self, cotangent: Tensor) -> Tensor:
        r"""Return :math:`J_l(x)^T c(x)` for each sample, flattened, ``(B, n_l)``; ``cotangent`` is ``(B, n_L)``."""
        (pulled,) = torch.autograd.grad(self._above, self.preactivation, cotangent, retain_graph=True)
        return pulled.flatten(1)

    def sample_gradients(self, cotangent: Tensor) -> Tensor:
        r"""Return ``K(x) c(x)`` for each sample by itself, ``(B, n_l n_{l-1})``; ``cotangent`` is ``(B, n_L)``.

        These are the terms of the sum in :meth:`vjp`, by one backward pass and a batched product in the layer.
        """

        def gradient(below: Tensor, row: Tensor) -> Tensor:
            pull: Any = vjp(partial(_apply, self.module, below[None]), self.weight)[1]
            return vec(pull(row[None])[0])

        found: Tensor = vmap(gradient)(self.below, self.pulled_back(cotangent).view_as(self.preactivation))
        return found

    def units(self) -> list[Tensor]:
        """Return the cotangents that pick out one output of each sample, ``n_L`` of ``(B, n_L)``: one of a row's numbers is 1."""
        picks = torch.eye(self.output.shape[1], dtype=self.output.dtype, device=self.output.device)
        return [pick.expand(self.output.shape) for pick in picks]

    def jacobian(self) -> Tensor:
        r"""Return :math:`J_l(x) = \partial f_L / \partial \tilde f_l` on flattened features, ``(B, n_L, n_l)``, by ``n_L`` VJPs."""
        return torch.stack([self.pulled_back(rows) for rows in self.units()], dim=1)

    def connections(self) -> Tensor:
        r"""Return the dense :math:`K_l(x)` of each sample, ``(B, n_l n_{l-1}, n_L)``: for small layers, and as the reference."""
        return torch.stack([self.sample_gradients(rows) for rows in self.units()], dim=-1)

    @cached_property
    def _pull_back(self) -> tuple[Tensor, Tensor]:
        r""":math:`J_l^T c` with its graph, and the cotangent ``c``: linear in it, so that its derivative is the JVP.

        The value of ``c`` doesn't matter.  This graph is what a JVP costs more than a VJP, once for all of them.
        """
        with default_settings(gradients=True):
            cotangent = torch.ones_like(self.output, requires_grad=True)
            (pulled,) = torch.autograd.grad(self._above, self.preactivation, cotangent, create_graph=True)
        return pulled, cotangent

    @cached_property
    def _layer(self) -> tuple[Tensor, Tensor]:
        """The layer's output without a bias, with its graph, and the weight again, of which it is a function: for the first VJP."""
        with default_settings(gradients=True):
            weight = self.weight.clone().requires_grad_()
            return _apply(self.module, self.below, weight), weight


def _apply(module: Layer, below: Tensor, weight: Tensor) -> Tensor:
    """Return the layer's linear action on ``below`` with another weight, without its bias, which has no part in a derivative.

    It is that of the class: a subclass may have another one, which :func:`verify` refuses.
    """
    if isinstance(module, nn.Linear):
        return nn.functional.linear(below, weight)
    kind: Any = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(module, kind))
    out: Tensor = kind._conv_forward(module, below, weight, None)
    return out


@with_gradients
def open_layer(net: nn.Module, layer: str | nn.Module, x: Tensor) -> OpenedLayer:
    r"""Run ``net`` once on ``x``, ``(B, ...)``, and keep what :math:`K_l` needs.

    layer: the name of any ``nn.Linear`` or ``nn.Conv1d/2d/3d`` of any ``torch.nn`` network in float32 or float64, or the layer
    itself.  A network in half precision is opened as the same weights in float32.  What is opened is a copy of the network as it
    is now, so that it may be trained on.

    Raises ValueError or TypeError for a layer that isn't there, and for each network of which the products would be wrong and
    look right (:func:`verify`).

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> open_layer(net, "0", torch.ones(5, 3)).jvp(torch.ones(4, 3)).shape
    torch.Size([5, 2])
    """
    net = unwrapped(net)
    name, module = find_layer(net, layer)
    net, x, given = frozen(net), in_full(x.detach()), module.weight.dtype
    for key, weight in net.get_submodule(name).named_parameters():
        weight.requires_grad_("bias" not in key)
    opened, *_ = _open(net, name, x, given)
    few = slice(None, None, max(2, -(-len(x) // 4)))  # at most four samples, and not all unless there is one
    with sentences("net must take any part of a batch, and fails on some samples", (ValueError,)):
        part, used, out = _open(net, name, x[few].flip(0), given)
    verify(opened, opened.output[few].flip(0), part, used, out)
    return opened


def numbers(net: nn.Module, layer: str | nn.Module, given: Any) -> Any:
    """A NumPy array as a tensor, floating numbers in the layer's dtype, float32 at least, and on its device; all else as it is."""
    if not isinstance(given, np.ndarray):
        return given
    tensor = torch.tensor(np.ascontiguousarray(given))
    like = in_full(find_layer(unwrapped(net), layer)[1].weight.detach())
    return tensor.to(like) if tensor.is_floating_point() else tensor


def _open(net: nn.Module, name: str, x: Tensor, given: torch.dtype) -> tuple[OpenedLayer, Tensor, Tensor]:
    """Run a frozen network once, cut at the layer: what is above sees the pre-activation as a new variable.

    With it come the weight with which the layer was called, and what it made of it, after hooks, with its graph.
    Raises for a network without a connection there: the layer is called twice (its two Jacobians would add up), or never;
    numbers of several types, as under autocast within; a batch that isn't the first axis; a weight that isn't a
    parameter, or that a layer below has, too.
    """
    module, calls, cuts = net.get_submodule(name), [], []
    assert isinstance(module, Layer)

    def cut(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], out: Tensor) -> Tensor:
        calls.append((args[0] if args else kwargs["input"], module.weight, out))
        cuts.append(out.detach().requires_grad_())
        return cuts[-1].clone()

    taken = (
        f"net can't take a batch of shape {tuple(x.shape)} and {x.dtype} (views of images alone are images[:, None])"
    )
    with module.register_forward_hook(cut, with_kwargs=True), held_still(x), sentences(taken, (Exception,)):
        output = net(x.clone())
    if len(calls) != 1:
        raise ValueError(f"layer {name!r} must be applied once, it was applied {len(calls)} times: copy it for each")
    below, weight, out = calls[0]
    if not isinstance(output, Tensor):
        raise TypeError(f"net must return one tensor, got {type(output).__name__}")
    dtypes = {tensor.dtype for tensor in (below, weight, out, output)}
    if dtypes not in ({torch.float32}, {torch.float64}):
        kinds = sorted(map(str, dtypes))
        raise TypeError(f"layer {name!r} and all above it must be of float32 or of float64, got {kinds}")
    batches = [len(tensor) if tensor.ndim else 0 for tensor in (x, below, output)]
    if len(set(batches)) > 1:
        raise ValueError(f"the first axis must be the batch in x, at the layer and in the output: {batches}")
    if below.requires_grad or not weight.requires_grad:
        raise ValueError(f"the weight of layer {name!r} must be a parameter that is used there alone")
    above = output.reshape(len(output), -1)
    last = torch.equal(cuts[0].reshape(len(above), -1), above)
    copies = len(weight) // getattr(module, "groups", 1) if last else 1
    opened = OpenedLayer(name, module, weight.detach(), below.detach(), cuts[0], above.detach(), given, copies, above)
    return opened, weight, out


def verify(opened: OpenedLayer, expected: Tensor, part: OpenedLayer, weight: Tensor, out: Tensor) -> None:
    """Raise ValueError where the products of an opened layer would not be those of the network.

    The theory needs a network :math:`f_L(x)` of one sample, in which one layer applies its weight once.  Few networks that aren't
    so look it, and products would be wrong and look right; so what they compute decides, on a handful of samples.

    part: the same network opened on a few of the samples, for which the whole batch gave ``expected``; its layer was called with
    ``weight``, and gave ``out``.  Each guard says which network it is for.  Derivatives are asked for with numbers without a
    pattern, on which two different linear maps agree by chance only.
    """
    name, eps = f"layer {part.name!r}", torch.finfo(part.output.dtype).eps
    evaluate = "if that is BatchNorm in training mode, call net.eval(): its running statistics are then held"
    cotangent, direction, of_out = (
        (0.7 * torch.arange(1, like.numel() + 1).to(like).square()).cos().view_as(like)
        for like in (part.output, part.weight, out)
    )
    with sentences(f"net can't be differentiated twice above {name}"):
        # diverged weights, views that aren't numbers, and a root or a norm at zero, whose slope is infinite
        if not all(bool(each.isfinite().all()) for each in (opened.output, part.pulled_back(cotangent))):
            raise ValueError(f"net must have finite outputs, and derivatives above {name}: some are NaN or infinite")

        # BatchNorm in training mode, and whatever else lets a sample's output depend on the others of its batch.  Below the
        # layer, outputs change with the batch: by more than half of the digits, since its size alone changes the order of sums.
        # Above it, the derivative of an output in another sample's pre-activation isn't zero, even where all samples are equal
        every_other = cotangent.clone()
        every_other[1::2] = 0
        changes = (part.output - expected).abs().max() > math.sqrt(eps) * expected.abs().max()
        if bool(changes) or bool((part.pulled_back(every_other)[1::2] != 0).any()):
            raise ValueError(f"an output of net depends on the other samples of its batch; {evaluate}")

        # a subclass with a forward of its own (cosines, quantised weights), and a hook that changes the output: the derivative
        # in the weight must be that of a plain layer of its kind on the same input
        (real,) = torch.autograd.grad(out, weight, of_out, allow_unused=True)
        (plain,) = torch.autograd.grad(*part._layer, of_out, retain_graph=True)
        rounding = 8 * eps * math.sqrt(of_out.numel() / len(plain))
        if real is None or bool((real - plain).abs().max() > rounding * plain.abs().max()):
            raise ValueError(f"{name} must apply its weight as a plain one does, without a hook on its output")

        # tied weights, as in an autoencoder whose decoder is the transposed encoder: the operator would miss the second use
        leaves = [leaf for leaf in (weight, *part.module.parameters()) if leaf.requires_grad]
        above = torch.autograd.grad(part._above, leaves, cotangent, retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in above):
            raise ValueError(f"the weight of {name} must be used there alone, and is used above: untie a copy of net")

        # gradients that a hook clips or changes on their way: a JVP is the derivative of a pull-back that is linear
        image, pulled = part.jvp(direction).double(), part.vjp(cotangent).double()
        gap = (image * cotangent).sum() - (pulled * direction).sum()
        if bool(gap.abs() > math.sqrt(eps) * image.norm() * cotangent.norm()):
            raise ValueError(f"the derivatives of net above {name} aren't linear (does a hook change them?)")


def connection(net: nn.Module, layer: str | nn.Module, x: Tensor) -> Tensor:
    r"""Return the dense connections :math:`K_l(x)` of a batch, ``(B, n_l n_{l-1}, n_L)``, of the network opened on it once.

    x: ``(B, ...)``.  A column is the gradient of one output in the weight, in the order of :func:`vec`; so
    :math:`K_l(x)^T vec(W_l) = f_L(x)` in a ReLU network without biases (Theorem 1 of [tian2020]).  It holds ``B`` times ``n_L``
    weights, and takes one backward pass for each output.  Raises what :func:`open_layer` raises.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))  # at the top the connection is the input
    >>> connection(net, "0", torch.tensor([[3.0, 4.0]])).flatten()
    tensor([3., 4.])
    """
    return open_layer(net, layer, x).connections()
