r"""ResNet-18 without its classifier, for images of 32 pixels and of 96.

Four stages of two blocks; a block is two 3x3 convolutions with BatchNorm, and adds its input to its output.  The stages have
``width``, ``2 width``, ``4 width`` and ``8 width`` channels, and each but the first halves the image; the last maps are averaged
over the image, so that a representation has ``8 width`` numbers (He et al. 2016; 512 of them at the standard width of 64).

=======  ==========================================================  ==============================================
stem     what stands before the stages                               used by [tian2020] and [tian2021iclr] for
=======  ==========================================================  ==============================================
cifar    3x3 convolution, stride 1, and no pooling                   CIFAR-10 (Chen et al. 2020, Appendix B.9)
stl      7x7 convolution, stride 2, then 3x3 max-pool, stride 2      STL-10, as ResNet-18 is for ImageNet
=======  ==========================================================  ==============================================

Parameters and buffers have the names of torchvision's ``resnet18`` (``layer1.0.conv1.weight``, …), so that weights move
between the two by ``load_state_dict``.  Memory format: a module in ``torch.channels_last`` takes its images along;
:func:`sslbook.training.run.parts.layout_of` says where that is safe.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslbook.networks.batchnorm import BatchNorm
from sslbook.runtime.arguments import require_one_of, require_whole

STEMS = ("cifar", "stl")


class Block(nn.Module):
    r"""``relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))``: two 3x3 convolutions, the first with ``stride``.

    ``(N, below, H, W) -> (N, above, H/stride, W/stride)``.  The shortcut is the identity, or a 1x1 convolution and BatchNorm
    where the shape changes.
    """

    def __init__(self, below: int, above: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(below, above, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(above)
        self.conv2 = nn.Conv2d(above, above, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(above)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or below != above:
            self.downsample = nn.Sequential(
                nn.Conv2d(below, above, 1, stride=stride, bias=False), nn.BatchNorm2d(above)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """Map images ``(N, channels, H, W)`` to representations ``(N, 8 width)``; raises ValueError for bad arguments."""

    def __init__(self, stem: str = "cifar", width: int = 64, channels: int = 3) -> None:
        super().__init__()
        require_shape(stem, width, channels)
        self.stem, self.features = stem, 8 * width
        if stem == "cifar":
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the representations of a batch."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.stem == "stl":
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


def _stage(below: int, above: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(below, above, stride), Block(above, above, 1))


LARGEST = 2**16
"""The most channels or units of a layer: far above what is trained, and far below where sizes overflow."""


def require_shape(stem: str, width: int, channels: int) -> None:
    """Raises ValueError unless a :class:`ResNet18` can be built of these."""
    require_one_of("stem", stem, STEMS)
    for name, size in (("width", width), ("channels", channels)):
        require_whole(name, size, least=1, most=LARGEST)


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator) -> None:
    r"""Draw all weights anew from ``generator``, which is on the CPU, and reset what BatchNorm has counted.

    Convolutions: normal, of variance :math:`2/\text{fan-out}`, as torchvision has them; the papers' 3x3 stem alone keeps PyTorch's
    default, uniform on :math:`\pm 1/\sqrt{\text{fan-in}}`, because the released code puts it in after torchvision's draw.
    Linear layers: PyTorch's default, weights and biases uniform on :math:`\pm 1/\sqrt{\text{fan-in}}`.
    """
    default = {part.conv1 for part in module.modules() if isinstance(part, ResNet18) and part.stem == "cifar"}
    for part in module.modules():
        if isinstance(part, nn.Linear) or part in default:
            bound = 1 / math.sqrt(part.weight[0].numel())
            for weights in part.parameters():
                weights.copy_(
                    torch.empty(weights.shape, dtype=weights.dtype).uniform_(-bound, bound, generator=generator)
                )
        elif isinstance(part, nn.Conv2d):
            fan_out = part.weight.numel() // part.in_channels
            drawn = torch.empty(part.weight.shape, dtype=part.weight.dtype).normal_(generator=generator)
            part.weight.copy_(drawn * math.sqrt(2 / fan_out))
        elif isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | BatchNorm):
            part.reset_parameters()
