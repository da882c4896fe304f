"""Networks and layers that an opened layer may well get wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize


class Net(nn.Module):
    """The modules that are named, and what is done with them: by default ``b`` of the ReLU of ``a``."""

    def __init__(self, forward: Callable[[Any, Tensor], Any] | None = None, **modules: Any) -> None:
        super().__init__()
        parts = {"a": nn.Linear(4, 5), "b": nn.Linear(5, 3)} | modules
        for name, module in parts.items():
            setattr(self, name, module)
        self.run = forward or (lambda net, x: net.b(F.relu(net.a(x))))

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class Standardised(nn.Conv2d):
    """Weight standardisation (Qiao et al. 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, w / (w.std((1, 2, 3), keepdim=True) + 1e-5), self.bias)


class StandardisedWithin(nn.Conv2d):
    """The same, where a layer's plain action would be looked for."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class Unit(Cosine):
    """Rows of length 1: its values are those of a plain layer on unit inputs, its derivative isn't."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, bias=False)
        self.weight.data = F.normalize(self.weight.data, dim=-1)


class Adapted(nn.Linear):
    """A low-rank adapter within the layer: its output is still linear in the weight."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(rows, columns)
        self.down, self.up = nn.Parameter(torch.randn(2, rows)), nn.Parameter(torch.randn(columns, 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.down), self.up)


class Clipped(torch.autograd.Function):
    """A derivative that is none: not linear in the cotangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.5, 0.5)


class Once(torch.autograd.Function):
    """Can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0].cos()


class Pattern(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.tanh()


def hooked(where: str, hook: Callable[..., Any], *, pre: bool = False) -> nn.Module:
    net = Net(below=nn.Linear(4, 4))
    net.run = lambda net, x: net.b(F.relu(net.a(net.below(x))))
    module = net.get_submodule(where)
    module.register_forward_pre_hook(hook) if pre else module.register_forward_hook(hook)
    return net


def parametrised(how: Callable[[nn.Module], Any], layer: str = "a") -> nn.Module:
    net = Net()
    how(net.get_submodule(layer))
    return net


def unparametrised(net: nn.Module) -> nn.Module:
    net = copy.deepcopy(net)
    for module in net.modules():
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    return net


def images(*layers: nn.Module) -> nn.Sequential:
    """On images of 2 x 6 x 6; the first layer is opened."""
    net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2))
    net(torch.zeros(1, 2, 6, 6))
    return net


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def target_within(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    with torch.no_grad():
        target = net.b(h.relu())
    return net.b(h.sin()) * target


def branches(net: Any, x: Tensor) -> Tensor:
    """Each sample takes a path of its own."""
    h = net.a(x)
    return torch.where(h.sum(1, keepdim=True) > 0, net.b(h.relu()), net.b(h.sin()))


def routed(net: Any, x: Tensor) -> Tensor:
    """The same, by indexing, as experts are reached."""
    h = net.a(x)
    chosen = h.sum(1) > 0
    y = h.new_zeros(len(h), 3)
    y[chosen] = net.b(h[chosen].relu())
    y[~chosen] = net.b(h[~chosen].sin())
    return y


def tied_under_another_name() -> nn.Module:
    """The other name comes first in ``named_parameters``."""
    net = Net(lambda net, x: F.linear(net.a(x).relu(), net.kernel), a=nn.Linear(4, 4, bias=False))
    net.kernel = net.a.weight
    return net


def tied_layers() -> nn.Module:
    net = Net(a=nn.Linear(5, 5), b=nn.Linear(5, 5))
    net.b.weight = net.a.weight
    return net


def loose(layer: nn.Module) -> nn.Module:
    """A weight that ``parameters`` doesn't list."""
    weight = layer.weight.detach().double()
    del layer.weight
    layer.weight = weight
    return Net(a=layer)


def buffered(layer: nn.Module) -> nn.Module:
    weight = layer.weight.detach().clone()
    del layer.weight
    layer.register_buffer("weight", weight)
    return Net(a=layer)


def double(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return 2 * out


def backward_hook(net: nn.Module) -> nn.Module:
    net.b.register_full_backward_hook(lambda module, grads, _: tuple(grad.clamp(-0.1, 0.1) for grad in grads))
    return net


def above(forward: Callable[[Any, Tensor, Tensor], Any], **modules: Any) -> Callable[[], nn.Module]:
    """A function of the network, the layer's output and the input."""
    return lambda: Net(lambda net, x: forward(net, net.a(x), x), **modules)


def quantised() -> nn.Module:
    return torch.ao.nn.quantized.dynamic.Linear(5, 3)


def compiled(net: nn.Module) -> nn.Module:
    net.compile()
    return net


def spoilt(net: Net) -> nn.Module:
    with torch.no_grad():
        net.a.weight[0, 0] = float("nan")
    return net
