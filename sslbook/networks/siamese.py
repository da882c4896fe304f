r"""Two towers: an encoder and a projector, on BYOL's side a predictor above them, and a target tower that follows.

The two views of a batch go through the networks one after the other, so that BatchNorm's statistics are each view's own, as in
the papers' released code.  All drawing is done on the CPU by generators of its own: weights depend on ``seed`` and not on the
device, and those of the encoder not on what stands above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslbook._ambient import copied, seeded
from sslbook._check import keep_plain, require_one_of, require_whole
from sslbook.networks.batchnorm import BatchNorm

STEMS = ("cifar", "stl")
Norm = tuple[str, str]
"""A mode of :data:`sslbook.networks.batchnorm.MODES` for BatchNorm's mean, and one for its deviation."""


class Head(nn.Module):
    """One or two linear layers, ``(N, inputs) -> (N, outputs)``; ``hidden=None`` is one layer, ``norm=None`` no BatchNorm.

    unbiased: the deviation divides by one less than the batch, as the layer of the released code's Table 4 does.
    out_norm: of a BatchNorm after the last layer.
    """

    def __init__(
        self,
        inputs: int,
        hidden: int | None,
        outputs: int,
        norm: Norm | None,
        unbiased: bool = False,
        out_norm: Norm | None = None,
    ) -> None:
        super().__init__()
        sizes = [inputs, outputs] if hidden is None else [inputs, hidden, outputs]
        self.linears = nn.ModuleList(nn.Linear(below, above) for below, above in pairwise(sizes))
        layers: list[nn.Module | None] = []
        for features, modes in ((sizes[-2], norm), (outputs, out_norm)):
            if modes is None:
                layers.append(None)
            elif modes == ("normal", "normal") and not unbiased:  # PyTorch's, one fused kernel
                layers.append(nn.BatchNorm1d(features, affine=False))
            else:  # a half is taken out
                layers.append(BatchNorm(features, mean=modes[0], std=modes[1], unbiased=unbiased))
        self.norm, self.out_norm = layers

    def forward(self, x: Tensor) -> Tensor:
        """Return the head's output for ``(N, inputs)``, in float32 at least: cosines are not for half precision.

        Two layers are Linear, BatchNorm, ReLU, Linear; one is BatchNorm, Linear (Tables 7 to 9 of [tian2021iclr]).  BatchNorm has
        no affine part, and linear layers have biases, as in the released code.
        """
        for linear in self.linears[:-1]:
            x = linear(x)
        if self.norm is not None:
            x = self.norm(x)
        if len(self.linears) > 1:
            x = x.relu()
        y: Tensor = self.linears[-1](x)
        if self.out_norm is not None:
            y = self.out_norm(y)
        return y.float() if y.dtype in (torch.bfloat16, torch.float16) else y


