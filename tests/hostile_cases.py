"""Networks that an opened layer may well get wrong, each with whether it is served, and then right, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from hostile_networks import (
    Adapted,
    Clipped,
    Cosine,
    Net,
    Once,
    Pattern,
    Standardised,
    StandardisedWithin,
    Unit,
    above,
    backward_hook,
    branches,
    buffered,
    centred,
    compiled,
    double,
    hooked,
    images,
    loose,
    parametrised,
    quantised,
    routed,
    spoilt,
    target_within,
    tied_layers,
    tied_under_another_name,
    unparametrised,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from sslbook.normalization import BatchNorm


def transformer() -> Net:
    return Net(
        lambda net, x: net.c(net.b(net.a(x))).flatten(1),
        a=nn.Linear(4, 8),
        b=nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
        c=nn.Linear(8, 2),
    )


Make = Callable[[], nn.Module]


class Case(NamedTuple):
    """make: the network.  refused: what the sentence says, or ``None``: it is served.  inputs: the shape of a sample, or a batch.

    plain: the same network without parametrisations, for the reference.  training: not put in ``eval`` mode.
    """

    make: Make
    refused: str | None = None
    inputs: tuple[int, ...] | Callable[[], Tensor] = (4,)
    layer: str = "a"
    plain: Callable[[nn.Module], nn.Module] | None = None
    training: bool = False


ELSEWHERE, OTHER, COUPLED = "used there alone", "its weight applied to its input", "other samples|any part"
TWO = (2, 6, 6)
CASES: dict[str, Case] = {
    # --- the weight, used elsewhere
    "tied autoencoder": Case(above(lambda net, h, x: F.linear(h.relu(), net.a.weight.T)), ELSEWHERE),
    "divided by the weight's norm": Case(above(lambda net, h, x: net.b(h) / net.a.weight.norm()), ELSEWHERE),
    "divided by its norm, held fixed": Case(above(lambda net, h, x: net.b(h) / net.a.weight.norm().detach())),
    "the weight below": Case(lambda: Net(lambda net, x: net.b(net.a(x * net.a.weight.norm()))), ELSEWHERE),
    "tied under another name": Case(tied_under_another_name, ELSEWHERE),
    "tied layers": Case(tied_layers, "shares it with 'b'", (5,)),
    "convolution tied to one above": Case(
        above(
            lambda net, h, x: F.conv2d(h.relu(), net.a.weight, padding=1).flatten(1), a=nn.Conv2d(2, 2, 3, padding=1)
        ),
        ELSEWHERE,
        TWO,
    ),
    "called past its hooks": Case(above(lambda net, h, x: h + net.a.forward(x.sin())), ELSEWHERE),
    "used twice": Case(above(lambda net, h, x: net.a(h), a=nn.Linear(4, 4)), "applied 2 times"),
    "one module in two places": Case(lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2), "applied 2 times", layer="0"),
    "its bias elsewhere": Case(above(lambda net, h, x: net.b(h.relu()) * net.a.bias.sum())),
    "another layer, twice": Case(above(lambda net, h, x: net.b(net.b(h).sin()), b=nn.Linear(5, 5))),
    # --- layers that are none
    "weight-standardised convolution": Case(lambda: images(Standardised(2, 3, 3)), OTHER, TWO, "0"),
    "standardised within": Case(lambda: images(StandardisedWithin(2, 3, 3)), OTHER, TWO, "0"),
    "cosine": Case(lambda: Net(a=Cosine(4, 5)), OTHER),
    "cosine of unit rows": Case(lambda: Net(lambda net, x: net.b(net.a(F.normalize(x)).tanh()), a=Unit(4, 5)), OTHER),
    "adapter within the layer": Case(lambda: Net(a=Adapted(4, 5))),
    "a weight that is no parameter": Case(lambda: loose(nn.Linear(4, 5)), "must be a parameter"),
    "a weight that is a buffer": Case(lambda: buffered(nn.Linear(4, 5))),
    "bilinear": Case(
        lambda: Net(lambda net, x: net.a(x, x), a=nn.Bilinear(4, 4, 3)), "must be linear or convolutional"
    ),
    "transposed convolution": Case(lambda: images(nn.ConvTranspose2d(2, 3, 3)), "must be linear", TWO, "0"),
    # --- hooks
    "hook that doubles": Case(lambda: hooked("a", double), OTHER),
    "hook that mixes samples": Case(lambda: hooked("a", lambda m, i, o: o - o.mean(0)), f"{COUPLED}|{OTHER}"),
    "hook that adds": Case(lambda: hooked("a", lambda m, i, o: o + 1)),
    "hook that reshapes": Case(lambda: hooked("a", lambda m, i, o: o.sum(1, keepdim=True).expand(-1, 5)), OTHER),
    "hook that watches": Case(lambda: hooked("a", lambda m, i, o: None)),
    "pre-hook that doubles": Case(lambda: hooked("a", lambda m, i: (2 * i[0],), pre=True)),
    "hook above": Case(lambda: hooked("b", double)),
    "hook below": Case(lambda: hooked("below", double)),
    "hook on the whole": Case(lambda: hooked("", double)),
    "gradients clipped": Case(above(lambda net, h, x: net.b(Clipped.apply(h))), "aren't linear"),
    "gradients clipped by a hook": Case(lambda: backward_hook(Net()), "aren't linear"),
    "differentiable once": Case(above(lambda net, h, x: net.b(Once.apply(h))), "differentiated"),
    "differentiable once, beside a path": Case(
        above(lambda net, h, x: net.b(Once.apply(h) + h)), "linear|differentiated"
    ),
    # --- parametrisations
    "weight norm": Case(lambda: parametrised(parametrizations.weight_norm), plain=unparametrised),
    "spectral norm": Case(lambda: parametrised(parametrizations.spectral_norm), plain=unparametrised),
    "orthogonal": Case(lambda: parametrised(parametrizations.orthogonal), plain=unparametrised),
    "parametrised by tanh": Case(
        lambda: parametrised(lambda a: parametrize.register_parametrization(a, "weight", Pattern())),
        plain=unparametrised,
    ),
    "parametrised above": Case(lambda: parametrised(parametrizations.spectral_norm, "b"), plain=unparametrised),
    "parametrised and tied": Case(
        above(lambda net, h, x: F.linear(h.relu(), net.a.weight.T), a=parametrizations.weight_norm(nn.Linear(4, 5))),
        ELSEWHERE,
    ),
    "pruned": Case(
        lambda: parametrised(lambda a: prune.l1_unstructured(a, "weight", 0.5)),
        plain=lambda net: (prune.remove(net.a, "weight"), net)[1],
    ),
    # --- samples that see each other
    "less the batch's mean": Case(above(lambda net, h, x: net.b(centred(h))), COUPLED),
    "less the mean, at the end": Case(above(lambda net, h, x: centred(net.b(h.tanh()))), COUPLED),
    "less the mean, below": Case(lambda: Net(lambda net, x: net.b(net.a(centred(x)).tanh())), COUPLED),
    "less the mean of equal samples": Case(
        above(lambda net, h, x: centred(net.b(h))), "other samples", lambda: torch.ones(6, 4, dtype=torch.float64)
    ),
    "shuffled within the batch": Case(above(lambda net, h, x: net.b(h.roll(1, 0))), COUPLED),
    "attention across the batch": Case(above(lambda net, h, x: net.b((h @ h.T).softmax(1) @ h)), COUPLED),
    "functional batch norm": Case(above(lambda net, h, x: net.b(F.batch_norm(h, None, None, training=True))), COUPLED),
    "batch norm in training": Case(
        lambda: Net(b=nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))), "running statistics held", training=True
    ),
    "batch norm in eval": Case(lambda: Net(b=nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)))),
    "the book's batch norm in training": Case(
        lambda: Net(b=nn.Sequential(BatchNorm(5), nn.Linear(5, 3))), "running statistics held", training=True
    ),
    "the book's batch norm in eval": Case(lambda: Net(b=nn.Sequential(BatchNorm(5), nn.Linear(5, 3)))),
    "the batch's size decides": Case(above(lambda net, h, x: net.b(h.relu() if len(x) > 4 else h.sin())), COUPLED),
    "a batch of one size": Case(above(lambda net, h, x: net.b(h.view(6, 5))), "any part"),
    # --- chance
    "dropout as a module": Case(
        lambda: Net(b=nn.Sequential(nn.Dropout(0.1), nn.Linear(5, 3))), "call net.eval", training=True
    ),
    "dropout as a function": Case(above(lambda net, h, x: net.b(F.dropout(h, 1e-3))), "random numbers"),
    "dropout in eval": Case(lambda: Net(b=nn.Sequential(nn.Dropout(0.1), nn.Linear(5, 3)))),
    "noise": Case(above(lambda net, h, x: net.b(h + 1e-9 * torch.randn_like(h))), "random numbers"),
    "noise on the input": Case(lambda: Net(lambda net, x: net.b(net.a(x + torch.randn_like(x)))), "random numbers"),
    # --- paths
    "no_grad within": Case(lambda: Net(target_within)),
    "detach within": Case(above(lambda net, h, x: net.b(h * h.sigmoid().detach()))),
    "all under no_grad": Case(lambda: Net(torch.no_grad()(lambda net, x: net.b(net.a(x)))), "doesn't depend"),
    "output independent of the layer": Case(above(lambda net, h, x: net.b(x[:, [0, 1, 2, 3, 0]])), "doesn't depend"),
    "parallel branches": Case(above(lambda net, h, x: net.b(h.relu()) + net.c(x).tanh(), c=nn.Linear(4, 3))),
    "skip connection": Case(above(lambda net, h, x: x + h.relu(), a=nn.Linear(4, 4))),
    "branches by sample": Case(lambda: Net(branches)),
    "experts by index": Case(lambda: Net(routed)),
    "in-place ReLU": Case(
        above(lambda net, h, x: net.b(h), b=nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3), nn.ELU(inplace=True)))
    ),
    "changed in place when it is needed": Case(
        above(lambda net, h, x: net.b(h.relu()), b=nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3))),
        "differentiated.*inplace",
    ),
    "checkpointed above": Case(above(lambda net, h, x: checkpoint(net.b, h, use_reentrant=False)), "checkpointing"),
    "checkpointed, the old way": Case(
        above(lambda net, h, x: checkpoint(net.b, h, use_reentrant=True)), "differentiated"
    ),
    "generated weights": Case(above(lambda net, h, x: torch.einsum("bi,bij->bj", x, h[:, :4, None] * h[:, None]))),
    "a generated convolution": Case(
        above(
            lambda net, h, x: torch.cat(
                [F.conv1d(x[i, None, None], h[i].view(1, 1, 5), padding=2)[0] for i in range(len(x))]
            )
        )
    ),
    # --- kinds of layers above and below
    "group norm": Case(lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.GELU()), None, TWO, "0"),
    "layer norm": Case(lambda: Net(b=nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)))),
    "instance norm, strided": Case(
        lambda: images(nn.Conv2d(2, 4, 2, 3), nn.InstanceNorm2d(4), nn.ReLU()), None, TWO, "0"
    ),
    "grouped, dilated": Case(lambda: images(nn.Conv2d(2, 4, 2, dilation=2, groups=2), nn.Tanh()), None, TWO, "0"),
    "same padding, reflected": Case(
        lambda: images(nn.Conv2d(2, 4, 2, padding="same", padding_mode="reflect"), nn.Tanh()), None, TWO, "0"
    ),
    "channels last": Case(
        lambda: images(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 8, 3), nn.ReLU()).to(memory_format=torch.channels_last),
        None,
        TWO,
        "0",
    ),
    "pooling": Case(lambda: images(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)), None, TWO, "0"),
    "tokens": Case(above(lambda net, h, x: net.b(h.relu()).mean(1)), None, (6, 4)),
    "a transformer's layer": Case(
        transformer,
        None,
        (3, 4),
    ),
    "within a transformer's layer": Case(
        transformer,
        None,
        (3, 4),
        "b.linear1",
    ),
    "attention's own projection": Case(
        lambda: Net(lambda net, x: net.b(x, x, x)[0], b=nn.MultiheadAttention(4, 2, batch_first=True)),
        "applied 0 times",
        (3, 4),
        "b.out_proj",
    ),
    "fused attention": Case(
        lambda: Net(
            lambda net, x: F.scaled_dot_product_attention(*net.a(x).chunk(3, -1), is_causal=True), a=nn.Linear(4, 12)
        ),
        None,
        (3, 4),
    ),
    "recurrent above": Case(above(lambda net, h, x: net.b(h)[0], b=nn.GRU(5, 3, batch_first=True)), None, (4, 4)),
    "embedding below": Case(
        lambda: Net(lambda net, x: net.b(net.a(net.e(x)).relu()).mean(1), e=nn.Embedding(9, 4)),
        None,
        lambda: torch.arange(15).view(5, 3) % 9,
    ),
    "flattened over the batch": Case(
        lambda: Net(lambda net, x: net.b(net.a(x.flatten(0, 1)).relu()).view(len(x), -1)),
        "first axis must be the batch",
        (3, 4),
    ),
    "unbatched": Case(lambda: Net(lambda net, x: net.b(net.a(x).relu()).sum()), "first axis must be the batch"),
    "images out": Case(lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.Tanh(), nn.Conv2d(2, 1, 2)), None, TWO, "0"),
    # --- outputs and numbers
    "several outputs": Case(above(lambda net, h, x: (net.b(h), h)), "one tensor, got tuple"),
    "outputs by name": Case(above(lambda net, h, x: {"z": net.b(h)}), "one tensor, got dict"),
    "complex": Case(above(lambda net, h, x: torch.fft.fft(net.b(h))), "float32 or of float64.*complex128"),
    "complex within": Case(above(lambda net, h, x: torch.fft.fft(net.b(h)).abs())),
    "complex weights": Case(lambda: Net(a=nn.Linear(4, 5, dtype=torch.complex64)), "torch says|can't take x"),
    "whole numbers out": Case(above(lambda net, h, x: net.b(h).argmax(1)), "float32 or of float64"),
    "another precision above": Case(
        above(lambda net, h, x: F.linear(h.float(), torch.ones(3, 5))), "float32 or of float64"
    ),
    "bfloat16 for a network in another precision": Case(Net, "can't take x", lambda: torch.ones(4, 4).bfloat16()),
    "bfloat16 within": Case(
        lambda: Net(lambda net, x: net.b(net.a(x).bfloat16()), b=nn.Linear(5, 3).bfloat16()), "can't take x"
    ),
    "autocast within": Case(
        lambda: Net(torch.autocast("cpu", torch.bfloat16)(lambda net, x: net.b(net.a(x)))),
        "float32 or of float64",
        lambda: torch.ones(4, 4),
    ),
    "a weight that isn't a number": Case(lambda: spoilt(Net()), "finite"),
    "a slope that isn't finite": Case(above(lambda net, h, x: (net.b(h) - net.b(h).detach()).abs().sqrt()), "finite"),
    # --- modules of other kinds
    "wrapped in DataParallel": Case(lambda: nn.DataParallel(Net()), "DataParallel", layer="module.a"),
    "scripted": Case(
        lambda: torch.jit.trace(nn.Sequential(nn.Linear(4, 3)), torch.ones(2, 4)), "must be linear", layer="0"
    ),
    "scripted above": Case(lambda: Net(b=torch.jit.trace(nn.Linear(5, 3), torch.ones(2, 5))), "compiled"),
    "compiled": Case(lambda: compiled(Net()), "compiled"),
    "lazy": Case(lambda: Net(b=nn.LazyLinear(3)), "no shape yet"),
    "on meta": Case(lambda: Net(b=nn.Linear(5, 3, device="meta")), "device meta"),
    "quantised above": Case(lambda: Net(b=quantised()), "differentiated", lambda: torch.ones(4, 4)),
}
