r"""Filters of real images: Figures 12 and 13 of [tian2023], each image cut into four receptive fields.

The network is that of the token experiments; positive pairs are two random crops of one image, or the image twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sslbook.arguments import require_number, require_whole
from sslbook.chapters.modulation.reference import loss, outputs
from sslbook.images import Images, digits, read, readable
from sslbook.streams import Streams, to_device

FIELDS = ("upper left", "upper right", "lower left", "lower right")


@dataclass(frozen=True)
class PatchProtocol:
    r"""Appendix E.3 of [tian2023], and what it leaves open as the released code has it.

    strength: crops cover ``[1 - strength, 1]`` of the image's area with sides in the ratio ``[1 - strength, 1 + strength]``,
    as in the text for 1/2; 0 takes the image as it is, and the pair is equal.
    """

    beta: int = 5
    classes: int = 10
    outputs: int = 50
    batch: int = 8
    steps: int = 50_000
    rate: float = 0.02
    momentum: float = 0.9
    decay: float = 5e-3
    tau: float = 0.1
    strength: float = 0.0
    activation: str = "relu"

    def __post_init__(self) -> None:
        require_number("strength", self.strength, least=0, below=1)
        for name, least in (("beta", 1), ("batch", 2), ("steps", 1)):
            require_whole(name, getattr(self, name), least=least)

    @property
    def filters(self) -> int:
        """In each field: :math:`M = 10\\beta`, ten for the classes."""
        return self.beta * self.classes


def images(split: Literal["train", "test"] = "train") -> Images:
    """MNIST where it is, else the small digits of scikit-learn."""
    return read("mnist", split) if readable("mnist") else digits()


def four_fields(pixels: Tensor) -> Tensor:
    """The quarters of images ``(..., S, S)``, in the order of :data:`FIELDS`: ``(..., 4, S^2/4)``; raises ValueError for odd
    sides."""
    height, width = pixels.shape[-2:]
    if height % 2 or width % 2:
        raise ValueError(f"pixels must have even sides, got {height} x {width}")
    parts = pixels.unflatten(-1, (2, width // 2)).unflatten(-3, (2, height // 2))  # (..., 2, H/2, 2, W/2)
    quarters: Tensor = parts.transpose(-3, -2).flatten(-2).flatten(-3, -2)
    return quarters


def crop_boxes(u: Tensor, size: int, strength: float) -> Tensor:
    r"""Random boxes as torchvision's ``RandomResizedCrop`` draws them, ``(..., 4)``: top, left, height, width in whole pixels.

    u: uniform numbers ``(..., T, 4)`` for up to ``T`` tries (area, ratio, top, left); the first box that fits is taken, else
    all of the image.  The ratio is uniform on a logarithmic scale.
    """
    area = size**2 * (1 - strength * u[..., 0])
    low, high = torch.log(torch.tensor([1 - strength, 1 + strength], dtype=u.dtype))
    ratio = torch.exp(low + (high - low) * u[..., 1])
    width, height = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round())
    top, left = ((u[..., 2] * (size - height + 1)).floor(), (u[..., 3] * (size - width + 1)).floor())
    boxes = torch.stack([top, left, height, width], -1)
    fits = (width <= size) & (height <= size) & (width > 0) & (height > 0)
    whole = torch.zeros_like(boxes[..., :1, :])
    whole[..., 2:] = size
    boxes = torch.cat([boxes, whole], -2)
    first = torch.cat([fits, torch.ones_like(fits[..., :1])], -1).to(torch.int8).argmax(-1)
    return boxes.gather(-2, first[..., None, None].expand(*first.shape, 1, 4)).squeeze(-2)


def resize_matrices(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Bilinear enlargement of ``length`` pixels from ``start`` on to ``size``, as matrices ``(..., size, size)`` on the whole
    side.

    A new pixel's centre falls between two old ones of the box; beyond the outer centres it takes the outer pixel.
    """
    grid = torch.arange(size, dtype=start.dtype, device=start.device)
    centre = (grid + 0.5) * (length[..., None] / size) - 0.5
    at = start[..., None] + centre.clamp_min(0).minimum(length[..., None] - 1)
    return (1 - (at[..., None] - grid).abs()).clamp_min(0)