@dataclass(frozen=True)
class Networks:
    """These are the sizes and kinds of the networks; the defaults are those of the papers' SimCLR.

    stem, width, channels: the arguments of the encoder, a :class:`~sslbook.networks.siamese.ResNet18`.
    projector_norm, predictor_norm: the modes of mean and deviation in that part's BatchNorm, or None for no BatchNorm.
    projector_out_norm: the modes of a BatchNorm after both projectors, as in SimSiam (Chen and He 2021), or None.
    unbiased: whether these BatchNorms use the unbiased variance, as the released code does for Table 4.
    predictor: the predictor's number of layers, or 0 for no predictor.
    predictor_range: the interval of the predictor's uniform initial weights; None means PyTorch's default.
    target: None if the targets are the network's own outputs, "ema" if they are those of a second tower, with averaged weights.
    target_init: whether the second tower starts as a "copy" or with its "own" weights, as in the released code.

    Raises TypeError or ValueError, in a sentence that names the field, for networks that can't be built.

    >>> Networks(predictor=2, target="ema").width
    64
    """

    stem: str = "cifar"
    width: int = 64
    projector_hidden: int = 512
    projector_out: int = 128
    projector_norm: Norm | None = ("normal", "normal")
    predictor_norm: Norm | None = ("normal", "normal")
    unbiased: bool = False
    predictor: int = 0
    predictor_hidden: int = 512
    predictor_range: tuple[float, float] | None = None
    target: str | None = None
    target_init: str = "copy"
    channels: int = 3
    projector_out_norm: Norm | None = None

    def __post_init__(self) -> None:
        """Check the fields; JSON has lists where we have pairs."""
        keep_plain(self)
        for name in ("width", "channels", "projector_hidden", "projector_out", "predictor_hidden"):
            require_whole(name, getattr(self, name), least=1)
        for name in ("projector_norm", "predictor_norm", "projector_out_norm"):
            object.__setattr__(self, name, getattr(self, name) and tuple(getattr(self, name)))
        if self.predictor_range is not None:
            object.__setattr__(self, "predictor_range", tuple(map(float, self.predictor_range)))
        choices = {"stem": STEMS, "unbiased": (False, True), "predictor": (0, 1, 2)}
        choices |= {"target": (None, "ema"), "target_init": ("copy", "own")}
        for name, choice in choices.items():
            given = getattr(self, name)
            if given not in choice or isinstance(given, bool) != (name == "unbiased"):
                raise ValueError(f"{name} must be one of {', '.join(map(str, choice))}, got {given!r}")


class Outputs(NamedTuple):
    """Embeddings ``(N, D)`` of two views: projected ``z``, predicted ``p``, the targets ``t``; in float32 or float64.

    ``t1`` is what the target tower says of view 1: BYOL compares it with ``p2``.  Without a predictor ``p`` is ``z``; without a
    target tower ``t`` is ``z``, gradient and all.  ``w``: projected embeddings that weights are taken from, if an objective asks
    for them: of two further views, or twice those of the images as they are.  labels: the images' classes, int64 ``(N,)``, if an
    objective asks for those.
    """

    z1: Tensor
    z2: Tensor
    p1: Tensor
    p2: Tensor
    t1: Tensor
    t2: Tensor
    w1: Tensor | None = None
    w2: Tensor | None = None
    labels: Tensor | None = None


