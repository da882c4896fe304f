"""Every kind of layer that PyTorch has, above a layer that is opened or as that layer: served, and then right, or refused."""

from __future__ import annotations

import copy

import torch
from hostile_cases import CASES, TWO, Case
from hostile_networks import Net, images
from torch import nn

ACTIVATIONS = (
    *(
        nn.CELU(0.7),
        nn.ELU(),
        nn.SELU(),
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Mish(),
        nn.Softplus(2.0),
        nn.Softsign(),
    ),
    *(nn.Tanhshrink(), nn.Hardshrink(), nn.Softshrink(0.2), nn.Hardtanh(-0.3, 0.4), nn.Hardswish(), nn.Hardsigmoid()),
    *(nn.LeakyReLU(0.2), nn.PReLU(), nn.RReLU(), nn.ReLU6(), nn.Sigmoid(), nn.LogSigmoid(), nn.Threshold(0.1, 0.5)),
    *(nn.Softmax(-1), nn.Softmin(-1), nn.LogSoftmax(-1), nn.Identity()),
)
ABOVE = (
    *(nn.RMSNorm(5), nn.LayerNorm(5, elementwise_affine=False), nn.Dropout(0.5), nn.AlphaDropout(0.5)),
    *(nn.BatchNorm1d(5), nn.BatchNorm1d(5, affine=False), nn.Unflatten(1, (1, 5)), nn.Linear(5, 5, bias=False)),
)
LAYERS = (
    *(
        nn.Conv2d(2, 4, 3, stride=2),
        nn.Conv2d(2, 4, 3, stride=(1, 3), padding=(2, 0)),
        nn.Conv2d(2, 4, (1, 5), bias=False),
    ),
    *(nn.Conv2d(2, 4, 3, padding=1, padding_mode=mode) for mode in ("circular", "replicate", "reflect")),
    *(
        nn.Conv2d(2, 4, 1),
        nn.Conv2d(2, 4, 6),
        nn.Conv2d(2, 6, 2, groups=2, stride=2),
        nn.Conv2d(2, 4, 3, padding="valid"),
    ),
)
BETWEEN = (
    *(
        nn.AvgPool2d(2),
        nn.LPPool2d(2, 2),
        nn.AdaptiveMaxPool2d(2),
        nn.MaxPool2d(2, dilation=2),
        nn.LocalResponseNorm(2),
    ),
    *(
        nn.ReflectionPad2d(1),
        nn.ZeroPad2d(1),
        nn.ConstantPad2d(1, 0.5),
        nn.Unfold(2),
        nn.PixelShuffle(2),
        nn.ChannelShuffle(2),
    ),
    *(nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Dropout2d(0.3), nn.Softmax2d()),
    *(
        nn.BatchNorm2d(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.GroupNorm(1, 4),
        nn.ConvTranspose2d(4, 2, 2),
        nn.PixelUnshuffle(2),
    ),
)
RANDOM = (nn.FractionalMaxPool2d(2, output_size=2),)


def _above(module: nn.Module) -> Case:
    once = isinstance(module, nn.Hardsigmoid)  # PyTorch has no second derivative of it
    return Case(
        lambda: Net(lambda net, x: net.b(net.m(net.a(x))).flatten(1), m=copy.deepcopy(module)),
        "differentiated twice" if once else None,
    )


def _images(*modules: nn.Module, refused: str | None = None) -> Case:
    return Case(lambda: images(*copy.deepcopy(modules)), refused, TWO, "0")


KINDS: dict[str, Case] = {
    **{f"above: {module}": _above(module) for module in (*ACTIVATIONS, *ABOVE)},
    **{f"opened: {module}": _images(module, nn.Tanh()) for module in LAYERS},
    **{f"between: {module}": _images(nn.Conv2d(2, 4, 3), module, nn.Tanh()) for module in BETWEEN},
    **{f"random: {module}": _images(nn.Conv2d(2, 4, 3), module, refused="random numbers") for module in RANDOM},
    "opened: a 1-D convolution": Case(
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3, stride=2), nn.GELU(), nn.Flatten()), None, (2, 8), "0"
    ),
    "opened: a 3-D convolution": Case(
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.GELU(), nn.Flatten()), None, (1, 3, 4, 3), "0"
    ),
    "a recurrent layer, below": Case(
        lambda: Net(lambda net, x: net.b(net.a(net.r(x)[0]).relu()).mean(1), r=nn.LSTM(4, 4, batch_first=True)),
        None,
        (3, 4),
    ),
    "a decoder's layer, above": Case(
        lambda: Net(
            lambda net, x: net.d(net.a(x), torch.ones(len(x), 2, 8, dtype=x.dtype)).flatten(1),
            a=nn.Linear(4, 8),
            d=nn.TransformerDecoderLayer(8, 2, 12, batch_first=True),
        ),
        None,
        (3, 4),
    ),
}
EVERY: dict[str, Case] = CASES | KINDS
