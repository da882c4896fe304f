"""Networks and layers that an opened layer may well get wrong, each with whether it is served, and then right, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint


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


class Cosine(nn.Linear):
    """Rows of length 1: its values are those of a plain layer on unit inputs, its derivative isn't."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, bias=False)
        self.weight.data = F.normalize(self.weight.data, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class Clipped(torch.autograd.Function):
    """A derivative that is none: not linear in the cotangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.5, 0.5)


def hooked(hook: Callable[..., Any], *, pre: bool = False) -> nn.Module:
    net = Net()
    net.a.register_forward_pre_hook(hook) if pre else net.a.register_forward_hook(hook)
    return net


def tied_layers() -> nn.Module:
    net = Net(a=nn.Linear(5, 5), b=nn.Linear(5, 5))
    net.b.weight = net.a.weight
    return net


def unparametrised(net: nn.Module) -> nn.Module:
    net = copy.deepcopy(net)
    for module in net.modules():
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    return net


def less_mean(x: Tensor) -> Tensor:
    return x - x.mean(0)


def in_place(net: Any, x: Tensor) -> Tensor:
    """The layer's input is changed when the layer has read it."""
    h = x * 2
    y = net.a(h)
    return y + h.mul_(2)


class Case(NamedTuple):
    """make: the network.  refused: what the sentence says, or ``None``: it is served.  inputs: the shape of a sample, or a batch.

    plain: the same network without parametrisations, for the reference.  training: not put in ``eval`` mode.
    """

    make: Callable[[], nn.Module]
    refused: str | None = None
    inputs: tuple[int, ...] | Callable[[], Tensor] = (4,)
    layer: str = "a"
    plain: Callable[[nn.Module], nn.Module] = copy.deepcopy
    training: bool = False


def whole(forward: Callable[[Any, Tensor], Any], *case: Any, **modules: nn.Module) -> Case:
    """A function of the network and the input."""
    return Case(lambda: Net(forward, **copy.deepcopy(modules)), *case)


def above(forward: Callable[[Any, Tensor, Tensor], Any], *case: Any, **modules: nn.Module) -> Case:
    """A function of the network, the layer's output and the input."""
    return whole(lambda net, x: forward(net, net.a(x), x), *case, **modules)


ONCE, ELSEWHERE, OTHER, COUPLED = (
    "applied (0|2) times",
    "used there alone",
    "must apply its weight",
    "other samples|any part",
)
NORM = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))

# fmt: off
NETWORKS: dict[str, Case] = {
    # --- the weight, used elsewhere
    "tied autoencoder": above(lambda net, h, x: F.linear(h.relu(), net.a.weight.T), ELSEWHERE),
    "tied to a layer below": Case(tied_layers, ELSEWHERE, (5,), "b"),
    "one module in two places": Case(lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2), ONCE, layer="0"),
    "never applied": whole(lambda net, x: net.b(x[:, [0, 1, 2, 3, 0]]), ONCE),
    "attention's own projection":
        whole(lambda net, x: net.b(x, x, x)[0], "its parent applies by itself", (3, 4), "b.out_proj",
              b=nn.MultiheadAttention(4, 2, batch_first=True)),
    "its input changed later": whole(in_place, "differentiated twice", a=nn.Linear(4, 4)),
    "the batch moved": above(lambda net, h, x: net.b(h).T, "first axis must be the batch"),
    # --- layers that are none
    "cosine": whole(lambda net, x: net.b(net.a(F.normalize(x)).tanh()), OTHER, a=Cosine(4, 5)),
    # --- hooks
    "hook that doubles": Case(lambda: hooked(lambda m, i, o: 2 * o), OTHER),
    "pre-hook that doubles": Case(lambda: hooked(lambda m, i: (2 * i[0],), pre=True)),
    "gradients clipped": above(lambda net, h, x: net.b(Clipped.apply(h)), "aren't linear"),
    # --- parametrisations
    "weight norm": Case(lambda: Net(a=parametrizations.weight_norm(nn.Linear(4, 5))), plain=unparametrised),
    "parametrised and tied": above(lambda net, h, x: F.linear(h.relu(), net.a.weight.T), ELSEWHERE,
        a=parametrizations.weight_norm(nn.Linear(4, 5))),
    # --- samples that see each other
    "less the mean, below": whole(lambda net, x: net.b(net.a(less_mean(x)).tanh()), COUPLED),
    "less the mean of equal samples":
        above(lambda net, h, x: less_mean(net.b(h)), "other samples", lambda: torch.ones(6, 4, dtype=torch.float64)),
    "batch norm in training": Case(lambda: Net(b=copy.deepcopy(NORM)), "running statistics", training=True),
    "batch norm in eval": Case(lambda: Net(b=copy.deepcopy(NORM))),
    "the batch's size decides": above(lambda net, h, x: net.b(h.relu() if len(x) > 4 else h.sin()), COUPLED),
    "a batch of one size": above(lambda net, h, x: net.b(h.view(6, 5)), "any part"),
    # --- chance
    "noise": above(lambda net, h, x: net.b(h + 1e-9 * torch.randn_like(h)), "random numbers.*call net.eval"),
    # --- paths
    "detach within": above(lambda net, h, x: net.b(h * h.sigmoid().detach())),
    "parallel branches": above(lambda net, h, x: net.b(h.relu()) + net.c(x).tanh(), c=nn.Linear(4, 3)),
    "changed in place when it is needed": above(lambda net, h, x: net.b(h.tanh().mul_(2)), "differentiated twice"),
    "checkpointed": above(lambda net, h, x: checkpoint(net.b, h, use_reentrant=False), "checkpointing"),
    "generated weights": above(lambda net, h, x: torch.einsum("bi,bij->bj", x, h[:, :4, None] * h[:, None])),
    # --- kinds of networks
    "called by a keyword": whole(lambda net, x: net.b(net.a(input=x).tanh())),
    "fused attention": whole(lambda net, x: F.scaled_dot_product_attention(*net.a(x).chunk(3, -1), is_causal=True), None, (3, 4),
        a=nn.Linear(4, 12)),
    "embedding below": whole(lambda net, x: net.b(net.a(net.e(x)).relu()).mean(1), None, lambda: torch.arange(15).view(5, 3) % 9,
        e=nn.Embedding(9, 4)),
    "flattened over the batch": whole(lambda net, x: net.b(net.a(x.flatten(0, 1))).view(len(x), -1), "first axis", (3, 4)),
    # --- outputs and numbers
    "several outputs": above(lambda net, h, x: (net.b(h), h), "one tensor, got tuple"),
    "autocast within": whole(torch.autocast("cpu", torch.bfloat16)(lambda net, x: net.b(net.a(x))), "float32 or of float64",
        lambda: torch.ones(4, 4)),
    "a slope that isn't finite": above(lambda net, h, x: (net.b(h) - net.b(h).detach()).abs().sqrt(), "finite"),
    "batch norm without an affine map": above(lambda net, h, x: net.b(net.m(h)), m=nn.BatchNorm1d(5, affine=False)),
}
