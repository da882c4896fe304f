"""All translations of an image: an augmentation that is a finite set of views, so that an average over it is an exact sum."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from sslbook._ambient import anywhere
from sslbook._check import require_whole


@anywhere
def shifts(images: Tensor, radius: int = 1) -> Tensor:
    """Return all ``(2 radius + 1)^2`` translations by up to ``radius`` pixels, with zeros in the pixels left empty.

    The original image comes first.  The others follow in increasing order of (dy, dx), where dy > 0 moves the
    image down, and dx > 0 moves it right.  The shapes are ``(N, C, H, W) -> (N, V, C, H, W)``.
    """
    height, width = images.shape[-2:]
    radius = require_whole("radius", radius, least=0, most=min(height, width) - 1)
    windows = F.pad(images, (radius,) * 4).unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
    # Window (sy, sx) starts at padded pixel (sy, sx): it shows the image moved by radius - s.
    moved = windows.flip(1, 2).flatten(1, 2)
    middle = moved.shape[1] // 2
    return moved[:, [middle, *(i for i in range(moved.shape[1]) if i != middle)]]
