"""Gaussian blur of a batch, each image with its own width, as two small matrix products.

The kernel has ``kernel`` taps ``exp(-t^2 / (2 sigma^2))``, normalised; borders are reflected without repeating the edge pixel.
A blur along one side is linear, so it is a matrix, and the reflected border is part of that matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslbook.training.views.crops import resample


def _shifts(kernel: int, side: int, device: torch.device) -> Tensor:
    """For each tap, the matrix ``(kernel, side * side)`` that moves pixels by it, reflected at the borders."""
    offset, pixel = torch.arange(kernel, device=device) - kernel // 2, torch.arange(side, device=device)
    source = (pixel + offset[:, None]).abs()
    source = torch.where(source > side - 1, 2 * (side - 1) - source, source)
    return (source[:, :, None] == pixel).float().flatten(1)  # row i of a tap's matrix reads pixel i + offset


def taps(sigma: Tensor, kernel: int, applied: Tensor) -> Tensor:
    """The kernels ``(B, kernel)`` of widths ``sigma (B,)``, in pixels; a single tap of 1 where a blur is not ``applied (B,)``."""
    offset = torch.arange(kernel, device=sigma.device, dtype=torch.float32) - kernel // 2
    bell = (-0.5 * (offset / sigma.float()[:, None]).square()).exp()
    return torch.where(applied[:, None], bell / bell.sum(1, keepdim=True), (offset == 0).float())


def blur(images: Tensor, kernels: Tensor) -> Tensor:
    """The images ``(B, C, S, S)`` under their kernels ``(B, kernel)``, along rows and columns."""
    count, _, side, _ = images.shape
    matrices = (kernels @ _shifts(kernels.shape[1], side, images.device)).view(count, side, side)
    return resample(images, matrices, matrices)
