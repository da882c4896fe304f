"""What an opened layer computes is that of plain autograd, or it refuses; and it leaves the caller's things alone."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import connection_cases as reference
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from sslbook.networks.siamese import ResNet18
from sslbook.networks.small import initialize, mlp
from sslbook.operator import frozen
from sslbook.operator.covariance import covariance_operator, relative_gap
from sslbook.operator.layer import connection, layers_of, open_layer, vec


@pytest.mark.parametrize("name", reference.NETS)
def test_every_product_is_that_of_the_plain_jacobian(name: str) -> None:
    torch.manual_seed(0)
    make, shape = reference.NETS[name]
    net, x = make().double().eval(), torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)).double()
    assert layers_of(net)
    for layer in layers_of(net):
        reference.require_right(net, layer, x)
    assert torch.equal(connection(net, net.get_submodule(layer), x), open_layer(net, layer, x).connections())


def test_the_fast_double_backward_gives_the_numbers_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a ResNet, whose convolutions and BatchNorms it replaces: other nodes, the same products."""
    torch.manual_seed(0)
    net = reference.worn(ResNet18("cifar", 2).double().eval())
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = {}
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(frozen, "_FAST", {})
        opened = open_layer(net, "layer2.0.conv1", x)
        found[fast] = opened.jvp(opened.weight), opened.vjp(opened.output).flatten(1), opened.output
    assert all(relative_gap(*both) < reference.TOL for both in zip(found[True], found[False], strict=True))
    assert torch.equal(found[True][2], found[False][2])


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
        whole(lambda net, x: net.b(x, x, x)[0], "called as a module", (3, 4), "b.out_proj",
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
# fmt: on


def built(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    case = NETWORKS[name]
    net, shape = case.make().train(case.training), case.inputs
    if callable(shape):
        x = shape()
        return (net.double() if x.dtype in (torch.float64, torch.int64) else net), x
    return net.double(), torch.randn(6, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_hostile_network_is_served_right_or_refused(name: str) -> None:
    case = NETWORKS[name]
    net, x = built(name)
    if case.refused:
        with pytest.raises((ValueError, TypeError), match=case.refused):
            open_layer(net, case.layer, x)
        return
    reference.require_right(net, case.layer, x, case.plain)


def test_four_samples_are_enough_to_see_that_they_are_coupled() -> None:
    net, x = built("less the mean, below")
    with pytest.raises(ValueError, match="other samples"):
        open_layer(net, "a", x[:4])


def test_what_is_opened_is_the_network_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double().eval()
    initialize(net, 0)
    x = X.flatten(0, 1)
    opened, below = open_layer(net, "0", x), open_layer(net, "3", x)
    weight, wanted = opened.weight.clone(), open_layer(net, "0", x).connections()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for tensor in (net[3].weight, net[1].running_var, net[0].weight, x):
            tensor.mul_(2)
    net.train()
    assert torch.equal(opened.weight, weight)
    assert torch.equal(opened.connections(), wanted)
    assert relative_gap(opened.jvp(weight), wanted.mT @ vec(weight)) < reference.TOL
    assert below.vjp(below.output).isfinite().all()
    assert relative_gap(open_layer(net.eval(), "3", x).weight, net[3].weight) == 0


def test_an_operator_is_freed_when_it_is_let_go() -> None:
    """Without the cyclic collector: graphs and views are large."""
    op = covariance_operator(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), "0", X.float())
    for use in (op.exact_update, op.to_scipy, op.top_eigenpairs):
        use()
    opened = weakref.ref(op.opened)
    gc.disable()
    del op, use
    gc.enable()
    assert opened() is None


NET, X = mlp((4, 2)), torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
PAIRS: dict[str, Any] = {"loss": "info_nce", "temperature": 1.0, "clean": X[:, 0]}
CONVOLUTION = nn.Sequential(nn.Conv2d(2, 1, 2), nn.Flatten())
SILENT = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()).double()
nn.init.constant_(SILENT[0].weight, -1.0)
BAD: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    r"net can't take .*views of images alone are images\[:, None\]": (CONVOLUTION, torch.rand(3, 2, 4, 4), {}),
    "loss must be one of simple, .*, got 'infonce'": (NET, X, {"loss": "infonce"}),
    "loss='info_nce' has no use for normalize": (NET, X, PAIRS | {"clean": None, "normalize": True}),
    "clean must hold one sample for each": (NET, X, {"loss": "soft_triplet", "temperature": 1.0}),
    "for each of the 3 rows of views": (NET, X, PAIRS | {"clean": X[:2, 0]}),
    "loss='info_nce' has no use for margin": (NET, X, PAIRS | {"margin": 0.5}),
    "aren't zero: that of at least one view is": (SILENT, X, {"normalize": True}),
    "one of inner products, of outputs of any width": (NET, X, {"loss": "vicreg"}),
    "loss must map the outputs .* to one number, a tensor with its graph": (
        NET,
        X,
        {"loss": lambda z: z.detach().sum()},
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_call_is_refused_in_a_sentence(message: str) -> None:
    net, views, options = BAD[message]
    with pytest.raises((TypeError, ValueError), match=message):
        covariance_operator(net, "0", views, **options)


def test_bad_directions_and_pairs() -> None:
    net = mlp((4, 5, 3))
    with pytest.raises(ValueError, match="symmetric operators; for others use to_scipy"):
        covariance_operator(net, "0", X, normalize=True).top_eigenpairs(2)
