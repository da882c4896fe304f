"""Residual networks and transformers as people train them: written here in torch.nn; those of timm and torchvision if installed.

The step of SimCLR's loss and a product with the operator, against autograd alone, in float64 on images of 32 pixels.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sslbook.losses import batch
from sslbook.operator.covariance import covariance_operator
from sslbook.operator.inner_products import gram_weights
from sslbook.stats.checks import relative_gap

LOSS = partial(batch.nt_xent, tau=0.5)


def agrees(net: nn.Module, layers: tuple[str, ...]) -> None:
    """Opens each layer; fails where the operator is not what autograd says of the whole network."""
    net = net.double().eval()
    draw = torch.Generator().manual_seed(1)
    image = torch.randn(3, 1, 3, 32, 32, generator=draw, dtype=torch.float64)
    views = image + 0.3 * torch.randn(3, 2, 3, 32, 32, generator=draw, dtype=torch.float64)
    x = views.flatten(0, 1)
    outputs = net(x)
    mixing = -2 * gram_weights(LOSS, outputs.unflatten(0, (3, 2)))
    weights = [net.get_parameter(f"{layer}.weight") for layer in layers]
    gradients = torch.autograd.grad(LOSS(outputs.unflatten(0, (3, 2))), weights, retain_graph=True)
    for layer, weight, gradient in zip(layers, weights, gradients, strict=True):
        op = covariance_operator(net, layer, views, loss=LOSS)
        assert relative_gap(op.exact_update(), -gradient) < 1e-10, layer
        direction = torch.randn(weight.shape, generator=draw, dtype=torch.float64)

        def of_weight(w: Tensor, layer: str = layer) -> Tensor:
            found: Tensor = functional_call(net, {f"{layer}.weight": w}, (x,))
            return found

        with sdpa_kernel(SDPBackend.MATH):
            pushed = torch.autograd.functional.jvp(of_weight, weight.detach(), direction)[1]
        (image,) = torch.autograd.grad(outputs, weight, mixing @ pushed, retain_graph=True)
        assert relative_gap(op.apply(direction), image) < 1e-10, layer
        (other,) = torch.autograd.grad(outputs, weight, mixing.roll(2, 0) @ pushed, retain_graph=True)
        assert relative_gap(other, image) > 1e-2, layer


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, with a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(inputs, width, 1, bias=False), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.c = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (width, width, 4 * width))
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        if stride == 1 and inputs == 4 * width:
            self.shortcut = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.a(x)))
        h = F.relu(self.norms[1](self.b(h)))
        return F.relu(self.norms[2](self.c(h)) + self.shortcut(x), inplace=True)


def resnet50(width: int = 6) -> nn.Module:
    """ResNet-50's blocks, of another width."""
    parts: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    parts.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            parts.append(Bottleneck(channels, width * 2**stage, 2 if stage and not block else 1))
            channels = 4 * width * 2**stage
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


class Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.one, self.two = heads, nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, self.heads, -1)).movedim((2, 3), (0, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.two(x))


class ViT(nn.Module):
    def __init__(self, size: int = 24, depth: int = 4, patch: int = 8) -> None:
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, size, patch, patch), nn.Parameter(torch.randn(1, 1, size))
        self.place = nn.Parameter(torch.randn(1, 1 + (32 // patch) ** 2, size))
        self.blocks, self.norm = nn.Sequential(*(Block(size, 3) for _ in range(depth))), nn.LayerNorm(size)
        self.head = nn.Linear(size, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.place
        out: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return out


def test_a_resnet_50_in_torch_nn() -> None:
    torch.manual_seed(0)
    agrees(resnet50(), ("0", "10.b", "11.shortcut.0", "22"))


def test_a_vision_transformer_in_torch_nn() -> None:
    torch.manual_seed(0)
    agrees(ViT(), ("embed", "blocks.1.qkv", "blocks.1.mlp.2", "blocks.2.proj", "head"))