class Siamese(nn.Module):
    """The networks of one run; made by :func:`build`."""

    def __init__(self, networks: Networks, encoder: nn.Module, features: int) -> None:
        super().__init__()
        self.networks, self.encoder = networks, encoder
        size, out = networks.projector_hidden, networks.projector_out
        norms = networks.projector_norm, networks.unbiased, networks.projector_out_norm
        self.projector = Head(features, size, out, *norms)
        self.predictor: Head | None = None
        if networks.predictor:
            hidden = networks.predictor_hidden if networks.predictor == 2 else None
            self.predictor = Head(out, hidden, out, networks.predictor_norm, networks.unbiased)
        self.target_encoder: nn.Module | None = None
        self.target_projector: Head | None = None
        if networks.target is not None:
            self.target_encoder = copied(self.encoder).requires_grad_(False)
            self.target_projector = copied(self.projector).requires_grad_(False)

    def forward(self, view1: Tensor, view2: Tensor, *others: Tensor) -> Outputs:
        """What the objectives ask for, of two views ``(N, C, H, W)``, each in its own pass.

        Also the target tower normalises by its batch when it is in training mode; no gradient reaches it.  others: the same
        images without augmentation, or two further views of them, for the weights of the objective ``exact``; they pass with no
        gradient, and BatchNorm does not count them.
        """
        z1, z2 = (self.projector(self.encoder(view)) for view in (view1, view2))
        p1, p2 = (z1, z2) if self.predictor is None else (self.predictor(z1), self.predictor(z2))
        t1, t2 = z1, z2
        with torch.no_grad():
            if self.target_encoder is not None and self.target_projector is not None:
                t1, t2 = (self.target_projector(self.target_encoder(view)) for view in (view1, view2))
            both = nn.Sequential(self.encoder, self.projector)
            weighing = []
            for x in others:
                uncounted = {name: buffer.clone() for name, buffer in both.named_buffers()}
                weighing.append(torch.func.functional_call(both, uncounted, (x,)))
        return Outputs(z1, z2, p1, p2, t1, t2, *(weighing * 2)[:2])

    def learning(self) -> list[nn.Parameter]:
        """Return what an optimiser moves: all parameters but the target's, which follow by :meth:`update_target`."""
        return [weights for weights in self.parameters() if weights.requires_grad]

    @torch.no_grad()
    def update_target(self, keep: float) -> None:
        r""":math:`W_{\text{target}} \leftarrow \text{keep} \cdot W_{\text{target}} + (1 - \text{keep}) W`, of parameters only.

        BatchNorm's running statistics are the target's own, as in the released code.  Nothing happens without a target.

        keep: from 0, which makes the target a copy, as :func:`build` does at the start, to 1, which leaves it as it is.  After
        ``n`` steps with one ``keep``, what the target was before them has the share :math:`\text{keep}^n` in it.
        """
        if self.target_encoder is not None and self.target_projector is not None:
            theirs: list[Tensor] = [*self.target_encoder.parameters(), *self.target_projector.parameters()]
            ours: list[Tensor] = [*self.encoder.parameters(), *self.projector.parameters()]
            torch._foreach_lerp_(theirs, ours, 1 - keep)

    @torch.no_grad()
    def reset_predictor(self, generator: torch.Generator) -> None:
        r"""Draw the predictor's weights anew, from ``generator`` on the CPU, and set its biases to 0 (Tables 5 and 7 to 10).

        Uniform on ``predictor_range``, or Xavier's: uniform on :math:`\pm\sqrt{6/(\text{fan-in} + \text{fan-out})}`.
        BatchNorm's running statistics stay, and so does the optimiser's momentum: they are none of its weights.
        """
        assert self.predictor is not None
        for linear in self.predictor.linears:
            assert isinstance(linear, nn.Linear)
            drawn = torch.empty(linear.weight.shape, dtype=linear.weight.dtype)
            if self.networks.predictor_range is None:
                nn.init.xavier_uniform_(drawn, generator=generator)
            else:
                drawn.uniform_(*self.networks.predictor_range, generator=generator)
            linear.weight.copy_(drawn)
            linear.bias.zero_()

    @torch.no_grad()
    def symmetrize_predictor(self) -> None:
        r"""The released code's default, after every step: :math:`W_1 = W_0^\top = (W_0 + W_1^\top)/2`.

        With one layer :math:`W = (W + W^\top)/2`.  Here :math:`W_0` is the weight ``(predictor_hidden, projector_out)`` of the
        first layer and :math:`W_1` that of the second, so that without BatchNorm and ReLU between them the predictor would be the
        symmetric, positive semi-definite :math:`W_1 W_1^\top`.  Biases and BatchNorm stay as they are.
        """
        assert self.predictor is not None
        first, last = (self.predictor.linears[at].get_parameter("weight") for at in (0, -1))
        mean = (first + last.T) / 2
        first.copy_(mean)
        last.copy_(mean.T)

    @torch.no_grad()
    def blend_noise(self, eta: float, generator: torch.Generator) -> None:
        r""":math:`W \leftarrow (1-\eta) W + \eta \cdot \text{Xavier}(W)` for each matrix and kernel of encoder and projector.

        That is how the released code adds the noise of Table 2 of [tian2020], at the start of each epoch; the paper says that it is
        added to the gradient rule.  Biases, and BatchNorm's scales, get no noise.  ``generator`` is on the CPU.
        """
        for weights in [*self.encoder.parameters(), *self.projector.parameters()]:
            if weights.ndim > 1 and weights.requires_grad:
                drawn = torch.empty(weights.shape, dtype=weights.dtype)
                nn.init.xavier_uniform_(drawn, generator=generator)
                weights.mul_(1 - eta).add_(drawn.to(weights.device), alpha=eta)