def random_crops(pixels: Tensor, streams: Streams, strength: float) -> Tensor:
    """A random crop of each image ``(R, N, S, S)``, enlarged to full size; boxes from the replicas' own streams."""
    size = pixels.shape[-1]
    u = to_device(streams.uniform((pixels.shape[1], 10, 4), pixels.dtype), pixels.device)
    boxes = crop_boxes(u, size, strength)
    rows = resize_matrices(boxes[..., 0], boxes[..., 2], size)
    columns = resize_matrices(boxes[..., 1], boxes[..., 3], size)
    return rows @ pixels @ columns.mT


def train_filters(
    data: Images, protocol: PatchProtocol, seeds: list[int], *, device: torch.device | str = "cpu"
) -> Tensor:
    """Filters after training, ``(R, 4, M, S/2, S/2)``; every replica draws images and crops from streams of its seed.

    Images come in passes, each in a random order of its own, as far as whole minibatches go.
    """
    pixels = data.pixels[:, 0].to(device)
    side, batch = pixels.shape[-1] // 2, protocol.batch
    starts, order, crops = (Streams(seeds, name) for name in ("weights", "order", "crops"))
    d, m, o = side**2, protocol.filters, protocol.outputs
    w = starts.uniform((4, d, m)).mul_(2).sub_(1).div_(d**0.5).to(device).requires_grad_()
    v = starts.uniform((4, m, o)).mul_(2).sub_(1).div_((4 * m) ** 0.5).to(device).requires_grad_()
    optimizer = torch.optim.SGD([w, v], protocol.rate, protocol.momentum, weight_decay=protocol.decay)
    a_pass = len(pixels) // batch
    queue = torch.empty(0)
    for step in range(protocol.steps):
        if step % a_pass == 0:
            queue = to_device(order.uniform((len(pixels),)).argsort(1), pixels.device)
        at = step % a_pass * batch
        chosen = pixels[queue[:, at : at + batch]]
        if protocol.strength:
            pair = [random_crops(chosen, crops, protocol.strength) for _ in range(2)]
        else:
            pair = [chosen, chosen]
        x = four_fields(torch.stack(pair, 1))
        z = outputs(x, w, v, activation=protocol.activation, mean="normal", std="detach")
        optimizer.zero_grad()
        loss(z, "info_nce", "released", protocol.tau).sum().backward()
        optimizer.step()
    filters: Tensor = w.detach().mT.unflatten(-1, (side, side))
    return filters


def roughness(filters: Tensor) -> Tensor:
    """Squared differences of neighbouring pixels over the squares, ``(..., )`` for ``(..., S, S)``: near 4 for noise, small
    for smooth ones.

    Of each filter less its mean; a filter that is constant has 0.
    """
    centred = filters - filters.mean((-2, -1), keepdim=True)
    pairs = centred.diff(dim=-1).square().sum((-2, -1)) + centred.diff(dim=-2).square().sum((-2, -1))
    size = centred.square().sum((-2, -1))
    return torch.where(size > 0, pairs / size.clamp_min(1e-30), 0.0)


def living(filters: Tensor) -> Tensor:
    """Which filters have not faded, ``(R, 4, M)`` for ``(R, 4, M, S, S)``: longer than a twentieth of the replica's longest.

    A ReLU filter that no input opens any more gets no gradient, and weight decay takes it to zero.
    """
    lengths = filters.flatten(-2).norm(dim=-1)
    alive: Tensor = lengths > 0.05 * lengths.amax((-2, -1), keepdim=True)
    return alive


def mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of ``values (R, 4, M)`` over the ``chosen`` of all fields, ``(R,)``."""
    total: Tensor = (values * chosen).sum((1, 2)) / chosen.sum((1, 2))
    return total


def likeness(filters: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Mean absolute cosine of two different filters of a field, ``(R,)`` for ``(R, 4, M, S, S)``: 1 if all are alike.

    chosen: which filters count, ``(R, 4, M)``; all if not given.  0 where no field has two.
    """
    flat = torch.nn.functional.normalize(filters.flatten(-2), dim=-1)
    kept = torch.ones_like(flat[..., 0]) if chosen is None else chosen.to(flat)
    pairs = kept[..., None] * kept[..., None, :] * (1 - torch.eye(flat.shape[-2]).to(flat))
    cosines = (flat @ flat.mT).abs()
    total: Tensor = (cosines * pairs).sum((1, 2, 3)) / pairs.sum((1, 2, 3)).clamp_min(1)
    return total
