"""Random augmented views for the ablations: one geometric and one photometric transformation an image, all in a batch.

Simpler than the augmentation that the papers train with: an affine map (shift, zoom, rotation, mirror) read by bilinear
interpolation with zeros outside, then a gain, a gain per colour, and grey.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sslbook.arguments import require_number

NUMBERS = 10
"""Uniform random numbers that one view takes."""


@dataclass(frozen=True)
class Augmentation:
    """How far each part goes; a part is uniform between plus and minus its number.

    shift: share of the image's side.  zoom: share of its size.  rotation: radians.  gain: share of the brightness;
    tint: the same for each colour alone.  grey: the probability that the colours are averaged; mirror: left-right with 1/2.
    """

    shift: float = 0.12
    zoom: float = 0.1
    rotation: float = 0.1
    gain: float = 0.1
    tint: float = 0.0
    grey: float = 0.0
    mirror: bool = False

    def __post_init__(self) -> None:
        for name in ("shift", "zoom", "gain", "tint", "grey"):
            require_number(name, getattr(self, name), least=0, most=1)
        require_number("zoom", self.zoom, below=1)  # at 1 the image would vanish


def augment(images: Tensor, u: Tensor, augmentation: Augmentation) -> Tensor:
    """One view of each image: ``images (N, C, H, W)``, uniform numbers ``u (N, NUMBERS)`` in [0, 1)."""
    v = (2 * u - 1).to(images)
    angle, size = augmentation.rotation * v[:, 0], 1 + augmentation.zoom * v[:, 1]
    side = (v[:, 9].sign() if augmentation.mirror else torch.ones_like(angle)) * size
    moved = 2 * augmentation.shift * v[:, 2:4]  # the image spans -1 to 1
    rows = (
        torch.stack([side * angle.cos(), -size * angle.sin(), moved[:, 0]], 1),
        torch.stack([side * angle.sin(), size * angle.cos(), moved[:, 1]], 1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    seen = F.grid_sample(images, grid, align_corners=False)
    colours = images.shape[1]
    if augmentation.tint:
        seen = seen * (1 + augmentation.tint * v[:, 5 : 5 + colours, None, None])
    if augmentation.grey:
        grey = (u[:, 8] < augmentation.grey).to(seen)[:, None, None, None]
        seen = torch.lerp(seen, seen.mean(1, keepdim=True).expand_as(seen), grey)
    return seen * (1 + augmentation.gain * v[:, 4, None, None, None])