def build(networks: Networks, seed: int, backbone: tuple[nn.Module, int] | None = None) -> Siamese:
    """The networks with their first weights, which are a function of ``seed``; the global generator stays as it was.

    ``predictor_range`` sets the range of the predictor's first weights, with biases 0.  backbone: an encoder with weights of its
    own, and how many features it gives, in the place of the ResNet-18; a target tower then starts as a copy of it.
    """
    draw = {}  # a generator for each purpose: the encoder's weights are the same whatever stands above it
    for purpose in ("encoder", "projector", "predictor", "predictor range", "target encoder", "target projector"):
        words = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(2, np.uint32)
        draw[purpose] = torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
    with seeded(None):  # PyTorch draws weights when it makes a layer, and ours replace them
        if backbone is None:
            resnet = ResNet18(networks.stem, networks.width, networks.channels).float()
            initialize(resnet, draw["encoder"])
        siamese = Siamese(networks, *(backbone or (resnet, resnet.features))).float()
    initialize(siamese.projector, draw["projector"])
    if siamese.predictor is not None:
        initialize(siamese.predictor, draw["predictor"])
        if networks.predictor_range is not None:
            siamese.reset_predictor(draw["predictor range"])
    if siamese.target_encoder is not None and siamese.target_projector is not None:
        if backbone is None:
            initialize(siamese.target_encoder, draw["target encoder"])
        initialize(siamese.target_projector, draw["target projector"])
        if networks.target_init == "copy":
            siamese.update_target(keep=0)
    return siamese


# --- ResNet-18 -------------------------------------------------------------------------------------------------------


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
        """Return the block's output; two ReLUs and the sum are in place, as in torchvision, for their memory."""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """Map images ``(N, channels, H, W)`` to representations ``(N, 8 width)``: ResNet-18 without its classifier.

    stem: "cifar" for images of 32 pixels, "stl" for those of 96 (:meth:`forward`).  Raises ValueError for another one.
    Parameters and buffers have the names of torchvision's ``resnet18`` (``layer1.0.conv1.weight``, …).  A module in
    ``torch.channels_last`` takes its images along; :func:`sslbook.training.run.step.layout_of` says where that is safe.

    >>> ResNet18(width=8)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """

    def __init__(self, stem: str = "cifar", width: int = 64, channels: int = 3) -> None:
        super().__init__()
        require_one_of("stem", stem, STEMS)
        self.stem, self.features = stem, 8 * width
        kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
        self.conv1 = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(Block(4 * width, 8 * width, 2), Block(8 * width, 8 * width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the representations ``(N, 8 width)`` of a batch: a stem, four stages of two blocks, and the mean over the image.

        The stages have ``width``, ``2 width``, ``4 width`` and ``8 width`` channels, and each but the first halves the image
        (He et al. 2016; 512 numbers at the standard width of 64).  The stem is a 3x3 convolution for CIFAR-10 (Chen et al. 2020,
        Appendix B.9); for STL-10, as for ImageNet, a 7x7 convolution and a 3x3 max-pool, both of stride 2.
        """
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.stem == "stl":
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


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
                drawn = torch.empty(weights.shape, dtype=weights.dtype).uniform_(-bound, bound, generator=generator)
                weights.copy_(drawn)
        elif isinstance(part, nn.Conv2d):
            fan_out = part.weight.numel() // part.in_channels
            drawn = torch.empty(part.weight.shape, dtype=part.weight.dtype).normal_(generator=generator)
            part.weight.copy_(drawn * math.sqrt(2 / fan_out))
        elif isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | BatchNorm):
            part.reset_parameters()
